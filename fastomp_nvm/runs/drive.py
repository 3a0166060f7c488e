"""Durable runs: registered by name before the first sweep, resumed after any crash, their results kept.

``drive`` brings journaled runs to their results: those registered here, the jobs of a server and the runs of an MCAS server. The
other functions keep the runs of this user.

A run has a directory ``runs/NAME`` under ``FASTOMP_HOME``:

::

    run.json       the registration; the directory appears with it in one step, durably
    result.json    the result of a finished run
    builds.json    other numeric builds that took part in the run, if any
    run-ID.N.bin   the log, where the store cannot be written; otherwise the log is a region of the store

Invariants: a run is driven by one process, which holds a lock on the directory; the kernel releases the lock when that process
ends, however it ends. A run continues only with the store, request, format and numeric build it was registered with; an error names
the difference. Whatever the moment of a crash, ``resume`` reaches the result of the uninterrupted run, bit for bit, counters
included; ``seconds`` is the sum over all processes.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from fastomp_nvm.algorithms.table import ALGORITHMS
from fastomp_nvm.durable_files import check_name
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.engine.identity import numeric_build, target_digest
from fastomp_nvm.errors import FastompError, InputError, MediumError, RequestError, StoreError
from fastomp_nvm.matrix.choice import Choice
from fastomp_nvm.matrix.kernels import kernel
from fastomp_nvm.matrix.pool import BUDGET_REASON, automatic_budget
from fastomp_nvm.objectives.table import OBJECTIVES
from fastomp_nvm.registry import Lazy
from fastomp_nvm.runs import directory as run_directory
from fastomp_nvm.runs.journal import DecisionJournal, recorded_identity, recorded_progress
from fastomp_nvm.runs.log import PAGE, RegionPlace, StateLog, drop_log, read_state
from fastomp_nvm.runs.registration import ConstraintFile, Registration, describe_request, describe_response
from fastomp_nvm.runs.sealed import Json, seal, unseal
from fastomp_nvm.selection.codec import decode_selection, encode_selection
from fastomp_nvm.selection.progress import watched
from fastomp_nvm.selection.request import SelectionRequest, make_request
from fastomp_nvm.selection.response import resolve_response
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.run_info import RunInfo, score_so_far
from fastomp_nvm.selection.select import resolve_algorithm, select_shared
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.open import open_store

__all__ = ["JournaledRun", "drive", "forget", "list_runs", "registration", "resume", "start"]

#: Durable regions in a directory of their own.
_DIRECTORY_REGIONS: Lazy[Callable[[Path], RegionPlace]] = Lazy("storage_backends.files.regions:DirectoryRegions")

_REGISTRATION = "run.json"
_RESULT = "result.json"
_BUILDS = "builds.json"
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_READ_ATTEMPTS = 5
_FIRST_REGION = 512 * PAGE  # bytes; few runs outgrow it and have to wait while their log moves


class _Options(TypedDict):
    """Options that ``start`` and ``resume`` pass on to ``drive``."""

    other_build: bool
    threads: int | None
    observer: Observer | None
    cancelled: Callable[[], bool] | None


def start(
    name: str,
    data: FeatureStore | str,
    y: object = None,
    *,
    constraint_file: Path | None = None,
    load: Literal["dram", "tier"] | None = None,
    verify: bool = False,
    threads: int | None = None,
    observer: Observer | None = None,
    cancelled: Callable[[], bool] | None = None,
    **request: object,
) -> Selection:
    """Register a run and drive it to its result.

    Parameters
    ----------
    name : str
        Up to 100 letters, digits, ``_``, ``-`` and ``.``; not that of another run.
    data : FeatureStore or store URL
    y : (n_obs,) array, optional
        The response, kept with the run; a target of the store when left out.
    constraint_file : Path, optional
        A constraint file, in place of ``constraint``.
    load : {"dram", "tier"}, optional
        Copy matrix and tier, or the tier alone, into memory first.
    verify : bool
        Check every block of the store first.
    threads, observer, cancelled
        As for ``select``.
    **request
        Fields of ``SelectionRequest``.

    Returns
    -------
    Selection
    """
    check_name(name, "run")
    if not isinstance(data, (str, FeatureStore)):
        raise RequestError("a durable run needs a store that another process can open: build one in a file first")
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(open_store(data)) if isinstance(data, str) else data
        if store.traits.durability == "none":
            raise RequestError(f"{store.url} ends with this process, so a run on it cannot be durable: use a store in a file")
        dataset = Dataset.of_store(store)
        file = None if constraint_file is None else ConstraintFile.read(constraint_file, dataset)
        new = Registration(
            name=name,
            id=secrets.token_hex(16),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            store=store.url,
            fingerprint=store.layout.fingerprint,
            targets=target_digest(dataset),
            request=describe_request(make_request(request)),
            response=describe_response(y),
            constraint=file,
            load=load,
            verify=verify,
            build=numeric_build(kernel().id),
        )
        directory = stack.enter_context(run_directory.registered(name, _REGISTRATION, new.to_bytes()))
        try:
            options = _Options(other_build=False, threads=threads, observer=observer, cancelled=cancelled)
            return _finish(new, store, directory, **options)
        except InputError:
            # The request does not fit the data: there is nothing to resume.
            _remove(new, store, directory)
            raise


def resume(
    name: str,
    *,
    other_build: bool = False,
    threads: int | None = None,
    observer: Observer | None = None,
    progress: bool | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Selection:
    """Continue a run where it stopped, or return the result of a finished one.

    Parameters
    ----------
    name : str
    other_build : bool
        Continue although kernel, BLAS, NumPy or block size differ from those of the start; the result lists the differences.
    threads, observer, progress, cancelled
        As for ``select``.

    Returns
    -------
    Selection
    """
    directory = run_directory.existing(name)
    if (directory / _RESULT).exists():
        return _read_result(directory)
    with run_directory.locked(directory, name):
        if (directory / _RESULT).exists():
            return _read_result(directory)
        found = registration(name)
        with open_store(found.store) as store, watched(observer, progress, "resume") as watching:
            options = _Options(other_build=other_build, threads=threads, observer=watching, cancelled=cancelled)
            return _finish(found, store, directory, **options)


def list_runs() -> list[RunInfo]:
    """Return all runs with their progress, by name."""
    return [_info(name) for name in run_directory.names()]


def registration(name: str) -> Registration:
    """Return the registration of the run ``name``."""
    directory = run_directory.existing(name)
    try:
        return Registration.from_bytes((directory / _REGISTRATION).read_bytes())
    except (OSError, StoreError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"the registration {directory / _REGISTRATION} cannot be used: {reason}; forget the run") from error


def forget(name: str) -> None:
    """Remove a run with its log and its result; its name is free again."""
    directory = run_directory.existing(name)
    with run_directory.locked(directory, name):
        try:
            found = registration(name)
            with open_store(found.store) as store:
                _remove(found, store, directory)
        except FastompError:  # the store is lost or the registration damaged: the name is freed anyway
            run_directory.remove(directory)


@dataclass(slots=True, eq=False)
class JournaledRun:
    """A request whose decisions are kept in a log, from which any process can continue.

    Attributes
    ----------
    request : SelectionRequest
    open_log : callable, optional
        Opens or begins the log. None: the run keeps no log.
    identity : mapping
        Entries of the log's identity beside ``fingerprint``, ``targets`` and ``build``, or replacing them.
    selection : Selection, optional
        The result, set when the run ends with one.
    rounds : int
        Queries answered, over all processes; set when the run ends.
    """

    request: SelectionRequest
    open_log: Callable[[], StateLog] | None
    identity: Mapping[str, Json]
    selection: Selection | None = None
    rounds: int = 0


def drive(
    dataset: Dataset,
    runs: Sequence[JournaledRun],
    y: object = None,
    *,
    verified: bool = False,
    other_build: bool = False,
    threads: int | None = None,
    observer: Observer | None = None,
    cancelled: Callable[[], bool] | None = None,
    deadline: Callable[[], bool] | None = None,
    dropped: Callable[[int], bool] | None = None,
    ended: Callable[[int], None] | None = None,
) -> bool:
    """Bring runs over the same data to their results from where their logs end, in shared sweeps.

    Parameters
    ----------
    dataset : Dataset
    runs : sequence of JournaledRun
        Receive their results.
    y : (n_obs,) array, optional
        The response of all runs, in place of a target of the data.
    verified : bool
        Reported in the results: whether the data was checked.
    other_build : bool
        Accept logs of another numeric build.
    threads, observer, cancelled
        As for ``select``.
    deadline : callable, optional
        Asked between two rounds, after the first new one, so that every call makes progress. A true answer ends the call; the runs
        can be continued by another call.
    dropped : callable, optional
        Asked at every round of a run with its position; a true answer ends this run without a result.
    ended : callable, optional
        Called with the position of a run that was dropped or has its result, while the others continue.

    Returns
    -------
    bool
        Whether all runs ended; False where the deadline came first.

    Raises
    ------
    StoreError
        A log belongs to another request, other data, another numeric build or other code.
    """
    identity: dict[str, Json] = {}
    if any(run.open_log is not None and "build" not in run.identity for run in runs):
        build = dict[str, Json](numeric_build(kernel().id))
        identity = {"fingerprint": dataset.fingerprint, "targets": target_digest(dataset), "build": build}
    budget = automatic_budget(8 * len(dataset.matrix) * dataset.n_obs, len(runs))
    requests: list[SelectionRequest] = []
    pinned: list[dict[str, Json]] = []
    journals: list[DecisionJournal | None] = []
    left = len(runs)

    def hand_over(place: int, selection: Selection | None) -> None:
        nonlocal left
        run, journal = runs[place], journals[place]
        if journal is not None:
            with contextlib.suppress(FastompError):  # its last record is not needed, but no thread may write it later
                journal.close()
            run.rounds = journal.rounds
        if selection is not None:
            seconds = selection.seconds + (0.0 if journal is None else journal.seconds_before)
            kept, choices = pinned[place], dict(selection.choices)
            reason = str(kept["objective_reason"]) if kept.get("objective_reason") else selection.objective_reason
            if "algorithm" in kept:
                choices["algorithm"] = Choice(str(kept["algorithm"]), str(kept["algorithm_reason"]))
            if "gather_bytes" in kept:
                choices["gather_bytes"] = Choice(int(str(kept["gather_bytes"])), BUDGET_REASON)
            run.selection = replace(selection, verified=verified, seconds=seconds, objective_reason=reason, choices=choices)
        left -= 1
        if ended is not None:
            ended(place)

    with contextlib.ExitStack() as stack:
        for run in runs:
            journal, request, kept = None, run.request, dict[str, Json]()
            if run.open_log is not None:
                log = stack.enter_context(contextlib.closing(run.open_log()))
                request, kept = _pinned(request, recorded_identity(log.records), budget, dataset, y)
                # Closed before its log: the last record may still be on its way to the device.
                journal = DecisionJournal(log, {**identity, **run.identity, **kept}, other_build=other_build)
                stack.enter_context(contextlib.closing(journal))
            requests.append(request)
            pinned.append(kept)
            journals.append(journal)
        opened = [journal for journal in journals if journal is not None]
        recorded = sum(journal.recorded for journal in opened)

        def is_over() -> bool:
            return deadline is not None and sum(journal.rounds for journal in opened) > recorded and deadline()

        select_shared(
            dataset,
            requests,
            y,
            threads=threads,
            observer=observer,
            cancelled=cancelled,
            journals=journals,
            dropped=dropped,
            ended=hand_over,
            deadline=is_over,
        )
    return left == 0


def _pinned(
    request: SelectionRequest, recorded: Mapping[str, Json], budget: int, dataset: Dataset, y: object
) -> tuple[SelectionRequest, dict[str, Json]]:
    """Return a request with what its log was begun with, and this as entries of the log's identity.

    Pinned are the memory budget, because counters include columns that are read again for lack of memory, and an objective and an
    algorithm chosen automatically: none may depend on the moment, or the release, of a later start.
    """
    pinned: dict[str, Json] = {}
    kept = recorded.get("gather_bytes") if recorded else budget
    if request.gather_bytes is None and isinstance(kept, int):
        request, pinned["gather_bytes"] = replace(request, gather_bytes=kept), kept
    if request.objective == "auto":
        if recorded.get("objective") not in OBJECTIVES:  # the log begins now, or is of another request, which is found later
            response = resolve_response(dataset, request, y)
            recorded = {"objective": response.objective, "objective_reason": response.reason}
        pinned |= {name: recorded.get(name) for name in ("objective", "objective_reason")}
        request = replace(request, objective=str(pinned["objective"]))
    resolved, choice = resolve_algorithm(dataset, request)
    if choice is not None:
        chosen: dict[str, Json] = {"algorithm": resolved.algorithm, "algorithm_reason": choice.reason}
        if recorded.get("algorithm") in ALGORITHMS:
            chosen = {name: recorded.get(name) for name in chosen}
        pinned |= chosen
        request = replace(request, algorithm=str(chosen["algorithm"]))
    return request, pinned


def _finish(run: Registration, store: FeatureStore, directory: Path, **options: Unpack[_Options]) -> Selection:
    """Bring a registered run to its result from where its log ends; the caller holds its lock."""
    dataset = Dataset.of_store(store)
    build = numeric_build(kernel().id)
    _check_identity(run, dataset, build, other_build=options["other_build"])
    if run.verify:
        store.verify()
    request = run.selection_request(dataset)
    if run.load is not None and (run.load == "tier" or store.tier is not None):
        store.load_tier()
        dataset = Dataset.of_store(store)
    if run.load == "dram":
        dataset = dataset.loaded(store.url)
    others = _other_builds(directory)
    if build != run.build and build not in others:
        # Before its first record: the process that finishes the run must be able to report it.
        others.append(dict(build))
        run_directory.write(directory / _BUILDS, seal("fastomp-builds", {"builds": [*others]}))
    journaled = JournaledRun(request, lambda: _open_log(run, store, directory), run.identity())
    response = run.decoded_response()
    drive(dataset, [journaled], response, verified=run.verify, **options)
    selection = journaled.selection
    assert selection is not None, "without a deadline a run ends with a result or an error"
    if others:
        phrases = dict.fromkeys(phrase for other in others for phrase in _differences(run.build, other))
        selection = replace(selection, other_build=list(phrases))
    encoded = encode_selection(selection)
    content = {"rounds": journaled.rounds, "result": encoded.pop("json"), **encoded}  # ``to_json`` leaves columns out
    run_directory.write(directory / _RESULT, seal("fastomp-result", content))
    with contextlib.suppress(FastompError):  # the result is durable; a log left behind only takes room
        _drop_logs(run, _own_regions(directory), store)
    return selection


def _check_identity(run: Registration, dataset: Dataset, build: Mapping[str, str], *, other_build: bool) -> None:
    """Raise ``StoreError`` for other data, other targets or another numeric build than those of the registration."""
    if dataset.fingerprint != run.fingerprint:
        raise StoreError(
            f"the store {run.store} holds another matrix (fingerprint {dataset.fingerprint[:16]}) than the run {run.name!r} was "
            f"started on ({run.fingerprint[:16]}): restore that store or start a new run"
        )
    if target_digest(dataset) != run.targets:
        raise StoreError(
            f"the targets of the store {run.store} differ from those at the start of the run {run.name!r}: start a new run"
        )
    if build != run.build and not other_build:
        raise StoreError(
            f"the run {run.name!r} was started with another numeric build ({'; '.join(_differences(run.build, build))}), "
            "under which bits may differ: resume it there, or accept this build (--other-build, other_build=True)"
        )


def _differences(was: Mapping[str, str], now: Mapping[str, Json]) -> list[str]:
    """Return one phrase per part of the build that differs."""
    return [f"{part} {was.get(part)} then, {now.get(part)} now" for part in {**was, **now} if was.get(part) != now.get(part)]


def _other_builds(directory: Path) -> list[dict[str, Json]]:
    """Return the numeric builds, other than that of its start, that took part in a run."""
    try:
        builds = unseal("fastomp-builds", (directory / _BUILDS).read_bytes())["builds"]
        if not isinstance(builds, list):
            raise StoreError("it is not a list")
        if len(found := [build for build in builds if isinstance(build, dict)]) < len(builds):
            raise StoreError("it is not a list of objects")
        return found
    except FileNotFoundError:
        return []
    except (OSError, StoreError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"the list of builds {directory / _BUILDS} cannot be used: {reason}; forget the run") from error


def _open_log(run: Registration, store: FeatureStore, directory: Path) -> StateLog:
    """Open the run's log: in the store or, once the store could not be written, in the run's directory."""
    own = _own_regions(directory)
    if read_state(own, _region(run), run.run_id).sequence:
        return _log_in(own, run)
    try:
        return _log_in(store, run)
    except MediumError as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in _READ_ONLY:
            raise
    if kept := read_state(store, _region(run), run.run_id).records:
        with contextlib.closing(_log_in(own, run)) as copy:
            copy.append(*kept)  # as one state: an unfinished copy counts as none and is made again
    return _log_in(own, run)


def _log_in(place: RegionPlace, run: Registration) -> StateLog:
    """Open or begin the run's log in one place."""
    return StateLog(place, _region(run), run.run_id, _FIRST_REGION)


