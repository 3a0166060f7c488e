"""A selection for every k: from one run where greedy is nested, otherwise from a run for each k in shared sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

import numpy as np

from fastomp_nvm.algorithms.table import GREEDY
from fastomp_nvm.analysis.sharing import Sharing
from fastomp_nvm.arrays import IndexArray, JSONObject
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.bounds import Bounds
from fastomp_nvm.constraints.intersection import parts_of
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import ConstraintError, RequestError
from fastomp_nvm.matrix.checksum import Check
from fastomp_nvm.selection.criteria import CRITERIA, OPTIMISTIC, PathPoint
from fastomp_nvm.selection.display import frame, html_table, listed
from fastomp_nvm.selection.plots import plot_every_k
from fastomp_nvm.selection.progress import watched
from fastomp_nvm.selection.request import RequestFields, SelectionRequest, make_request
from fastomp_nvm.selection.response import resolve_response
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.select import bind_constraint, nested, select_shared
from fastomp_nvm.selection.source import Load, Way, open_dataset

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["SelectionPath", "path"]


@dataclass(frozen=True, slots=True, repr=False)
class SelectionPath:
    """Selections with at most 1, 2, ... features.

    Attributes
    ----------
    ks : (m,) int64
        Ascending, without sizes below the lower bounds of a constraint and sizes at which nothing is added any more.
    selections : sequence of Selection
        For each k.
    nested : bool
        Whether each set contains the one before it: all are beginnings of one greedy run.
    reason : str
        Why they are, or why each k has a run of its own.
    sharing : Sharing
    """

    ks: IndexArray
    selections: Sequence[Selection]
    nested: bool
    reason: str
    sharing: Sharing

    @property
    def points(self) -> list[PathPoint]:
        """Score, AIC, BIC and EBIC of each selection; the criteria are computed after selection and are optimistic."""
        return [selection.path[-1] for selection in self.selections]

    @property
    def best(self) -> dict[str, int | None]:
        """The k with the least ``aic``, ``bic`` and ``ebic``, None where no k has one. Optimistic: prefer ``cross_validate``."""
        found: dict[str, int | None] = {}
        for name in CRITERIA:
            values = [getattr(point, name) for point in self.points]
            known = [(value, k) for value, k in zip(values, self.ks.tolist(), strict=True) if value is not None]
            found[name] = min(known)[1] if known else None
        return found

    @property
    def changes(self) -> list[list[str]]:
        """For each k the features that enter the set, as ``+name``, and those that leave it, as ``-name``."""
        found: list[list[str]] = []
        before: Sequence[str] = ()
        for selection in self.selections:
            old, new = set(before), set(selection.features)
            entering = [f"+{name}" for name in selection.features if name not in old]
            found.append(entering + [f"-{name}" for name in before if name not in new])
            before = selection.features
        return found

    def __repr__(self) -> str:
        least = ", ".join(f"{name.upper()} at {k}" for name, k in self.best.items() if k is not None)
        return (
            f"<SelectionPath: k = {self.ks[0]} to {self.ks[-1]}, {'nested' if self.nested else 'a run for each k'}\n"
            f"  {listed(self.selections[-1].features)}\n"
            f"  least {least or 'criteria undefined'} ({OPTIMISTIC}); {self.sharing.in_words()}>"
        )

    def _repr_html_(self) -> str:
        rows = [
            (str(k), listed(changes), *map(_number, (selection.score, selection.test_score, point.aic, point.bic, point.ebic)))
            for k, changes, selection, point in zip(self.ks, self.changes, self.selections, self.points, strict=True)
        ]
        head = ("k", "features", "score", "score held out", *map(str.upper, CRITERIA))
        notes = [self.reason, f"AIC, BIC, EBIC: {OPTIMISTIC}", self.sharing.in_words()]
        return html_table(f"k = {self.ks[0]} to {self.ks[-1]}", head, rows, notes)

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per k: scores, number of parameters, criteria and features."""
        columns: dict[str, object] = {
            name: [getattr(point, name) for point in self.points] for name in ("score", "parameters", *CRITERIA)
        }
        if any(selection.test_score is not None for selection in self.selections):
            columns["test_score"] = [selection.test_score for selection in self.selections]
        return frame({"k": self.ks, **columns, "features": [list(selection.features) for selection in self.selections]})

    def plot(self, axes: Sequence[Axes] | None = None) -> Sequence[Axes]:
        """Draw the scores and the criteria over k on two axes and return them; needs matplotlib."""
        return plot_every_k(self.ks.tolist(), self.selections, axes)

    def to_json(self) -> JSONObject:
        """Return the object that ``path --json`` prints."""
        return {
            "ks": self.ks.tolist(),
            "nested": self.nested,
            "reason": self.reason,
            "criteria": OPTIMISTIC,
            "best": self.best,
            "points": [
                {
                    **point._asdict(),
                    "k": k,
                    "features": list(selection.features),
                    "indices": selection.indices.tolist(),
                    **({} if selection.test_fraction is None else {"test_score": selection.test_score}),
                    "feasible": selection.feasible,
                }
                for k, point, selection in zip(self.ks.tolist(), self.points, self.selections, strict=True)
            ],
            "selection": self.selections[-1].to_json(),
            **self.sharing.to_json(),
        }


