"""Selections on each medium, below and above the memory allowed: DRAM, persistent memory, files warm and cold.

Every cell (data, medium, algorithm, tier) runs in its own process and gives the median over its repetitions, after one that does
not count where the medium is warm. Copying into DRAM is not part of the time and is given beside it. Persistent memory is emulated
unless the machine has it, and every row says so: a mapping of a file system, without the latencies of a device; at Optane pace,
reads from it are slowed to the published bandwidth of a module. The data set larger than memory runs inside a control group that
may use a quarter of its bytes, page cache included; where no group can be made those rows are skipped, with the reason.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import fastomp_nvm as fo
from benchmarks.harness.data import build_paper_design
from benchmarks.harness.device import direct_bandwidth, evict
from benchmarks.harness.memory import PeakMemory, memory_group
from benchmarks.harness.processes import CellError, run_cell, server
from benchmarks.harness.report import Report, argument_parser
from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import FastompError, MediumError, RequestError
from fastomp_nvm.remote.client import Client
from fastomp_nvm.stores.url import StoreURL

__all__ = ["main"]

ALGORITHMS = ("fast_omp", "sds_omp")

#: Settings of FAST_OMP: as in ``paper.toml``, with the default polish.
PAPER: dict[str, Any] = {"tau": 0.9, "until": "full"}

#: Time limit of a cell in seconds.
PATIENCE = 1800

#: Seconds without an answer after which a server counts as dead.
REMOTE_PATIENCE = 600

#: A file system in memory.
SHARED_MEMORY = Path("/dev/shm")

MCAS = "MCAS, pushed down"

#: Bytes of a data set larger than memory over its allowance.
EXCESS = 4

COLOURS = {
    ("fast_omp", "exact"): "#d62728",
    ("fast_omp", "int8"): "#ff9896",
    ("sds_omp", "exact"): "#1f77b4",
    ("sds_omp", "int8"): "#aec7e8",
}

#: Beyond this factor between the quickest and the slowest the axis of a figure is logarithmic.
WIDE = 30

#: Least number of repetitions for quantiles; the range is used below it.
FEW = 5

#: Largest run time beyond memory: over the run in DRAM with the tier loaded, over passes x bytes / bandwidth without.
TIER_BAR, EXACT_BAR = 2.0, 1.3

TITLES = {
    "small": "The paper's small set, far smaller than memory",
    "large": "The paper's large set scaled down, smaller than memory",
    "excess": "Four times the memory allowed",
}

Rows = list[dict[str, Any]]


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
        """Return the settings of an algorithm besides k."""
        return PAPER if algorithm == "fast_omp" and not self.defaults else {}

    @property
    def bytes(self) -> int:
        """Size of the exact matrix."""
        return self.n_obs * self.n_features * np.dtype(self.dtype).itemsize

    @property
    def stored_bytes(self) -> int:
        """Approximate size of its store: the matrix and a tier of one byte per entry."""
        return self.bytes + self.n_obs * self.n_features


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement.

    Attributes
    ----------
    data, medium : str
        Names of the data set and of the medium.
    url : str
        The store.
    algorithm : str
    tier : {"exact", "int8"}
    k, repeats : int
    load : {"", "dram", "tier"}
        Copied into memory first: everything, or the tier.
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
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, report, judge."""
    parser = argument_parser("media", __doc__, out=True)
    parser.add_argument("--folder", type=Path, help="folder on the device to measure (default the folder of the results)")
    parser.add_argument("--data", nargs="+", choices=("small", "large", "excess"), help="data sets (default all)")
    parser.add_argument("--defaults", action="store_true", help="FAST_OMP with default settings, not with the paper's tau")
    parser.add_argument("--scale", type=float, default=1.0, help="divide the number of features by this")
    parser.add_argument("--mcas", metavar="HOST:PORT", help="an MCAS server to push selections down to (default none)")
    options = parser.parse_args(argv)
    if options.cell:
        print(json.dumps(measure_cell(Cell(**options.cell))))
        return 0
    if not 0 < options.scale < math.inf:
        raise RequestError(f"--scale is {options.scale:g}: expected a number above 0")
    every = data_sets(options.quick, options.scale)
    wanted = [replace(each, defaults=options.defaults) for each in every if each.name in (options.data or each.name)]
    for data in wanted:
        if data.n_features < data.k:
            raise RequestError(
                f"--scale {options.scale:g} leaves {data.n_features} features to {data.name!r}, of which {data.k} are selected"
            )
    folder = options.folder or options.out
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if lacking := _lacking(existing, sum(data.stored_bytes for data in wanted)):
        raise MediumError(f"{lacking}: choose a larger --scale or another --folder")
    report = Report(options, argv)
    rows: list[dict[str, Any]] = []
    # Closed here and not when it is collected: a signal may come between two rows.
    with contextlib.closing(measure(wanted, folder, options.mcas)) as measured:
        for row in measured:
            rows.append(row)
            report.measured(row)
            outcome = row.get("skipped") or f"{row['seconds']:.3f} s"
            report.progress(f"  {row['data']:7} {row['medium']:28} {row.get('algorithm', ''):9} {row.get('tier', ''):6} {outcome}")
    for name in dict.fromkeys(row["data"] for row in rows):
        show(report, name, [row for row in rows if row["data"] == name])
    judge(report, rows)
    return report.finish()


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
    """Run every cell, also on the MCAS server at HOST:PORT if there is one; yield its row."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="media-") as disk:
        memory = Path(tempfile.mkdtemp(dir=SHARED_MEMORY, prefix="fastomp-media-")) if os.access(SHARED_MEMORY, os.W_OK) else None
        try:
            for data in data_sets:
                yield from _measure_data(data, Path(disk).resolve(), memory, mcas)
        finally:
            if memory is not None:
                shutil.rmtree(memory)


def _measure_data(data: Data, disk: Path, memory: Path | None, mcas: str | None) -> Iterator[dict[str, Any]]:
    """Build a data set on every medium and run its cells."""
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
                    continue  # the overhead of the server does not depend on the tier
                yield run_process(replace(cell, algorithm=algorithm, tier=tier, asked=data.asked(algorithm)), data)
    yield from _in_mcas(data, store, mcas)
    if memory is not None:
        shutil.rmtree(memory / data.name)


def _lacking(place: Path, needed: int) -> str | None:
    """Return a sentence if a folder lacks room for ``needed`` bytes, else None."""
    free = shutil.disk_usage(place).free
    return None if needed <= free else f"{place} has {free / 1e6:,.0f} MB free and {needed / 1e6:,.0f} MB are needed"


def _in_mcas(data: Data, store: Path, address: str | None) -> Iterator[dict[str, Any]]:
    """Put the data into a pool of the MCAS server at HOST:PORT, run its cells there, and delete it."""
    skipped = {"data": data.name, "medium": MCAS}
    if address is None:
        yield {**skipped, "skipped": "needs an MCAS server: see fastomp ado, and give its address with --mcas"}
        return
    url = f"mcas://{address}/fastomp-bench/{data.name}-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as stack:
        try:
            # Open until the end: without clients the server ends the process that serves the pool, and starting it takes long.
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
            client.cancel(job.name)
        client.delete()
    except FastompError as error:  # the figures are kept
        print(f"the data could not be deleted from the MCAS server: {error}", flush=True)


def _excess(data: Data, store: Path) -> Iterator[dict[str, Any]]:
    """Run the data set in DRAM, and from its file under a memory limit that it exceeds."""
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
    """Generate a data set into a store."""
    build_paper_design(url, data.n_obs, data.n_features, data.dtype)


def run_process(cell: Cell, data: Data) -> dict[str, Any]:
    """Run a cell in a process of its own, inside a memory limit where it has one; return its row."""
    row: dict[str, Any] = {**asdict(cell), "n_obs": data.n_obs, "n_features": data.n_features, "bytes": data.bytes}
    with memory_group(cell.allowed or 1 << 40) as group:
        if cell.allowed and group is None:
            return {**row, "skipped": "no right to make a memory control group"}
        if cell.allowed and group is not None:
            row["limit"] = f"cgroup v{group.version}, {cell.allowed / 1e6:.0f} MB, page cache included"
        try:
            return row | run_cell("benchmarks.media", asdict(cell), PATIENCE, group if cell.allowed else None)
        except CellError as error:
            return {**row, "skipped": str(error)}


def measure_cell(cell: Cell) -> dict[str, Any]:
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
        # The first run on a warm medium loads the pages and does not count.
        for turn in range(cell.repeats + (not cell.cold)):
            stayed = [evict(folder / name) for name in ("matrix.npy", "tier.npy")] if cell.cold else []
            started = time.perf_counter()
            with fo.open_store(cell.url) as store:
                if cell.load == "tier" or (cell.load == "dram" and cell.tier == "int8"):
                    store.load_tier()
                dataset = Dataset.of_store(store)
                dataset = dataset.loaded(cell.url) if cell.load == "dram" else dataset
                loads.append(time.perf_counter() - started)
                found = fo.select(dataset, k=cell.k, algorithm=cell.algorithm, plain=True, tier=cell.tier, **cell.asked)
                traits = dataset.traits
                del dataset  # frees its copy in memory before the next turn makes another
            if cell.cold or turn:
                taken.append(found.seconds)
    return {
        **_figures(found, taken),
        "load_seconds": min(loads),
        "emulated": traits.emulated,
        "detail": traits.detail,
        "peak_memory": memory.peak,
        "resident_before": max(stayed, default=None),
    }


def _figures(found: fo.Selection, taken: list[float]) -> dict[str, Any]:
    """Return the figures of the last selection and the seconds of all."""
    return {
        "seconds": float(np.median(taken)),
        "all_seconds": taken,
        "score": found.score,
        "indices": found.indices.tolist(),
        "passes": found.full_passes,
        "bytes_read": found.bytes_read,
        "bytes_read_exact": found.bytes_read_exact,
    }


def _pushed(cell: Cell) -> dict[str, Any]:
    """Run a cell through the embedded server."""
    folder = Path(cell.url.removeprefix("pushed:"))
    pools = f"mmap://{folder.parent.parent}"
    with server("fastomp_nvm", "serve", "--pools", pools, "--listen", "127.0.0.1:0") as (_, port):
        url = f"grpc://127.0.0.1:{port}/{folder.parent.name}/{folder.name}"
        with fo.connect(url, timeout=REMOTE_PATIENCE) as client:
            return _through(client, cell, "embedded server over loopback")


def _through(client: Client, cell: Cell, detail: str) -> dict[str, Any]:
    """Push the selections of a cell down to a server; return its figures, with the seconds of the client."""
    taken = []
    for turn in range(cell.repeats + 1):
        started = time.perf_counter()
        found = client.select(k=cell.k, algorithm=cell.algorithm, plain=True, tier=cell.tier, **cell.asked)
        if turn:
            taken.append(time.perf_counter() - started)
    figures = {"load_seconds": 0.0, "emulated": False, "detail": detail, "peak_memory": 0, "resident_before": None}
    return {**_figures(found, taken), **figures}


def _refusal(data: Data, url: str) -> str | None:
    """Build a data set; return the reason if it cannot be built."""
    try:
        build(data, url)
    except FastompError as error:
        return str(error)
    return None


def show(report: Report, name: str, rows: Rows) -> None:
    """Report one data set: sentences, figure, table."""
    measured = [row for row in rows if "seconds" in row]
    report.heading(TITLES.get(name, name))
    for row in rows:
        if "k" in row:
            settings = ", ".join(f"{key} {value}" for key, value in row.get("asked", {}).items()) or "default settings"
            report.say(f"{row['n_obs']:,} x {row['n_features']:,}, {row['bytes'] / 1e6:,.0f} MB, k = {row['k']}, {settings}")
            break
    for sentence in filter(None, (noise_sentence(measured), _cost_sentence(measured), *_excess_sentences(measured))):
        report.say(sentence)
    if measured:
        report.figure(name, lambda path: _draw(path, measured))
    heads = ("medium", "algorithm", "tier", "seconds", "least to most", "load s", "passes", "GB read", "peak MB", "score", "note")
    table = []
    for row in sorted(rows, key=lambda row: "skipped" in row):
        label = (row["medium"], row.get("algorithm"), row.get("tier"))
        if "seconds" not in row:
            table.append((*label, "skipped", *[None] * 6, row["skipped"]))
            continue
        spread = f"{min(row['all_seconds']):.3f} to {max(row['all_seconds']):.3f}"
        figures = (row["load_seconds"], row["passes"], row["bytes_read"] / 1e9, (row["peak_memory"] / 1e6) or None, row["score"])
        note = "; ".join(filter(None, (row.get("limit", ""), row["detail"] if row["emulated"] else "")))
        table.append((*label, row["seconds"], spread, *figures, note))
    report.table("", heads, table)


def judge(report: Report, rows: Rows) -> None:
    """Judge a run: the same features on every medium, and the cost of exceeding the memory."""
    differing = _differing(rows)
    if differing:
        report.say(f"The features depend on the medium or the tier for {', '.join(differing)}, which is a defect.")
    report.bar("answers that depend on the medium or the tier", len(differing), 0, at_most=True)
    excess = [row for row in rows if row["data"] == "excess" and "seconds" in row]
    for algorithm in ALGORITHMS:
        dram, tiered = _find(excess, "dram", algorithm, "exact"), _find(excess, "mmap, limited, tier in DRAM", algorithm, "int8")
        if dram and tiered:
            claim = f"{algorithm.upper()}, tier in DRAM: times the all-in-DRAM run"
            report.bar(claim, tiered["seconds"] / dram["seconds"], TIER_BAR, at_most=True)
        if exact := _find(excess, "mmap, limited", algorithm, "exact"):
            claim = f"{algorithm.upper()}, exact only: times passes x bytes / device bandwidth"
            ratio = exact["seconds"] * exact["device_bytes_per_second"] / exact["bytes_read"]
            report.bar(claim, ratio, EXACT_BAR, at_most=True)


def _differing(rows: Rows) -> list[str]:
    """Return the data sets and algorithms whose features depend on the medium or the tier."""
    answers: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for row in rows:
        if "indices" in row:
            answers.setdefault((row["data"], row["algorithm"]), set()).add(tuple(row["indices"]))
    return [f"{data}/{algorithm}" for (data, algorithm), found in answers.items() if len(found) > 1]


def _draw(path: Path, rows: Rows) -> None:
    """Draw seconds per medium, a bar for each algorithm and tier, with the range of the repetitions."""
    from matplotlib import pyplot

    media = list(dict.fromkeys(row["medium"] for row in rows))
    kinds = [kind for kind in COLOURS if any((row["algorithm"], row["tier"]) == kind for row in rows)]
    figure, axis = pyplot.subplots(figsize=(11, 1.2 + 0.75 * len(media)))
    height = 0.8 / len(kinds)
    for place, kind in enumerate(kinds):
        for row in rows:
            if (row["algorithm"], row["tier"]) == kind:
                level = media.index(row["medium"]) + (place - (len(kinds) - 1) / 2) * height
                spread = [[row["seconds"] - min(row["all_seconds"])], [max(row["all_seconds"]) - row["seconds"]]]
                axis.barh(level, row["seconds"], height * 0.9, xerr=spread, color=COLOURS[kind], error_kw={"lw": 0.8})
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLOURS[kind]) for kind in kinds]
    names = [f"{algorithm.upper()}, {tier}" for algorithm, tier in kinds]
    figure.legend(handles, names, loc="lower center", ncols=len(names), frameon=False)
    axis.set_yticks(range(len(media)), media)
    axis.invert_yaxis()
    least, most = (extreme(row["seconds"] for row in rows) for extreme in (min, max))
    if most > WIDE * least > 0:
        axis.set(xscale="log", xlim=(least / 2, 2 * most), xlabel="seconds (logarithmic)")
        axis.xaxis.set_major_formatter("{x:g}")
    else:
        axis.set(xlabel="seconds")
    axis.grid(alpha=0.3, axis="x")
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _find(rows: Rows, medium: str, algorithm: str, tier: str) -> dict[str, Any] | None:
    """Return the row of a cell."""
    return next((row for row in rows if (row["medium"], row["algorithm"], row["tier"]) == (medium, algorithm, tier)), None)


def noise_sentence(rows: Rows) -> str:
    """Say whether persistent memory and DRAM differ by more than the noise.

    The noise of a pair is the larger of the factors that the repetitions of either cell spread over. What other cells do, and one
    slow repetition among many, is no reason to call a steady difference noise.
    """
    parts = []
    for algorithm, tier in COLOURS:
        dram = _find(rows, "dram", algorithm, tier)
        media = ("tmpfs-pmem", "pmem, Optane pace", "pmem")
        others = [found for medium in media if (found := _find(rows, medium, algorithm, tier))]
        if dram is None or not others:
            continue
        for other in others:
            noise = max(_spread(dram["all_seconds"]), _spread(other["all_seconds"]))
            ratio = other["seconds"] / dram["seconds"]
            verdict = "within" if max(ratio, 1 / ratio) <= noise else "beyond"
            parts.append(f"{other['medium']} {algorithm.upper()} {tier} {ratio:.2f} ({verdict} a noise of {noise:.2f})")
    if not parts:
        return ""
    kind = "emulated" if all(row["emulated"] for row in rows if "pmem" in row["medium"]) else "real"
    within = sum("(within" in part for part in parts)
    verdict = (
        "is within the noise, as the paper found"
        if within == len(parts)
        else f"is within the noise in {within} of {len(parts)} pairs"
    )
    return f"NVM ({kind}) against DRAM {verdict}. Times the seconds of DRAM: {', '.join(parts)}."


def _spread(seconds: list[float]) -> float:
    """Return the factor between the 90th and the 10th percentile of repetitions, or between the extremes of few."""
    least, most = np.quantile(seconds, (0.1, 0.9) if len(seconds) >= FEW else (0.0, 1.0))
    return float(most / least)


def _cost_sentence(rows: Rows) -> str:
    """Return SDS_OMP's time over FAST_OMP's on each medium."""
    ratios = []
    for medium in dict.fromkeys(row["medium"] for row in rows):
        fast, slow = _find(rows, medium, "fast_omp", "exact"), _find(rows, medium, "sds_omp", "exact")
        if fast and slow:
            ratios.append(f"{medium} {slow['seconds'] / fast['seconds']:.1f}")
    return f"SDS_OMP's seconds over FAST_OMP's (exact): {', '.join(ratios)}." if ratios else ""


def _excess_sentences(rows: Rows) -> Iterator[str]:
    """Yield figures beside the bars of data larger than memory."""
    for algorithm in ALGORITHMS:
        both, tiered = _find(rows, "dram", algorithm, "int8"), _find(rows, "mmap, limited, tier in DRAM", algorithm, "int8")
        if both and tiered:
            ratio = tiered["seconds"] / both["seconds"]
            yield f"{algorithm.upper()}, tier in DRAM: times the all-in-DRAM run with the tier: {ratio:.2f}."
        if exact := _find(rows, "mmap, limited", algorithm, "exact"):
            yield f"{algorithm.upper()}, exact only: device bandwidth {exact['device_bytes_per_second'] / 1e9:.2f} GB/s."


if __name__ == "__main__":
    raise SystemExit(main())
