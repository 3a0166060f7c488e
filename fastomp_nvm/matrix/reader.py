"""Rows of a file colder than memory: blocks for a sweep and batches of columns for a gather, read straight from the file.

A mapping is fast for pages that are in memory and slow for pages that are not: it waits for one fault after the other, reads far
ahead of every column picked at random, and evicts the pages of other programs. ``FileRows`` instead lets a few threads more than
there are cores read whole blocks into reused buffers; while some wait for the device, the others compute.

The rule of ``auto``, applied to every sweep and gather (``mmap`` and ``direct`` override it), is ``way_to_read``:

1. a file below ``SMALL_BYTES``, or one of which a sample of pages is almost all in memory: through the mapping;
2. a file whose missing part fits into half the memory this process may still fill (available memory, and the limit of its control
   group): through the page cache, so that whatever is read is in memory for later sweeps and gathers. A sweep uses the mapping,
   whose pages the kernel reads ahead; a gather reads its columns alone, because reading ahead would fetch up to 8 MiB with each;
3. otherwise, and where a file is only copied into memory: directly, past the page cache.

Every way delivers the same bytes, so the answer has the same bits.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.errors import MediumError, RequestError
from fastomp_nvm.matrix import lost_pages
from fastomp_nvm.matrix.checksum import Seal
from fastomp_nvm.matrix.choice import Choice
from fastomp_nvm.matrix.memory import fillable_memory
from fastomp_nvm.matrix.pacing import DeviceProfile, Pace
from fastomp_nvm.matrix.rows import ArrayRows, Rows, Use
from fastomp_nvm.matrix.threads import ranges, unless_others_fail

if TYPE_CHECKING:
    from fastomp_nvm.matrix.sweeper import Sweeper

__all__ = ["WAYS", "FileRows", "MatrixFile", "rows_of", "way_to_read"]

#: How the files of a matrix may be read: by the rule, or always one way.
WAYS = ("auto", "mmap", "direct")

#: Bytes a thread reads at a time, at least one column.
BLOCK_BYTES = 2 << 20

#: Threads beyond the number of cores: this many reads wait for the device while every core is busy.
WAITING_THREADS = 6

#: Bytes of scattered columns a thread gathers at a time, at least one column.
PICKED_BYTES = 1 << 20

#: Threads that gather columns: an SSD serves many small reads at once (measured: 4 threads reach two thirds of the rate).
PICKING_THREADS = 12

#: Columns closer to each other than this many bytes are read in one piece, which is faster than two reads (measured).
NEAR_BYTES = 64 << 10

#: Files below this size are read through the mapping.
SMALL_BYTES = 64 << 20

#: A file with at least this share of sampled pages in memory counts as in memory.
RESIDENT_SHARE = 0.95

#: Places of a file that are sampled, and pages sampled at each.
_SAMPLES, _SAMPLED_PAGES = 32, 32

_PAGE = mmap.PAGESIZE

_CUT_OFF = "the matrix of the store lost its end: its file was cut off while in use"

_LIBRARY = ctypes.CDLL(None)


#: How one sweep or gather reads a file: pages in memory, pages kept in memory from now on, or past the page cache.
Reading: TypeAlias = Literal["mapping", "page cache", "direct"]


def way_to_read(size: int, resident: float, room: float, *, again: bool = True) -> Reading:
    """Return how ``auto`` reads a file.

    Parameters
    ----------
    size : int
        Of the file, in bytes.
    resident : float
        Share of it that is in memory.
    room : float
        Bytes of memory that this process may still fill.
    again : bool
        Whether there will be more reads.
    """
    if size < SMALL_BYTES or resident >= RESIDENT_SHARE:
        return "mapping"
    return "page cache" if again and (1.0 - resident) * size <= room / 2 else "direct"


class MatrixFile:
    """The file behind a mapped matrix, open for reading as long as this object exists.

    Parameters
    ----------
    array : (n_columns, n_obs) array
        The matrix, as mapped.
    offset : int
        Where its data begin in the file: a multiple of the page size, so that direct reads are possible.
    open_file : callable
        Opens the file with given flags and returns the descriptor, which this object then owns.
    profile : DeviceProfile, optional
        An emulated device: reads take at least as long as on this device.
    """

    def __init__(self, array: AnyArray, offset: int, open_file: Callable[[int], int], profile: DeviceProfile | None = None) -> None:
        self.array = array
        self.profile = profile
        self.column_bytes = array.shape[1] * array.itemsize
        self._offset = offset
        self._direct = -1
        self._cached = open_file(os.O_RDONLY)
        os.posix_fadvise(self._cached, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
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
        """True when the file system allows direct reads; otherwise pages are dropped from the page cache after each read."""
        return self._direct >= 0

    def resident_share(self, columns: IndexArray | None = None) -> float:
        """Return the share of pages (of ``columns``) that are in memory, from a sample; 0 for a file that this user may not write.

        Of such a file ``mincore`` reports every page as in memory.
        """
        if not self._ours:
            return 0.0
        address = int(self.array.__array_interface__["data"][0])
        address -= address % _PAGE
        pages = -(-self.array.nbytes // _PAGE)
        if columns is None:
            step = max(pages // _SAMPLES, 1)
            firsts: Sequence[int] = range(0, pages, step)
        else:
            step = -(-self.column_bytes // _PAGE)
            firsts = (columns[:: max(len(columns) // _SAMPLES, 1)] * self.column_bytes // _PAGE).tolist()
        state = np.zeros((len(firsts), _SAMPLED_PAGES), dtype=np.uint8)
        where, sampled = state.ctypes.data, 0
        for number, first in enumerate(firsts):
            count = min(_SAMPLED_PAGES, pages - first, step)
            place = ctypes.c_void_p(where + number * _SAMPLED_PAGES)
            if _system_call("mincore", address + first * _PAGE, count * _PAGE, place):
                return 1.0  # mincore is not available: use the mapping
            sampled += count
        return int((state & 1).sum()) / max(sampled, 1)  # the other bits are undefined

    def room(self, columns: int) -> int:
        """Return the size of a buffer for any ``columns`` adjacent columns and the rest of their first and last page."""
        return int(-(-columns * self.column_bytes // _PAGE) * _PAGE + _PAGE)

    def read(self, first: int, last: int, buffer: mmap.mmap, *, keep: bool = False) -> AnyArray:
        """Return columns ``first:last`` (last - first, n_obs) as a view of ``buffer``, into which they are read.

        ``keep`` reads through the page cache, where they stay; otherwise they are read directly.
        """
        start, end = (self._offset + column * self.column_bytes for column in (first, last))
        begin = start - start % _PAGE
        wanted = end - begin
        target = memoryview(buffer)[: -(-wanted // _PAGE) * _PAGE]
        done = 0
        while done < wanted:
            count = self._read_some(target[done:], begin + done, keep)
            if done + count < wanted:
                count -= count % _PAGE  # a direct read continues at the start of a page
            if not count:
                raise MediumError(_CUT_OFF)
            done += count
        if not (self.direct or keep):
            os.posix_fadvise(self._cached, begin, wanted, os.POSIX_FADV_DONTNEED)
        shape = (last - first, self.array.shape[1])
        return np.frombuffer(buffer, self.array.dtype, shape[0] * shape[1], start - begin).reshape(shape)

    def gather(self, columns: IndexArray, places: IndexArray, out: AnyArray, buffer: mmap.mmap, *, keep: bool = False) -> None:
        """Copy ``columns``, ascending, to the rows ``places`` of ``out``, through ``buffer``; ``keep`` as for ``read``."""
        if native.extension and (self.direct or keep):
            where = self._cached if keep else self._direct, self._offset, self.column_bytes, NEAR_BYTES
            try:
                native.extension.read_columns(*where, columns, places, out, buffer)
                return
            except EOFError:
                raise MediumError(_CUT_OFF) from None
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise MediumError(f"the matrix of the store cannot be read: {error.strerror}; check its device") from error
        most = (len(buffer) - _PAGE) // self.column_bytes
        for begin, end in _pieces(columns, most, max(NEAR_BYTES // self.column_bytes, 1)):
            first, last = int(columns[begin]), int(columns[end - 1]) + 1
            out[places[begin:end]] = self.read(first, last, buffer, keep=keep)[columns[begin:end] - first]

    def _read_some(self, target: memoryview, position: int, keep: bool) -> int:
        """Read into ``target`` from ``position`` on; return the number of bytes read."""
        try:
            if self.direct and not keep:
                try:
                    return int(os.preadv(self._direct, [target], position))
                except OSError as error:
                    if error.errno != errno.EINVAL:  # opened, but not readable: alignment or support is missing
                        raise
            return int(os.preadv(self._cached, [target], position))
        except OSError as error:
            raise MediumError(f"the matrix of the store cannot be read: {error.strerror}; check its device") from error


class FileRows(ArrayRows):
    """Rows of a mapped file, read from the file where that is better than through the mapping.

    Parameters
    ----------
    file : MatrixFile
    io : {"auto", "mmap", "direct"}
    """

    on_device = True

    def __init__(self, file: MatrixFile, io: str = "auto") -> None:
        if io not in WAYS:
            raise RequestError(f"unknown way {io!r} to read a store: expected one of {', '.join(WAYS)}")
        super().__init__(file.array)
        self.file = file
        self._io = io
        self._pace = None if file.profile is None else Pace(file.profile)
        self._room: float | None = None  # memory that may be filled, as of the last sweep: gathers are too many to look it up
        self._executor: ThreadPoolExecutor | None = None  # its threads end with this object
        self._buffers: dict[int, list[mmap.mmap]] = {}  # by size

    def visit(self, sweeper: Sweeper, use: Use, products: int = 1, *, again: bool = True) -> None:
        """Call ``use`` for blocks of the file, read directly or through the mapping."""
        file, pace = self.file, self._pace if again else None  # copies into memory are not paced

        def paced(block: AnyArray, first: int, last: int) -> None:
            use(block, first, last)
            if pace is not None:
                pace.wait(block.nbytes)

        self._room = None
        if self.way(again=again) != "direct":
            self._visit_memory(sweeper, use if pace is None else paced, products)
            return
        use = self._compared(use)
        step = max(BLOCK_BYTES // file.column_bytes, 1)
        waiting = ranges(len(self), step)

        def work() -> None:
            with self._buffer(file.room(step)) as buffer:
                for begin, end in waiting:
                    for first in range(begin, end, step):
                        last = min(first + step, end)
                        paced(file.read(first, last, buffer), first, last)

        self._run(work, waiting, min(sweeper.threads + WAITING_THREADS, -(-len(self) // step)))
        lost_pages.check(self.array)

    def _visit_memory(self, sweeper: Sweeper, use: Use, products: int) -> None:
        """Call ``use`` for blocks of the mapping."""
        super().visit(sweeper, use, products)

    def gather(self, columns: IndexArray, out: AnyArray, sweeper: Sweeper) -> None:
        """Copy the rows ``columns`` into ``out``, reading them in the order of the file and near ones together."""
        file, way = self.file, self.way() if len(columns) else "mapping"
        # Of a file that is mostly cold, columns gathered before may be in memory: copying them needs no threads.
        if way != "mapping" and not (self._io == "auto" and file.resident_share(columns) >= RESIDENT_SHARE):
            self._read(columns, out, sweeper, keep=way == "page cache")
        else:
            super().gather(columns, out, sweeper)
        if self._pace is not None:
            self._pace.wait(out.nbytes, len(columns))

    def _read(self, columns: IndexArray, out: AnyArray, sweeper: Sweeper, *, keep: bool) -> None:
        """Read the rows ``columns`` into ``out``, through the page cache if they are to ``keep`` there."""
        file = self.file
        order = np.argsort(columns, kind="stable")
        wanted = columns[order]
        step = max(PICKED_BYTES // file.column_bytes, 1)
        waiting = ranges(len(columns), step)

        def work() -> None:
            with self._buffer(file.room(step) + _PAGE) as buffer:
                for first, last in waiting:
                    file.gather(wanted[first:last], order[first:last], out, buffer, keep=keep)
                    if self.seal is not None:
                        self.seal.look(out, wanted[first:last], order[first:last])

        # Without the extension, threads would wait for the interpreter lock and not for the device.
        threads = PICKING_THREADS if native.extension and step > 1 else sweeper.threads + WAITING_THREADS
        self._run(work, waiting, min(threads, -(-len(columns) // step)))

    def in_page_cache(self) -> bool:
        """Tell whether nearly all of the file is in memory, unless it is small or an emulated device sets the pace."""
        looked_up = self._io != "direct" and self._pace is None and self.nbytes >= SMALL_BYTES
        return looked_up and self.file.resident_share() >= RESIDENT_SHARE

    def pace(self, nbytes: int) -> None:
        """Wait as long as the emulated device takes for ``nbytes``."""
        if self._pace is not None:
            self._pace.wait(nbytes)

    def way(self, *, again: bool = True) -> Reading:
        """Return how the next visit or gather reads the file; ``again``: whether there will be more of them."""
        if self._io != "auto":
            return "direct" if self._io == "direct" else "mapping"
        if self.nbytes < SMALL_BYTES:  # nothing to look up
            self.choice = self.choice or Choice("mapping", "the file is small")
            return "mapping"
        resident = self.file.resident_share()
        if self._room is None and again and resident < RESIDENT_SHARE:
            self._room = fillable_memory()
        room = self._room or 0.0
        way = way_to_read(self.nbytes, resident, room, again=again)
        if again and self.choice is None:  # later reads find more of the file in memory
            missing = f"the {(1.0 - resident) * self.nbytes / 1e9:.2f} GB not in memory"
            verb = "fit" if way == "page cache" else "do not fit"
            fits = f"{missing} {verb} into half of the {room / 1e9:.2f} GB of memory that may be filled"
            self.choice = Choice(way, "the file is in memory" if way == "mapping" else fits)
        return way

    def _run(self, work: Callable[[], None], waiting: Iterator[tuple[int, int]], threads: int) -> None:
        """Run ``work``, which takes ranges from ``waiting``, on several threads; raise the error of one that failed."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(256, "fastomp-read")  # started as they are needed
        helpers = [self._executor.submit(unless_others_fail(work, waiting)) for _ in range(threads)]

        def ended() -> None:
            for helper in helpers:
                helper.result()

        unless_others_fail(ended, waiting)()  # Ctrl-C arrives here

    @contextlib.contextmanager
    def _buffer(self, size: int) -> Iterator[mmap.mmap]:
        """Lend a page-aligned buffer of ``size`` bytes; it is used again, because fresh pages cost time."""
        waiting = self._buffers.setdefault(size, [])
        try:
            buffer = waiting.pop()
        except IndexError:
            buffer = mmap.mmap(-1, size)
        yield buffer
        waiting.append(buffer)


