"""Candidates of a GLM: their gradients along a sequence of additions, each prefix fitted from the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array, IndexArray
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.matrix.standardisation import Standardisation, column_index
from fastomp_nvm.objectives import newton
from fastomp_nvm.objectives.base import CandidateBlocks, Walk
from fastomp_nvm.objectives.known_columns import MOST_ENTRIES
from fastomp_nvm.objectives.newton import Coefficients, maximise

if TYPE_CHECKING:
    from fastomp_nvm.objectives.glm import GLMModel

__all__ = ["GLMCandidates"]

#: Multiplications after which compiled iterations give back control, so that a run can be watched and ended: about 10 ms.
EFFORT = 5e7


class GLMCandidates(CandidateBlocks):
    """Candidates whose gradient at each prefix is their product with that prefix model's residual.

    Where fits are compiled, prefixes are: fits, products and decisions in one call as long as the columns are in memory; where they
    are read again the same functions are called for one block of them after the other.
    """

    def __init__(self, model: GLMModel, columns: Columns, gradient: Float64Array) -> None:
        self.features = columns.features
        self._columns, self._left = columns, np.arange(len(columns.features))  # the latter: positions of the features in the former
        self._gradient, self._added = gradient, np.zeros(len(columns.features), dtype=np.bool_)
        self._model = model
        self._fits: list[tuple[int, Coefficients]] = []
        self._prefixes = np.empty((0, 0))  # gradients at these
        self._compiled = newton.compiled(model.objective, columns)
        # Where the columns are in memory (an array, rows of it, means, scales, which are wide), as of which change of that memory.
        self._here: tuple[AnyArray, IndexArray, Float64Array, Float64Array, BoolArray] | None = None
        self._as_of = -1

    @property
    def columns(self) -> Columns:
        """Those of the features, and no others."""
        if len(self._columns.features) > len(self._left):
            self._columns, self._left = self._columns.keep(self._left), np.arange(len(self._left))
        return self._columns

    @property
    def standardisation(self) -> Standardisation:
        """Of these features, by position."""
        return self.columns.standardisation

    def at_once(self) -> int:
        """Return 1 where columns are in memory, because a fit costs more than their product with its residual; else all."""
        return 1 if self.columns.held else len(self.features)

    def gradients(self, positions: IndexArray) -> Float64Array:
        """Fit each prefix, started from the one before, and multiply with all residuals at once."""
        model, offsets = self._model, self.standardisation.offsets
        widths = offsets[positions + 1] - offsets[positions]
        size, at = len(model.design), model.at
        design = model.extended(int(widths.sum()))
        self.columns.only(positions).fill(design[size:])
        self._fits = []
        for width in widths.tolist():
            size += width
            at = maximise(model.objective, design[:size], at)
            self._fits.append((size, at))
        self._prefixes = newton.products(model.objective, self.columns, np.array([fit.residual for _, fit in self._fits]))
        return self._prefixes

    def advance(
        self, positions: IndexArray, blocked: IndexArray | None, threshold: float, enough: float, skip_weak: bool = False
    ) -> tuple[int, bool]:
        """Add one after the other, in C where that is possible."""
        if not self._locate():
            return super().advance(positions, blocked, threshold, enough, skip_weak)
        kept = np.empty(len(self.features), dtype=np.int64)
        added, left = self._model.advance(positions, *self._mine, positions, blocked, kept, (threshold, enough, skip_weak))
        if left < 0:
            return added, False
        self._left_are(kept[:left])
        return added, True

    def walk(self, name: tuple[int, int, int], room: int, threshold: float, share: float) -> Walk | None:
        """Go through inner iterations in C, where that is possible and takes so little that who calls would be most of it."""
        room = min(room, len(self.features))
        if not self._locate() or room * len(self._model.residual) > MOST_ENTRIES:
            return None
        features, origin = self.features, np.arange(len(self.features))
        added, sizes, lengths = np.empty((3, room), dtype=np.int64)
        total, left, iterations = self._model.walk(
            room, *self._mine, features, origin, added, sizes, lengths, name, (threshold, share, EFFORT)
        )
        self._left_are(origin[:left])
        return Walk(features[added[:total]], sizes[:iterations], lengths[:iterations])

    @property
    def _mine(self) -> tuple[Any, ...]:
        """What compiled code gets of the candidates; the arrays begin with what is left, afterwards."""
        assert self._here is not None
        return *self._here, self._gradient, self._added

    def _left_are(self, positions: IndexArray) -> None:
        """Go on with the candidates at ``positions``, as compiled code has."""
        assert self._here is not None
        left = len(positions)
        self.features, self._left = self.features[positions], self._left[positions]
        rows, places, mean, scale, wide = self._here
        self._here = rows, places[:left], mean[:left], scale[:left], wide[:left]
        self._gradient, self._added = self._gradient[:left], self._added[:left]

    def _locate(self) -> bool:
        """Find where the columns are in memory, unless that is known; tell whether all are, and compiled code can have them."""
        if not self._compiled:
            return False
        if self._here is None or self._as_of != self._columns.drops:
            here, standardisation = self.columns.located(), self.standardisation
            self._as_of, self._here = self._columns.drops, None
            if here is not None:  # copies: compiled code drops those that are out
                mean, scale, wide = standardisation.mean, standardisation.scale, standardisation.wide
                self._here = here[0], here[1].copy(), mean.copy(), scale.copy(), wide.copy()
                self._gradient = self._gradient.copy()
        return self._here is not None

    def adopt(self, prefixes: int) -> None:
        """Take over the fit of that prefix."""
        self._model.move(*self._fits[prefixes - 1])
        self._gradient = self._prefixes[:, prefixes - 1]

    def keep(self, positions: IndexArray) -> None:
        """Drop the others."""
        self._gradient = self._gradient[column_index(self.standardisation.offsets, positions)]
        self._added, self._here = self._added[positions], None
        self._columns, self._left = self.columns.keep(positions), np.arange(len(positions))
        self.features = self._columns.features
