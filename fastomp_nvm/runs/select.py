"""``select``: one selection, on the spot or as a durable run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack, cast

from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import RequestError
from fastomp_nvm.matrix.checksum import Check
from fastomp_nvm.selection.progress import watched
from fastomp_nvm.selection.request import RequestFields, make_request, named_file
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.select import select_shared
from fastomp_nvm.selection.source import Load, Way, open_dataset
from fastomp_nvm.stores.contract import FeatureStore

__all__ = ["select"]

_NOT_A_CANDIDATE = (
    "the protected feature {!r} was not a candidate (--keep-protected, keep_protected=True make it one), but other features "
    "may stand for it: compare the groups of the fairness report"
)


def select(
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
    run: str | None = None,
    protected: object = None,
    keep_protected: bool = False,
    **request: Unpack[RequestFields],
) -> Selection:
    """Select features and refit a model on them.

    Parameters
    ----------
    data : FeatureStore, store URL, or (n_obs, n_features) array or table
        The features. A text column of a table becomes one feature with a column per category.
    y : (n_obs,) array, optional
        The response; by default a target of the store. Two distinct labels become classes 0 and 1 for the logistic objective.
    threads : int, optional
        Threads of a sweep; the answer does not depend on it.
    names : sequence of str, optional
        Feature names of an array.
    observer : callable, optional
        Called with a ``Progress`` at every round, at the end of the run, and about every 100 ms of a pass, then by a worker thread.
    progress : bool, optional
        Show a bar in a notebook or a terminal, or a line every 30 seconds elsewhere. By default it is shown in a notebook only, for
        selections that take longer than two seconds.
    cancelled : callable, optional
        Called at every round and about every 100 ms of a pass, then by a worker thread; the selection ends with
        ``CancelledError`` once it returns True.
    verify : bool
        Check every block of the store against its checksum first.
    load : {"dram", "tier"}, optional
        Copy the store, or its int8 tier alone, into memory first.
    io : {"auto", "mmap", "direct"}, optional
        How to read files that are not in the page cache: ``direct`` bypasses it. The answer does not depend on it.
    check : {"first", "always", "never"}, optional
        When columns are compared with their checksums: when they are first read since the store's files were changed (by default),
        in any case, or never. A column that does not match is an error that names it.
    run : str, optional
        Name of a durable run: registered before the first sweep, continued with ``resume`` after a crash. Needs a store.
    protected : (n_obs,) array, or str, optional
        The group of each observation, or the name of the target or feature that holds it: ``Selection.fairness`` then reports how
        the model treats the groups. Not for durable runs.
    keep_protected : bool
        Let the feature of that name be selected; otherwise it is no candidate.
    **request
        Fields of ``SelectionRequest``: ``k``, ``objective``, ``constraint``, ``algorithm``, ``epsilon``, ``tau``, ``seed``, ...

    Returns
    -------
    Selection

    Examples
    --------
    >>> import numpy as np, fastomp_nvm as fo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 50))
    >>> y = 3 * X[:, 7] - 2 * X[:, 21] + 0.1 * rng.normal(size=200)
    >>> sorted(fo.select(X, y, k=2).indices.tolist())
    [7, 21]
    """
    if protected is not None:
        if run is not None:
            raise RequestError("a durable run cannot report on groups: leave protected out, and call fairness_report on its result")
        from fastomp_nvm.selection.group_fairness import check_protected, fairness_report

        with open_dataset(data, names, verify=verify, load=load, io=io, check=check) as dataset:
            notes: list[str] = []
            if check_protected(protected, dataset) and not keep_protected:
                request["exclude"] = [*request.get("exclude", ()), str(protected)]
                notes.append(_NOT_A_CANDIDATE.format(protected))
            found = select(dataset, y, threads=threads, observer=observer, progress=progress, cancelled=cancelled, **request)
            beside = {"covariates": request.get("covariates"), "offset": request.get("offset")}
            report = fairness_report(found, dataset, y, protected, constraint=request.get("constraint"), **beside)
            return replace(found, fairness=report, notes=[*found.notes, *notes])
    if run is None:
        with watched(observer, progress, "select") as watching:
            ((selection,), _) = select_shared(
                data,
                [make_request(request)],
                y,
                threads=threads,
                names=names,
                observer=watching,
                cancelled=cancelled,
                verify=verify,
                load=load,
                io=io,
                check=check,
            )
        return selection
    if io is not None:
        raise RequestError(f"a durable run reads as io auto does, so that it can be resumed anywhere: leave io {io} out")
    if check is not None:
        raise RequestError(f"a durable run compares columns as check first does: leave check {check} out, or ask for verify")
    from fastomp_nvm.runs.drive import start

    file = named_file(request.get("constraint"))
    if isinstance(file, os.PathLike):
        del request["constraint"]  # the run keeps the text of the file
    with watched(observer, progress, "select") as watching:
        return start(
            run,
            cast("FeatureStore | str", data),  # checked there
            y,
            constraint_file=Path(file) if isinstance(file, os.PathLike) else None,
            load=load,
            verify=verify,
            threads=threads,
            observer=watching,
            cancelled=cancelled,
            **request,
        )
