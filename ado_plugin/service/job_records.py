"""Jobs on disk: what was asked, how it stands, what came out, such that a killed server finds all of it again.

Three files per job, each replaced in one step: the request is written once before the job is acknowledged, the state at every
change, the answer before the state says that there is one. The folder belongs to the server alone; nothing in it is a client's
path. Knows nothing of scheduling.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ado_plugin.service.record_folder import RecordFolder
from fastomp_nvm.errors import MediumError

__all__ = ["JobRecords"]

_REQUEST, _STATE, _ANSWER = ".request.json", ".state.json", ".answer.json"

_log = logging.getLogger(__name__)


class JobRecords:
    """The records of all jobs.

    Parameters
    ----------
    folder : Path
        Created when absent; nobody else's business (0700).
    """

    def __init__(self, folder: Path) -> None:
        self._files = RecordFolder(folder)
        self._trouble: str | None = None

    def write_request(self, name: str, request: Mapping[str, Any]) -> None:
        """Keep what was asked."""
        self._write(name + _REQUEST, request)

    def write_state(self, name: str, state: Mapping[str, Any]) -> None:
        """Keep how a job stands."""
        self._write(name + _STATE, state)

    def write_answer(self, name: str, answer: Mapping[str, Any]) -> None:
        """Keep what came out."""
        self._write(name + _ANSWER, answer)

    def request(self, name: str) -> dict[str, Any]:
        """Return what was asked."""
        return self._files.read(name + _REQUEST)

    def answer(self, name: str) -> dict[str, Any]:
        """Return what came out of a job that is done."""
        return self._files.read(name + _ANSWER)

    def load(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Yield the name, request and state of every job; one whose records cannot be read is passed over, loudly."""
        for path in sorted(self._files.path.glob(f"*{_REQUEST}")):
            name = path.name[: -len(_REQUEST)]
            try:
                yield name, self._files.read(path.name), self._files.read(name + _STATE)
            except MediumError as error:
                _log.error("a job cannot be recovered", extra={"job": name, "reason": str(error)})

    def size(self, name: str) -> int:
        """Return the bytes that the records of a job take."""
        return self._files.size(name + _ANSWER, name + _STATE, name + _REQUEST)

    def remove(self, name: str) -> None:
        """Forget a job."""
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
