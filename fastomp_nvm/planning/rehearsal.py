"""A rehearsal of FAST_OMP on numbers alone: how many passes, survivors and inner rounds a selection takes, without its data.

The cost of FAST_OMP hangs on how many candidates reach the threshold, round after round. That follows from the distribution of the
gradients: a candidate's is a mean, known from how strongly it is tied to the response, plus noise of variance ``v / n_obs``, where
``v = 1 - R^2`` is what is left to explain. Adopting a column that explains the share ``E`` of ``v`` leaves

    ``noise' = (1 - E) noise + N(0, v E (1 - E) / n_obs)``,    ``v' = (1 - E) v``,

and takes ``beta rho`` off the part ``A`` of the residual that lies in the direction of the response's signal. Full passes are
counted from the exact tails of these normal distributions, so a billion features cost no more than a thousand; inner rounds are
played with a sample of the survivors, by the rules of :mod:`fastomp_nvm.algorithms.fast_omp`.

How well it predicts, against 120 real runs on 16 November 2026 (``fastomp bench plan --rehearsal`` makes such a comparison again):
seed 0, 20,000 to 500,000 features, 500 to 2000 observations, k 50 to 300, tau .25 to .9, epsilon .1 and .2, with a limit alone and
with 100 groups besides. Predicted over real, smallest, median and largest of 60 each:

============  =====================  =====================
..            paper                  sparse
============  =====================  =====================
full passes   0.80, 1.00, 1.17       0.50, 1.00, 1.25
gathered      0.88, 1.03, 1.32       0.29, 0.98, 1.42
inner rounds  0.72, 0.97, 1.33       0.70, 0.97, 1.14
============  =====================  =====================

Every figure of the paper's design, and all but 8 in 100 of the sparse one's, is within a factor of 1.5. Nothing in it is fitted, so
larger sizes are an extrapolation of the reasoning above and not of a curve; they were not run. It knows standardised columns, the
linear model and a limit on the number of features. Other data than the two of ``KINDS`` differ as far as their correlations do:
columns correlated among themselves beyond one common factor are outside of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri_exp

from fastomp_nvm.algorithms.sequence import LARGEST_BLOCK, SMALLEST_BLOCK
from fastomp_nvm.arrays import Float64Array, IndexArray

__all__ = ["KINDS", "DataKind", "Outer", "Rehearsal", "rehearse", "tier_error"]

#: Survivors that inner rounds are played with; each stands for as many as there are more.
SAMPLE = 4000

#: Points of the tail of a stratum at which the share already gathered is looked at.
TAIL_POINTS = 32


@dataclass(frozen=True, slots=True)
class DataKind:
    """How the features of a data set are tied to its response.

    Attributes
    ----------
    shares : (b,) float64
        Of the features, per stratum.
    strengths : (b,) float64
        Correlation of the features of a stratum with the signal they share.
    sources : int
        Features that each carry a part of the response of their own, besides the strata.
    explained : float
        Share of the response's variance that is signal.
    meaning : str
        For people.
    """

    shares: Float64Array
    strengths: Float64Array
    sources: int
    explained: float
    meaning: str


def _paper_strata(bins: int = 24) -> tuple[Float64Array, Float64Array]:
    """Return shares and strengths of the paper's design: a tenth within .3 to .6, the others within -.05 to .05."""
    middles = (np.arange(bins) + 0.5) / bins
    shares = np.concatenate((np.full(bins, 0.1 / bins), np.full(bins, 0.9 / bins)))
    return shares, np.concatenate((0.3 + 0.3 * middles, 0.1 * middles - 0.05))


