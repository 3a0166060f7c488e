"""The medium, the threads and the company never change an answer: same bits everywhere."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.matrix.gradients import SAMPLE, largest

N_OBS, N_FEATURES = 333, 1500


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fo.FeatureStore]:
    """Build the same data on every medium, with features of several columns among them."""
    design = PaperDesign(N_OBS, N_FEATURES, seed=4)
    X, y = design.matrix().T.astype(np.float32), design.response()
    X[:, 700] += 5000  # accumulated in float64
    folder = tmp_path_factory.mktemp("media")
    targets = {"amount": y, "class": np.where(y > 0, "good", "bad")}
    groups = {"region": [10, 11, 12], "job": [900, 901]}
    urls = {"dram": "dram:identity", "mmap": f"mmap://{folder}/m", "pmem": f"pmem://{folder}/p"}
    return {name: fo.create_store(url, X, targets, groups=groups, replace=True) for name, url in urls.items()}


def bits(selection: fo.Selection) -> tuple[Any, ...]:
    """Everything of an answer that must not differ."""
    coef = selection.column_coef
    counters = ("gradient_rounds", "gradient_calls", "independence_calls", "sweeps", "bytes_read")
    costs = [getattr(selection, counter) for counter in counters]
    return (tuple(selection.indices.tolist()), coef.tobytes(), np.float64(selection.intercept).tobytes(), selection.score, *costs)


@pytest.mark.parametrize(
    "request_",
    [
        {"k": 30},
        {"k": 30, "tau": 0.9, "until": "full", "polish": "none"},
        {"k": 12, "objective": "logistic", "target": "class"},
        {"k": 10, "algorithm": "sds_omp"},
        {"k": 20, "gather_bytes": 40_000},
    ],
    ids=["polished", "full", "logistic", "sds_omp", "chunked"],
)
def test_same_bits_on_every_medium_and_thread_count(stores, request_) -> None:
    """dram, mmap and pmem with 1, 2 and 4 threads agree bit for bit, costs included."""
    answers = {
        (medium, threads): bits(fo.select(store, threads=threads, **request_))
        for medium, store in stores.items()
        for threads in (1, 2, 4)
    }
    assert len(set(answers.values())) == 1, {key: value[0] for key, value in answers.items()}


@pytest.mark.parametrize("request_", [{"k": 20}, {"k": 20, "tau": "auto"}, {"k": 8, "objective": "logistic", "target": "class"}])
@pytest.mark.parametrize("tier", ["exact", "int8"])
def test_the_byte_budget_does_not_change_the_answer(stores, request_, tier, monkeypatch) -> None:
    """Columns re-read in chunks give the same selection, polish included, as columns kept in memory; only the bytes differ."""
    monkeypatch.setattr("fastomp_nvm.objectives.known_columns.MOST_COLUMNS", 30)  # of known ones nothing need be read again
    request_ = {**request_, "tier": tier}
    kept = fo.select(stores["mmap"], **request_)
    column = stores["mmap"].matrix[0].nbytes
    read = [kept.bytes_read]
    for columns in (200, 40, 3, 0):
        chunked = fo.select(stores["mmap"], gather_bytes=columns * column + 1, **request_)
        assert bits(kept)[:4] == bits(chunked)[:4]
        read.append(chunked.bytes_read)
    assert read[0] == min(read)
    assert read[-1] > read[0]


def test_command_line_and_python_agree(stores) -> None:
    """``fastomp select``, with and without ``--load dram``, prints the bits that Python returns."""
    url = stores["mmap"].url
    wanted = fo.select(stores["mmap"], k=25, seed=7)
    for extra in ([], ["--load", "dram"], ["--threads", "1"], ["--load", "dram", "--threads", "4"]):
        command = [sys.executable, "-m", "fastomp_nvm", "select", url, "--k", "25", "--seed", "7", "--json", *extra]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        printed = json.loads(done.stdout)
        assert printed["indices"] == wanted.indices.tolist()
        assert printed["coef"] == wanted.to_json()["coef"]
        assert printed["medium"] == ("dram" if "--load" in extra else "mmap")


def test_every_run_in_company_equals_the_run_alone(stores) -> None:
    """select_many answers each request with the bits and the counters of select."""
    rng = np.random.default_rng(0)
    requests: list[dict[str, Any]] = [
        {"k": 20},
        {"k": 20, "tau": 0.9},
        {"k": 5, "epsilon": 0.3, "seed": 3},
        {"k": 15, "algorithm": "sds_omp"},
        {"k": 8, "objective": "logistic", "target": "class"},
        {"k": 10, "weights": (rng.random(N_OBS) < 0.7).astype(float)},
        {"k": 10, "weights": rng.random(N_OBS)},
        {"k": 10, "standardize": False},
    ]
    together = fo.select_many(stores["mmap"], requests)
    for request, found in zip(requests, together, strict=True):
        assert bits(found) == bits(fo.select(stores["mmap"], **request)), request


@pytest.mark.numerics
def test_merged_runs_share_their_passes() -> None:
    """Eight runs in company cost the medium little more than one."""
    from fastomp_nvm.engine.dataset import Dataset
    from fastomp_nvm.engine.engine import Engine, Run
    from fastomp_nvm.matrix.sweeper import Sweeper
    from fastomp_nvm.selection.compression import Split
    from fastomp_nvm.selection.request import SelectionRequest
    from fastomp_nvm.selection.select import prepare

    design = PaperDesign(200, 2000, seed=1)
    dataset = Dataset.of_array(design.matrix().T)
    sweeper = Sweeper(1)
    runs: list[Run] = [
        prepare(dataset, Split(SelectionRequest(k=20, seed=seed), None, None), design.response(), sweeper).run for seed in range(8)
    ]
    engine = Engine(dataset.matrix, sweeper)
    engine.drive(runs)
    alone = [run.problem.counters.traffic.features_visited / 2000 for run in runs]
    assert engine.traffic.features_visited / 2000 <= max(alone) + 1
    assert sum(alone) > 4 * engine.traffic.features_visited / 2000


@pytest.mark.numerics
def test_a_deadline_stops_between_sweeps() -> None:
    """With a deadline that is always past, every call answers one sweep, and the last of them ends with the same selection."""
    from fastomp_nvm.engine.dataset import Dataset
    from fastomp_nvm.engine.engine import Engine
    from fastomp_nvm.matrix.sweeper import Sweeper
    from fastomp_nvm.runs.journal import DecisionJournal
    from fastomp_nvm.selection.compression import Split
    from fastomp_nvm.selection.request import SelectionRequest
    from fastomp_nvm.selection.select import prepare
    from tests.harness.memory_log import MemoryLog

    design = PaperDesign(100, 300, seed=2)
    dataset, sweeper = Dataset.of_array(design.matrix().T), Sweeper(1)
    records: list[bytes] = []
    done, calls = False, 0
    while not done:
        log = MemoryLog(records)
        run = prepare(dataset, Split(SelectionRequest(k=20), None, None), design.response(), sweeper).run
        run.journal = journal = DecisionJournal(log, {})
        engine = Engine(dataset.matrix, sweeper)
        done = engine.drive([run], deadline=lambda: True)
        journal.close()
        records += log.records[len(records) :]
        calls += 1
        assert engine.traffic.sweeps == 1
        assert (run.outcome is not None) == done
    assert calls > 1
    assert run.outcome.selected.tolist() == fo.select(design.matrix().T, design.response(), k=20).indices.tolist()


@pytest.mark.numerics
def test_a_selection_can_be_watched_and_cancelled() -> None:
    """Every round is reported, then the end of the run, and a cancelled selection ends with CancelledError."""
    design = PaperDesign(100, 300, seed=2)
    X, y = design.matrix().T, design.response()
    seen: list[Any] = []
    fo.select(X, y, k=20, observer=seen.append)
    assert [step.round for step in seen[:-1]] == list(range(1, len(seen)))
    assert [step.ended for step in seen] == [False] * (len(seen) - 1) + [True]
    assert seen[-1].selected <= seen[-1].target == 20
    assert seen[-1].bytes_read >= X.nbytes
    with pytest.raises(fo.CancelledError):
        fo.select(X, y, k=20, cancelled=lambda: True)


def test_counters_match_an_independent_count(stores) -> None:
    """bytes_read is what a counting array saw: full sweeps plus gathered columns, nothing else."""
    from fastomp_nvm.engine.dataset import Dataset
    from fastomp_nvm.matrix.kernels import kernel
    from fastomp_nvm.matrix.sweeper import Sweeper

    base = Dataset.of_store(stores["mmap"])
    low, high = base.matrix.array.ctypes.data, base.matrix.array.ctypes.data + base.matrix.nbytes
    real = kernel()
    seen = {"bytes": 0}

    class Counting:
        """A kernel that counts the bytes of rows that lie inside the store's mapping."""

        id = real.id

        def dots(self, rows, residuals, out) -> None:
            if low <= rows.ctypes.data < high:
                seen["bytes"] += rows.nbytes
            real.dots(rows, residuals, out)

        def dots_at(self, rows, index, residuals, out) -> None:
            assert not low <= rows.ctypes.data < high, "columns of a file are multiplied in memory"
            real.dots_at(rows, index, residuals, out)

        def gather(self, rows, index, out) -> None:
            if low <= rows.ctypes.data < high:
                seen["bytes"] += out.nbytes
            real.gather(rows, index, out)

    original = Sweeper.__init__

    def patched(self, threads=None, implementation=None, **options) -> None:
        original(self, threads, Counting(), **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sweeper, "__init__", patched)
        for request in ({"k": 20}, {"k": 20, "gather_bytes": 30_000}, {"k": 6, "algorithm": "sds_omp"}):
            seen["bytes"] = 0
            found = fo.select(base, **request)
            assert found.bytes_read == seen["bytes"]


