"""Checks of an MCAS server's configuration before its start: each thing that cannot work is named, with what to do."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ado_plugin.mcas import preflight
from ado_plugin.mcas.plugin_file import read_plugin
from fastomp_nvm.cli.main import main
from fastomp_nvm.errors import InputError

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="not installed: a C compiler")

#: What the headers of each major version of NumPy compile into a personality.
IMPORTS = {
    0: "0",
    1: '"numpy.core._multiarray_umath"',
    2: '"numpy._core._multiarray_umath numpy.core._multiarray_umath"',
}
OURS = int(np.__version__.partition(".")[0])


def compiled(path: Path, code: str, *options: str) -> Path:
    """Compile a shared object."""
    subprocess.run(
        [str(COMPILER), "-shared", "-fPIC", "-o", str(path), "-xc", "-", "-xnone", *options], input=code, text=True, check=True
    )
    return path


def personality(path: Path, numpy: int = OURS, more: str = "", *options: str) -> Path:
    """Compile what passes for upstream's personality: it names NumPy as the headers of that version do."""
    return compiled(path, f"const char *imported = {IMPORTS[numpy]};\n{more}", *options)


Printed = Callable[[], tuple[int, dict[str, dict[str, Any]]]]


class Deployment:
    """A prefix with programs, a plugin and a Python, a directory for pools, and the configuration of a server."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "server.json"
        for name in ("bin", "lib", "pools", "path"):
            (folder / name).mkdir()
        for name in ("ado", "mcas"):
            shutil.copy("/bin/true", folder / "bin" / name)
        self.plugin = personality(folder / "lib" / "libpersonality-python.so")
        python = folder / "path" / "python3"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.shard: dict[str, Any] = {
            "core": 0,
            "port": self.port,
            "addr": "127.0.0.1",
            "net": "lo",
            "default_backend": "hstore",
            "dax_config": [{"path": str(folder / "pools"), "addr": "0x9000000000"}],
            "ado_plugins": [self.plugin.name],
            "ado_cores": "0",
        }
        self.server: dict[str, Any] = {"shards": [self.shard], "ado_path": str(folder / "bin" / "ado"), "net_providers": "sockets"}

    def write(self) -> str:
        """Write the configuration and return its path."""
        self.file.write_text(json.dumps(self.server))
        return str(self.file)


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """Return a deployment in which everything fits, with its Python first on the PATH."""
    made = Deployment(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, sys.path)]))
    monkeypatch.delenv("FABRIC_SERVER_ADDR", raising=False)
    return made


@pytest.fixture
def checked(deployment: Deployment, capsys: pytest.CaptureFixture[str]) -> Printed:
    """Return a function that checks the deployment and returns the exit code, and the worst finding of each step."""

    def run() -> tuple[int, dict[str, dict[str, Any]]]:
        code = main(["ado", "check", deployment.write(), "--json"])
        findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        findings.sort(key=lambda each: ("ok", "note", "failed").index(each["verdict"]))
        return code, {each["step"]: each for each in findings}

    return run


def test_a_sound_configuration_ends_with_the_start_command(deployment, checked) -> None:
    """Nothing fails, nothing is written, and the last line is the command that starts this server."""
    deployment.write()
    before = sorted(deployment.folder.rglob("*"))
    code, found = checked()
    assert code == 0
    assert not [each for each in found.values() if each["verdict"] == "failed"]
    command = found["start"]["detail"]
    assert command.startswith("env FABRIC_SERVER_ADDR=127.0.0.1 setarch -R ")
    assert command.endswith(f"{deployment.folder / 'bin' / 'mcas'} --config {deployment.file}")
    assert sorted(deployment.folder.rglob("*")) == before
    assert f"headers of numpy {OURS}" in found["plugin"]["detail"]
    assert f"numpy {np.__version__}" in found["python"]["detail"]
    assert "no pool yet" in found["pool"]["detail"]
    assert "FABRIC_SERVER_ADDR" in found["exposure"]["detail"]


#: By what is wrong: a change of the deployment, the step that fails, and what it says.
WRONG: dict[str, tuple[Callable[[Deployment], object], str, str]] = {
    "no ADO": (lambda made: Path(made.server["ado_path"]).unlink(), "program", "set ado_path"),
    "no server": (lambda made: (made.folder / "bin" / "mcas").unlink(), "program", "build upstream"),
    "no plugin": (lambda made: made.plugin.unlink(), "plugin", "LD_LIBRARY_PATH"),
    "text for a plugin": (lambda made: made.plugin.write_text("a text\n" * 99), "plugin", "not a shared object"),
    "half a plugin": (lambda made: os.truncate(made.plugin, 700), "plugin", "truncated"),
    "the declaration": (
        lambda made: personality(made.plugin, OURS, "void create_ndarray_header(void); void f(void) { create_ndarray_header(); }"),
        "plugin",
        "3 arguments",
    ),
    "a missing library": (
        lambda made: (
            compiled(made.folder / "libgone.so", "void gone(void) {}"),
            personality(made.plugin, OURS, "void gone(void); void f(void) { gone(); }", "-L", str(made.folder), "-lgone"),
        ),
        "plugin",
        "libgone.so => not found",
    ),
    "the path of libpython": (
        lambda made: personality(made.plugin, OURS, 'const char *opened = "/nowhere/lib64/libpython3.so";'),
        "libpython",
        "/nowhere/lib64/libpython3.so, which is not there",
    ),
    "another Python": (
        lambda made: (
            compiled(made.folder / "lib" / "libpython3.2.so.1.0", "void Py(void) {}", "-Wl,-soname,libpython3.2.so.1.0"),
            personality(
                made.plugin, OURS, "void Py(void); void f(void) { Py(); }", str(made.folder / "lib" / "libpython3.2.so.1.0")
            ),
        ),
        "python",
        "--python python3.2",
    ),
    "a Python without the package": (
        lambda made: (made.folder / "path" / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n'),
        "python",
        "fastomp ado install --venv DIR",
    ),
    "a core too many": (lambda made: made.shard.update(ado_cores="0-4000"), "cores", "does not exist"),
    "no range": (lambda made: made.shard.update(ado_cores="all"), "cores", "such as 1, 1-3"),
    "another machine's address": (lambda made: made.shard.update(addr="203.0.113.9"), "port", "no address of this machine"),
    "another provider's device": (lambda made: made.shard.update(net="mlx5_9"), "device", "no device mlx5_9 for sockets"),
    "no directory": (lambda made: (made.folder / "pools").rmdir(), "pool", "make the directory"),
    "no dax_config": (lambda made: made.shard.pop("dax_config"), "pool", "hstore needs one"),
    "one address twice": (
        lambda made: made.shard["dax_config"].append(made.shard["dax_config"][0]),
        "address",
        "each needs its own",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_work_is_named(case, deployment, checked) -> None:
    """Each mistake fails at its step with what to do, the exit code is 2, and no start command is printed."""
    change, step, said = WRONG[case]
    change(deployment)
    code, found = checked()
    assert code == 2
    assert found[step]["verdict"] == "failed"
    assert said in found[step]["detail"]
    assert "start" not in found


def test_headers_of_the_older_numpy_do_not_fit(deployment, checked) -> None:
    """Compiled for numpy 1 a plugin replies with nothing under a later one; for numpy 2 it fits both, without numpy all."""
    for headers in (0, 1, 2):
        personality(deployment.plugin, headers)
        code, found = checked()
        fits = headers != 1 or OURS == 1
        assert (code, "start" in found) == ((0, True) if fits else (2, False))
        if not fits:
            assert "replies are empty" in found["numpy"]["detail"]
            assert "--numpy 1" in found["numpy"]["detail"]


def test_a_port_in_use_is_named(deployment, checked) -> None:
    """Another server, or an orphan of an ended one, holds the port."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", deployment.port))
        other.listen()
        code, found = checked()
    assert code == 2
    assert f"127.0.0.1:{deployment.port} is in use" in found["port"]["detail"]