#: The data a plan can be made for. ``paper`` is ``synthetic.PaperDesign``, with noise of 1/12 of the signal's variance.
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
class Outer:
    """One outer iteration.

    Attributes
    ----------
    survivors : float
        Candidates that reach the threshold.
    fresh : float
        Those of them that no earlier iteration had gathered.
    unclear : float
        Candidates below the threshold that the int8 tier cannot tell from those above it.
    selected, adopted : int
        Features selected before it, and by it.
    rounds, blocks, prefixes : int
        Inner rounds, blocks of prefixes evaluated, prefixes evaluated.
    block_columns, prefix_columns : float
        Sum over the blocks, and over the prefixes, of the candidates they were evaluated for.
    """

    survivors: float
    fresh: float
    unclear: float
    selected: int
    adopted: int
    rounds: int
    blocks: int
    prefixes: int
    block_columns: float
    prefix_columns: float


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a selection takes.

    Attributes
    ----------
    outers : tuple of Outer
    selected : int
    """

    outers: tuple[Outer, ...]
    selected: int

    @property
    def gathered(self) -> float:
        """Different features gathered."""
        return sum(outer.fresh for outer in self.outers)

    @property
    def rounds(self) -> int:
        """Inner rounds of all outer iterations."""
        return sum(outer.rounds for outer in self.outers)


class _Population:
    """All candidates by stratum: how many there are and what their gradients are made of; ``left`` and ``shared`` are v and A."""

    def __init__(self, kind: DataKind, n_features: float, n_obs: float, rng: np.random.Generator) -> None:
        own = rng.standard_normal(min(kind.sources, int(n_features)))
        own *= math.sqrt(kind.explained) / (np.linalg.norm(own) if own.size else 1.0)
        self.n_obs = n_obs
        self.left, self.shared = 1.0, math.sqrt(kind.explained)
        self.unexplained = 1.0  # of the signal
        self.own = np.concatenate((np.zeros(len(kind.shares)), own))
        self.tie = np.concatenate((kind.strengths, np.zeros(len(own))))
        self.calm = 1.0 - self.tie**2
        self.counts = np.concatenate((kind.shares * max(n_features - len(own), 0), np.ones(len(own))))

    @property
    def means(self) -> Float64Array:
        """Mean gradient (b,) of each stratum."""
        return np.asarray(self.own + self.shared * self.tie)

    @property
    def spread(self) -> Float64Array:
        """Standard deviation (b,) of the noise; less for a column that is the signal to a large part."""
        return np.asarray(self.calm * math.sqrt(self.left / self.n_obs))

    def log_tails(self, root: float) -> tuple[Float64Array, Float64Array]:
        """Return the logarithms (b,) of the probabilities that a gradient is at least ``root``, and at most ``-root``."""
        means, spread = self.means, self.spread
        return log_ndtr((means - root) / spread), log_ndtr((-means - root) / spread)

    def above(self, root: float) -> Float64Array:
        """Return the expected number (b,) of candidates whose gradient is at least ``root`` in size."""
        return np.asarray(self.counts * np.exp(np.logaddexp(*self.log_tails(root))))

    def top_mean(self, count: float) -> float:
        """Return the expected mean of the ``count`` largest scores."""
        largest = float(np.abs(self.means).max())
        low, high = 0.0, largest + 40.0 * math.sqrt(self.left / self.n_obs)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.above(middle).sum() > count else (low, middle)
        # The mean square above a bar is that of the bar plus an integral over the tail.
        grid = np.linspace(low, max(low, largest) + 10.0 * math.sqrt(self.left / self.n_obs), 300)
        tail = np.array([self.above(root).sum() for root in grid])
        heights = 2.0 * grid * tail
        area = float(((heights[1:] + heights[:-1]) / 2 * np.diff(grid)).sum())
        return float(grid[0] ** 2 + area / max(tail[0], 1e-300))

    def drawn(self, root: float, count: int, rng: np.random.Generator) -> tuple[IndexArray, Float64Array]:
        """Draw ``count`` candidates of those above ``root``: stratum and noise (count,) of each."""
        expected = self.above(root)
        upper, lower = self.log_tails(root)
        strata = np.searchsorted(np.cumsum(expected), (np.arange(count) + rng.random()) / count * expected.sum(), side="right")
        strata = np.minimum(strata, len(expected) - 1)
        is_upper = rng.random(count) < np.exp(upper - np.logaddexp(upper, lower))[strata]
        beyond = -ndtri_exp(np.log(rng.random(count)) + np.where(is_upper, upper[strata], lower[strata]))
        return strata, np.where(is_upper, beyond, -beyond) * self.spread[strata]

    def adopt(self, stratum: int, noise: float, selected: int) -> float:
        """Explain the residual by one more column, of this stratum and noise; return the share of it that this took."""
        tie = float(self.tie[stratum])
        gradient = float(self.own[stratum]) + self.shared * tie + noise
        # What the columns selected so far left of this one: they share its factor, and each takes a dimension.
        pivot = max(1.0 - selected / self.n_obs - tie * tie * (1.0 - self.unexplained), 0.05)
        share = min(gradient * gradient / (self.left * pivot), 0.999)
        # Its product with the signal: by its tie, and because what it has of the residual by chance it has of the signal in it too.
        along = tie * self.unexplained + noise * self.shared / self.left
        by_chance = max(self.unexplained - self.shared**2 / self.left, 0.0) / self.n_obs
        self.unexplained = max(self.unexplained - (along * along + by_chance) / pivot, 1e-9)
        self.own *= 1.0 - gradient / pivot * noise / self.left
        self.shared -= gradient / pivot * along
        self.left = max(self.left * (1.0 - share), 1e-9)
        longest = math.sqrt(self.left)  # no product with a unit column exceeds the residual's length
        self.shared = min(max(self.shared, -longest), longest)
        np.clip(self.own, -longest, longest, out=self.own)
        return share


def rehearse(
    n_features: float, n_obs: float, k: int, *, kind: DataKind, epsilon: float = 0.1, tau: float = 0.5, seed: int = 0
) -> Rehearsal:
    """Play FAST_OMP with at most ``k`` features.

    Parameters
    ----------
    n_features, n_obs : float
    k : int
    kind : DataKind
    epsilon, tau : float
    seed : int

    Returns
    -------
    Rehearsal
    """
    rng = np.random.default_rng(seed)
    population = _Population(kind, n_features, n_obs, rng)
    limit = min(k, int(n_features))
    outers: list[Outer] = []
    selected, block = 0, SMALLEST_BLOCK
    earlier: list[tuple[float, Float64Array, float]] = []
    while selected < limit and len(outers) < math.ceil(1.0 / epsilon):
        root = math.sqrt((1.0 - epsilon) * tau * population.top_mean(limit))
        expected = population.above(root)
        fresh = float(expected @ (1.0 - _gathered_share(population, root, earlier)))
        blurred = max(root - tier_error(n_obs) * math.sqrt(population.left), 0.0)
        unclear = max(float((population.above(blurred) - expected).sum()), 0.0)
        earlier.append((root, population.means, population.left))
        outer, block = _play(population, root, (fresh, unclear), selected, limit, epsilon, block, rng)
        outers.append(outer)
        selected = outer.selected + outer.adopted
    return Rehearsal(tuple(outers), selected)


def tier_error(n_obs: float) -> float:
    """Return the error of the int8 tier relative to a column of normal entries: half a step, of which 127 reach the largest."""
    largest = math.sqrt(2.0 * math.log(max(n_obs, 2.0)))
    return largest / 127 / math.sqrt(12.0)


def _gathered_share(population: _Population, root: float, earlier: list[tuple[float, Float64Array, float]]) -> Float64Array:
    """Return the share (b,) of the candidates above ``root`` that were above the threshold of an earlier iteration already."""
    share = np.zeros(len(population.counts))
    if not earlier:
        return share
    upper, lower = population.log_tails(root)
    levels = np.log((np.arange(TAIL_POINTS) + 0.5) / TAIL_POINTS)
    weight = np.exp(upper - np.logaddexp(upper, lower))
    for sign, tails, part in ((1.0, upper, weight), (-1.0, lower, 1.0 - weight)):
        noise = -sign * ndtri_exp(levels + tails[:, None]) * population.spread[:, None]
        known = np.zeros(noise.shape)
        for bar, means, left in earlier:
            # Looking back, noise was what it is now plus what has been explained since.
            spread = population.calm[:, None] * math.sqrt(max(left - population.left, 1e-300) / population.n_obs)
            then = means[:, None] + noise
            known = np.maximum(known, ndtr((then - bar) / spread) + ndtr((-then - bar) / spread))
        share += part * known.mean(axis=1)
    return share


def _play(
    population: _Population,
    root: float,
    gathers: tuple[float, float],
    selected: int,
    limit: int,
    epsilon: float,
    block: int,
    rng: np.random.Generator,
) -> tuple[Outer, int]:
    """Play the inner rounds of one outer iteration with a sample of its survivors; return it and the next size of a block."""
    survivors = float(population.above(root).sum())
    count = max(min(round(survivors), SAMPLE), 1)
    strata, noise = population.drawn(root, count, rng)
    weight = max(survivors / count, 1.0)
    start, rounds, blocks, prefixes, block_columns, prefix_columns = selected, 0, 0, 0, 0.0, 0.0
    while len(strata) and selected < limit:
        rounds += 1
        enough = (1.0 - epsilon) * len(strata)
        alive = np.ones(len(strata), dtype=np.bool_)
        sequence = rng.permutation(len(strata))[: limit - selected]
        size, evaluated, adopted = block, 0, 0
        for place in sequence.tolist():
            if adopted == evaluated:  # the next block of prefixes
                taken = min(size, len(sequence) - evaluated)
                evaluated, size = evaluated + taken, min(2 * size, LARGEST_BLOCK)
                blocks += 1
                block_columns += len(strata) * weight
                prefix_columns += len(strata) * weight * taken
            left = population.left
            share = population.adopt(int(strata[place]), float(noise[place]), selected)
            if population.own[strata[place]]:
                population.counts[strata[place]] = 0.0
            noise *= 1.0 - share
            change = math.sqrt(left * share * (1.0 - share) / population.n_obs)
            noise += rng.standard_normal(len(noise)) * population.calm[strata] * change
            # A point that stands for many candidates is not used up by one of them.
            alive[place] = rng.random() >= 1.0 / weight
            adopted, selected = adopted + 1, selected + 1
            above = alive & (np.abs(population.means[strata] + noise) >= root)
            if np.count_nonzero(above) < enough:
                break
        prefixes += evaluated
        block = min(max(adopted, SMALLEST_BLOCK), LARGEST_BLOCK)
        strata, noise = strata[above], noise[above]
    outer = Outer(survivors, *gathers, start, selected - start, rounds, blocks, prefixes, block_columns, prefix_columns)
    return outer, block
