"""A folder of small JSON records, each replaced in one step. It belongs to the server alone."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastomp_nvm.errors import MediumError

__all__ = ["RecordFolder"]


class RecordFolder:
    """Records by file name.

    Parameters
    ----------
    folder : Path
        Created when absent; nobody else's business (0700).
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def write(self, name: str, content: Mapping[str, Any], *, durable: bool = True) -> None:
        """Replace a record in one step; ``durable`` ones are on the device then and outlive a loss of power, too."""
        path, partial = self.path / name, self.path / f".{name}.partial"
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:
                json.dump(content, file, separators=(",", ":"))
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(partial, path)
            if not durable:
                return
            directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise MediumError(f"the record {name} cannot be written: {error.strerror}") from error

    def read(self, name: str) -> dict[str, Any]:
        """Return a record."""
        try:
            content: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise MediumError(f"the record {name} cannot be read ({error})") from error
        return content

    def size(self, *names: str) -> int:
        """Return the bytes of those records that are there."""
        total = 0
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(self.path / name).st_size
        return total

    def remove(self, *names: str) -> None:
        """Remove records where they are."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path / name)