def test_a_store_opens_again_after_the_process_that_built_it(tmp_path: Path) -> None:
    """What one process builds another selects from, with the same bits."""
    script = (
        "import sys, numpy as np, fastomp_nvm as fo; rng = np.random.default_rng(1);"
        "X = rng.normal(size=(80, 60)); fo.create_store(sys.argv[1], X, X[:, 3] + rng.normal(size=80))"
    )
    subprocess.run([sys.executable, "-c", script, f"pmem://{tmp_path}/s"], check=True)
    with fo.open_store(f"pmem://{tmp_path}/s") as left, fo.open_store(f"mmap://{tmp_path}/s") as right:
        assert bits(fo.select(left, k=5)) == bits(fo.select(right, k=5))


@pytest.mark.parametrize("size", [0, 1, 50, 1023, 1024, 1100, 5000, 40_000])
@pytest.mark.parametrize("shape", ["random", "sorted", "equal", "few large"])
def test_the_largest_scores_are_those_of_sorting_all(size, shape) -> None:
    """However many there are, in whatever order, and however misleading a sample of them is."""
    rng = np.random.default_rng(size)
    values = {
        "random": rng.exponential(size=size),
        "sorted": np.sort(rng.exponential(size=size)),
        "equal": np.ones(size),
        # A sample takes every so many: here it sees next to nothing of what is large.
        "few large": np.where(np.arange(size) % max(size // SAMPLE, 1) == 1, 1.0 + rng.random(size), rng.random(size) / 9.0),
    }[shape]
    for count in (0, 1, 2, 40, 700, size, size + 5):
        assert np.sort(largest(values, count)).tolist() == np.sort(values)[::-1][:count][::-1].tolist()


def test_what_moments_make_is_kept_as_long_as_they_are(tmp_path) -> None:
    """Selections from a store that stays open share its standardisation; when the store is gone, so is that."""
    rng = np.random.default_rng(0)
    store = fo.create_store(f"mmap://{tmp_path}/moments", rng.normal(size=(30, 6)), rng.normal(size=30))
    first, second = (Dataset.of_store(store).design().standardisation for _ in range(2))
    assert first is second
    gone = weakref.ref(store.statistics)
    store.close()
    del store, first, second
    gc.collect()
    assert gone() is None
