"""Reading a matrix whose file is colder than memory: blocks for a sweep, batches of columns for a gather, straight from the file.

A mapping is the quickest way to pages that are in memory and a slow one to pages that are not: it waits for one fault after the
other, reads far ahead of every column picked at random, and pushes out of the page cache what others keep there. A ``Reader``
instead lets a few threads more than there are cores read whole blocks into buffers that are used again and again; while some wait
for the device, the others compute.

The rule of ``auto``, applied anew to every sweep and gather (``mmap`` and ``direct`` overrule it):

1. a file below ``SMALL_BYTES``, or one whose sampled pages are in memory but for a few: through the mapping;
2. a sweep of a file of which the missing part fits into half the memory this process may still fill (what the kernel calls
   available, and the limit of its control group): through the mapping too. That pass is slower than a direct one (half as quick,
   measured) and leaves the pages in memory for all the passes after it;
3. otherwise, and where a file is only copied into memory, directly, past the page cache, which stays as it is.

The bytes handed out are those of the file whichever way they came, and the answer has the same bits. Knows neither stores nor
kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import resource
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.errors import MediumError, RequestError
from fastomp_nvm.matrix.pacing import DeviceProfile, Pace

__all__ = ["WAYS", "MatrixFile", "Reader", "fillable_memory", "ranges", "refuse_beyond_memory", "unless_others_fail"]

#: How the files of a matrix may be read: as the rule says, or always one way.
WAYS = ("auto", "mmap", "direct")

#: Bytes a thread reads at a time, at least one column.
BLOCK_BYTES = 2 << 20

#: Threads beyond those that compute: as many reads wait for the device while every core is busy.
WAITING_THREADS = 6

#: Bytes of columns a thread picks from here and there at a time, at least one column.
PICKED_BYTES = 1 << 20

#: Threads that pick columns: an SSD answers many small reads at once, and waiting takes no core (measured: 4 get two thirds).
PICKING_THREADS = 12

#: Columns closer to each other than this many bytes are read in one piece: that is quicker than asking twice (measured).
NEAR_BYTES = 64 << 10

#: Below this size the mapping serves whatever is in memory: there is little to gain.
SMALL_BYTES = 64 << 20

#: From this share of pages in memory on a file is taken for one that is there.
RESIDENT_SHARE = 0.95

#: Places of a file looked at to find that share, and pages looked at in each.
_SAMPLES, _SAMPLED_PAGES = 32, 32

_PAGE = mmap.PAGESIZE

_CUT_OFF = "the matrix of the store lost its end: its file was cut off while in use"

_LIBRARY = ctypes.CDLL(None)

#: Where the kernel shows control groups, and which are this process's.
_GROUPS, _MY_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class MatrixFile:
    """The file behind a mapped matrix, open for reading until nobody holds this object.

    Parameters
    ----------
    array : (n_columns, n_obs) array
        The matrix, as mapped.
    offset : int
        Where its data begin in the file: a multiple of the page size, so that direct reads are possible.
    open_file : callable
        Opens the file with the flags given and returns the descriptor, owned by this object from now on.
    profile : DeviceProfile, optional
        A device whose pace reads are held back to.
    """

    def __init__(self, array: AnyArray, offset: int, open_file: Callable[[int], int], profile: DeviceProfile | None = None) -> None:
        self.array = array
        self.profile = profile
        self.column_bytes = array.shape[1] * array.itemsize
        self._offset = offset
        self._direct = -1
        self._cached = open_file(os.O_RDONLY)
        owned = os.geteuid() in (0, os.fstat(self._cached).st_uid)
        self._ours = owned or os.access(f"/proc/self/fd/{self._cached}", os.W_OK, effective_ids=True)
        with contextlib.suppress(OSError):  # some file systems have no direct reads
            self._direct = open_file(os.O_RDONLY | os.O_DIRECT)

    def __del__(self) -> None:
        for descriptor in (getattr(self, "_cached", -1), getattr(self, "_direct", -1)):
            if descriptor >= 0:
                os.close(descriptor)

    @property
    def direct(self) -> bool:
        """True when direct reads are granted; otherwise pages read in their place are dropped from the page cache again."""
        return self._direct >= 0

    def resident_share(self) -> float:
        """Return the share of pages that are in memory, from a sample; 0 where the kernel would not tell.

        To those who could not write the file ``mincore`` says that all of it is in memory.
        """
        if not self._ours:
            return 0.0
        address = int(self.array.__array_interface__["data"][0])
        pages = -(-self.array.nbytes // _PAGE)
        step = max(pages // _SAMPLES, 1)
        firsts = range(0, pages, step)
        state = np.zeros((len(firsts), _SAMPLED_PAGES), dtype=np.uint8)
        where, looked_at = state.ctypes.data, 0
        for number, first in enumerate(firsts):
            count = min(_SAMPLED_PAGES, pages - first, step)
            place = ctypes.c_void_p(where + number * _SAMPLED_PAGES)
            if _system_call("mincore", address + first * _PAGE, count * _PAGE, place):
                return 1.0  # not to be had here: the mapping is always right
            looked_at += count
        return int((state & 1).sum()) / max(looked_at, 1)  # the other bits are undefined

    def room(self, columns: int) -> int:
        """Return the bytes of a buffer that holds any ``columns`` adjacent columns and the rest of their first and last page."""
        return int(-(-columns * self.column_bytes // _PAGE) * _PAGE + _PAGE)

    def read(self, first: int, last: int, buffer: mmap.mmap) -> AnyArray:
        """Return columns ``first:last`` (last - first, n_obs) as a view of ``buffer``, into which they are read directly."""
        start, end = (self._offset + column * self.column_bytes for column in (first, last))
        begin = start - start % _PAGE
        wanted = end - begin
        target = memoryview(buffer)[: -(-wanted // _PAGE) * _PAGE]
        done = 0
        while done < wanted:
            count = self._read_some(target[done:], begin + done)
            if done + count < wanted:
                count -= count % _PAGE  # a direct read goes on where a page begins
            if not count:
                raise MediumError(_CUT_OFF)
            done += count
        if not self.direct:
            os.posix_fadvise(self._cached, begin, wanted, os.POSIX_FADV_DONTNEED)
        shape = (last - first, self.array.shape[1])
        return np.frombuffer(buffer, self.array.dtype, shape[0] * shape[1], start - begin).reshape(shape)

    def gather(self, columns: IndexArray, places: IndexArray, out: AnyArray, buffer: mmap.mmap) -> None:
        """Copy ``columns``, ascending, to the rows ``places`` of ``out``, by way of ``buffer``, which has ``room`` for a few."""
        if native.extension and self.direct:
            where = self._direct, self._offset, self.column_bytes, NEAR_BYTES
            try:
                native.extension.read_columns(*where, columns, places, out, buffer)
                return
            except EOFError:
                raise MediumError(_CUT_OFF) from None
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise MediumError(f"the matrix of the store cannot be read: {error.strerror}; check its device") from error
        most = (len(buffer) - _PAGE) // self.column_bytes
        for piece in _pieces(columns, most, max(NEAR_BYTES // self.column_bytes, 1)):
            first, last = int(columns[piece.start]), int(columns[piece.stop - 1]) + 1
            out[places[piece]] = self.read(first, last, buffer)[columns[piece] - first]

    def _read_some(self, target: memoryview, position: int) -> int:
        """Read into ``target`` from ``position`` on; return how many bytes came."""
        try:
            if self.direct:
                try:
                    return int(os.preadv(self._direct, [target], position))
                except OSError as error:
                    if error.errno != errno.EINVAL:  # opened, but for want of alignment or support not read
                        raise
            return int(os.preadv(self._cached, [target], position))
        except OSError as error:
            raise MediumError(f"the matrix of the store cannot be read: {error.strerror}; check its device") from error


class Reader:
    """Reads matrices from their files where that is better than through their mappings.

    Parameters
    ----------
    files : sequence of MatrixFile
        An array that is not among theirs is never read here.
    io : {"auto", "mmap", "direct"}
    threads : int
        Threads that compute.
    """

    def __init__(self, files: Sequence[MatrixFile], io: str, threads: int) -> None:
        if io not in WAYS:
            raise RequestError(f"unknown way {io!r} to read a store: expected one of {', '.join(WAYS)}")
        self._files = tuple(files)
        paced = [file.profile for file in self._files if file.profile is not None]
        self._pace = Pace(paced[0]) if paced else None  # the files of a store are on one device
        self._io = io
        self._threads = threads + WAITING_THREADS
        self._executor: ThreadPoolExecutor | None = None
        self._buffers: dict[int, list[mmap.mmap]] = {}  # by size

    def close(self) -> None:
        """End the threads and let go of files and buffers."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._files, self._buffers = (), {}

    def pace(self, rows: AnyArray) -> Pace | None:
        """Return the pace of the device that ``rows`` are meant to be on, or None where they come as quickly as they can."""
        file = next((each for each in self._files if each.array is rows), None)
        return self._pace if file is not None and file.profile is not None else None

    def sweep(
        self, rows: AnyArray, use: Callable[[AnyArray, int, int], None], *, again: bool = True, edges: Sequence[int] | None = None
    ) -> bool:
        """Have ``use(block, first, last)`` called once for every block of columns of ``rows``, on several threads.

        Parameters
        ----------
        rows : (n_columns, n_obs) array
        use : callable
        again : bool
            Whether there will be more sweeps, for which pages are worth keeping in memory.
        edges : sequence of int, optional
            See ``ranges``.

        Returns
        -------
        bool
            False, and nothing was done, where ``rows`` is better read through its mapping.
        """
        file = self._file_to_read(rows, again=again)
        if file is None:
            return False
        step = max(BLOCK_BYTES // file.column_bytes, 1)
        waiting = ranges(len(rows), step, edges)

        def work() -> None:
            with self._buffer(file.room(step)) as buffer:
                for first, last in waiting:
                    for start in range(first, last, step):
                        end = min(start + step, last)
                        use(file.read(start, end, buffer), start, end)

        self._run(work, waiting, min(self._threads, -(-len(rows) // step)))
        return True

    def gather(self, rows: AnyArray, columns: IndexArray, out: AnyArray) -> bool:
        """Copy ``columns`` of ``rows`` into ``out`` (n, n_obs), reading them in the order of the file and near ones together.

        Returns
        -------
        bool
            False, and nothing was done, where ``rows`` is better read through its mapping.
        """
        file = self._file_to_read(rows, again=False) if len(columns) else None
        if file is None:
            return False
        order = np.argsort(columns, kind="stable")
        wanted = columns[order]
        step = max(PICKED_BYTES // file.column_bytes, 1)
        waiting = ranges(len(columns), step)

        def work() -> None:
            with self._buffer(file.room(step) + _PAGE) as buffer:
                for first, last in waiting:
                    file.gather(wanted[first:last], order[first:last], out, buffer)

        # In the interpreter, threads would wait for each other and not for the device.
        threads = PICKING_THREADS if native.extension and step > 1 else self._threads
        self._run(work, waiting, min(threads, -(-len(columns) // step)))
        return True

    def _file_to_read(self, rows: AnyArray, *, again: bool) -> MatrixFile | None:
        """Return the file to read ``rows`` from directly, or None where the mapping is to be used."""
        file = next((each for each in self._files if each.array is rows), None)
        if file is None or self._io == "direct":
            return file
        if self._io == "mmap" or rows.nbytes < SMALL_BYTES or (share := file.resident_share()) >= RESIDENT_SHARE:
            return None
        return None if again and (1.0 - share) * rows.nbytes <= fillable_memory() / 2 else file

    def _run(self, work: Callable[[], None], waiting: Iterator[Any], threads: int) -> None:
        """Run ``work``, which takes from ``waiting``, on several threads; raise what one of them raised."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max(self._threads, PICKING_THREADS), "fastomp-read")
        helpers: list[Future[None]] = [self._executor.submit(unless_others_fail(work, waiting)) for _ in range(threads)]

        def ended() -> None:
            for helper in helpers:
                helper.result()

        unless_others_fail(ended, waiting)()  # Ctrl-C comes here

    @contextlib.contextmanager
    def _buffer(self, size: int) -> Iterator[mmap.mmap]:
        """Lend a page-aligned buffer of ``size`` bytes."""
        waiting = self._buffers.setdefault(size, [])
        try:
            buffer = waiting.pop()
        except IndexError:
            buffer = mmap.mmap(-1, size)
        yield buffer
        waiting.append(buffer)


def ranges(count: int, step: int, edges: Sequence[int] | None = None) -> Iterator[tuple[int, int]]:
    """Return ranges that make up ``range(count)``, for threads to take one after the other.

    They have ``step`` entries each; with ``edges`` (ascending, from 0 to ``count``) they begin and end there, and may be longer.
    """
    starts = list(range(0, count, step))
    if edges is not None:
        starts = sorted({edges[bisect_right(edges, start) - 1] for start in starts})
    return iter(list(pairwise([*starts, count])))  # next() on it is atomic under the interpreter lock


def unless_others_fail(work: Callable[[], None], waiting: Iterator[Any]) -> Callable[[], None]:
    """Return ``work``, which takes from ``waiting`` as other threads do; when it fails they find nothing more there to take."""

    def guarded() -> None:
        try:
            work()
        except BaseException:
            deque(waiting, maxlen=0)
            raise

    return guarded


def fillable_memory() -> float:
    """Return the bytes of memory this process may still fill, the page cache counted as free; infinity where nothing tells."""
    return min(_available_memory(), _group_room(), _allowed_addresses())


def refuse_beyond_memory(size: int, what: str, instead: str) -> None:
    """Raise ``MediumError`` when this process may not fill ``size`` bytes more: the kernel would end it without a word."""
    room = fillable_memory()
    if size > room:
        raise MediumError(f"{what} needs {size / 1e9:.2f} GB of memory, and {room / 1e9:.2f} GB may be filled: {instead}")


def _pieces(columns: IndexArray, most: int, near: int) -> list[slice]:
    """Split ascending ``columns`` into runs that span at most ``most`` columns, with less than ``near`` left out between two."""
    pieces, start = [], 0
    places = columns.tolist()
    for place in range(1, len(places) + 1):
        if place == len(places) or places[place] - places[place - 1] > near or places[place] - places[start] >= most:
            pieces.append(slice(start, place))
            start = place
    return pieces


def _available_memory() -> float:
    """Return what the kernel could hand out without swapping."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return float("inf")


def _allowed_addresses() -> float:
    """Return what the resource limits of this process leave of its data and of its address space."""
    room = float("inf")
    for limit, name in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
            used = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{name}:"))
            room = min(room, max(most - used, 0))
    return room


def _group_room() -> float:
    """Return what the memory control group of this process leaves it: its limit less what cannot be dropped."""
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
    """Return the lines ``name number`` of a file of the kernel's; empty where there is none."""
    try:
        return {name: int(value) for name, value in map(str.split, file.read_text(encoding="ascii").splitlines())}
    except (OSError, ValueError):
        return {}


def _system_call(name: str, address: int, length: int, argument: object) -> int:
    """Make a call about a range of addresses; anything but 0 is a failure."""
    return int(getattr(_LIBRARY, name)(ctypes.c_void_p(address), ctypes.c_size_t(length), argument))