def _own_regions(directory: Path) -> RegionPlace:
    """Return the regions in a run's directory."""
    return _DIRECTORY_REGIONS.load()(directory)


def _region(run: Registration) -> str:
    """Return the name of the run's regions; the id keeps runs of different users apart on a shared store."""
    return f"run-{run.id}"


def _info(name: str) -> RunInfo:
    """Return the entry of a run in the list, whatever its condition."""
    try:
        found = registration(name)
        directory = run_directory.existing(name)
        status: Literal["running", "stopped"] = "stopped"
        records: list[bytes] = []
        if not (directory / _RESULT).exists():
            status = "running" if run_directory.is_locked(directory) else "stopped"
            try:
                records = _records(found, directory)
            except FastompError:
                if not (directory / _RESULT).exists():
                    raise
        asked = found.request
        k, ridge = asked.get("k"), asked.get("ridge")
        objective = recorded_identity(records).get("objective") or asked.get("objective")
        now = recorded_progress(records)
        info = RunInfo(
            name,
            status,
            store=found.store,
            algorithm=str(asked.get("algorithm")),
            objective=str(objective),
            k=k if isinstance(k, int) else None,
            rounds=now.round,
            selected=now.selected,
            score=score_so_far(str(objective), float(ridge) if isinstance(ridge, (int, float)) else None, now.value),
            seconds=now.seconds,
            created=found.created,
        )
        # Checked again: a run that finished meanwhile has dropped its log.
        if not (directory / _RESULT).exists():
            return info
        result = _read_result(directory)
        return replace(
            info,
            status="finished",
            objective=result.objective,
            rounds=result.gradient_rounds,
            selected=len(result.indices),
            score=result.score,
            seconds=result.seconds,
        )
    except FastompError as error:
        return RunInfo(name, "damaged", detail=str(error))


