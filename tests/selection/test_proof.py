"""Verified selections carry a proof, which anyone with the data can check again in one pass, and which cannot be tampered with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.algorithms import sds_ma, sds_omp, verified
from fastomp_nvm.algorithms.trace import Trace
from fastomp_nvm.cli.main import main
from fastomp_nvm.constraints import Constraint, Partition
from fastomp_nvm.errors import RequestError
from fastomp_nvm.selection.codec import decode_selection, encode_selection
from tests import oracles

pytestmark = pytest.mark.numerics

N = 60
SIDES = {"a": [f"f{s}" for s in range(0, N, 2)], "b": [f"f{s}" for s in range(1, N, 2)]}
CAPS = {"partition": {"groups": SIDES, "caps": {"a": 3, "b": 4}}}


@pytest.fixture(autouse=True)
def verifying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the verified way however small the data."""
    for module in (sds_omp, sds_ma):
        monkeypatch.setattr(module, "pays", lambda problem: True)


def problem(seed: int, objective: str = "linear") -> tuple[np.ndarray, np.ndarray]:
    """Return correlated columns and a response that a few of them explain."""
    rng = np.random.default_rng((seed, 27))
    X = rng.normal(size=(120, N)) + rng.normal(size=(120, 1))
    eta = X[:, :9] @ rng.normal(size=9) / 3
    y = {"linear": eta + rng.normal(size=120), "logistic": eta > rng.logistic(size=120), "poisson": rng.poisson(np.exp(eta / 3))}
    return X, y[objective].astype(float)


def slow_trace(f: oracles.Model, kind: str, allowed: Callable[[frozenset[int]], bool]) -> Trace:
    """Return greedy's steps from their definition, by refits."""
    chosen, seconds, margins = list[int](), list[int](), list[float]()
    while candidates := f.extensions(allowed, chosen):
        every = f.scores(chosen)
        scores = {s: f.value([*chosen, s]) - f.value(chosen) if kind == "exact gains" else float(every[s]) for s in candidates}
        first, *others = sorted(scores, key=lambda s: (-scores[s], s))
        chosen.append(first)
        seconds.append(others[0] if others else -1)
        margins.append(1 - scores[others[0]] / scores[first] if others else 1.0)
    return Trace(kind, chosen, seconds, margins)


@pytest.mark.parametrize(
    ("algorithm", "objective"), [("sds_omp", "linear"), ("sds_omp", "logistic"), ("sds_omp", "poisson"), ("sds_ma", "linear")]
)
def test_the_trace_is_that_of_the_definition(algorithm: str, objective: str) -> None:
    """Winners, runners-up and margins are those of greedy by refits."""
    for seed in range(3):
        X, y = problem(seed, objective)
        constraint = Partition(N, np.arange(N) % 2, [3, 4])
        found = fo.select(X, y, algorithm=algorithm, objective=objective, constraint=constraint, ridge=1e-4)
        kind = {"sds_omp": "omp", "sds_ma": "exact gains"}[algorithm]
        f = oracles.Model(X, y, objective=objective, ridge=1e-4)
        slow = slow_trace(f, kind, lambda features, limit=constraint: limit.independent(np.array(sorted(features), dtype=np.int64)))
        assert found.proof is not None
        (trace,) = found.proof.traces
        assert (trace.winners, trace.runners_up) == (slow.winners, slow.runners_up)
        assert trace.winners == found.indices.tolist()
        np.testing.assert_allclose(trace.margins, slow.margins, atol=1e-5 if objective == "linear" else 1e-3)


