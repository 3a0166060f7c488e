"""Durable runs: registered by name before the first sweep, resumed after any crash, finished results kept.

A run has a directory ``runs/NAME`` under ``FASTOMP_HOME``:

::

    run.json       the registration; the directory appears under its name with it, at once and durably
    result.json    the result; with it the run is finished
    builds.json    the other numeric builds that had a part in it, where there are any
    run-ID.N.bin   the state, where the store cannot be written; otherwise it is a region of the store

Invariants: a run is driven by one process, which holds a lock on the directory that the kernel releases when that process ends,
however it ends. A run goes on only with the store, the request, the format and the numeric build it was registered with; what
differs is named. Whatever the moment of a crash, ``resume`` comes to the result of the uninterrupted run, bit for bit, counters
included; only ``seconds`` is what all processes together spent.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.engine.identity import numeric_build, target_digest
from fastomp_nvm.errors import FastompError, InputError, MediumError, RequestError, StoreError
from fastomp_nvm.matrix.kernels import kernel
from fastomp_nvm.matrix.pool import automatic_budget
from fastomp_nvm.registry import Lazy
from fastomp_nvm.runs import directory as run_directory
from fastomp_nvm.runs.journal import DecisionJournal, Standing, standing
from fastomp_nvm.runs.log import PAGE, RegionPlace, StateLog, read_state
from fastomp_nvm.runs.registration import ConstraintFile, Registration, describe_request, describe_response, seal, unseal
from fastomp_nvm.selection.codec import decode_selection, encode_selection
from fastomp_nvm.selection.request import make_request
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.select import select_shared
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.open import open_store

__all__ = ["RunInfo", "forget", "list_runs", "registration", "resume", "start"]

#: Durable regions in a directory of their own.
_DIRECTORY_REGIONS: Lazy[Callable[[Path], RegionPlace]] = Lazy("storage_backends.files.regions:DirectoryRegions")

_REGISTRATION = "run.json"
_RESULT = "result.json"
_BUILDS = "builds.json"
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_READ_ATTEMPTS = 5
_FIRST_REGION = 512 * PAGE  # bytes; a log that outgrows it moves, which few runs should have to wait for


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One line of the list of runs.

    Attributes
    ----------
    name : str
    status : {"running", "stopped", "finished", "damaged"}
        ``stopped`` runs can be resumed.
    store, algorithm, objective : str
    k : int, optional
    rounds, selected : int
        Queries answered, features selected by then.
    value : float
        f of them.
    seconds : float
        Spent so far.
    created : str
        ISO 8601.
    detail : str
        Why a run is damaged; else empty.
    """

    name: str
    status: Literal["running", "stopped", "finished", "damaged"]
    store: str = ""
    algorithm: str = ""
    objective: str = ""
    k: int | None = None
    rounds: int = 0
    selected: int = 0
    value: float = 0.0
    seconds: float = 0.0
    created: str = ""
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``runs --json`` prints."""
        return asdict(self)


def start(
    name: str,
    data: FeatureStore | str,
    y: Any = None,
    *,
    constraint_file: Path | None = None,
    load: Literal["dram", "tier"] | None = None,
    verify: bool = False,
    threads: int | None = None,
    observer: Observer | None = None,
    cancelled: Callable[[], bool] | None = None,
    **request: Any,
) -> Selection:
    """Register a run and drive it to its result.

    Parameters
    ----------
    name : str
        Up to 100 letters, digits, ``_``, ``-`` and ``.``; not used before.
    data : FeatureStore or store URL
    y : (n_obs,) array, optional
        The response; the store's target when left out. Kept with the run.
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
    run_directory.check_name(name)
    if not isinstance(data, (str, FeatureStore)):
        raise RequestError("a durable run needs a store, which another process can open again: build one with create_store")
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(open_store(data)) if isinstance(data, str) else data
        if store.traits.durability == "none":
            raise RequestError(f"{store.url} is gone with this process, so a run on it cannot be durable: use a store in a file")
        dataset = Dataset.of_store(store)
        file = None if constraint_file is None else ConstraintFile.read(constraint_file, dataset)
        asked = make_request(request)
        if asked.gather_bytes is None:  # counters include what is re-read, which must not depend on the memory free at resume
            asked = replace(asked, gather_bytes=automatic_budget(8 * len(dataset.matrix) * dataset.n_obs))
        new = Registration(
            name=name,
            id=secrets.token_hex(16),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            store=store.url,
            fingerprint=store.layout.fingerprint,
            targets=target_digest(dataset),
            request=describe_request(asked),
            response=describe_response(y),
            constraint=file,
            load=load,
            verify=verify,
            build=numeric_build(kernel().id),
        )
        directory = stack.enter_context(run_directory.registered(name, _REGISTRATION, new.to_bytes()))
        try:
            return _drive(new, store, directory, other_build=False, threads=threads, observer=observer, cancelled=cancelled)
        except InputError:
            # The request does not fit the data: no run came of it, and the name is free again.
            _remove(new, store, directory)
            raise


