"""Durable runs: names, listing, identity, locks, the command line, and the files of a finished run."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.constraints import Cardinality
from fastomp_nvm.engine import identity
from fastomp_nvm.runs import drive, registration, sealed
from storage_backends.files import mapped
from storage_backends.testing.power_cut import Fault, failing_calls
from tests.durability.conftest import REQUEST
from tests.harness.kill_trials import comparable

ROOT = Path(__file__).parents[2]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run([sys.executable, "-m", "fastomp_nvm", *words], capture_output=True, text=True, cwd=ROOT, check=False)


def rewrite(home: Path, name: str, **changes: Any) -> None:
    """Change fields of a registration and seal it again."""
    path = home / "runs" / name / "run.json"
    path.write_bytes(replace(registration.Registration.from_bytes(path.read_bytes()), **changes).to_bytes())


def test_a_finished_run_leaves_its_result_and_nothing_in_the_store(store_url: str) -> None:
    """The state goes, the result stays, also when the store goes, and can still predict."""
    found = fo.select(store_url, run="done", **REQUEST)
    with fo.open_store(store_url) as store:
        assert store.regions() == ()
    assert [(info.name, info.status, info.rounds, info.selected) for info in fo.list_runs()] == [("done", "finished", 5, 5)]
    kept = fo.resume("done")
    assert kept.to_json() == found.to_json()
    X = np.random.default_rng(0).normal(size=(4, 300))
    np.testing.assert_array_equal(kept.predict(X), found.predict(X))


@pytest.mark.parametrize("name", ["", ".hidden", "-dash", "a/b", "..", "x" * 101, "line\n", "null\0", None, 3])
def test_bad_names_are_refused(store_url: str, name: Any) -> None:
    """A name is safe as a file name, or refused."""
    with pytest.raises(fo.RequestError, match="no name of a run"):
        drive.start(name, store_url, **REQUEST)
    with pytest.raises(fo.RequestError):
        fo.resume(name)


def test_used_and_unknown_names_are_refused(stopped: str) -> None:
    """A name is used once, finished or not; an unknown one cannot be resumed; a forgotten one is free."""
    with pytest.raises(fo.RequestError, match="used by another run"):
        fo.select(stopped, run="half", **REQUEST)
    with pytest.raises(fo.RequestError, match="no run 'other'"):
        fo.resume("other")
    drive.forget("half")
    with fo.open_store(stopped) as store:
        assert store.regions() == ()
    fo.select(stopped, run="half", **REQUEST)


def test_a_request_that_does_not_fit_leaves_no_run(store_url: str) -> None:
    """An error of the caller's frees the name again and leaves nothing in the store."""
    for wrong in ({"target": "nobody"}, {"k": None}, {"objective": "logistic", "target": "amount"}):
        with pytest.raises(fo.InputError):
            fo.select(store_url, run="wrong", **{**REQUEST, **wrong})
    with fo.open_store(store_url) as store:
        assert (fo.list_runs(), store.regions()) == ([], ())


def test_what_cannot_be_durable_is_refused(store_url: str) -> None:
    """Arrays, stores in memory and constraints that cannot be written down have no durable runs."""
    X = np.eye(5)
    with pytest.raises(fo.RequestError, match="needs a store"):
        fo.select(X, X[:, 0], run="array", k=1)
    with (
        fo.create_store("dram:volatile", X, X[:, 0], replace=True) as store,
        pytest.raises(fo.RequestError, match="ends with this process"),
    ):
        fo.select(store, run="memory", k=1)
    with pytest.raises(fo.RequestError, match="Cardinality object, which cannot be written as JSON"):
        fo.select(store_url, run="object", constraint=Cardinality(298, 3), target="amount")
    assert fo.list_runs() == []


