"""Synthetic data sets, generated block by block, so that a matrix larger than memory can be written into a store.

Every block of columns has a random stream of its own, keyed by the seed and the block's number: the data do not depend on the order
in which blocks are generated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array

__all__ = ["PaperDesign", "ar_design", "sparse_design"]


@dataclass(frozen=True, slots=True)
class PaperDesign:
    """The paper's synthetic design: jointly Gaussian features, a tenth of them highly correlated with the response.

    The covariance has one factor, the response signal ``z``: feature ``s`` is ``rho_s z + sqrt(1 - rho_s^2) e_s``. A tenth of the
    ``rho`` are drawn uniformly from ``strong``, the others from ``weak``. Uniform noise is added to ``z`` and the response is
    normalised. The paper leaves the covariance open beyond that description; this is our reading of it.

    Attributes
    ----------
    n_obs, n_features : int
    seed : int
    strong, weak : pair of float
        Ranges of the correlation with the signal.
    noise : float
        Half width of the uniform noise on a response of unit variance.
    block : int
        Columns per random stream.
    """

    n_obs: int
    n_features: int
    seed: int = 0
    strong: tuple[float, float] = (0.3, 0.6)
    weak: tuple[float, float] = (-0.05, 0.05)
    noise: float = 0.5
    block: int = 256

    def signal(self) -> Float64Array:
        """Return ``z`` (n_obs,)."""
        return np.random.default_rng((self.seed, 1)).standard_normal(self.n_obs)

    def response(self) -> Float64Array:
        """Return the response (n_obs,): mean 0, norm sqrt(n_obs)."""
        noisy = self.signal() + np.random.default_rng((self.seed, 2)).uniform(-self.noise, self.noise, self.n_obs)
        noisy -= noisy.mean()
        return np.asarray(noisy / noisy.std())

    def correlations(self) -> Float64Array:
        """Return ``rho`` (n_features,)."""
        rng = np.random.default_rng((self.seed, 3))
        rho = rng.uniform(*self.weak, self.n_features)
        strong = rng.choice(self.n_features, max(self.n_features // 10, 1), replace=False)
        rho[strong] = rng.uniform(*self.strong, len(strong))
        return rho

    def columns(self, number: int, signal: Float64Array, rho: Float64Array) -> AnyArray:
        """Return block ``number`` of the features: (columns, n_obs) float32, feature-major.

        Parameters
        ----------
        number : int
            Columns ``number * block`` onward.
        signal : (n_obs,) float64
        rho : (n_features,) float64
        """
        mine = rho[number * self.block : (number + 1) * self.block]
        rng = np.random.default_rng((self.seed, 4, number))
        values = rng.standard_normal((len(mine), self.n_obs), dtype=np.float32)
        values *= np.sqrt(1.0 - mine**2).astype(np.float32)[:, None]
        values += mine.astype(np.float32)[:, None] * signal.astype(np.float32)
        return values

    def matrix(self) -> AnyArray:
        """Return all features: (n_features, n_obs) float32. For data that fit into memory."""
        signal, rho = self.signal(), self.correlations()
        blocks = -(-self.n_features // self.block)
        return np.concatenate([self.columns(number, signal, rho) for number in range(blocks)])


def sparse_design(n_obs: int, n_features: int, true: int, noise: float, seed: int = 0) -> tuple[AnyArray, Float64Array]:
    """Return independent Gaussian features (n_obs, n_features) float32 and a response of ``true`` of them plus noise.

    Parameters
    ----------
    noise : float
        Standard deviation of the noise, relative to that of the signal.
    """
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_features, n_obs), dtype=np.float32).T
    return X, _response(X, true, noise, rng)


def ar_design(n_obs: int, n_features: int, true: int, noise: float, rho: float, seed: int = 0) -> tuple[AnyArray, Float64Array]:
    """Return features with correlation ``rho^|i - j|`` (n_obs, n_features) float32 and a sparse response, as ``sparse_design``."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n_features, n_obs), dtype=np.float32)
    for column in range(1, n_features):
        rows[column] = rho * rows[column - 1] + np.float32(np.sqrt(1.0 - rho * rho)) * rows[column]
    X = rows.T
    return X, _response(X, true, noise, rng)


def _response(X: AnyArray, true: int, noise: float, rng: np.random.Generator) -> Float64Array:
    """Return a response (n_obs,) of ``true`` random features with Gaussian coefficients, plus noise."""
    chosen = rng.choice(X.shape[1], true, replace=False)
    signal = X[:, chosen].astype(np.float64) @ rng.standard_normal(true)
    return np.asarray(signal + noise * signal.std() * rng.standard_normal(len(X)))
