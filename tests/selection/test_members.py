"""Observers are told which features are selected so far, by every algorithm, at no cost where nobody asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.algorithms.protocol import Outcome, Problem, Round
from fastomp_nvm.algorithms.table import ALGORITHMS
from fastomp_nvm.engine.engine import MOST_FEATURES, Progress
from fastomp_nvm.objectives.table import OBJECTIVES

KINDS: list[dict[str, Any]] = [
    *({"algorithm": name} for name in ALGORITHMS),
    *({"algorithm": name, "plain": True} for name in ("sds_omp", "sds_ma")),
    *({"objective": name, "quality": quality} for name in OBJECTIVES for quality in ("fast", "verified", "best")),
    {"polish": "none"},
    {"tau": "auto"},
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
@pytest.mark.filterwarnings("ignore")
def test_every_algorithm_names_its_features_so_far(kind: dict[str, Any]) -> None:
    """A report names as many different usable features as it counts, or none; the last one names the answer in its order."""
    if kind.get("algorithm") == "lasso":
        pytest.importorskip("sklearn", reason="the lasso needs scikit-learn")
    rng = np.random.default_rng(8)
    X = rng.normal(size=(70, 40))
    y = X[:, :6] @ rng.normal(size=6) + 0.5 * rng.normal(size=70)
    target = {"logistic": y > 0, "poisson": rng.poisson(np.exp(0.3 * y))}.get(kind.get("objective", ""), y)
    steps: list[Progress] = []
    found = fo.select(X, target, k=6, exclude=["f3"], observer=steps.append, **kind)
    assert steps[-1].ended
    assert sorted(steps[-1].features) == sorted(found.indices.tolist())
    for step in steps:
        assert step.selected == len(set(step.features))
        assert not {3} & set(step.features)
    counts = [step.selected for step in steps]
    if kind.get("algorithm") in ("sds_omp", "sds_ma") and kind.get("plain"):
        assert max(counts[:-1]) >= 5, "the sets before the last are reported too"
        assert all(step.features == tuple(found.indices[: step.selected].tolist()) for step in steps)


class Unread:
    """A set that may not be looked at."""

    def __getitem__(self, place: object) -> object:
        raise AssertionError("nobody asked for the features")

    def __len__(self) -> int:
        return 3


def test_features_are_looked_up_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An observer that reads counts alone costs no look at the set; the features are one when they are read."""

    def algorithm(problem: Problem) -> Iterator[Any]:
        yield Round(3, 0.25, members=Unread())  # type: ignore[arg-type]
        return Outcome(np.array([5, 1, 2]))

    monkeypatch.setattr("fastomp_nvm.algorithms.top_k.top_k", algorithm)
    X = np.random.default_rng(0).normal(size=(20, 9))
    counts: list[int] = []
    fo.select(X, X[:, 1], k=3, algorithm="top_k", observer=lambda step: counts.append(step.selected))
    assert counts == [3, 3]
    with pytest.raises(AssertionError, match="nobody asked"):
        fo.select(X, X[:, 1], k=3, algorithm="top_k", observer=lambda step: step.features)


def test_progress_travels_as_json() -> None:
    """At most so many features travel; without them the rest does; values of a later release are left out when read."""
    step = Progress(0, 4, 300, 500, 0.5, 7, 0.1, shards=(0.5, 1.0), members=np.arange(1000, 1400))
    assert step.features == tuple(range(1000, 1000 + MOST_FEATURES))
    text = json.dumps(step.to_json())
    again = Progress.of_json({**json.loads(text), "later": 1})
    assert again == step
    assert again.features == step.features
    assert "features" not in step.to_json(features=False)
    assert Progress.of_json(step.to_json(features=False)).features == ()