def test_a_response_given_as_an_array_is_kept(store_url: str) -> None:
    """Numbers and labels handed to ``select`` come back exactly when the run is resumed."""
    y = np.random.default_rng(1).normal(size=120)
    for response, objective in ((y, "linear"), (np.where(y > 0, "yes", "no"), "logistic")):
        request = {"k": 2, "objective": objective, "algorithm": "sds_omp"}
        assert comparable(fo.select(store_url, response, run=objective, **request)) == comparable(
            fo.select(store_url, response, **request)
        )
        kept = drive.registration(objective).decoded_response()
        assert np.array_equal(np.asarray(kept), response)


def test_another_matrix_is_refused(stopped: str, design) -> None:
    """A store replaced under the same address does not answer for the old one."""
    fo.create_store(stopped, -design.matrix().T, {"amount": design.response()}, replace=True).close()
    with pytest.raises(fo.StoreError, match="another matrix"):
        fo.resume("half")


def test_another_target_is_refused(stopped: str, design) -> None:
    """The same matrix with other targets is another problem."""
    X = design.matrix().T.astype(np.float32)
    fo.create_store(stopped, X, {"amount": -design.response()}, groups={"region": [10, 11, 12]}, replace=True).close()
    with pytest.raises(fo.StoreError, match="targets"):
        fo.resume("half")


def test_another_request_is_refused(stopped: str, own_home: Path) -> None:
    """A state made for other parameters is refused, naming them."""
    found = drive.registration("half")
    rewrite(own_home, "half", request={**found.request, "k": 4})
    with pytest.raises(fo.StoreError, match=r'made with request \{"k": 5\} and now has request \{"k": 4\}'):
        fo.resume("half")


