"""A selection over shards is the selection over the one store, bit for bit; shards that are not the right ones are refused by name.

The shards answer in this process, through pickle; ``test_ray.py`` has them answer in processes of their own.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastomp_nvm as fo
from fastomp_nvm import cross_validate, stability
from fastomp_nvm.algorithms.table import ALGORITHMS
from fastomp_nvm.analysis.synthetic import sparse_design
from fastomp_nvm.cli.main import COMMANDS as COMMAND_LINE
from fastomp_nvm.cli.main import main
from fastomp_nvm.cluster import shard
from fastomp_nvm.cluster.candidate_sets import NOTHING, USABLE, described, digest, features_of, packed, unpacked
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import FastompError, RequestError, StoreError, StoreURLError, UnreachableError
from fastomp_nvm.matrix.rows import LocalRows
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.url import StoreURL
from storage_backends.build.manifest import read_manifest
from storage_backends.build.sharding import cut
from tests.cluster.command_line import COMMANDS, said
from tests.cluster.in_process import InProcessShards, in_process_medium, open_in_process
from tests.cluster.one_store import make_store, same

CUTS: dict[str, Any] = {"1": 1, "2": 2, "3": 3, "7": 7, "uneven": [5, 1, 2]}

#: An intersection of a matroid and a knapsack over features of one and of several columns.
GENERAL = {
    "all": [
        {"partition": {"groups": {"wide": ["g*"], "narrow": ["f*"]}, "caps": {"wide": 4, "narrow": 7}}},
        {"knapsack": {"costs": {"f4*": 3.0}, "default": 1.0, "budget": 14}},
    ]
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shards")


@pytest.fixture(scope="module")
def store(place: Path) -> FeatureStore:
    return make_store(f"mmap://{place}/whole")


@pytest.fixture(scope="module", params=list(CUTS))
def manifest(request: pytest.FixtureRequest, place: Path, store: FeatureStore) -> Path:
    return cut(store, f"{place}/cut-{request.param}", CUTS[request.param])


@pytest.fixture(scope="module")
def few(place: Path) -> FeatureStore:
    """Build a store in which few columns vary, so that algorithms with a model per candidate are fast; some tie across shards."""
    rng = np.random.default_rng(6)
    X = np.full((40, 1900), 0.5, dtype=np.float32)
    varying = np.concatenate((np.arange(12), np.arange(300, 1900, 80)))
    X[:, varying] = rng.standard_normal((40, len(varying)))
    X[:, 300:400] += 3000.0
    X[:, [1020, 1820]] = X[:, [460, 540]]
    eta = X[:, [460, 540, 1100, 1660]] @ np.array([2.0, -1.0, 1.0, 1.0], dtype=np.float32) + X[:, :6].sum(axis=1)
    y = {"y": eta + rng.standard_normal(40), "c": (eta > np.median(eta)).astype(int).astype(str)}
    groups = {f"g{start}": [start, start + 1, start + 2] for start in (0, 3, 6, 9)}
    return fo.create_store(f"mmap://{place}/few", X, y, groups=groups)


@pytest.fixture(scope="module", params=list(CUTS))
def few_sharded(request: pytest.FixtureRequest, place: Path, few: FeatureStore) -> Iterator[FeatureStore]:
    with open_in_process(cut(few, f"{place}/few-{request.param}", CUTS[request.param])) as sharded:
        yield sharded


@pytest.fixture(scope="module")
def of_one_store(few: FeatureStore) -> Callable[[str, str], tuple[dict[str, Any], fo.Selection]]:
    """Return a request under the first of three constraints that an algorithm supports, and the answer of the one store."""
    people = np.random.default_rng(7).random((9, few.layout.n_features)) < 0.9
    constraints: list[dict[str, Any]] = [
        {"constraint": GENERAL},
        {"constraint": fo.constraints.Fairness(few.layout.n_features, people, 0.4), "k": 3},
        {"k": 3},
    ]

    @functools.cache
    def found(algorithm: str, objective: str) -> tuple[dict[str, Any], fo.Selection]:
        target = {"linear": "y", "logistic": "c"}[objective]
        for constraint in constraints:
            request = {"algorithm": algorithm, "objective": objective, "target": target, "epsilon": 0.3, **constraint}
            try:
                return request, fo.select(few, **request, tier="exact")
            except RequestError as error:
                if "does not support a constraint" not in str(error):
                    raise
        raise AssertionError(f"{algorithm} keeps no constraint")

    return found


@pytest.fixture(scope="module")
def uneven(place: Path, store: FeatureStore) -> Path:
    return cut(store, f"{place}/uneven", [5, 1, 2])


@pytest.mark.parametrize("tier", ["exact", "int8"])
@pytest.mark.parametrize("objective", ["linear", "logistic"])
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_there_is_answers_alike(
    of_one_store: Callable[[str, str], tuple[dict[str, Any], fo.Selection]],
    few_sharded: FeatureStore,
    algorithm: str,
    objective: str,
    tier: str,
) -> None:
    """1, 2, 3, 7 and uneven shards select what the one store selects, with and without the tier, ties between shards included.

    Under a partition and a knapsack; an algorithm that refuses these, under a fairness constraint; else with k alone.
    """
    if algorithm == "lasso":
        pytest.importorskip("sklearn", reason="lasso needs scikit-learn")
    request, expected = of_one_store(algorithm, objective)
    assert len(expected.indices) > 1
    same(expected, fo.select(few_sharded, **request, tier=tier))


def test_most_algorithms_are_compared_under_a_general_constraint(
    of_one_store: Callable[[str, str], tuple[dict[str, Any], fo.Selection]],
) -> None:
    """Only algorithms that support fewer constraints use another one."""
    kept = {name: of_one_store(name, "linear")[0].get("constraint") for name in set(ALGORITHMS) - {"lasso"}}
    assert {name for name, constraint in kept.items() if constraint is not GENERAL} == {"dash", "isk"}
    assert isinstance(kept["isk"], fo.constraints.Fairness)


@pytest.mark.parametrize("tier", ["exact", "int8"])
@pytest.mark.parametrize("algorithm", ["fast_omp", "sds_omp", "sds_ma", "top_k", "random"])
def test_selections_among_many_candidates_answer_alike(store: FeatureStore, manifest: Path, algorithm: str, tier: str) -> None:
    """The answer is the same where every shard has hundreds of candidates."""
    request: dict[str, Any] = {"constraint": GENERAL, "algorithm": algorithm, "tier": tier, "target": "y"}
    with open_in_process(manifest) as sharded:
        same(fo.select(store, **request), fo.select(sharded, **request))


@pytest.mark.parametrize("tier", ["exact", "int8"])
@pytest.mark.parametrize(
    "request_",
    [
        {"algorithm": "fast_omp", "target": "y", "keep": ["g5", "f80?"]},
        {"algorithm": "sds_ma", "target": "y", "keep": ["g5", "f801"], "offset": "f900"},
        {
            "algorithm": "fast_omp",
            "quality": "verified",
            "target": "y",
            "covariates": np.cos(np.arange(180.0)).reshape(90, 2),
            "k": 4,
        },
        {"algorithm": "fast_omp", "target": "c", "keep": ["f801", "f802"], "weights": np.arange(90.0), "k": 3},
    ],
    ids=["features", "exact gains", "covariates", "logistic"],
)
def test_kept_columns_answer_alike(store: FeatureStore, manifest: Path, request_: dict[str, Any], tier: str) -> None:
    """Kept features of several columns, covariates, offsets and weights lead to the same model over shards."""
    request = {"constraint": GENERAL, "tier": tier, **request_} if "k" not in request_ else {"tier": tier, **request_}
    with open_in_process(manifest) as sharded:
        expected, found = fo.select(store, **request), fo.select(sharded, **request)
    same(expected, found)
    assert found.kept == expected.kept


@pytest.mark.parametrize("tier", ["exact", "int8"])
@pytest.mark.parametrize("algorithm", ["sds_omp", "sds_ma"])
def test_greedy_verified_over_shards_is_plain(
    few_sharded: FeatureStore, few: FeatureStore, algorithm: str, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1, 2, 3, 7 and uneven shards verify drafts of several steps as the one store does, and find what plain greedy finds."""
    monkeypatch.setattr(f"fastomp_nvm.algorithms.{algorithm}.pays", lambda problem: True)
    for bound in ("FIRST_NEAR", "SMALL"):  # a draft over all features would need no pass
        monkeypatch.setattr(f"fastomp_nvm.algorithms.verified.{bound}", 16)
    request: dict[str, Any] = {"constraint": GENERAL, "algorithm": algorithm, "tier": tier, "target": "y"}
    plain, found = fo.select(few, **request, plain=True), fo.select(few_sharded, **request)
    assert found.indices.tolist() == plain.indices.tolist()
    assert found.vectors > found.gradient_rounds
    same(fo.select(few, **request), found)


