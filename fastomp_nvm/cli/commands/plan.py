"""``fastomp plan``: predict passes, bytes, memory and a lower bound on the time of a selection, and what binds."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, fields
from pathlib import Path

from rich.table import Table

from fastomp_nvm.cli.arguments import add_json_argument
from fastomp_nvm.cli.output import human_bytes, human_seconds
from fastomp_nvm.cli.screen import Screen
from fastomp_nvm.planning.plan import MEDIA, Machine, Plan, PlanRequest, plan, read_machine
from fastomp_nvm.planning.rehearsal import KINDS

__all__ = ["add_arguments", "run"]

#: Options that are fields of the machine, with the value of a server where neither an option nor a file gives one.
_MACHINE = {
    "memory-gb": "memory of a machine in GB",
    "memory-gbps": "memory bandwidth of all cores in gigabytes per second",
    "device-gbps": "sequential read bandwidth of the device in gigabytes per second, instead of that of --medium",
    "gflops": "floating-point operations of all cores in 10^9 per second; a multiply-add is two",
    "network-gbps": "bandwidth of the driver's link in gigabytes per second, for several nodes",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--features", type=_whole, required=True, metavar="N", help="number of features")
    parser.add_argument("--observations", type=_whole, required=True, metavar="N", help="number of observations")
    parser.add_argument("--k", type=_whole, required=True, metavar="K", help="most features to select")
    parser.add_argument("--nodes", type=_whole, default=1, metavar="N", help="nodes with a shard each (default 1)")
    parser.add_argument(
        "--nodes-per-machine",
        type=_whole,
        default=1,
        metavar="N",
        help="nodes that share one machine's cores, memory and device (default 1)",
    )
    rates = ", ".join(f"{name} ({'in memory' if rate is None else f'{rate:g} GB/s'})" for name, rate in MEDIA.items())
    parser.add_argument("--medium", choices=tuple(MEDIA), help=f"where the matrix is: {rates} (default nvme)")
    for name, meaning in _MACHINE.items():
        default = getattr(Machine(), name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=_above_zero, metavar="X", help=f"{meaning} (default {default:g})")
    parser.add_argument(
        "--machine", type=Path, metavar="FILE", help="YAML or JSON file with memory_gb, memory_gbps, ... (default: as above)"
    )
    parser.add_argument(
        "--dtype", default="float32", choices=("float16", "float32", "float64"), help="element type of the exact matrix"
    )
    parser.add_argument("--tier", default="int8", choices=("int8", "none"), help="whether passes read an int8 tier (default int8)")
    parser.add_argument(
        "--algorithm", default="fast_omp", choices=("fast_omp", "sds_omp"), help="as for select; sds_omp with --plain"
    )
    parser.add_argument("--epsilon", type=float, default=0.1, metavar="X", help="as for select (default 0.1)")
    parser.add_argument("--tau", type=float, default=0.5, metavar="X", help="as for select (default 0.5)")
    parser.add_argument("--polish", default="pool", choices=("pool", "none"), help="as for select (default pool)")
    parser.add_argument(
        "--data", default="paper", choices=tuple(KINDS), help="; ".join(f"{name}: {kind.meaning}" for name, kind in KINDS.items())
    )
    parser.add_argument(
        "--gather-bytes",
        type=_whole,
        metavar="N",
        help="memory for gathered columns (default half of what is free, at most 2.75 GiB)",
    )
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Predict and print."""
    machine = _machine(arguments)
    request = PlanRequest(
        n_features=arguments.features,
        n_obs=arguments.observations,
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
        **({} if arguments.gather_bytes is None else {"gather_bytes": arguments.gather_bytes}),
    )
    found = plan(request, machine)
    if arguments.json:
        print(json.dumps({"request": asdict(request), "machine": asdict(machine), **asdict(found), "seconds": found.seconds}))
    else:
        _show(request, machine, found)
    return 0


def _machine(arguments: argparse.Namespace) -> Machine:
    """Return the machine: options over the file over the defaults."""
    given = {} if arguments.machine is None else read_machine(arguments.machine)
    if arguments.medium is not None:
        given["device_gbps"] = MEDIA[arguments.medium]
    options = {each.name: getattr(arguments, each.name) for each in fields(Machine)}
    return Machine(**{**given, **{name: value for name, value in options.items() if value is not None}})


def _whole(text: str) -> int:
    """Read a whole number of at least 1, also as 1e9."""
    value = float(text)
    if not (math.isfinite(value) and value >= 1 and value == int(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(value)


def _above_zero(text: str) -> float:
    """Read a finite number above 0."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


_whole.__name__, _above_zero.__name__ = "whole number", "number"  # argparse names them in its errors


def _show(request: PlanRequest, machine: Machine, found: Plan) -> None:
    """Print for a person."""
    console = Screen()
    matrix = request.n_features * request.column_bytes
    console.print(
        f"{request.algorithm}: {request.k:,} of {request.n_features:,} features x {request.n_obs:,} observations, "
        f"{request.dtype}, {human_bytes(matrix)} on {request.nodes:,} {'nodes' if request.nodes > 1 else 'node'}"
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rows = [
        ("passes", f"{found.passes:.2f} (at most {found.most_passes:.0f} and gathered columns)"),
        ("columns gathered", f"{found.gathered_columns:,.0f}"),
        ("inner iterations", f"{found.inner_iterations:,}"),
        ("exact matrix per node", human_bytes(found.shard_bytes)),
        ("int8 tier per node", human_bytes(found.tier_bytes)),
        ("bytes read per node", human_bytes(found.bytes_read_per_node)),
        ("bytes read from the device per node", human_bytes(found.device_bytes_per_node)),
        ("network, to and from the driver", human_bytes(found.network_bytes)),
        ("memory per node", human_bytes(found.node_memory)),
        ("memory of the driver", human_bytes(found.driver_memory)),
    ]
    rows += [(f"time: {phase.name} ({phase.resource})", human_seconds(phase.seconds)) for phase in found.phases]
    for row in (*rows, ("time, at least", human_seconds(found.seconds))):
        table.add_row(*row)
    console.print(table)
    console.print(f"binds: {found.binds}")
    for sentence in found.advice:
        console.print(sentence)
    device = "matrix in memory" if machine.device_gbps is None else f"device {machine.device_gbps:g} GB/s"
    network = f", network {machine.network_gbps:g} GB/s" if request.nodes > 1 else ""
    console.print(
        f"assumed: {machine.memory_gb:g} GB at {machine.memory_gbps:g} GB/s, {device}, {machine.gflops:g} GFLOP/s{network}; "
        f"{KINDS[request.data].meaning}; a linear objective"
    )
