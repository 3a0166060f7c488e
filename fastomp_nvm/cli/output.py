"""Numbers, names and progress as text for people. Progress goes to stderr, and only to a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn, TransferSpeedColumn

from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.engine.engine import Progress as RunProgress

__all__ = ["byte_progress", "clean", "human_bytes", "human_seconds", "run_progress"]


def clean(text: str, longest: int | None = 60) -> str:
    """Return ``text`` fit for a terminal: control characters replaced, shortened in the middle to ``longest`` characters."""
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    if longest is None or len(shown) <= longest:
        return shown
    half = (longest - 3) // 2
    return f"{shown[:half]}...{shown[-half:]}"


def human_bytes(size: float) -> str:
    """Return a size in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"


def human_seconds(seconds: float) -> str:
    """Return a duration."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


@contextmanager
def byte_progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with rate and time left; yields ``show(done, total)``."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    bar = (TextColumn("{task.description}"), BarColumn(), TransferSpeedColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*bar, console=console, transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def run_progress(label: str) -> Iterator[Observer | None]:
    """Show the progress of a selection: round, features, score, bytes, time left; yields its observer, None off a terminal."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield None
        return
    bar = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*bar, console=console, transient=True) as progress:
        task = progress.add_task(label, total=None, state="")

        def observe(step: RunProgress) -> None:
            left = step.seconds_left
            state = (
                f"round {step.round}, {step.selected} of at most {step.target} features, f = {step.value:.4g}, "
                f"{human_bytes(step.bytes_read)} read, {human_seconds(step.seconds)}"
                + (f", about {human_seconds(left)} left" if left is not None else "")
                + (f", shards {' '.join(f'{share:.0%}' for share in step.shards)}" if step.shards else "")
            )
            progress.update(task, completed=step.selected, total=step.target, state=state)

        yield observe
