"""The Python of an MCAS server: a virtual environment with this very installation, and a trial of the plugin in any interpreter.

An Active Data Object embeds libpython, which takes its packages from the ``python3`` found first on the server's PATH; a virtual
environment there is honoured. So a system's Python stays as it is, and a server as well when fastomp is upgraded.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from ado_plugin.mcas.message import stub_source
from fastomp_nvm.errors import InputError, UnavailableError, raise_error
from fastomp_nvm.version import __version__

__all__ = ["install", "server_environment", "start_command", "try_plugin"]

_PACKAGE = "fastomp-nvm"
_ROOT = Path(__file__).resolve().parents[2]
_NUMPY = {1: "numpy>=1.23.2,<2", 2: "numpy>=2,<3"}
_SECONDS = 1800.0
#: What a source tree needs to be built.
_SOURCES = ("fastomp_nvm", "storage_backends", "ado_plugin", "benchmarks", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")

#: Does with the shipped stub what the personality does: separate globals and locals, and only these names.
_TRIAL = """
import binascii, pickle, sys, types
import numpy
outer = {"__builtins__": __builtins__, "target": numpy.zeros(64, numpy.int8), "ado": types.SimpleNamespace(load=lambda key: None),
         "numpy": numpy, "pickle": pickle, "binascii": binascii}
inner = {}
call = "\\nresult = fastomp_slice(target, '{\\"operation\\": \\"ping\\"}')\\n"
exec(compile(sys.stdin.read() + call, "jitcode", "exec"), outer, inner)
print(inner["result"])
"""


def install(folder: Path, python: str | None = None, numpy: Literal[1, 2] = 2, source: Path | None = None) -> dict[str, Any]:
    """Build a virtual environment with this installation, or renew one; return what the plugin answers there.

    Parameters
    ----------
    folder : Path
        New, or a virtual environment; a failure leaves no new folder behind.
    python : str, optional
        The interpreter to build it from; the default is the one under this process.
    numpy : {1, 2}
        The major version whose headers the server's personality was compiled against.
    source : Path, optional
        A wheel or source tree to install instead of a copy of this installation, for a Python of another version.
    """
    created = not folder.exists()
    if not created and not (folder / "pyvenv.cfg").exists():
        raise InputError(f"{folder} exists and is no virtual environment: name a new folder")
    interpreter = os.path.join(_programs(folder), "python3")
    base: str = python or getattr(sys, "_base_executable", "") or sys.executable
    environment = server_environment(folder)
    try:
        if created:
            command = [os.path.abspath(base) if os.sep in base else base, "-m", "venv", str(folder.absolute())]
            _run(command, "build a virtual environment (Debian: apt-get install python3-venv)", environment)
        with _package(source) as package:
            pip = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, _NUMPY[numpy], package], "install with pip", environment)
            if not created:  # the same release may have other contents
                _run([*pip, "--force-reinstall", "--no-deps", package], "install with pip", environment)
        found = try_plugin(interpreter, environment)
        if found["version"] != __version__:
            raise InputError(f"{source} holds release {found['version']}, and clients of this one need {__version__} there")
    except BaseException:
        if created:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return found


def try_plugin(python: str, environment: dict[str, str]) -> dict[str, Any]:
    """Run the shipped stub in an interpreter, as the personality does; return what the plugin answers."""
    reply = _run([python, "-c", _TRIAL], "run the plugin", environment, stub_source()).splitlines()
    try:
        found = json.loads(reply[-1])
    except (IndexError, ValueError) as error:
        raise UnavailableError(f"{python} did not answer the plugin's trial: is it a Python?") from error
    if "error" in found:
        raise_error(found["error"])
    return dict(found)


def server_environment(folder: Path | None = None) -> dict[str, str]:
    """Return the environment in which ``start_command`` starts the server."""
    if folder is None:
        return dict(os.environ)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return {**kept, "PATH": f"{_programs(folder)}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def start_command(folder: Path | None, server: str, configuration: str, address: str) -> str:
    """Return the line for a shell that starts a server.

    Parameters
    ----------
    folder : Path or None
        The virtual environment whose Python the server shall find; None for the PATH as it is.
    server, configuration : str
        The program ``mcas`` and its configuration.
    address : str
        Where the control port shall listen.
    """
    python = "" if folder is None else f'-u PYTHONPATH -u PYTHONHOME PATH={shlex.quote(_programs(folder))}:"$PATH" '
    words = (f"FABRIC_SERVER_ADDR={address}", "setarch", "-R", server, "--config", configuration)
    return f"env {python}{shlex.join(words)}"


def _programs(folder: Path) -> str:
    """Return the folder of programs of a virtual environment."""
    return os.path.abspath(folder / "bin")


@contextlib.contextmanager
def _package(source: Path | None) -> Iterator[str]:
    """Yield what pip shall install: the given package, a copy of this source tree, or a wheel of this installation."""
    with tempfile.TemporaryDirectory(prefix="fastomp-") as work:
        if source is not None:
            if not source.exists():
                raise InputError(f"there is no {source}: name a wheel or a source tree")
            yield str(source.absolute())
        elif (_ROOT / "pyproject.toml").exists():
            tree = Path(work, "tree")
            tree.mkdir()
            for each in filter(Path.exists, (_ROOT / name for name in _SOURCES)):  # pip would build inside the tree
                if each.is_dir():
                    shutil.copytree(each, tree / each.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
                else:
                    shutil.copy(each, tree)
            yield str(tree)
        else:
            yield str(_wheel(Path(work)))


def _wheel(folder: Path) -> Path:
    """Write the wheel that this installation came from, put together from its files; return its path."""
    try:
        distribution = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(f"{_ROOT} is neither a source tree nor an installation by pip: name a wheel with --source") from error
    tags = [line.split()[1].split("-") for line in (distribution.read_text("WHEEL") or "").splitlines() if line.startswith("Tag:")]
    files = [each for each in distribution.files or () if ".." not in each.parts and "__pycache__" not in each.parts]
    information = next((each.parts[0] for each in files if each.parts[0].endswith(".dist-info")), None)
    if not tags or information is None or Path(str(distribution.locate_file(""))).resolve() != _ROOT:
        raise InputError(f"the installation in {_ROOT} was not made from a wheel: name a wheel or a source tree with --source")
    tag = "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))
    path = folder / f"{information.removesuffix('.dist-info')}-{tag}.whl"
    record = []
    with zipfile.ZipFile(path, "w") as archive:
        for each in files:
            if each.name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json") and each.parts[0] == information:
                continue
            archive.write(each.locate(), str(each))
            digest = f"{each.hash.mode}={each.hash.value}" if each.hash else ""
            record.append(f"{each},{digest},{each.size or ''}")
        archive.writestr(f"{information}/RECORD", "\n".join([*record, f"{information}/RECORD,,", ""]))
    return path


def _run(command: list[str], purpose: str, environment: dict[str, str], typed: str = "") -> str:
    """Run a command and return its output."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, cwd="/", env=environment, input=typed
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{command[0]} cannot {purpose}: {error}") from error
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = next((line for line in said if line.lower().startswith("error:")), said[-1] if said else "no reason given")
        hint = ": it has another version, name a wheel or a source tree with --source" if "not a supported wheel" in reason else ""
        raise UnavailableError(
            f"{command[0]} cannot {purpose}: {reason[6:].strip() if reason.lower().startswith('error:') else reason}{hint}"
        )
    return done.stdout
