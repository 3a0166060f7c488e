"""Slow, independent references, written from the paper and nothing else.

They exist to disagree with the package. Every design matrix here is dense and standardised in memory, every set is refitted from
scratch, every family of sets is enumerated; nothing is incremental, cached or vectorised over models. Numerics are numpy, math and
itertools alone, and nothing of ``fastomp_nvm`` may ever be imported.

Conventions. A *feature* is a list of columns (``groups``; None for one column each). ``independent`` takes a frozenset of features.
``standardise=False`` leaves columns and response as they are. Everything the algorithms take as ``**model`` goes to ``Model``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "Certificate",
    "Fit",
    "InnerStep",
    "Model",
    "OuterStep",
    "Run",
    "best_exchange",
    "blocking_index",
    "brute_force_optimum",
    "certificate_bound",
    "fast_omp",
    "fast_prototype",
    "information_criteria",
    "is_downward_closed",
    "linear_gradient",
    "linear_value",
    "logistic_fit",
    "logistic_gradient",
    "logistic_rsc_rsm",
    "logistic_value",
    "motivating_example",
    "p_of_system",
    "plink_genotypes",
    "poisson_fit",
    "poisson_gradient",
    "poisson_value",
    "random_base",
    "rnd_seq",
    "rsc_rsm",
    "score",
    "sds_ma",
    "sds_omp",
    "standardise",
    "theorem1_bound",
    "top_k",
]

Array = npt.NDArray[Any]
Groups = Sequence[Sequence[int]]
Independent = Callable[[frozenset[int]], bool]
Permutation = Callable[[int, list[int]], Iterable[int]]  # (round, ascending list) -> the same in the round's random order
SeededPermutation = Callable[[int, int, int, list[int]], Iterable[int]]  # the same, by (outer, inner, round, list)

DEPENDENT = 1e-10  # relative singular value below which a direction counts as dependent


def standardise(X: Any, weights: Any = None) -> Array:
    """Return the columns centred and of unit norm, both under the row weights; constant columns become zero.

    ``sum_i w_i x_is = 0`` and ``sum_i w_i x_is^2 = 1``. Rows of weight zero are transformed but do not contribute.
    """
    X = np.array(X, dtype=np.float64)
    w = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64)
    inside = w > 0
    result = np.zeros(X.shape)
    for s in range(X.shape[1]):
        if X[inside, s].min() < X[inside, s].max():
            centred = X[:, s] - math.fsum(w * X[:, s]) / math.fsum(w)
            centred -= math.fsum(w * centred) / math.fsum(w)  # again: a mean of 10^6 leaves a remainder of 10^-10
            result[:, s] = centred / math.sqrt(math.fsum(w * centred**2))
    return result


_standardise = standardise  # the name again, where a keyword hides it


def _correlate(X: Array, vector: Array) -> Array:
    """Return X' vector, every column summed in the same order so that equal columns get equal numbers."""
    return np.asarray((X * vector[:, None]).sum(axis=0))


@dataclass(frozen=True, slots=True)
class Fit:
    """One refit: the maximum of R^2 or of the total log-likelihood less the penalty, and the residual without weights."""

    coefficients: Array
    intercept: float
    objective: float
    residual: Array


def _linear(X: Array, y: Array, w: Array, ridge: float, free: int = 0) -> Fit:
    """Maximise ``y'y - |y - X b|^2 - ridge |b|^2``, the first ``free`` of b unpenalised, as one least-squares problem."""
    root, width = np.sqrt(w), X.shape[1]
    penalty = np.full(width, float(ridge))
    penalty[:free] = 0.0
    rows = np.vstack((X * root[:, None], np.diag(np.sqrt(penalty))))
    beta = np.linalg.lstsq(rows, np.concatenate((y * root, np.zeros(width))), rcond=DEPENDENT)[0]
    residual = y - X @ beta
    return Fit(beta, 0.0, float((w * y) @ y - (w * residual) @ residual - (penalty * beta) @ beta), residual)


def _logistic(eta: Array) -> tuple[Array, Array, Array]:
    """Return log(1 + e^eta) and its first two derivatives, without overflow."""
    tail = np.exp(-np.abs(eta))
    mean = np.where(eta >= 0, 1 / (1 + tail), tail / (1 + tail))
    return np.maximum(eta, 0) + np.log1p(tail), mean, tail / (1 + tail) ** 2


