"""Designs that are hard for greedy selection: random ones, and draws from real data."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from benchmarks.harness.real import diabetes, fashion_mnist, leukaemia_age

__all__ = ["DESIGNS", "REAL", "Drawn", "drawn"]

Pair = tuple[np.ndarray, np.ndarray]
Draw = Callable[[np.random.Generator, int, int], Pair | None]

#: Features that a response is made of: one in so many, at least ``LEAST_TRUE``.
SPARSITY, LEAST_TRUE = 20, 8

#: Images of Fashion-MNIST drawn for selection, and as many held out.
IMAGES = 1000


class Drawn(NamedTuple):
    """Observations that features are selected on, as many held out, and the number of features to select."""

    X: np.ndarray
    y: np.ndarray
    test: Pair
    k: int


def drawn(design: str, seed: int, n_obs: int, n: int, k: int) -> Drawn | None:
    """Return a draw of a design with ``n_obs`` observations of ``n`` features; None where its data are missing.

    Real data have their own sizes: they are split at random, and ``n`` limits their features. Columns that are constant among the
    observations for selection are left out.
    """
    n_obs, k = SIZES[design](n_obs, k) if design in SIZES else (n_obs, k)
    pair = DESIGNS[design](np.random.default_rng((seed, list(DESIGNS).index(design))), 2 * n_obs, n)
    if pair is None:
        return None
    half = len(pair[1]) // 2
    varying = np.ptp(pair[0][:half], axis=0) > 0
    X, y = pair[0][:, varying], pair[1]
    return Drawn(X[:half], y[:half], (X[half:], y[half:]), k)


def _mixed(X: np.ndarray, rng: np.random.Generator) -> Pair:
    """Return the columns and a response of some of them, with noise."""
    true = rng.choice(X.shape[1], max(X.shape[1] // SPARSITY, LEAST_TRUE), replace=False)
    signal = X[:, true] @ rng.standard_normal(len(true))
    return X, signal + 0.3 * signal.std() * rng.standard_normal(len(X))


def _independent(rng: np.random.Generator, n_obs: int, n: int) -> Pair:
    return _mixed(rng.standard_normal((n_obs, n)), rng)


def _ar(rng: np.random.Generator, n_obs: int, n: int) -> Pair:
    X = rng.standard_normal((n_obs, n))
    for column in range(1, n):
        X[:, column] = 0.95 * X[:, column - 1] + np.sqrt(1 - 0.95**2) * X[:, column]
    return _mixed(X, rng)


def _blocks(rng: np.random.Generator, n_obs: int, n: int) -> Pair:
    shared = np.repeat(rng.standard_normal((n_obs, -(-n // 10))), 10, axis=1)[:, :n]
    return _mixed(3 * shared + rng.standard_normal((n_obs, n)), rng)


def _equicorrelated(shared: float) -> Draw:
    """Return a draw of columns with a common part of standard deviation ``shared``."""
    return lambda rng, n_obs, n: _mixed(rng.standard_normal((n_obs, n)) + shared * rng.standard_normal((n_obs, 1)), rng)


def _latent(rng: np.random.Generator, n_obs: int, n: int) -> Pair:
    factors = rng.standard_normal((n_obs, 20))
    X = rng.standard_normal((n_obs, n)) + 0.5 * factors @ (rng.standard_normal((20, n)) * (rng.random(n) < 0.1))
    return X, factors @ rng.standard_normal(20) + 0.4 * rng.standard_normal(n_obs)


def _suppressors(rng: np.random.Generator, n_obs: int, n: int) -> Pair:
    X = rng.standard_normal((n_obs, n))
    pairs = rng.permutation(n)[:20].reshape(10, 2)
    X[:, pairs[:, 0]] = X[:, pairs[:, 1]] + 0.2 * rng.standard_normal((n_obs, 10))  # only the small difference matters
    return X, (X[:, pairs[:, 0]] - X[:, pairs[:, 1]]).sum(axis=1) / 0.2 + rng.standard_normal(n_obs)


def _near_duplicates(rng: np.random.Generator, n_obs: int, n: int) -> Pair:
    X, y = _mixed(rng.standard_normal((n_obs, n)), rng)
    X[:, n // 2 :] = X[:, : n - n // 2] + 1e-3 * rng.standard_normal((n_obs, n - n // 2))
    return X, y


def _heavy_tails(rng: np.random.Generator, n_obs: int, n: int) -> Pair:
    return _mixed(rng.standard_t(3, (n_obs, n)), rng)


def _leukaemia(rng: np.random.Generator, _: int, n: int) -> Pair | None:
    """Return the age of patients and some of their 12625 genes."""
    if (found := leukaemia_age()) is None:
        return None
    X, y = found
    order = rng.permutation(len(y))
    return X[np.ix_(order, rng.choice(X.shape[1], min(n, X.shape[1]), replace=False))], y[order]


def _fashion(rng: np.random.Generator, _: int, n: int) -> Pair | None:
    """Return some images, at most ``n`` of their pixels, and whether each shows a kind of clothing drawn at random."""
    if (found := fashion_mnist()) is None:
        return None
    images, labels = found
    some = rng.choice(len(labels), 2 * IMAGES, replace=False)
    return images[some, : min(n, 784)].astype(np.float64), (labels[some] == rng.integers(10)).astype(np.float64)


def _diabetes(rng: np.random.Generator, _: int, n: int) -> Pair | None:
    """Return the measurements of patients, and their products of two and three."""
    if (found := diabetes()) is None:
        return None
    X, y = found
    names = range(X.shape[1])
    terms = [list(term) for degree in (1, 2, 3) for term in combinations_with_replacement(names, degree)]
    order = rng.permutation(len(y))
    return np.stack([X[order][:, term].prod(axis=1) for term in terms[:n]], axis=1), y[order]


#: Designs by name.
DESIGNS: dict[str, Draw] = {
    "independent": _independent,
    "AR .95": _ar,
    "blocks .9": _blocks,
    "equicorrelated .5": _equicorrelated(1.0),
    "equicorrelated .99": _equicorrelated(10.0),
    "latent factors": _latent,
    "suppressors": _suppressors,
    "near-duplicates": _near_duplicates,
    "heavy tails": _heavy_tails,
    "k near n_obs": lambda rng, n_obs, n: _independent(rng, n_obs, min(n, 2 * n_obs)),  # of more, all fits are perfect
    "leukaemia": _leukaemia,
    "Fashion-MNIST": _fashion,
    "diabetes": _diabetes,
}

#: Designs of real data, which may be missing and have sizes of their own.
REAL = ("leukaemia", "Fashion-MNIST", "diabetes")

#: Observations and features to select, where a design has its own, from the usual numbers.
SIZES: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "k near n_obs": lambda _, k: (k + k // 4, k),
    "leukaemia": lambda n_obs, k: (n_obs, min(k, 10)),  # of some 60 patients
}
