"""Progress of commands and of Python functions: one account of all runs, in a terminal, a pipe, as JSON and in a notebook."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.matrix import sweeper
from fastomp_nvm.selection import progress
from fastomp_nvm.selection.progress import Tracker
from tests.service.running import ROOT, small_data


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build a small store on disk."""
    X, y = small_data()
    path = tmp_path_factory.mktemp("progress") / "store"
    fo.create_store(str(path), X, y).close()
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write a table with a response."""
    X, y = small_data()
    rows = [",".join([*(f"c{place}" for place in range(X.shape[1])), "y"])]
    rows += [",".join(f"{value:.6f}" for value in (*row, target)) for row, target in zip(X, y, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "t.csv"


class Steps:
    """Reports of runs, made by hand: the clock is an argument."""

    def __init__(self, tracker: Tracker, runs: int, target: int = 10) -> None:
        self.tracker, self.runs, self.target = tracker, runs, target

    def __call__(self, run: int, sweep: int, selected: int, share: float = 0.0, ended: bool = False) -> None:
        step = Progress(
            run,
            sweep + 1,
            selected,
            self.target,
            0.1 * selected,
            1000 * sweep,
            10.0 * (sweep + share),
            runs=self.runs,
            ended=ended,
            sweep=sweep,
            share=share,
        )
        self.tracker.observe(step)


def test_runs_are_counted_over_all_of_them() -> None:
    """A run that reports last does not stand for the others: runs that ended are counted, features are summed."""
    tracker = Tracker("cv")
    step = Steps(tracker, runs=3)
    for run in range(3):
        step(run, 0, 0)
    step(0, 1, 10)
    step(0, 1, 10, ended=True)
    step(1, 1, 4)
    step(2, 1, 2)
    assert (tracker.runs_done, tracker.runs) == (1, 3)
    assert "1 of 3 runs" in tracker.text()
    assert tracker.done == pytest.approx((1.0 + 0.4 + 0.2) / 3)
    assert tracker.to_json()["selected"] == 16


def test_time_left_is_that_of_the_slowest_run_or_unknown() -> None:
    """Without two passes, or where a run has all its features and still works, nothing is printed."""
    tracker = Tracker("grid")
    step = Steps(tracker, runs=2)
    step(0, 0, 0)
    step(1, 0, 0)
    assert tracker.seconds_left is None
    step(0, 1, 4)
    step(1, 1, 1)
    assert tracker.seconds_left is None
    step(0, 2, 8)
    step(1, 2, 2)
    assert tracker.seconds_left == pytest.approx(8 * 10.0)  # eight features, one per pass of ten seconds
    step(0, 2, 10)
    assert tracker.seconds_left is None, "a run with ten of ten features that has not ended is in its polish"
    assert "left" not in tracker.text()
    step(0, 2, 10, ended=True)
    assert "about 80.0 s left" in tracker.text()
    step(1, 2, 10, ended=True)
    assert tracker.seconds_left is None
    assert tracker.done == 1.0


def test_time_left_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are extrapolated; at the end nothing is said about the time left."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    tracker = Tracker("ingest")
    now[0] = 110.0
    tracker.count(25, 100)
    assert tracker.seconds_left == pytest.approx(30.0)
    assert tracker.text() == "25%, 2 B/s, 10.0 s, about 30.0 s left"
    tracker.count(100, 100)
    assert tracker.seconds_left is None


def test_a_narrow_terminal_keeps_what_matters() -> None:
    """Parts are left out one by one, the least important first, and the line never wraps."""
    tracker = Tracker("cv")
    step = Steps(tracker, runs=2)
    for sweep in range(3):
        step(0, sweep, 2 * sweep)
        step(1, sweep, sweep)
    for width in range(20, 120):
        assert len(tracker.text(width)) <= width
    assert tracker.text(30).startswith("0 of 2 runs, pass 2")


def test_a_pass_in_flight_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares grow during a pass and bytes with them, from the first pass on; the answer is the same."""
    monkeypatch.setattr(sweeper, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(sweeper, "INLINE_PRODUCTS", 1)
    monkeypatch.setattr(sweeper, "TASK_BYTES", 1 << 12)
    X, y = small_data(n_features=2000)
    X = np.asfortranarray(X)  # columns that lie beside each other are swept many at a time
    heard: list[Progress] = []
    found = fo.select(X, y, k=4, threads=1, observer=heard.append)
    first = [step for step in heard if step.sweep == 1 and step.share]
    assert [step.share for step in first] == sorted(step.share for step in first)
    assert len(first) > 10
    assert 0 < first[0].bytes_read < first[-1].bytes_read < X.nbytes
    assert all(step.share < 1 for step in heard)
    monkeypatch.undo()
    assert found.indices.tolist() == fo.select(X, y, k=4).indices.tolist()


def test_a_selection_is_cancelled_during_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """``cancelled`` is asked in the middle of a pass, not only at its end."""
    monkeypatch.setattr(sweeper, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(sweeper, "INLINE_PRODUCTS", 1)
    monkeypatch.setattr(sweeper, "TASK_BYTES", 1 << 12)
    X, y = small_data(n_features=2000)
    X = np.asfortranarray(X)  # columns that lie beside each other are swept many at a time
    heard: list[Progress] = []
    with pytest.raises(fo.CancelledError):
        fo.select(X, y, k=4, threads=1, observer=heard.append, cancelled=lambda: any(step.share > 0.3 for step in heard))
    assert heard[-1].sweep == 1
    assert 0.3 < heard[-1].share < 1


def test_bytes_of_shared_passes_count_once() -> None:
    """The bytes of a cross-validation's last report are those of its result, scoring apart."""
    X, y = small_data()
    heard: list[Progress] = []
    found = fo.cross_validate(X, y, folds=3, ks=[2, 3], observer=heard.append)
    assert {step.runs for step in heard} == {8}
    assert sum(step.ended for step in heard) == 8
    assert heard[-1].bytes_read <= found.sharing.bytes_read


@pytest.mark.parametrize(
    "words",
    [
        ("select", "--k", "4"),
        ("cv", "--k-max", "2", "--folds", "3"),
        ("path", "--k", "3"),
        ("grid", "--k", "2,3"),
        ("stability", "--k", "2", "--subsamples", "3"),
    ],
)
def test_json_lines(words: tuple[str, ...], store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every line on stderr is one JSON object of the same fields; the last one has all runs done."""
    assert main([words[0], store, *words[1:], "--progress", "json"]) == 0
    objects = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    last = objects[-1]
    assert (last["command"], last["done"], last["runs_done"]) == (words[0], 1.0, last["runs"])
    assert last["runs"] == {"select": 1, "path": 1, "cv": 8, "grid": 2, "stability": 3}[words[0]]
    assert last["bytes_read"] > 0
    assert last["pass"] >= 1
    assert last["seconds_left"] is None


def test_json_lines_of_an_ingest(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes reach their total."""
    assert main(["ingest", str(table), str(tmp_path / "s"), "--target", "y", "--progress", "json"]) == 0
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert last["bytes_done"] == last["bytes_total"] > 0


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> Path:
    """Leave a finished run ``r`` and a model of the columns of ``table``; return the model."""
    pandas = pytest.importorskip("pandas")
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    X, y = small_data()
    model = tmp_path / "m.json"
    table = pandas.DataFrame(X, columns=[f"c{place}" for place in range(X.shape[1])])
    with fo.create_store("dram:progress", table, y) as cells:
        fo.select(cells, k=2).save(model)
    assert main(["select", store, "--k", "2", "--run", "r"]) == 0
    return model


def reading_commands(runs: Path, store: str, table: Path) -> list[list[str]]:
    """Return commands that read stores and files without selecting."""
    outs = [str(table.with_name(name)) for name in ("e.csv", "e.npz", "p.csv")]
    return [
        ["verify", store],
        *(["export", "r", out, "--store", store] for out in outs[:2]),
        ["predict", str(runs), str(table), outs[2]],
    ]


def test_json_lines_of_commands_that_read(runs: Path, store: str, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``verify``, ``export`` and ``predict`` count their bytes to the total; ``none`` and short work in a pipe are silent."""
    capsys.readouterr()
    for words in reading_commands(runs, store, table):
        assert main([*words, "--progress", "json"]) == 0
        last = json.loads(capsys.readouterr().err.splitlines()[-1])
        assert last["command"] == words[0]
        assert last["bytes_done"] == last["bytes_total"] > 0
    for words in reading_commands(runs, store, table)[:2]:
        for mode in ("none", "lines"):
            assert main([*words, "--progress", mode]) == 0
            assert capsys.readouterr().err == ""


def test_verify_counts_every_byte_once(tmp_path: Path) -> None:
    """Reports rise to the bytes of matrix and tier, in a store and in shards."""
    wide = str(tmp_path / "wide")
    fo.create_store(wide, np.random.default_rng(0).normal(size=(20, 600)), np.arange(20.0)).close()
    assert main(["shard", wide, str(tmp_path / "shards"), "--into", "2"]) == 0
    for url in (wide, f"cluster://{tmp_path}/shards/manifest.yaml"):
        reports: list[tuple[int, int]] = []
        with fo.open_store(url) as opened:
            opened.verify(lambda done, total, reports=reports: reports.append((done, total)))
        done, totals = zip(*reports, strict=True)
        assert list(done) == sorted(set(done))
        assert done[-1] == totals[-1] > 0


@pytest.mark.parametrize("mode", [None, "lines", "none"])
def test_short_commands_are_silent_in_a_pipe(mode: str | None, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first line comes after 30 seconds."""
    assert main(["select", store, "--k", "3", *(() if mode is None else ("--progress", mode))]) == 0
    assert capsys.readouterr().err == ""


def test_long_commands_print_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal a plain line is printed from time to time, without control characters."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.001)
    drawn = threading.Event()
    original = Tracker.text

    def text(self: Tracker, width: int | None = None) -> str:
        line = original(self, width)
        if "of at most" in line:
            drawn.set()
        return line

    monkeypatch.setattr(Tracker, "text", text)
    X, y = small_data()
    fo.select(X, y, k=3, progress=True, observer=lambda step: drawn.wait(60) and None)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(re.fullmatch(r"select: [ -~]+", line) for line in lines)


BAR = """
import sys
from fastomp_nvm.cli.main import main
from fastomp_nvm.selection import progress

progress.BAR_SECONDS = 0.001
original, drawn = progress._bar, progress.threading.Event()

def bar(tracker, stream):
    line = original(tracker, stream)
    if "runs" in line:
        drawn.set()
    return line

def observe(self, step, original=progress.Tracker.observe):
    original(self, step)
    drawn.wait(60)

progress._bar, progress.Tracker.observe = bar, observe
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_bar_in_a_terminal(columns: int, store: str) -> None:
    """It is drawn on one line that never reaches the last column, counts runs, and is gone at the end; stdout has none of it."""
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-c", BAR, "grid", store, "--k", "2,3,4", "--json"],
        stdout=subprocess.PIPE,
        stderr=inside,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "PYTHONIOENCODING": "utf-8"},
    )
    os.close(inside)
    shown = b""
    with child, os.fdopen(terminal, "rb", buffering=0) as screen:
        try:
            while chunk := screen.read(4096):
                shown += chunk
        except OSError:  # the end of a terminal whose other side was closed
            pass
        assert child.stdout is not None
        assert len(json.loads(child.stdout.read())["cells"]) == 3
    frames = shown.decode().split("\r\x1b[2K")
    assert max(map(len, frames)) < columns
    assert any(re.search(r"grid [━─]+ \d of 3 runs", frame) for frame in frames)
    assert frames[-1] == ""


class _Stream(io.StringIO):
    """A terminal in memory."""

    def isatty(self) -> bool:
        return True


def test_python_shows_progress_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal alone shows nothing; ``progress=True`` does, and leaves a clean line."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "BAR_SECONDS", 0.001)
    X, y = small_data()
    for asked in (None, False, True):
        stream = _Stream()
        monkeypatch.setattr(sys, "stderr", stream)
        drawn = threading.Event()
        monkeypatch.setattr(stream, "flush", drawn.set)
        wait = drawn.wait if asked else bool
        fo.grid(X, y, over={"k": [2, 3]}, progress=asked, observer=lambda step, wait=wait: wait(60) and None)
        assert bool(stream.getvalue()) == (asked is True)
    assert stream.getvalue().endswith("\r\x1b[2K")


def test_a_bar_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a kernel a long selection shows one HTML bar that is updated in place; a short one leaves the cell as it is."""
    shown: list[str] = []
    drawn = threading.Event()

    class Handle:
        def update(self, content: str) -> None:
            shown.append(content)

    def display(content: str, *, display_id: bool) -> Handle:
        assert display_id
        shown.append(content)
        drawn.set()
        return Handle()

    notebook = types.ModuleType("IPython")
    notebook.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    shell = types.ModuleType("IPython.display")
    shell.HTML, shell.display = str, display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", shell)
    monkeypatch.setattr(progress, "NOTEBOOK_SECONDS", 0.001)
    X, y = small_data()
    monkeypatch.setattr(progress, "UNASKED_SECONDS", 3600.0)
    fo.select(X, y, k=3)
    assert shown == []
    for function in (fo.select, fo.stability):
        many: dict[str, Any] = {"subsamples": 3} if function is fo.stability else {}
        drawn.clear()
        function(X, y, k=3, progress=True, observer=lambda step: drawn.wait(60) and None, **many)
    assert shown[0].startswith("<progress value=")
    assert shown[-1].startswith("stability: 3 of 3 runs")
    shown.clear()
    monkeypatch.setattr(progress, "UNASKED_SECONDS", 0.0)
    drawn.clear()
    fo.select_many(X, [{"k": 2}, {"k": 3}], y, observer=lambda step: drawn.wait(60) and None)
    assert shown[-1].startswith("select: 2 of 2 runs")


def test_tables_in_a_pipe_are_plain(
    store: str, table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No frame, no colour, no wrap and no space at the end of a line, even where the environment forces colours."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    commands = (["select", store, "--k", "3"], ["cv", store, "--k-max", "2"], ["info", store])
    dry_run = ["ingest", str(table), "--target", "y", "--dry-run"]
    for words in (*commands, ["info", store, "--columns"], dry_run, ["doctor"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert not set(out) & set("┏━┃│─\x1b")
        assert not any(line != line.rstrip() for line in out.splitlines())
        if "column " in out:  # one line for each
            assert sum(" as it is" in line for line in out.splitlines()) == out.count(" number ") > 1
    assert np.sum(["compiled extension" in line for line in out.splitlines()]) == 1


def test_a_run_first_seen_in_a_pass_has_no_time_left() -> None:
    """As a job on a server is that was running before its client came."""
    tracker = Tracker("select")
    tracker.observe(Progress(run=0, round=3, selected=2, target=5, value=0.5, bytes_read=10, seconds=1.0, sweep=5, share=0.4))
    assert "left" not in tracker.text()


def test_a_closed_stream_loses_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of the progress cannot be written, and the work inside is done all the same."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    with progress.displayed(Tracker("select"), "json"):
        done = True
    assert done
