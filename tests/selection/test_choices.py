"""What a request leaves open is chosen by shape, constraint and cost, and the result says what was chosen and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.analysis.synthetic import sparse_design
from fastomp_nvm.cli.main import main
from fastomp_nvm.matrix.choice import Choice
from fastomp_nvm.runs import drive
from fastomp_nvm.selection.automatic import choose_algorithm
from fastomp_nvm.selection.codec import decode_selection, encode_selection
from fastomp_nvm.selection.request import SelectionRequest

X, Y = sparse_design(60, 300, true=12, noise=0.5, seed=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> fo.FeatureStore:
    """Build a small store with a tier."""
    return fo.create_store(f"mmap://{tmp_path_factory.mktemp('choices')}/s", X, {"y": Y, "c": np.where(Y > 0, "yes", "no")})


@pytest.mark.parametrize(
    ("n_obs", "n_features", "k", "constrained", "expected"),
    [
        (2000, 20_000, 100, False, "fast_omp"),
        (60_000, 784, 40, False, "fast_omp"),  # fewer features than observations
        (1000, 500, 150, False, "fast_omp"),
        (500, 5000, 10, False, "fast_omp"),
        (500, 5000, 50, False, "sds_omp"),  # few observations: greedy is better, and cheap
        (500, 5000, 50, True, "fast_omp"),
        (500, 5000, None, True, "fast_omp"),
        (300, 10_000_000, 30, False, "fast_omp"),  # few observations, and greedy is dear
        (2000, 20_000, 1, False, "sds_omp"),
    ],
)
def test_the_algorithm_follows_from_shape_constraint_and_cost(
    n_obs: int, n_features: int, k: int | None, constrained: bool, expected: str
) -> None:
    """FAST_OMP, except for one feature, and for few observations as long as k passes are cheap."""
    choice = choose_algorithm(n_obs, n_features, k, constrained=constrained)
    assert choice.value == expected
    assert 10 < len(choice.reason) < 120


@pytest.mark.parametrize(("options", "algorithm"), [({"k": 15}, "sds_omp"), ({"k": 4}, "fast_omp"), ({"k": 1}, "sds_omp")])
def test_auto_is_the_algorithm_that_it_names(store: fo.FeatureStore, options: dict[str, Any], algorithm: str) -> None:
    """``algorithm="auto"`` gives the answer and the counters of the algorithm it chose, whose name the result has."""
    found = fo.select(store, algorithm="auto", **options)
    named = fo.select(store, algorithm=algorithm, **options)
    assert (found.algorithm, found.choices["algorithm"].value) == (algorithm, algorithm)
    assert "algorithm" not in named.choices
    assert (found.indices.tolist(), found.bytes_read, found.sweeps) == (named.indices.tolist(), named.bytes_read, named.sweeps)
    assert found.column_coef.tobytes() == named.column_coef.tobytes()


def test_the_default_algorithm_is_named() -> None:
    """``auto`` has to be asked for: without it every answer is FAST_OMP's."""
    assert SelectionRequest(k=2).algorithm == "fast_omp"


def test_only_what_was_left_open_is_reported(store: fo.FeatureStore) -> None:
    """Tier, reading, threads and memory are reported where the request names none, and not otherwise."""
    assert set(fo.select(store, k=3).choices) == {"tier", "io", "threads", "gather_bytes"}
    assert set(fo.select(X, Y, k=3).choices) == {"threads"}  # in memory, without a tier
    named = fo.select(store, k=3, tier="exact", io="mmap", threads=1, gather_bytes=1 << 20)
    assert named.choices == {}
    assert "choices" not in named.to_json()


def test_choices_survive_the_codec(store: fo.FeatureStore) -> None:
    """A selection read back has the same choices; a damaged one is refused, and one of an earlier release has none."""
    found = fo.select(store, k=3, algorithm="auto")
    sent = json.loads(json.dumps(encode_selection(found)))
    assert decode_selection(sent).choices == found.choices
    assert "algorithm fast_omp: " in found._repr_html_()
    sent["json"]["choices"]["tier"] = {"value": "int8"}
    with pytest.raises(ValueError, match="missing or of the wrong type"):
        decode_selection(sent)
    del sent["json"]["choices"]
    assert decode_selection(sent).choices == {}


def test_the_shell_says_what_it_chose(store: fo.FeatureStore, capsys: pytest.CaptureFixture[str]) -> None:
    """``--algorithm auto`` and the other choices appear with their reasons in the text and in the JSON object."""
    words = ["select", store.url, "--k", "4", "--target", "y", "--algorithm", "auto"]
    assert main([*words, "--json"]) == 0
    chosen = json.loads(capsys.readouterr().out)["choices"]
    assert chosen["algorithm"] == {"value": "fast_omp", "reason": "about two passes, where a greedy algorithm makes 4"}
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "algorithm fast_omp: about two passes" in shown
    assert f"tier exact: {chosen['tier']['reason']}" in shown


def test_analyses_choose_too() -> None:
    """A grid chooses per cell, and cross-validation gives every fold the algorithm that all observations call for."""
    cells = fo.grid(X, Y, over={"k": [4, 15]}, algorithm="auto").cells
    assert [cell.selection.algorithm for cell in cells] == ["fast_omp", "sds_omp"]
    chosen, named = (fo.cross_validate(X, Y, ks=[15], folds=3, algorithm=name) for name in ("auto", "sds_omp"))
    assert chosen.scores.tolist() == named.scores.tolist()


def test_a_resumed_run_keeps_its_algorithm(store: fo.FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The algorithm of a durable run is chosen when its log begins: another rule of a later release does not change it."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    expected = fo.select(store.url, k=15, target="y", algorithm="auto")
    asked = iter([*[False] * 9, True])
    with pytest.raises(fo.CancelledError):
        fo.select(store.url, run="half", k=15, target="y", algorithm="auto", cancelled=lambda: next(asked))
    monkeypatch.setattr("fastomp_nvm.selection.select.choose_algorithm", lambda *_, **__: Choice("top_k", "another rule"))
    found = drive.resume("half")
    assert (found.algorithm, found.choices["algorithm"]) == ("sds_omp", expected.choices["algorithm"])
    assert found.indices.tolist() == expected.indices.tolist()
