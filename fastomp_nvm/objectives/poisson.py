r"""Poisson regression with log link: :math:`l = \sum_i y_i \eta_i - e^{\eta_i} - \log y_i! - \frac{ridge}{2}|\beta|^2`."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.special import gammaln, xlogy

from fastomp_nvm.arrays import Float64Array
from fastomp_nvm.errors import DataError
from fastomp_nvm.objectives.glm import GLM

__all__ = ["Poisson"]

#: exp overflows beyond 709; with this bound the likelihood of a step too far is hugely negative rather than inf.
LARGEST_PREDICTOR = 600.0


class Poisson(GLM):
    """Log-likelihood of counts."""

    native = "poisson"

    def check(self, response: Float64Array) -> None:
        """Require counts: non-negative, not all zero."""
        if response.min(initial=0.0) < 0 or not response.any():
            raise DataError("the poisson objective needs a target of counts: none negative, not all zero")

    def moments(self, eta: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return exp(eta) as mean and variance."""
        mean = np.exp(np.minimum(eta, LARGEST_PREDICTOR))
        return mean, mean

    def partition(self, eta: Float64Array) -> Float64Array:
        """Return exp(eta)."""
        return self.mean(eta)

    @cached_property
    def _log_factorials(self) -> Float64Array:
        """(n_obs,) log(y!)."""
        return np.asarray(gammaln(self.response + 1.0))

    def log_likelihood(self, eta: Float64Array) -> Float64Array:
        """Return y eta - exp(eta) - log(y!)."""
        return super().log_likelihood(eta) - self._log_factorials

    def best_likelihood(self) -> float:
        """Return the total log-likelihood with every count as its own mean."""
        return float(self.weights @ (xlogy(self.response, self.response) - self.response - self._log_factorials))

    def null_intercept(self) -> float:
        """Return the log of the mean count."""
        average = float(self.weights @ self.response) / self.total
        if not average > 0.0:
            raise DataError("the observations with weight hold zeros only: the poisson objective needs some counts")
        return float(np.log(average))
