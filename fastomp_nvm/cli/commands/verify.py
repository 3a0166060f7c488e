"""``fastomp verify``: check every block of a store against its checksum, or the proof of a verified selection against its data."""

from __future__ import annotations

import argparse
import contextlib
import os

from fastomp_nvm.cli.analyses import only_selection
from fastomp_nvm.cli.arguments import add_connection_arguments, add_ray_argument, add_threads_argument, connected, open_local
from fastomp_nvm.cli.output import add_progress_argument, byte_progress, clean, human_bytes, run_progress
from fastomp_nvm.errors import InputError, RequestError
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.runs.directory import names
from fastomp_nvm.runs.verify import verify
from fastomp_nvm.selection.recheck import Verification
from fastomp_nvm.stores.verification import StoreVerification

__all__ = ["add_arguments", "run", "show"]


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
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Verify the store and print its size, or the proof and print what holds."""
    name = arguments.store
    if os.path.isfile(name) or name in names():
        if os.path.isdir(name):
            raise RequestError(f"{name!r} is a run and a store: write ./{name} for the store, or rename one of them")
        if arguments.add_checksums:
            raise RequestError(f"--add-checksums is for a store, and {name!r} is a run or a file: name the store")
        return _verify_proof(name, arguments)
    if arguments.of is not None and is_remote(arguments.of):
        return _verify_proof(name, arguments)
    if arguments.of is not None:
        raise RequestError(f"--store is for a run or a file, and there is none called {name!r}: 'fastomp runs' lists the runs")
    if is_remote(name):
        return _verify_remotely(arguments)
    with open_local(name) as store, byte_progress("verify", arguments.progress) as progress:
        if arguments.add_checksums:
            store.add_checksums(progress)
        else:
            store.verify(progress)
        _print_verified(StoreVerification.of(store), added=arguments.add_checksums)
    return 0


def _verify_remotely(arguments: argparse.Namespace) -> int:
    """Have a server verify a store."""
    if arguments.add_checksums:
        raise InputError(f"--add-checksums changes a store, and {arguments.store} is on a server: run it where the store is")
    _refuse_threads(arguments)
    with byte_progress("verify", arguments.progress) as progress, connected(arguments) as client:
        arguments.job = client.submit_analysis("verify")  # Ctrl-C names it
        found = client.fetch(arguments.job, observer=lambda step: progress(step.bytes_read, round(step.bytes_read / step.share)))
    show(found)
    return 0


def show(found: object) -> int:
    """Print what a verification on a server found; return the exit code."""
    if isinstance(found, StoreVerification):
        _print_verified(found)
        return 0
    assert isinstance(found, Verification)
    print(clean(found.sentence, None))
    return 0 if found.holds else 1


def _print_verified(found: StoreVerification, *, added: bool = False) -> None:
    """Print that a store is whole."""
    done = f"; selections do not compare them: {found.unchecked}" if found.unchecked else ""
    done = "; added one per column" if added else done
    print(f"all {found.blocks:,} blocks ({human_bytes(found.bytes)}) match their checksums{clean(done, None)}")


def _refuse_threads(arguments: argparse.Namespace) -> None:
    """Refuse settings of this machine for a store on a server."""
    if arguments.threads is not None:
        raise InputError("--threads is for stores on this machine, and this one is on a server: leave it out")


def _verify_proof(name: str, arguments: argparse.Namespace) -> int:
    """Check the proof of a run, or of a selection in a file, again."""
    with contextlib.ExitStack() as stack:
        observer = stack.enter_context(run_progress("verify", arguments.progress))
        if arguments.of is not None and is_remote(arguments.of):
            _refuse_threads(arguments)
            client = stack.enter_context(connected(arguments, arguments.of))
            here = os.path.isfile(name) or name in names()
            return show(client.verify_proof(name if here else only_selection(name, client), observer=observer))
        store = None if arguments.of is None else stack.enter_context(open_local(arguments.of))
        return show(verify(name, store, threads=arguments.threads, observer=observer))
