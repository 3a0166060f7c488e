"""``fastomp ado``: configure an MCAS server, build the environment of its Python, and check it before and after its start."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from ado_plugin.mcas.admin import check_server
from ado_plugin.mcas.configuration import read_configuration, server_configuration, server_program
from ado_plugin.mcas.environment import install, start_command
from ado_plugin.mcas.preflight import check_configuration
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
        help="build the virtual environment of the server's Python",
        description="Build or renew a virtual environment with this installation for the server's Python.",
    )
    install.add_argument("--venv", type=Path, required=True, metavar="DIR", help="the virtual environment of the server's Python")
    install.add_argument(
        "--python", metavar="EXE", help="the Python to build it from, of the version that the plugin embeds (default this one)"
    )
    install.add_argument(
        "--numpy", type=int, choices=(1, 2), help="the major version of numpy that the plugin was compiled for (default 2)"
    )
    install.add_argument(
        "--source", type=Path, metavar="PATH", help="what to install: a wheel or a source tree (default this installation)"
    )
    install.add_argument(
        "--server-config",
        type=Path,
        metavar="CONF",
        help="the server's configuration, for the start command (default placeholders)",
    )
    check = actions.add_parser(
        "check",
        help="check a server's configuration before its start, or a live server",
        description="Check a server's configuration before its start, or put, invoke, resume and delete on a live server.",
        epilog="Exit code: 0 if it can work, 2 if it cannot.",
    )
    check.add_argument(
        "target",
        metavar="CONF|mcas://HOST:PORT/POOL",
        help="the server's JSON; or a pool, where a store fastomp_check is put and deleted",
    )
    check.add_argument(
        "--venv", type=Path, metavar="DIR", help="the virtual environment of the server's Python (default the PATH as it is)"
    )
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
    configuration = server_configuration(described)
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
    """Build the environment, and print what is in it and how to start the server with it."""
    server, conf, address = "MCAS_PREFIX/bin/mcas", "SERVER.json", "127.0.0.1"
    if arguments.server_config is not None:
        configuration = read_configuration(arguments.server_config)
        server, conf = str(server_program(configuration)), str(arguments.server_config.absolute())
        address = configuration["shards"][0].get("addr", address)
    found = install(arguments.venv, arguments.python, arguments.numpy or 2, arguments.source)
    build = found["build"]
    print(f"{arguments.venv}: Python {found['python']}, numpy {build['numpy']}, scipy {build['scipy']}, {build['blas']}")
    print(f"fastomp {found['version']} with kernels {build['kernel']}; the shipped stub ran there and answered")
    if not found["extension"]:
        print(
            "WARNING: the compiled kernels are ABSENT there, and selections take longer: install a C compiler and the "
            "headers of that Python (Debian: gcc, python3-dev), then run this again",
            file=sys.stderr,
        )
    print(f"start the server with:\n  {start_command(arguments.venv, server, conf, address)}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    """Print the result of each step; return 2 if the server cannot work."""
    if "://" in arguments.target:
        findings = check_server(arguments.target, arguments.timeout)
    else:
        findings = check_configuration(Path(arguments.target), arguments.venv)
    failed = False
    for finding in findings:
        failed |= finding.verdict == "failed"
        if arguments.json:
            print(json.dumps(asdict(finding)), flush=True)
        else:
            verdict = "FAILED" if finding.verdict == "failed" else finding.verdict
            print(f"{finding.step:<13} {verdict:<7} {finding.seconds:6.2f} s  {clean(finding.detail, 900)}", flush=True)
    return 2 if failed else 0
