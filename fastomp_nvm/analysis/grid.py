"""Selections for every combination of parameters, in shared sweeps or from one Gram matrix; each equals the request run alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Unpack, cast

import numpy as np

from fastomp_nvm.analysis.sharing import Sharing
from fastomp_nvm.arrays import AnyArray, JSONObject
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.extendable import intersect
from fastomp_nvm.constraints.fairness import Fairness
from fastomp_nvm.constraints.intersection import parts_of
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import ConstraintError, RequestError
from fastomp_nvm.matrix.checksum import Check
from fastomp_nvm.selection.display import frame, html_table, listed, score_in_words
from fastomp_nvm.selection.fairness import figure_in_words, named
from fastomp_nvm.selection.group_fairness import GroupFairness
from fastomp_nvm.selection.progress import watched
from fastomp_nvm.selection.request import RequestFields, make_request, named_file
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.select import bind_constraint, select_shared
from fastomp_nvm.selection.source import Load, Way, open_dataset

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Cell", "Grid", "grid", "settings_of"]

#: Differences between groups in tables of a grid.
_SHOWN = ("demographic_parity_difference", "equalized_odds_difference", "outcome_fairness", "mean_residual_difference")


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
            return _score(cell, self.ranked_by), -len(cell.selection.indices)

        return max(feasible, key=rank)

    @property
    def gaps(self) -> list[str]:
        """Names of the differences between groups of the first protected attribute that tables show."""
        reports = [cell.selection.fairness for cell in self.cells]
        known = dict.fromkeys(name for each in reports if each is not None for name in each.attributes[0].differences)
        return [name for name in known if name in _SHOWN]

    def gap(self, cell: Cell, name: str) -> float | None:
        """Return a difference between groups of the first protected attribute."""
        return None if cell.selection.fairness is None else cell.selection.fairness.attributes[0].differences.get(name)

    def __repr__(self) -> str:
        best = self.best
        return (
            f"<Grid: {len(self.cells)} selections, best {_settings(best.settings)}: {score_in_words(best.selection)}\n"
            f"  {listed(best.selection.features)}\n  {self.sharing.in_words()}>"
        )

    def _repr_html_(self) -> str:
        gaps = self.gaps
        rows = [
            (
                *(f"{value:g}" if isinstance(value, float) else str(value) for value in cell.settings.values()),
                str(len(cell.selection.features)),
                f"{cell.selection.score:.6g}",
                "" if cell.selection.test_score is None else f"{cell.selection.test_score:.6g}",
                *(figure_in_words(self.gap(cell, name)) for name in gaps),
                "yes" if cell.selection.feasible else "no",
            )
            for cell in self.cells
        ]
        head = (*self.cells[0].settings, "features", "score", "score held out", *map(named, gaps), "feasible")
        return html_table(f"{len(rows)} selections, best {_settings(self.best.settings)}", head, rows, [self.sharing.in_words()])

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per selection: its settings, size, scores and features."""
        selections = [cell.selection for cell in self.cells]
        columns: dict[str, object] = {name: [cell.settings[name] for cell in self.cells] for name in self.cells[0].settings}
        columns |= {"n_selected": [len(each.features) for each in selections], "score": [each.score for each in selections]}
        if any(each.test_score is not None for each in selections):
            columns["test_score"] = [each.test_score for each in selections]
        columns |= {name: [self.gap(cell, name) for cell in self.cells] for name in self.gaps}
        columns |= {"feasible": [each.feasible for each in selections], "features": [list(each.features) for each in selections]}
        return frame(columns)

    @property
    def cv_results_(self) -> dict[str, AnyArray]:
        """The scores as scikit-learn's searches name them: ``param_k``, ..., ``params``, ``mean_test_score``, ``rank_test_score``.

        ``mean_test_score`` is the score ``ranked_by``, on held-out observations where there are some; rank 1 is ``best``.
        """
        settings = [dict(cell.settings) for cell in self.cells]
        scores = np.array([_score(cell, self.ranked_by) for cell in self.cells])
        return {
            **{f"param_{name}": np.array([each[name] for each in settings], dtype=object) for name in settings[0]},
            "params": np.array(settings, dtype=object),
            "mean_test_score": scores,
            "rank_test_score": (1 + (scores[:, None] < scores).sum(axis=1)).astype(np.int32),
        }

    def to_json(self) -> JSONObject:
        """Return the object that ``grid --json`` prints."""
        best = next(place for place, cell in enumerate(self.cells) if cell is self.best)
        cells = [{"settings": dict(cell.settings), **cell.selection.to_json()} for cell in self.cells]
        return {"cells": cells, "best": best, "ranked_by": self.ranked_by, **self.sharing.to_json()}