def _poisson(eta: Array) -> tuple[Array, Array, Array]:
    """Return e^eta and its first two derivatives; infinite, silently, where a trial step went too far."""
    with np.errstate(over="ignore"):
        mean = np.exp(eta)
    return mean, mean, mean


FAMILIES = {"logistic": _logistic, "poisson": _poisson}


def _glm(X: Array, y: Array, w: Array, ridge: float, family: str, free: int = 0, offset: Any = 0.0) -> Fit:
    """Maximise ``sum w (y eta - partition(eta)) - ridge/2 |b|^2`` by damped Newton from zero.

    The intercept and the first ``free`` of b are unpenalised; ``offset`` is a part of eta.

    Separable data without a ridge has no maximum: the value is then the supremum to rounding, the coefficients mean nothing.
    """
    partition = FAMILIES[family]
    Z = np.column_stack((np.ones(len(y)), X))
    penalty = np.full(Z.shape[1], float(ridge))
    penalty[: 1 + free] = 0.0

    def likelihood(theta: Array) -> float:
        eta = Z @ theta + offset
        return float(w @ (y * eta - partition(eta)[0]) - 0.5 * (penalty * theta) @ theta)

    def newton(theta: Array) -> tuple[Array, float]:
        _, mean, variance = partition(Z @ theta + offset)
        slope = Z.T @ (w * (y - mean)) - penalty * theta
        direction = np.linalg.lstsq((Z.T * (w * variance)) @ Z + np.diag(penalty), slope, rcond=1e-14)[0]
        return direction, float(slope @ direction)

    theta = np.zeros(Z.shape[1])
    for _ in range(500):
        direction, decrement = newton(theta)
        current, length = likelihood(theta), 1.0
        if decrement < 1e-11 * (1 + abs(current)):
            break
        while not likelihood(theta + length * direction) > current and length > 1e-12:
            length /= 2
        theta = theta + length * direction
    else:
        raise ArithmeticError(f"the {family} fit did not converge in 500 steps")
    for _ in range(2):  # inside the region of quadratic convergence: down to rounding
        theta = theta + newton(theta)[0]
    return Fit(theta[1:], float(theta[0]), likelihood(theta), y - partition(Z @ theta + offset)[1])


def score(X_std: Array, groups: Groups, gradient: Array, weights: Any = None) -> Array:
    """Return ``g_B' (X_B' X_B)^+ g_B`` per feature; for a single column ``g^2``, as in the paper."""
    w = np.ones(len(X_std)) if weights is None else np.asarray(weights, dtype=np.float64)
    result = np.zeros(len(groups))
    for feature, columns in enumerate(groups):
        g, block = gradient[list(columns)], X_std[:, list(columns)]
        if len(columns) == 1:
            result[feature] = g[0] ** 2
        else:
            result[feature] = g @ np.linalg.pinv((block.T * w) @ block, rcond=DEPENDENT, hermitian=True) @ g
    return result