def rows_of(matrix: AnyArray | Rows, files: Sequence[MatrixFile] = (), io: str = "auto", seal: Seal | None = None) -> Rows:
    """Return the rows of a matrix that a store hands out, read from the one of ``files`` that holds it, if any.

    With ``seal`` they are compared with these checksums when they are first read.
    """
    if isinstance(matrix, Rows):
        rows = matrix.reading(io)
        rows = rows if seal is None else copy.copy(rows)  # a seal may belong to one selection alone
    else:
        file = next((each for each in files if each.array is matrix), None)
        rows = ArrayRows(matrix) if file is None else FileRows(file, io)
    if seal is not None:
        rows.seal = seal
    return rows


def _pieces(columns: IndexArray, most: int, near: int) -> list[tuple[int, int]]:
    """Split ascending ``columns`` into runs that span at most ``most`` columns, with gaps of at most ``near``."""
    pieces, start = [], 0
    places = columns.tolist()
    for place in range(1, len(places) + 1):
        if place == len(places) or places[place] - places[place - 1] > near or places[place] - places[start] >= most:
            pieces.append((start, place))
            start = place
    return pieces


def _system_call(name: str, address: int, length: int, argument: object) -> int:
    """Call a function of the C library on a range of addresses; return 0 on success."""
    return int(getattr(_LIBRARY, name)(ctypes.c_void_p(address), ctypes.c_size_t(length), argument))
