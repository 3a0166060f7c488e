"""Predicts a selection on given machines, without data: passes, bytes, memory, a lower bound on the time, and what binds.

A :class:`~fastomp_nvm.planning.rehearsal.Rehearsal` counts the work. The time is a roofline: every phase takes as long as the
slowest of its resources: memory bandwidth, device bandwidth, multiply-adds or, between shards, network bandwidth. Latencies and
start-up are not part of it, so real runs take longer.

* *passes*: every node sweeps its part of the matrix, or of the int8 tier; a part that fits half its memory is read from the device
  once;
* *gathering*: nodes read the surviving columns;
* *network*: the driver sends residuals, and receives scores and surviving columns;
* *inner iterations* and *polish and fit*: the driver alone. Columns beyond its budget are read again for every block of prefixes.

Valid for the linear objective and the data of ``rehearsal.KINDS``. Nodes are equal, shards even, and nothing else uses the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import yaml

from fastomp_nvm.algorithms.again import PASSES
from fastomp_nvm.bounded_yaml import load_yaml
from fastomp_nvm.errors import RequestError
from fastomp_nvm.matrix.pool import LARGEST_BUDGET
from fastomp_nvm.planning.rehearsal import KINDS, Pass, Rehearsal, rehearse
from fastomp_nvm.stores.contract import BLOCK_COLUMNS

__all__ = ["MEDIA", "Machine", "Phase", "Plan", "PlanRequest", "plan", "read_machine"]

#: Bytes per feature that a driver and a node hold besides columns: moments, candidates, scores, intervals of the tier.
DRIVER_BYTES, NODE_BYTES, NODE_TIER_BYTES = 150, 150, 185

#: Share of memory that the system lets a mapping fill.
FILLABLE = 0.5

#: Columns of the Gram matrix that the polish computes for each it uses, and how many it computes at a time.
GRAM_WASTE, GRAM_COLUMNS = 1.4, 17

#: Sequential read bandwidth of a node's device in GB/s; None for a matrix in memory. ``nvme``: data sheet of a PCIe 4.0 drive
#: (Samsung PM9A3). ``optane``: six interleaved modules (Izraelevitz et al. 2019, arXiv:1903.05714).
MEDIA: dict[str, float | None] = {"dram": None, "nvme": 6.9, "optane": 39.4}

#: Resources that can limit a phase, as users read them.
MEMORY, DEVICE, PRODUCTS, NETWORK = "memory bandwidth", "device bandwidth", "multiply-adds", "network bandwidth"

_CHOICES = {
    "dtype": ("float16", "float32", "float64"),
    "tier": ("int8", "none"),
    "algorithm": ("fast_omp", "sds_omp"),
    "data": tuple(KINDS),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine. The defaults are a server of 32 cores with eight channels of DDR4-3200.

    Attributes
    ----------
    memory_gb : float
        Memory, in 10^9 bytes.
    memory_gbps : float
        Memory bandwidth of all cores together, in 10^9 bytes per second: three quarters of the 204.8 of the channels.
    device_gbps : float or None
        Sequential read bandwidth of the device; None for a matrix in memory.
    gflops : float
        Floating-point operations of all cores together, in 10^9 per second; a multiply-add is two.
    network_gbps : float
        Bandwidth of the driver's link, in 10^9 bytes per second: four fifths of 25 Gbit/s Ethernet.
    """

    memory_gb: float = 256.0
    memory_gbps: float = 150.0
    device_gbps: float | None = MEDIA["nvme"]
    gflops: float = 1000.0
    network_gbps: float = 2.5

    def __post_init__(self) -> None:
        """Refuse anything but finite numbers above 0."""
        for each in fields(self):
            value = getattr(self, each.name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and 0 < value < math.inf) and not (value is None and each.name == "device_gbps"):
                raise RequestError(f"{each.name} is {value!r}: expected a number above 0")


