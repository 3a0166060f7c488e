"""The records of a server's jobs and uploads: small JSON files, each replaced atomically, from which the next server continues.

The folders belong to one server at a time, and no client chooses a path in them. Knows neither scheduling nor builders nor pools.

A job has three files: the request, written once before the job is acknowledged; the state, at every change; the answer, before the
state says that there is one. An upload has three too: the plan, written before the upload is acknowledged; a line per tile, written
after the tile; the report, written just before the store becomes visible. Lines are not flushed one by one: they are claims, and a
server that continues an upload checks each against the bytes it describes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastomp_nvm.durable_files import device_errors, write_atomically
from fastomp_nvm.errors import MediumError

__all__ = ["JobRecords", "TileLog", "UploadRecord", "UploadRecords"]

_REQUEST, _STATE, _ANSWER = ".request.json", ".state.json", ".answer.json"
_PLAN, _TILES, _REPORT = ".plan.json", ".tiles", ".report.json"

_log = logging.getLogger(__name__)


class _Folder:
    """JSON records by file name, in a folder that is created with mode 0700 when absent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, exist_ok=True)
        for partial in path.glob(".*.partial*"):  # of a server that was killed
            partial.unlink()

    def write(self, name: str, content: Mapping[str, Any], *, durable: bool = True) -> None:
        """Replace a record atomically; a ``durable`` one survives a loss of power from then on."""
        with device_errors(f"write the record {name}"):
            write_atomically(self.path / name, json.dumps(content, separators=(",", ":")).encode(), durable=durable)

    def read(self, name: str) -> dict[str, Any]:
        """Return a record."""
        try:
            content: dict[str, Any] = json.loads((self.path / name).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise MediumError(f"cannot read the record {name}: {error}") from error
        return content

    def names(self, suffix: str) -> list[str]:
        """Return the names that have a record with this suffix, in order."""
        return sorted(path.name.removesuffix(suffix) for path in self.path.glob(f"[!.]*{suffix}"))

    def size(self, *names: str) -> int:
        """Return the bytes of the records that exist."""
        total = 0
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(self.path / name).st_size
        return total

    def remove(self, *names: str) -> None:
        """Remove the records that exist."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)


class JobRecords:
    """The records of all jobs.

    Parameters
    ----------
    folder : Path
        Created with mode 0700 when absent.
    """

    def __init__(self, folder: Path) -> None:
        self._files = _Folder(folder)
        self._trouble: str | None = None

    def write_request(self, name: str, request: Mapping[str, Any]) -> None:
        """Write the request of a job."""
        self._write(name + _REQUEST, request)

    def write_state(self, name: str, state: Mapping[str, Any]) -> None:
        """Write the state of a job."""
        self._write(name + _STATE, state)

    def write_answer(self, name: str, answer: Mapping[str, Any]) -> None:
        """Write the answer of a job."""
        self._write(name + _ANSWER, answer)

    def request(self, name: str) -> dict[str, Any]:
        """Return the request of a job."""
        return self._files.read(name + _REQUEST)

    def answer(self, name: str) -> dict[str, Any]:
        """Return the answer of a job that is done."""
        return self._files.read(name + _ANSWER)

    def load(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Yield the name, request and state of every job; log and skip a job whose records cannot be read."""
        for name in self._files.names(_REQUEST):
            try:
                yield name, self._files.read(name + _REQUEST), self._files.read(name + _STATE)
            except MediumError as error:
                _log.error("a job cannot be recovered", extra={"job": name, "reason": str(error)})

    def size(self, name: str) -> int:
        """Return the bytes of a job's records."""
        return self._files.size(name + _ANSWER, name + _STATE, name + _REQUEST)

    def remove(self, name: str) -> None:
        """Remove the records of a job."""
        self._files.remove(name + _ANSWER, name + _STATE, name + _REQUEST)

    def trouble(self) -> str | None:
        """Return the reason why records cannot be written, without names, or None; after a failure a small record is tried."""
        if self._trouble is not None:
            with contextlib.suppress(MediumError):
                self._write("probe.json", {})
        return self._trouble

    def _write(self, file_name: str, content: Mapping[str, Any]) -> None:
        """Write a record and remember whether that was possible."""
        try:
            self._files.write(file_name, content)
        except MediumError as error:
            reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else None
            self._trouble = f"job records cannot be written: {reason or 'unknown reason'}"
            raise
        self._trouble = None


@dataclass(frozen=True, slots=True, eq=False)
class UploadRecord:
    """An upload of an earlier server.

    Attributes
    ----------
    name, owner : str
    plan : mapping
        The body of the client's ``put``.
    folder : str
        Directory in the pool in which the store is being built.
    report : mapping or None
        The report, if the store was published or about to be.
    """

    name: str
    owner: str
    plan: Mapping[str, Any]
    folder: str
    report: Mapping[str, Any] | None


class TileLog:
    """The lines of one upload, one per tile.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with device_errors("open the record of an upload"):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def append(self, fields: Sequence[int | str]) -> None:
        """Write the line of a tile that was written."""
        with device_errors("write the record of an upload"):
            os.write(self._file, json.dumps(fields, separators=(",", ":")).encode() + b"\n")

    def lines(self) -> Iterator[list[Any]]:
        """Yield the lines, up to the first that is incomplete."""
        with open(self._path, "rb") as file:
            for line in file:
                try:
                    fields = json.loads(line)
                except (ValueError, RecursionError):
                    return
                if not line.endswith(b"\n") or not isinstance(fields, list):
                    return
                yield fields

    def cut(self, count: int) -> None:
        """Keep the first ``count`` lines only."""
        with open(self._path, "rb") as file:
            os.ftruncate(self._file, sum(len(file.readline()) for _ in range(count)))

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            os.close(self._file)


class UploadRecords:
    """The records of all uploads.

    Parameters
    ----------
    folder : Path
        Created with mode 0700 when absent.
    """

    def __init__(self, folder: Path) -> None:
        self._files = _Folder(folder)

    def write_plan(self, name: str, owner: str, plan: Mapping[str, Any], folder: str) -> None:
        """Write the plan of an upload and the directory in which its store is built."""
        record = {"owner": owner, "plan": plan, "folder": folder}
        self._files.write(name + _PLAN, record, durable=False)  # an upload lost with the power is sent again

    def write_report(self, name: str, report: Mapping[str, Any]) -> None:
        """Write the report of an upload."""
        self._files.write(name + _REPORT, report)

    def tiles(self, name: str) -> TileLog:
        """Open the lines of an upload."""
        return TileLog(self._files.path / (name + _TILES))

    def load(self) -> Iterator[UploadRecord]:
        """Yield every upload, the oldest first; log and remove an upload whose records cannot be read."""
        names = self._files.names(_PLAN)
        for name in sorted(names, key=lambda name: os.stat(self._files.path / (name + _PLAN)).st_mtime):
            try:
                kept = self._files.read(name + _PLAN)
                report = self._files.read(name + _REPORT) if (self._files.path / (name + _REPORT)).exists() else None
                yield UploadRecord(name, kept["owner"], kept["plan"], kept["folder"], report)
            except (MediumError, KeyError, TypeError) as error:
                _log.error("an upload cannot be recovered", extra={"upload": name, "reason": str(error)})
                self.remove(name)

    def remove(self, name: str) -> None:
        """Remove the records of an upload."""
        self._files.remove(name + _TILES, name + _REPORT, name + _PLAN)
