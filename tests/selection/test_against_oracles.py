"""FAST_OMP and SDS_OMP do what the slow transcriptions of the paper do, given the same random permutations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastomp_nvm import select
from fastomp_nvm.algorithms.draws import permutation
from fastomp_nvm.constraints import Cardinality, Constraint, Intersection, Partition
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.stores.open import create_store
from tests import oracles

pytestmark = pytest.mark.numerics

#: Below this margin a comparison with the threshold is decided by rounding.
DECIDED = 1e-8


class Instance:
    """A small random problem; features of several columns in every third one."""

    def __init__(self, seed: int, objective: str) -> None:
        rng = np.random.default_rng((seed, 77))
        self.n_obs = int(rng.integers(14, 40))
        n_features = int(rng.integers(3, 12))
        widths = rng.integers(1, 4, n_features) if seed % 3 == 0 else np.ones(n_features, dtype=int)
        edges = np.concatenate(([0], np.cumsum(widths)))
        self.groups = [list(range(edges[f], edges[f + 1])) for f in range(n_features)]
        self.X = rng.normal(size=(self.n_obs, int(edges[-1]))) * rng.uniform(0.1, 10, int(edges[-1])) + rng.normal(
            size=int(edges[-1])
        )
        if seed % 3 == 1:
            self.X[:, -1] = self.X[:, 0] + 0.3 * rng.normal(size=self.n_obs)
        if objective == "logistic":  # ridge acts on whitened coordinates: orthonormal groups make the oracle's the same
            for columns in self.groups:
                centred = self.X[:, columns] - self.X[:, columns].mean(axis=0)
                self.X[:, columns] = np.linalg.qr(centred)[0]
        signal = self.X @ (rng.normal(size=self.X.shape[1]) / self.X.std(axis=0))
        noise = rng.normal(size=self.n_obs) * signal.std() * rng.choice([0.1, 1.0])
        self.y = signal + noise
        if objective == "logistic":
            self.y = (self.y > np.median(self.y)).astype(float)
        self.n_features = n_features
        k = int(rng.integers(1, n_features + 1))
        self.constraint: Constraint = Cardinality(n_features, k)
        if seed % 2:
            labels = rng.integers(-1, 3, n_features)
            self.constraint = Intersection([self.constraint, Partition(n_features, labels, rng.integers(1, 3, 3))])
        self.parameters = {"epsilon": float(rng.choice([0.1, 0.25, 0.5])), "tau": float(rng.choice([0.2, 0.5, 0.9]))}
        self.model: dict[str, Any] = {"objective": objective, "ridge": 0.0 if objective == "linear" else 1e-3}

    def independent(self, features: frozenset[int]) -> bool:
        return self.constraint.independent(np.array(sorted(features), dtype=np.int64))

    def dataset(self, name: str) -> Dataset:
        names = [f"c{column}" for column in range(self.X.shape[1])]
        groups = {f"g{number}": columns for number, columns in enumerate(self.groups) if len(columns) > 1}
        return Dataset.of_store(create_store(f"dram:{name}", self.X, names=names, dtype="float64", groups=groups, replace=True))


def permuted(seed: int):
    """Return the package's permutations in the form the oracle asks for."""

    def ordered(outer: int, inner: int, round_: int, features: list[int]) -> list[int]:
        return permutation(seed, outer, inner, round_, np.array(features, dtype=np.int64)).tolist()

    return ordered


@pytest.mark.parametrize("objective", ["linear", "logistic"])
@pytest.mark.parametrize("until", ["paper", "full"])
def test_fast_omp_selects_what_algorithm_1_selects(objective: str, until: str) -> None:
    """Same set in the same order, same value and same gradient rounds as the transcription, on over a hundred instances."""
    compared = 0
    for seed in range(110 if objective == "linear" else 70):
        case = Instance(seed, objective)
        wanted = oracles.fast_omp(
            case.X,
            case.y,
            case.groups,
            case.independent,
            case.constraint.rank,
            permutation=permuted(seed),
            until=until,
            **case.parameters,
            **case.model,
        )
        if wanted.margin < DECIDED:
            continue
        found = select(
            case.dataset("oracle"),
            case.y,
            constraint=case.constraint,
            seed=seed,
            until=until,
            polish="none",
            **case.parameters,
            **case.model,
        )
        assert found.indices.tolist() == wanted.selected, f"instance {seed}: {case.parameters}"
        assert found.gradient_rounds == wanted.gradient_rounds
        if objective == "linear":
            assert found.score == pytest.approx(wanted.value, abs=1e-8)
        compared += 1
    assert compared >= 60


@pytest.mark.parametrize("objective", ["linear", "logistic"])
def test_sds_omp_selects_what_matching_pursuit_selects(objective: str) -> None:
    """The set of the naive pursuit, in its order."""
    for seed in range(60):
        case = Instance(seed, objective)
        wanted = oracles.sds_omp(case.X, case.y, case.groups, case.independent, **case.model)
        found = select(case.dataset("oracle"), case.y, constraint=case.constraint, algorithm="sds_omp", **case.model)
        # Once the fit is perfect, what remains is rounding: compare up to there.
        model = oracles.Model(case.X, case.y, case.groups, **case.model)
        for length in range(len(wanted) + 1):
            if length == len(wanted) or model.scores(wanted[:length]).max() < 1e-16:
                break
        assert found.indices.tolist()[:length] == wanted[:length]


def test_polish_equals_exact_greedy_when_everything_was_gathered() -> None:
    """The polish over all columns is SDS_MA by refits."""
    compared = 0
    for seed in range(40):
        case = Instance(seed, "linear")
        # epsilon and tau so small that nothing is filtered: the pool holds every feature
        found = select(case.dataset("oracle"), case.y, constraint=case.constraint, seed=seed, epsilon=0.1, tau=1e-9, until="full")
        greedy = oracles.sds_ma(case.X, case.y, case.groups, case.independent, objective="linear")
        model = oracles.Model(case.X, case.y, case.groups, objective="linear")
        best = max(model.value(greedy), found.score_unpolished)
        assert found.score == pytest.approx(best, abs=1e-7)
        compared += model.value(greedy) > found.score_unpolished
    assert compared >= 10