def read_machine(path: Path) -> dict[str, float | None]:
    """Return the fields of a :class:`Machine` that a YAML or JSON file gives."""
    try:
        found = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RequestError(f"the machine file {path} cannot be read: {' '.join(str(error).split())}") from error
    names = [each.name for each in fields(Machine)]
    if not isinstance(found, dict) or not found.keys() <= set(names):
        raise RequestError(f"the machine file {path} must be a mapping with keys among {', '.join(names)}")
    Machine(**found)
    return found


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Size of the data and settings of the selection.

    Attributes
    ----------
    n_features, n_obs, k : int
    nodes : int
        Processes with a shard each; 1 is a single store, without a network.
    nodes_per_machine : int
        Nodes that share one machine's cores, memory and device.
    dtype : {"float16", "float32", "float64"}
    tier : {"int8", "none"}
    algorithm : {"fast_omp", "sds_omp"}
    epsilon, tau : float
    data : str
        A name in ``rehearsal.KINDS``.
    polish : bool
    gather_bytes : int
        Memory of the driver for gathered columns.
    """

    n_features: int
    n_obs: int
    k: int
    nodes: int = 1
    nodes_per_machine: int = 1
    dtype: str = "float32"
    tier: str = "int8"
    algorithm: str = "fast_omp"
    epsilon: float = 0.1
    tau: float = 0.5
    data: str = "paper"
    polish: bool = True
    gather_bytes: int = LARGEST_BUDGET

    def __post_init__(self) -> None:
        """Refuse values outside their domain, one sentence each."""
        for name in ("n_features", "n_obs", "k", "nodes", "nodes_per_machine", "gather_bytes"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} is {getattr(self, name)}: expected at least 1")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise RequestError(f"{name} is {getattr(self, name)!r}: expected one of {', '.join(allowed)}")
        if not 0 < self.epsilon < 1:
            raise RequestError(f"epsilon is {self.epsilon}: expected a number between 0 and 1, both excluded")
        if not 0 < self.tau <= 1:
            raise RequestError(f"tau is {self.tau}: expected a number above 0 and at most 1")
        for limit, word in ((self.n_features, "features"), (self.n_obs, "observations")):
            if self.k > limit:
                raise RequestError(f"k is {self.k} with {limit} {word}: expected at most {limit}")
        if self.nodes > (blocks := -(-self.n_features // BLOCK_COLUMNS)):
            raise RequestError(
                f"nodes is {self.nodes} with {self.n_features} features: expected at most {blocks}, "
                f"because a shard has at least {BLOCK_COLUMNS} columns"
            )

    @property
    def column_bytes(self) -> int:
        """Bytes of one exact column."""
        return self.n_obs * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the time, and the resource that limits it."""

    name: str
    seconds: float
    resource: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The prediction.

    Attributes
    ----------
    passes, most_passes : float
        Expected passes, gathered columns included; the largest possible number of full passes, with those after the polish.
    full_passes, inner_iterations : int
    gathered_columns : float
    shard_bytes, tier_bytes : float
        A node's part of the exact matrix and of the tier.
    bytes_read_per_node, device_bytes_per_node : float
        Read from its part over the whole selection; those of them that come from the device.
    network_bytes : float
        Sent and received by the driver.
    node_memory, driver_memory : float
        Bytes in use; a driver on a node needs both.
    reread_bytes : float
        Read again, because gathered columns exceed the driver's budget.
    phases : tuple of Phase
    binds : str
        The resource that limits most of the time, or ``memory capacity`` when the selection cannot run.
    advice : tuple of str
        One sentence per problem.
    """

    passes: float
    most_passes: float
    full_passes: int
    inner_iterations: int
    gathered_columns: float
    shard_bytes: float
    tier_bytes: float
    bytes_read_per_node: float
    device_bytes_per_node: float
    network_bytes: float
    node_memory: float
    driver_memory: float
    reread_bytes: float
    phases: tuple[Phase, ...]
    binds: str
    advice: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Lower bound on the run time."""
        return sum(phase.seconds for phase in self.phases)


