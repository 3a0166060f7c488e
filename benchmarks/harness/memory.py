"""Memory limits and peak memory of a benchmark.

A limit is a control group of the kernel, so that the page cache counts too. Making one needs root or a delegated group; a benchmark
that cannot make one skips the measurement and says so.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MemoryGroup", "PeakMemory", "memory_group", "resident_bytes"]

_MOUNT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A control group with a limit.

    Attributes
    ----------
    folder : Path
    version : int
        Of control groups.
    """

    folder: Path
    version: int

    def command(self, words: list[str]) -> list[str]:
        """Return the command that runs ``words`` inside the group, from its first instruction on."""
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.folder), *words]


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup | None]:
    """Yield a group that may use ``limit`` bytes, page cache included, and no swap; None where none can be made."""
    group = _make(limit)
    try:
        yield group
    finally:
        if group is not None:
            with contextlib.suppress(OSError):  # a process that outlived its measurement keeps it
                group.folder.rmdir()


def _make(limit: int) -> MemoryGroup | None:
    """Make a group below the one of this process."""
    name = f"fastomp-bench-{os.getpid()}"
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    mine = {controllers: path.lstrip("/") for _, controllers, path in (line.split(":", 2) for line in lines)}
    # Of memory and swap together under v1, of swap alone under v2; absent where the kernel does not account for swap.
    for version, controllers, mount, file, swap_file, swap_limit in (
        (1, "memory", _MOUNT / "memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit),
        (2, "", _MOUNT, "memory.max", "memory.swap.max", 0),
    ):
        if controllers not in mine:
            continue
        parent = mount / mine[controllers]
        folder = (parent if parent.is_dir() else mount) / name
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / file).write_text(str(limit), encoding="ascii")
            if (folder / swap_file).exists():
                (folder / swap_file).write_text(str(swap_limit), encoding="ascii")
            return MemoryGroup(folder, version)
        except OSError:
            folder.rmdir()
    return None


def resident_bytes(process: int | None = None) -> int:
    """Return the anonymous and shared memory of a process, by default this one."""
    status = Path(f"/proc/{process or 'self'}/status").read_text(encoding="ascii", errors="replace")
    return 1024 * sum(map(int, re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", status)))


class PeakMemory:
    """Samples the anonymous and shared memory of a process for the duration of a ``with``; ``peak`` in bytes.

    Parameters
    ----------
    every : float
        Seconds between samples.
    process : int, optional
        By default this one.
    """

    def __init__(self, every: float = 0.02, process: int | None = None) -> None:
        self.peak = 0
        self._process = process
        self._every = every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.peak = max(self.peak, resident_bytes(self._process))
            if self._ended.wait(self._every):
                return
