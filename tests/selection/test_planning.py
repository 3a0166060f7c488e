"""The plan: bytes add up, the scarce resource binds, and a machine file is read or refused by name."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.errors import RequestError
from fastomp_nvm.planning.plan import MEDIA, Machine, Plan, PlanRequest, plan, read_machine

REQUEST = PlanRequest(10_000_000, 2000, 50, nodes=10)


def planned(machine: Machine | None = None, **changes: object) -> Plan:
    """Plan the usual request with some changes."""
    return plan(replace(REQUEST, **changes), machine)


def seconds(found: Plan, name: str) -> float:
    """Return the time of a phase."""
    return next(phase.seconds for phase in found.phases if phase.name == name)


def test_bytes_are_those_of_the_matrix() -> None:
    """Shards and tiers together are the matrix, and passes read them."""
    found = planned()
    assert found.shard_bytes * 10 == pytest.approx(10_000_000 * 2000 * 4)
    assert found.tier_bytes * 10 == pytest.approx(10_000_000 * 2000)
    assert found.bytes_read_per_node >= found.full_passes * found.tier_bytes
    exact = planned(tier="none", gather_bytes=1 << 40)
    assert exact.tier_bytes == 0
    swept, gathered = exact.full_passes * exact.shard_bytes, exact.gathered_columns * 8000
    assert exact.bytes_read_per_node == pytest.approx(swept + gathered / 10)


def test_the_time_is_the_sum_of_its_phases() -> None:
    """Nothing is counted twice or left out, and every phase takes some."""
    found = planned()
    assert found.seconds == pytest.approx(sum(phase.seconds for phase in found.phases))
    assert all(phase.seconds > 0 for phase in found.phases)


def test_a_phase_takes_as_long_as_its_slowest_resource() -> None:
    """Passes over an exact matrix in memory: bytes over bandwidth, or two operations per entry over the rate of operations."""
    entries = REQUEST.n_features // 10 * REQUEST.n_obs
    quick = Machine(memory_gb=1e4, memory_gbps=100, gflops=1e6, device_gbps=None)
    found = planned(quick, tier="none")
    assert seconds(found, "passes") == pytest.approx(found.full_passes * 4 * entries / 100e9)
    found = planned(replace(quick, gflops=10), tier="none")
    assert seconds(found, "passes") == pytest.approx(found.full_passes * 2 * entries / 10e9)


def test_no_selection_makes_more_passes_than_the_most() -> None:
    """Passes after the polish count: wide data of noise takes more than FAST_OMP's own two, but not more than the plan's."""
    numbers = np.random.default_rng(0)
    found = fo.select(numbers.normal(size=(60, 3000)), numbers.normal(size=60), k=10, epsilon=0.5)
    assert 2 < math.floor(found.full_passes) <= plan(PlanRequest(3000, 60, 10, epsilon=0.5)).most_passes
    assert plan(PlanRequest(3000, 60, 10, epsilon=0.5, polish=False)).most_passes == 2


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
    assert planned(algorithm="sds_omp").full_passes == 50
    assert planned(epsilon=0.25).full_passes <= 4


def test_nodes_that_share_a_machine_sweep_no_quicker_than_one() -> None:
    """Four shards on one machine pass over the same bytes with the same cores."""
    one, four, spread = (planned(nodes=nodes, nodes_per_machine=sharing) for nodes, sharing in ((1, 1), (4, 4), (4, 1)))
    assert seconds(four, "passes") == pytest.approx(seconds(one, "passes"))
    assert seconds(spread, "passes") < seconds(one, "passes")


@pytest.mark.parametrize(
    ("machine", "binds"),
    [
        (Machine(device_gbps=0.01), "device bandwidth"),
        (Machine(network_gbps=1e-4), "network bandwidth"),
        (Machine(device_gbps=None, memory_gbps=0.1), "memory bandwidth"),
        (Machine(device_gbps=None, gflops=0.1), "multiply-adds"),
        (Machine(memory_gb=1), "memory capacity"),
    ],
)
def test_the_scarce_resource_binds(machine: Machine, binds: str) -> None:
    """One resource made scarce at a time is named."""
    assert planned(machine).binds == binds


def test_columns_beyond_the_budget_are_read_again() -> None:
    """A small budget of the driver costs network and says so."""
    roomy, tight = planned(gather_bytes=1 << 40), planned(gather_bytes=1 << 24)
    assert roomy.reread_bytes == 0
    assert tight.network_bytes > roomy.network_bytes + 0.9 * tight.reread_bytes > roomy.network_bytes
    assert any("read again" in sentence for sentence in tight.advice)


def test_a_tier_that_fits_memory_is_read_once() -> None:
    """More nodes make it fit; until then every pass reads the device, and the plan says how many nodes would do."""
    request = {"n_features": 100_000_000, "n_obs": 20_000, "data": "sparse"}
    few, many = planned(nodes=2, **request), planned(nodes=40, **request)
    assert few.device_bytes_per_node >= few.full_passes * few.tier_bytes > 0
    assert many.device_bytes_per_node < 2 * many.tier_bytes
    assert any("nodes would hold it" in sentence for sentence in few.advice)
    assert planned(Machine(device_gbps=MEDIA["dram"])).device_bytes_per_node == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("k", 0), ("nodes", 0), ("tau", 0.0), ("epsilon", 1.0), ("data", "mine"), ("tier", "int4"), ("k", 3000), ("nodes", 40_000)],
)
def test_impossible_requests_are_refused(field: str, value: object) -> None:
    """One sentence that names the field."""
    with pytest.raises(RequestError, match=f"^{field} is"):
        planned(**{field: value})


def test_a_machine_file_is_yaml_or_json(tmp_path: Path) -> None:
    """Fields that it leaves out have their defaults; a device of null is a matrix in memory."""
    file = tmp_path / "machine"
    file.write_text("memory_gbps: 12.5\n", encoding="utf-8")
    assert Machine(**read_machine(file)) == Machine(memory_gbps=12.5)
    file.write_text(json.dumps({"gflops": 70, "device_gbps": None}), encoding="utf-8")
    assert Machine(**read_machine(file)) == Machine(gflops=70, device_gbps=None)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gflops: -1", "gflops"),
        ("gflops: yes", "gflops"),
        ("gflops: null", "gflops"),
        ("memory_gb: .inf", "memory_gb"),
        ("colour: 1", "network_gbps"),
        ("- 1", "network_gbps"),
        ("gflops: [", "cannot be read"),
    ],
)
def test_a_broken_machine_file_is_refused(text: str, named: str, tmp_path: Path) -> None:
    """The field is named, or the fields that there are."""
    file = tmp_path / "machine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(RequestError, match=named):
        read_machine(file)
    with pytest.raises(RequestError, match="nowhere"):
        read_machine(tmp_path / "nowhere")
