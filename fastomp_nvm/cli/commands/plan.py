"""``fastomp plan``: predict what a selection takes on a cluster, and what binds; ``--measure`` measures this machine for it."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fastomp_nvm.cli.output import human_bytes, human_seconds
from fastomp_nvm.errors import RequestError
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
from fastomp_nvm.planning.plan import ALGORITHMS, Plan, PlanRequest, Resources, plan
from fastomp_nvm.planning.rehearsal import KINDS

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--features", type=_whole("features"), metavar="N", help="number of features, as 1000000 or 1e6")
    parser.add_argument("--obs", type=_whole("obs"), metavar="N", help="number of observations")
    parser.add_argument("--k", type=_whole("k"), metavar="K", help="most features to select")
    parser.add_argument("--nodes", type=_whole("nodes"), default=1, metavar="N", help="nodes with a shard each (default 1)")
    parser.add_argument(
        "--nodes-per-machine",
        type=_whole("nodes-per-machine"),
        default=1,
        metavar="N",
        help="nodes that share one machine's cores, memory and device (default 1)",
    )
    parser.add_argument(
        "--medium",
        default="nvme",
        metavar="NAME",
        help=f"where shards lie: {', '.join(MEDIA)}, or of the profile (default nvme)",
    )
    parser.add_argument(
        "--network", default="25gbe", metavar="NAME|GB/s", help=f"{', '.join(NETWORKS)}, or gigabytes per second (default 25gbe)"
    )
    parser.add_argument("--dtype", default="float32", choices=("float16", "float32", "float64"), help="of the exact matrix")
    parser.add_argument("--tier", default="int8", choices=("int8", "none"), help="whether passes read an int8 tier (default int8)")
    parser.add_argument("--algorithm", default="fast_omp", choices=ALGORITHMS)
    parser.add_argument("--epsilon", type=float, default=0.1, help="as for select (default 0.1)")
    parser.add_argument("--tau", type=float, default=0.5, help="as for select (default 0.5)")
    parser.add_argument("--polish", default="pool", choices=("pool", "none"), help="as for select (default pool)")
    parser.add_argument(
        "--data", default="paper", choices=tuple(KINDS), help="; ".join(f"{name}: {kind.meaning}" for name, kind in KINDS.items())
    )
    parser.add_argument("--cores", type=_whole("cores"), metavar="N", help="cores of a machine, instead of the profile's")
    parser.add_argument("--memory", type=_gigabytes, metavar="GB", help="memory of a machine in GB, instead of the profile's")
    parser.add_argument(
        "--gather", type=_gigabytes, metavar="GB", help="the driver's memory for gathered columns (default as select)"
    )
    parser.add_argument("--profile", type=Path, metavar="FILE.yaml", help="constants of a machine, as --measure --out writes them")
    parser.add_argument("--measure", action="store_true", help="measure the constants on this machine first (under a minute)")
    parser.add_argument("--out", type=Path, metavar="FILE.yaml", help="with --measure: keep the constants here")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="with --measure: on the device to measure as the medium 'disk'")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Measure, predict, print."""
    profile = _profile(arguments)
    if arguments.features is None and arguments.measure:
        if arguments.json:
            print(json.dumps(None if profile is None else asdict(profile)))
        elif arguments.out is None:
            raise RequestError("give --out FILE to keep what was measured, or --features, --obs and --k to plan with it")
        return 0
    for name in ("features", "obs", "k"):
        if getattr(arguments, name) is None:
            raise RequestError(f"give --{name}: a plan needs --features, --obs and --k")
    resources = _resources(arguments, profile)
    request = PlanRequest(
        n_features=arguments.features,
        n_obs=arguments.obs,
        k=arguments.k,
        nodes=arguments.nodes,
        nodes_per_machine=arguments.nodes_per_machine,
        dtype=arguments.dtype,
        tier=arguments.tier,
        algorithm=arguments.algorithm,
        epsilon=arguments.epsilon,
        tau=arguments.tau,
        data=arguments.data,
        polish=arguments.polish == "pool",
        **({} if arguments.gather is None else {"gather_bytes": int(arguments.gather * 1e9)}),
    )
    found = plan(request, resources)
    if arguments.json:
        print(json.dumps(_as_object(request, resources, profile, found)))
    else:
        _show(request, resources, profile, found)
    return 0


def _whole(name: str) -> Callable[[str], int]:
    """Return what reads a whole number of at least 1, also as 1e9."""

    def read(text: str) -> int:
        value = float(text)
        if not (math.isfinite(value) and value >= 1 and value == int(value)):
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
        return int(value)

    read.__name__ = f"number of {name}"
    return read


