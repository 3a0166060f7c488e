"""Selections for every combination of parameters, in shared sweeps; each has the bits of the request run alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Unpack, cast

from fastomp_nvm.analysis.sharing import Sharing
from fastomp_nvm.arrays import JSONObject
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.fairness import Fairness
from fastomp_nvm.constraints.intersection import intersect, parts_of
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import ConstraintError, RequestError
from fastomp_nvm.selection.request import RequestFields, make_request
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.select import bind_constraint, select_shared
from fastomp_nvm.selection.source import Load, Way, open_dataset

__all__ = ["Cell", "Grid", "grid"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of a grid: the values of the varied fields, and the answer."""

    settings: Mapping[str, object]
    selection: Selection


@dataclass(frozen=True, slots=True)
class Grid:
    """The answers of a grid.

    Attributes
    ----------
    cells : sequence of Cell
        The last field of the grid varies fastest.
    sharing : Sharing
    """

    cells: Sequence[Cell]
    sharing: Sharing

    @property
    def ranked_by(self) -> Literal["test_score", "score"]:
        """The score that ``best`` compares: on the observations held out where every cell holds some out, otherwise of training."""
        held_out = all(cell.selection.test_fraction is not None for cell in self.cells)
        return "test_score" if held_out else "score"

    @property
    def best(self) -> Cell:
        """The feasible cell with the highest score; of equals the one with fewest features, then the first.

        Compares the score ``ranked_by``. Without any feasible cell all are compared.
        """
        feasible = [cell for cell in self.cells if cell.selection.feasible] or self.cells

        def rank(cell: Cell) -> tuple[float, int]:
            score = cell.selection.score if self.ranked_by == "score" else cell.selection.test_score
            return -math.inf if score is None else score, -len(cell.selection.indices)

        return max(feasible, key=rank)

    def to_json(self) -> JSONObject:
        """Return the object that ``grid --json`` prints."""
        best = next(place for place, cell in enumerate(self.cells) if cell is self.best)
        cells = [{"settings": dict(cell.settings), **cell.selection.to_json()} for cell in self.cells]
        return {"cells": cells, "best": best, "ranked_by": self.ranked_by, **asdict(self.sharing)}


def grid(
    data: object,
    y: object = None,
    *,
    over: Mapping[str, Sequence[object]],
    threads: int | None = None,
    names: Sequence[str] | None = None,
    observer: Observer | None = None,
    cancelled: Callable[[], bool] | None = None,
    verify: bool = False,
    load: Load | None = None,
    io: Way | None = None,
    **request: Unpack[RequestFields],
) -> Grid:
    """Answer every combination of parameters in shared sweeps.

    Parameters
    ----------
    data, y, threads, names, observer, cancelled, verify, load, io
        As for ``select``.
    over : mapping of str to sequence
        Fields of ``SelectionRequest`` and the values each takes: ``{"tau": [0.3, 0.5], "k": [5, 10]}``. ``lambda`` replaces the
        limit of every fairness constraint.
    **request
        The fields common to all combinations.

    Returns
    -------
    Grid
    """
    for field, values in over.items():
        if isinstance(values, str) or not len(values):
            raise RequestError(f"the grid over {field!r} is {values!r}: expected a list of at least one value")
    with open_dataset(data, names, verify=verify, load=load, io=io) as dataset:
        limits = {}
        if "lambda" in over:
            given = request.get("constraint")
            if given is None:
                raise ConstraintError("a grid over lambda needs a constraint with a fairness part: give one")
            usable = dataset.design(request.get("standardize", True)).standardisation.usable()
            constraint = bind_constraint(given, dataset, usable)
            limits = {limit: _with_limit(constraint, cast("float", limit)) for limit in over["lambda"]}
        settings = [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]
        requests = []
        for each in settings:
            fields = {**request, **{field: value for field, value in each.items() if field != "lambda"}}
            requests.append(make_request({**fields, "constraint": limits[each["lambda"]]} if limits else fields))
        selections, traffic = select_shared(dataset, requests, y, threads=threads, observer=observer, cancelled=cancelled)
        cells = [Cell(each, selection) for each, selection in zip(settings, selections, strict=True)]
        return Grid(cells, Sharing.of(traffic, selections, dataset.n_features))


def _with_limit(constraint: Constraint, limit: float) -> Constraint:
    """Return the constraint with this limit in each of its fairness parts."""
    parts = parts_of(constraint)
    if not any(isinstance(part, Fairness) for part in parts):
        raise ConstraintError("a grid over lambda needs a fairness part, and the constraint has none: add one or leave lambda out")
    return intersect([part.with_limit(limit) if isinstance(part, Fairness) else part for part in parts])
