"""How much memory this process may still fill, and arrays aligned for the kernels."""

from __future__ import annotations

import contextlib
import math
import resource
from pathlib import Path

import numpy as np

from fastomp_nvm.arrays import AnyArray, DType
from fastomp_nvm.errors import MediumError

__all__ = ["aligned_empty", "fillable_memory", "refuse_beyond_memory"]

#: Where the kernel shows control groups, and the file that lists those of this process.
_GROUPS, _MY_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def aligned_empty(shape: tuple[int, ...], dtype: DType, alignment: int = 64) -> AnyArray:
    """Return an uninitialised array whose data begins at a multiple of ``alignment`` bytes."""
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + alignment, dtype=np.uint8)
    shift = -int(buffer.__array_interface__["data"][0]) % alignment
    view: AnyArray = buffer[shift : shift + size].view(dtype).reshape(shape)
    return view


def fillable_memory() -> float:
    """Return the bytes of memory this process may still fill, counting the page cache as free; infinity if unknown."""
    return min(_available_memory(), _group_room(), _allowed_addresses())


def refuse_beyond_memory(size: int, what: str, instead: str) -> None:
    """Raise ``MediumError`` when this process may not fill ``size`` more bytes: the kernel would kill it without a message."""
    room = fillable_memory()
    if size > room:
        raise MediumError(f"{what} needs {size / 1e9:.2f} GB of memory, and {room / 1e9:.2f} GB may be filled: {instead}")


def _available_memory() -> float:
    """Return the memory that the kernel can provide without swapping."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return float("inf")


def _allowed_addresses() -> float:
    """Return the room that the resource limits of this process leave for data and address space."""
    room = float("inf")
    for limit, name in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
            used = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{name}:"))
            room = min(room, max(most - used, 0))
    return room


def _group_room() -> float:
    """Return the room in the memory control group of this process: its limit minus memory that cannot be reclaimed."""
    room = float("inf")
    try:
        groups = [line.split(":", 2) for line in _MY_GROUPS.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return room
    for _, controllers, path in groups:
        if "memory" in controllers.split(","):
            folder = _group_folder(_GROUPS / "memory", path)
            stat = _numbers(folder / "memory.stat")
            limit = stat.get("hierarchical_memory_limit", room)
            room = min(room, limit - stat.get("total_rss", 0) - stat.get("total_shmem", 0))
        elif not controllers:  # version 2: the limit of every group above holds too
            folder = _group_folder(_GROUPS, path)
            while folder != _GROUPS.parent:
                stat = _numbers(folder / "memory.stat")
                with contextlib.suppress(OSError, ValueError):  # no limit is written as "max"
                    limit = int((folder / "memory.max").read_text(encoding="ascii"))
                    room = min(room, limit - stat.get("anon", 0) - stat.get("shmem", 0))
                folder = folder.parent
    return max(room, 0.0)


def _group_folder(mount: Path, path: str) -> Path:
    """Return the folder of a control group; inside a container the group may itself be the mount."""
    folder = mount / path.lstrip("/")
    return folder if folder.is_dir() else mount


def _numbers(file: Path) -> dict[str, int]:
    """Return the ``name number`` lines of a kernel file as a dictionary; empty where there is no such file."""
    try:
        return {name: int(value) for name, value in map(str.split, file.read_text(encoding="ascii").splitlines())}
    except (OSError, ValueError):
        return {}
