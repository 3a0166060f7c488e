"""What commands that build stores do about SIGTERM."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["terminating_cleanly"]


@contextmanager
def terminating_cleanly() -> Iterator[None]:
    """End on SIGTERM as on Ctrl-C, by way of every ``finally``: a draft of a store is then removed. The exit code is 143."""
    if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
