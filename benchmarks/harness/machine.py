"""The machine, build and date that figures belong to."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import Any

import numpy as np
import psutil
import scipy

import fastomp_nvm as fo
from fastomp_nvm.matrix.kernels import kernel

__all__ = ["describe", "fingerprint"]


def fingerprint() -> dict[str, Any]:
    """Return date, machine and versions."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "fastomp": fo.__version__,
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "kernel": kernel().id,
    }


def describe(machine: dict[str, Any]) -> str:
    """Return a fingerprint as one line."""
    return (
        f"{machine['date'][:10]}, {machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 1e9:.0f} GB, "
        f"load {machine['load']:.1f}, {machine['system']}, Python {machine['python']}, numpy {machine['numpy']}, "
        f"scipy {machine['scipy']}, fastomp {machine['fastomp']}, kernel {machine['kernel']}"
    )


def _cpu() -> str:
    """Return the processor's name."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"
