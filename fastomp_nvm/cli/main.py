"""The command ``fastomp``: parse arguments, call the functions of the package, print.

Each subcommand is a module of :mod:`fastomp_nvm.cli.commands` with ``add_arguments(parser)`` and ``run(arguments) -> int``,
imported only when it is called. Errors are one line on stderr, usage errors two; exit code 2 for bad input, 1 for a failure at run
time, 3 for infeasible.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fastomp_nvm.cli.parser import Parser
from fastomp_nvm.errors import DataError, FastompError, near
from fastomp_nvm.registry import Lazy
from fastomp_nvm.version import __version__

__all__ = ["COMMANDS", "command_parser", "main", "whole_parser"]

#: Subcommand -> (module, one line of help).
COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ingest": ("storage_backends.commands.ingest", "build a store from a file"),
        "info": ("fastomp_nvm.cli.commands.info", "show the contents of a store"),
        "names": ("fastomp_nvm.cli.commands.names", "list the features of a store, all or by pattern"),
        "shard": ("storage_backends.commands.shard", "cut a store into shards for a cluster"),
        "verify": ("fastomp_nvm.cli.commands.verify", "check the blocks of a store, or the proof of a selection"),
        "select": ("fastomp_nvm.cli.commands.select", "select features from a store"),
        "grid": ("fastomp_nvm.cli.commands.grid", "select for every combination of parameters at once"),
        "path": ("fastomp_nvm.cli.commands.path", "select for every number of features up to k at once"),
        "cv": ("fastomp_nvm.cli.commands.cv", "choose the number of features by cross-validation"),
        "stability": (
            "fastomp_nvm.cli.commands.stability",
            "count how often each feature is selected on subsamples",
        ),
        "check-constraint": ("fastomp_nvm.cli.commands.check_constraint", "read a constraint file against a store and test it"),
        "serve": ("ado_plugin.commands.serve", "serve stores, so that selections run next to the data"),
        "token": ("ado_plugin.commands.token", "make, list and revoke tokens of a server"),
        "ado": ("ado_plugin.commands.ado", "set up and check a real MCAS server"),
        "delete": ("fastomp_nvm.cli.commands.delete", "delete a store from a pool of a server"),
        "list": ("fastomp_nvm.cli.commands.list", "list the pools of a server, or the stores of a pool"),
        "runs": ("fastomp_nvm.cli.commands.runs", "list durable runs and their progress, here or on a server"),
        "resume": ("fastomp_nvm.cli.commands.resume", "continue a durable run, or print its result"),
        "cancel": ("fastomp_nvm.cli.commands.cancel", "end a job on a server"),
        "forget": ("fastomp_nvm.cli.commands.forget", "remove a run with its result, here or on a server"),
        "predict": ("fastomp_nvm.cli.commands.predict", "predict new rows with a model of a run or of --save"),
        "export": ("fastomp_nvm.cli.commands.export", "write the selected columns of a run to a file"),
        "report": ("fastomp_nvm.cli.commands.report", "write the answer of a run as one HTML file"),
        "demo": ("storage_backends.commands.demo", "make a data set and select under a fairness constraint"),
        "plan": (
            "fastomp_nvm.cli.commands.plan",
            "predict passes, bytes, memory and time of a selection",
        ),
        "bench": ("benchmarks.command", "run a benchmark; figures are ratios measured in one run"),
        "doctor": (
            "fastomp_nvm.cli.commands.doctor",
            "list optional libraries and devices, and how to get them",
        ),
        "completion": ("fastomp_nvm.cli.commands.completion", "print a completion script for bash, zsh or fish"),
        "help": ("fastomp_nvm.cli.commands.help", "explain the commands, or the constraint files"),
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
    if command is None and "--version" not in words:
        if unknown := [word for word in words if word not in ("-h", "--help")]:
            _root().refuse_unknown(unknown)
        from fastomp_nvm.cli.commands.help import overview

        print(overview())
        return 0
    if command is not None and command not in COMMANDS:
        later = next((word for word in words if word in COMMANDS), None)
        _root().error(f"there is no command {command!r}{f': {later} comes first' if later else near(command, COMMANDS)}")
    try:
        parser = _parser([command] if command else [])
    except FastompError as error:  # the command needs a package that is not installed
        return _complain(error, error.exit_code, "--debug" in words)
    except KeyboardInterrupt as error:  # while it was imported
        return _complain("interrupted before anything was done; the same command starts again", 130, "--debug" in words, error)
    words = parser.descend(words).joined(words)
    parser.descend(words).refuse_misspelt(words)
    arguments, unknown = parser.parse_known_args(words)
    parser = parser.descend(words)
    if unknown:
        parser.refuse_unknown(unknown)
    if getattr(arguments, "ray", None):
        os.environ["FASTOMP_RAY"] = arguments.ray  # read when a cluster:// store is opened
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except FastompError as error:
        return _complain(_with_options(str(error), parser), error.exit_code, arguments.debug, error)
    except KeyboardInterrupt as error:
        from fastomp_nvm.cli.termination import after_interrupt

        return _complain(after_interrupt(arguments), 130, arguments.debug, error)
    except BrokenPipeError:
        # The reader of the output has ended (fastomp ... | head).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError as error:
        return _complain("not enough memory on this machine", 1, arguments.debug, error)
    except OSError as error:
        hint = ": free some space and try again" if error.errno == errno.ENOSPC else ""
        what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        return _complain(f"{what}{hint}", 1, arguments.debug, error)
    except Exception as error:
        what = f"{type(error).__name__}: {error} (unexpected: run with --debug for the traceback)"
        return _complain(what, 1, arguments.debug, error)


def _complain(error: object, code: int, debug: bool, cause: BaseException | None = None) -> int:
    """Print one line and return ``code``; with ``--debug`` raise instead."""
    raised = error if isinstance(error, BaseException) else cause
    if debug and raised is not None:
        raise raised
    from fastomp_nvm.selection.text import clean

    print(f"fastomp: {clean(' '.join(str(error).split()), longest=None)}", file=sys.stderr)
    for problem in raised.problems if isinstance(raised, DataError) else ():
        print(f"  {clean(problem, longest=None)}", file=sys.stderr)
    return code


def _with_options(text: str, parser: Parser) -> str:
    """Return a message with the names of parameters (``k is 0``, ``raise gather_bytes``) replaced by the options of the command."""

    def option(found: re.Match[str]) -> str:
        spelt = f"--{found[0].replace('_', '-')}"
        return spelt if spelt in parser.options else found[0]

    return re.sub(r"^[a-z_]+(?= is )|(?<![\w'\"/.-])[a-z]+(?:_[a-z]+)+(?![\w'\"/.-])", option, text)


def command_parser(name: str) -> Parser:
    """Return the parser of one command."""
    return _parser([name]).descend([name])


def whole_parser() -> Parser:
    """Return the parser with the arguments of all commands, for completion; a command that needs a missing package has none."""
    return _parser(COMMANDS, lenient=True)


def _root() -> Parser:
    """Return the parser without commands."""
    parser = Parser(prog="fastomp", description="Feature selection under constraints, where the data lives.")
    parser.add_argument("--version", action="version", version=f"fastomp {__version__}", help="print the release and exit")
    return parser


def _parser(filled: Iterable[str], lenient: bool = False) -> Parser:
    """Return the parser, with the arguments of the commands ``filled`` alone."""
    parser, filled = _root(), set(filled)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        # argparse expands % in help texts, not in descriptions
        child = subparsers.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name in filled:
            try:
                _command(module, "add_arguments").load()(child)
            except FastompError:
                if not lenient:
                    raise
            child.set_defaults(run=_command(module, "run").load())
        for each in (child, *child.actions()):
            # actions of a command leave the value of the command as it is
            default = False if each is child else argparse.SUPPRESS
            each.add_argument("--debug", action="store_true", default=default, help="show the traceback of an error")
    return parser


def _command(module: str, name: str) -> Lazy[Callable[..., Any]]:
    """Return a function of a command's module, in the package beside this one.

    ``python -m`` searches the working directory first, which may hold a package of its own called ``benchmarks``.
    """
    package = module.partition(".")[0]
    if package not in sys.modules:
        spec = PathFinder.find_spec(package, [str(Path(__file__).parents[2])])
        if spec is not None and spec.loader is not None:
            sys.modules[package] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[package])
    return Lazy[Callable[..., Any]](f"{module}:{name}")
