"""The virtual environment for the Python of an MCAS server, built from an ordinary installation or a source tree."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from fastomp_nvm import __version__
from fastomp_nvm.cli.main import main

ROOT = Path(__file__).parents[2]
OURS = np.__version__.partition(".")[0]
SITES = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
missing = [tool for tool in ("build", "setuptools", "wheel", "pip") if importlib.util.find_spec(tool) is None]
builds = pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")

#: For pip: what is not there cannot be had, and setuptools is taken from where it is.
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_NO_BUILD_ISOLATION": "0", "PIP_CONFIG_FILE": os.devnull}


def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command that does not see the source tree."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd="/", env={**given, **(environment or {})}, capture_output=True, text=True, timeout=280, check=False
    )


def environment_with_dependencies(folder: Path) -> Path:
    """Make a virtual environment that finds the dependencies of the tests and nothing of ours; return its packages."""
    done = run(sys.executable, "-m", "venv", folder)
    assert done.returncode == 0, done.stderr
    packages = next(folder.glob("lib/python*/site-packages"))
    # Files in a folder on a .pth line are found; .pth files in it are not read, so that an editable installation stays unseen.
    for bundled in packages.glob("setuptools*"):  # too old for a build without isolation
        shutil.rmtree(bundled)
    (packages / "dependencies.pth").write_text("\n".join(SITES))
    return packages


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from a copy of the source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(".*", "dist", "__pycache__", "*.so", "*.egg-info", "tests")
    shutil.copytree(ROOT, folder / "tree", ignore=ignored)
    shutil.rmtree(folder / "tree" / "build", ignore_errors=True)
    done = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, folder / "tree")
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def ordinary(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel as a user would, and return the command."""
    folder = tmp_path_factory.mktemp("ordinary") / "venv"
    environment_with_dependencies(folder)
    pip = (folder / "bin" / "python", "-m", "pip", "install", "--no-deps", "--force-reinstall", wheel)
    assert run(*pip, environment=OFFLINE).returncode == 0
    return folder / "bin" / "fastomp"