def plan(request: PlanRequest, machine: Machine | None = None) -> Plan:
    """Predict a selection.

    Parameters
    ----------
    request : PlanRequest
    machine : Machine, optional
        Each of the machines; the default server when left out.

    Returns
    -------
    Plan
    """
    machine = machine or Machine()
    work, most = _work(request)
    nodes, tiered = request.nodes, request.tier == "int8"
    sharing = min(request.nodes_per_machine, nodes)
    features = request.n_features / nodes
    shard_bytes, tier_bytes = features * request.column_bytes, features * request.n_obs * tiered
    pass_bytes = tier_bytes if tiered else shard_bytes
    in_memory = machine.device_gbps is None
    resident = in_memory or pass_bytes <= FILLABLE * 1e9 * machine.memory_gb / sharing

    k, full, gathered = work.selected, len(work.passes), work.gathered
    survivors = sum(each.survivors for each in work.passes)
    gathered_bytes = gathered * request.column_bytes
    polish_columns = gathered * GRAM_WASTE * k if request.polish and request.algorithm == "fast_omp" else 0.0
    walked = work.columns_walked + polish_columns / GRAM_COLUMNS
    held = min(request.gather_bytes / max(gathered_bytes, 1.0), 1.0)
    reread = (1.0 - held) * walked * request.column_bytes
    walked_bytes = held * work.columns_walked * request.column_bytes
    polish_products = polish_columns * (request.n_obs + k) + 3.0 * request.n_obs * k * k
    # Shards keep no columns between two questions: survivors are read for their gradients, and again to be sent.
    examined = (sum(each.unclear for each in work.passes) + (survivors if nodes > 1 else 0.0)) if tiered else 0.0
    exact_bytes = (gathered_bytes + reread + examined * request.column_bytes) / nodes
    swept_bytes = full * pass_bytes
    swept_device_bytes = pass_bytes if resident else swept_bytes
    vectors = full * nodes * 8.0 * request.n_obs
    scores = full * nodes * 8.0 * min(request.k, features) + 16.0 * survivors
    network_bytes = vectors + scores + gathered_bytes + reread if nodes > 1 else 0.0

    bandwidths = machine.memory_gbps, machine.device_gbps or math.inf, machine.gflops / 2, machine.network_gbps
    rates = dict(zip((MEMORY, DEVICE, PRODUCTS, NETWORK), bandwidths, strict=True))

    def phase(name: str, nodes: int, amounts: dict[str, float]) -> Phase:
        """Return a phase in which each of ``nodes`` nodes of a machine needs these bytes or multiply-adds."""
        seconds = {resource: nodes * amount / (1e9 * rates[resource]) for resource, amount in amounts.items()}
        resource = max(seconds, key=lambda each: seconds[each])
        return Phase(name, seconds[resource], resource)

    phases = [
        phase("passes", sharing, {MEMORY: swept_bytes, DEVICE: swept_device_bytes, PRODUCTS: full * features * request.n_obs}),
        phase("gathering", sharing, {MEMORY: exact_bytes, DEVICE: exact_bytes}),
        phase("inner iterations", 1, {MEMORY: walked_bytes, PRODUCTS: work.multiply_adds}),
        phase("polish and fit", 1, {MEMORY: held * walked * request.column_bytes - walked_bytes, PRODUCTS: polish_products}),
    ]
    if nodes > 1:
        phases.append(phase("network", 1, {NETWORK: network_bytes}))
    node_memory = (tier_bytes if tiered and resident else 0.0) + features * (NODE_TIER_BYTES if tiered else NODE_BYTES)
    node_memory += shard_bytes if in_memory else 0.0
    driver_memory = float(DRIVER_BYTES * request.n_features) if nodes > 1 else 0.0
    driver_memory += min(gathered_bytes, request.gather_bytes) + 16.0 * request.n_obs * request.k
    driver_memory += 8.0 * gathered * request.k  # coordinates of the polish

    totals: dict[str, float] = {}
    for each in phases:
        totals[each.resource] = totals.get(each.resource, 0.0) + each.seconds
    binds, advice = max(totals, key=lambda resource: totals[resource]), []
    memory = 1e9 * machine.memory_gb
    for name, need in (("a machine", node_memory * sharing), ("the driver", driver_memory)):
        if need > memory:
            binds = "memory capacity"
            advice.append(f"{name} needs {need / 1e9:,.0f} GB of memory and has {memory / 1e9:,.0f} GB: it would not run")
    if not resident:
        enough = math.ceil(nodes * pass_bytes * sharing / (FILLABLE * memory))
        part = "the int8 tier" if tiered else "the matrix"
        advice.append(f"{part} exceeds half of a node's memory, so every pass reads the device; {enough:,} nodes would hold it")
    if reread > 0:
        advice.append(
            f"gathered columns exceed the driver's budget of {request.gather_bytes / 1e9:,.1f} GB, so {reread / 1e9:,.0f} GB are "
            "read again; a higher tau gathers fewer"
        )
    return Plan(
        passes=full + (gathered + examined) / request.n_features,
        most_passes=float(most),
        full_passes=full,
        inner_iterations=work.inner_iterations,
        gathered_columns=gathered,
        shard_bytes=shard_bytes,
        tier_bytes=tier_bytes,
        bytes_read_per_node=swept_bytes + exact_bytes,
        device_bytes_per_node=0.0 if in_memory else swept_device_bytes + exact_bytes,
        network_bytes=network_bytes,
        node_memory=node_memory,
        driver_memory=driver_memory,
        reread_bytes=reread,
        phases=tuple(phases),
        binds=binds,
        advice=tuple(advice),
    )


def _work(request: PlanRequest) -> tuple[Rehearsal, int]:
    """Return the work of the algorithm and the largest number of full passes."""
    if request.algorithm == "sds_omp":  # one pass and one gathered column per feature
        return Rehearsal([Pass(1.0, 1.0, 0.0)] * request.k, request.k, request.k), request.k
    kind = KINDS[request.data]
    work = rehearse(request.n_features, request.n_obs, request.k, kind=kind, epsilon=request.epsilon, tau=request.tau)
    return work, math.ceil(1.0 / request.epsilon) + (PASSES if request.polish else 0)
