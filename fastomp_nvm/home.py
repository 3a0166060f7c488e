"""The folder of this user's runs, logs, caches and tokens."""

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
    """Return where a server on this port of the loopback interface keeps the token for clients of the same user."""
    folder = home() / "tokens"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"loopback-{port}"
