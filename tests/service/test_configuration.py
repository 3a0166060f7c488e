"""A server's configuration file, its published schema, and what ``fastomp serve --check`` says of it.

``python -m tests.service.test_configuration`` writes the schema anew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import fastomp_nvm as fo
from ado_plugin.commands import configuration, serve
from ado_plugin.commands.configuration import read_configuration, schema, settings_of
from ado_plugin.service import preflight
from ado_plugin.service.certificates import validity
from fastomp_nvm.cli.main import main
from tests.service.running import ROOT, RunningServer, small_data
from tests.service.test_access import certificates, entry

__all__ = ["certificates"]

SCHEMA = Path(configuration.__file__).with_name("server.schema.json")


def table() -> argparse.ArgumentParser:
    """Return the options of a server."""
    parser = argparse.ArgumentParser(add_help=False)
    serve.declare(parser)
    return parser


def checked(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Return exit code, output and errors of ``fastomp serve --check``."""
    code = main(["serve", "--check", *map(str, words)])
    told = capsys.readouterr()
    return code, told.out, told.err


def written(path: Path, **settings: Any) -> Path:
    """Write a configuration."""
    path.write_text(yaml.safe_dump({key.replace("_", "-"): value for key, value in settings.items()}))
    return path


#: A value of each setting that differs from its default, as a file and as the command line have it.
OTHER = {
    "pools": "elsewhere",
    "listen": "127.0.0.1:0",
    "token-file": "tokens.yaml",
    "tls-cert": "cert.pem",
    "tls-key": "key.pem",
    "metrics": "127.0.0.1:0",
    "page": "127.0.0.1:0",
    "insecure": True,
    "quota": "5GB",
    "connections": 40,
    "threads": 3,
    "queue": 7,
    "user-queue": 6,
    "job-memory": "2GB",
    "job-seconds": 60.5,
    "job-work": "3TB",
    "upload-idle": 30,
    "drain": 0,
    "journal-from": "1MB",
}