class Model:
    """The objective as a set function of features, refitted for every question.

    ``X`` is (n_obs, n_columns), ``y`` (n_obs,); ``objective`` is "linear", "logistic" or "poisson". The linear response is
    standardised like a column; the others keep their units. ``always`` (n_obs, p) are columns in every fit, never penalised, and
    ``offset`` (n_obs,) is a given part of the predictor (of the response, for "linear").
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        groups: Groups | None = None,
        *,
        objective: str = "linear",
        ridge: float = 0.0,
        weights: Any = None,
        standardise: bool = True,
        always: Any = None,
        offset: Any = 0.0,
    ) -> None:
        assert objective in {"linear", *FAMILIES}
        if objective == "linear":
            y = np.asarray(y, dtype=np.float64) - offset
        self.X, self.y = np.array(X, dtype=np.float64), np.array(y, dtype=np.float64)
        self.w = np.ones(len(self.y)) if weights is None else np.array(weights, dtype=np.float64)
        if standardise:
            self.X = _standardise(self.X, self.w)
            self.y = _standardise(self.y[:, None], self.w)[:, 0] if objective == "linear" else self.y
        self.always = np.empty((len(self.y), 0)) if always is None else _standardise(always, self.w)
        self.offset = offset
        self.groups = [[s] for s in range(self.X.shape[1])] if groups is None else [list(group) for group in groups]
        self.objective, self.ridge = objective, ridge
        # a feature without any varying column is never a candidate
        self.usable = [feature for feature, columns in enumerate(self.groups) if np.any(self.X[self.w > 0][:, columns])]

    def fit(self, columns: Sequence[int]) -> Fit:
        """Refit on the given columns."""
        free = self.always.shape[1]
        X = np.hstack((self.always, self.X[:, list(columns)]))
        if self.objective == "linear":
            return _linear(X, self.y, self.w, self.ridge, free)
        return _glm(X, self.y, self.w, self.ridge, self.objective, free, self.offset)

    def gain(self, columns: Sequence[int]) -> float:
        """Return l(beta) - l(0) of the refit on the given columns."""
        return self.fit(columns).objective - self.fit([]).objective

    def gradient(self, columns: Sequence[int]) -> Array:
        """Return ``A_std (w r)`` at the refit on the given columns, for every column."""
        return _correlate(self.X, self.w * self.fit(columns).residual)

    def columns(self, features: Iterable[int]) -> list[int]:
        """Return the columns of the given features."""
        return [column for feature in features for column in self.groups[feature]]

    def value(self, features: Iterable[int]) -> float:
        """Return f of the set."""
        return self.gain(self.columns(features))

    def scores(self, features: Iterable[int]) -> Array:
        """Return the score of every feature at the refit on the set."""
        return score(self.X, self.groups, self.gradient(self.columns(features)), self.w)

    def extensions(self, independent: Independent, selected: Iterable[int]) -> list[int]:
        """Return Cond(selected): the usable features outside the set that keep it independent."""
        chosen = frozenset(selected)
        return [s for s in self.usable if s not in chosen and independent(chosen | {s})]


def linear_value(X: Any, y: Any, columns: Sequence[int], ridge: float = 0.0, **options: Any) -> float:
    """Return R^2 of the refit; with a ridge the maximum of ``1 - |y - X b|^2 - ridge |b|^2``, not the plain R^2 there."""
    return Model(X, y, objective="linear", ridge=ridge, **options).gain(columns)


def linear_gradient(X: Any, y: Any, columns: Sequence[int], ridge: float = 0.0, **options: Any) -> Array:
    """Return ``A_std (w r)`` at the refit, for every column: half the gradient of R^2 off the support."""
    return Model(X, y, objective="linear", ridge=ridge, **options).gradient(columns)


def logistic_fit(X: Any, y: Any, columns: Sequence[int], ridge: float, **options: Any) -> Fit:
    """Return the penalised maximum-likelihood fit on the standardised columns."""
    return Model(X, y, objective="logistic", ridge=ridge, **options).fit(columns)


def logistic_value(X: Any, y: Any, columns: Sequence[int], ridge: float, **options: Any) -> float:
    """Return the total penalised log-likelihood minus that of the intercept alone."""
    return Model(X, y, objective="logistic", ridge=ridge, **options).gain(columns)


def logistic_gradient(X: Any, y: Any, columns: Sequence[int], ridge: float, **options: Any) -> Array:
    """Return ``A_std (w (y - mu))`` at the refit, for every column."""
    return Model(X, y, objective="logistic", ridge=ridge, **options).gradient(columns)


def poisson_fit(X: Any, y: Any, columns: Sequence[int], ridge: float, **options: Any) -> Fit:
    """Return the penalised maximum-likelihood fit; its log-likelihood leaves out the constant ``log y!``."""
    return Model(X, y, objective="poisson", ridge=ridge, **options).fit(columns)


def poisson_value(X: Any, y: Any, columns: Sequence[int], ridge: float, **options: Any) -> float:
    """Return the total penalised log-likelihood minus that of the intercept alone."""
    return Model(X, y, objective="poisson", ridge=ridge, **options).gain(columns)


def poisson_gradient(X: Any, y: Any, columns: Sequence[int], ridge: float, **options: Any) -> Array:
    """Return ``A_std (w (y - mu))`` at the refit, for every column."""
    return Model(X, y, objective="poisson", ridge=ridge, **options).gradient(columns)


def rnd_seq(
    independent: Independent,
    candidates: Iterable[int],
    selected: Iterable[int],
    permutation: Permutation,
) -> list[int]:
    """Return the sequence A of the appendix; ``permutation(round, ascending list)`` supplies each round's random order."""
    X, S, A, round_ = sorted(candidates), frozenset(selected), list[int](), 0
    while X:
        x = list(permutation(round_, list(X)))
        assert sorted(x) == X
        prefix = 0
        while prefix < len(x) and independent(S | set(A) | set(x[: prefix + 1])):
            prefix += 1
        A = A + x[:prefix]
        X = [e for e in X if e not in S and e not in A and independent(S | set(A) | {e})]
        round_ += 1
    return A