def _records(run: Registration, directory: Path) -> list[bytes]:
    """Return the records of an unfinished run."""
    if own := _read_records(_own_regions(directory), run):
        return own
    with open_store(run.store) as store:
        return _read_records(store, run)


def _read_records(place: RegionPlace, run: Registration) -> list[bytes]:
    """Return the records of a run that another process may be appending to."""
    for _ in range(_READ_ATTEMPTS - 1):
        with contextlib.suppress(FastompError):  # a slow reader can see both slots half written, or no region
            return list(read_state(place, _region(run), run.run_id).records)
    return list(read_state(place, _region(run), run.run_id).records)


def _read_result(directory: Path) -> Selection:
    """Return the result of a finished run."""
    try:
        content = unseal("fastomp-result", (directory / _RESULT).read_bytes())
        return decode_selection({**content, "json": content["result"]})
    except (OSError, FastompError, KeyError, TypeError, ValueError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"the result {directory / _RESULT} cannot be used: {reason}; forget the run") from error


def _remove(run: Registration, store: FeatureStore, directory: Path) -> None:
    """Remove a run: its registration first, so that no run without a log remains."""
    run_directory.remove(directory)
    with contextlib.suppress(FastompError):  # a log left in a store that cannot be written only takes room
        _drop_logs(run, store)


def _drop_logs(run: Registration, *places: RegionPlace) -> None:
    """Remove the logs of a run."""
    for place in places:
        drop_log(place, _region(run))
