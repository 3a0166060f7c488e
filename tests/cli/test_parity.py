"""Shell and Python offer the same: every field of a request is an option, every way to read a store a keyword argument."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.commands import cv, grid, path, select, stability
from fastomp_nvm.cli.main import COMMANDS, main


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build a small store on disk."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(90, 40))
    path = tmp_path_factory.mktemp("parity") / "store"
    fo.create_store(f"mmap://{path}", X, X[:, 2] - X[:, 7] + 0.5 * rng.normal(size=90)).close()
    return str(path)


@pytest.mark.parametrize("command", [select, path, grid, cv, stability])
def test_every_field_of_a_request_is_an_option(command: Any) -> None:
    """The options are spelt as the fields of ``SelectionRequest``."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    assert {f"--{name.replace('_', '-')}" for name in fo.SelectionRequest.__dataclass_fields__} <= options


def test_weights_exclude_and_the_rest_mean_the_same(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shell prints the object of Python for the options that no other test compares."""
    weights = np.arange(90) % 3
    np.save(tmp_path / "weights.npy", weights)
    (tmp_path / "c.yaml").write_text("partition: {groups: {a: [f2, f3]}, caps: {a: 1}}\n")
    words = ["--k", "5", "--weights", str(tmp_path / "weights.npy"), "--exclude", "f7", "--exclude", "f9", "--no-standardize"]
    words += ["--gather-bytes", "100000", "--constraint", str(tmp_path / "c.yaml"), "--verify", "--io", "mmap", "--load", "dram"]
    assert main(["select", store, *words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = fo.select(
        store,
        k=5,
        weights=weights,
        exclude=["f7", "f9"],
        standardize=False,
        gather_bytes=100_000,
        constraint=tmp_path / "c.yaml",
        verify=True,
        io="mmap",
        load="dram",
    ).to_json()
    assert {**printed, "seconds": 0} == {**found, "seconds": 0}
    assert (found["verified"], found["medium"]) == (True, "dram")
    assert not {"f7", "f9"} & set(found["features"])


def test_a_constraint_file_serves_a_durable_run(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``constraint=Path`` selects the same on the spot, by name and in many requests; a run keeps the text of the file."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    file = tmp_path / "c.yaml"
    file.write_text("all: [{cardinality: 4}, {partition: {groups: {a: [f2, f7]}, caps: {a: 1}}}]\n")
    found = fo.select(store, constraint=file)
    run = fo.select(store, constraint=file, run="named", load="tier")
    assert run.indices.tolist() == found.indices.tolist() == fo.select_many(store, [{"constraint": file}])[0].indices.tolist()
    file.unlink()
    assert fo.resume("named").indices.tolist() == found.indices.tolist()
    fo.forget("named")
    with pytest.raises(fo.RequestError, match="leave io direct out"):
        fo.select(store, k=2, run="another", io="direct")


def test_settings_of_stores_are_refused_for_arrays(store: str) -> None:
    """An array has no checksums, no tier and no files; an unknown place to load into is named."""
    X = np.eye(5)
    for setting in ({"verify": True}, {"load": "dram"}, {"io": "mmap"}):
        with pytest.raises(fo.RequestError, match="are for stores"):
            fo.select(X, X[:, 0], k=1, **setting)
    with pytest.raises(fo.RequestError, match="load is 'tape'"):
        fo.select(store, k=1, load="tape")
    with pytest.raises(fo.RequestError, match="expected one of auto, mmap, direct"):
        fo.select(store, k=1, io="tape")


def test_what_only_this_machine_can_do_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Adding checksums changes a store, and is refused for a server's URL in terms of the shell."""
    assert main(["verify", "grpc://host:1/pool/key", "--add-checksums"]) == 2
    error = capsys.readouterr().err
    assert "run it where the store is" in error
    assert "connect" not in error


def test_every_listing_has_json() -> None:
    """Commands that list or show facts print JSON on request."""
    from fastomp_nvm.registry import Lazy

    for name in (
        "info",
        "list",
        "runs",
        "doctor",
        "plan",
        "check-constraint",
        "select",
        "path",
        "grid",
        "cv",
        "stability",
        "resume",
    ):
        parser = argparse.ArgumentParser()
        Lazy[Any](f"{COMMANDS[name][0]}:add_arguments").load()(parser)
        assert any("--json" in action.option_strings for action in parser._actions), name
