"""``fastomp info STORE``: contents of a store and durability of its medium."""

from __future__ import annotations

import argparse
import json

from rich.table import Table

from fastomp_nvm.cli.arguments import add_connection_arguments, add_json_argument, add_ray_argument, add_store_argument, connected
from fastomp_nvm.cli.output import clean, human_bytes
from fastomp_nvm.cli.screen import Screen
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.stores.describe import describe
from fastomp_nvm.stores.open import open_store

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_store_argument(parser)
    add_ray_argument(parser)
    add_json_argument(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the facts."""
    if is_remote(arguments.store):
        with connected(arguments) as client:
            facts = client.info()
    else:
        with open_store(arguments.store) as store:
            facts = describe(store)
    if arguments.json:
        print(json.dumps(facts))
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
        "matrix": f"{facts['dtype']}, {human_bytes(facts['bytes'])} in {facts['blocks']:,} blocks",
        "tier": f"{facts['tier']}, {human_bytes(facts['tier_bytes'])}" if facts.get("tier_bytes") else "none",
        "constant columns": f"{facts['constant_columns']:,} (never selected)",
        "targets": ", ".join(
            clean(name) + (f" (classes {', '.join(map(clean, target['classes'][:4]))})" if target["classes"] else "")
            for name, target in facts["targets"].items()
        )
        or "none",
        "first features": ", ".join(clean(name, 24) for name in facts["features"][:8]),
        "fingerprint": facts["fingerprint"],
    }
    for place, shard in enumerate(facts.get("shards", ())):
        first, last = shard["features"]
        rows[f"shard {place}"] = f"features {first:,} to {last - 1:,} at {clean(shard['url'], 200)}"
    for name, text in rows.items():
        table.add_row(f"{name} ", text)
    Screen().print(table, soft_wrap=True)
    return 0
