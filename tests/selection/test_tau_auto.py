"""``tau="auto"`` is the best of several runs in the sweeps of the longest; ``skip_weak`` passes over what has become weak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.algorithms.fast_omp import TAUS
from fastomp_nvm.analysis.synthetic import PaperDesign

pytestmark = pytest.mark.numerics


def correlated(seed: int, n_obs: int = 150, n_features: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Return neighbours that resemble each other and a response of thirty of them: tau matters here."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_obs, n_features))
    for column in range(1, n_features):
        X[:, column] = 0.7 * X[:, column - 1] + np.sqrt(1 - 0.49) * X[:, column]
    support = rng.choice(n_features, 30, replace=False)
    return X, X[:, support] @ rng.normal(size=30) + 0.5 * rng.normal(size=n_obs)


def bits(selection: fo.Selection) -> tuple[Any, ...]:
    coef = selection.column_coef
    return (selection.indices.tolist(), coef.tobytes(), selection.score, selection.tau_chosen, selection.bytes_read)


@pytest.mark.parametrize("objective", ["linear", "logistic"])
def test_auto_without_polish_is_the_best_of_the_four_runs(objective: str) -> None:
    """The set, its order and its score are those of the best tau run alone."""
    chosen = set()
    for seed in range(6 if objective == "linear" else 3):
        X, y = correlated(seed)
        if objective == "logistic":
            y = y > np.median(y)
        # With few outer iterations a choosy run ends before it is full: then a smaller tau wins.
        common: dict[str, Any] = {"k": 30, "objective": objective, "seed": seed, "polish": "none", "epsilon": (0.1, 0.6)[seed % 2]}
        alone = [fo.select(X, y, tau=tau, **common) for tau in TAUS]
        found = fo.select(X, y, tau="auto", **common)
        best = max(range(len(TAUS)), key=lambda place: alone[place].score)
        assert found.tau == "auto"
        assert found.tau_chosen == TAUS[best]
        assert found.indices.tolist() == alone[best].indices.tolist()
        assert found.score == pytest.approx(alone[best].score, rel=1e-12)  # other columns are known beside these: other sums
        chosen.add(found.tau_chosen)
    assert len(chosen) > 1


def test_of_thresholds_that_find_the_same_set_the_first_is_chosen() -> None:
    """The order in which a set was found changes its refit by rounding only, which decides nothing."""
    orders = set()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(120, 60))
        y = X[:, :5] @ np.array([2.0, 1.9, 1.8, 1.7, 1.6]) + 0.05 * rng.normal(size=120)
        alone = [fo.select(X, y, k=5, tau=tau, seed=seed, polish="none").indices.tolist() for tau in TAUS]
        orders.add(len({tuple(order) for order in alone}))
        if len({frozenset(order) for order in alone}) == 1:
            assert fo.select(X, y, k=5, tau="auto", seed=seed, polish="none").tau_chosen == TAUS[0]
    assert max(orders) > 1


def test_auto_costs_the_sweeps_of_its_longest_run() -> None:
    """Full sweeps are shared: passes stay near the costliest of the four, calls add up, and columns are read once."""
    X, y = correlated(3)
    alone = [fo.select(X, y, k=20, tau=tau, polish="none") for tau in TAUS]
    found = fo.select(X, y, k=20, tau="auto", polish="none")
    assert found.gradient_calls == sum(run.gradient_calls for run in alone)
    assert found.independence_calls == sum(run.independence_calls for run in alone)
    assert max(run.gradient_rounds for run in alone) <= found.gradient_rounds < sum(run.gradient_rounds for run in alone)
    row = X.itemsize * len(X)
    most_sweeps = max(run.bytes_read for run in alone) // X.nbytes
    assert found.bytes_read <= (most_sweeps + 1) * X.nbytes + X.shape[1] * row
    assert found.bytes_read < 0.6 * sum(run.bytes_read for run in alone)


def test_the_polish_sees_what_all_gathered() -> None:
    """Polished, auto is at least as good as unpolished, and reports the score before."""
    for seed in range(3):
        X, y = correlated(seed)
        plain = fo.select(X, y, k=15, tau="auto", polish="none", seed=seed)
        found = fo.select(X, y, k=15, tau="auto", seed=seed)
        assert found.score_unpolished == pytest.approx(plain.score, rel=1e-9)
        assert found.score >= plain.score * (1 - 1e-9)
        assert found.tau_chosen == plain.tau_chosen


def test_auto_has_the_same_bits_in_company_and_with_any_threads() -> None:
    """Threads and other runs in the same sweeps change nothing."""
    design = PaperDesign(200, 1500, seed=5)
    X, y = design.matrix().T.astype(np.float32), design.response()
    request: dict[str, Any] = {"k": 20, "tau": "auto"}
    wanted = bits(fo.select(X, y, threads=1, **request))
    assert bits(fo.select(X, y, threads=4, **request)) == wanted
    together = fo.select_many(X, [{"k": 5, "tau": 0.9}, request, {"k": 30, "seed": 2, "tau": "auto"}], y)
    assert bits(together[1]) == wanted


@pytest.mark.parametrize("tau", ["Auto", 0, 1.5, None, True])
def test_other_values_of_tau_are_refused(tau: Any) -> None:
    """Only numbers in (0, 1] and the word auto are taken."""
    with pytest.raises(fo.RequestError, match="tau is"):
        fo.SelectionRequest(k=1, tau=tau)


@pytest.mark.parametrize("until", ["paper", "full"])
@pytest.mark.parametrize("objective", ["linear", "logistic"])
def test_skip_weak_adds_no_copy_of_what_it_has(objective: str, until: str) -> None:
    """Of twenty noisy copies of each signal one is enough: the variant passes the others over where the paper adds them."""
    rng = np.random.default_rng(0)
    signals = rng.normal(size=(300, 6))
    X = np.repeat(signals, 20, axis=1) + 1e-3 * rng.normal(size=(300, 120))
    y = signals.sum(axis=1) + 0.1 * rng.normal(size=300)
    if objective == "logistic":
        y = y > 0
    common: dict[str, Any] = {"k": 6, "objective": objective, "polish": "none", "tau": 0.9, "epsilon": 0.6, "until": until}
    covered = []
    for seed in range(4):
        paper = fo.select(X, y, seed=seed, **common)
        variant = fo.select(X, y, seed=seed, skip_weak=True, **common)
        assert variant.skip_weak
        assert len(variant.indices) <= 6
        assert until == "paper" or len(variant.indices) == 6
        assert variant.feasible
        covered.append((len(set(variant.indices // 20)), len(set(paper.indices // 20))))
    assert sum(variant for variant, _ in covered) > sum(paper for _, paper in covered)


def test_skip_weak_respects_constraints_and_ends() -> None:
    """Under a partition matroid with tight caps the variant ends, fills up and stays feasible."""
    X, y = correlated(1)
    constraint = fo.constraints.Partition(400, np.arange(400) % 5, [1, 2, 1, 3, 1])
    for seed in range(5):
        found = fo.select(X, y, constraint=constraint, skip_weak=True, until="full", seed=seed, polish="none")
        assert found.feasible
        assert len(found.indices) == 8


def test_auto_has_the_same_bits_on_every_medium(tmp_path: Path) -> None:
    """dram, mmap and pmem agree, certificate and features of several columns included."""
    X, y = correlated(2)
    urls = ("dram:auto", f"mmap://{tmp_path}/m", f"pmem://{tmp_path}/p")
    stores = [fo.create_store(url, X, y, groups={"wide": [3, 4, 5]}, replace=True) for url in urls]
    found = [fo.select(store, k=15, tau="auto", certificate=True) for store in stores]
    assert bits(found[0]) == bits(found[1]) == bits(found[2])
    assert found[0].certificate == found[1].certificate == found[2].certificate


@pytest.mark.parametrize("constraint", [None, fo.constraints.Partition(400, np.arange(400) % 5, [2, 3, 2, 1, 4])])
def test_a_run_cut_off_anywhere_goes_on_to_the_same_outcome(constraint) -> None:
    """From the journal of any number of rounds, merged queries and the certificate's included, the rest follows."""
    from fastomp_nvm.engine.dataset import Dataset
    from fastomp_nvm.engine.engine import Engine
    from fastomp_nvm.matrix.sweeper import Sweeper
    from fastomp_nvm.runs.journal import DecisionJournal
    from fastomp_nvm.selection.compression import Split
    from fastomp_nvm.selection.request import SelectionRequest
    from fastomp_nvm.selection.select import prepare
    from tests.harness.memory_log import MemoryLog

    X, y = correlated(4)
    dataset, sweeper = Dataset.of_array(X), Sweeper(1)
    request = SelectionRequest(k=12, constraint=constraint, tau="auto", certificate=True)

    def driven(records: list[bytes]) -> tuple[list[bytes], tuple[Any, ...], int]:
        log = MemoryLog(records)
        run = prepare(dataset, Split(request, None, None), y, sweeper).run
        run.journal = journal = DecisionJournal(log, {})
        engine = Engine(dataset.matrix, sweeper)
        engine.drive([run])
        journal.close()
        assert run.outcome is not None
        outcome = (run.outcome.selected.tolist(), run.outcome.tau, run.outcome.certificate, run.problem.counters)
        return log.records, outcome, engine.traffic.sweeps

    records, wanted, sweeps = driven([])
    assert len(records) == sweeps + 1
    for cut in range(1, len(records) + 1):
        _, outcome, further = driven(list(records[:cut]))
        assert outcome == wanted
        assert further == len(records) - cut
