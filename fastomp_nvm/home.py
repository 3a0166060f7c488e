"""The user's folder for runs, logs, caches and tokens."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["home", "local_token_file"]


def home() -> Path:
    """Return ``FASTOMP_HOME`` (default ``~/.fastomp``), created with mode 0700 when absent."""
    folder = Path(os.environ.get("FASTOMP_HOME") or Path.home() / ".fastomp")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def local_token_file(port: int) -> Path:
    """Return the file of the token with which clients of the same user reach a server on this loopback port."""
    folder = home() / "tokens"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"loopback-{port}"
