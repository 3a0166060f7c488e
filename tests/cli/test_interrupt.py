"""Ctrl-C: real processes, real signals, and printed commands that are typed again."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import fastomp_nvm as fo
from tests.service.gated_server import GatedServer
from tests.service.running import ROOT, small_data

#: ``fastomp`` that stops for ten minutes at its third report of progress and says so.
HELD = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in background processes of a shell
from fastomp_nvm.cli.main import main
from fastomp_nvm.selection.progress import Tracker

reports = []

def held(original):
    def take(self, *given):
        original(self, *given)
        reports.append(given)
        if len(reports) == int(sys.argv[1]):
            sys.stderr.write("held\\n")
            sys.stderr.flush()
            time.sleep(600)
    return take

Tracker.observe, Tracker.count = held(Tracker.observe), held(Tracker.count)
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Build a store whose path has a space."""
    X, y = small_data()
    fo.create_store(str(tmp_path / "my store"), X, y).close()
    return str(tmp_path / "my store")


@contextmanager
def held(*words: str, reports: int = 3) -> Iterator[subprocess.Popen[str]]:
    """Start a command and wait until it stands still in its work."""
    child = subprocess.Popen(
        [sys.executable, "-c", HELD, str(reports), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with child:
        try:
            assert child.stderr is not None
            assert child.stderr.readline() == "held\n"
            yield child
        finally:
            child.kill()


def interrupted(*words: str, reports: int = 3) -> str:
    """Interrupt a command in the middle of its work; return what it says, after checking its exit code."""
    with held(*words, reports=reports) as child:
        child.send_signal(signal.SIGINT)
        out, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert out == ""
    assert said.startswith("fastomp: interrupted")
    assert said.count("\n") == 1
    return said.strip()


def typed(command: str) -> str:
    """Type a command into a shell and return its output."""
    program = f"{shlex.quote(sys.executable)} -m fastomp_nvm"
    done = subprocess.run(
        ["sh", "-c", re.sub(r"^fastomp", lambda _: program, command)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_durable_run_says_how_to_continue(store: str) -> None:
    """The printed command continues the run to the answer of an undisturbed one."""
    said = interrupted("select", store, "--k", "6", "--algorithm", "sds_omp", "--run", "stopped.run-1")
    command = said.split("continue with: ")[1]
    assert command == "fastomp resume stopped.run-1"
    found = json.loads(typed(f"{command} --json"))
    assert found["indices"] == fo.select(store, k=6, algorithm="sds_omp").indices.tolist()
    fo.forget("stopped.run-1")


def test_a_resumed_run_says_so_again(store: str) -> None:
    """A run that is interrupted twice is continued twice."""
    words = ("--k", "6", "--algorithm", "sds_omp", "--run", "twice")
    interrupted("select", store, *words)
    said = interrupted("resume", "twice", "--other-build")
    command = said.split("continue with: ")[1]
    assert command == "fastomp resume twice --other-build"
    assert "6 features selected" in typed(command)
    fo.forget("twice")


def test_a_plain_selection_names_the_option(store: str) -> None:
    """Nothing is kept, and --run is named."""
    before = [run.name for run in fo.list_runs()]
    said = interrupted("select", store, "--k", "4")
    assert said == "fastomp: interrupted: nothing was kept; a selection with --run NAME can be continued"
    assert [run.name for run in fo.list_runs()] == before


@pytest.mark.parametrize(
    "words", [("cv", "--k-max", "3"), ("path", "--k", "3"), ("grid", "--k", "2,3"), ("stability", "--k", "3", "--subsamples", "4")]
)
def test_many_selections_keep_nothing(words: tuple[str, ...], store: str) -> None:
    """Commands of many selections say that nothing was kept."""
    assert "nothing was kept" in interrupted(words[0], store, *words[1:])


def test_an_ingest_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither a store nor a draft of one."""
    rng = np.random.default_rng(0)
    table = "\n".join(",".join(f"{value:.6f}" for value in row) for row in rng.normal(size=(2000, 20)))
    (tmp_path / "t.csv").write_text(",".join(f"c{place}" for place in range(20)) + "\n" + table + "\n")
    said = interrupted("ingest", str(tmp_path / "t.csv"), str(tmp_path / "new"), reports=1)
    assert said == "fastomp: interrupted: nothing was left behind; the same command starts again"
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.csv"]


def test_commands_that_read_start_again(store: str, tmp_path: Path) -> None:
    """Also one that is interrupted while it is still being loaded."""
    assert interrupted("verify", store, reports=1) == "fastomp: interrupted: nothing was changed; the same command starts again"
    program = "import sys, fastomp_nvm.cli.main as shell\n\ndef load(words):\n    raise KeyboardInterrupt\n\nshell._parser = load\n"
    program += "sys.exit(shell.main(['select', 'store', '--k', '2']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "fastomp: interrupted before anything was done; the same command starts again\n"


@pytest.mark.parametrize("command", ["select", "cv"])
def test_a_job_on_a_server_continues_there(command: str, tmp_path: Path) -> None:
    """The commands that list, await and cancel it work as printed, with the options of the connection, quoted."""
    X, y = small_data()
    with GatedServer(tmp_path / "server") as server:
        with server.connect("/lab/data") as client:
            client.put(X, y)
        token = tmp_path / "my token"
        token.write_text(server.token())
        server.close_gate()
        url = f"{server.url}/lab/data"
        words = (command, url, "--k", "8", "--algorithm", "sds_omp", "--token-file", str(token))
        said = interrupted(*words, reports=1)
        assert "continues on the server" in said
        listing, resume, cancel = re.findall(r"with: (fastomp .*?)(?:; |$)", said)
        job = shlex.split(resume)[2]
        (listed,) = json.loads(typed(f"{listing} --json"))
        assert (listed["name"], listed["status"]) == (job, "running")
        typed(cancel)
        server.open_gate()
        with server.connect() as client:
            for state in client.follow(job):
                last = state["state"]
        assert last == "cancelled"
        assert "8 features selected" in typed(resume)
