r"""Upper bounds on the objective of every feasible set, from one more full sweep at the selected model.

With scores ``g_s^2`` at the returned S let G be the largest sum of scores over an independent set of features outside S. Whether
such a set fits *beside* S is ignored: the optimum need not contain S, and a maximal S would otherwise certify itself. Any feasible
set T then has

* linear, :math:`f = 1 - |y - Xb|^2 - ridge |b|^2`: the gradient off S is ``2g``, the curvature at least ``2 lam`` with
  ``lam = lambda_min(X'X) + ridge`` on the columns of S and T, so maximising the quadratic bound over the coefficients of T gives
  :math:`f(T) \le f(S \cup T) \le f(S) + G / lam`, and never more than 1;
* GLM, total log-likelihood less ``ridge / 2 |b|^2``: gradient ``g``, curvature at least ``m = lambda_min + ridge``, and
  :math:`f(T) \le f(S) + G / (2m)`. Profiling the intercept out is a Schur complement and keeps the bound. Nor is ``f`` ever above
  the likelihood of a perfect model (0 for classes, every count as its own mean for counts) less that of the null model.

The ridge acts on whitened coordinates, in which scores are sums of squares, so features of several columns need nothing else. With
a ridge the bound holds unconditionally for the penalised objective.

Where there are fewer columns than observations, and few enough to be read at once, two more bounds hold unconditionally: no
feasible set has a larger f than all features together, and ``lambda_min`` of all columns is a lower bound on that of any of them.

Otherwise a linear bound without a ridge depends on ``lambda_min``, which cannot be computed for millions of features: either the
caller provides a lower bound, or the bound is conditional, with the value for the selected columns. All of this is up to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fastomp_nvm.algorithms.protocol import Algorithm, Gradients, Problem
from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.errors import RequestError
from fastomp_nvm.objectives.glm import GLM
from fastomp_nvm.objectives.linear import Linear

__all__ = ["Certificate", "certificate_in_words", "certified", "theorem1_factor"]

#: Curvature below this gives no bound.
SMALLEST_CURVATURE = 1e-12

#: Columns, and entries of these, that are read at once at most for a bound from all features: 128 MB.
MOST_COLUMNS, MOST_ENTRIES = 2000, 1 << 24

_NOTHING = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Certificate:
    """An upper bound on the objective of every feasible set.

    Attributes
    ----------
    value : float
        f of the selection: R^2 less the penalty, or the penalised total log-likelihood above the null model's.
    upper_bound : float
        No feasible set has a larger f.
    ratio : float
        ``value / upper_bound``: at least this share of the optimum was reached. 1 where there is nothing to reach.
    score_sum : float
        G.
    curvature : float
        The largest ``lam`` or ``m`` that is known; 0 when there is none.
    unconditional : bool
        True when the bound follows from the ridge, from ``lambda_min`` as given, from all features, or from the largest f possible.
    condition : str or None
        The assumption otherwise.
    theorem1_factor : float or None
        Share of the optimum that Theorem 1 promises in expectation if ``m / M`` is at least tau, and an estimated rank (see
        ``rank_estimated`` of the result) not below the true one; None where it does not apply.
    reason : str
        What the bound follows from, as the end of a sentence.
    """

    value: float
    upper_bound: float
    ratio: float
    score_sum: float
    curvature: float
    unconditional: bool
    condition: str | None
    theorem1_factor: float | None
    reason: str = ""


def certified(problem: Problem, algorithm: Algorithm, lambda_min: float | None = None, *, theorem1: bool = False) -> Algorithm:
    """Run ``algorithm``, then query the gradient at its selection and add the certificate to its outcome.

    Parameters
    ----------
    problem : Problem
    algorithm : generator
        For the same problem.
    lambda_min : float, optional
        A lower bound on the smallest eigenvalue, provided by the caller.
    theorem1 : bool
        Whether Theorem 1 applies to the algorithm.
    """
    outcome = yield from algorithm
    model = problem.objective.null()
    columns = problem.pool.columns(outcome.selected).dense(np.arange(len(outcome.selected)))
    if len(outcome.selected):
        model.add(columns)
    allowed = problem.usable[problem.constraint.extensions(_NOTHING, problem.usable)]  # the others are in no feasible set
    outside = np.setdiff1d(allowed, outcome.selected)
    score_sum = 0.0
    if outside.size:
        answers = yield from problem.ask(len(outcome.selected), model.value, [model.residual], outside, members=outcome.selected)
        score_sum = _largest_sum(problem, answers[0], outside)
    tau = outcome.tau if outcome.tau is not None else problem.parameters.tau
    promised = None
    if theorem1 and not problem.parameters.skip_weak and not isinstance(tau, str):
        promised = theorem1_factor(problem.constraint, problem.parameters.epsilon, tau)
    return replace(outcome, certificate=_bound(problem, allowed, columns, model.value, score_sum, lambda_min, promised))


def theorem1_factor(constraint: Constraint, epsilon: float, tau: float) -> float | None:
    """Return the share of the optimum that Theorem 1 promises in expectation at ``m / M = tau``; None when ``p`` is unknown."""
    if isinstance(constraint, Cardinality):
        return 1.0 - math.exp(-((1.0 - epsilon) ** 2) * tau**2)
    if constraint.p is None:
        return None
    return (1.0 - math.exp(-((1.0 - epsilon) ** 2) * tau**3)) / (1.0 + constraint.p)


def certificate_in_words(certificate: Certificate, estimated_rank: int | None = None) -> str:
    """Return a certificate in one or two sentences; Theorem 1 rests on an estimated rank, if any."""
    follows = f"because {certificate.reason}" if certificate.unconditional else f"if {certificate.condition}"
    words = (
        f"certificate: f is {certificate.value:.6g}, and no feasible set has more than {certificate.upper_bound:.6g}, {follows}: "
        f"at least {certificate.ratio:.1%} of the optimum."
    )
    if certificate.theorem1_factor is None:
        return words
    largest = "" if estimated_rank is None else f" and no feasible set has more than {estimated_rank} features"
    return f"{words} Theorem 1 promises {certificate.theorem1_factor:.1%} in expectation, if m/M is at least tau{largest}."


def _bound(
    problem: Problem,
    allowed: IndexArray,
    columns: Float64Array,
    value: float,
    score_sum: float,
    lambda_min: float | None,
    promised: float | None,
) -> Certificate:
    """Return the certificate from f(S) and G; ``columns`` (n_obs, d) are the columns of S, ``allowed`` features may be in a set."""
    objective, condition = problem.objective, None
    if isinstance(objective, Linear):
        # Without standardisation the model's ridge acts on columns of unit length, but scores do not: then it bounds nothing here.
        ridge, ceiling, share = (objective.ridge if objective.centred else 0.0), 1.0, 1.0
    elif isinstance(objective, GLM):
        ridge, ceiling, share = objective.ridge, objective.best_likelihood() - objective.null_likelihood, 0.5
    else:
        raise RequestError(f"there is no certificate for the objective {type(objective).__name__}: leave it out")
    curvature = ridge + (lambda_min or 0.0)
    bounds = [(ceiling, "no model has more")]
    if curvature > SMALLEST_CURVATURE:
        given = "the ridge bounds the curvature" if not lambda_min else "lambda_min is at least as given"
        bounds.append((value + share * score_sum / curvature, given))
    together, smallest = _of_all(problem, allowed)
    if together is not None:
        bounds.append((together, f"all {len(allowed):,} features together have no more"))
    if ridge + smallest > max(curvature, SMALLEST_CURVATURE):
        curvature = ridge + smallest
        bounds.append((value + score_sum / curvature, f"lambda_min of all {len(allowed):,} features is {smallest:.4g}"))
    bound, reason = min(bounds)
    if len(bounds) == 1 and isinstance(objective, Linear):
        curvature = _smallest_eigenvalue(objective.weighted(columns))
        reach = min(len(problem.usable), columns.shape[1] + problem.constraint.rank)
        if curvature > SMALLEST_CURVATURE and value + score_sum / curvature < bound:
            bound, reason = value + score_sum / curvature, ""
            condition = f"lambda_min is at least {curvature:.4g} on any {reach} features"
    bound = max(bound, value)  # f(S) = 1 may be exceeded by rounding
    return Certificate(
        value=value,
        upper_bound=bound,
        ratio=value / bound if bound > 0.0 else 1.0,
        score_sum=score_sum,
        curvature=curvature,
        unconditional=condition is None,
        condition=condition,
        theorem1_factor=promised,
        reason=reason,
    )


def _of_all(problem: Problem, allowed: IndexArray) -> tuple[float | None, float]:
    """Return f of all ``allowed`` features, and lambda_min of their columns for the linear model; (None, 0) where unknown."""
    objective, standardisation = problem.objective, problem.design.standardisation.subset(allowed)
    width, n_obs = int(standardisation.offsets[-1]), problem.design.matrix.shape[1]
    few = width < n_obs and width <= MOST_COLUMNS and width * n_obs <= MOST_ENTRIES
    if not few or not width or (isinstance(objective, GLM) and not objective.ridge):  # a GLM without ridge may have no maximum
        return None, 0.0
    dense = problem.pool.read_dense(allowed)
    if not isinstance(objective, Linear):
        return objective.fit(dense).value, 0.0
    weighted = objective.weighted(dense[:, dense.any(axis=0)])  # without the dependent directions of whitened features
    values, vectors = np.linalg.eigh(weighted.T @ weighted)
    # f of all columns by principal components: nothing is left out as dependent, so that no set has more.
    kept = values > np.finfo(np.float64).eps * width * values[-1]
    moves = (vectors[:, kept].T @ (weighted.T @ objective.response)) ** 2
    return float((moves / (values[kept] + objective.ridge)).sum()), max(float(values[0]), 0.0)


def _smallest_eigenvalue(columns: Float64Array) -> float:
    """Return the smallest eigenvalue of the Gram matrix of ``columns`` (n_obs, d); 1 when there are none."""
    columns = columns[:, columns.any(axis=0)]  # the dependent directions of a whitened feature
    return max(float(np.linalg.eigvalsh(columns.T @ columns)[0]), 0.0) if columns.shape[1] else 1.0


def _largest_sum(problem: Problem, gradients: Gradients, outside: IndexArray) -> float:
    """Return G exactly for a matroid, where greedy is optimal; otherwise the sum of the largest scores, as many as the rank."""
    constraint = problem.constraint
    count = min(constraint.rank, len(outside))
    largest = gradients.top_mean(count)
    if isinstance(constraint, Cardinality) or constraint.p != 1.0:
        return count * largest
    # Greedy by falling score needs no score below its last addition, so few scores are computed.
    threshold = largest
    while True:
        strong = gradients.at_least(threshold)
        scores = problem.design.standardisation.subset(strong).scores(gradients.of(strong)[:, None])[:, 0]
        chosen = _heaviest(constraint, strong, scores)
        if threshold == 0.0 or not constraint.extensions(chosen, outside).any():
            return math.fsum(scores[np.searchsorted(strong, chosen)].tolist())
        threshold = threshold / 16 if threshold > 1e-9 * largest else 0.0


def _heaviest(constraint: Constraint, features: IndexArray, scores: Float64Array) -> IndexArray:
    """Return the greedy set of ``features`` by falling score, the lower index first among equals."""
    chosen, left = _NOTHING, features[np.lexsort((features, -scores))]
    while left.size:
        taken = constraint.longest_prefix(chosen, left)
        chosen = np.concatenate((chosen, left[:taken]))
        left = left[taken:]
        left = left[constraint.extensions(chosen, left)]
    return chosen
