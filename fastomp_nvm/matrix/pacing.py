"""Devices this machine does not have, imitated by waiting: reads are held back to what a published device delivers.

Only time is imitated, and only that of reading: bytes come from wherever they are, and whoever asked for them waits until the
device could have delivered them. A device quicker than this machine's memory therefore shows no difference. Results say that a
medium is emulated and with which profile.
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
    """What is published of a device's reads.

    Attributes
    ----------
    description : str
        One phrase for reports: the device and where its figures are from.
    bytes_per_second : float
        Of sequential reads by enough threads.
    latency : float
        Seconds until a read at another place begins to deliver.
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
    """A device that serves one read after the other, shared by the threads of a sweep.

    Parameters
    ----------
    profile : DeviceProfile
    """

    def __init__(self, profile: DeviceProfile) -> None:
        self._profile = profile
        self._lock = threading.Lock()
        self._idle_from = 0.0  # when the device has served everything asked for so far

    def wait(self, size: int, places: int = 1) -> None:
        """Return when the device would have delivered ``size`` bytes from ``places`` places, asked for just now or before."""
        needed = size / self._profile.bytes_per_second + places * self._profile.latency
        with self._lock:
            self._idle_from = done = max(self._idle_from, time.perf_counter()) + needed
        while (left := done - time.perf_counter()) > 0:
            time.sleep(left)
