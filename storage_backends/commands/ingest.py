"""``fastomp ingest SRC... STORE``: build a store from files, or show what was understood of them."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import urllib.parse
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from fastomp_nvm.cli.arguments import add_connection_arguments, add_json_argument, add_replace_argument, connected, shard_counts
from fastomp_nvm.cli.columns import print_columns
from fastomp_nvm.cli.output import add_progress_argument, byte_progress, clean
from fastomp_nvm.cli.screen import Screen
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.errors import DataError, InputError, StoreURLError
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.selection.automatic import choose_objective
from fastomp_nvm.stores.contract import MISSING_POLICIES, STORE_DTYPES, TIERS
from fastomp_nvm.stores.ingest_options import IngestFields
from fastomp_nvm.stores.open import open_store
from fastomp_nvm.stores.reports import IngestReport
from storage_backends.build.ingest import ingest
from storage_backends.build.sharding import ingest_shards
from storage_backends.readers import READERS
from storage_backends.readers.sources import local_files

__all__ = ["add_arguments", "run"]

_K = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "fastomp ingest SRC... STORE [options]"
    _allow_options_between(parser)
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="SRC... STORE",
        help="files (CSV, TSV, also .gz; NPY, NPZ, Parquet, Feather, HDF5, SVMlight, .mtx), joined row by row; a quoted pattern, "
        "a .zip with one file, or - for standard input; then where to build: mmap:///path, pmem:///path, or a plain path (mmap)",
    )
    add("--dry-run", action="store_true", help="show what was understood of every column and build nothing; STORE is not needed")
    add(
        "--target",
        action="append",
        default=[],
        metavar="COL|FILE",
        help="column (name or index) or file with the response; repeatable; ./FILE forces a file (default: no target)",
    )
    add("--id", metavar="COL", help="column of identifiers, kept with the store; not a feature (default: none)")
    add("--drop", action="append", default=[], metavar="COL", help="column (or pattern) to leave out; repeatable (default: none)")
    types = parser.add_argument_group("types of columns (names or patterns; repeatable; several with commas)")
    types.add_argument(
        "--categorical",
        action="append",
        default=[],
        metavar="COL",
        help="one indicator per label, also of numbers (default: text columns)",
    )
    types.add_argument(
        "--numeric",
        action="append",
        default=[],
        metavar="COL",
        help="numbers; signs and units around them are dropped: 12%% is 12, <5 is 5, 3.5 kg is 3.5 (default: plain numbers)",
    )
    types.add_argument(
        "--date",
        action="append",
        default=[],
        metavar="COL[:FORMAT]",
        help="days since 1970-01-01; ISO 8601 unless there is a format such as when:%%d.%%m.%%Y (default: none)",
    )
    types.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="NAME=COL,COL",
        help="columns (or a pattern) that are selected as one feature, such as indicators in the source (default: none)",
    )
    types.add_argument("--schema", metavar="FILE.yaml", help="read the type of every column from a file (default: by its cells)")
    types.add_argument(
        "--schema-out", metavar="FILE.yaml", help="write the type of every column to a file for --schema (default: none)"
    )
    cells = parser.add_argument_group("cells of text files")
    cells.add_argument(
        "--na-values",
        action="append",
        default=[],
        metavar="A,B",
        help="cells that are missing, besides NA, null, ?, -, . and the like (default: none)",
    )
    cells.add_argument(
        "--thousands", metavar="C", help="separator of thousands, such as a comma; currency signs are dropped, too (default: none)"
    )
    cells.add_argument("--decimal", metavar="C", help="decimal separator (default .)")
    cells.add_argument("--encoding", metavar="NAME", help="encoding of the text, such as latin-1 (default utf-8)")
    formats = [extension[1:] for extension in READERS]
    cells.add_argument(
        "--format",
        choices=formats,
        metavar="NAME",
        help=f"format in place of the extension: {', '.join(formats)} (default: by the extension; csv for -)",
    )
    add("--missing", choices=MISSING_POLICIES, help="how to treat missing values (default error, or as the schema file says)")
    add("--drop-missing-target", action="store_true", help="leave out rows with a missing target")
    add("--rows", choices=("observations", "features"), default="observations", help="what a row of SRC is (default observations)")
    add("--dtype", choices=STORE_DTYPES, default="float32", help="element type of the exact matrix (default float32)")
    add("--tier", choices=TIERS, default="int8", help="keep an int8 copy that makes passes cheaper (default), or none")
    add("--dataset", metavar="NAME", help="which array of an HDF5 or NPZ file (default: the only one, or X)")
    add_replace_argument(parser)
    add(
        "--shards",
        metavar="N",
        help="build N shards and their manifest in the directory STORE (or relative sizes: 2,1,1; default: one store)",
    )
    add_json_argument(parser)
    add_progress_argument(parser)
    add_connection_arguments(parser)


def _allow_options_between(parser: argparse.ArgumentParser) -> None:
    """Let options stand between the paths: argparse gives only the first run of words to an argument of several."""
    parse = parser.parse_known_args

    def parse_known_args(words: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, left = parse(words, namespace)
        found.paths += [word for word in left if word == "-" or not word.startswith("-")]
        return found, [word for word in left if word != "-" and word.startswith("-")]

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign,assignment]


def run(arguments: argparse.Namespace) -> int:
    """Ingest and print the report."""
    options: IngestFields = {
        "targets": arguments.target,
        "rows": arguments.rows,
        "dtype": arguments.dtype,
        "missing": arguments.missing,
        "id_column": arguments.id,
        "drop": arguments.drop,
        "tier": arguments.tier,
        "replace": arguments.replace,
        "dataset": arguments.dataset,
        "categorical": arguments.categorical,
        "numeric": arguments.numeric,
        "date": arguments.date,
        "na_values": [token for text in arguments.na_values for token in text.split(",")],
        "thousands": arguments.thousands,
        "decimal": arguments.decimal,
        "encoding": arguments.encoding,
        "format": arguments.format,
        "group": arguments.group,
        "drop_missing_target": arguments.drop_missing_target,
        "schema": arguments.schema,
        "schema_out": arguments.schema_out,
        "dry_run": arguments.dry_run,
    }
    sources, store = _places(arguments)
    if arguments.dry_run:
        with terminating_cleanly(), byte_progress("read", arguments.progress) as progress:
            report = ingest(sources, progress=progress, **options)
        return _show(report, sources, arguments)
    place = store
    if store.startswith("dram:"):
        raise StoreURLError(f"{store} would not outlive this command: build the store at a path, then use select --load dram")
    with terminating_cleanly(), byte_progress("ingest", arguments.progress) as progress:
        if arguments.shards is not None:
            into = shard_counts(arguments.shards)
            report, manifest = ingest_shards(sources, store, into, progress=progress, **options)
            place = f"cluster://{urllib.parse.quote(str(manifest))}"
        elif is_remote(store):
            # A lost upload is sent again, and standard input can be read only once.
            arguments.store = store
            with local_files(sources, arguments.format) as files, connected(arguments) as client:
                report = client.ingest(files, progress=progress, **options)
        else:
            report = ingest(sources, store, progress=progress, **options)
    if arguments.json:
        print(json.dumps(_as_json(report, with_columns=False)))
    else:
        _print(report.summary)
        for line in _next(report, place):
            print(clean(line, longest=None))
    return 0


def _places(arguments: argparse.Namespace) -> tuple[list[str], str]:
    """Return the sources and the store that the positional arguments name."""
    paths: list[str] = arguments.paths
    if not arguments.dry_run:
        if len(paths) < 2:
            raise InputError(f"{paths[0]} is the only path: name the source and then the store, or ask for --dry-run")
        return paths[:-1], paths[-1]
    last = paths[-1]
    is_store = len(paths) > 1 and (
        is_remote(last) or not (os.path.isfile(last) or any(mark in last for mark in "*?[") or last == "-")
    )
    return (paths[:-1], last) if is_store else (paths, "")


def _show(report: IngestReport, sources: list[str], arguments: argparse.Namespace) -> int:
    """Print a dry run; the exit code tells whether an ingest would be refused."""
    if arguments.json:
        print(json.dumps(_as_json(report, with_columns=True)))
    else:
        print_columns(report.columns)
        _print((f"{report.n_obs:,} observations; nothing was built", *report.notes, *report.warnings))
        if arguments.schema_out is not None:
            print(f"types of the columns: {clean(arguments.schema_out, longest=None)}")
        if not report.problems:
            words = [word for word in sys.argv[1:] if word != "--dry-run"] if sys.argv[1:2] == ["ingest"] else ["ingest", *sources]
            print(f"next: fastomp {shlex.join(words)}{'' if len(_places(arguments)[1]) else ' STORE'}")
    for line in () if arguments.json else report.problems:
        print(f"refused: {clean(line, longest=None)}", file=sys.stderr)
    return 2 if report.problems else 0


def _print(lines: Iterable[str]) -> None:
    """Print sentences, wrapped at words in a terminal."""
    screen = Screen()
    for line in lines:
        screen.print(clean(line, longest=None))


def _as_json(report: IngestReport, *, with_columns: bool) -> dict[str, Any]:
    """Return a report in JSON terms."""
    found = asdict(report)
    if not with_columns:
        del found["columns"], found["problems"]
        found["warnings"] = list(report.warnings)
    return found


def _next(report: IngestReport, place: str) -> list[str]:
    """Return a command that works on the new store, after a sentence where it needs one."""
    where, k = shlex.quote(place), min(_K, report.n_features)
    if not report.targets:
        return [f"next: add --target COLUMN to this command, or name it later: fastomp select {where} --k {k} --target COLUMN"]
    if report.classes and report.classes[0] > 2:
        found = f"target {report.targets[0]!r} has {report.classes[0]} classes; a selection needs two, or numbers"
        return [found, f"next: fastomp info {where} --columns"]
    command = f"next: fastomp select {where} --k {k}"
    if is_remote(place) or place.startswith("cluster:"):
        return [command]
    with open_store(place) as store:
        name, target = next(iter(store.targets.items()))
    try:
        objective, _ = choose_objective(name, target.values, target.classes)
    except DataError:
        return [
            f"target {name!r} holds few distinct whole numbers: quantities are linear, counts poisson, and classes must be two",
            f"{command} --objective linear",
        ]
    return [f"{command} --objective logistic" if objective == "logistic" else command]
