"""What a benchmark ran on, and how its contestants are timed."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import psutil
import scipy

from fastomp_nvm.kernels import kernel

__all__ = ["fingerprint", "interleaved"]

#: Seconds between contestants: BLAS threads spin for a while after their work and would take a core from the next one.
PAUSE = 0.1


def fingerprint() -> dict[str, Any]:
    """Return what describes this machine and build."""
    return {
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


def interleaved(contestants: Mapping[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Time contestants in turn, ``repeats`` times over, so that a noisy minute hits all of them.

    Returns
    -------
    seconds : dict
        Best time of each.
    results : dict
        What each returned last.
    """
    seconds = dict.fromkeys(contestants, float("inf"))
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, run in contestants.items():
            time.sleep(PAUSE)
            started = time.perf_counter()
            results[name] = run()
            seconds[name] = min(seconds[name], time.perf_counter() - started)
    return seconds, results
