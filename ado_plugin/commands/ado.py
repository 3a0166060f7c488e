"""``fastomp ado``: configure an MCAS server, install the plugin into its Python, and check a live server."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from ado_plugin.mcas import admin
from fastomp_nvm.cli.arguments import add_json_argument
from fastomp_nvm.cli.output import clean
from fastomp_nvm.errors import InputError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, help="what to do:")
    config = actions.add_parser(
        "config", help="write a server configuration from a YAML file", description="Write a server configuration as JSON."
    )
    config.add_argument("description", type=Path, metavar="FILE.yaml", help="ado_path, provider, shards; see deploy/MCAS.md")
    config.add_argument("--out", type=Path, metavar="F", help="where to write it (default: standard output)")
    install = actions.add_parser(
        "install",
        help="make the plugin importable in the server's Python",
        description="Make the plugin importable in the server's Python.",
    )
    install.add_argument("--python", required=True, metavar="EXE", help="the interpreter that the server embeds")
    install.add_argument("--method", choices=("pth", "pip"), default="pth", help="a path file (default), or pip")
    check = actions.add_parser(
        "check",
        help="try put, invoke, resume and delete on a live server",
        description="Try put, invoke, resume and delete on a live server.",
    )
    check.add_argument("url", metavar="mcas://HOST:PORT/POOL", help="a store fastomp_check is put there and deleted again")
    check.add_argument("--timeout", type=float, default=45.0, metavar="S", help="seconds to wait for an answer (default 45)")
    add_json_argument(check)


def run(arguments: argparse.Namespace) -> int:
    """Carry out one of the actions."""
    return {"config": _config, "install": _install, "check": _check}[arguments.action](arguments)


def _config(arguments: argparse.Namespace) -> int:
    """Write a server configuration."""
    import yaml

    from fastomp_nvm.bounded_yaml import load_yaml

    try:
        described = load_yaml(arguments.description.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{arguments.description} cannot be read: {' '.join(str(error).split())}") from error
    configuration = admin.server_configuration(described)
    text = json.dumps(configuration, indent=2) + "\n"
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        try:
            arguments.out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{arguments.out} cannot be written: {error.strerror}") from error
    return 0


def _install(arguments: argparse.Namespace) -> int:
    """Install the plugin and print the versions of the other Python."""
    found = admin.install(arguments.python, arguments.method)
    print(f"Python {found['python']} with numpy {found['numpy']} finds fastomp {found['fastomp']} at {found['plugin']}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    """Print the result of each step; return 1 if one failed."""
    passed = True
    for finding in admin.check(arguments.url, arguments.timeout):
        passed &= finding.passed
        if arguments.json:
            print(json.dumps(asdict(finding)), flush=True)
        else:
            verdict = "ok" if finding.passed else "FAILED"
            print(f"{finding.step:<10} {verdict:<7} {finding.seconds:6.2f} s  {clean(finding.detail, 600)}", flush=True)
    return 0 if passed else 1