def resume(
    name: str,
    *,
    other_build: bool = False,
    threads: int | None = None,
    observer: Observer | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Selection:
    """Go on with a run where it stopped, or return the result of a finished one.

    Parameters
    ----------
    name : str
    other_build : bool
        Go on although kernel, BLAS, NumPy or block size are not those the run was started with; the result says so.
    threads, observer, cancelled
        As for ``select``.

    Returns
    -------
    Selection
    """
    directory = run_directory.existing(name)
    if (directory / _RESULT).exists():
        return _read_result(directory)[0]
    with run_directory.locked(directory, name):
        if (directory / _RESULT).exists():
            return _read_result(directory)[0]
        found = registration(name)
        with open_store(found.store) as store:
            return _drive(found, store, directory, other_build=other_build, threads=threads, observer=observer, cancelled=cancelled)


def list_runs() -> list[RunInfo]:
    """Return all runs with their progress, by name."""
    return [_info(name) for name in run_directory.names()]


def registration(name: str) -> Registration:
    """Return what the run ``name`` is."""
    directory = run_directory.existing(name)
    try:
        return Registration.from_bytes((directory / _REGISTRATION).read_bytes())
    except (OSError, StoreError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"the registration {directory / _REGISTRATION} cannot be used: {reason}; forget the run") from error


def forget(name: str) -> None:
    """Remove a run with its state and its result; its name is free again."""
    directory = run_directory.existing(name)
    with run_directory.locked(directory, name):
        try:
            found = registration(name)
            with open_store(found.store) as store:
                _remove(found, store, directory)
        except FastompError:  # neither a lost store nor a damaged registration keeps the name
            run_directory.remove(directory)


def _drive(run: Registration, store: FeatureStore, directory: Path, *, other_build: bool, **options: Any) -> Selection:
    """Bring a run to its result from wherever it stands, with options of ``select``; the lock is held."""
    dataset = Dataset.of_store(store)
    build = numeric_build(kernel().id)
    _check_identity(run, dataset, build, other_build=other_build)
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
        # Before its first record: whoever finishes the run must be able to say so.
        others.append(build)
        run_directory.write_durably(directory, _BUILDS, seal("fastomp-builds", {"builds": others}))
    log = _open_log(run, store, directory)
    try:
        with contextlib.closing(DecisionJournal(log, run.identity(), other_build=other_build)) as journal:
            (selection,), _ = select_shared(dataset, [request], run.decoded_response(), journals=[journal], **options)
        phrases = dict.fromkeys(phrase for other in others for phrase in _differences(run.build, other))
        selection = replace(
            selection,
            verified=run.verify,
            seconds=selection.seconds + journal.seconds_before,
            other_build=list(phrases) if others else None,
        )
        run_directory.write_durably(directory, _RESULT, seal("fastomp-result", _result_content(selection, journal.rounds)))
        with contextlib.suppress(FastompError):  # the result is safe; a state left behind is only room taken
            log.drop()
            _drop_regions(run, store)  # of a store that could not be written for a while
    finally:
        log.close()
    return selection


def _check_identity(run: Registration, dataset: Dataset, build: Mapping[str, str], *, other_build: bool) -> None:
    """Refuse to go on with other data or another numeric build, saying what differs."""
    if dataset.fingerprint != run.fingerprint:
        raise StoreError(
            f"the store {run.store} holds another matrix (fingerprint {dataset.fingerprint[:16]}) than the run {run.name!r} was "
            f"started on ({run.fingerprint[:16]}): put the old store back or start a new run"
        )
    if target_digest(dataset) != run.targets:
        raise StoreError(f"the targets of the store {run.store} are not those the run {run.name!r} was started on: start a new run")
    if build != run.build and not other_build:
        raise StoreError(
            f"the run {run.name!r} was started with another numeric build ({'; '.join(_differences(run.build, build))}), "
            "under which bits may differ: resume it there, or go on with this one (--other-build, other_build=True)"
        )


def _differences(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return one phrase per part of the build that differs."""
    return [f"{part} {was.get(part)} then, {now.get(part)} now" for part in {**was, **now} if was.get(part) != now.get(part)]


def _other_builds(directory: Path) -> list[dict[str, str]]:
    """Return the numeric builds, other than that of its start, that had a part in a run."""
    try:
        builds: list[dict[str, str]] = unseal("fastomp-builds", (directory / _BUILDS).read_bytes())["builds"]
        if not (isinstance(builds, list) and all(isinstance(build, dict) for build in builds)):
            raise StoreError("it holds a field that is out of its domain")
    except FileNotFoundError:
        return []
    except (OSError, StoreError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"the list of builds {directory / _BUILDS} cannot be used: {reason}; forget the run") from error
    return builds


def _open_log(run: Registration, store: FeatureStore, directory: Path) -> StateLog:
    """Open the run's log: in the store, or in the run's directory from the moment on when the store could not be written."""
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
            copy.append(*kept)  # at once: a copy that was not finished is none, and is made again
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
    """Return where a run stands, whatever state it is in."""
    try:
        found = registration(name)
        directory = run_directory.existing(name)
        status: Literal["running", "stopped", "finished"] = "stopped"
        now = Standing()
        if not (directory / _RESULT).exists():
            status = "running" if run_directory.is_locked(directory) else "stopped"
            try:
                now = _standing(found, directory)
            except FastompError:
                if not (directory / _RESULT).exists():
                    raise
        # Looked for again: a run that finished meanwhile has dropped its state.
        if (directory / _RESULT).exists():
            result, rounds = _read_result(directory)
            status, now = "finished", Standing(rounds, len(result.indices), result.score, result.seconds)
        fields: dict[str, Any] = {field: found.request.get(field) for field in ("algorithm", "objective", "k")}
        return RunInfo(name, status, store=found.store, created=found.created, **fields, **asdict(now))
    except FastompError as error:
        return RunInfo(name, "damaged", detail=str(error))


def _standing(run: Registration, directory: Path) -> Standing:
    """Return where an unfinished run stands."""
    if own := _read_records(_own_regions(directory), run):
        return standing(own)
    with open_store(run.store) as store:
        return standing(_read_records(store, run))


def _read_records(place: RegionPlace, run: Registration) -> list[bytes]:
    """Return the records of a run that another process may be appending to."""
    for _ in range(_READ_ATTEMPTS - 1):
        with contextlib.suppress(FastompError):  # both slots can be seen half written, or a region be gone, if we are slow
            return list(read_state(place, _region(run), run.run_id).records)
    return list(read_state(place, _region(run), run.run_id).records)


def _result_content(selection: Selection, rounds: int) -> dict[str, Any]:
    """Return a selection as plain JSON, with what ``to_json`` leaves out."""
    encoded = encode_selection(selection)
    return {"rounds": rounds, "result": encoded.pop("json"), **encoded}


def _read_result(directory: Path) -> tuple[Selection, int]:
    """Return the result of a finished run and its rounds."""
    try:
        content = unseal("fastomp-result", (directory / _RESULT).read_bytes())
        return decode_selection({**content, "json": content["result"]}), int(content["rounds"])
    except (OSError, StoreError, KeyError, TypeError, ValueError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"the result {directory / _RESULT} cannot be used: {reason}; forget the run") from error


def _remove(run: Registration, store: FeatureStore, directory: Path) -> None:
    """Remove a run: its registration first, so that no run without a state remains."""
    run_directory.remove(directory)
    with contextlib.suppress(FastompError):  # in a store that cannot be written its state is only room taken
        _drop_regions(run, store)


def _drop_regions(run: Registration, store: FeatureStore) -> None:
    """Remove what a run left in the store."""
    for region in store.regions():
        if region.startswith(f"{_region(run)}."):
            store.drop_region(region)
