r"""Logistic regression: :math:`l = \sum_i y_i \eta_i - \log(1 + e^{\eta_i}) - \frac{ridge}{2}|\beta|^2`, y in {0, 1}.

The paper prints a minus sign inside the logarithm (Appendix, equation of the logistic objective); that is a slip.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from fastomp_nvm.arrays import Float64Array
from fastomp_nvm.errors import DataError
from fastomp_nvm.objectives.glm import GLM

__all__ = ["Logistic"]


class Logistic(GLM):
    """Log-likelihood of a 0/1 response."""

    native = "logistic"

    def check(self, response: Float64Array) -> None:
        """Require zeros and ones, both present."""
        ones = response == 1.0
        if not (ones | (response == 0.0)).all() or ones.all() or not ones.any():
            values = np.unique(response)
            shown = ", ".join(f"{value:g}" for value in values[:4]) + (", ..." if len(values) > 4 else "")
            raise DataError(f"the logistic objective needs a target with the two values 0 and 1, found {len(values)}: {shown}")

    def moments(self, eta: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return 1 / (1 + exp(-eta)) and mu (1 - mu), which cancels in the upper tail, where it is negligible."""
        mean = expit(eta)
        return mean, mean * (1.0 - mean)

    def partition(self, eta: Float64Array) -> Float64Array:
        """Return log(1 + exp(eta))."""
        return np.asarray(np.logaddexp(0.0, eta))

    def null_intercept(self) -> float:
        """Return the log odds of the response."""
        share = float(self.weights @ self.response) / self.total
        if not 0.0 < share < 1.0:
            raise DataError("the observations with weight hold one class only: the logistic objective needs both")
        return float(np.log(share) - np.log1p(-share))