@dataclass(frozen=True, slots=True)
class InnerStep:
    """One inner iteration: ``sizes`` maps each prefix length asked about to |X_j|; a pure filter has no sequence."""

    inner: int
    sequence: list[int]
    sizes: dict[int, int]
    prefix: int
    remaining: list[int]


@dataclass(frozen=True, slots=True)
class OuterStep:
    """One outer iteration: the set it starts from, its candidates and its threshold."""

    outer: int
    selected: list[int]
    candidates: list[int]
    threshold: float
    inner: list[InnerStep]


@dataclass(frozen=True, slots=True)
class Run:
    """What FAST_OMP did.

    ``margin`` is the smallest ``|sqrt(score) - sqrt(t)|`` of any comparison, over the largest root score at the empty set: below
    about 1e-9 another correct implementation may decide otherwise by rounding alone.
    """

    selected: list[int]
    value: float
    outer_iterations: int
    gradient_rounds: int
    margin: float
    trace: list[OuterStep]


def fast_omp(
    X: Any,
    y: Any,
    groups: Groups | None,
    independent: Independent,
    rank: int,
    *,
    epsilon: float,
    tau: float,
    permutation: SeededPermutation,
    until: str = "paper",
    **model: Any,
) -> Run:
    """Run Algorithm 1 line by line; ``permutation(outer, inner, round, ascending list)`` supplies the randomness.

    ``until="paper"`` stops after ``ceil(1/epsilon)`` outer iterations, ``until="full"`` when the set is maximal.
    """
    assert until in {"paper", "full"}
    assert 0 < epsilon < 1
    assert 0 < tau <= 1, "a larger tau lets a threshold exceed every score: until='full' would not end"
    f = Model(X, y, groups, **model)
    S: list[int] = []
    trace: list[OuterStep] = []
    gradient_rounds, gaps, scale = 0, [math.inf], 0.0

    def survivors(scores: Array, S_j: list[int], candidates: list[int], t: float) -> list[int]:
        feasible = [s for s in candidates if s not in S_j and independent(frozenset(S_j) | {s})]
        gaps.extend(abs(math.sqrt(max(scores[s], 0.0)) - math.sqrt(t)) for s in feasible)
        return [s for s in feasible if scores[s] >= t]

    for outer in itertools.count():
        candidates = f.extensions(independent, S)  # line 3
        if not candidates or (until == "paper" and outer >= math.ceil(1 / epsilon)):  # line 2
            break
        scores_at_S = f.scores(S)
        gradient_rounds += 1
        if outer == 0:
            scale = math.sqrt(max(scores_at_S[s] for s in candidates))
        T = sorted((scores_at_S[s] for s in candidates), reverse=True)[: min(rank, len(candidates))]
        t = (1 - epsilon) * tau * (math.fsum(T) / len(T))  # line 4; r is the rank of the whole system, not what is left of it
        step = OuterStep(outer, list(S), list(candidates), t, [])
        trace.append(step)
        for inner in itertools.count():
            if not candidates or not f.extensions(independent, S):  # line 5
                break
            sizes: dict[int, int] = {}
            if inner == 0:  # j = 0: later on X has passed this very test already
                X_0 = survivors(scores_at_S, S, candidates, t)
                sizes[0] = len(X_0)
                if len(X_0) < (1 - epsilon) * len(candidates):
                    candidates = X_0
                    step.inner.append(InnerStep(inner, [], sizes, 0, list(candidates)))
                    continue
            a = rnd_seq(independent, candidates, S, partial(permutation, outer, inner))  # line 6
            gradient_rounds += 1
            X_j = {j: survivors(f.scores(S + a[:j]), S + a[:j], candidates, t) for j in range(1, len(a) + 1)}  # line 7
            sizes |= {j: len(members) for j, members in X_j.items()}
            prefix = min(j for j, members in X_j.items() if len(members) < (1 - epsilon) * len(candidates))  # line 8
            candidates, S = X_j[prefix], S + a[:prefix]  # line 9
            step.inner.append(InnerStep(inner, a, sizes, prefix, list(candidates)))
    return Run(S, f.value(S), len(trace), gradient_rounds, min(gaps) / (scale or 1.0), trace)


