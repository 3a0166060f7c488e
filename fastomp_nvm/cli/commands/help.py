"""``fastomp help [COMMAND|constraints]``: the commands by task, the help of one, or an example of each constraint."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import MappingProxyType

from fastomp_nvm.cli.main import COMMANDS, command_parser
from fastomp_nvm.errors import RequestError, near

__all__ = ["GROUPS", "add_arguments", "constraint_examples", "overview", "run"]

#: Task -> the commands for it.
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "build and look at stores": ("ingest", "info", "names", "verify", "shard"),
        "select features": ("select", "path", "grid", "cv", "stability", "check-constraint", "plan"),
        "runs and results": ("runs", "resume", "cancel", "forget", "predict", "export", "report"),
        "servers": ("serve", "token", "list", "delete", "ado"),
        "this program": ("help", "demo", "doctor", "completion", "bench"),
    }
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("topic", nargs="*", metavar="TOPIC", help="a command, or constraints (default: all commands by task)")


def run(arguments: argparse.Namespace) -> int:
    """Print the help."""
    if not arguments.topic:
        print(overview())
    elif arguments.topic == ["constraints"]:
        print(constraint_examples())
    else:
        name, *rest = arguments.topic
        if name not in COMMANDS:
            raise RequestError(f"there is no command {name!r}{near(name, [*COMMANDS, 'constraints'])}: 'fastomp help' lists them")
        command_parser(name).descend(rest).print_help()
    return 0


def overview() -> str:
    """Return the commands grouped by task."""
    lines = ["usage: fastomp COMMAND ...", "", "Feature selection under constraints, where the data lives.", "", "first steps:"]
    lines += ["  fastomp ingest TABLE.csv STORE --target COLUMN", "  fastomp select STORE --k 20"]
    width = max(map(len, COMMANDS)) + 2
    for task, commands in GROUPS.items():
        lines += ["", f"{task}:", *(f"  {name:<{width}}{COMMANDS[name][1]}" for name in commands)]
    lines += ["", "'fastomp help COMMAND' explains a command, 'fastomp help constraints' shows"]
    lines += ["constraint files, 'fastomp --version' prints the release."]
    lines += ["Exit codes: 0 done, 1 failed, 2 bad input, 3 the constraint cannot be satisfied."]
    return "\n".join(lines)


def constraint_examples() -> str:
    """Return the meaning and an example of each family of constraints, as they are in the published schema."""
    import textwrap

    import yaml

    from fastomp_nvm.constraints.written.description import schema

    lines = ["# A constraint file holds one constraint in YAML:"]
    lines += ["#   fastomp select STORE --constraint FILE.yaml", "#   fastomp check-constraint FILE.yaml STORE"]
    lines += ["# Names of features may be shell patterns; tables may be CSV files beside it."]
    for family, described in schema()["$defs"]["constraint"]["properties"].items():
        lines += ["", *textwrap.wrap(f"{family}: {described['description']}", 78, initial_indent="# ", subsequent_indent="# ")]
        example = described["examples"][0]
        flow = None if isinstance(example, (dict, list)) else False  # None: the innermost lists and mappings on one line
        lines.append(yaml.safe_dump({family: example}, sort_keys=False, default_flow_style=flow, width=76).rstrip())
    return "\n".join(lines)
