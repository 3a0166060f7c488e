"""Timing in turn, medians of paired ratios with their 95 % intervals, and stopwatches around functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np

__all__ = ["PAUSE", "Ratio", "in_turn", "paired", "stopwatch"]

#: Seconds between contestants: BLAS threads spin for a while after their work and would take a core from the next one.
PAUSE = 0.1

#: Resamples behind an interval.
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Ratio:
    """A median of paired ratios and its 95 % interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the median and the interval."""
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def in_turn(
    contestants: Mapping[str, Callable[[], Any]],
    repeats: int,
    *,
    warm: int = 0,
    untimed: Mapping[str, Callable[[], object]] = MappingProxyType({}),
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Time contestants in turn, ``repeats`` times over, so that a noisy minute affects all of them.

    Parameters
    ----------
    contestants : mapping of str to callable
    repeats : int
    warm : int
        Turns before them that do not count.
    untimed : mapping of str to callable
        Called before each run of a contestant that overwrites its data, to prepare it again.

    Returns
    -------
    seconds : dict of str to list of float
        One entry per turn, so that entries at the same place are a pair.
    results : dict
        Last result of each contestant.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    results: dict[str, Any] = {}
    for turn in range(warm + repeats):
        for name, run in contestants.items():
            if name in untimed:
                untimed[name]()
            time.sleep(PAUSE)
            started = time.perf_counter()
            results[name] = run()
            taken = time.perf_counter() - started
            if turn >= warm:
                seconds[name].append(taken)
    return seconds, results


def paired(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Return the median of the ratios of pairs, with a 95 % interval by the bootstrap."""
    ratios = np.array(numerators) / np.array(denominators)
    draws = np.random.default_rng(0).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), (0.025, 0.975))
    return Ratio(float(median(ratios.tolist())), float(low), float(high))


@contextmanager
def stopwatch(groups: Mapping[str, Sequence[tuple[Any, str]]]) -> Iterator[dict[str, float]]:
    """Add up the seconds inside functions, per group; a function called by another one of them is not counted twice.

    Parameters
    ----------
    groups : mapping of str to sequence of (owner, attribute)
    """
    spent, inside = dict.fromkeys(groups, 0.0), False

    def timed(group: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal inside
            if inside:
                return function(*arguments, **options)
            inside, started = True, time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                inside = False
                spent[group] += time.perf_counter() - started

        return call

    with ExitStack() as stack:
        for group, functions in groups.items():
            for owner, name in functions:
                stack.enter_context(mock.patch.object(owner, name, timed(group, getattr(owner, name))))
        yield spent
