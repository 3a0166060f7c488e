"""SIGTERM in commands that build stores."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["terminating_cleanly"]


@contextmanager
def terminating_cleanly() -> Iterator[None]:
    """End on SIGTERM through every ``finally``, as on Ctrl-C, so that drafts of stores are removed; the exit code is 143."""
    if threading.current_thread() is not threading.main_thread():  # handlers can only be set there
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
