"""The operator's commands for MCAS, and the files of a deployment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy

from ado_plugin.mcas.configuration import cores_of, server_configuration
from ado_plugin.mcas.session import McasSession
from fastomp_nvm.cli.main import main
from fastomp_nvm.errors import InputError
from fastomp_nvm.matrix.kernels import kernel

ROOT = Path(__file__).parents[2]
DOUBLES = ROOT / "tests" / "doubles"
sys.path.append(str(DOUBLES))

from running_mcas import RunningMcas  # noqa: E402

sys.path.remove(str(DOUBLES))


@pytest.fixture(scope="module", autouse=True)
def doubles_in_reach() -> Iterator[None]:
    """Let the children of a session find the doubles, for these tests alone: elsewhere they would pass for the real modules."""
    sys.path.append(str(DOUBLES))
    yield
    sys.path.remove(str(DOUBLES))


@pytest.fixture
def mcas_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a server double and return the address of a pool."""
    monkeypatch.setenv("MCAS_DOUBLE_TIMEOUT", "3")
    monkeypatch.setenv("FASTOMP_MCAS_POOL_BYTES", str(64 << 20))
    server = RunningMcas(tmp_path / "mcas")
    yield server.url
    server.kill()


def test_a_configuration_is_the_one_upstream_reads(tmp_path, capsys) -> None:
    """The JSON has upstream's names, with defaults filled in."""
    described = tmp_path / "server.yaml"
    described.write_text("ado_path: /opt/mcas/bin/ado\nprovider: sockets\nshards:\n  - {port: 12000, pool_path: /tmp/p}\n")
    assert main(["ado", "config", str(described)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "shards": [
            {
                "core": 0,
                "port": 12000,
                "addr": "127.0.0.1",
                "net": "lo",
                "default_backend": "hstore",
                "ado_plugins": ["libpersonality-python.so"],
                "ado_cores": "1",
                "dax_config": [{"path": "/tmp/p", "addr": "0x9000000000"}],
            }
        ],
        "ado_path": "/opt/mcas/bin/ado",
        "net_providers": "sockets",
    }
    assert main(["ado", "config", str(described), "--out", str(tmp_path / "server.json")]) == 0
    assert json.loads((tmp_path / "server.json").read_text())["shards"][0]["port"] == 12000
    assert main(["ado", "config", str(tmp_path / "absent.yaml")]) == 2


@pytest.mark.parametrize(
    "described",
    [
        None,
        {"shards": [{}]},
        {"ado_path": "a", "shards": []},
        {"ado_path": "a", "shards": [{}], "provider": "tcp"},
        {"ado_path": "a", "shards": [{"backend": "rocksdb"}]},
        {"ado_path": "a", "shards": [{"port": "11911"}]},
        {"ado_path": "a", "shards": [{"core": True}]},
        {"ado_path": "a", "shards": [{"ado_cores": "one"}]},
        {"ado_path": "a", "shards": [{"ado_cores": "3-1"}]},
        {"ado_path": "a", "shards": [{"colour": 1}]},
        {"ado_path": "a", "shards": [{}], "colour": 1},
    ],
)
def test_a_wrong_description_is_refused(described) -> None:
    """A field that is missing, unknown or of the wrong type is named, and no configuration is written."""
    with pytest.raises(InputError):
        server_configuration(described)


def test_mapstore_has_no_device() -> None:
    """A shard that keeps nothing names no directory."""
    shard = server_configuration({"ado_path": "a", "shards": [{"backend": "mapstore"}]})["shards"][0]
    assert shard["default_backend"] == "mapstore"
    assert "dax_config" not in shard


@pytest.mark.parametrize(("text", "cores"), [("1", [1]), ("0-2,5", [0, 1, 2, 5]), ("0:3,7", [0, 1, 2, 7])])
def test_ranges_of_cores_are_read_as_upstream_reads_them(text, cores) -> None:
    """A range is first and last, or first and count."""
    assert cores_of(text) == cores


@pytest.mark.crash
def test_the_check_proves_a_working_server(mcas_url, capsys) -> None:
    """Put, invoke, resume, endurance and delete pass, the software is the same on both sides, and each reports its observation."""
    assert main(["ado", "check", mcas_url, "--json"]) == 0
    findings = {each["step"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(findings) == ["connect", "put", "invoke", "software", "resume", "endurance", "delete"]
    assert {each["verdict"] for each in findings.values()} == {"ok"}
    assert "unaligned, a view" in findings["invoke"]["detail"]
    assert f"numpy {np.__version__}, scipy {scipy.__version__}" in findings["software"]["detail"]
    assert "same bits" in findings["resume"]["detail"]


@pytest.mark.crash
def test_the_check_explains_other_bits(tmp_path, monkeypatch, capsys) -> None:
    """A server whose Python computes with another kernel works; the check shows both sides and names what differs."""
    monkeypatch.setenv("FASTOMP_MCAS_POOL_BYTES", str(64 << 20))
    monkeypatch.setenv("FASTOMP_KERNEL", "numpy")
    server = RunningMcas(tmp_path / "mcas")
    monkeypatch.delenv("FASTOMP_KERNEL")
    here = kernel().id
    try:
        assert main(["ado", "check", server.url, "--json"]) == 0
    finally:
        server.kill()
    software, resume = (
        each for each in map(json.loads, capsys.readouterr().out.splitlines()) if each["step"] in ("software", "resume")
    )
    if here.startswith("numpy"):
        pytest.skip("this machine has one kernel")
    assert software["verdict"] == "note"
    assert "(numpy" in software["detail"].partition("; here ")[0]
    assert f"({here})" in software["detail"].partition("; here ")[2]
    assert software["detail"].endswith("because of kernel")
    assert "same bits" in resume["detail"] or resume["detail"].endswith("explained by kernel")


@pytest.mark.crash
def test_an_empty_reply_is_explained_by_numpy(mcas_url, monkeypatch, capsys) -> None:
    """A personality made for another numpy replies with nothing: the check names that cause, and no hang at the start."""
    monkeypatch.setattr(McasSession, "invoke", lambda *_: b"")
    assert main(["ado", "check", mcas_url]) == 2
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "FAILED" in line)
    assert "headers of another major version of numpy" in line
    assert "setarch" not in line


@pytest.mark.crash
def test_the_check_names_a_defect_by_its_symptom(tmp_path, monkeypatch, capsys) -> None:
    """An ADO that dies of upstream's reference-count fault, and a server that does not exist, get different messages."""
    monkeypatch.setenv("MCAS_DOUBLE_TIMEOUT", "10")  # each death of the ADO costs this much
    monkeypatch.setenv("FASTOMP_MCAS_POOL_BYTES", str(64 << 20))
    server = RunningMcas(tmp_path / "mcas", dies_after=40)
    try:
        assert main(["ado", "check", server.url]) == 2
    finally:
        server.kill()
    printed = capsys.readouterr().out.splitlines()
    assert any(line.startswith("endurance") and "FAILED" in line and "reference-count fault" in line for line in printed)
    assert any(line.startswith("delete") and " ok " in line for line in printed)
    assert main(["ado", "check", "mcas://127.0.0.1:1/p", "--timeout", "1"]) == 2
    printed = capsys.readouterr().out
    assert printed.startswith("connect ")
    assert "FASTOMP_MCAS_DEVICE" in printed


@pytest.mark.parametrize(
    "url", ["grpc://127.0.0.1:1/lab", "grpc+tls://127.0.0.1:1/lab", "mcas://127.0.0.1:1", "mcas://127.0.0.1:1/lab/key"]
)
def test_the_check_is_for_mcas_alone(url, capsys) -> None:
    """Addresses of other servers, and of anything but a pool, are refused before anything is put there."""
    assert main(["ado", "check", url]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "mcas://host:port/pool" in told.err


def test_a_missing_client_module_has_no_other_cause(monkeypatch, capsys) -> None:
    """Where this machine lacks upstream's module the check says so, and does not suspect the server."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(DOUBLES)])
    assert main(["ado", "check", "mcas://127.0.0.1:1/p"]) == 2
    printed = capsys.readouterr().out
    assert "cannot be imported" in printed
    assert "known cause" not in printed


@pytest.mark.slow
def test_the_install_script_makes_a_server_that_starts(tmp_path) -> None:
    """Into a fresh prefix, without a network: the command is there and says its version."""
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "PIP_ARGS": "--no-index --no-build-isolation --no-deps",
        "VENV_ARGS": "--system-site-packages",
    }
    # A virtual environment made by one does not see its packages: name them.
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".git", ".venv*", "build", "*.egg-info", "__pycache__", "tests", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, source, ignore=ignored)
    command = [str(source / "deploy" / "install.sh"), str(tmp_path / "prefix"), ""]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fastomp ")
    assert (tmp_path / "prefix" / "bin" / "fastomp").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_the_unit_is_sound(tmp_path) -> None:
    """Nothing is wrong with the unit in the eyes of systemd, given the executable it names."""
    text = (ROOT / "deploy" / "fastomp.service").read_text().replace("/opt/fastomp/bin/fastomp", "/bin/true")
    unit = tmp_path / "fastomp.service"
    unit.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_the_container_only_calls_the_install_script() -> None:
    """The container file builds nothing by itself, and says that CI does not build it."""
    text = (ROOT / "deploy" / "Containerfile").read_text()
    assert "Not built in CI" in text
    assert "/src/deploy/install.sh" in text
    assert "pip" not in text
