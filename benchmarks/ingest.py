"""Ingest against the device: how much longer building a store takes than moving its bytes, or than reading its source.

Three parts, each in turn with what it is compared with. ``npy``: a file in C order, cold, against ``cp`` of as many bytes as are
read and written (matrix and tier), brought to the device; the ingest runs in a process of its own and may hold 2 GB of memory, with
``--group`` page cache included. ``csv``: a table of text, against pyarrow reading it into memory. ``blocks``: blocks of columns
from memory through the builder, against direct writes of matrix and tier; the values are made beforehand and not timed.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.harness.device import evict
from benchmarks.harness.memory import PeakMemory, memory_group
from benchmarks.harness.processes import run_cell
from benchmarks.harness.report import Report, argument_parser, at_least
from benchmarks.harness.timing import in_turn, paired
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.errors import MediumError
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.builder import StoreBuilder
from storage_backends.build.ingest import ingest
from storage_backends.build.schema import TableSchema

__all__ = ["main"]

PARTS = ("npy", "csv", "blocks")

#: Times the compared time, and bytes of memory.
NPY_BAR, CSV_BAR, BLOCKS_BAR, MEMORY_BAR = 1.3, 1.5, 1.3, 2e9

#: Observations of the matrices; rows and columns of the table, about 170 MB of text.
N_OBS, CSV_SHAPE = 20_000, (80_000, 200)

#: Columns of a block, different blocks that are made, and bytes of a direct write.
BLOCK_COLUMNS, BLOCKS_MADE, WRITE_BYTES = 256, 4, 8 << 20


@terminating_cleanly()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, judge."""
    parser = argument_parser("ingest", __doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default all)")
    parser.add_argument("--npy-gb", type=float, help="size of the NPY file (default 10, with --quick 1)")
    parser.add_argument("--blocks-gb", type=float, help="size of the matrix that is generated (default 40, with --quick 1)")
    parser.add_argument("--repeats", type=int, help="turns (default 11, of blocks 3; with --quick 1)")
    parser.add_argument("--folder", type=Path, help="folder on the device to measure (default the current one)")
    parser.add_argument("--group", action="store_true", help="limit the ingest of npy by a control group of 2 GB")
    options = parser.parse_args(argv)
    if options.cell:
        print(json.dumps(ingest_cell(**options.cell)))
        return 0
    npy_size = (1.0 if options.quick else 10.0) if options.npy_gb is None else options.npy_gb
    blocks_size = (1.0 if options.quick else 40.0) if options.blocks_gb is None else options.blocks_gb
    at_least("--npy-gb", npy_size, 0.001)
    at_least("--blocks-gb", blocks_size, 0.001)
    at_least("--repeats", 1 if options.repeats is None else options.repeats, 1)
    repeats, few = [options.repeats or (1 if options.quick else usual) for usual in (11, 3)]
    report = Report(options, argv)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="ingest-") as name:
        folder = Path(name).resolve()
        if "npy" in options.parts:
            npy(report, folder, npy_size, repeats, grouped=options.group)
        if "csv" in options.parts:
            csv(report, folder, (CSV_SHAPE[0] // 10, CSV_SHAPE[1]) if options.quick else CSV_SHAPE, repeats)
        if "blocks" in options.parts:
            blocks(report, folder, blocks_size, few)
    return report.finish()


def npy(report: Report, folder: Path, gigabytes: float, repeats: int, *, grouped: bool) -> None:
    """Ingest a cold file in C order, and copy as many bytes."""
    shape = _shape(gigabytes)
    source, store, copies = folder / "source.npy", folder / "store", (folder / "matrix", folder / "tier")
    size = shape[0] * shape[1] * 4
    _check_room(folder, 2.3 * size)
    _make_npy(source, shape)
    peaks: list[float] = []
    taken: list[float] = []

    def ingested() -> None:
        with memory_group(int(MEMORY_BAR)) if grouped else contextlib.nullcontext() as group:
            if grouped and group is None:
                raise MediumError("a control group cannot be made here: leave out --group")
            found = run_cell("benchmarks.ingest", {"source": str(source), "store": str(store)}, None, group)
        peaks.append(found["peak_memory"])
        taken.append(found["seconds"])

    def copied() -> None:
        subprocess.run(["cp", source, copies[0]], check=True)
        with copies[1].open("wb") as target:
            subprocess.run(["head", "-c", str(size // 4), source], stdout=target, check=True)
        for copy in copies:
            with copy.open("rb") as file:
                os.fdatasync(file.fileno())

    def emptied() -> None:
        shutil.rmtree(store, ignore_errors=True)
        for copy in copies:
            copy.unlink(missing_ok=True)
        evict(source)

    seconds, _ = in_turn({"ingest": ingested, "cp": copied}, repeats, untimed={"ingest": emptied, "cp": emptied})
    seconds["ingest"] = taken  # without the start of the process
    emptied()
    source.unlink()
    limit = " under a control group of 2 GB" if grouped else ""
    _show(report, f"NPY in C order, {shape[0]} x {shape[1]}, {size / 1e9:.1f} GB{limit}", seconds, "cp", 2.25 * size, NPY_BAR)
    report.bar("npy: bytes of anonymous memory", max(peaks), MEMORY_BAR, at_most=True)


def csv(report: Report, folder: Path, shape: tuple[int, int], repeats: int) -> None:
    """Ingest a table of text, and read it with pyarrow."""
    import pyarrow
    import pyarrow.csv

    source, rng = folder / "source.csv", np.random.default_rng(0)
    names = [f"c{column}" for column in range(shape[1])]
    pyarrow.csv.write_csv(pyarrow.table([rng.standard_normal(shape[0], dtype=np.float32) for _ in names], names), source)
    contestants = {
        "ingest": lambda: ingest(source, f"mmap://{folder}/store", replace=True),
        "pyarrow": lambda: pyarrow.csv.read_csv(source),
    }
    seconds, _ = in_turn(contestants, repeats, warm=1)
    size = source.stat().st_size
    shutil.rmtree(folder / "store")
    source.unlink()
    _show(report, f"CSV, {shape[0]} x {shape[1]}, {size / 1e6:.0f} MB, warm", seconds, "pyarrow", size, CSV_BAR)


def blocks(report: Report, folder: Path, gigabytes: float, repeats: int) -> None:
    """Build a store from blocks of columns in memory, and write as many bytes."""
    n_obs, n_columns = _shape(gigabytes)
    size, rng = n_obs * n_columns * 4, np.random.default_rng(0)
    _check_room(folder, 1.3 * size)
    made = [rng.standard_normal((BLOCK_COLUMNS, n_obs), dtype=np.float32) for _ in range(BLOCKS_MADE)]

    def built() -> None:
        url, schema = f"mmap://{folder}/store", TableSchema.plain(n_obs, NumberedNames(n_columns))
        with StoreBuilder(url, schema) as builder:
            for number, first in enumerate(range(0, n_columns, BLOCK_COLUMNS)):
                builder.write_columns(first, made[number % BLOCKS_MADE][: n_columns - first])
            builder.finish()

    def written() -> None:
        for name, length in (("matrix", size), ("tier", size // 4)):
            _write_directly(folder / name, length)

    def emptied() -> None:
        shutil.rmtree(folder / "store", ignore_errors=True)
        for name in ("matrix", "tier"):
            (folder / name).unlink(missing_ok=True)

    seconds, _ = in_turn({"builder": built, "device": written}, repeats, untimed={"builder": emptied, "device": emptied})
    emptied()
    title = f"blocks of {BLOCK_COLUMNS} columns, {n_obs} x {n_columns}, {size / 1e9:.1f} GB"
    _show(report, title, seconds, "device", 1.25 * size, BLOCKS_BAR)


def ingest_cell(source: str, store: str) -> dict[str, float]:
    """Ingest in this process; return seconds and the peak of anonymous memory."""
    with PeakMemory() as memory:
        started = time.perf_counter()
        ingest(source, f"mmap://{store}")
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_memory": float(memory.peak)}


def _shape(gigabytes: float) -> tuple[int, int]:
    """Return observations and columns of a float32 matrix of about this size."""
    return N_OBS, max(BLOCK_COLUMNS, round(gigabytes * 1e9 / (4 * N_OBS)))


def _check_room(folder: Path, needed: float) -> None:
    """Refuse to begin where the disk will not hold the files."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise MediumError(
            f"{needed / 1e9:.0f} GB of disk are needed, {free / 1e9:.0f} GB are free: ask for less or name a --folder"
        )


def _make_npy(path: Path, shape: tuple[int, int]) -> None:
    """Write a matrix of normal numbers in C order: 64 rows again and again, one of them raised by 1 each time."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((64, shape[1]), dtype=np.float32)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for first in range(0, shape[0], len(rows)):
            rows[first // len(rows) % len(rows)] += 1.0
            rows[: shape[0] - first].tofile(file)


def _write_directly(path: Path, length: int) -> None:
    """Write ``length`` bytes to a new file past the page cache, where its file system allows it, and bring them to the device."""
    flags = os.O_WRONLY | os.O_CREAT
    try:
        descriptor = os.open(path, flags | os.O_DIRECT)
    except OSError:
        descriptor = os.open(path, flags)
    buffer = mmap.mmap(-1, WRITE_BYTES)
    buffer.write(np.random.default_rng(0).bytes(WRITE_BYTES))
    try:
        os.posix_fallocate(descriptor, 0, length)
        for position in range(0, length - WRITE_BYTES + 1, WRITE_BYTES):
            os.pwrite(descriptor, buffer, position)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _show(report: Report, title: str, seconds: dict[str, list[float]], other: str, size: float, limit: float) -> None:
    """Report seconds and bytes per second, and judge the ratio of the first contestant to the ``other``."""
    rows = [(name, median(taken), size / 1e9 / median(taken)) for name, taken in seconds.items()]
    report.table(title, ("contestant", "median seconds", "GB/s, read and written"), rows)
    report.figures(**{title: seconds})
    first = next(iter(seconds))
    report.bar(f"{title.split(',')[0]}: {first} over {other}", paired(seconds[first], seconds[other]), limit, at_most=True)


if __name__ == "__main__":
    raise SystemExit(main())