def test_another_build_is_refused_unless_asked_for(stopped: str, own_home: Path) -> None:
    """A run started with another kernel or BLAS continues only with other_build, and its result lists the difference."""
    found = drive.registration("half")
    foreign = {**found.build, "kernel": "abacus-1"}
    rewrite(own_home, "half", build=foreign)
    with pytest.raises(fo.StoreError, match=r"numeric build \(kernel abacus-1 then"):
        fo.resume("half")
    failed = command("resume", "half")
    assert (failed.returncode, len(failed.stderr.splitlines())) == (1, 1)
    assert "--other-build" in failed.stderr
    done = command("resume", "half", "--other-build", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["other_build"] == [f"kernel abacus-1 then, {found.build['kernel']} now"]
    assert printed["indices"] == fo.select(stopped, **REQUEST).indices.tolist()


def test_a_part_done_by_another_build_is_told_whoever_finishes(stopped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that another build drove for a while says so in its result, although the first build finished it."""
    with monkeypatch.context() as patch:
        patch.setattr(drive, "numeric_build", lambda kernel: {**identity.numeric_build(kernel), "numpy": "0.1"})
        with pytest.raises(fo.CancelledError):
            fo.resume("half", other_build=True, cancelled=lambda: True)
    finished = fo.resume("half")
    assert [phrase.endswith("then, 0.1 now") for phrase in finished.other_build] == [True]
    assert fo.resume("half").other_build == finished.other_build


def test_fits_by_another_implementation_are_another_build(stopped: str, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled fits and those in Python differ in their last bits, so a run started with one is not resumed with the other."""
    monkeypatch.setattr("fastomp_nvm.native.extension", None)
    rewrite(own_home, "half", build={**drive.registration("half").build, "fits": "c-6", "rounds": "python"})
    with pytest.raises(fo.StoreError, match=r"numeric build \(.*fits c-6 then, python-5 now\)"):
        fo.resume("half")
    rewrite(own_home, "half", build={**drive.registration("half").build, "fits": "python-5", "rounds": "c-2"})
    with pytest.raises(fo.StoreError, match=r"numeric build \(.*rounds c-2 then, python now\)"):
        fo.resume("half")
    assert not {"fits", "rounds"} & set(identity.sweep_build("any"))  # a shard computes none


def test_another_format_is_refused(stopped: str, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registration of a later format is refused by its version."""
    found = drive.registration("half")
    with monkeypatch.context() as patch:
        patch.setattr(sealed, "FORMAT", 9)
        data = found.to_bytes()
    (own_home / "runs" / "half" / "run.json").write_bytes(data)
    with pytest.raises(fo.StoreError, match="format version is 9 and this release reads 1"):
        fo.resume("half")


def test_other_code_is_refused(stopped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm that asks another question than the recorded one is refused."""
    from fastomp_nvm.algorithms import sds_omp as module

    def other(problem):
        from fastomp_nvm.algorithms.protocol import Ask, Query

        yield Query(0, 0.0, (Ask(problem.objective.null().residual, problem.usable[1:]),))

    monkeypatch.setattr(module, "sds_omp", other)
    with pytest.raises(fo.StoreError, match="does not belong to this code: at round 1 the candidates are others"):
        fo.resume("half")


def test_two_processes_cannot_drive_one_run(stopped: str) -> None:
    """While one process drives a run another is refused; when the first is killed the second may continue."""
    script = (
        "import sys, time, fastomp_nvm as fo\n"
        "def wait(step):\n"
        "    print('driving', flush=True)\n"
        "    time.sleep(60)\n"
        "fo.resume('half', observer=wait)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"driving\n"
        with pytest.raises(fo.RequestError, match="driven by another process"):
            fo.resume("half")
        assert fo.list_runs()[0].status == "running"
        assert fo.list_runs()[0].rounds == 3
        child.kill()
        child.wait()
    assert fo.list_runs()[0].status == "stopped"
    assert comparable(fo.resume("half")) == comparable(fo.select(stopped, **REQUEST))


def test_a_damaged_registration_is_listed_and_forgotten(stopped: str, own_home: Path) -> None:
    """A run that cannot be read is listed as damaged, does not hide other runs, and can be removed."""
    fo.select(stopped, run="sound", **REQUEST)
    (own_home / "runs" / "half" / "run.json").write_bytes(b"{}")
    assert [(info.name, info.status) for info in fo.list_runs()] == [("half", "damaged"), ("sound", "finished")]
    assert command("runs").returncode == 0
    with pytest.raises(fo.StoreError, match=r"run\.json"):
        fo.resume("half")
    assert command("forget", "half").returncode == 0
    assert [info.name for info in fo.list_runs()] == ["sound"]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_every_call_of_a_run_may_fail(store_url: str, code: int) -> None:
    """The Nth call to the device fails, N = 1, 2, ...: an error of this project, and the run can be resumed or does not exist."""
    expected = comparable(fo.select(store_url, **REQUEST))
    calls = [(os, name) for name in ("open", "fsync", "mkdir", "rename", "posix_fallocate", "ftruncate")]
    calls += [(mapped, "MappedFile"), (mapped.MappedFile, "flush")]
    for nth in range(1, 200):
        fault = Fault(nth, code)
        with contextlib.suppress(fo.FastompError), failing_calls(fault, *calls):
            fo.select(store_url, run="faulty", **REQUEST)
        if fo.list_runs():
            assert comparable(fo.resume("faulty")) == expected
            drive.forget("faulty")
        with fo.open_store(store_url) as store:
            assert store.regions() == ()
        if not fault.fired:
            break
    assert 20 < nth < 199


def test_the_command_line(store_url: str, tmp_path: Path) -> None:
    """``select --run``, ``runs`` and ``resume`` print the results of the Python functions, constraint and target files included."""
    (tmp_path / "c.yaml").write_text("knapsack: {costs: costs.csv, budget: 4}\n")
    with fo.open_store(store_url) as store:
        (tmp_path / "costs.csv").write_text("feature,cost\n" + "".join(f"{name},1\n" for name in store.names))
    np.save(tmp_path / "target.npy", np.random.default_rng(5).normal(size=120))
    words = ("select", store_url, "--constraint", str(tmp_path / "c.yaml"), "--target", str(tmp_path / "target.npy"), "--json")
    plain, durable = command(*words), command(*words, "--run", "shell", "--verify")
    assert plain.returncode == durable.returncode == 0, durable.stderr
    printed = json.loads(durable.stdout)
    assert json.loads(command("resume", "shell", "--json").stdout) == printed
    assert printed.pop("verified") is True
    same = json.loads(plain.stdout)
    del same["verified"], same["seconds"], printed["seconds"]
    assert printed == same
    listed = json.loads(command("runs", "--json").stdout)
    assert [(run["name"], run["status"], run["selected"]) for run in listed] == [("shell", "finished", 4)]
    assert "shell" in command("runs").stdout
    again = command(*words, "--run", "shell")
    assert (again.returncode, again.stdout) == (2, "")


def test_a_side_file_that_changed_is_refused(store_url: str, tmp_path: Path) -> None:
    """A resumed run is refused when a file named by its constraint file has changed."""
    (tmp_path / "c.yaml").write_text("knapsack: {costs: costs.csv, budget: 4}\n")
    with fo.open_store(store_url) as store:
        names = list(store.names)
        (tmp_path / "costs.csv").write_text("feature,cost\n" + "".join(f"{name},1\n" for name in names))
        with pytest.raises(fo.CancelledError):
            drive.start("side", store, constraint_file=tmp_path / "c.yaml", target="amount", cancelled=lambda: True)
    (tmp_path / "costs.csv").write_text("feature,cost\n" + "".join(f"{name},2\n" for name in names))
    with pytest.raises(fo.StoreError, match="means another constraint"):
        fo.resume("side")


@pytest.mark.parametrize("ending", [".csv", ".npy", ".npz", ".parquet"])
def test_export(store_url: str, tmp_path: Path, ending: str) -> None:
    """The reduced matrix reads back with its names and target, from a run and from a result file alike."""
    found = fo.select(store_url, run="kept", k=4, target="amount")
    (tmp_path / "result.json").write_text(json.dumps(found.to_json()))
    names = [name for part in found.columns for name in part]
    with fo.open_store(store_url) as store:
        X, y = store.matrix[found.column_positions].T, store.targets["amount"].values
    for source in (["kept"], [str(tmp_path / "result.json"), "--store", store_url]):
        out = tmp_path / f"reduced{ending}"
        done = command("export", *source[:1], str(out), *source[1:])
        assert done.returncode == 0, done.stderr
        if ending == ".csv":
            header, *lines = out.read_text(encoding="utf-8").splitlines()
            assert header.split(",") == [*names, "amount"]
            table = np.array([line.split(",") for line in lines], dtype=np.float64)
            columns, response = table[:, :-1].astype(np.float32), table[:, -1]
        elif ending == ".npy":
            table = np.load(out)
            assert list(table.dtype.names) == [*names, "amount"]
            columns, response = np.stack([table[name] for name in names], axis=1), table["amount"]
        elif ending == ".npz":
            with np.load(out) as archive:
                assert archive["names"].tolist() == names
                columns, response = archive["X"], archive["y"]
        else:
            table = pytest.importorskip("pyarrow.parquet").read_table(out)
            assert table.column_names == [*names, "amount"]
            columns, response = np.stack([table[name].to_numpy() for name in names], axis=1), table["amount"].to_numpy()
        np.testing.assert_array_equal(columns, X)
        np.testing.assert_array_equal(response, y)
        out.unlink()
    assert not list(tmp_path.glob(".*partial*"))


def test_export_says_what_is_wrong(stopped: str, tmp_path: Path) -> None:
    """An unfinished run, an unknown name, a wrong ending and a foreign file are each one line and exit code 2."""
    (tmp_path / "foreign.json").write_text("[]")
    for words in (
        ["half", "out.csv"],
        ["nobody", "out.csv"],
        ["half", "out.xlsx"],
        [str(tmp_path / "foreign.json"), "out.csv"],
        [str(tmp_path / "foreign.json"), "out.csv", "--store", stopped],
    ):
        failed = command("export", *words)
        assert (failed.returncode, len(failed.stderr.splitlines())) == (2, 1), failed.stderr
