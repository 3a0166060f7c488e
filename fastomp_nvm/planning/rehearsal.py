"""A rehearsal of FAST_OMP without data: full passes, gathered columns and inner iterations, from distributions of scores.

:func:`fastomp_nvm.algorithms.fast_omp.fast_omp` itself runs here. Its queries are answered from the distribution of the gradients
instead of a sweep, and its inner iterations work on a sample of the survivors, so a billion features cost no more than a thousand.

A candidate's gradient is a mean, given by its correlation with the signal, plus normal noise of variance ``v / n_obs``, where
``v = 1 - R^2`` is the unexplained variance. Adding a column that explains the share ``E`` of ``v`` leaves

    ``noise' = (1 - E) noise + N(0, v E (1 - E) / n_obs)``,    ``v' = (1 - E) v``,

and shrinks the component of the residual along the signal. Nothing is fitted to measurements; ``fastomp bench plan`` compares the
counts with real runs. Valid for the linear model, standardised columns, a limit on the number of features and the two kinds of data
in ``KINDS``: columns correlated among themselves beyond one common factor behave differently.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri_exp

from fastomp_nvm.algorithms.fast_omp import fast_omp
from fastomp_nvm.algorithms.protocol import Counters, Parameters, Problem, Query
from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.objectives.base import Candidates

__all__ = ["KINDS", "DataKind", "Pass", "Rehearsal", "rehearse"]

#: Size of the sample of survivors that inner iterations run on: at least, and per selected feature.
SAMPLE, SAMPLE_PER_FEATURE = 4000, 8

#: Quantiles of a stratum's tail at which the share of candidates gathered before is evaluated.
QUANTILES = 32


@dataclass(frozen=True, slots=True)
class DataKind:
    """How the features of a data set are correlated with its response.

    Attributes
    ----------
    shares : (b,) float64
        Of the features, per stratum.
    correlations : (b,) float64
        Of the features of a stratum with the signal they share.
    sources : int
        Features that each carry a component of the response of their own, besides the strata.
    explained : float
        Share of the response's variance that is signal.
    meaning : str
        One line for users.
    """

    shares: Float64Array
    correlations: Float64Array
    sources: int
    explained: float
    meaning: str


def _paper_strata(bins: int = 24) -> tuple[Float64Array, Float64Array]:
    """Return shares and correlations of the paper's design: a tenth within .3 to .6, the others within -.05 to .05."""
    middles = (np.arange(bins) + 0.5) / bins
    shares = np.concatenate((np.full(bins, 0.1 / bins), np.full(bins, 0.9 / bins)))
    return shares, np.concatenate((0.3 + 0.3 * middles, 0.1 * middles - 0.05))


