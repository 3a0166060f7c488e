"""Predicts what a selection takes on a cluster before anyone buys one: passes, bytes, memory, time, and what binds.

A :class:`~fastomp_nvm.planning.rehearsal.Rehearsal` says how often the matrix is passed over, how many columns are gathered and how
many inner rounds the driver plays; a :class:`~fastomp_nvm.planning.machine_profiles.Profile` says how quick machines are. The plan
multiplies the two, phase by phase:

* *passes*: every node sweeps its part of the matrix (or of its tier) at the pace of its medium, its memory or its cores, whichever
  is slowest; what fits half the memory comes from the medium once;
* *decisions*: every node forms scores and tells the driver the few that matter;
* *gathering*: surviving columns travel to the driver;
* *walking*: the driver takes gathered columns from its memory, once per block of vectors;
* *inner rounds*, *polish* and *fit*: the driver alone, on gathered columns. What exceeds its budget is read again for every block
  of prefixes, over the network.

Valid for the linear objective and data like one of ``rehearsal.KINDS``. Rates of nodes are taken as equal, shards as even, and the
network as free of other traffic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fastomp_nvm.errors import RequestError
from fastomp_nvm.matrix.pool import LARGEST_BUDGET
from fastomp_nvm.planning.machine_profiles import Machine, Medium, Network
from fastomp_nvm.planning.rehearsal import KINDS, rehearse
from fastomp_nvm.stores.contract import BLOCK_COLUMNS

__all__ = ["GRAM_WASTE", "Phase", "Plan", "PlanRequest", "Resources", "plan"]

#: Bytes per feature that a driver and a node hold besides the columns: moments, candidates, scores, intervals of the tier. From the
#: peak of anonymous memory of whole selections over 16 observations on one machine (16 November 2026): 152 bytes with the exact
#: matrix (200,000 features), 179 to 183 with the tier (200,000 and 2,000,000). A driver of shards was not measured apart.
DRIVER_BYTES, NODE_BYTES, NODE_TIER_BYTES = 150, 150, 185

#: Share of memory that the system lets a mapping fill, as in ``reading``; and how much slower a first pass through it is.
FILLABLE, FIRST_PASS = 0.5, 2.0

#: Columns of the Gram matrix the polish computes for each it uses, in blocks of ``GRAM_BLOCK`` at most: 1.0 to 1.9 of the paper's
#: design (500 and 1000 observations, k 50 and 300, 17 November 2026), the more the fewer observations, and 1.0 to 2.2 of the sparse
#: one; and how many are in a block, 6 to 22.
GRAM_WASTE, GRAM_COLUMNS = 1.4, 17

ALGORITHMS = ("fast_omp", "sds_omp")

#: Questions to the shards per round: the largest scores with the survivors on offer, and their columns; with the tier,
#: the survivors are a question of their own.
CALLS = {"fast_omp": 2, "sds_omp": 2}


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be selected from how much.

    Attributes
    ----------
    n_features, n_obs, k : int
    nodes : int
        Machines, or processes, with a shard each; 1 is a single store, without a network.
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
        choices = {
            "dtype": ("float16", "float32", "float64"),
            "tier": ("int8", "none"),
            "algorithm": ALGORITHMS,
            "data": tuple(KINDS),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise RequestError(f"{name} is {getattr(self, name)!r}: expected one of {', '.join(allowed)}")
        if not 0 < self.epsilon < 1:
            raise RequestError(f"epsilon is {self.epsilon}: expected a number between 0 and 1, both excluded")
        if not 0 < self.tau <= 1:
            raise RequestError(f"tau is {self.tau}: expected a number above 0 and at most 1")
        if self.k > self.n_features:
            raise RequestError(f"k is {self.k} with {self.n_features} features: no more can be selected than there are")
        blocks = -(-self.n_features // BLOCK_COLUMNS)
        if self.nodes > blocks:
            raise RequestError(
                f"nodes is {self.nodes} with {self.n_features} features: a shard has a block of {BLOCK_COLUMNS} columns at least, "
                f"so ask for at most {blocks}"
            )
        if self.k > self.n_obs:
            raise RequestError(f"k is {self.k} with {self.n_obs} observations: a linear model cannot hold more columns than that")

    @property
    def column_bytes(self) -> int:
        """Bytes of one exact column."""
        return self.n_obs * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Resources:
    """What it is to run on."""

    machine: Machine
    medium: Medium
    network: Network


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the time and what it goes to: medium, memory bandwidth, processor, network, driver or start-up."""

    name: str
    seconds: float
    resource: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The prediction.

    Attributes
    ----------
    passes, most_passes : float
        Expected passes, gathered columns included, and the most there can be.
    outer_iterations, inner_rounds : int
    gathered_columns : float
    shard_bytes, tier_bytes : float
        A node's part of the exact matrix and of the tier.
    bytes_read_per_node : float
        Taken from its part over the whole selection, from memory or from the medium.
    medium_bytes_per_node : float
        Those of them that come from the medium.
    network_bytes : float
        In and out of the driver.
    node_memory, driver_memory : float
        Bytes in use; the driver's are on top of a node's when it runs on one.
    reread_bytes : float
        Read again, because gathered columns exceed the driver's budget.
    phases : tuple of Phase
    binds : str
        The resource that most of the time goes to, or ``memory capacity`` when it cannot run at all.
    advice : tuple of str
        What would help, in sentences.
    """

    passes: float
    most_passes: float
    outer_iterations: int
    inner_rounds: int
    gathered_columns: float
    shard_bytes: float
    tier_bytes: float
    bytes_read_per_node: float
    medium_bytes_per_node: float
    network_bytes: float
    node_memory: float
    driver_memory: float
    reread_bytes: float
    phases: tuple[Phase, ...]
    binds: str
    advice: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """The whole time."""
        return sum(phase.seconds for phase in self.phases)


@dataclass(frozen=True, slots=True)
class _Work:
    """What an algorithm asks for: passes, and per run the columns and multiply-adds of the driver."""

    passes: int
    most_passes: int
    gathered: float
    unclear: float
    survivors: float
    rounds: int
    columns_walked: float
    driver_products: float
    dense_products: float
    greedy: tuple[float, float]


def plan(request: PlanRequest, resources: Resources) -> Plan:
    """Predict a selection.

    Parameters
    ----------
    request : PlanRequest
    resources : Resources

    Returns
    -------
    Plan
    """
    work = _fast_omp(request) if request.algorithm == "fast_omp" else _sds_omp(request)
    machine, medium, nodes = resources.machine, resources.medium, request.nodes
    tiered = request.tier == "int8"
    sharing = min(request.nodes_per_machine, nodes)
    features = request.n_features / nodes
    shard_bytes, tier_bytes = features * request.column_bytes, features * request.n_obs * tiered
    pass_bytes = tier_bytes if tiered else shard_bytes
    memory = machine.memory_bytes / sharing
    resident = medium.in_memory or pass_bytes <= FILLABLE * memory

    gathered_bytes = work.gathered * request.column_bytes
    held = min(request.gather_bytes / max(gathered_bytes, 1.0), 1.0)
    reread = (1.0 - held) * work.columns_walked * request.column_bytes
    # Shards keep nothing between two questions: the gradients of survivors and their columns are read one after the other.
    glanced = (work.unclear + (work.survivors if nodes > 1 else 0.0)) if tiered else 0.0
    exact_bytes = (gathered_bytes + reread + glanced * request.column_bytes) / nodes
    swept_bytes = work.passes * pass_bytes
    from_medium = 0.0 if medium.in_memory else (pass_bytes if resident else swept_bytes) + exact_bytes

    phases = [Phase("opening", machine.start + request.n_features * machine.opening, "driver")]
    phases.append(_passes(request, resources, work.passes, resident, sharing))
    decision = machine.tier_decision if tiered else machine.exact_decision
    phases.append(Phase("decisions", work.passes * decision * features * max(sharing / machine.cores, 1.0), "processor"))
    device = math.inf if medium.in_memory else medium.bytes_per_second / sharing
    # One thread copies what is in memory; a device is read by all.
    copied = machine.copied_bytes_per_second * (1.0 if medium.in_memory else max(machine.cores / sharing, 1.0))
    phases.append(Phase("gathering", exact_bytes / min(device, copied), "processor" if copied < device else "medium"))
    sent, received = 0.0, 0.0
    if nodes > 1:
        sent = work.passes * nodes * 8.0 * request.n_obs
        received = work.passes * nodes * 8.0 * min(request.k, features) + 16.0 * work.survivors + gathered_bytes + reread
        calls = work.passes * (CALLS[request.algorithm] + tiered)
        calling = calls * machine.call * max(sharing / machine.cores, 1.0)  # shards beyond the cores of a machine take turns
        phases.append(Phase("network", (sent + received) / resources.network.bytes_per_second + calling, "network"))
        phases.append(Phase("connecting", machine.cluster_start, "start-up"))
    walking = held * work.columns_walked * request.column_bytes / machine.memory_bytes_per_second
    products = work.driver_products / (machine.products_per_second * machine.cores)
    phases.append(Phase("walking", walking, "memory bandwidth"))
    phases.append(Phase("inner rounds", products + work.rounds * machine.inner_round, "driver"))
    square, step = work.greedy
    greedy = square * machine.greedy_square + step * machine.greedy_step
    dense = work.dense_products / machine.dense_products_per_second
    phases.append(Phase("polish and fit", greedy + dense, "driver"))

    node_memory = (tier_bytes if tiered and resident else 0.0) + features * (NODE_TIER_BYTES if tiered else NODE_BYTES)
    node_memory += shard_bytes if medium.in_memory else 0.0
    driver_memory = float(DRIVER_BYTES * request.n_features) if nodes > 1 else 0.0
    driver_memory += min(gathered_bytes, request.gather_bytes) + 16.0 * request.n_obs * request.k
    driver_memory += 8.0 * work.gathered * request.k  # coordinates of the polish
    binds, advice = _judge(request, resources, phases, node_memory, driver_memory, pass_bytes, resident, reread)
    return Plan(
        passes=work.passes + (work.gathered + glanced) / request.n_features,
        most_passes=float(work.most_passes),
        outer_iterations=work.passes,
        inner_rounds=work.rounds,
        gathered_columns=work.gathered,
        shard_bytes=shard_bytes,
        tier_bytes=tier_bytes,
        bytes_read_per_node=swept_bytes + exact_bytes,
        medium_bytes_per_node=from_medium,
        network_bytes=sent + received,
        node_memory=node_memory,
        driver_memory=driver_memory,
        reread_bytes=reread,
        phases=tuple(phases),
        binds=binds,
        advice=advice,
    )


def _fast_omp(request: PlanRequest) -> _Work:
    """Return the work of FAST_OMP, from a rehearsal."""
    played = rehearse(
        request.n_features, request.n_obs, request.k, kind=KINDS[request.data], epsilon=request.epsilon, tau=request.tau
    )
    n_obs, k, gathered = request.n_obs, played.selected, played.gathered
    walked = sum(outer.block_columns + outer.survivors for outer in played.outers)
    products = sum((outer.prefix_columns + outer.survivors * outer.selected) * n_obs for outer in played.outers)
    dense = sum(outer.prefix_columns * (outer.selected + outer.adopted / 2) for outer in played.outers)
    if request.polish:
        walked += gathered * GRAM_WASTE * k / GRAM_COLUMNS
        products += gathered * n_obs * GRAM_WASTE * k
    return _Work(
        passes=len(played.outers),
        most_passes=math.ceil(1.0 / request.epsilon),
        gathered=gathered,
        unclear=sum(outer.unclear for outer in played.outers),
        survivors=sum(outer.survivors for outer in played.outers),
        rounds=played.rounds,
        columns_walked=walked,
        driver_products=products,
        dense_products=dense + 3.0 * n_obs * k * k,
        greedy=(gathered * k * k, gathered * k) if request.polish else (0.0, 0.0),
    )


def _sds_omp(request: PlanRequest) -> _Work:
    """Return the work of SDS_OMP: a pass per feature, one column gathered each."""
    k = request.k
    return _Work(k, k, k, 0.0, k, k, k, 0.0, 2.0 * request.n_obs * k * k, (0.0, 0.0))


def _passes(request: PlanRequest, resources: Resources, passes: int, resident: bool, sharing: int) -> Phase:
    """Return the time of all sweeps: the slowest of medium, memory and cores, or first one and then the others."""
    machine, medium = resources.machine, resources.medium
    kind = "int8" if request.tier == "int8" else request.dtype
    entries = request.n_features / request.nodes * request.n_obs
    size = entries * np.dtype(kind).itemsize
    by_memory = size / (machine.memory_bytes_per_second / sharing)
    by_cores = entries / (machine.entries_per_second[kind] * machine.cores / sharing)
    in_memory = max(by_memory, by_cores)
    where = "memory bandwidth" if by_memory >= by_cores else "processor"
    if medium.in_memory:
        return Phase("passes", passes * in_memory, where)
    by_medium = size / (medium.bytes_per_second / sharing)
    if resident:
        first, others = max(FIRST_PASS * by_medium, in_memory), (passes - 1) * in_memory
        return Phase("passes", first + others, "medium" if first > others else where)
    return Phase("passes", passes * max(by_medium, in_memory), "medium" if by_medium > in_memory else where)


def _judge(
    request: PlanRequest,
    resources: Resources,
    phases: list[Phase],
    node_memory: float,
    driver_memory: float,
    pass_bytes: float,
    resident: bool,
    reread: float,
) -> tuple[str, tuple[str, ...]]:
    """Return what binds, and sentences about what would help."""
    memory = resources.machine.memory_bytes
    sharing = min(request.nodes_per_machine, request.nodes)
    totals: dict[str, float] = {}
    for phase in phases:
        totals[phase.resource] = totals.get(phase.resource, 0.0) + phase.seconds
    binds, advice = max(totals, key=lambda resource: totals[resource]), []
    if node_memory * sharing > memory or driver_memory > memory:
        binds = "memory capacity"
        who = "the driver" if driver_memory > memory else "a machine"
        need = driver_memory if driver_memory > memory else node_memory * sharing
        advice.append(f"{who} needs {need / 1e9:,.0f} GB of memory and has {memory / 1e9:,.0f} GB: it would not run")
    if not resident:
        nodes = math.ceil(request.nodes * pass_bytes / (FILLABLE * memory / sharing))
        what = "the int8 tier" if request.tier == "int8" else "the matrix"
        advice.append(f"{what} does not fit half a node's memory, so every pass reads the medium; {nodes:,} nodes would hold it")
    if reread > 0:
        advice.append(
            f"gathered columns exceed the driver's budget of {request.gather_bytes / 1e9:,.1f} GB and are read again, "
            f"{reread / 1e9:,.0f} GB in all: a higher tau gathers fewer"
        )
    return binds, tuple(advice)
