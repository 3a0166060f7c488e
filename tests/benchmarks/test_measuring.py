"""The measuring tools of benchmarks, and the files and processes left behind when a benchmark is ended: none."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import psutil
import pytest

import fastomp_nvm as fo
from benchmarks import peers
from benchmarks.harness import machine, memory, timing
from benchmarks.harness.processes import CellError, run_alone, run_cell


def test_memory_beyond_the_data_is_that_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of the call counts, temporary memory of the preparation does not."""
    held, sampled = [1000], threading.Event()

    def resident_bytes(process: int | None = None) -> int:
        found = held[0]
        sampled.set()
        return found

    def prepare(X: np.ndarray, y: np.ndarray, k: int) -> peers.Prepared:
        held[0] = 9000
        time.sleep(10 * peers.SAMPLE_SECONDS)  # a sample would see it, were one taken
        held[0] = 2000

        def call() -> np.ndarray:
            held[0] = 5000
            for _ in range(2):  # the first sample may have begun before
                sampled.clear()
                assert sampled.wait(60)
            held[0] = 2000
            return np.arange(k)

        return call

    monkeypatch.setattr(memory, "resident_bytes", resident_bytes)
    monkeypatch.setattr(peers, "resident_bytes", resident_bytes)
    monkeypatch.setattr(peers, "CONTESTANTS", (peers.Contestant("it", "numpy", prepare),))
    assert peers.measure("it", 20, 30, 2, 1)["extra_bytes"] == 3000


def test_memory_of_this_process_is_seen() -> None:
    """Pages that were written to are counted; in a process of its own, because memory left by other tests is freed at any time."""
    code = "import numpy as np; from benchmarks.harness.memory import resident_bytes as now; before = now(); "
    code += "block = np.ones(10_000_000); print(now() - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 40e6


@pytest.mark.parametrize("spoils", [True, False])
def test_overwritten_data_are_prepared_again(spoils: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contestant that overwrites its data gets fresh data for every call; the others are prepared once."""
    prepared = []

    def prepare(X: np.ndarray, y: np.ndarray, k: int) -> peers.Prepared:
        prepared.append(k)
        return lambda: np.arange(k)

    monkeypatch.setattr(peers, "CONTESTANTS", (peers.Contestant("it", "numpy", prepare, spoils_data=spoils),))
    peers.measure("it", 20, 30, 2, 3)
    assert len(prepared) == (3 if spoils else 1)


def test_both_fortran_forms_of_scikit_learn_agree() -> None:
    """Without a copy, on data centred beforehand, scikit-learn selects what its estimator does."""
    pytest.importorskip("sklearn")
    estimator, without_copy = (
        peers.measure(f"scikit-learn OMP, float64 Fortran{form}", 100, 200, 8, 2) for form in ("", ", no copy")
    )
    assert without_copy["selected"] == estimator["selected"]
    assert without_copy["r2"] == pytest.approx(estimator["r2"], rel=1e-9)


def test_preparing_data_again_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contestant that overwrites its data is prepared before each of its runs, the others never; warm turns do not count."""
    order: list[str] = []
    monkeypatch.setattr(timing, "PAUSE", 0.0)
    contestants = {name: lambda name=name: order.append(name) for name in ("plain", "spoiling")}
    seconds, _ = timing.in_turn(contestants, 2, warm=1, untimed={"spoiling": lambda: order.append("prepared")})
    assert order == ["plain", "prepared", "spoiling"] * 3
    assert {name: len(times) for name, times in seconds.items()} == {"plain": 2, "spoiling": 2}


def test_the_interval_of_a_ratio_holds_its_median() -> None:
    """Paired ratios: a machine that slows down for both contestants changes nothing."""
    rng = np.random.default_rng(0)
    pace = rng.uniform(1, 10, 15)
    ratio = timing.paired((1.5 * pace).tolist(), pace.tolist())
    assert ratio.low == pytest.approx(1.5) == ratio.median == ratio.high
    noisy = timing.paired((1.5 * pace * rng.uniform(0.9, 1.1, 15)).tolist(), pace.tolist())
    assert 1.3 < noisy.low < noisy.median < noisy.high < 1.7


def test_a_stopwatch_counts_nested_calls_once() -> None:
    """The time of the outermost call counts, under its group; functions are restored afterwards."""

    class Work:
        def outer(self) -> None:
            time.sleep(0.02)
            self.inner()

        def inner(self) -> None:
            time.sleep(0.02)

    outer = Work.outer
    with timing.stopwatch({"outer": [(Work, "outer")], "inner": [(Work, "inner")]}) as spent:
        Work().outer()
        assert spent["inner"] == 0
        Work().inner()
    assert spent["outer"] > spent["inner"] > 0
    assert Work.outer is outer


def test_the_fingerprint_has_date_and_version() -> None:
    """Figures name their date and version."""
    found = machine.fingerprint()
    assert found["fastomp"] == fo.__version__
    assert abs(datetime.now(UTC) - datetime.fromisoformat(found["date"])) < timedelta(hours=1)


def test_a_child_leaves_no_process_behind(tmp_path: Path) -> None:
    """A server that a measurement started ends with it, also after a time-out."""
    server = tmp_path / "server"
    for last_word, patience in (("true", 60.0), ("sleep 600", 1.0)):
        words = ["sh", "-c", f"sleep 600 > /dev/null 2>&1 & echo $! > {server}; {last_word}"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert run_alone(words, patience).returncode == 0
        end = time.monotonic() + 60
        while _lives(int(server.read_text())):
            assert time.monotonic() < end, "the server lives on"
            time.sleep(0.01)


def test_a_failed_measurement_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of its errors, its time limit, or its figures."""
    (tmp_path / "measured_here.py").write_text(
        "import json, sys, time\n"
        "cell = json.loads(sys.argv[2])\n"
        "time.sleep(cell['seconds'])\n"
        "print('said first')\n"
        "print(json.dumps(cell)) if cell['good'] else sys.exit('no figures')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert run_cell("measured_here", {"good": True, "seconds": 0}) == {"good": True, "seconds": 0}
    with pytest.raises(CellError, match="no figures"):
        run_cell("measured_here", {"good": False, "seconds": 0})
    with pytest.raises(CellError, match="not done after 1 s"):
        run_cell("measured_here", {"good": True, "seconds": 600}, timeout=1)


def _lives(process: int) -> bool:
    """Tell whether a process runs; a dead one that nobody has waited for does not."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("benchmark", ["scale", "media"])
def test_sigterm_leaves_no_data_behind(benchmark: str, tmp_path: Path) -> None:
    """Ended while it builds, a benchmark removes its unfinished stores, in memory too, and exits with 143."""
    memory_folder, out = tmp_path / "memory", tmp_path / "out"
    memory_folder.mkdir()
    script = f"""
import os, pathlib, signal, sys, time
from benchmarks import {benchmark} as benchmark

def build(*_):
    print([path.name for path in pathlib.Path(sys.argv[1]).iterdir()], flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)

benchmark.build, benchmark.SHARED_MEMORY = build, pathlib.Path(sys.argv[1])
sys.exit(benchmark.main(["--quick", "--out", sys.argv[2]]))
"""
    words = [sys.executable, "-c", script, str(memory_folder), str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env={**os.environ})
    assert done.returncode == 143, done.stderr
    assert ("fastomp-media-" in done.stdout) == (benchmark == "media")
    assert not list(memory_folder.iterdir())
    assert not [path for path in out.iterdir() if path.is_dir()]
