"""The command ``fastomp``: parse arguments, call the functions of the package, print.

Each subcommand is a module of :mod:`fastomp_nvm.cli.commands` with ``add_arguments(parser)`` and ``run(arguments) -> int``,
imported only when it is called. Errors are one line on stderr; exit code 2 for bad input, 1 for a failure at run time, 3 for
infeasible.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from fastomp_nvm.errors import DataError, FastompError
from fastomp_nvm.registry import Lazy
from fastomp_nvm.version import __version__

__all__ = ["COMMANDS", "main"]

#: Subcommand -> (module, one line of help).
COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ingest": ("storage_backends.commands.ingest", "build a store from a file"),
        "info": ("fastomp_nvm.cli.commands.info", "show the contents of a store"),
        "shard": ("storage_backends.commands.shard", "cut a store into shards for a cluster"),
        "verify": ("fastomp_nvm.cli.commands.verify", "check every block of a store against its checksum"),
        "select": ("fastomp_nvm.cli.commands.select", "select features from a store"),
        "grid": ("fastomp_nvm.cli.commands.grid", "select for every combination of parameters in shared scans"),
        "cv": ("fastomp_nvm.cli.commands.cv", "choose how many features to select by cross-validation in shared scans"),
        "stability": (
            "fastomp_nvm.cli.commands.stability",
            "count how often each feature is selected on subsamples, in shared scans",
        ),
        "check-constraint": ("fastomp_nvm.cli.commands.check_constraint", "read a constraint file against a store and test it"),
        "serve": ("ado_plugin.commands.serve", "serve pools of stores, so that selections run next to the data"),
        "ado": ("ado_plugin.commands.ado", "set up and check a real MCAS server"),
        "delete": ("fastomp_nvm.cli.commands.delete", "delete a store from a pool of a server"),
        "list": ("fastomp_nvm.cli.commands.list", "list the pools of a server, or the stores of a pool"),
        "runs": ("fastomp_nvm.cli.commands.runs", "list the durable runs with their progress, here or on a server"),
        "resume": ("fastomp_nvm.cli.commands.resume", "continue a durable run where it stopped, or print its result"),
        "cancel": ("fastomp_nvm.cli.commands.cancel", "end a job on a server"),
        "forget": ("fastomp_nvm.cli.commands.forget", "remove a durable run of this machine with its state and its result"),
        "predict": ("fastomp_nvm.cli.commands.predict", "predict new rows with the model of a run or of 'select --save'"),
        "export": ("fastomp_nvm.cli.commands.export", "write the selected columns of a run to a file"),
        "demo": ("storage_backends.commands.demo", "make a data set, select under a fairness constraint, show the costs"),
        "plan": (
            "fastomp_nvm.cli.commands.plan",
            "predict passes, bytes, memory and time of a selection on a cluster, and the bottleneck",
        ),
        "bench": ("benchmarks.command", "run a benchmark; figures are ratios measured in one run"),
        "doctor": (
            "fastomp_nvm.cli.commands.doctor",
            "list optional libraries and devices, and how to get missing ones",
        ),
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before pyarrow is imported; failures are errors of ours
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names that the terminal cannot show
    words = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in words if not word.startswith("-")), None)
    try:
        parser = _parser(command)
    except FastompError as error:  # the command needs a package that is not installed
        return _complain(error, error.exit_code, "--debug" in words)
    arguments = parser.parse_args(words)
    if arguments.command is None:
        parser.print_help()
        return 0
    if getattr(arguments, "ray", None):
        os.environ["FASTOMP_RAY"] = arguments.ray  # read when a cluster:// store is opened
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except FastompError as error:
        return _complain(error, error.exit_code, arguments.debug)
    except KeyboardInterrupt as error:
        return _complain("interrupted", 130, arguments.debug, error)
    except BrokenPipeError:
        # The reader of the output has ended (fastomp ... | head).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError as error:
        return _complain("not enough memory on this machine", 1, arguments.debug, error)
    except OSError as error:
        hint = ": free some space and try again" if error.errno == errno.ENOSPC else ""
        return _complain(f"{error}{hint}", 1, arguments.debug, error)
    except Exception as error:
        what = f"{type(error).__name__}: {error} (unexpected: run with --debug for the traceback)"
        return _complain(what, 1, arguments.debug, error)


def _complain(error: object, code: int, debug: bool, cause: BaseException | None = None) -> int:
    """Print one line and return ``code``; with ``--debug`` raise instead."""
    raised = error if isinstance(error, BaseException) else cause
    if debug and raised is not None:
        raise raised
    from fastomp_nvm.cli.output import clean

    print(f"fastomp: {clean(' '.join(str(error).split()), longest=None)}", file=sys.stderr)
    for problem in error.problems if isinstance(error, DataError) else ():
        print(f"  {clean(problem, longest=None)}", file=sys.stderr)
    return code


def _parser(command: str | None) -> argparse.ArgumentParser:
    """Return the parser, with the arguments of ``command`` alone filled in."""
    parser = argparse.ArgumentParser(prog="fastomp", description="Feature selection under constraints, where the data lives.")
    parser.add_argument("--version", action="version", version=f"fastomp {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        # argparse expands % in help texts, not in descriptions
        child = subparsers.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        child.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if name == command:
            Lazy[Callable[[argparse.ArgumentParser], None]](f"{module}:add_arguments").load()(child)
            child.set_defaults(run=Lazy[Callable[[argparse.Namespace], int]](f"{module}:run").load())
    return parser