@pytest.mark.parametrize("tier", ["exact", "int8"])
@pytest.mark.parametrize("algorithm", ["fast_omp", "sds_omp"])
def test_logistic_selections_answer_alike(store: FeatureStore, manifest: Path, algorithm: str, tier: str) -> None:
    """The answer is the same with another objective."""
    request: dict[str, Any] = {"constraint": GENERAL, "algorithm": algorithm, "tier": tier, "objective": "logistic", "target": "c"}
    with open_in_process(manifest) as sharded:
        same(fo.select(store, **request), fo.select(sharded, **request))


@pytest.mark.parametrize(
    "fields",
    [
        {"tau": "auto"},
        {"certificate": True, "constraint": {"partition": {"groups": {"a": ["g*"]}, "caps": {"a": 3}}}},
        {"standardize": False},
        {"test_fraction": 0.3, "tier": "int8"},
        {"exclude": ["f801", "g5"], "until": "full"},
        {"gather_bytes": 4000},
        {"target": "f900"},
    ],
    ids=lambda fields: "-".join(f"{name}" for name in fields),
)
def test_every_other_setting_answers_alike(store: FeatureStore, uneven: Path, fields: dict[str, Any]) -> None:
    """The answer is the same with settings that change how the matrix is used."""
    request = {"k": 8, "target": "y", **fields}
    with open_in_process(uneven) as sharded:
        same(fo.select(store, **request), fo.select(sharded, **request))


