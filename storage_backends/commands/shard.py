"""``fastomp shard STORE --into N OUT``: cut a store into shards for a cluster."""

from __future__ import annotations

import argparse
import json
import urllib.parse

from fastomp_nvm.cli.arguments import add_json_argument, add_replace_argument, add_store_argument, shard_counts
from fastomp_nvm.cli.output import add_progress_argument, byte_progress
from fastomp_nvm.cli.termination import terminating_cleanly
from storage_backends.build.manifest import read_manifest
from storage_backends.build.sharding import cut

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_store_argument(parser)
    parser.add_argument("out", metavar="OUT", help="directory for shards and manifest: a path, mmap:///path or pmem:///path")
    parser.add_argument("--into", required=True, metavar="N", help="number of shards, or their relative sizes: 2,1,1")
    parser.add_argument("--pin", action="store_true", help="serve shard I only on machines started with the Ray resource shard-I")
    add_replace_argument(parser)
    add_json_argument(parser)
    add_progress_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Cut the store and print the URL of the shards."""
    with terminating_cleanly(), byte_progress("shard", arguments.progress) as progress:
        path = cut(
            arguments.store,
            arguments.out,
            shard_counts(arguments.into),
            pin=arguments.pin,
            replace_existing=arguments.replace,
            progress=progress,
        )
    manifest, url = read_manifest(path), f"cluster://{urllib.parse.quote(str(path))}"
    if arguments.json:
        shards = [{"url": shard.url, "features": list(shard.features)} for shard in manifest.shards]
        print(json.dumps({"url": url, "fingerprint": manifest.fingerprint, "shards": shards}))
        return 0
    for place, shard in enumerate(manifest.shards):
        print(f"shard {place}: features {shard.features[0]:,} to {shard.features[1] - 1:,}")
    print(f"next: fastomp select {url} --k 10")
    return 0