@pytest.mark.parametrize(
    "request_",
    [
        {"algorithm": "sds_omp", "k": 12},
        {"algorithm": "sds_ma", "k": 12, "tier": "int8", "ridge": 0.3},
        {"algorithm": "sds_omp", "constraint": CAPS, "tier": "int8", "test_fraction": 0.25, "seed": 3},
        {"quality": "verified", "k": 12, "exclude": ["f3"]},
        {"quality": "best", "constraint": CAPS},
        {"quality": "verified", "k": 9, "objective": "logistic", "target": "class"},
        {"quality": "verified", "k": 6, "objective": "poisson", "target": "count"},
    ],
)
def test_a_proof_holds_again(tmp_path: Path, request_: dict[str, Any]) -> None:
    """A result, its JSON and a durable run are checked in one pass over all features, with no part of the request given again."""
    store = str(tmp_path / "s")
    X, y = problem(1)
    targets = {"y": y, "class": problem(1, "logistic")[1], "count": problem(1, "poisson")[1]}
    fo.create_store(store, X.astype(np.float32), targets, names=[f"f{s}" for s in range(N)], tier="int8").close()
    run_name = tmp_path.name
    found = fo.select(store, run=run_name, **request_)
    assert found.proof is not None
    assert found.proof.missing == []
    (tmp_path / "result.json").write_text(json.dumps(found.to_json()))
    found.save(tmp_path / "model.json")
    again = decode_selection(json.loads(json.dumps(encode_selection(found))))
    assert again.proof == found.proof
    passes = list[int]()
    for run in (found, again, run_name, tmp_path / "result.json", tmp_path / "model.json"):
        checked = fo.verify(run, store, observer=lambda progress: passes.append(progress.sweep))
        assert checked.holds, checked.sentence
        assert checked.interchangeable == []
    assert max(passes) == 1
    assert main(["verify", run_name]) == 0
    assert main(["verify", str(tmp_path / "result.json"), "--store", store]) == 0