def test_mapstore_needs_the_kernel_module(deployment, checked, monkeypatch) -> None:
    """Without XPMEM no pool can be created; with it the contents still end with the server."""
    deployment.shard.update(default_backend="mapstore")
    del deployment.shard["dax_config"]
    exists = os.path.exists
    for loaded, verdict in ((False, "failed"), (True, "note")):
        monkeypatch.setattr(
            preflight.os.path, "exists", lambda path, is_there=loaded: is_there if path == "/dev/xpmem" else exists(path)
        )
        assert checked()[1]["pool"]["verdict"] == verdict


def test_several_pools_are_a_note(deployment, checked) -> None:
    """Pools are listed; more than one would be mapped over each other."""
    for name, hazard in (("lab", False), ("other", True)):
        (deployment.folder / "pools" / f"{name}.data").write_bytes(b"")
        code, found = checked()
        assert code == 0
        assert ("contents of another" in found["pool"]["detail"]) == hazard
    assert found["pool"]["verdict"] == "note"
    assert "pools lab, other; " in found["pool"]["detail"]


def test_other_networks_are_a_note(deployment, checked, monkeypatch) -> None:
    """A server that others can reach works, and the check says what they can do there."""
    monkeypatch.setenv("FABRIC_SERVER_ADDR", "127.0.0.1")
    assert checked()[1]["exposure"]["verdict"] == "ok"
    deployment.shard["addr"] = "0.0.0.0"
    code, found = checked()
    assert code == 0
    assert found["exposure"]["verdict"] == "note"
    assert "anybody can run Python" in found["exposure"]["detail"]