def _greedy(
    f: Model, independent: Independent, k: int | None, gain: Callable[[list[int], list[int]], dict[int, float]]
) -> list[int]:
    """Add the best extension, lowest index first among equals, until none is left or there are k."""
    S: list[int] = []
    while (k is None or len(S) < k) and (candidates := f.extensions(independent, S)):
        gains = gain(S, candidates)
        S = [*S, min(candidates, key=lambda s: (-gains[s], s))]
    return S


def sds_omp(X: Any, y: Any, groups: Groups | None, independent: Independent, k: int | None = None, **model: Any) -> list[int]:
    """Add the extension with the largest score, one at a time."""
    f = Model(X, y, groups, **model)
    return _greedy(f, independent, k, lambda S, candidates: dict(enumerate(f.scores(S))))


def sds_ma(X: Any, y: Any, groups: Groups | None, independent: Independent, k: int | None = None, **model: Any) -> list[int]:
    """Add the extension with the largest value of f, one at a time."""
    f = Model(X, y, groups, **model)
    return _greedy(f, independent, k, lambda S, candidates: {s: f.value([*S, s]) for s in candidates})


def best_exchange(f: Model, independent: Independent, selected: Sequence[int]) -> float:
    """Return by how much the best feasible addition or exchange of one feature for one improves f, by refits of all of them."""
    S = list(selected)
    smaller = [S, *([s for s in S if s != removed] for removed in S)]
    moves = ([*rest, s] for rest in smaller for s in f.extensions(independent, rest) if s not in S)
    return max((f.value(move) for move in moves), default=-math.inf) - f.value(S)


def information_criteria(
    X: Any, y: Any, columns: Sequence[int], size: int, n_features: int, family: str = "gaussian", weights: Any = None
) -> tuple[int, float, float, float]:
    """Return parameters, AIC, BIC and EBIC (gamma 1) of a model with intercept on raw ``columns``, from densities.

    ``size`` of ``n_features`` features were selected. Observations without weight do not exist, the others weigh 1 in the mean.
    """
    w = np.ones(len(y)) if weights is None else np.array(weights, dtype=np.float64)
    used = w > 0
    Z = np.column_stack((np.ones(len(y)), np.array(X, dtype=np.float64)[:, list(columns)]))[used]
    y, w, n = np.array(y, dtype=np.float64)[used], w[used] / w[used].mean(), int(used.sum())
    if family == "gaussian":
        root = np.sqrt(w)
        rest = y - Z @ np.linalg.lstsq(Z * root[:, None], y * root, rcond=None)[0]
        variance = sum(w * rest**2) / n
        densities = [-0.5 * math.log(2 * math.pi * variance) - r * r / (2 * variance) for r in rest]
    else:
        fit = _glm(Z[:, 1:] - Z[:, 1:].mean(axis=0), y, w, 0.0, family)
        means = y - fit.residual
        if family == "logistic":
            densities = [math.log(mean if one else 1 - mean) for mean, one in zip(means, y == 1, strict=True)]
        else:
            densities = [count * math.log(mean) - mean - math.lgamma(count + 1) for mean, count in zip(means, y, strict=True)]
    deviance = -2 * sum(weight * density for weight, density in zip(w, densities, strict=True))
    parameters = int(np.linalg.matrix_rank(Z))
    bic = deviance + parameters * math.log(n)
    return parameters, deviance + 2 * parameters, bic, bic + 2 * math.log(math.comb(n_features, size))


def top_k(X: Any, y: Any, groups: Groups | None, independent: Independent, k: int | None = None, **model: Any) -> list[int]:
    """Walk the features by decreasing score at the empty set and keep those that fit: oblivious selection."""
    f = Model(X, y, groups, **model)
    scores = f.scores([])
    return _greedy(f, independent, k, lambda S, candidates: dict(enumerate(scores)))


def random_base(independent: Independent, usable: Iterable[int], permutation: Permutation) -> list[int]:
    """Return rndSeq over Cond of the empty set."""
    return rnd_seq(independent, [s for s in usable if independent(frozenset({s}))], [], permutation)