def test_one_table_for_command_line_file_and_schema(tmp_path: Path) -> None:
    """Every option is a key of the file and of the published schema, and has the same value from either."""
    jsonschema = pytest.importorskip("jsonschema")
    published = json.loads(SCHEMA.read_text())
    assert published == schema(table()), "run python -m tests.service.test_configuration"
    assert set(OTHER) == set(settings_of(table())) == set(published["properties"])
    file = written(tmp_path / "server.yaml", **OTHER)
    jsonschema.Draft202012Validator(published).validate(OTHER)
    words: list[str] = []
    for key, value in OTHER.items():
        is_path = key in ("pools", "token-file", "tls-cert", "tls-key")
        words += [f"--{key}"] if value is True else [f"--{key}", str(tmp_path / str(value) if is_path else value)]
    assert read_configuration(file, table()) == vars(table().parse_args(words))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pools: p\nquotta: 5GB\n", r"server\.yaml:2: unknown key 'quotta' \(did you mean 'quota'\?\)"),
        ("pools: p\npools: q\n", "server.yaml:2: the key 'pools' is repeated"),
        ("queue: many\n", "server.yaml:1: found 'many', expected a whole number"),
        ("queue: '7'\n", "expected a whole number"),
        ("queue: 0\n", "server.yaml:1: 0 is out of range: expected a positive number"),
        ("drain: .nan\n", "expected"),
        ("job-seconds: 0\n", "0 is out of range: expected a positive number"),
        ("insecure: 1\n", "found '1', expected one of true, false"),
        ("quota: much\n", "server.yaml:1: 'much' is no size"),
        (f"quota: {'9' * 400}\n", "is no size"),
        ("listen: [a]\n", "found a list, expected a single value"),
        ("token-file:\n", "found nothing, expected a value"),
        ("- pools\n", "found a list, expected a mapping"),
        ("", "is empty"),
        ("pools: {\n", "this is not YAML"),
        ("[" * 25000, "nested more than"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(text: str, reason: str, tmp_path: Path, capsys: Any) -> None:
    """An unknown key, a wrong type, a number out of range or text that is no YAML ends the command with code 2 and its place."""
    file = tmp_path / "server.yaml"
    file.write_text(text)
    code, out, err = checked(capsys, "--config", file)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert re.search(reason, err), err


def test_no_file_no_setting(tmp_path: Path, capsys: Any) -> None:
    """A missing file and a missing place of the pools are said."""
    assert "cannot be read" in checked(capsys, "--config", tmp_path / "nowhere.yaml")[2]
    assert "missing: --pools" in checked(capsys, "--config", written(tmp_path / "server.yaml", queue=5))[2]
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in checked(capsys, "--config", tmp_path / "pipe")[2]


def test_a_server_runs_by_its_file_and_the_command_line_wins(tmp_path: Path) -> None:
    """Paths in the file are relative to the file; an option overrides its key."""
    (tmp_path / "settings").mkdir()
    tokens = tmp_path / "settings" / "tokens.yaml"
    tokens.touch(0o600)
    tokens.write_text(entry("ann", "admin"))
    file = written(tmp_path / "settings" / "server.yaml", pools="unused", token_file="tokens.yaml", quota="10kB", upload_idle=30)
    with RunningServer(tmp_path / "run", "--config", str(file), "--quota", "1GB") as running:  # it gives --pools and --listen too
        X, y = small_data()
        with running.connect("/lab/data", token="ann-token") as client:
            client.put(X, y)
            assert client.select(k=3).features
        assert running.stop() == 0
    assert (tmp_path / "run" / "pools" / "lab" / "data").is_dir()
    assert not (tmp_path / "settings" / "unused").exists()


def test_check_says_what_would_be_done_and_changes_nothing(tmp_path: Path, certificates: Path, capsys: Any) -> None:
    """Addresses, TLS, tokens, pools with their stores, disk, quota, limits and memory; nothing is made."""
    tokens = tmp_path / "tokens.yaml"
    tokens.touch(0o600)
    tokens.write_text(entry("ann", "admin") + entry("ron", "read", "lab, absent"))
    X, y = small_data()
    (tmp_path / "pools" / "lab").mkdir(parents=True)
    fo.create_store(f"mmap://{tmp_path}/pools/lab/data", X, y).close()
    before = sorted(path for path in tmp_path.rglob("*"))
    words = ("--pools", tmp_path / "pools", "--listen", "127.0.0.1:0", "--page", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    tls = ("--tls-cert", certificates / "cert.pem", "--tls-key", certificates / "key.pem")
    code, out, err = checked(capsys, *words, *tls, "--token-file", tokens, "--quota", "1GB", "--job-memory", "3GB")
    assert (code, err) == (0, "")
    facts = dict(line.split(maxsplit=1) for line in out.splitlines() if not line.startswith(("pool ", "one ")))
    assert facts["listen"].startswith("grpc+tls://127.0.0.1:0, free")
    assert facts["page"].startswith("https://127.0.0.1:0, free")
    assert facts["metrics"].startswith("http://127.0.0.1:0, free")
    assert re.search(r"valid from \d{4}-\d\d-\d\d until \d{4}-\d\d-\d\d$", facts["TLS"])
    assert facts["tokens"] == f"2 in {tokens}: 1 read, 1 admin"
    assert facts["pools"] == f"{tmp_path / 'pools'} on pmem, writable"
    assert re.search(r"^pool lab +1 stores, [0-9.]+ kB, 0% of its quota$", out, re.MULTILINE)
    assert facts["quota"].startswith("pools at most 1.0 GB each")
    assert facts["memory"].startswith("3.0 GB of ")
    assert facts["jobs"] == "at most 1024 waiting or running, 256 of one user"
    assert "warning      tokens name the pool 'absent', which does not exist yet" in out
    assert "expires in" in out, "the certificate of the tests is valid for two days"
    assert out.endswith("the server would start\n")
    assert sorted(path for path in tmp_path.rglob("*")) == before
    assert checked(capsys, "--pools", tmp_path / "later" / "on", "--listen", "127.0.0.1:0")[0] == 0
    assert not (tmp_path / "later").exists()


def test_check_finds_every_problem_at_once(tmp_path: Path, certificates: Path, capsys: Any) -> None:
    """What keeps a server from starting is listed, a sentence each, and the exit code is 2, as it is without ``--check``."""
    (tmp_path / "file").touch()
    other = tmp_path / "other.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(other), "2048"], check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        tls = ("--tls-cert", certificates / "cert.pem", "--tls-key", other)
        words = ("--listen", address, "--metrics", "0.0.0.0:0", "--token-file", tmp_path / "none", "--pools", tmp_path / "file")
        code, _, err = checked(capsys, *words, *tls)
        assert code == 2
        first, *problems = err.splitlines()
        assert first == f"fastomp: the server would not start, for {len(problems)} problems:"
        for part in (f"listen {address} cannot be bound", "metrics need no token", "cannot be used with its key", "token file"):
            assert len([problem for problem in problems if part in problem]) == 1, part
        assert any(f"cannot write to {tmp_path / 'file'}" in problem for problem in problems)
        assert main(["serve", *map(str, (*words, *tls))]) == 2
        capsys.readouterr()
    double = ("--listen", "127.0.0.1:0", "--metrics", address, "--page", address)
    code, _, err = checked(capsys, "--pools", tmp_path / "pools", *double)
    assert (code, err.count("cannot be bound")) == (2, 1)
    assert "directory, or a URL" in checked(capsys, "--pools", "dram:x", "--listen", "127.0.0.1:0")[2]


def test_check_warns_of_what_would_not_work(tmp_path: Path, certificates: Path, capsys: Any) -> None:
    """A server starts with an expired certificate, a damaged store or too much memory, and the check says so."""
    X, y = small_data()
    (tmp_path / "lab").mkdir()
    fo.create_store(f"mmap://{tmp_path}/lab/data", X, y).close()
    (tmp_path / "lab" / "data" / "header.json").write_text("{")
    shutil.copy(certificates / "key.pem", tmp_path / "key.pem")
    (tmp_path / "key.pem").chmod(0o644)
    words = (
        "--tls-cert",
        certificates / "expired.pem",
        "--tls-key",
        tmp_path / "key.pem",
        "--quota",
        "10B",
        "--user-queue",
        "2000",
    )
    code, out, _ = checked(capsys, "--pools", tmp_path, "--listen", "127.0.0.1:0", *words, "--job-memory", "900TB")
    assert code == 0
    shown = [line for line in out.splitlines() if line.startswith("warning")]
    for part in (
        "expired on 2020-01-02",
        "everybody can read it",
        "the store lab/data cannot be opened",
        "'lab' has reached its quota",
        "lower --job-memory",
        "lower --user-queue",
    ):
        assert len([line for line in shown if part in line]) == 1, part


def test_check_names_missing_packages(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without its packages is a problem, and so is any server without pyarrow; the commands that install them are said."""
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    code, _, err = checked(capsys, "--pools", tmp_path / "pools", "--listen", "127.0.0.1:0")
    assert (code, err.count("is not installed: pip install")) == (2, 1)
    code, _, err = checked(capsys, "--pools", tmp_path / "pools", "--listen", "127.0.0.1:0", "--page", "127.0.0.1:0")
    assert (code, err.count("is not installed: pip install")) == (2, 3)


def test_an_encrypted_key_is_refused_and_not_asked_about(tmp_path: Path, certificates: Path, capsys: Any) -> None:
    """The library would ask for the password at the terminal, where a service waits for ever."""
    locked = tmp_path / "locked.pem"
    words = ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", str(certificates / "key.pem"), "-out", str(locked)]
    subprocess.run(words, check=True, capture_output=True)
    tls = ("--tls-cert", certificates / "cert.pem", "--tls-key", locked)
    code, _, err = checked(capsys, "--pools", tmp_path / "pools", "--listen", "127.0.0.1:0", *tls)
    assert (code, "the key not encrypted" in err) == (2, True)


def test_check_of_the_pools_of_a_running_server(tmp_path: Path, capsys: Any) -> None:
    """Pools that another server holds are a problem."""
    with RunningServer(tmp_path) as running:
        code, _, err = checked(capsys, "--pools", running.pools, "--listen", "127.0.0.1:0")
        assert (code, "are those of another server" in err) == (2, True)
        assert running.stop() == 0
    assert checked(capsys, "--pools", tmp_path / "pools", "--listen", "127.0.0.1:0")[0] == 0


def test_dates_of_certificates(certificates: Path) -> None:
    """The dates are those that openssl shows, of a chain the narrowest; bytes that are no certificate are refused."""
    expired = (certificates / "expired.pem").read_bytes()
    begin, end = validity(expired)
    assert (f"{begin:%Y%m%d%H%M%S}", f"{end:%Y%m%d%H%M%S}") == ("20200101000000", "20200102000000")
    shown = subprocess.run(
        ["openssl", "x509", "-in", str(certificates / "cert.pem"), "-noout", "-dates", "-dateopt", "iso_8601"],
        capture_output=True,
        text=True,
        check=False,
    )
    valid = (certificates / "cert.pem").read_bytes()
    if shown.returncode == 0:  # older ones cannot show ISO dates
        dates = re.findall(r"=(\S+ \S+)Z", shown.stdout)
        assert [f"{moment:%Y-%m-%d %H:%M:%S}" for moment in validity(valid)] == dates
    assert validity(valid + expired) == (validity(valid)[0], end)
    rng = np.random.default_rng(5)
    for _ in range(200):
        damaged = bytearray(valid)
        damaged[int(rng.integers(len(valid)))] ^= 1 << int(rng.integers(7))
        try:
            validity(bytes(damaged))
        except fo.InputError:
            continue
    with pytest.raises(fo.InputError, match="no readable certificate"):
        validity(b"nothing")


def test_the_example_of_the_deployment_is_valid(tmp_path: Path) -> None:
    """``deploy/server.yaml`` is what the schema and the reader take, and the unit names its place."""
    jsonschema = pytest.importorskip("jsonschema")
    example = ROOT / "deploy" / "server.yaml"
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(yaml.safe_load(example.read_text()))
    assert read_configuration(example, table())["pools"] == "/var/lib/fastomp/pools"
    # What is commented out is valid too.
    every = re.sub(r"^#(?=[a-z-]+:)", "", example.read_text(), flags=re.MULTILINE)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(yaml.safe_load(every))
    unit = (ROOT / "deploy" / "fastomp.service").read_text()
    assert "serve --config /etc/fastomp/server.yaml" in unit


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(schema(table()), indent=2) + "\n")
