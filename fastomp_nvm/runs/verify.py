"""``verify``: check the proof of a finished run, a result or a saved model again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Unpack, cast

from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import InputError, RequestError, near
from fastomp_nvm.runs.drive import list_runs, registration, resume
from fastomp_nvm.runs.registration import Registration
from fastomp_nvm.selection.codec import decode_request
from fastomp_nvm.selection.progress import watched
from fastomp_nvm.selection.recheck import Claim, Verification, recheck
from fastomp_nvm.selection.request import RequestFields, SelectionRequest, make_request
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.source import open_dataset

__all__ = ["claim_of", "verify"]


def verify(
    run: str | os.PathLike[str] | Selection,
    data: object = None,
    y: object = None,
    *,
    threads: int | None = None,
    observer: Observer | None = None,
    progress: bool | None = None,
    cancelled: Callable[[], bool] | None = None,
    **request: Unpack[RequestFields],
) -> Verification:
    """Check the proof of a verified selection again, in one pass over its data.

    Parameters
    ----------
    run : str, path or Selection
        The name of a finished run, a file with the output of ``select --json`` or a saved model, or a selection.
    data : FeatureStore, store URL, array or table, optional
        What it was made from; by default the store of the run.
    y : (n_obs,) array, optional
        The response, where the selection was given one.
    threads, observer, progress, cancelled
        As for ``select``.
    **request
        Fields of the request that the proof does not hold (its ``missing``): ``weights``, ``constraint``.

    Returns
    -------
    Verification
        ``holds`` and a ``sentence``.
    """
    name, _, claim, kept = _found(run)
    if kept is not None:
        data, y = kept.store if data is None else data, kept.decoded_response()
    elif data is None:
        raise RequestError(f"{name} does not say where its data is: name the store (--store)")
    with open_dataset(data) as dataset, watched(observer, progress, "verify") as watching:
        if kept is not None:
            wanted = replace(kept.selection_request(dataset), objective=str(claim.proof.request.get("objective")))
        else:
            wanted = _request(claim, y, request)
        return recheck(dataset, claim, wanted, y, threads=threads, observer=watching, cancelled=cancelled)


def claim_of(
    run: str | os.PathLike[str] | Selection, y: object, request: RequestFields
) -> tuple[Mapping[str, object], RequestFields, object]:
    """Return what a server needs to check a proof again: the result, the fields of its request, and its response if it was given.

    Parameters
    ----------
    run, y, request
        As for ``verify``; nothing but the result of a run is taken from this machine.
    """
    _, result, claim, kept = _found(run)
    response = y if kept is None or y is not None else kept.decoded_response()
    wanted = _request(claim, response, request)
    return result, cast("RequestFields", {name: getattr(wanted, name) for name in SelectionRequest.__dataclass_fields__}), response


def _found(run: str | os.PathLike[str] | Selection) -> tuple[str, Mapping[str, object], Claim, Registration | None]:
    """Return how errors call a selection, its result, the claim in it, and the registration of a run."""
    states = {} if isinstance(run, Selection) else {info.name: info.status for info in list_runs()}
    kept = None
    if isinstance(run, Selection):
        name, result = "the selection", run.to_json()
    elif str(run) in states:
        name = f"the run {run!r}"
        if states[str(run)] != "finished":
            raise RequestError(f"{name} is {states[str(run)]}, and only a finished one can be verified: resume it first")
        kept, result = registration(str(run)), resume(str(run)).to_json()
    else:
        name, result = f"the file {os.fspath(run)}", _read(run, states)
    if result.get("proof") is None:
        raise RequestError(f"{name} carries no proof: select with quality verified or best")
    try:
        claim = Claim.of(result)
    except ValueError as error:
        raise RequestError(f"{name} cannot be verified: {error}") from error
    return name, result, claim, kept


def _read(path: str | os.PathLike[str], runs: Mapping[str, str]) -> dict[str, object]:
    """Return the result in a file: the output of ``select --json``, or a saved model."""
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise RequestError(f"{name!r} is neither a run nor a file{near(name, runs)}: 'fastomp runs' lists the runs")
    try:
        found = json.loads(Path(path).read_bytes())
        model = found.get("model")
        result = found if model is None else model["json"]
        if isinstance(result, dict):
            return result
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise InputError(f"{name} is neither the output of 'fastomp select --json' nor a saved model")


def _request(claim: Claim, y: object, given: RequestFields) -> SelectionRequest:
    """Return the request of a claim, with the parts that its proof does not hold."""
    for part in claim.proof.missing:
        if part not in given and not (part == "y" and y is not None):
            raise RequestError(
                f"the result does not hold the {'response' if part == 'y' else part} of its selection: give {part} to "
                "fastomp_nvm.verify, or verify the durable run by name"
            )
    written = decode_request(claim.proof.request)
    fields = {name: getattr(written, name) for name in SelectionRequest.__dataclass_fields__}
    return make_request({**fields, **given})