def fast_prototype(
    X: Any,
    y: Any,
    groups: Groups | None,
    independent: Independent,
    *,
    epsilon: float,
    iterations: int,
    permutation: SeededPermutation,
    **model: Any,
) -> list[int]:
    """Run FAST, the adaptive-sequencing prototype of the motivating example, with i from 0 and X = [n] at each outer iteration."""
    f = Model(X, y, groups, **model)
    S: list[int] = []
    t = max(f.value([e]) for e in f.usable)
    for outer in range(iterations):
        candidates = list(f.usable)
        for inner in itertools.count():
            if not candidates:
                break
            a = rnd_seq(independent, candidates, S, partial(permutation, outer, inner))
            for i in range(len(a) + 1):
                S_i = S + [e for e in a[:i] if e not in S]  # X = [n] may draw members of S again
                base = f.value(S_i)
                feasible = [e for e in candidates if e not in S_i and independent(frozenset(S_i) | {e})]
                X_i = [e for e in feasible if f.value([*S_i, e]) - base >= t]
                if len(X_i) <= (1 - epsilon) * len(candidates):
                    break
            candidates, S = X_i, S_i
        t *= 1 - epsilon
    return S


def _subsets(items: Sequence[int]) -> Iterator[frozenset[int]]:
    for size in range(len(items) + 1):
        yield from map(frozenset, itertools.combinations(items, size))


def brute_force_optimum(
    X: Any, y: Any, groups: Groups | None, independent: Independent, **model: Any
) -> tuple[float, frozenset[int]]:
    """Return (OPT, the first set that attains it) over every independent set of usable features."""
    f = Model(X, y, groups, **model)
    assert len(f.usable) <= 14
    return max(((f.value(sorted(T)), T) for T in _subsets(f.usable) if independent(T)), key=lambda pair: pair[0])


def _whitening(f: Model, feature: int) -> Array:
    """Return W, zero off the feature's columns, with ``(X W)' (X W) = I`` on their span: its score is ``|W' g|^2``.

    A single column keeps its own scale: its score is ``g^2`` and its W is 1.
    """
    columns, local = f.groups[feature], np.eye(1)
    if len(columns) > 1:
        _, singular, V = np.linalg.svd(f.X[:, columns] * np.sqrt(f.w)[:, None], full_matrices=False)
        kept = singular > math.sqrt(DEPENDENT) * singular[0]
        local = V[kept].T / singular[kept]
    W = np.zeros((f.X.shape[1], local.shape[1]))
    W[columns] = local
    return W


def _eigenvalues(f: Model, features: Iterable[int], data: float, ridge: float) -> Array:
    """Return the eigenvalues of ``W' (data X'X + ridge I) W`` on the given features, ascending."""
    W = np.hstack([_whitening(f, s) for s in features])
    return np.linalg.eigvalsh(W.T @ (data * (f.X.T * f.w) @ f.X + ridge * np.eye(len(W))) @ W)


def rsc_rsm(X: Any, size: int, groups: Groups | None = None, standardise: bool = True) -> tuple[float, float]:
    """Return (m, M): the extreme eigenvalues of Gram submatrices over every support of ``size`` features (whitened per feature)."""
    f = Model(X, np.arange(len(X)), groups, standardise=standardise)
    spectra = [_eigenvalues(f, support, 1.0, 0.0) for support in itertools.combinations(f.usable, min(size, len(f.usable)))]
    return min(float(s[0]) for s in spectra), max(float(s[-1]) for s in spectra)


def logistic_rsc_rsm(X: Any, size: int, ridge: float, standardise: bool = True) -> tuple[float, float]:
    """Return (m, M) that hold for every coefficient vector: ``p (1 - p) <= 1/4``, and only the ridge bounds the curvature below.

    Profiling the intercept out takes a Schur complement of the Hessian, which keeps both bounds. Single-column features only.
    """
    return ridge, rsc_rsm(X, size, None, standardise)[1] / 4 + ridge


def blocking_index(independent: Independent, selected: Iterable[int], sequence: Sequence[int], candidate: int) -> int:
    """Return the first j in 0..k with ``selected + sequence[:j] + candidate`` not independent; k + 1 when there is none."""
    for j in range(len(sequence) + 1):
        if not independent(frozenset(selected) | set(sequence[:j]) | {candidate}):
            return j
    return len(sequence) + 1


def is_downward_closed(independent: Independent, n: int) -> bool:
    """Tell whether the family holds the empty set and, with each set, the set without any one member."""
    return independent(frozenset()) and all(independent(T - {e}) for T in _subsets(range(n)) if independent(T) for e in T)


