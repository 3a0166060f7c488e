"""Directions that every model has, beside the intercept: an orthonormal basis of columns that are always kept.

Least squares with such columns equals least squares of what they leave of the response on what they leave of the other columns. So
a pool may project the columns that it hands out. Sweeps need no projection: a residual is orthogonal to the directions already.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fastomp_nvm.arrays import Float64Array

__all__ = ["Fixed"]


class Fixed(NamedTuple):
    """Directions, orthonormal under the observation weights and orthogonal to the intercept.

    Attributes
    ----------
    basis : (q, n_obs) float64
    dual : (q, n_obs) float64
        ``basis`` times the weights: the products of a column with these are its coordinates.
    """

    basis: Float64Array
    dual: Float64Array

    def project(self, rows: Float64Array) -> None:
        """Subtract from each of ``rows`` (c, n_obs) its part along the directions; one by one, so that bits depend on no other."""
        for row in rows:
            row -= (self.dual @ row) @ self.basis

    def overlaps(self, columns: Float64Array) -> Float64Array:
        """Return (q, d): the coordinates of ``columns`` (n_obs, d) along the directions."""
        return np.asarray(self.dual @ columns)
