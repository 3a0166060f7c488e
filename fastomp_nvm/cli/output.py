"""Progress of commands on stderr, the option ``--progress``, and text for people."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.selection.progress import MODES, Mode, Tracker, displayed
from fastomp_nvm.selection.text import clean, human_bytes, human_seconds

__all__ = ["add_progress_argument", "byte_progress", "clean", "human_bytes", "human_seconds", "run_progress"]


def add_progress_argument(parser: argparse.ArgumentParser) -> None:
    """Declare how progress is shown."""
    parser.add_argument(
        "--progress",
        choices=MODES,
        help="how to show progress on stderr: a bar (default in a terminal), a line every 30 s (default elsewhere), "
        "a JSON object per line, or none",
    )


@contextmanager
def byte_progress(label: str, mode: Mode | None = None) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of bytes; yields ``show(done, total)``."""
    tracker = Tracker(label)
    with displayed(tracker, mode):
        yield tracker.count


@contextmanager
def run_progress(label: str, mode: Mode | None = None) -> Iterator[Observer | None]:
    """Show the progress of selections; yields their observer, None where nothing is shown."""
    tracker = Tracker(label)
    with displayed(tracker, mode):
        yield None if mode == "none" else tracker.observe
