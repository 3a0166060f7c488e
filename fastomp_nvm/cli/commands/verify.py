"""``fastomp verify``: check every block of a store against its checksum, or the proof of a verified selection against its data."""

from __future__ import annotations

import argparse
import contextlib
import os

import numpy as np

from fastomp_nvm.cli.arguments import add_ray_argument, add_threads_argument, open_local
from fastomp_nvm.cli.output import add_progress_argument, byte_progress, clean, human_bytes, run_progress
from fastomp_nvm.errors import RequestError
from fastomp_nvm.runs.directory import names
from fastomp_nvm.runs.verify import verify

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "store",
        metavar="STORE|RUN",
        help="store URL or path: its checksums; a finished run, a file of 'select --json' or a saved model: its proof, in one pass",
    )
    parser.add_argument(
        "--add-checksums",
        action="store_true",
        help="add a checksum per column to a store of an older release, which selections then compare (default: only verify)",
    )
    parser.add_argument("--store", dest="of", metavar="STORE", help="store of a selection in a file (default: that of the run)")
    add_threads_argument(parser)
    add_ray_argument(parser)
    add_progress_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Verify the store and print its size, or the proof and print what holds."""
    name = arguments.store
    if os.path.isfile(name) or name in names():
        if os.path.isdir(name):
            raise RequestError(f"{name!r} is a run and a store: write ./{name} for the store, or rename one of them")
        if arguments.add_checksums:
            raise RequestError(f"--add-checksums is for a store, and {name!r} is a run or a file: name the store")
        return _verify_proof(name, arguments)
    if arguments.of is not None:
        raise RequestError(f"--store is for a run or a file, and there is none called {name!r}: 'fastomp runs' lists the runs")
    if name.startswith("mcas://"):
        return _verify_there(name, arguments)
    with open_local(name) as store:
        with byte_progress("verify", arguments.progress) as progress:
            (store.add_checksums if arguments.add_checksums else store.verify)(progress)
        blocks, size = len(store.layout.blocks) - 1, store.matrix.nbytes
        advice = "" if arguments.add_checksums or not store.unchecked else f"; selections do not compare them: {store.unchecked}"
    done = "; added one per column" if arguments.add_checksums else advice
    print(f"all {blocks:,} blocks ({human_bytes(size)}) match their checksums{clean(done, None)}")
    return 0


def _verify_there(url: str, arguments: argparse.Namespace) -> int:
    """Have an MCAS server verify a store."""
    from fastomp_nvm.remote.client import connect

    if arguments.add_checksums:
        raise RequestError(f"--add-checksums is for a store of this machine, and {url} is on a server: put the store again")
    with connect(url) as client:
        client.verify()
        facts = client.info()
    size = facts["n_columns"] * facts["n_obs"] * np.dtype(facts["dtype"]).itemsize
    print(f"all columns ({human_bytes(size)}) match their checksums")
    return 0


def _verify_proof(name: str, arguments: argparse.Namespace) -> int:
    """Check the proof of a run, or of a selection in a file, again."""
    with contextlib.ExitStack() as stack:
        observer = stack.enter_context(run_progress("verify", arguments.progress))
        store = None if arguments.of is None else stack.enter_context(open_local(arguments.of))
        found = verify(name, store, threads=arguments.threads, observer=observer)
    print(clean(found.sentence, None))
    return 0 if found.holds else 1
