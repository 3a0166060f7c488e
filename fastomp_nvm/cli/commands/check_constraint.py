"""``fastomp check-constraint FILE STORE``: show rank and p of a constraint over a store, test that it is downward closed."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path

from fastomp_nvm.analysis.constraint_check import check_constraint
from fastomp_nvm.cli.arguments import (
    add_connection_arguments,
    add_json_argument,
    add_ray_argument,
    add_store_argument,
    connected,
    open_local,
)
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import RequestError
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.selection.select import bind_constraint

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="constraint file; see 'fastomp help constraints'")
    add_store_argument(parser)
    add_ray_argument(parser)
    parser.add_argument("--samples", type=int, default=100, metavar="N", help="random chains of sets to test (default 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all random choices (default 0)")
    add_json_argument(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check and print."""
    if arguments.samples < 0:
        raise RequestError(f"--samples is {arguments.samples}: expected a whole number of at least 0")
    if os.path.isdir(arguments.file):
        raise RequestError(f"{arguments.file} is a directory, expected a constraint file: give the file first, then the store")
    file = Path(arguments.file)
    if is_remote(arguments.store):
        with connected(arguments) as client:
            found = client.check_constraint(file, samples=arguments.samples, seed=arguments.seed)
    else:
        with open_local(arguments.store) as store:
            dataset = Dataset.of_store(store)
            constraint = bind_constraint(file, dataset, dataset.design().standardisation.usable())
            found = check_constraint(constraint, dataset, arguments.samples, arguments.seed)
    if arguments.json:
        print(json.dumps(asdict(found)))
        return 0
    p = "unknown" if found.p is None else f"{found.p:g}{' (a matroid)' if found.p == 1 else ''}"
    print(f"at most {found.rank:,} of {found.n_features:,} features can be selected; p is {p}")
    if found.needs_base:
        print("lower bounds: a selection continues until nothing more fits")
    print(f"no counterexample to downward closure in {arguments.samples:,} samples")
    return 0
