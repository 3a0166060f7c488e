"""``fastomp doctor``: optional libraries and devices of this machine, and how to get missing ones."""

from __future__ import annotations

import argparse
import ctypes.util
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
import scipy
from rich.table import Table

from fastomp_nvm import native
from fastomp_nvm.cli.arguments import add_json_argument
from fastomp_nvm.cli.output import human_bytes
from fastomp_nvm.cli.screen import Screen
from fastomp_nvm.errors import how_to_install
from fastomp_nvm.matrix import kernels

__all__ = ["Finding", "add_arguments", "examine", "run"]

_COMPILER = "install a C compiler, then reinstall fastomp-nvm"


@dataclass(frozen=True, slots=True)
class Finding:
    """One library or device: whether it is present, details, how to get it."""

    name: str
    present: bool
    seen: str
    remedy: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Examine and print."""
    findings = examine()
    if arguments.json:
        print(json.dumps({finding.name: asdict(finding) for finding in findings}))
        return 0
    table = Table(box=None, pad_edge=False)
    for title in ("", "what", "found", "to get it"):
        table.add_column(title, overflow="fold")
    for finding in findings:
        table.add_row("yes" if finding.present else "no", finding.name, finding.seen, "" if finding.present else finding.remedy)
    Screen().print(table)
    return 0


def examine() -> list[Finding]:
    """Return the findings."""
    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0))
    findings = [
        Finding("python", True, f"{platform.python_version()} with numpy {np.__version__}, scipy {scipy.__version__}"),
        Finding("machine", True, f"{cores} cores, {human_bytes(memory.total)} memory, {human_bytes(memory.available)} available"),
        _memory_limit(),
        *_kernels(),
        *_compiled(),
        _dax(),
        _libpmem(),
        _package("pyarrow", "Parquet and Feather files, the pool server"),
        _package("h5py", "HDF5 files"),
        _package("pandas", "DataFrames"),
        _package("sklearn", "the estimator and Lasso"),
        _package("matplotlib", "plots of the benchmarks"),
        _package("ray", "selections over shards on many machines"),
        _package("shtab", "completion of commands and options in a shell"),
        _border("pymm", "shelf", "build it from the sources of IBM's pymm; the package of that name on PyPI is another program"),
        _border("mcas", "Session", "build it from the sources of IBM's MCAS; it is not on PyPI"),
    ]
    return findings


def _kernels() -> list[Finding]:
    """Return the sweep kernels."""
    chosen = kernels.kernel().id
    found = []
    for name, seen in kernels.available().items():
        present = seen.startswith((name, "c-"))
        text = f"{seen}{', in use' if seen == chosen else ''}"
        found.append(Finding(f"kernel {name}", present, text, _COMPILER))
    return found


def _compiled() -> list[Finding]:
    """Return the compiled parts; Python computes the same without them, slower."""
    parts = {
        "extension": (bool(native.extension), "sweeps, inner iterations, GLM fits, reads of single columns, the server's guard"),
    }
    return [
        Finding(f"compiled {name}", built, f"{'built' if built else 'not built'} ({purpose})", _COMPILER)
        for name, (built, purpose) in parts.items()
    ]


def _memory_limit() -> Finding:
    """Return the memory limit of the cgroup of this process."""
    for version, path in (("v2", "/sys/fs/cgroup/memory.max"), ("v1", "/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        limit = None if text == "max" or int(text) > 1 << 60 else int(text)
        seen = f"cgroup {version}: {'no limit set' if limit is None else human_bytes(limit)}"
        return Finding("memory limit", True, seen)
    return Finding("memory limit", False, "no cgroup memory controller", "mount one, to benchmark data larger than memory")


def _dax() -> Finding:
    """Look for a file system mounted with DAX."""
    mounts = Path("/proc/mounts")
    lines = mounts.read_text().splitlines() if mounts.exists() else []
    found = [words[1] for words in map(str.split, lines) if len(words) > 3 and "dax" in words[3].replace("=", ",").split(",")]
    remedy = "needs persistent memory (Optane, NVDIMM) mounted with -o dax; pmem: URLs are emulated without it"
    return Finding("DAX file system", bool(found), ", ".join(found) or "none mounted", remedy)


def _libpmem() -> Finding:
    """Look for libpmem."""
    name = ctypes.util.find_library("pmem")
    return Finding("libpmem", name is not None, name or "not found", "Debian: apt-get install libpmem1 (only real DAX needs it)")


def _package(module: str, purpose: str) -> Finding:
    """Look for an importable package without importing it."""
    found = importlib.util.find_spec(module) is not None
    if not found:
        return Finding(module, False, f"not installed ({purpose})", how_to_install(module))
    try:
        version = importlib.metadata.version("scikit-learn" if module == "sklearn" else module)
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    return Finding(module, True, f"{version} ({purpose})")


def _border(module: str, attribute: str, remedy: str) -> Finding:
    """Look for a package whose name belongs to another package on PyPI."""
    if importlib.util.find_spec(module) is None:
        return Finding(module, False, "not installed", remedy)
    # Importing the real ones prints and may load native code that aborts: import in a child process.
    script = f"import {module}, sys; sys.exit(0 if hasattr({module}, {attribute!r}) else 3)"
    command = [sys.executable, "-c", script]
    try:
        code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60, check=False).returncode
    except subprocess.TimeoutExpired:
        return Finding(module, False, "its import hangs", remedy)
    if code == 0:
        return Finding(module, True, "installed, the real one")
    return Finding(module, False, "another package of that name" if code == 3 else "installed, but it does not import", remedy)