def p_of_system(independent: Independent, n: int) -> float:
    """Return the smallest p: the largest ratio of two bases' sizes within any ``T`` of the ground set."""
    family = [T for T in _subsets(range(n)) if independent(T)]
    ratio = 1.0
    for T in _subsets(range(n)):
        inside = [S for S in family if S <= T]
        sizes = [len(S) for S in inside if not any(independent(S | {e}) for e in T - S)]
        if min(sizes) > 0:  # an empty base is the only one: nothing in T is independent
            ratio = max(ratio, max(sizes) / min(sizes))
    return ratio


def theorem1_bound(m: float, M: float, epsilon: float, p: float, cardinality: bool) -> float:
    """Return the factor of OPT that Theorem 1 promises in expectation."""
    if cardinality:
        return 1 - math.exp(-((1 - epsilon) ** 2) * (m / M) ** 2)
    return (1 - math.exp(-((1 - epsilon) ** 2) * (m / M) ** 3)) / (1 + p)


@dataclass(frozen=True, slots=True)
class Certificate:
    """An upper bound on OPT, with the G (``score_sum``) and the lam or m (``curvature``) it was made from."""

    bound: float
    score_sum: float
    curvature: float


def certificate_bound(
    X: Any, y: Any, groups: Groups | None, independent: Independent, selected: Sequence[int], **model: Any
) -> Certificate:
    """Bound OPT from the scores at ``selected``, by enumerating every independent T outside it (Cond(selected) is ignored).

    Linear: ``min(y'y, f + G / lam)`` with lam the smallest eigenvalue over the supports ``selected + T`` (the gradient of R^2 is
    2g, its Hessian 2X'X). Others: ``f + G / (2 m)`` where m is what the ridge alone guarantees. That is the ridge itself for
    single columns; a feature of several columns divides it by the largest eigenvalue of its Gram, because its score is whitened
    and the ridge is not.
    """
    f = Model(X, y, groups, **model)
    scores, value = f.scores(selected), f.value(selected)
    outside = [T for T in _subsets([s for s in f.usable if s not in selected]) if independent(T)]
    score_sum = max(math.fsum(scores[s] for s in T) for T in outside)
    data = 1.0 if f.objective == "linear" else 0.0
    supports = [[*selected, *sorted(T)] for T in outside if T or selected]
    curvature = min((float(_eigenvalues(f, support, data, f.ridge)[0]) for support in supports), default=1.0)
    if curvature <= DEPENDENT:
        excess = math.inf if score_sum > 0 else 0.0
    else:
        excess = score_sum / (curvature if f.objective == "linear" else 2 * curvature)
    ceiling = float((f.w * f.y) @ f.y) if f.objective == "linear" else math.inf
    return Certificate(min(ceiling, value + excess), score_sum, curvature)


def motivating_example(z: float, delta: float) -> tuple[Array, Array, dict[frozenset[int], float]]:
    """Return X, y and the true f of every set of one or two features; the paper's features 1, 2, 3 are 0, 1, 2 here.

    Unit vectors as they stand: use ``standardise=False``. The paper's f({2, 3}) is a slip, and its lemma needs delta > 1.
    """
    X = np.array([[0.0, z, delta * z], [1.0, math.sqrt(1 - z**2), 0.0], [0.0, 0.0, math.sqrt(1 - delta**2 * z**2)]])
    expected = {
        frozenset({0}): 0.0,
        frozenset({1}): z**2,
        frozenset({2}): delta**2 * z**2,
        frozenset({0, 1}): 1.0,
        frozenset({0, 2}): delta**2 * z**2,
        frozenset({1, 2}): z**2 * (1 + delta**2 - 2 * delta**2 * z**2) / (1 - delta**2 * z**4),
    }
    return X, np.array([1.0, 0.0, 0.0]), expected


def plink_genotypes(bed: bytes, n_people: int, n_variants: int) -> Array:
    """Return the counts of the first allele, (n_people, n_variants), in a variant-major .bed of PLINK; NaN for a missing one."""
    assert bed[:3] == b"\x6c\x1b\x01"
    bytes_each = math.ceil(n_people / 4)
    meaning = {"00": 2.0, "01": math.nan, "10": 1.0, "11": 0.0}  # PLINK's manual writes the higher bit first
    found = np.empty((n_people, n_variants))
    for variant, person in itertools.product(range(n_variants), range(n_people)):
        byte = f"{bed[3 + variant * bytes_each + person // 4]:08b}"
        place = 8 - 2 * (person % 4)
        found[person, variant] = meaning[byte[place - 2 : place]]
    return found