def grid(
    data: object,
    y: object = None,
    *,
    over: Mapping[str, Sequence[object]],
    threads: int | None = None,
    names: Sequence[str] | None = None,
    observer: Observer | None = None,
    progress: bool | None = None,
    cancelled: Callable[[], bool] | None = None,
    verify: bool = False,
    load: Load | None = None,
    io: Way | None = None,
    check: Check | None = None,
    protected: object = None,
    keep_protected: bool = False,
    bootstrap: int | None = None,
    **request: Unpack[RequestFields],
) -> Grid:
    """Answer every combination of parameters in shared sweeps.

    Parameters
    ----------
    data, y, threads, names, observer, progress, cancelled, verify, load, io, check, protected, keep_protected, bootstrap
        As for ``select``; every selection has a fairness report of its own.
    over : mapping of str to sequence
        Fields of ``SelectionRequest`` and the values each takes: ``{"tau": [0.3, 0.5], "k": [5, 10]}``. ``lambda`` replaces the
        limit of every fairness constraint.
    **request
        The fields common to all combinations.

    Returns
    -------
    Grid
    """
    settings = list(settings_of(over))
    with open_dataset(data, names, verify=verify, load=load, io=io, check=check) as dataset:
        limits = {}
        if "lambda" in over:
            given = named_file(request.get("constraint"))
            if given is None:
                raise ConstraintError("a grid over lambda needs a constraint with a fairness part: give one")
            usable = dataset.design(request.get("standardize", True)).standardisation.usable()
            constraint = bind_constraint(given, dataset, usable)
            limits = {limit: _with_limit(constraint, cast("float", limit)) for limit in over["lambda"]}
        fairness = GroupFairness.of_request(dataset, y, request, protected, keep_protected, bootstrap, len(settings))
        fields: list[RequestFields] = []
        for each in settings:
            varied = {field: value for field, value in each.items() if field != "lambda"}
            constrained = {"constraint": limits[each["lambda"]]} if limits else {}
            one = cast("RequestFields", {**request, **varied, **constrained})
            fields.append(one if fairness is None else fairness.without_protected(one))
        with watched(observer, progress, "grid") as watching:
            selections, traffic = select_shared(
                dataset,
                list(map(make_request, fields)),
                y,
                threads=threads,
                observer=watching,
                cancelled=cancelled,
                beside=None if fairness is None else fairness.beside,
            )
        if fairness is not None:
            selections = [fairness.on(selection, y, one) for selection, one in zip(selections, fields, strict=True)]
        cells = [Cell(each, selection) for each, selection in zip(settings, selections, strict=True)]
        return Grid(cells, Sharing.of(traffic, selections, dataset.n_features))


def settings_of(over: Mapping[str, Sequence[object]]) -> Iterator[dict[str, object]]:
    """Return the settings of the cells of a grid in order; ``RequestError`` where a field has no values."""
    for field, values in over.items():
        if isinstance(values, str) or not len(values):
            raise RequestError(f"the grid over {field!r} is {values!r}: expected a list of at least one value")
    return (dict(zip(over, values, strict=True)) for values in itertools.product(*over.values()))


def _with_limit(constraint: Constraint, limit: float) -> Constraint:
    """Return the constraint with this limit in each of its fairness parts."""
    parts = parts_of(constraint)
    if not any(isinstance(part, Fairness) for part in parts):
        raise ConstraintError("a grid over lambda needs a fairness part, and the constraint has none: add one or leave lambda out")
    return intersect([part.with_limit(limit) if isinstance(part, Fairness) else part for part in parts])


def _score(cell: Cell, ranked_by: Literal["test_score", "score"]) -> float:
    """Return the score that cells are compared by; minus infinity where it is undefined."""
    score = cell.selection.score if ranked_by == "score" else cell.selection.test_score
    return -math.inf if score is None else score


def _settings(settings: Mapping[str, object]) -> str:
    """Return the settings of a cell of a grid in words."""
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "the only one"