def test_cross_validation_and_stability_answer_alike(store: FeatureStore, uneven: Path) -> None:
    """Folds and subsamples have their moments computed by the shards, to the same bits."""
    with open_in_process(uneven) as sharded:
        one, other = (cross_validate(data, folds=3, ks=[3, 6], target="y", tier="exact") for data in (store, sharded))
        assert one.scores.tobytes() == other.scores.tobytes()
        same(one.selection, other.selection)
        one_half, other_half = (stability(data, subsamples=4, k=5, target="y") for data in (store, sharded))
        assert one_half.frequencies.tobytes() == other_half.frequencies.tobytes()


def test_a_shard_remembers_the_moments_of_every_subsample(
    store: FeatureStore, uneven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments requested at once, however many, are not computed again by later questions."""
    computed: list[int] = []
    moments = LocalRows.moments

    def counting(self: LocalRows, weights: Sequence[Any]) -> Any:
        computed.append(len(weights))
        return moments(self, weights)

    monkeypatch.setattr(shard, "_VIEWS", 3)
    with open_in_process(uneven) as sharded:
        monkeypatch.setattr(LocalRows, "moments", counting)
        found = stability(sharded, subsamples=8, k=3, target="y", tier="exact")
    assert computed == [8, 8, 8]  # once on each of the three shards
    assert found.frequencies.tobytes() == stability(store, subsamples=8, k=3, target="y").frequencies.tobytes()


@pytest.mark.parametrize("tier", ["exact", "int8"])
def test_a_shard_that_forgets_everything_between_calls_changes_nothing(store: FeatureStore, place: Path, tier: str) -> None:
    """A shard may be restarted at any moment: questions carry everything that their answers depend on."""
    manifest = cut(store, f"{place}/forgetful-{tier}", 2)
    request: dict[str, Any] = {"k": 6, "target": "y", "tier": tier, "test_fraction": 0.2}
    with open_in_process(manifest, forgetful=True) as sharded:
        same(fo.select(store, **request), fo.select(sharded, **request))


def test_shards_with_their_tier_in_memory_answer_alike(store: FeatureStore, place: Path) -> None:
    """``--tier-load dram`` copies each tier into the memory of its own machine."""
    with open_in_process(cut(store, f"{place}/tiers", 2)) as sharded:
        sharded.load_tier()
        same(fo.select(store, k=6, target="y", tier="int8"), fo.select(sharded, k=6, target="y", tier="int8"))


def test_a_sharded_store_counts_what_the_one_store_counts(store: FeatureStore, manifest: Path) -> None:
    """Without the tier the bytes read are the same; with it each shard may read r columns exactly."""
    with open_in_process(manifest) as sharded:
        for tier in ("exact", "int8"):
            one, other = (fo.select(data, k=10, target="y", tier=tier).to_json() for data in (store, sharded))
            if tier == "exact":
                assert [one[name] for name in ("sweeps", "bytes_read", "full_passes")] == [
                    other[name] for name in ("sweeps", "bytes_read", "full_passes")
                ]
            else:
                assert one["bytes_read_tier"] == other["bytes_read_tier"]


def test_a_shard_sweeps_columns_that_would_cost_more_to_pick(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where intervals leave most columns open, a shard picks a third of them at most per question and sweeps otherwise."""
    X, y = sparse_design(2000, 600, true=1, noise=5.0, seed=2)
    X[0] += 60.0  # codes of columns with an outlier are coarse
    gather, picked = Sweeper.gather, []
    monkeypatch.setattr(Sweeper, "gather", lambda *given: (picked.append(len(given[2])), gather(*given))[1])
    with fo.create_store(f"mmap://{place}/noise", X, y) as whole, open_in_process(cut(whole, f"{place}/noise-2", 2)) as sharded:
        found = fo.select(sharded, k=6, algorithm="sds_omp", tier="int8")
        same(fo.select(whole, k=6, algorithm="sds_omp", tier="exact"), found)
    assert found.full_passes > 9  # most questions read everything twice
    assert max(picked) <= 600 / 3


def test_survivors_come_with_the_largest_scores(store: FeatureStore, manifest: Path) -> None:
    """A round of FAST_OMP takes two calls: scores with survivors, and columns. Only the first asks for survivors separately."""
    request: dict[str, Any] = {"k": 10, "target": "y", "tier": "exact", "tau": 0.9, "polish": "none"}
    with open_in_process(manifest) as sharded:
        rounds = fo.select(store, **request).full_passes // 1
        first, again = (fo.select(sharded, **request).shard_calls for _ in range(2))
    assert rounds > 3
    assert first <= 2 * rounds + 1
    assert again <= 2 * rounds


def test_what_crosses_the_network_does_not_grow_with_the_features(place: Path) -> None:
    """With ten times the features, the traffic without gathered columns stays of the same order."""
    crossed = []
    for n_columns in (2560, 25600):
        rng = np.random.default_rng(1)
        X = rng.standard_normal((64, n_columns)).astype(np.float32)
        y = X[:, :5].sum(axis=1)
        with fo.create_store(f"mmap://{place}/wide-{n_columns}", X, y) as whole:
            manifest = cut(whole, f"{place}/wide-cut-{n_columns}", 2)
        with open_in_process(manifest) as sharded:
            request: dict[str, Any] = {
                "k": 20,
                "algorithm": "sds_omp",
                "plain": True,
                "constraint": {"partition": {"groups": {"a": ["f1*"]}, "caps": {"a": 2}}},
            }
            found = fo.select(sharded, **request).to_json()
        crossed.append(found["bytes_sent"] + found["bytes_received"] - found["bytes_received_columns"])
    assert crossed[1] < 2 * crossed[0]
    assert crossed[1] < 8 * 25600  # less than one number per feature, over twenty rounds


def test_what_crosses_does_not_grow_with_a_group_that_is_full(place: Path) -> None:
    """Candidates that a full group removes are sent once, not with every decision."""
    sent = []
    sizes = (5120, 51200)
    for n_columns in sizes:
        rng = np.random.default_rng(1)
        X = rng.standard_normal((64, n_columns)).astype(np.float32)
        scattered = (rng.random(n_columns) < 0.5).astype(int)  # cannot be deflated below a bit per feature
        with fo.create_store(f"mmap://{place}/full-{n_columns}", X, X[:, :5].sum(axis=1)) as whole:
            manifest = cut(whole, f"{place}/full-cut-{n_columns}", 2)
        constraint = fo.constraints.Partition(n_columns, scattered, [2, 20])
        with open_in_process(manifest) as sharded:
            sent.append(fo.select(sharded, k=20, algorithm="sds_omp", plain=True, constraint=constraint).bytes_sent)
    assert sent[1] - sent[0] < 1.5 * (sizes[1] - sizes[0]) / 8  # a bit per feature once, over twenty rounds


@given(st.integers(1, 900), st.data())
def test_candidate_sets_survive_the_wire(count: int, data: st.DataObject) -> None:
    """A set is decoded unchanged from any base and in any form, in at most a bit per feature."""
    names = [NOTHING, USABLE, b"before"]
    seeds = st.integers(0, 2**32 - 1)
    masks = [
        np.packbits(np.random.default_rng(data.draw(seeds)).random(count) < data.draw(st.sampled_from([0.01, 0.5, 0.99])))
        for _ in range(4)
    ]
    bases, wanted = dict(zip(names, masks[:3], strict=True)), masks[3]
    found = described(0, wanted, bases)
    assert found.change is not None
    assert np.array_equal(bases[found.base] ^ unpacked(found.change, count), wanted)
    assert found.key == digest(wanted)
    assert len(found.change) <= count // 8 + 70
    assert np.array_equal(unpacked(packed(wanted), count), wanted)
    assert features_of(wanted, count).tolist() == [place for place in range(count) if wanted[place // 8] >> (7 - place % 8) & 1]


def test_shards_are_ordinary_stores_and_keep_features_whole(store: FeatureStore, manifest: Path) -> None:
    """Each shard opens by itself, verifies and holds the bytes of its features; together they have the fingerprint of the whole."""
    found = read_manifest(manifest)
    assert found.fingerprint == store.layout.fingerprint
    for address in found.shards:
        with fo.open_store(address.url) as shard:
            shard.verify()
            assert list(shard.names) == list(store.names[slice(*address.features)])
            assert np.array_equal(shard.matrix, store.matrix[slice(*address.columns)])
            assert shard.tier is not None
            assert store.tier is not None
            assert np.array_equal(shard.tier.codes, store.tier.codes[slice(*address.columns)])
    with open_in_process(manifest) as sharded:
        sharded.verify()
        assert list(sharded.names) == list(store.names)
        assert np.array_equal(sharded.layout.offsets, store.layout.offsets)


def test_a_missing_stale_or_foreign_shard_is_refused_by_name(store: FeatureStore, place: Path, tmp_path: Path) -> None:
    """Wrong shards are refused at open."""
    good = cut(store, f"{tmp_path}/cut", 3).parent
    other = cut(make_store(f"mmap://{tmp_path}/other", dtype="float64"), f"{tmp_path}/other-cut", 3).parent

    def refused(change: Any, words: str, error: type[FastompError] = StoreError) -> None:
        bad = tmp_path / "bad"
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(good, bad)
        change(bad)
        with pytest.raises(error, match=words):
            open_in_process(bad / "manifest.yaml")

    def swap(bad: Path) -> None:
        shutil.rmtree(bad / "shard-2")
        shutil.copytree(other / "shard-2", bad / "shard-2")

    def stale(bad: Path) -> None:
        with fo.open_store(f"mmap://{bad}/shard-1") as shard:
            values = np.array(shard.matrix)
        values[3, 3] += 1.0
        fo.create_store(f"mmap://{bad}/shard-1", values, rows="features", replace=True).close()

    def edited(old: str, new: str) -> Any:
        def change(bad: Path) -> None:
            path = bad / "manifest.yaml"
            text = path.read_text()
            assert old in text
            path.write_text(text.replace(old, new, 1))

        return change

    refused(lambda bad: shutil.rmtree(bad / "shard-1"), r"shard 1 .*missing")
    refused(lambda bad: (bad / "shard-0" / "matrix.npy").unlink(), r"shard 0 .*damaged")
    refused(swap, r"shard 2 .*foreign")
    refused(stale, r"shard 1 .*stale")
    refused(edited("url: shard-2", "url: shard-1"), r"shard 2 .*foreign")
    refused(edited(store.layout.fingerprint, "f" * 32), "the manifest was changed")
    refused(edited("version: 1", "version: 9"), "version 9")
    refused(edited("url: shard-1", "url: cluster:manifest.yaml"), "shard 1 at 'cluster:manifest.yaml': expected a path")
    refused(edited("url: shard-1", "url: dram:x"), "shard 1 at 'dram:x': expected a path")
    refused(edited("features: [0,", "features: [1,"), "gap")
    refused(lambda bad: (bad / "manifest.yaml").write_text("format: [", encoding="utf-8"), "not readable YAML")
    refused(lambda bad: (bad / "manifest.yaml").unlink(), "no manifest", StoreURLError)
    refused(lambda bad: os.truncate(bad / "manifest.yaml", 200), "manifest")


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    "other", [{"y": {"y": np.zeros(30)}}, {"y": {"z": np.arange(30.0)}}, {"names": [f"x{i}" for i in range(700)]}]
)
def test_a_shard_with_other_names_or_targets_is_refused_by_name(tmp_path: Path, number: int, other: dict[str, Any]) -> None:
    """A shard with other labels is refused; a manifest without digests of labels is accepted."""
    X = np.random.default_rng(0).standard_normal((30, 700)).astype(np.float32)
    for name, labels in {"old": {"y": {"y": np.arange(30.0)}}, "new": {"y": {"y": np.arange(30.0)}, **other}}.items():
        with fo.create_store(f"mmap://{tmp_path}/{name}", X, **labels) as whole:
            cut(whole, f"{tmp_path}/{name}-cut", 3)
    shutil.rmtree(tmp_path / "old-cut" / f"shard-{number}")
    shutil.copytree(tmp_path / "new-cut" / f"shard-{number}", tmp_path / "old-cut" / f"shard-{number}")
    with pytest.raises(StoreError, match=rf"shard {number} .*stale"):
        open_in_process(tmp_path / "old-cut")
    manifest = tmp_path / "new-cut" / "manifest.yaml"
    manifest.write_text(re.sub(r"labels: \w+", "", manifest.read_text()))
    assert not read_manifest(manifest).shards[0].labels
    open_in_process(manifest).close()


def test_a_run_over_shards_is_durable(store: FeatureStore, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled run is resumed to the answer of the one store; its state is kept beside the manifest."""
    from fastomp_nvm.errors import CancelledError
    from fastomp_nvm.runs import drive

    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir(mode=0o700)
    manifest = cut(store, f"{place}/durable", 3)
    request: dict[str, Any] = {"k": 8, "target": "y", "algorithm": "sds_omp"}
    rounds = 0

    def cancelled() -> bool:
        nonlocal rounds
        rounds += 1
        return rounds > 5

    with open_in_process(manifest) as sharded, pytest.raises(CancelledError):
        drive.start("half", sharded, cancelled=cancelled, **request)
    assert list((manifest.parent / "regions").iterdir())
    monkeypatch.setattr(drive, "open_store", lambda url: open_in_process(StoreURL.parse(url).path))
    same(fo.select(store, **request), drive.resume("half"))
    assert not list((manifest.parent / "regions").iterdir())


@pytest.fixture
def asked_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``cluster://`` use shards of this process, also in commands."""
    monkeypatch.setattr("storage_backends.media.cluster.MEDIUM", in_process_medium())


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("asked_in_process")
def test_commands_say_of_shards_what_they_say_of_the_one_store(
    store: FeatureStore, uneven: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """``cluster:///path/manifest.yaml`` is a store URL like any other: every number of the answers is the same."""
    assert said(COMMANDS[command], f"cluster://{uneven}", capsys) == said(COMMANDS[command], store.url, capsys)


@pytest.mark.parametrize("option", [["--threads", "2"], ["--io", "mmap"]], ids=lambda option: option[0])
@pytest.mark.parametrize("words", [["select"], ["select", "--run", "r"], ["cv", "--folds", "2"]], ids=" ".join)
@pytest.mark.usefixtures("asked_in_process")
def test_what_is_said_of_sweeps_here_is_refused_where_shards_sweep(
    uneven: Path, capsys: pytest.CaptureFixture[str], words: list[str], option: list[str]
) -> None:
    """Settings that do not reach the shards are refused."""
    assert main([words[0], f"cluster://{uneven}", *words[1:], "--k", "3", "--target", "y", *option]) == 2
    error = capsys.readouterr().err
    assert option[0] in error
    assert len(error.splitlines()) == 1


def test_every_command_that_may_ask_shards_can_be_told_where() -> None:
    """``--ray`` is an argument of every command that opens a store."""
    for command in ("info", "verify", "select", "path", "grid", "cv", "stability", "resume", "export", "check-constraint"):
        parser = argparse.ArgumentParser()
        importlib.import_module(COMMAND_LINE[command][0]).add_arguments(parser)
        assert "--ray" in parser.format_help()


@pytest.mark.usefixtures("asked_in_process")
def test_verify_finds_the_damaged_block_of_a_shard(store: FeatureStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``verify`` accepts intact shards and names a shard with a changed byte."""
    manifest = cut(store, str(tmp_path / "cut"), 3)
    assert main(["verify", f"cluster://{manifest}"]) == 0
    matrix = manifest.parent / "shard-1" / "matrix.npy"
    damaged = bytearray(matrix.read_bytes())
    damaged[-5] ^= 1
    matrix.write_bytes(damaged)
    assert main(["verify", f"cluster://{manifest}"]) == 1
    assert "shard 1" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["fast_omp", "sds_omp"])
@pytest.mark.usefixtures("asked_in_process")
def test_a_command_that_lost_a_shard_is_resumed_to_the_same_answer(
    store: FeatureStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """An interrupted ``select --run`` exits with code 1; ``resume``, also repeated, prints the answer of the one store."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    manifest = cut(store, str(tmp_path / "cut"), 3)
    words = ["select", "--k", "8", "--target", "y", "--tau", "0.9", "--algorithm", algorithm]
    whole, calls = InProcessShards.call, 0

    def failing(self: InProcessShards, method: str, arguments: Any) -> dict[int, Any]:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise UnreachableError("shard 1 sent no heartbeat")
        return whole(self, method, arguments)

    with monkeypatch.context() as patch:
        patch.setattr(InProcessShards, "call", failing)
        assert main([words[0], f"cluster://{manifest}", *words[1:], "--run", "half"]) == 1
    assert "shard 1" in capsys.readouterr().err
    assert list((manifest.parent / "regions").iterdir())
    assert main(["resume", "half", "--threads", "2"]) == 2
    assert "--threads" in capsys.readouterr().err
    expected = said(words, store.url, capsys)
    for _ in range(2):
        found = said(["resume"], "half", capsys)
        assert {name: found[name] for name in expected} == expected
    assert not list((manifest.parent / "regions").iterdir())


def test_shards_go_to_machines_that_are_alive_and_offer_processors() -> None:
    """A head node without CPUs is not used, unless no node has CPUs."""
    from storage_backends.ray.shards import _machines

    def node(name: str, alive: bool = True, **resources: float) -> dict[str, Any]:
        return {"NodeID": name, "Alive": alive, "Resources": resources}

    nodes = [node("head", memory=1e9), node("b", CPU=4.0), node("a", CPU=2.0), node("dead", alive=False, CPU=2.0)]
    assert _machines(nodes) == ["a", "b"]
    assert _machines(nodes[:1]) == ["head"]


def test_the_matrix_of_a_cluster_is_not_pulled_to_one_machine(store: FeatureStore, place: Path) -> None:
    """Copying a sharded matrix into memory, and building a store at its address, are refused."""
    with open_in_process(cut(store, f"{place}/stays", 2)) as sharded, pytest.raises(RequestError, match="--load"):
        Dataset.of_store(sharded).loaded("x")
    with pytest.raises(StoreURLError, match="fastomp shard"):
        fo.create_store(f"cluster://{place}/new", np.ones((3, 3)))


def test_an_infeasible_query_parameter_is_refused(place: Path) -> None:
    """An unknown parameter or an invalid timeout is named."""
    with pytest.raises(StoreURLError, match="unknown parameter 'rays'"):
        fo.open_store(f"cluster://{place}/x?rays=1")
    with pytest.raises(StoreURLError, match="timeout"):
        fo.open_store(f"cluster://{place}/x?timeout=soon")