#: Data that can be rehearsed: the synthetic designs of the benchmarks. The noise of ``paper`` has 1/12 of the signal's variance.
KINDS: Mapping[str, DataKind] = MappingProxyType(
    {
        "paper": DataKind(
            *_paper_strata(), sources=0, explained=12 / 13, meaning="a tenth of the features correlates .3 to .6 with the response"
        ),
        "sparse": DataKind(
            np.ones(1), np.zeros(1), sources=100, explained=1 / 1.09, meaning="100 independent features make up the response"
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Pass:
    """One outer iteration.

    Attributes
    ----------
    survivors : float
        Candidates that reach the threshold.
    fresh : float
        Survivors that no earlier iteration gathered.
    unclear : float
        Candidates below the threshold that the int8 tier cannot tell from survivors.
    """

    survivors: float
    fresh: float
    unclear: float


@dataclass(slots=True)
class Rehearsal:
    """Work of a selection.

    Attributes
    ----------
    passes : list of Pass
    selected : int
        Features selected.
    inner_iterations : int
    columns_walked : float
        Gathered columns multiplied with a block of prefixes, repetitions included.
    multiply_adds : float
        Of these products and of the projections on the model.
    """

    passes: list[Pass] = field(default_factory=list)
    selected: int = 0
    inner_iterations: int = 0
    columns_walked: float = 0.0
    multiply_adds: float = 0.0

    @property
    def gathered(self) -> float:
        """Distinct features gathered."""
        return sum(each.fresh for each in self.passes)


def rehearse(
    n_features: int, n_obs: int, k: int, *, kind: DataKind, epsilon: float = 0.1, tau: float = 0.5, seed: int = 0
) -> Rehearsal:
    """Run FAST_OMP with at most ``k`` features on distributions.

    Parameters
    ----------
    n_features, n_obs, k : int
    kind : DataKind
    epsilon, tau : float
    seed : int

    Returns
    -------
    Rehearsal
    """
    rng = np.random.default_rng(seed)
    stage = _Stage(_Population(kind, n_features, n_obs, rng), rng, epsilon, max(SAMPLE, SAMPLE_PER_FEATURE * k))
    drawn = min(n_features, math.ceil(stage.sample / (1.0 - epsilon)) + k + 1)  # more than survive and are selected
    # FAST_OMP needs a source of models and of columns from the objective and the pool, and nothing of the design.
    lacking: Any = SimpleNamespace(null=lambda: stage, remember=lambda *_: None, columns=lambda features: features)
    constraint, parameters = Cardinality(drawn, min(k, n_features)), Parameters(epsilon, tau, polish="none")
    problem = Problem(lacking, lacking, constraint, parameters, np.arange(drawn), lacking, Counters())
    algorithm: Any = fast_omp(problem)
    answers = None
    try:
        while True:
            step = algorithm.send(answers)
            answers = (_Answer(stage, step.asks[0].candidates),) if isinstance(step, Query) else None
    except StopIteration as stop:
        stage.work.selected = len(stop.value.selected)
    stage.work.inner_iterations = problem.counters.gradient_rounds - len(stage.work.passes)
    return stage.work


def tier_error(n_obs: int) -> float:
    """Return the error of the int8 tier relative to a column of normal entries: half a step, of which 127 reach the largest."""
    return math.sqrt(2.0 * math.log(max(n_obs, 2))) / 127 / math.sqrt(12.0)


class _Population:
    """All candidates by stratum. ``left`` is v, ``along`` the component of the residual along the signal."""

    def __init__(self, kind: DataKind, n_features: int, n_obs: int, rng: np.random.Generator) -> None:
        own = rng.standard_normal(min(kind.sources, n_features))
        own *= math.sqrt(kind.explained) / (np.linalg.norm(own) if own.size else 1.0)
        self.n_obs, self.selected = n_obs, 0
        self.left, self.along = 1.0, math.sqrt(kind.explained)
        self.unexplained = 1.0  # of the signal
        self.own = np.concatenate((np.zeros(len(kind.shares)), own))
        self.correlation = np.concatenate((kind.correlations, np.zeros(len(own))))
        self.counts = np.concatenate((kind.shares * max(n_features - len(own), 0), np.ones(len(own))))

    @property
    def means(self) -> Float64Array:
        """Mean gradient (b,) of each stratum."""
        return np.asarray(self.own + self.along * self.correlation)

    @property
    def damping(self) -> Float64Array:
        """Factor (b,) on the noise: a column that consists largely of the signal has less."""
        return np.asarray(1.0 - self.correlation**2)

    @property
    def spread(self) -> Float64Array:
        """Standard deviation (b,) of the noise."""
        return np.asarray(self.damping * math.sqrt(self.left / self.n_obs))

    def log_tails(self, root: float) -> tuple[Float64Array, Float64Array]:
        """Return the logarithms (b,) of the probabilities that a gradient is at least ``root``, and at most ``-root``."""
        means, spread = self.means, self.spread
        return log_ndtr((means - root) / spread), log_ndtr((-means - root) / spread)

    def above(self, root: float) -> Float64Array:
        """Return the expected number (b,) of candidates whose absolute gradient is at least ``root``."""
        return np.asarray(self.counts * np.exp(np.minimum(np.logaddexp(*self.log_tails(root)), 0.0)))

    def top_mean(self, count: int) -> float:
        """Return the expected mean of the ``count`` largest scores."""
        largest = float(np.abs(self.means).max())
        low, high = 0.0, largest + 40.0 * math.sqrt(self.left / self.n_obs)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.above(middle).sum() > count else (low, middle)
        # The mean square above a threshold is its square plus an integral over the tail.
        grid = np.linspace(low, max(low, largest) + 10.0 * math.sqrt(self.left / self.n_obs), 300)
        tail = np.array([self.above(root).sum() for root in grid])
        heights = 2.0 * grid * tail
        area = float(((heights[1:] + heights[:-1]) / 2 * np.diff(grid)).sum())
        return float(grid[0] ** 2 + area / max(tail[0], 1e-300))

    def draw(self, root: float, count: int, rng: np.random.Generator) -> tuple[IndexArray, Float64Array]:
        """Draw ``count`` of the candidates above ``root``: stratum (count,) and noise (count,) of each."""
        expected = self.above(root)
        upper, lower = self.log_tails(root)
        strata = np.searchsorted(np.cumsum(expected), (np.arange(count) + rng.random()) / count * expected.sum(), side="right")
        strata = np.minimum(strata, len(expected) - 1)
        is_upper = rng.random(count) < np.exp(upper - np.logaddexp(upper, lower))[strata]
        beyond = -ndtri_exp(np.log(rng.random(count)) + np.where(is_upper, upper[strata], lower[strata]))
        return strata, np.where(is_upper, beyond, -beyond) * self.spread[strata]

    def add(self, stratum: int, noise: float) -> float:
        """Add a column of this stratum and noise to the model; return the share of the residual that it explains.

        Arrays are replaced, not changed, so that a shallow copy keeps its state.
        """
        correlation = float(self.correlation[stratum])
        gradient = float(self.own[stratum]) + self.along * correlation + noise
        # Squared norm of the column's part outside the model: selected columns share its factor, and each takes a dimension.
        pivot = max(1.0 - self.selected / self.n_obs - correlation**2 * (1.0 - self.unexplained), 0.05)
        share = min(gradient * gradient / (self.left * pivot), 0.999)
        # Product with the signal: by correlation, and by chance as far as the residual is signal.
        signal = correlation * self.unexplained + noise * self.along / self.left
        by_chance = max(self.unexplained - self.along**2 / self.left, 0.0) / self.n_obs
        self.unexplained = max(self.unexplained - (signal * signal + by_chance) / pivot, 1e-9)
        if self.own[stratum]:
            self.counts = np.where(np.arange(len(self.counts)) == stratum, 0.0, self.counts)  # a single feature
        shrunk = self.own * (1.0 - gradient / pivot * noise / self.left)
        self.along -= gradient / pivot * signal
        self.left = max(self.left * (1.0 - share), 1e-9)
        longest = math.sqrt(self.left)  # no product with a unit column exceeds the residual's norm
        self.along = min(max(self.along, -longest), longest)
        self.own = np.clip(shrunk, -longest, longest)
        self.selected += 1
        return share

    def gathered_share(self, root: float, earlier: list[tuple[float, Float64Array, float]]) -> Float64Array:
        """Return the share (b,) of the candidates above ``root`` that reached the threshold of an earlier pass.

        Parameters
        ----------
        earlier : list of (root, means, left)
            Of each pass.
        """
        share = np.zeros(len(self.counts))
        upper, lower = self.log_tails(root)
        levels = np.log((np.arange(QUANTILES) + 0.5) / QUANTILES)
        weight = np.exp(upper - np.logaddexp(upper, lower))
        for sign, tails, part in ((1.0, upper, weight), (-1.0, lower, 1.0 - weight)):
            noise = -sign * ndtri_exp(levels + tails[:, None]) * self.spread[:, None]
            known = np.zeros(noise.shape)
            for before, means, left in earlier:
                # The noise then was the noise now plus the part explained since.
                spread = self.damping[:, None] * math.sqrt(max(left - self.left, 1e-300) / self.n_obs)
                then = means[:, None] + noise
                known = np.maximum(known, ndtr((then - before) / spread) + ndtr((-then - before) / spread))
            share += part * known.mean(axis=1)
        return share


class _Stage:
    """The model of a rehearsed run, and the state its parts share."""

    residual = np.empty(0)

    def __init__(self, population: _Population, rng: np.random.Generator, epsilon: float, sample: int) -> None:
        self.population, self.rng = population, rng
        self.share, self.sample = 1.0 - epsilon, sample
        self.work = Rehearsal()
        self.earlier: list[tuple[float, Float64Array, float]] = []
        self.strata, self.noise = np.empty(0, dtype=np.int64), np.empty(0)  # of the survivors drawn last

    @property
    def value(self) -> float:
        """R^2."""
        return 1.0 - self.population.left

    def follow(self, features: IndexArray, gradient: Float64Array) -> _Survivors:
        """Return the survivors drawn last as candidates."""
        return _Survivors(self, features)


class _Answer:
    """Decisions about all candidates, of which those named in a query are a sample."""

    def __init__(self, stage: _Stage, candidates: IndexArray) -> None:
        self._stage, self._candidates = stage, candidates
        self._root = 0.0

    def top_mean(self, count: int) -> float:
        """Return the mean of the ``count`` largest scores."""
        return self._stage.population.top_mean(count)

    def at_least(self, threshold: float) -> IndexArray:
        """Return a sample of the candidates that reach ``threshold``; all where too few fall below it to filter."""
        stage, population = self._stage, self._stage.population
        everyone, root = float(population.counts.sum()), math.sqrt(threshold)
        expected = population.above(root)
        blurred = max(root - tier_error(population.n_obs) * math.sqrt(population.left), 0.0)
        unclear = max(float((population.above(blurred) - expected).sum()), 0.0)
        if expected.sum() >= stage.share * everyone:
            root, expected = 0.0, population.counts
        fresh = float(expected @ (1.0 - population.gathered_share(root, stage.earlier)))
        stage.work.passes.append(Pass(float(expected.sum()), fresh, unclear))
        stage.earlier.append((root, population.means, population.left))
        self._root = root
        most = len(self._candidates) if root == 0.0 else stage.sample
        return self._candidates[: min(max(round(expected.sum()), 1), most)]

    def of(self, features: IndexArray) -> Float64Array:
        """Return gradients drawn for ``features``."""
        stage = self._stage
        stage.strata, stage.noise = stage.population.draw(self._root, len(features), stage.rng)
        return np.asarray(stage.population.means[stage.strata] + stage.noise)


class _Survivors(Candidates):
    """A sample of the survivors of a pass, each with its stratum and noise."""

    def __init__(self, stage: _Stage, features: IndexArray) -> None:
        self._stage, self.features = stage, features
        self._strata, self._noise = stage.strata, stage.noise
        self._weight = max(stage.work.passes[-1].survivors / len(features), 1.0)
        self.in_model: BoolArray = np.zeros(len(features), dtype=np.bool_)
        self._prefixes: list[tuple[_Population, Float64Array]] = []

    def scores(self) -> Float64Array:
        """Return the squared gradients at the model."""
        return np.asarray((self._stage.population.means[self._strata] + self._noise) ** 2)

    def prefix_scores(self, positions: IndexArray) -> Float64Array:
        """Return the scores after each addition, and count the work."""
        stage, population, noise = self._stage, self._stage.population, self._noise
        columns = len(self.features) * self._weight
        stage.work.columns_walked += columns
        stage.work.multiply_adds += columns * len(positions) * (population.n_obs + population.selected)
        self._prefixes, out = [], np.empty((len(noise), len(positions)))
        for place, position in enumerate(positions.tolist()):
            population = copy(population)
            left = population.left
            share = population.add(int(self._strata[position]), float(noise[position]))
            change = math.sqrt(left * share * (1.0 - share) / population.n_obs)
            noise = noise * (1.0 - share) + stage.rng.standard_normal(len(noise)) * population.damping[self._strata] * change
            self._prefixes.append((population, noise))
            out[:, place] = (population.means[self._strata] + noise) ** 2
        return out

    def adopt(self, prefixes: int) -> None:
        """Move the model to one of the prefixes evaluated last."""
        self._stage.population, self._noise = self._prefixes[prefixes - 1]

    def keep(self, positions: IndexArray) -> None:
        """Drop all candidates except those at ``positions``."""
        self.features, self._strata, self._noise = self.features[positions], self._strata[positions], self._noise[positions]
        self.in_model = self.in_model[positions]