def changed(result: dict[str, Any], place: str) -> None:
    """Tamper with one part of a result."""
    omp, gains = result["proof"]["traces"]
    step = 4
    if place == "winner":
        gains["winners"][step] = next(s for s in range(N) if s not in gains["winners"])
    elif place == "winner and runner-up":
        step = next(place for place, second in enumerate(gains["runners_up"]) if second not in gains["winners"])
        gains["winners"][step], gains["runners_up"][step] = gains["runners_up"][step], gains["winners"][step]
    elif place == "order":
        omp["winners"][2], omp["winners"][3] = omp["winners"][3], omp["winners"][2]
    elif place == "margin":
        omp["margins"][step] += 0.001
    elif place == "runner-up":
        omp["runners_up"][step] = next(s for s in range(N) if s not in (*omp["winners"], omp["runners_up"][step]))
    elif place == "last step":
        for part in ("winners", "runners_up", "margins"):
            omp[part].pop()
    elif place == "selection":
        result["indices"][-1] = next(s for s in range(N) if s not in result["indices"])
    elif place == "selection and score":
        result["indices"] = result["indices"][:3]
        result["score"] = result["three"]
    elif place == "score":
        result["score"] = float("nan")
    elif place == "covered":
        result["features_covered"] += 1
    elif place == "twice":
        omp["winners"][1] = omp["winners"][0]
    elif place == "too many":
        omp["winners"].append(next(s for s in range(N) if s not in omp["winners"]))
        omp["runners_up"].append(-1)
        omp["margins"].append(1.0)
    elif place == "fingerprint":
        result["proof"]["fingerprint"] = result["proof"]["fingerprint"][::-1]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("nothing", "the proof holds"),
        ("winner", "step 5 of exact gains is won by"),
        ("winner and runner-up", "of exact gains is won by"),
        ("order", "step 3 of omp is won by"),
        ("margin", "the margin of step 5 of omp is"),
        ("runner-up", "the runner-up of step 5 of omp is"),
        ("last step", "omp ends after step 9, and"),
        ("selection", "the score of the selection is"),
        ("selection and score", "f of the selection is"),
        ("score", "the score of the selection is"),
        ("covered", "said to cover 61 features"),
        ("twice", "omp holds a feature twice"),
        ("too many", "omp breaks the constraint"),
        ("fingerprint", "the matrix is another one"),
    ],
)
def test_a_changed_record_is_caught(tmp_path: Path, place: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever part of the record, the selection or its score is changed, the sentence names it, and the exit status is 1."""
    X, y = problem(2)
    store = str(tmp_path / "s")
    fo.create_store(store, X, {"y": y}).close()
    result = fo.select(store, k=10, quality="verified").to_json()
    result["three"] = oracles.linear_value(X, y, result["indices"][:3])
    changed(result, place)
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert main(["verify", str(tmp_path / "result.json"), "--store", store]) == (0 if place == "nothing" else 1)
    assert words in capsys.readouterr().out


def test_other_data_is_caught(tmp_path: Path) -> None:
    """The same selection does not hold for another matrix, other targets, or an array with one column changed."""
    X, y = problem(3)
    store, other, targets = (str(tmp_path / name) for name in ("s", "other", "targets"))
    fo.create_store(store, X, {"y": y}).close()
    found = fo.select(store, k=8, algorithm="sds_omp")
    X2 = X.copy()
    X2[:, 50] = y + 0.01 * X[:, 50]
    fo.create_store(other, X2, {"y": y}).close()
    fo.create_store(targets, X, {"y": y[::-1].copy()}).close()
    assert fo.verify(found, store).holds
    assert "the matrix is another one" in fo.verify(found, other).sentence
    assert "the targets" in fo.verify(found, targets).sentence
    found = fo.select(X, y, k=8, algorithm="sds_ma")
    assert fo.verify(found, X, y).holds
    assert "step 1 of exact gains is won by 'f50'" in fo.verify(found, X2, y).sentence


def test_close_steps_are_interchangeable(tmp_path: Path) -> None:
    """A step decided by less than 1e-6 names its runner-up; a record in which the two changed places holds as well."""
    X, y = problem(4)
    X = np.column_stack((X[:, :40], X[:, :20] + 1e-9 * np.random.default_rng(0).normal(size=(120, 20))))
    found = fo.select(X, y, k=5, algorithm="sds_omp")
    assert found.proof is not None
    (trace,) = found.proof.traces
    close = [place for place, margin in enumerate(trace.margins) if abs(margin) < 1e-6]
    assert close
    checked = fo.verify(found, X, y)
    assert [step for step, _, _ in checked.interchangeable] == [place + 1 for place in close]
    assert all(abs(trace.winners[place] - trace.runners_up[place]) == 40 for place in close)
    assert "interchangeable" in checked.sentence


def test_what_cannot_be_verified_is_refused_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A result without a proof, a file that is none, missing weights and a missing store each have their sentence; exit 2."""
    X, y = problem(5)
    store, file = str(tmp_path / "s"), tmp_path / "result.json"
    fo.create_store(store, X, {"y": y}).close()
    weights = np.ones(120)
    cases = {
        "carries no proof": fo.select(store, k=3).to_json(),
        "does not hold the weights": fo.select(store, k=3, algorithm="sds_omp", weights=weights).to_json(),
        "does not hold the response": fo.select(store, y, k=3, algorithm="sds_omp").to_json(),
        "the parts of a trace differ in length": fo.select(store, k=3, algorithm="sds_omp").to_json(),
        "not a list of numbers": fo.select(store, k=3, algorithm="sds_omp").to_json(),
        "neither the output of": [1, 2],
    }
    cases["not a list of numbers"]["proof"]["traces"][0]["winners"][0] = 10**400
    cases["the parts of a trace differ in length"]["proof"]["traces"][0]["margins"].pop()
    for words, result in cases.items():
        file.write_text(json.dumps(result))
        assert main(["verify", str(file), "--store", store]) == 2
        assert words in capsys.readouterr().err
    assert main(["verify", str(file)]) == 2
    constraint: Constraint = Partition(N, np.arange(N) % 2, [3, 4])
    found = fo.select(store, constraint=constraint, algorithm="sds_omp", weights=weights)
    assert found.proof is not None
    assert found.proof.missing == ["weights", "constraint"]
    with pytest.raises(RequestError, match="weights"):
        fo.verify(found, store)
    assert fo.verify(found, store, weights=weights, constraint=constraint).holds


def test_little_memory_takes_a_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where products of all steps do not fit into memory, the proof is checked in several passes, with the same outcome."""
    X, y = problem(6)
    found = fo.select(X, y, k=20, quality="verified")
    monkeypatch.setattr(verified, "PRODUCT_BYTES", 8 * N * 7)
    sweeps = list[int]()
    assert fo.verify(found, X, y, observer=lambda progress: sweeps.append(progress.sweep)).holds
    assert max(sweeps) == 3
