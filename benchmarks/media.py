"""What a selection costs on each medium, below and above the memory allowed: DRAM, persistent memory, files warm and cold.

``fastomp bench media`` builds each data set once per place, then runs every cell (data, medium, algorithm, tier) in its own process
and writes ``media.jsonl`` (a line per cell), a figure per data set and one HTML page. Persistent memory is emulated unless the
machine has it, and every row says so: a mapping on the file system named in the row, once as quick as it is and once held back to
the pace of a published Optane module. The data set larger than memory runs inside a control group that may use a quarter of its
bytes, page cache included; without the right to make one those rows are skipped, with the reason. Exit code 1
when a bar is missed, but not with ``--quick``, whose data are too small to be judged by.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fastomp_nvm as fo
from benchmarks.harness.device import direct_bandwidth, evict
from benchmarks.harness.machine import fingerprint, show_bars
from benchmarks.harness.memory import PeakMemory, memory_group
from benchmarks.harness.processes import run_alone
from benchmarks.media_report import media_bars, noise_sentence, write_report
from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import FastompError, MediumError, RequestError
from fastomp_nvm.remote.client import Client
from fastomp_nvm.stores.contract import Target
from fastomp_nvm.stores.names import NumberedNames
from fastomp_nvm.stores.url import StoreURL
from storage_backends.build.builder import StoreBuilder
from storage_backends.build.schema import TableSchema

__all__ = ["main"]

ALGORITHMS = ("fast_omp", "sds_omp")

#: What is asked of FAST_OMP: as in ``paper.toml``, with the polish that users get.
PAPER: dict[str, Any] = {"tau": 0.9, "until": "full"}

#: Seconds after which a cell is given up.
PATIENCE = 1800

#: Seconds without a word after which a server counts as dead.
REMOTE_PATIENCE = 600

#: A file system in memory.
SHARED_MEMORY = Path("/dev/shm")

MCAS = "MCAS, pushed down"

#: What a data set larger than memory is to its allowance.
EXCESS = 4


@dataclass(frozen=True, slots=True)
class Data:
    """A data set of the benchmark: the paper's design at some size."""

    name: str
    n_obs: int
    n_features: int
    dtype: str
    k: int
    repeats: int
    defaults: bool = False

    def asked(self, algorithm: str) -> dict[str, Any]:
        """Return what is asked of an algorithm besides k."""
        return PAPER if algorithm == "fast_omp" and not self.defaults else {}

    @property
    def bytes(self) -> int:
        """Size of the exact matrix."""
        return self.n_obs * self.n_features * np.dtype(self.dtype).itemsize

    @property
    def stored_bytes(self) -> int:
        """What a store of it takes, roughly: the matrix and a tier of a byte per entry."""
        return self.bytes + self.n_obs * self.n_features


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement.

    Attributes
    ----------
    data, medium : str
        Which data, and the medium as the reader is told.
    url : str
        The store.
    algorithm : str
    tier : {"exact", "int8"}
    k, repeats : int
    load : {"", "dram", "tier"}
        What is copied into memory first: everything, or the tier.
    cold : bool
        Drop the files from memory before every repetition.
    allowed : int
        Bytes of memory the process may use; 0 for no limit.
    asked : dict
        Further fields of the request.
    """

    data: str
    medium: str
    url: str
    algorithm: str
    tier: str
    k: int
    repeats: int
    load: str = ""
    cold: bool = False
    allowed: int = 0
    asked: dict[str, Any] = field(default_factory=dict)


@terminating_cleanly()
def main(argv: list[str] | None = None) -> int:
    """Measure, write, judge."""
    parser = argparse.ArgumentParser(prog="fastomp bench media", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller data, fewer repetitions: under three minutes")
    parser.add_argument("--out", type=Path, default=Path("bench-out/media"), help="folder of the results (default bench-out/media)")
    parser.add_argument("--folder", type=Path, help="folder on the device to measure (default the folder of the results)")
    parser.add_argument("--data", nargs="+", choices=("small", "large", "excess"), help="which data sets (default all)")
    parser.add_argument("--defaults", action="store_true", help="FAST_OMP as users get it, not with the paper's tau")
    parser.add_argument("--scale", type=float, default=1.0, help="divide the number of features by this")
    parser.add_argument("--mcas", metavar="HOST:PORT", help="an MCAS server to push selections down to (default none)")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.cell:
        print(json.dumps(run_cell(Cell(**json.loads(arguments.cell)))))
        return 0
    if not 0 < arguments.scale < math.inf:
        raise RequestError(f"--scale is {arguments.scale:g}: expected a number above 0")
    every = data_sets(arguments.quick, arguments.scale)
    wanted = [replace(each, defaults=arguments.defaults) for each in every if each.name in (arguments.data or each.name)]
    for data in wanted:
        if data.n_features < data.k:
            raise RequestError(
                f"--scale {arguments.scale:g} leaves {data.n_features} features to {data.name!r}, of which {data.k} are selected"
            )
    arguments.out.mkdir(parents=True, exist_ok=True)
    folder = arguments.folder or arguments.out
    if lacking := _lacking(folder, sum(data.stored_bytes for data in wanted)):
        raise MediumError(f"{lacking}: choose a larger --scale or another --folder")
    rows: list[dict[str, Any]] = []
    machine = fingerprint()
    with (
        (arguments.out / "media.jsonl").open("w", encoding="utf-8") as lines,
        # Closed here and not when it is collected: a signal may come between two rows.
        contextlib.closing(measure(wanted, folder, arguments.mcas)) as measured,
    ):
        for row in measured:
            rows.append(row)
            lines.write(json.dumps({"machine": machine, **row}) + "\n")
            lines.flush()
    console = Console(width=160, highlight=False, markup=False)
    show(console, rows)
    bars = media_bars(rows)
    show_bars(console, bars)
    print(f"wrote {write_report(arguments.out, rows, machine)}")
    return 0 if arguments.quick or all(bar.met for bar in bars) else 1


def data_sets(quick: bool, scale: float) -> list[Data]:
    """Return the data sets: the paper's small one, its large one scaled down, and one meant to exceed the memory allowed."""
    small = Data("small", 1000, 500, "float32", 100, 3 if quick else 10)
    if quick:  # no smaller: a quarter of the last must hold its tier and a process of 130 MB
        return [
            small,
            Data("large", 2000, int(20_000 / scale), "float32", 30, 3),
            Data("excess", 2000, int(80_000 / scale), "float64", 20, 1),
        ]
    # float64, so that an int8 tier takes half of an allowance of a quarter of the matrix.
    return [
        small,
        Data("large", 4000, int(100_000 / scale), "float32", 100, 5),
        Data("excess", 5000, int(200_000 / scale), "float64", 100, 2),
    ]


