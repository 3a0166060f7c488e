"""Uploads on disk: what a killed server needs to go on with them, and to know those that it had published.

Per upload: the plan, written before it is acknowledged; a line per tile, written after it; the report, written just before the
store becomes visible. Lines are not brought to the device one by one: they are claims, and whoever goes on with an upload checks
each against the bytes that it speaks of. Knows neither builders nor pools.
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

from ado_plugin.service.record_folder import RecordFolder
from fastomp_nvm.errors import MediumError

__all__ = ["TileLog", "UploadRecord", "UploadRecords"]

_PLAN, _TILES, _REPORT = ".plan.json", ".tiles", ".report.json"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class UploadRecord:
    """One upload as it was left.

    Attributes
    ----------
    name, owner : str
    plan : mapping
        What ``put`` was sent.
    folder : str
        Where in its pool the store is being built.
    report : mapping or None
        What became of it, if it was about to be published or was.
    """

    name: str
    owner: str
    plan: Mapping[str, Any]
    folder: str
    report: Mapping[str, Any] | None


class TileLog:
    """The lines of one upload.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise MediumError(f"the record of an upload cannot be opened: {error.strerror}") from error

    def append(self, fields: Sequence[int | str]) -> None:
        """Note a tile that was written."""
        try:
            os.write(self._file, json.dumps(fields, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise MediumError(f"the record of an upload cannot be written: {error.strerror}") from error

    def lines(self) -> Iterator[list[Any]]:
        """Yield what was noted, up to the first line that is torn."""
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
        Created when absent; nobody else's business (0700).
    """

    def __init__(self, folder: Path) -> None:
        self._files = RecordFolder(folder)

    def write_plan(self, name: str, owner: str, plan: Mapping[str, Any], folder: str) -> None:
        """Keep what is going to be uploaded, and where."""
        record = {"owner": owner, "plan": plan, "folder": folder}
        self._files.write(name + _PLAN, record, durable=False)  # one that is lost with the power is an upload to send again

    def write_report(self, name: str, report: Mapping[str, Any]) -> None:
        """Keep what becomes of an upload."""
        self._files.write(name + _REPORT, report)

    def tiles(self, name: str) -> TileLog:
        """Open the lines of an upload."""
        return TileLog(self._files.path / (name + _TILES))

    def load(self) -> Iterator[UploadRecord]:
        """Yield every upload, the oldest first; one whose records cannot be read is forgotten, loudly."""
        plans = sorted(self._files.path.glob(f"*{_PLAN}"), key=lambda path: path.stat().st_mtime)
        for path in plans:
            name = path.name[: -len(_PLAN)]
            try:
                kept = self._files.read(path.name)
                report = self._files.read(name + _REPORT) if (self._files.path / (name + _REPORT)).exists() else None
                yield UploadRecord(name, kept["owner"], kept["plan"], kept["folder"], report)
            except (MediumError, KeyError, TypeError) as error:
                _log.error("an upload cannot be recovered", extra={"upload": name, "reason": str(error)})
                self.remove(name)

    def remove(self, name: str) -> None:
        """Forget an upload."""
        self._files.remove(name + _TILES, name + _REPORT, name + _PLAN)
