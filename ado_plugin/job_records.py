"""Jobs on disk: what was asked, how it stands, what came out, such that a killed server finds all of it again.

Three files per job, each replaced in one step: the request is written once before the job is acknowledged, the state at every
change, the answer before the state says that there is one. The folder belongs to the server alone; nothing in it is a client's
path. Knows nothing of scheduling.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def write_request(self, name: str, request: Mapping[str, Any]) -> None:
        """Keep what was asked."""
        self._write(name + _REQUEST, request)

    def write_state(self, name: str, state: Mapping[str, Any]) -> None:
        """Keep how a job stands."""
        self._write(name + _STATE, state)

    def write_answer(self, name: str, answer: Mapping[str, Any]) -> None:
        """Keep what came out."""
        self._write(name + _ANSWER, answer)

    def answer(self, name: str) -> dict[str, Any]:
        """Return what came out of a job that is done."""
        return self._read(name + _ANSWER)

    def load(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Yield the name, request and state of every job; one whose records cannot be read is passed over, loudly."""
        for path in sorted(self._folder.glob(f"*{_REQUEST}")):
            name = path.name[: -len(_REQUEST)]
            try:
                yield name, self._read(path.name), self._read(name + _STATE)
            except MediumError as error:
                _log.error("a job cannot be recovered", extra={"job": name, "reason": str(error)})

    def remove(self, name: str) -> None:
        """Forget a job."""
        for suffix in (_ANSWER, _STATE, _REQUEST):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._folder / (name + suffix))

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace a file in one step and bring it to the device."""
        path, partial = self._folder / name, self._folder / f".{name}.partial"
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:
                json.dump(content, file, separators=(",", ":"))
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            directory = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise MediumError(f"the record of a job cannot be written: {error.strerror}") from error

    def _read(self, name: str) -> dict[str, Any]:
        """Return the content of a file."""
        try:
            content: dict[str, Any] = json.loads((self._folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise MediumError(f"the record {name} cannot be read ({error})") from error
        return content