def measure(data_sets: list[Data], folder: Path, mcas: str | None = None) -> Generator[dict[str, Any], None, None]:
    """Run every cell, with an MCAS server at HOST:PORT on that too; yield its row."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="media-") as disk:
        memory = Path(tempfile.mkdtemp(dir=SHARED_MEMORY, prefix="fastomp-media-")) if os.access(SHARED_MEMORY, os.W_OK) else None
        try:
            for data in data_sets:
                yield from _measure_data(data, Path(disk).resolve(), memory, mcas)
        finally:
            if memory is not None:
                shutil.rmtree(memory)


def _measure_data(data: Data, disk: Path, memory: Path | None, mcas: str | None) -> Iterator[dict[str, Any]]:
    """Build a data set in every place and run its cells."""
    print(f"{data.name}: building {data.n_obs} x {data.n_features} {data.dtype}, {data.bytes / 1e6:.0f} MB", flush=True)
    store = disk / "pools" / "bench" / data.name
    store.parent.mkdir(parents=True, exist_ok=True)
    build(data, f"mmap://{store}")
    if data.name == "excess":
        yield from _excess(data, store)
        shutil.rmtree(store)
        return
    needed = sum(file.stat().st_size for file in store.rglob("*")) * 11 // 10  # file systems round up
    no_memory = _lacking(memory, needed) if memory else f"{SHARED_MEMORY} cannot be written"
    if no_memory:
        memory = None
    if memory is not None:
        shutil.copytree(store, memory / data.name)
    # After the copy, because both may have to fit into the same memory.
    shelf = f"shelf://{memory or disk}#{data.name}"
    absent = {
        "tmpfs-pmem": no_memory,
        "pymm shelf": _lacking(memory or disk, needed) or _refusal(data, shelf),
    }
    for medium, reason in absent.items():
        if reason:
            yield {"data": data.name, "medium": medium, "skipped": reason}
    # The three media keep the same files, so they are built once and opened as each.
    base = Cell(data.name, "", f"mmap://{store}", "", "exact", data.k, data.repeats)
    media = [replace(base, medium="dram", load="dram")]
    if memory is not None:
        media.append(replace(base, medium="tmpfs-pmem", url=f"pmem://{memory / data.name}"))
    if absent["pymm shelf"] is None:
        media.append(replace(base, medium="pymm shelf", url=shelf))
    media += [
        replace(base, medium="pmem", url=f"pmem://{store}"),
        replace(base, medium="pmem, Optane pace", url=f"pmem://{store}?profile=optane"),
        replace(base, medium="mmap warm"),
        replace(base, medium="mmap cold", cold=True),
        replace(base, medium="server, mmap warm", url=f"pushed:{store}"),
    ]
    tiers = ("exact",) if data.name == "small" else ("exact", "int8")
    for algorithm in ALGORITHMS:
        for tier in tiers:
            for cell in media:
                if cell.url.startswith("pushed:") and tier != "exact":
                    continue  # what the server adds does not depend on the tier
                yield run_process(replace(cell, algorithm=algorithm, tier=tier, asked=data.asked(algorithm)), data)
    yield from _in_mcas(data, store, mcas)
    if memory is not None:
        shutil.rmtree(memory / data.name)


def _lacking(place: Path, needed: int) -> str | None:
    """Say that there is no room for so many bytes in a place; None where there is."""
    free = shutil.disk_usage(place).free
    return None if needed <= free else f"{place} has {free / 1e6:,.0f} MB free and {needed / 1e6:,.0f} MB are needed"


def _in_mcas(data: Data, store: Path, server: str | None) -> Iterator[dict[str, Any]]:
    """Put the data into a pool of the MCAS server at HOST:PORT, run its cells there, and delete it."""
    skipped = {"data": data.name, "medium": MCAS}
    if server is None:
        yield {**skipped, "skipped": "needs a server of its own: see fastomp ado, and name it with --mcas"}
        return
    url = f"mcas://{server}/fastomp-bench/{data.name}-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as stack:
        try:
            # Open until the end: with its last client the server ends the process that serves the pool, and starting it takes long.
            client = stack.enter_context(fo.connect(url, timeout=REMOTE_PATIENCE))
            with fo.open_store(f"mmap://{store}") as opened:
                client.put(opened.matrix.T, PaperDesign(data.n_obs, data.n_features).response(), dtype=data.dtype)
        except FastompError as error:
            yield {**skipped, "skipped": str(error)}
            return
        stack.callback(_remove, client)
        for algorithm in ALGORITHMS:
            cell = Cell(data.name, MCAS, url, algorithm, "exact", data.k, data.repeats, asked=data.asked(algorithm))
            yield run_process(cell, data)


def _remove(client: Client) -> None:
    """Delete the data of a client from its pool, even if a cell that was killed left a run on it."""
    try:
        for job in client.jobs():
            client.cancel(job["job"])
        client.delete()
    except FastompError as error:  # the figures are worth more than its room
        print(f"the data could not be deleted from the MCAS server: {error}", flush=True)


def _excess(data: Data, store: Path) -> Iterator[dict[str, Any]]:
    """Run the data set in DRAM, and from its file under an allowance that it exceeds."""
    base = Cell(data.name, "", f"mmap://{store}", "", "exact", data.k, data.repeats)
    allowed = data.bytes // EXCESS
    for algorithm in ALGORITHMS:
        base = replace(base, algorithm=algorithm, asked=data.asked(algorithm))
        for tier in ("exact", "int8"):
            yield run_process(replace(base, medium="dram", tier=tier, load="dram"), data)
        for medium, tier, load in (
            ("mmap, limited", "exact", ""),
            ("mmap, limited, tier on file", "int8", ""),
            ("mmap, limited, tier in DRAM", "int8", "tier"),
        ):
            cell = replace(base, medium=medium, tier=tier, load=load, cold=True, allowed=allowed)
            # Before and after, because a shared device changes from minute to minute.
            before = direct_bandwidth(store / "matrix.npy")
            row = run_process(cell, data)
            yield {**row, "device_bytes_per_second": (before + direct_bandwidth(store / "matrix.npy")) / 2}


def build(data: Data, url: str) -> None:
    """Generate a data set straight into a store."""
    design = PaperDesign(data.n_obs, data.n_features)
    signal, rho = design.signal(), design.correlations()
    schema = TableSchema.plain(data.n_obs, NumberedNames(data.n_features))
    with StoreBuilder(url, schema, dtype=data.dtype, tier="int8") as builder:
        for first in range(0, data.n_features, design.block):
            builder.write_columns(first, design.columns(first // design.block, signal, rho))
        builder.finish({"y": Target(design.response())})


def run_process(cell: Cell, data: Data) -> dict[str, Any]:
    """Run a cell in a process of its own, inside a memory limit where it has one; return its row."""
    row: dict[str, Any] = {**asdict(cell), "n_obs": data.n_obs, "n_features": data.n_features, "bytes": data.bytes}
    words = [sys.executable, "-m", "benchmarks.media", "--cell", json.dumps(asdict(cell))]
    with memory_group(cell.allowed or 1 << 40) as group:
        if cell.allowed and group is None:
            return {**row, "skipped": "no right to make a memory control group"}
        if cell.allowed and group is not None:
            words = group.command(words)
            row["limit"] = f"cgroup v{group.version}, {cell.allowed / 1e6:.0f} MB, page cache included"
        try:
            done = run_alone(words, PATIENCE)
        except subprocess.TimeoutExpired:
            return {**row, "skipped": f"not done after {PATIENCE} s"}
    if done.returncode == -9:
        return {**row, "skipped": "killed: the memory allowed does not suffice"}
    if done.returncode:
        return {**row, "skipped": (done.stderr.strip().splitlines() or ["failed without a word"])[-1]}
    row |= json.loads(done.stdout)
    print(f"  {cell.data:7} {cell.medium:28} {cell.algorithm:9} {cell.tier:6} {row['seconds']:8.3f} s", flush=True)
    return row


def run_cell(cell: Cell) -> dict[str, Any]:
    """Run a cell in this process; return its figures."""
    if cell.url.startswith("pushed:"):
        return _pushed(cell)
    if cell.url.startswith("mcas:"):
        with fo.connect(cell.url, timeout=REMOTE_PATIENCE) as client:
            return _through(client, cell, "MCAS server")
    taken, loads = [], []
    found: Any = None
    folder = Path(StoreURL.parse(cell.url).path)
    with PeakMemory() as memory:
        # A warm medium gets one run that does not count: it brings the pages in.
        for turn in range(cell.repeats + (not cell.cold)):
            stayed = [evict(folder / name) for name in ("matrix.npy", "tier.npy")] if cell.cold else []
            started = time.perf_counter()
            with fo.open_store(cell.url) as store:
                if cell.load == "tier" or (cell.load == "dram" and cell.tier == "int8"):
                    store.load_tier()
                dataset = Dataset.of_store(store)
                dataset = dataset.loaded(cell.url) if cell.load == "dram" else dataset
                loads.append(time.perf_counter() - started)
                found = fo.select(dataset, k=cell.k, algorithm=cell.algorithm, tier=cell.tier, **cell.asked)
                traits = dataset.traits
                del dataset  # or its copy in memory would still be there when the next turn makes its own
            if cell.cold or turn:
                taken.append(found.seconds)
    return {
        "seconds": float(np.median(taken)),
        "all_seconds": taken,
        "load_seconds": min(loads),
        "score": found.score,
        "indices": found.indices.tolist(),
        "passes": found.full_passes,
        "bytes_read": found.bytes_read,
        "bytes_read_exact": found.bytes_read_exact,
        "emulated": traits.emulated,
        "detail": traits.detail,
        "peak_memory": memory.peak,
        "resident_before": max(stayed, default=None),
    }


def _pushed(cell: Cell) -> dict[str, Any]:
    """Run a cell through the embedded server."""
    from benchmarks.push_down import child

    folder = Path(cell.url.removeprefix("pushed:"))
    pools = f"mmap://{folder.parent.parent}"
    with child("fastomp_nvm", "serve", "--pools", pools, "--listen", "127.0.0.1:0") as (_, port):
        url = f"grpc://127.0.0.1:{port}/{folder.parent.name}/{folder.name}"
        with fo.connect(url, timeout=REMOTE_PATIENCE) as client:
            return _through(client, cell, "embedded server over loopback")


def _through(client: Client, cell: Cell, detail: str) -> dict[str, Any]:
    """Push the selections of a cell down to a server; return its figures, the seconds being the client's."""
    taken = []
    for turn in range(cell.repeats + 1):
        started = time.perf_counter()
        found = client.select(k=cell.k, algorithm=cell.algorithm, tier=cell.tier, **cell.asked)
        if turn:
            taken.append(time.perf_counter() - started)
    return {
        "seconds": float(np.median(taken)),
        "all_seconds": taken,
        "load_seconds": 0.0,
        "score": found.score,
        "indices": found.indices.tolist(),
        "passes": found.full_passes,
        "bytes_read": found.bytes_read,
        "bytes_read_exact": found.bytes_read_exact,
        "emulated": False,
        "detail": detail,
        "peak_memory": 0,
        "resident_before": None,
    }


def _refusal(data: Data, url: str) -> str | None:
    """Build a data set where it may not be possible; return why it is not."""
    try:
        build(data, url)
    except FastompError as error:
        return str(error)
    return None


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("data", "medium", "algorithm", "tier", "seconds", "passes", "score", "note")
    for row in rows:
        note = row.get("skipped") or row.get("limit") or ("emulated" if row["emulated"] else "")
        figures = [f"{row['seconds']:.3f}", f"{row['passes']:.1f}", f"{row['score']:.4f}"] if "seconds" in row else ["-"] * 3
        table.add_row(row["data"], row["medium"], row.get("algorithm", "-"), row.get("tier", "-"), *figures, note)
    console.print(table)
    for name in ("small", "large"):
        if sentence := noise_sentence([row for row in rows if row["data"] == name and "seconds" in row]):
            console.print(f"{name}: {sentence}")


if __name__ == "__main__":
    raise SystemExit(main())
