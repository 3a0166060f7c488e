"""What a page shows beyond the present moment: the trail of each running job, and the server's figures over the last hour."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ado_plugin.service.metrics import Figure
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.selection.progress import Tracker

__all__ = ["Sample", "Trail", "Watch"]

_log = logging.getLogger(__name__)

#: Seconds between two looks at the jobs, and between two samples of the figures; samples kept, an hour of them.
_LOOK_SECONDS, _SAMPLE_SECONDS, _SAMPLES = 1.0, 10.0, 361
#: Points of a trail: when there are more, every other one is dropped.
_MOST_POINTS = 400


class Sample(NamedTuple):
    """Figures of the server at one moment: seconds since the epoch, and the sum of each figure's values."""

    time: float
    values: Mapping[str, float]


class Trail:
    """The first run of a job so far: features and f at each look, and the tracker of its speed."""

    def __init__(self, name: str) -> None:
        self.tracker = Tracker(name)
        self.points: list[tuple[int, float]] = []

    def observe(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Take the progress of a job as its description holds it."""
        known = [Progress.of_json(step) for step in steps if step]
        for step in known:
            self.tracker.observe(step)
        if known and (not self.points or known[0].selected > self.points[-1][0]):
            self.points.append((known[0].selected, known[0].value))
            if len(self.points) > _MOST_POINTS:
                del self.points[1:-1:2]


class Watch:
    """Looks at the jobs once a second and at the figures every ten, in a thread of its own, until it is closed.

    Parameters
    ----------
    standings : callable
        Returns the descriptions of all jobs.
    figures : callable
        Returns the metrics of the server.
    """

    def __init__(self, standings: Callable[[], Sequence[Mapping[str, Any]]], figures: Callable[[], Sequence[Figure]]) -> None:
        self._standings = standings
        self._figures = figures
        self._trails: dict[str, Trail] = {}
        self._samples: collections.deque[Sample] = collections.deque(maxlen=_SAMPLES)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._thread.join()

    def trail(self, job: str) -> Trail | None:
        """Return the trail of a job that runs, None before the first look at it."""
        return self._trails.get(job)

    def samples(self) -> Sequence[Sample]:
        """Return the samples of the last hour, oldest first."""
        return list(self._samples)

    def _look(self) -> None:
        """Look until closed; no error ends it."""
        while True:
            try:
                jobs = {job["job"]: job for job in self._standings()}
                self._trails = {
                    name: self._trails.get(name) or Trail(name) for name, job in jobs.items() if job["state"] == "running"
                }
                for name, trail in self._trails.items():
                    trail.observe(jobs[name]["progress"])
                if not self._samples or time.time() - self._samples[-1].time >= _SAMPLE_SECONDS:
                    sums = {figure.name: sum(figure.values.values()) for figure in self._figures()}
                    self._samples.append(Sample(time.time(), sums))
            except Exception:
                _log.exception("the page could not look at the jobs")
            if self._ended.wait(_LOOK_SECONDS):
                return
