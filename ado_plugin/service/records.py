"""The records of a server's jobs and uploads: small JSON files, each replaced atomically, from which the next server continues.

The folders belong to one server at a time, and no client chooses a path in them. Knows neither scheduling nor builders nor pools.

A job has three files: the request, written once before the job is acknowledged; the state, at every change; the answer, before the
state says that there is one. An upload has three too: the plan, written before the upload is acknowledged; a line per tile, written
after the tile; the report, written just before the store becomes visible. Lines are not flushed one by one: they are claims, and a
server that continues an upload checks each against the bytes it describes.

Every record carries a checksum. A record that does not match it is moved to the folder ``damaged`` together with the other records
of its job or upload, where an operator finds them; none of them is used again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastomp_nvm.durable_files import device_errors, write_atomically
from fastomp_nvm.errors import MediumError, StoreError
from fastomp_nvm.runs.sealed import seal, unseal

__all__ = ["JobRecords", "TileLog", "UploadRecords"]

_REQUEST, _STATE, _ANSWER = "request.json", "state.json", "answer.json"
_PLAN, _REPORT, _TILES = "plan.json", "report.json", "tiles"

_log = logging.getLogger(__name__)


class _Records:
    """Records by name and kind, each sealed with a checksum.

    Parameters
    ----------
    folder : Path
        Created with mode 0700 when absent.

    Attributes
    ----------
    kinds : tuple of str
        Ends of file names. A record of the first kind is there for as long as any other.
    """

    kinds: tuple[str, ...]

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        for partial in folder.glob(".*.partial*"):  # of a server that was killed
            partial.unlink()

    def size(self, name: str) -> int:
        """Return the bytes of all records of a name."""
        return sum(path.stat().st_size for path in self._paths(name) if path.exists())

    def remove(self, name: str) -> None:
        """Remove all records of a name, that of the first kind last."""
        for path in reversed(self._paths(name)):
            path.unlink(missing_ok=True)

    def _paths(self, name: str) -> list[Path]:
        """Return the files of a name, one per kind."""
        return [self._folder / f"{name}.{kind}" for kind in self.kinds]

    def _names(self) -> list[str]:
        """Return the names that have records, in order."""
        return sorted(path.name.removesuffix(f".{self.kinds[0]}") for path in self._folder.glob(f"[!.]*.{self.kinds[0]}"))

    def _write(self, name: str, kind: str, content: Mapping[str, Any], *, durable: bool = True) -> None:
        """Replace a record atomically; a ``durable`` one survives a loss of power from then on."""
        with device_errors(f"write the record {name}.{kind}"):
            write_atomically(self._folder / f"{name}.{kind}", seal(f"{name}.{kind}", {"record": dict(content)}), durable=durable)

    def require_whole(self, name: str) -> None:
        """Raise ``StoreError`` if records of this name were damaged and set aside."""
        if any((self._damaged / path.name).exists() for path in self._paths(name)):
            raise StoreError(
                f"the records of {name!r} on the server are damaged and were set aside: send it again under another name"
            )

    @property
    def _damaged(self) -> Path:
        """The folder of damaged records."""
        return self._folder / "damaged"

    def _read(self, name: str, kind: str) -> dict[str, Any]:
        """Return a record; ``StoreError`` if it is damaged."""
        self.require_whole(name)
        try:
            data = (self._folder / f"{name}.{kind}").read_bytes()
        except OSError as error:
            raise MediumError(f"cannot read the record {name}.{kind}: {error}") from error
        content: Any
        try:
            content = unseal(f"{name}.{kind}", data)["record"]
        except StoreError as error:
            if (content := _of_older_release(data)) is not None:
                return dict(content)
            _log.error("a record is damaged and was set aside", extra={"record": f"{name}.{kind}", "reason": str(error)})
            self._set_aside(name)
            self.require_whole(name)
            raise
        return dict(content)

    def _set_aside(self, name: str) -> None:
        """Move all records of a name to the folder of damaged ones."""
        with device_errors(f"set the records of {name} aside"):
            self._damaged.mkdir(mode=0o700, exist_ok=True)
            for path in self._paths(name):
                with contextlib.suppress(FileNotFoundError):
                    path.replace(self._damaged / path.name)


def _of_older_release(data: bytes) -> dict[str, Any] | None:
    """Return a record that was written before records had checksums, or None."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and not {"crc32", "body"} & set(content) else None


class JobRecords(_Records):
    """The records of all jobs."""

    kinds = (_REQUEST, _STATE, _ANSWER)
    _trouble: str | None = None

    def write_request(self, name: str, request: Mapping[str, Any]) -> None:
        """Write the request of a job."""
        self._write(name, _REQUEST, request)

    def write_state(self, name: str, state: Mapping[str, Any]) -> None:
        """Write the state of a job."""
        self._write(name, _STATE, state)

    def write_answer(self, name: str, answer: Mapping[str, Any]) -> None:
        """Write the answer of a job."""
        self._write(name, _ANSWER, answer)

    def request(self, name: str) -> dict[str, Any]:
        """Return the request of a job."""
        return self._read(name, _REQUEST)

    def answer(self, name: str) -> dict[str, Any]:
        """Return the answer of a job that is done."""
        return self._read(name, _ANSWER)

    def load(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Yield the name, request and state of every job; log and skip a job whose records cannot be read."""
        for name in self._names():
            try:
                yield name, self._read(name, _REQUEST), self._read(name, _STATE)
            except (MediumError, StoreError) as error:
                _log.error("a job cannot be recovered", extra={"job": name, "reason": str(error)})

    def trouble(self) -> str | None:
        """Return the reason why records cannot be written, without names, or None; after a failure a small record is tried."""
        if self._trouble is not None:
            with contextlib.suppress(MediumError):
                self._write("probe", "json", {})
        return self._trouble

    def _write(self, name: str, kind: str, content: Mapping[str, Any], *, durable: bool = True) -> None:
        """Write a record and remember whether that was possible."""
        try:
            super()._write(name, kind, content, durable=durable)
        except MediumError as error:
            reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else None
            self._trouble = f"job records cannot be written: {reason or 'unknown reason'}"
            raise
        self._trouble = None


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


class UploadRecords(_Records):
    """The records of all uploads."""

    kinds = (_PLAN, _REPORT, _TILES)

    def write_plan(self, name: str, owner: str, plan: Mapping[str, Any], folder: str) -> None:
        """Write the plan of an upload, as its client sent it, and the directory in the pool in which its store is built."""
        record = {"owner": owner, "plan": plan, "folder": folder}
        self._write(name, _PLAN, record, durable=False)  # an upload lost with the power is sent again

    def write_report(self, name: str, report: Mapping[str, Any]) -> None:
        """Write the report of an upload."""
        self._write(name, _REPORT, report)

    def tiles(self, name: str) -> TileLog:
        """Open the lines of an upload."""
        return TileLog(self._folder / f"{name}.{_TILES}")

    def names(self) -> list[str]:
        """Return the names of all uploads, the oldest first."""
        return sorted(self._names(), key=lambda name: self._paths(name)[0].stat().st_mtime)

    def plan(self, name: str) -> dict[str, Any]:
        """Return what ``write_plan`` wrote: owner, plan and folder."""
        return self._read(name, _PLAN)

    def report(self, name: str) -> dict[str, Any] | None:
        """Return the report of an upload; None if it was not about to be published."""
        return self._read(name, _REPORT) if self._paths(name)[1].exists() else None
