"""The constants of a plan, measured on this machine in well under a minute: the code that a selection runs, on small inputs.

Every figure is the best of a few repetitions, because what else runs here only ever makes it worse. Sweeps and products are timed
alone; what grows with the number of features, and the polish, are timed as differences of whole selections that share the rest.
What shards cost is measured where Ray is installed (``measuring_shards``) and stays assumed elsewhere.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.constraints.partition import Partition
from fastomp_nvm.errors import MediumError
from fastomp_nvm.matrix.kernels import kernel
from fastomp_nvm.matrix.reader import MatrixFile, Reader
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
from fastomp_nvm.planning.machine_profiles import Machine, Medium, Network, Profile
from fastomp_nvm.planning.measuring_shards import measure_shards
from fastomp_nvm.planning.plan import GRAM_WASTE
from fastomp_nvm.runs.select import select
from fastomp_nvm.stores.open import create_store

__all__ = ["measure"]

#: Entries of the matrices swept, and observations: several times the last-level cache, at any element type.
ENTRIES, OBSERVATIONS = 96 << 20, 2048

#: Bytes read from the device.
FILE_BYTES = 512 << 20

#: Features and observations of the selections that show what a feature costs however short its column is.
MANY, SHORT = 200_000, 16

#: Features and observations of the selections that show what the polish costs.
POLISHED = (40_000, 256)

_REPEATS = 5


def measure(folder: Path | None = None) -> Profile:
    """Measure this machine.

    Parameters
    ----------
    folder : Path, optional
        On the device to measure as the medium ``disk``; the folder for temporary files when left out.

    Returns
    -------
    Profile
    """
    cores = len(os.sched_getaffinity(0))
    rates, together = _sweeps(cores)
    products, copied = _products()
    with tempfile.TemporaryDirectory(dir=folder, prefix="fastomp-plan-") as place:
        exact, tiered, opening = _decisions(Path(place))
        disk = _device(Path(place))
        shards = measure_shards(Path(place), _REPEATS)
    square, step, inner_round, start = _driver(products)
    machine = Machine(
        source=f"measured on this machine, {time.strftime('%d %B %Y')}, kernel {kernel().id}",
        cores=cores,
        memory_bytes=float(psutil.virtual_memory().total),
        memory_bytes_per_second=together,
        entries_per_second=rates,
        products_per_second=products,
        dense_products_per_second=_dense_rate(),
        copied_bytes_per_second=copied,
        exact_decision=exact,
        tier_decision=tiered,
        opening=opening,
        greedy_square=square,
        greedy_step=step,
        inner_round=inner_round,
        start=start,
    )
    media = {"disk": Medium(f"direct reads in {folder or tempfile.gettempdir()}, measured", disk)}
    if shards is None:
        return Profile(machine, media)
    machine = replace(machine, call=shards.call, cluster_start=shards.cluster_start)
    return Profile(machine, media, Network("Ray's object store on this machine, measured", shards.bytes_per_second))


def _best(work: Callable[[], Any], repeats: int = _REPEATS) -> float:
    """Return the seconds of the quickest of some runs."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _sweeps(cores: int) -> tuple[dict[str, float], float]:
    """Return entries per second and core by element type, and the most bytes per second of all cores together."""
    rng = np.random.default_rng(0)
    tile = rng.standard_normal((256, OBSERVATIONS)).astype(np.float32)
    vector = rng.standard_normal((OBSERVATIONS, 1))
    codes = np.clip(vector.T * 2000, -8000, 8000).astype(np.int16)
    rates, together = {}, 0.0
    for name in ("float16", "float32", "float64", "int8"):
        kind = np.dtype(name)
        columns = ENTRIES // OBSERVATIONS // max(kind.itemsize // 4, 1)
        some = np.clip(tile * 30, -127, 127).astype(kind) if name == "int8" else tile.astype(kind)
        rows = np.tile(some, (columns // len(tile), 1))
        wide = np.zeros(len(rows), dtype=np.bool_)
        for threads in {1, cores}:
            sweeper = Sweeper(threads)
            seconds = _best(lambda: _sweep_once(sweeper, rows, vector, codes, wide))  # noqa: B023
            sweeper.close()
            if threads == 1:
                rates[name] = rows.size / seconds
            if threads == cores:
                together = max(together, rows.nbytes / seconds)
    return rates, together


def _sweep_once(sweeper: Sweeper, rows: AnyArray, vector: AnyArray, codes: AnyArray, wide: AnyArray) -> None:
    """Sweep once, as the type of the matrix asks for."""
    if rows.dtype == np.int8:
        sweeper.dots_int8(rows, codes)
    else:
        sweeper.dots(rows, Vectors(vector, rows.dtype), wide)


def _products() -> tuple[float, float]:
    """Return multiply-adds per second of a core on gathered columns, and bytes per second of gathering them from memory."""
    rng = np.random.default_rng(0)
    rows = np.tile(rng.standard_normal((256, OBSERVATIONS), dtype=np.float32), (64, 1))
    some = rng.permutation(len(rows))[:4096]
    wide = np.zeros(len(some), dtype=np.bool_)
    sweeper = Sweeper(1)
    columns = sweeper.gather(rows, some)
    copied = columns.nbytes / _best(lambda: sweeper.gather(rows, some))
    # Bringing a column from memory is counted apart: what further vectors add is what the processor does.
    few, many = (Vectors(rng.standard_normal((OBSERVATIONS, count)), columns.dtype) for count in (8, 40))
    added = _best(lambda: sweeper.dots(columns, many, wide)) - _best(lambda: sweeper.dots(columns, few, wide))
    return columns.size * 32 / max(added, 1e-6), copied


def _dense_rate() -> float:
    """Return multiply-adds per second of a float64 product on the one BLAS thread that a selection leaves."""
    from fastomp_nvm.matrix.blas import one_blas_thread

    square = np.random.default_rng(0).standard_normal((512, 512))
    with one_blas_thread():
        return float(512**3 / _best(lambda: square @ square))


def _decisions(place: Path) -> tuple[float, float, float]:
    """Return seconds per feature and pass, exact and with the tier, and seconds per feature of opening."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((SHORT, MANY), dtype=np.float32)
    url = f"mmap://{place / 'many'}"
    create_store(url, X, rng.standard_normal(SHORT)).close()
    found = []
    for tier in ("exact", "int8"):
        requests = [{"k": 8, "epsilon": epsilon, "tau": 0.99, "tier": tier, "polish": "none"} for epsilon in (0.5, 0.1)]
        few, many = _best_selections(url, None, requests)
        found.append(max(many[0] - few[0], 1e-6) / max(many[1] - few[1], 1.0) / MANY)
        if tier == "exact":
            opening = max(few[0] / MANY - found[0] * few[1], 1e-9)
    return found[0], found[1], opening


def _best_selections(data: Any, y: Any, requests: Sequence[dict[str, Any]]) -> list[tuple[float, float, float]]:
    """Return processor seconds, passes and gradient rounds of the quickest of some selections per request.

    They take turns, because their differences matter and a machine changes its pace. The work looked at here is done by one thread,
    and its processor time does not count what else runs on this machine.
    """
    found: list[list[tuple[float, float, float]]] = [[] for _ in requests]
    for _ in range(_REPEATS):
        for request, seen in zip(requests, found, strict=True):
            started = time.process_time()
            details = select(data, y, **request).to_json()
            seen.append((time.process_time() - started, float(details["full_passes"]), float(details["gradient_rounds"])))
    return [min(seen) for seen in found]


def _device(place: Path) -> float:
    """Return bytes per second of direct reads, as a sweep of a file colder than memory makes them."""
    file = place / "bytes"
    chunk = np.random.default_rng(0).bytes(16 << 20)
    with file.open("wb") as out:
        for _ in range(FILE_BYTES // len(chunk)):
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    rows = np.memmap(file, np.float32, "r").reshape(-1, OBSERVATIONS)
    reader = Reader([MatrixFile(rows, 0, lambda flags: os.open(file, flags))], "direct", len(os.sched_getaffinity(0)))

    def read() -> None:
        if not reader.sweep(rows, lambda block, first, last: None):
            raise MediumError(f"the files in {place} cannot be read directly: choose --folder on a disk")

    try:
        return rows.nbytes / _best(read)
    finally:
        reader.close()


def _driver(products_per_second: float) -> tuple[float, float, float, float]:
    """Return the seconds of the polish per column and k^2 and per column and k, of an inner round, and of a start."""
    small = PaperDesign(64, 2000)
    X, y = small.matrix().T, small.response()
    halves = Partition(2000, np.arange(2000) % 2, [20, 20])  # which must be asked: otherwise rounds are gone through at once, in C
    requests = [{"k": 1, "epsilon": 0.5, "polish": "none"}, {"k": 40, "polish": "none", "constraint": halves}]
    (start, _, _), (seconds, _, rounds) = _best_selections(X, y, requests)
    inner_round = max(seconds - start, 1e-6) / rounds
    n_features, n_obs = POLISHED
    design = PaperDesign(n_obs, n_features)
    X, y = design.matrix().T, design.response()
    few, many = 80, 240
    found = []
    for k in (few, many):
        plain, polished = _best_selections(X, y, [{"k": k, "polish": polish} for polish in ("none", "pool")])
        columns = plain[1] % 1.0 * n_features  # passes are whole, what is gathered is the rest
        products = columns * n_obs * GRAM_WASTE * k / products_per_second  # of processor time
        found.append(max(polished[0] - plain[0] - products, 1e-6) / columns)
    square = max((found[1] / many - found[0] / few) / (many - few), 1e-12)
    return square, max(found[0] / few - few * square, 1e-9), inner_round, start
