"""What a benchmark ran on, and how its contestants are timed."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import numpy as np
import psutil
import scipy
from rich.console import Console

import fastomp_nvm as fo
from fastomp_nvm.errors import RequestError
from fastomp_nvm.matrix.kernels import kernel

__all__ = ["Bar", "at_least", "fingerprint", "interleaved", "show_bars"]

#: Seconds between contestants: BLAS threads spin for a while after their work and would take a core from the next one.
PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class Bar:
    """A claim, the ratio found in this run, and what it has to be: at least ``limit``, or at most."""

    claim: str
    found: float
    limit: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        """True when the ratio found is good enough."""
        return self.found <= self.limit if self.at_most else self.found >= self.limit


def at_least(option: str, found: float, least: float) -> None:
    """Refuse the value of an option that is below ``least``, or not a number."""
    if not found >= least:
        raise RequestError(f"{option} is {found:g}: expected at least {least:g}")


def fingerprint() -> dict[str, Any]:
    """Return what describes this machine and build, and when."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "fastomp": fo.__version__,
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "kernel": kernel().id,
    }


def _cpu() -> str:
    """Return the processor's name."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def interleaved(
    contestants: Mapping[str, Callable[[], Any]],
    repeats: int,
    statistic: Callable[[list[float]], float] = min,
    untimed: Mapping[str, Callable[[], object]] = MappingProxyType({}),
) -> tuple[dict[str, float], dict[str, Any]]:
    """Time contestants in turn, ``repeats`` times over, so that a noisy minute hits all of them.

    Parameters
    ----------
    untimed : mapping
        Of those that spoil their data: what makes it anew before each time.

    Returns
    -------
    seconds : dict
        Of each, the best time, or whatever ``statistic`` makes of its times.
    results : dict
        What each returned last.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, run in contestants.items():
            if name in untimed:
                untimed[name]()
            time.sleep(PAUSE)
            started = time.perf_counter()
            results[name] = run()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistic(times) for name, times in seconds.items()}, results


def show_bars(console: Console, bars: Sequence[Bar]) -> None:
    """Print which bars were met."""
    for bar in bars:
        limit = f"bar {'at most ' if bar.at_most else ''}{bar.limit:.2f}"
        console.print(f"{'met   ' if bar.met else 'MISSED'} {bar.claim}: {bar.found:.2f} ({limit})")
