"""``fastomp ingest SRC STORE``: build a store from a file."""

from __future__ import annotations

import argparse
import json
import urllib.parse
from dataclasses import asdict

from fastomp_nvm.cli.arguments import add_connection_arguments, add_json_argument, add_replace_argument, connected, shard_counts
from fastomp_nvm.cli.output import add_progress_argument, byte_progress, clean
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.errors import StoreURLError
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.stores.contract import MISSING_POLICIES, STORE_DTYPES, TIERS
from storage_backends.build.ingest import ingest
from storage_backends.build.sharding import ingest_shards

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="SRC", help="file: CSV, TSV (also .gz), NPY, NPZ, Parquet, Feather, HDF5, SVMlight, .mtx")
    parser.add_argument("store", metavar="STORE", help="where to build: mmap:///path, pmem:///path, or a plain path (mmap)")
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="COL|FILE",
        help="column (name or index) or file with the response; repeatable; ./FILE forces a file (default: no target)",
    )
    parser.add_argument("--rows", choices=("observations", "features"), default="observations", help="what a row of SRC is")
    parser.add_argument("--dtype", choices=STORE_DTYPES, default="float32", help="element type of the exact matrix")
    parser.add_argument("--missing", choices=MISSING_POLICIES, default="error", help="how to treat missing values")
    parser.add_argument("--tier", choices=TIERS, default="int8", help="keep an int8 copy that makes passes cheaper, or none")
    parser.add_argument("--id", metavar="COL", help="column that names the observations; not a feature (default: none)")
    parser.add_argument(
        "--drop", action="append", default=[], metavar="COL", help="column (or pattern) to leave out; repeatable (default: none)"
    )
    parser.add_argument("--dataset", metavar="NAME", help="which array of an HDF5 or NPZ file (default: the only one, or X)")
    add_replace_argument(parser)
    parser.add_argument(
        "--shards",
        metavar="N",
        help="build N shards and their manifest in the directory STORE (or relative sizes: 2,1,1; default: one store)",
    )
    add_json_argument(parser)
    add_progress_argument(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ingest and print the report."""
    options = {
        "targets": arguments.target,
        "rows": arguments.rows,
        "dtype": arguments.dtype,
        "missing": arguments.missing,
        "id_column": arguments.id,
        "drop": arguments.drop,
        "tier": arguments.tier,
        "replace": arguments.replace,
        "dataset": arguments.dataset,
    }
    if arguments.store.startswith("dram:"):
        raise StoreURLError(
            f"{arguments.store} would not outlive this command: build the store at a path, then use select --load dram"
        )
    place = arguments.store
    with terminating_cleanly(), byte_progress("ingest", arguments.progress) as progress:
        if arguments.shards is not None:
            into = shard_counts(arguments.shards)
            report, manifest = ingest_shards(arguments.source, arguments.store, into, progress=progress, **options)
            place = f"cluster://{urllib.parse.quote(str(manifest))}"
        elif is_remote(arguments.store):
            with connected(arguments) as client:
                report = client.ingest(arguments.source, progress=progress, **options)
        else:
            report = ingest(arguments.source, arguments.store, progress=progress, **options)
    if arguments.json:
        print(json.dumps(asdict(report)))
    else:
        for line in report.summary:
            print(clean(line, longest=None))
        print(f"next: fastomp select {place} --k 10")
    return 0
