"""Progress of long work as a bar, as lines, as JSON and in a notebook: one account of all runs, the same for every command.

A :class:`Tracker` takes reports of runs or of bytes and sums them up; a thread draws it from time to time, so that a display
changes during a long pass too and the work itself never waits for a terminal.
"""

from __future__ import annotations

import contextvars
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal, TextIO, TypeAlias

from fastomp_nvm.arrays import JSONObject
from fastomp_nvm.engine.engine import Observer, Progress
from fastomp_nvm.selection.text import human_bytes, human_seconds

__all__ = ["MODES", "Mode", "Tracker", "displayed", "in_notebook", "watched"]

Mode: TypeAlias = Literal["bar", "lines", "json", "none"]

#: How progress may be shown.
MODES: tuple[Mode, ...] = ("bar", "lines", "json", "none")

#: Seconds between two changes of a bar, of a notebook's bar, between two JSON objects and between two lines.
BAR_SECONDS, NOTEBOOK_SECONDS, JSON_SECONDS, LINE_SECONDS = 0.1, 0.5, 1.0, 30.0

#: Seconds after which a notebook shows progress that was not asked for.
UNASKED_SECONDS = 2.0

#: Passes back to which the speed of a run is measured.
_PASSES = 3


class Tracker:
    """The progress of one piece of work: of runs that share their passes, or of bytes.

    Parameters
    ----------
    label : str
        Name of the work.

    Attributes
    ----------
    runs, runs_done : int
        Runs in all, and those that have ended.
    selected, target : int
        Features of all runs so far, and the largest possible number.
    value : float, optional
        The best f so far.
    sweep : int
        Passes begun.
    share : float
        Share of the pass in flight, or of the bytes, that is done.
    bytes_done : int
        Bytes read, or worked on.
    bytes_total : int, optional
        Bytes to work on, where that is known.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.runs = 1
        self.sweep, self.share = 0, 0.0
        self.bytes_done = 0
        self.bytes_total: int | None = None
        self._steps: dict[int, Progress] = {}
        self._history: dict[int, dict[int, int]] = {}  # run -> passes -> features selected after them
        self._began = time.monotonic()
        self._working = 0.0  # seconds that the bytes took, by the clock of the worker
        self._first = (0, 0.0)  # bytes and seconds at the first report: what was read before it took other seconds

    def observe(self, step: Progress) -> None:
        """Take a report of a run: an ``Observer``."""
        self.runs, self.sweep, self.share = step.runs, step.sweep, step.share
        self.bytes_done = max(self.bytes_done, step.bytes_read)
        self._working = step.seconds
        if not self._steps:
            self._first = step.bytes_read, step.seconds
        before = self._steps.get(step.run)
        if before is None or not before.ended or step.ended:
            self._steps[step.run] = step
        if not step.share:
            passes = self._history.setdefault(step.run, {})
            passes[step.sweep] = step.selected
            while len(passes) > _PASSES:
                del passes[next(iter(passes))]

    def count(self, done: int, total: int) -> None:
        """Take a report of ``done`` bytes of ``total``."""
        self.bytes_done, self.bytes_total, self._working = done, total, self.seconds
        self.share = min(done / total, 1.0) if total > 0 else 0.0

    @property
    def seconds(self) -> float:
        """Since the work began."""
        return time.monotonic() - self._began

    @property
    def runs_done(self) -> int:
        """Runs that have ended."""
        return sum(step.ended for step in list(self._steps.values()))

    @property
    def done(self) -> float:
        """Share of the work that is done: of the bytes, or of the features of all runs."""
        if self.bytes_total is not None or not self._steps:
            return self.share
        shares = (1.0 if step.ended else min(step.selected / max(step.target, 1), 0.99) for step in list(self._steps.values()))
        return sum(shares) / max(self.runs, 1)

    @property
    def rate(self) -> float | None:
        """Bytes per second, None before there are any."""
        read, seconds = self.bytes_done - self._first[0], self._working - self._first[1]
        return read / seconds if read > 0 and seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Estimate, or None where there is no ground for one.

        Runs share their passes, so the slowest run counts: the features it lacks, at its speed over the last passes.
        """
        if self.bytes_total is not None:
            known = self._working >= 2.0 and 0.05 <= self.share < 1.0
            left = self._working * (1.0 / self.share - 1.0) if known else 0.0
            return left if left >= 1.0 else None
        passed, slowest = self.sweep - (1.0 - self.share if self.share else 0.0), 0.0
        steps = list(self._steps.values())
        if len(steps) < self.runs or passed < 2:
            return None
        for step in steps:
            if step.ended:
                continue
            history = list(self._history.get(step.run, {}).items())
            if not history:  # first seen in the middle of a pass
                return None
            gained = history[-1][1] - history[0][1]
            if gained <= 0 or step.selected >= step.target:
                return None
            slowest = max(slowest, (step.target - step.selected) * (history[-1][0] - history[0][0]) / gained)
        left = (slowest - self.share) * self._working / passed
        return left if left >= 1.0 else None

    def to_json(self) -> JSONObject:
        """Return the object that ``--progress json`` prints."""
        steps = list(self._steps.values())
        found: JSONObject = {"command": self.label, "seconds": round(self.seconds, 3), "done": round(self.done, 4)}
        if self.bytes_total is None:
            found |= {
                "runs": self.runs,
                "runs_done": self.runs_done,
                "selected": sum(step.selected for step in steps),
                "target": sum(step.target for step in steps),
                "score": max((step.value for step in steps), default=None),
                "pass": self.sweep,
                "pass_done": round(self.share, 4),
                "shards": [round(share, 4) for step in steps[-1:] for share in step.shards],
                "bytes_read": self.bytes_done,
            }
        else:
            found |= {"bytes_done": self.bytes_done, "bytes_total": self.bytes_total}
        return {**found, "bytes_per_second": self.rate, "seconds_left": self.seconds_left}

    def text(self, width: int | None = None) -> str:
        """Return the progress in words; parts that ``width`` characters have no room for are left out."""
        parts = []  # by their order on the line: (rank of importance, text)
        steps = list(self._steps.values())
        if self.bytes_total is not None:
            parts.append((0, f"{self.share:.0%}"))
        elif self.runs > 1 and steps:
            parts.append((0, f"{self.runs_done} of {self.runs} runs"))
        elif steps:
            parts.append((0, f"{steps[0].selected} of at most {steps[0].target} features"))
        else:
            parts.append((0, "preparing"))
        if self.bytes_total is None and self.sweep:
            parts += [(1, f"pass {self.sweep}" + (f" at {self.share:.0%}" if self.share else ""))]
            parts += [(3, f"{human_bytes(self.bytes_done)} read")]
        if self.rate is not None:
            parts.append((4, f"{human_bytes(self.rate)}/s"))
        parts.append((5, human_seconds(self.seconds)))
        if (left := self.seconds_left) is not None:
            parts.append((2, f"about {human_seconds(left)} left"))
        while (line := ", ".join(text for _, text in parts)) and width is not None and len(line) > width:
            parts.remove(max(parts))
        return line