def path(
    data: object,
    y: object = None,
    *,
    threads: int | None = None,
    names: Sequence[str] | None = None,
    observer: Observer | None = None,
    progress: bool | None = None,
    cancelled: Callable[[], bool] | None = None,
    verify: bool = False,
    load: Load | None = None,
    io: Way | None = None,
    check: Check | None = None,
    **request: Unpack[RequestFields],
) -> SelectionPath:
    """Select for every number of features up to k.

    By default full greedy on exact gains (``sds_ma``; for GLMs matching pursuit, ``sds_omp``) runs once, verified over all
    features, and its first 1, 2, ... features are the selections: under a constraint without lower bounds greedy with a smaller k
    selects the beginning of the same sequence. Beside lower bounds, with ``quality="best"`` and with other algorithms the sets are
    not nested; each k then has a run of its own, all in shared sweeps.

    Parameters
    ----------
    data, y, threads, names, observer, progress, cancelled, verify, load, io, check
        As for ``select``.
    **request
        The fields of ``SelectionRequest``; ``k`` is the largest size.

    Returns
    -------
    SelectionPath
    """
    with open_dataset(data, names, verify=verify, load=load, io=io, check=check) as dataset:
        common = make_request(request)
        if "algorithm" not in request and "quality" not in request:
            objective = resolve_response(dataset, common, y).objective
            common = replace(common, algorithm="sds_ma" if objective == "linear" else "sds_omp")
        usable = dataset.design(common.standardize).standardisation.usable()
        constraint = None if common.constraint is None else bind_constraint(common.constraint, dataset, usable)
        ks = _sizes(common.k, int(np.count_nonzero(usable)), constraint)
        one_run = nested(dataset, common)
        requests = [replace(common, k=k, constraint=constraint) for k in ks]
        with watched(observer, progress, "path") as watching:
            selections, traffic = select_shared(
                dataset,
                requests,
                y,
                threads=threads,
                observer=watching,
                cancelled=cancelled,
                longest=[len(ks) - 1] * len(ks) if one_run else (),
            )
        sharing = Sharing.of(traffic, selections, dataset.n_features)
    while len(selections) > 1 and set(selections[-1].features) == set(selections[-2].features):
        selections.pop()
    if not all(len(selection.features) for selection in selections):
        raise ConstraintError("the constraint allows no feature alone, so that nothing can be selected: loosen it")
    whole = one_run and common.algorithm in GREEDY
    return SelectionPath(np.array(ks[: len(selections)]), selections, whole, _reason(common, constraint, one_run), sharing)


def _sizes(k: int | None, usable: int, constraint: Constraint | None) -> list[int]:
    """Return the values of k: from the sum of the lower bounds to the largest possible size."""
    if k is None and constraint is None:
        raise RequestError("k is missing: give it, or a constraint that bounds how many features may be selected")
    bounds = [part for part in (() if constraint is None else parts_of(constraint)) if isinstance(part, Bounds)]
    least = max([1, *(int(part.lower.sum()) for part in bounds)])
    most = max(min(usable if k is None else k, usable, usable if constraint is None else constraint.rank), 1)
    return list(range(min(least, most), most + 1))


def _reason(request: SelectionRequest, constraint: Constraint | None, one_run: bool) -> str:
    """Return in one sentence how many runs answered."""
    if one_run and request.algorithm in GREEDY:
        return f"one run of {request.algorithm} answers every k: greedy is nested"
    if one_run:
        return "fast_omp ran for each k in shared sweeps and full greedy, which is nested, once: the better set is kept for each k"
    if constraint is not None and constraint.needs_base:
        why = "beside lower bounds sets are not nested"
    elif request.quality == "best":
        why = "exchanges make sets that are not nested"
    elif request.certificate:
        why = "a certificate is of one k alone"
    else:
        why = f"the sets of {request.algorithm} are not nested"
    return f"each k is a run of its own, in shared sweeps: {why}"


def _number(value: float | None) -> str:
    """Return a number as text, nothing for None."""
    return "" if value is None else f"{value:.6g}"
