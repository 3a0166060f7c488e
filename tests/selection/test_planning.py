"""The plan: what is added up adds up, what binds is what is scarce, and a profile survives its file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fastomp_nvm.errors import RequestError
from fastomp_nvm.planning import measuring
from fastomp_nvm.planning.machine_profiles import (
    MEDIA,
    NETWORKS,
    TYPICAL_NODE,
    Medium,
    Network,
    Profile,
    read_profile,
    write_profile,
)
from fastomp_nvm.planning.measuring_shards import ShardCosts
from fastomp_nvm.planning.plan import Plan, PlanRequest, Resources, plan

USUAL = Resources(TYPICAL_NODE, MEDIA["nvme"], NETWORKS["25gbe"])
REQUEST = PlanRequest(10_000_000, 2000, 50, nodes=10)


def planned(resources: Resources = USUAL, **changes: object) -> Plan:
    """Plan the usual request with some changes."""
    return plan(replace(REQUEST, **changes), resources)


def seconds(found: Plan, name: str) -> float:
    """Return the time of a phase."""
    return next(phase.seconds for phase in found.phases if phase.name == name)


def test_bytes_are_those_of_the_matrix() -> None:
    """Shards and tiers together are the matrix, and passes read them."""
    found = planned()
    assert found.shard_bytes * 10 == pytest.approx(10_000_000 * 2000 * 4)
    assert found.tier_bytes * 10 == pytest.approx(10_000_000 * 2000)
    assert found.bytes_read_per_node >= found.outer_iterations * found.tier_bytes
    exact = planned(tier="none", gather_bytes=1 << 40)
    assert exact.tier_bytes == 0
    swept, gathered = exact.outer_iterations * exact.shard_bytes, exact.gathered_columns * 8000
    assert exact.bytes_read_per_node == pytest.approx(swept + gathered / 10)


def test_the_time_is_that_of_its_phases() -> None:
    """Nothing is counted twice or left out, and every phase takes some."""
    found = planned()
    assert found.seconds == pytest.approx(sum(phase.seconds for phase in found.phases))
    assert all(phase.seconds > 0 for phase in found.phases)


def test_one_node_has_no_network() -> None:
    """A single store neither sends nor connects."""
    found = planned(nodes=1)
    assert found.network_bytes == 0
    assert "network" not in {phase.name for phase in found.phases}
    assert planned(nodes=2).network_bytes > 0


def test_network_bytes_are_vectors_scores_survivors_and_columns() -> None:
    """O(n_obs) per node and pass, k scores per node and pass, and the gathered columns: never O(n_features)."""
    found = planned(algorithm="sds_omp", tier="none")
    vectors, scores = 50 * 10 * 8 * 2000, 50 * 10 * 8 * 50
    assert found.network_bytes == pytest.approx(vectors + scores + 16 * 50 + 50 * 8000)
    assert planned(algorithm="sds_omp", tier="none", n_features=100_000_000).network_bytes == found.network_bytes


def test_sds_omp_passes_once_per_feature() -> None:
    """And FAST_OMP at most ceil(1 / epsilon) times."""
    assert planned(algorithm="sds_omp").outer_iterations == 50
    assert planned(epsilon=0.25).outer_iterations <= 4


def test_nodes_that_share_a_machine_sweep_no_quicker_than_one() -> None:
    """Four shards on one machine pass over the same bytes with the same cores."""
    one, four, spread = (planned(nodes=nodes, nodes_per_machine=sharing) for nodes, sharing in ((1, 1), (4, 4), (4, 1)))
    assert seconds(four, "passes") == pytest.approx(seconds(one, "passes"))
    assert seconds(spread, "passes") < seconds(one, "passes")


@pytest.mark.parametrize(
    ("resources", "changes", "binds"),
    [
        (replace(USUAL, medium=Medium("slow", 1e7)), {}, "medium"),
        (replace(USUAL, network=Network("slow", 1e5)), {}, "network"),
        (replace(USUAL, medium=MEDIA["dram"], machine=replace(TYPICAL_NODE, memory_bytes_per_second=1e8)), {}, "memory bandwidth"),
        (replace(USUAL, machine=replace(TYPICAL_NODE, memory_bytes=1e9)), {}, "memory capacity"),
        (replace(USUAL, machine=replace(TYPICAL_NODE, inner_round=60.0)), {}, "driver"),
        (replace(USUAL, machine=replace(TYPICAL_NODE, tier_decision=1e-3)), {}, "processor"),
    ],
)
def test_what_binds_is_what_is_scarce(resources: Resources, changes: dict, binds: str) -> None:
    """One resource made scarce at a time is named."""
    assert planned(resources, **changes).binds == binds


def test_columns_beyond_the_budget_are_read_again() -> None:
    """A small budget of the driver costs network and says so."""
    roomy, tight = planned(gather_bytes=1 << 40), planned(gather_bytes=1 << 24)
    assert roomy.reread_bytes == 0
    assert tight.network_bytes > roomy.network_bytes + 0.9 * tight.reread_bytes > roomy.network_bytes
    assert any("read again" in sentence for sentence in tight.advice)


def test_a_tier_that_fits_memory_is_read_once() -> None:
    """More nodes make it fit; until then every pass comes from the medium, and the plan says how many would do."""
    request = {"n_features": 100_000_000, "n_obs": 20_000, "data": "sparse"}
    few, many = planned(nodes=2, **request), planned(nodes=40, **request)
    assert few.medium_bytes_per_node >= few.outer_iterations * few.tier_bytes > 0
    assert many.medium_bytes_per_node < 2 * many.tier_bytes
    assert any("nodes would hold it" in sentence for sentence in few.advice)


@pytest.mark.parametrize(
    ("field", "value"),
    [("k", 0), ("nodes", 0), ("tau", 0.0), ("epsilon", 1.0), ("data", "mine"), ("tier", "int4"), ("k", 3000), ("nodes", 40_000)],
)
def test_impossible_requests_are_refused(field: str, value: object) -> None:
    """One sentence that names the field."""
    with pytest.raises(RequestError, match=f"^{field} is"):
        planned(**{field: value})


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    """Written and read, it is the same."""
    profile = Profile(TYPICAL_NODE, {"disk": Medium("a disk", 2e9)}, Network("a wire", 1e9))
    write_profile(profile, tmp_path / "node.yaml")
    assert read_profile(tmp_path / "node.yaml") == profile


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda found: found["machine"].pop("cores"), "cores"),
        (lambda found: found["machine"].update(cores=-1), "cores"),
        (lambda found: found["machine"].update(colour=1), "colour"),
        (lambda found: found["machine"].update(start="soon"), "start"),
        (lambda found: found["machine"]["entries_per_second"].pop("int8"), "int8"),
        (lambda found: found["media"].update(disk=3), "disk"),
        (lambda found: found.pop("machine"), "describes no machine"),
    ],
)
def test_a_broken_profile_is_refused_by_name(change, named: str, tmp_path: Path) -> None:
    """The field is named, or the file is."""
    file = tmp_path / "node.yaml"
    write_profile(Profile(TYPICAL_NODE, {"disk": Medium("a disk", 2e9)}), file)
    found = yaml.safe_load(file.read_text())
    change(found)
    file.write_text(yaml.safe_dump(found))
    with pytest.raises(RequestError, match=named):
        read_profile(file)
    file.write_text("machine: [")
    with pytest.raises(RequestError, match=r"node\.yaml"):
        read_profile(file)


@pytest.mark.parametrize("shards", [None, ShardCosts(0.002, 4.0, 7e8)])
def test_this_machine_can_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: ShardCosts | None) -> None:
    """Every constant is a positive number, with which a plan can be made; here on inputs far too small to mean anything."""
    monkeypatch.setattr(measuring, "measure_shards", lambda folder, repeats: shards)  # which starts Ray: test_ray.py lets it
    for name, value in {"ENTRIES": 1 << 20, "FILE_BYTES": 16 << 20, "MANY": 3000, "POLISHED": (2000, 128), "_REPEATS": 1}.items():
        monkeypatch.setattr(measuring, name, value)
    profile = measuring.measure(tmp_path)
    write_profile(profile, tmp_path / "node.yaml")
    assert read_profile(tmp_path / "node.yaml") == profile  # which refuses what is not above 0
    found = plan(REQUEST, Resources(profile.machine, profile.media["disk"], NETWORKS["10gbe"]))
    assert found.seconds > 0
    assert (profile.network is None) == (shards is None)
    if shards is not None:
        assert (profile.machine.call, profile.machine.cluster_start) == (0.002, 4.0)
    assert [file.name for file in tmp_path.iterdir()] == ["node.yaml"]