@contextmanager
def displayed(tracker: Tracker, mode: Mode | None = None) -> Iterator[None]:
    """Show a tracker on stderr inside the block: by default a bar in a terminal, otherwise a line every 30 seconds."""
    stream = sys.stderr
    if mode is None:
        mode = "bar" if stream.isatty() and os.environ.get("TERM") != "dumb" else "lines"
    if mode == "none":
        yield
        return

    def write(text: str) -> None:
        stream.write(text)
        stream.flush()

    def last(text: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads it any more; the result is kept
            write(text)

    if mode == "bar":
        with _drawn(lambda: write(f"\r\033[2K{_bar(tracker, stream)}"), BAR_SECONDS) as drawn:
            try:
                yield
            finally:
                drawn.stop()
                if drawn.count:
                    last("\r\033[2K")
    elif mode == "json":
        with _drawn(lambda: write(json.dumps(tracker.to_json()) + "\n"), JSON_SECONDS) as drawn:
            yield
            drawn.stop()
            last(json.dumps(tracker.to_json()) + "\n")
    else:
        with _drawn(lambda: write(f"{tracker.label}: {tracker.text()}\n"), LINE_SECONDS):
            yield


@contextmanager
def watched(observer: Observer | None, progress: bool | None, label: str) -> Iterator[Observer | None]:
    """Yield an observer that shows progress and calls ``observer`` too.

    Parameters
    ----------
    observer : callable, optional
        The caller's own.
    progress : bool, optional
        True: show a bar in a notebook or a terminal, lines elsewhere. None: show it in a notebook only, once the work has taken two
        seconds.
    label : str
        Name of the work.
    """
    notebook = in_notebook()
    if progress is False or (progress is None and not notebook):
        yield observer
        return
    tracker = Tracker(label)

    def observe(step: Progress) -> None:
        tracker.observe(step)
        if observer is not None:
            observer(step)

    with _in_notebook(tracker, UNASKED_SECONDS if progress is None else 0.0) if notebook else displayed(tracker):
        yield observe


def in_notebook() -> bool:
    """Return whether this is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def _in_notebook(tracker: Tracker, delay: float) -> Iterator[None]:
    """Show a tracker below the cell of a notebook inside the block, from ``delay`` seconds on."""
    from html import escape

    display = importlib.import_module("IPython.display")
    # The handle is made by the first drawing: a short run leaves the cell as it is.
    handles: list[_Handle] = []

    def draw() -> None:
        content = display.HTML(
            f"<progress value='{tracker.done:.4f}' max='1'></progress> {escape(f'{tracker.label}: {tracker.text()}')}"
        )
        if handles:
            handles[0].update(content)
        elif tracker.seconds >= delay:
            handles.append(display.display(content, display_id=True))

    with _drawn(draw, NOTEBOOK_SECONDS) as drawn:
        try:
            yield
        finally:
            drawn.stop()
            if handles:
                tracker.share = 0.0
                handles[0].update(display.HTML(escape(f"{tracker.label}: {tracker.text()}")))


class _Handle:
    """The part of a notebook's display handle that is used here."""

    def update(self, content: object) -> None:
        """Replace the content."""


class _Drawing:
    """A thread that draws from time to time until it is stopped.

    Attributes
    ----------
    count : int
        Drawings so far.
    """

    def __init__(self, draw: Callable[[], None], seconds: float) -> None:
        self.count = 0
        self._draw, self._seconds = draw, seconds
        self._stopped = threading.Event()
        # With the caller's context a notebook finds the cell that the drawing belongs to.
        self._thread = threading.Thread(target=contextvars.copy_context().run, args=(self._work,), name="progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after a drawing that it may have begun."""
        self._stopped.set()
        self._thread.join()

    def _work(self) -> None:
        """Draw until stopped."""
        while not self._stopped.wait(self._seconds):
            try:
                self._draw()
            except (OSError, ValueError):  # the terminal is gone; the work goes on
                return
            self.count += 1


@contextmanager
def _drawn(draw: Callable[[], None], seconds: float) -> Iterator[_Drawing]:
    """Call ``draw`` every ``seconds`` inside the block."""
    drawing = _Drawing(draw, seconds)
    try:
        yield drawing
    finally:
        drawing.stop()


def _bar(tracker: Tracker, stream: TextIO) -> str:
    """Return one line of a terminal: label, bar and words."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        columns = 80
    room = max(columns - 1, 20)  # the last column would wrap
    length = min(30, max(room // 6, 5))
    full, empty = ("━", "─") if "utf" in (stream.encoding or "").lower() else ("#", "-")
    done = round(length * tracker.done)
    bar = full * done + empty * (length - done)
    return f"{tracker.label} {bar} {tracker.text(room - len(tracker.label) - length - 2)}"[:room]
