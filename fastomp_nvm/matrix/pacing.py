"""Emulation of devices this machine does not have: a read waits until a published device would have delivered it.

Only the time of reads is emulated; the bytes come from the real medium. A device faster than this machine's memory therefore makes
no difference. Results name the profile of an emulated medium.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["PROFILES", "DeviceProfile", "Pace"]


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """Published figures of a device's reads.

    Attributes
    ----------
    description : str
        One phrase for reports: the device and the source of its figures.
    bytes_per_second : float
        Rate of sequential reads by enough threads.
    latency : float
        Seconds until a read at another offset begins to deliver.
    """

    description: str
    bytes_per_second: float
    latency: float


_SOURCE = "Izraelevitz et al., Basic Performance Measurements of the Intel Optane DC Persistent Memory Module, 2019"

#: By the name used in ``pmem:///path?profile=NAME``.
PROFILES: Mapping[str, DeviceProfile] = MappingProxyType(
    {
        "optane": DeviceProfile(f"one Optane DC module, 6.6 GB/s and 305 ns ({_SOURCE})", 6.6e9, 305e-9),
        "optane6": DeviceProfile(f"six interleaved Optane DC modules, 39.4 GB/s and 305 ns ({_SOURCE})", 39.4e9, 305e-9),
    }
)


class Pace:
    """An emulated device that serves one read after the other, shared by the threads of a sweep.

    Parameters
    ----------
    profile : DeviceProfile
    """

    def __init__(self, profile: DeviceProfile) -> None:
        self._profile = profile
        self._lock = threading.Lock()
        self._idle_from = 0.0  # when the device will have served all reads so far

    def wait(self, size: int, places: int = 1) -> None:
        """Return once the device would have delivered ``size`` bytes from ``places`` offsets, after all earlier reads."""
        needed = size / self._profile.bytes_per_second + places * self._profile.latency
        with self._lock:
            self._idle_from = done = max(self._idle_from, time.perf_counter()) + needed
        while (left := done - time.perf_counter()) > 0:
            time.sleep(left)