def _gigabytes(text: str) -> float:
    """Read an amount of memory."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of gigabytes above 0")
    return value


_gigabytes.__name__ = "number of gigabytes"  # argparse names it in its error


def _profile(arguments: argparse.Namespace) -> Profile | None:
    """Return the constants measured now or earlier, or None for the published ones."""
    if arguments.measure and arguments.profile is not None:
        raise RequestError("--measure and --profile exclude each other: measure anew, or plan with what is in the file")
    if arguments.out is not None and not arguments.measure:
        raise RequestError("--out keeps what --measure finds: give --measure too")
    if arguments.profile is not None:
        return read_profile(arguments.profile)
    if not arguments.measure:
        return None
    from fastomp_nvm.planning.measuring import measure

    print("measuring this machine ...", file=sys.stderr)
    profile = measure(arguments.folder)
    if arguments.out is not None:
        write_profile(profile, arguments.out)
        print(f"wrote {arguments.out}", file=sys.stderr)
    return profile


def _resources(arguments: argparse.Namespace, profile: Profile | None) -> Resources:
    """Put machine, medium and network together."""
    machine = TYPICAL_NODE if profile is None else profile.machine
    if arguments.cores is not None:
        # Memory serves all cores together; fewer of them cannot take more of it than before.
        machine = replace(machine, cores=arguments.cores, source=f"{machine.source}, with {arguments.cores} cores")
    if arguments.memory is not None:
        machine = replace(machine, memory_bytes=arguments.memory * 1e9, source=f"{machine.source}, with {arguments.memory:g} GB")
    media = {**MEDIA, **(profile.media if profile is not None else {})}
    if arguments.medium not in media:
        raise RequestError(f"there is no medium {arguments.medium!r}: expected one of {', '.join(media)}")
    return Resources(machine, media[arguments.medium], _network(arguments.network, profile, arguments))


def _network(text: str, profile: Profile | None, arguments: argparse.Namespace) -> Network:
    """Return the network by name or rate; nodes of a single machine talk as it was measured to."""
    if profile is not None and profile.network is not None and arguments.nodes_per_machine >= arguments.nodes:
        return profile.network
    if text in NETWORKS:
        return NETWORKS[text]
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not (rate > 0 and math.isfinite(rate)):
        raise RequestError(f"--network is {text!r}: expected one of {', '.join(NETWORKS)}, or gigabytes per second")
    return Network(f"{rate:g} GB/s as given", rate * 1e9)


def _assumptions(resources: Resources, profile: Profile | None, request: PlanRequest) -> list[str]:
    """Name what was not measured."""
    medium: Medium = resources.medium
    measured = profile is not None and medium in profile.media.values()
    found = [] if profile is not None else [f"machine: {resources.machine.source}"]
    found += [] if measured or medium.in_memory else [f"medium: {medium.source}"]
    if request.nodes > 1 and (profile is None or resources.network is not profile.network):
        found.append(f"network: {resources.network.source}")
    if request.nodes > 1 and (profile is None or profile.network is None):
        machine = resources.machine
        found.append(f"shards: {human_seconds(machine.call)} for a question, {human_seconds(machine.cluster_start)} to connect")
    found.append(f"data: {KINDS[request.data].meaning}")
    return found


def _as_object(request: PlanRequest, resources: Resources, profile: Profile | None, found: Plan) -> dict[str, Any]:
    """Return the JSON object."""
    return {
        "request": asdict(request),
        "machine": resources.machine.source,
        "medium": resources.medium.source,
        "network": resources.network.source,
        "assumptions": _assumptions(resources, profile, request),
        **asdict(found),
        "seconds": found.seconds,
    }


def _show(request: PlanRequest, resources: Resources, profile: Profile | None, found: Plan) -> None:
    """Print for a person."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    matrix = request.n_features * request.column_bytes
    console.print(
        f"{request.algorithm}: {request.k:,} of {request.n_features:,} features x {request.n_obs:,} observations, "
        f"{request.dtype}, {human_bytes(matrix)} on {request.nodes:,} {'nodes' if request.nodes > 1 else 'node'}"
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rows = [
        ("passes", f"{found.passes:.2f} (at most {found.most_passes:.0f} and what is gathered)"),
        ("columns gathered", f"{found.gathered_columns:,.0f}"),
        ("inner rounds of the driver", f"{found.inner_rounds:,}"),
        ("exact matrix per node", human_bytes(found.shard_bytes)),
        ("int8 tier per node", human_bytes(found.tier_bytes)),
        ("bytes read per node", human_bytes(found.bytes_read_per_node)),
        ("of them from the medium", human_bytes(found.medium_bytes_per_node)),
        ("network, to and from the driver", human_bytes(found.network_bytes)),
        ("memory per node", human_bytes(found.node_memory)),
        ("memory of the driver", human_bytes(found.driver_memory)),
    ]
    for row in rows:
        table.add_row(*row)
    for phase in found.phases:
        table.add_row(f"time: {phase.name} ({phase.resource})", human_seconds(phase.seconds))
    table.add_row("time", human_seconds(found.seconds))
    console.print(table)
    console.print(f"what binds: {found.binds}")
    for sentence in found.advice:
        console.print(sentence)
    if profile is not None:
        console.print(f"machine: {resources.machine.source}")
    for assumption in _assumptions(resources, profile, request):
        console.print(f"assumed, not measured: {assumption}")