def test_the_environment_of_the_server_is_checked_by_name(deployment, capsys, tmp_path) -> None:
    """With --venv its Python is the one that is tried, without PYTHONPATH, and the start command puts it first."""
    folder = tmp_path / "its environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    assert main(["ado", "check", deployment.write(), "--venv", str(folder)]) == 2
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("python"))
    assert f"{folder}/bin/python3 cannot run the plugin" in line
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "ours.pth").write_text("\n".join([str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]))
    assert main(["ado", "check", deployment.write(), "--venv", str(folder)]) == 0
    assert f"env -u PYTHONPATH -u PYTHONHOME PATH='{folder}/bin':\"$PATH\" FABRIC" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a readable JSON file"),
        ("[]", "expected an object with ado_path"),
        ('{"ado_path": "a", "shards": []}', "has no shard"),
        ('{"ado_path": "a", "shards": [1]}', "is not an object"),
        ('{"ado_path": "a", "colour": 1, "shards": [SHARD]}', "colour, which the server does not know"),
        ('{"ado_path": "a", "shards": [SHARD, {"colour": 1}]}', "has no core"),
        (
            '{"ado_path": "a", "shards": [{"core": 0, "port": 1, "ado_plugins": ["p"], "ado_cores": "1", "colour": 2}]}',
            "colour of shard 0",
        ),
        ('{"ado_path": "a", "shards": [{"core": "0"}]}', "core of shard 0"),
        ('{"ado_path": "a", "shards": [{"core": 0, "port": 1, "ado_plugins": [], "ado_cores": "1"}]}', "has no ado_plugins"),
        (
            '{"ado_path": "a", "shards": [{"core": 0, "port": 1, "ado_plugins": ["p"], "ado_cores": "1", "dax_config": ["x"]}]}',
            "dax_config",
        ),
    ],
)
def test_what_the_server_would_not_read_is_refused(text, said, tmp_path, capsys) -> None:
    """A file that upstream's server would end at is one sentence, and no check follows."""
    path = tmp_path / "server.json"
    path.write_text(text.replace("SHARD", '{"core": 0, "port": 1, "ado_plugins": ["p"], "ado_cores": "1"}'))
    assert main(["ado", "check", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err


def test_an_absent_configuration_is_refused(capsys) -> None:
    """Neither a file nor an address."""
    assert main(["ado", "check", "lab"]) == 2
    assert "lab is not a readable JSON file" in capsys.readouterr().err


def test_a_shared_object_is_read_without_tools(tmp_path) -> None:
    """Linked libraries and their directories, as the linker was given them."""
    library = compiled(tmp_path / "libpython3.11.so.1.0", "void Py(void) {}", "-Wl,-soname,libpython3.11.so.1.0")
    made = personality(
        tmp_path / "p.so", 1, "void Py(void); void f(void) { Py(); }", str(library), f"-Wl,-rpath,$ORIGIN/more:{tmp_path}"
    )
    found = read_plugin(made)
    assert "libpython3.11.so.1.0" in found.needed
    assert found.directories[:2] == (f"{tmp_path}/more", str(tmp_path))
    assert (found.libpython, found.numpy, found.fixed_libpython) == ("3.11", 1, ())
    with pytest.raises(InputError, match="cannot be read"):
        read_plugin(tmp_path / "absent")
