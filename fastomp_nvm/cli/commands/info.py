"""``fastomp info STORE``: contents of a store and durability of its medium."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.table import Table

from fastomp_nvm.cli.arguments import add_connection_arguments, add_json_argument, add_ray_argument, add_store_argument, connected
from fastomp_nvm.cli.columns import print_columns
from fastomp_nvm.cli.output import clean, human_bytes
from fastomp_nvm.cli.screen import Screen
from fastomp_nvm.errors import InputError
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.stores.describe import describe
from fastomp_nvm.stores.open import open_store
from fastomp_nvm.stores.reports import ColumnReport

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_store_argument(parser)
    parser.add_argument(
        "--columns",
        nargs="?",
        const="*",
        metavar="PATTERN",
        help="list the columns of the table (those that match a pattern): type, missing cells, labels, values (default: a summary)",
    )
    add_ray_argument(parser)
    add_json_argument(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the facts."""
    if is_remote(arguments.store):
        with connected(arguments) as client:
            facts = client.info(columns=arguments.columns)
    else:
        with open_store(arguments.store) as store:
            facts = describe(store, arguments.columns)
    if arguments.json:
        print(json.dumps(facts))
        return 0
    if arguments.columns is not None:
        columns = [ColumnReport(**{**column, "examples": tuple(column["examples"])}) for column in facts["columns"]]
        if not columns:
            raise InputError(f"no column of {arguments.store} matches {arguments.columns!r}: try --columns without a pattern")
        print_columns(columns)
        for column in columns[:200]:
            if column.advice:
                print(clean(f"column {column.name!r} {column.advice}", None))
        return 0
    table = Table(show_header=False, box=None, pad_edge=False)
    safety = {"none": "does not survive this process", "process": "survives a crash of the process", "power": "survives power loss"}
    rows = {
        "store": clean(facts["url"], 200),
        "medium": f"{facts['medium']}{' (emulated)' if facts['emulated'] else ''}: {facts['detail']}",
        "durability": f"{facts['durability']} ({safety[facts['durability']]})",
        "features": f"{facts['n_features']:,}"
        + (f" in {facts['n_columns']:,} columns" if facts["n_columns"] != facts["n_features"] else ""),
        "observations": f"{facts['n_obs']:,}",
        "matrix": f"{facts['dtype']}, {human_bytes(facts['bytes'])} in {facts['blocks']:,} block{'s' * (facts['blocks'] != 1)}",
        "tier": f"{facts['tier']}, {human_bytes(facts['tier_bytes'])}" if facts.get("tier_bytes") else "none",
        "constant columns": f"{facts['constant_columns']:,} (never selected)",
        "targets": ", ".join(
            clean(name) + (f" (classes {', '.join(map(clean, target['classes'][:4]))})" if target["classes"] else "")
            for name, target in facts["targets"].items()
        )
        or "none",
        **({"identifiers": _identifiers(facts["identifiers"])} if facts.get("identifiers") else {}),
        "first features": ", ".join(clean(name, 24) for name in facts["features"][:8])
        + (f" and {facts['n_features'] - 8:,} more (--columns lists all)" if facts["n_features"] > 8 else ""),
        "fingerprint": facts["fingerprint"],
        "reads": f"unchecked: {clean(reason, None)}"
        if (reason := facts.get("unchecked"))
        else "columns are compared with their checksums when they are first read",
    }
    for place, shard in enumerate(facts.get("shards", ())):
        first, last = shard["features"]
        rows[f"shard {place}"] = f"features {first:,} to {last - 1:,} at {clean(shard['url'], 200)}"
    for name, text in rows.items():
        table.add_row(f"{name} ", text)
    Screen().print(table, soft_wrap=True)
    return 0


def _identifiers(found: dict[str, Any]) -> str:
    """Return the identifiers in words."""
    column = "" if found["column"] is None else f"column {clean(found['column'])}: "
    repeated = f" ({found['repeated']:,} repeated)" if found["repeated"] else ""
    return f"{column}{', '.join(clean(text, 24) for text in found['first'])}, ...{repeated}"