@pytest.mark.slow
@builds
def test_an_ordinary_installation_installs_itself(ordinary, tmp_path) -> None:
    """From site-packages, without a network: same files, the command, compiled kernels, a stub that answers, the start command."""
    packages = environment_with_dependencies(tmp_path / "venv")
    done = run(ordinary, "ado", "install", "--venv", tmp_path / "venv", "--numpy", OURS, environment=OFFLINE)
    assert done.returncode == 0, done.stderr
    assert f"fastomp {__version__} with kernels " in done.stdout
    assert f'PATH={tmp_path / "venv" / "bin"}:"$PATH" FABRIC_SERVER_ADDR=127.0.0.1 setarch -R MCAS_PREFIX/bin/mcas' in done.stdout
    theirs = next(ordinary.parents[1].glob("lib/python*/site-packages"))
    ours = {
        path.relative_to(packages): path.read_bytes()
        for path in (packages / "fastomp_nvm").rglob("*")
        if path.suffix != ".pyc"
        if path.is_file()
    }
    assert ours == {
        path.relative_to(theirs): path.read_bytes()
        for path in (theirs / "fastomp_nvm").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert run(tmp_path / "venv" / "bin" / "fastomp", "--version").stdout == f"fastomp {__version__}\n"
    listed = run(tmp_path / "venv" / "bin" / "python", "-m", "pip", "show", "--files", "fastomp-nvm")
    assert "ado_plugin/mcas/stub.py" in listed.stdout
    if list((theirs / "fastomp_nvm").rglob("_native*.so")):
        assert "ABSENT" not in done.stderr


@pytest.mark.slow
@builds
def test_absent_kernels_are_not_passed_over(wheel, ordinary, tmp_path) -> None:
    """What was built without a compiler is installed, with a warning that names the remedy."""
    bare = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(bare, "w") as less:
        for name in whole.namelist():
            if not name.endswith(".so"):
                less.writestr(name, whole.read(name))
    environment_with_dependencies(tmp_path / "venv")
    command = (ordinary, "ado", "install", "--venv", tmp_path / "venv", "--numpy", OURS, "--source", bare)
    done = run(*command, environment=OFFLINE)
    assert done.returncode == 0, done.stderr
    assert "WARNING: the compiled kernels are ABSENT" in done.stderr
    assert "C compiler" in done.stderr
    assert "with kernels numpy" in done.stdout


@pytest.mark.slow
@builds
def test_a_source_tree_installs_itself(tmp_path) -> None:
    """From the tree of the tests, which stays as it is; a second time it is installed anew."""
    packages = environment_with_dependencies(tmp_path / "venv")
    before = sorted(ROOT.glob("[a-z]*"))
    command = (sys.executable, "-m", "fastomp_nvm", "ado", "install", "--venv", tmp_path / "venv", "--numpy", OURS)
    found = {**OFFLINE, "PYTHONPATH": str(ROOT)}
    stub = Path("ado_plugin", "mcas", "stub.py")
    for _ in range(2):
        done = run(*command, environment=found)
        assert done.returncode == 0, done.stderr
        assert (packages / stub).read_bytes() == (ROOT / stub).read_bytes()
        (packages / stub).write_text("damaged")
    assert sorted(ROOT.glob("[a-z]*")) == before


@pytest.mark.slow
@builds
@pytest.mark.parametrize("major", ["1", "2"])
def test_a_new_environment_has_the_numpy_that_was_asked_for(ordinary, tmp_path, major) -> None:
    """From a package index: dependencies, and the major version of NumPy that the personality was compiled for."""
    download = (ordinary.parent / "python", "-m", "pip", "download", "--quiet", "--retries", "0", "--timeout", "15", "--no-deps")
    spec = "numpy<2" if major == "1" else "numpy>=2"
    for wanted in (spec, "scipy", "threadpoolctl"):
        if run(*download, "--only-binary", ":all:", "--dest", tmp_path / "downloaded", wanted).returncode:
            pytest.skip(f"no package index that can be reached has {wanted} for this Python")
    done = run(ordinary, "ado", "install", "--venv", tmp_path / "venv", "--numpy", major)
    assert done.returncode == 0, done.stderr
    assert f"numpy {major}." in done.stdout
    assert SITES[0] not in run(tmp_path / "venv" / "bin" / "python3", "-c", "import sys; print(sys.path)").stdout


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch, capsys) -> None:
    """Without the packages that it needs, or without a Python, no folder is left, and the reason is one sentence."""
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "venv"
    assert main(["ado", "install", "--venv", str(folder)]) == 1
    assert "cannot install with pip: " in capsys.readouterr().err
    assert main(["ado", "install", "--venv", str(folder), "--python", str(tmp_path / "python")]) == 1
    assert "cannot build a virtual environment" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_other_folders_are_left_alone(tmp_path, capsys) -> None:
    """A folder that is no virtual environment is refused, as are a wheel that is not there and a configuration that is none."""
    (tmp_path / "kept").write_text("data")
    assert main(["ado", "install", "--venv", str(tmp_path)]) == 2
    assert "is no virtual environment" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert main(["ado", "install", "--venv", str(tmp_path / "new"), "--server-config", str(tmp_path / "kept")]) == 2
    assert not (tmp_path / "new").exists()


def test_a_wheel_for_another_python_is_explained(tmp_path, capsys) -> None:
    """Pip's refusal comes with the way out."""
    environment_with_dependencies(tmp_path / "venv")
    foreign = tmp_path / f"fastomp_nvm-{__version__}-cp32-cp32-linux_x86_64.whl"
    foreign.write_bytes(b"")
    assert main(["ado", "install", "--venv", str(tmp_path / "venv"), "--source", str(foreign)]) == 1
    printed = capsys.readouterr().err
    assert "not a supported wheel" in printed
    assert "--source" in printed
