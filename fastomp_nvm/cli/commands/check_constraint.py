"""``fastomp check-constraint FILE STORE``: show rank and p of a constraint over a store, test that it is downward closed."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from fastomp_nvm.cli.arguments import add_json_argument, add_ray_argument, add_store_argument, open_local
from fastomp_nvm.cli.output import clean
from fastomp_nvm.constraints import check_downward_closed
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import ConstraintError, RequestError
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


def run(arguments: argparse.Namespace) -> int:
    """Check and print."""
    if arguments.samples < 0:
        raise RequestError(f"--samples is {arguments.samples}: expected a whole number of at least 0")
    if os.path.isdir(arguments.file):
        raise RequestError(f"{arguments.file} is a directory, expected a constraint file: give the file first, then the store")
    with open_local(arguments.store) as store:
        dataset = Dataset.of_store(store)
        constraint = bind_constraint(Path(arguments.file), dataset, dataset.design().standardisation.usable())
        found = check_downward_closed(constraint, samples=arguments.samples, seed=arguments.seed)
        if found is not None:
            allowed, refused = (
                ", ".join(clean(dataset.names[feature], 24) for feature in features)
                for features in (found.allowed, found.refused_subset)
            )
            raise ConstraintError(
                f"the constraint is not downward closed: it allows {{{allowed}}} but refuses {{{refused}}}, a part of it; "
                "correct it, because no guarantee holds without this"
            )
    facts = {
        "n_features": constraint.n_features,
        "rank": constraint.rank,
        "p": constraint.p,
        "needs_base": constraint.needs_base,
        "samples": arguments.samples,
        "downward_closed": True,
    }
    if arguments.json:
        print(json.dumps(facts))
        return 0
    p = "unknown" if constraint.p is None else f"{constraint.p:g}{' (a matroid)' if constraint.p == 1 else ''}"
    print(f"at most {constraint.rank:,} of {constraint.n_features:,} features can be selected; p is {p}")
    if constraint.needs_base:
        print("lower bounds: a selection continues until nothing more fits")
    print(f"no counterexample to downward closure in {arguments.samples:,} samples")
    return 0
