"""Candidates of a GLM: their gradients along a sequence of additions, each prefix fitted from the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm import native
from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.matrix.standardisation import column_index
from fastomp_nvm.objectives import newton
from fastomp_nvm.objectives.base import Candidates
from fastomp_nvm.objectives.compiled import ColumnArrays, Rounds
from fastomp_nvm.objectives.known_columns import MOST_ENTRIES
from fastomp_nvm.objectives.newton import Coefficients, maximise

if TYPE_CHECKING:
    from fastomp_nvm.objectives.glm import GLMModel

__all__ = ["GLMCandidates"]


class GLMCandidates(Candidates):
    """Candidates whose gradient at each prefix is their product with the residual of its fit.

    Inner iterations are compiled as long as the columns are in memory. Otherwise the same compiled fits and products are called
    from Python, with the same bits.
    """

    def __init__(self, model: GLMModel, columns: Columns, gradient: Float64Array) -> None:
        self.features = columns.features
        self._columns, self._left = columns, np.arange(len(columns.features))  # positions of the features in the columns
        self._gradient, self.in_model = gradient, np.zeros(len(columns.features), dtype=np.bool_)
        self._model = model
        self._fits: list[tuple[int, Coefficients]] = []
        self._prefixes = np.empty((0, 0))  # gradients at these fits
        self._here: ColumnArrays | None = None  # where the columns are in memory, as of the pool's ``drops``
        self._as_of = -1

    @property
    def columns(self) -> Columns:
        """Columns of the features, and no others."""
        if len(self._columns.features) > len(self._left):
            self._columns, self._left = self._columns.keep(self._left), np.arange(len(self._left))
        return self._columns

    def scores(self) -> Float64Array:
        """Return the squared gradients, summed by feature."""
        return self.columns.standardisation.scores(self._gradient[:, None])[:, 0]

    def at_once(self) -> int:
        """Return 1 for columns in memory, where a fit costs more than a product; otherwise all, to read columns once."""
        return 1 if self.columns.held else len(self.features)

    def prefix_scores(self, positions: IndexArray) -> Float64Array:
        """Fit each prefix, started from the one before, and multiply the columns with all residuals at once."""
        model, offsets = self._model, self.columns.standardisation.offsets
        widths = offsets[positions + 1] - offsets[positions]
        size, at = len(model.design), model.at
        design = model.extended(int(widths.sum()))
        self.columns.fill(design[size:], positions=positions)
        self._fits = []
        for width in widths.tolist():
            size += width
            at = maximise(model.objective, design[:size], at)
            self._fits.append((size, at))
        self._prefixes = newton.products(model.objective, self.columns, np.array([fit.residual for _, fit in self._fits]))
        return self.columns.standardisation.scores(self._prefixes)

    def run(self, rounds: Rounds) -> tuple[int, int]:
        """Run inner iterations with the columns in memory, as long as the design stays small."""
        n_obs, many = len(self._model.objective.response), len(rounds.added)
        if (not rounds.given and many * n_obs > MOST_ENTRIES) or not self._locate():
            return 0, 0
        assert self._here is not None
        fit, has_factor = self._model.arrays(many)
        total, left, iterations, status = native.extension.glm_rounds(
            fit, has_factor, self._here, self._gradient, self.in_model, rounds
        )
        self._model.grown(total, status)
        if iterations:
            kept = rounds.origin[:left]
            self.features, self._left = self.features[kept], self._left[kept]
            rows, places, mean, scale, wide = self._here
            self._here = ColumnArrays(rows, places[:left], mean[:left], scale[:left], wide[:left])
            self._gradient, self.in_model = self._gradient[:left], self.in_model[:left]
        return total, iterations

    def _locate(self) -> bool:
        """Find the columns in memory; return whether all are there, and compiled code can multiply them."""
        if not newton.can_multiply(self._model.objective, self._columns):
            return False
        if self._here is None or self._as_of != self._columns.drops:
            here, standardisation = self.columns.located(), self.columns.standardisation
            self._as_of, self._here = self._columns.drops, None
            if here is not None:  # copies: compiled code moves the entries of the candidates left to the front
                mean, scale, wide = standardisation.mean, standardisation.scale, standardisation.wide
                self._here = ColumnArrays(here[0], here[1].copy(), mean.copy(), scale.copy(), wide.copy())
                self._gradient = self._gradient.copy()
        return self._here is not None

    def adopt(self, prefixes: int) -> None:
        """Move the model to the fit of this prefix."""
        self._model.move(*self._fits[prefixes - 1])
        self._gradient = self._prefixes[:, prefixes - 1]

    def keep(self, positions: IndexArray) -> None:
        """Drop all other candidates."""
        self._gradient = self._gradient[column_index(self.columns.standardisation.offsets, positions)]
        self.in_model, self._here = self.in_model[positions], None
        self._columns, self._left = self.columns.keep(positions), np.arange(len(positions))
        self.features = self._columns.features
