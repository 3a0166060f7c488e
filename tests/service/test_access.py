"""Access: tokens, roles, reloading, TLS, and no unprotected server beyond this machine by accident."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import fastomp_nvm as fo
from ado_plugin.service.access import Access, Principal
from ado_plugin.service.metrics import MetricsServer
from fastomp_nvm.cli.main import main
from fastomp_nvm.errors import UntrustedError
from fastomp_nvm.home import local_token_file
from tests.service.running import ROOT, RunningServer, small_data

#: Streams that stay open: stopping the server at the end of this module must not wait for them.
stalled_for_good: list[Any] = []


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a server that is started in this process from taking over its logs."""
    monkeypatch.setattr("ado_plugin.service.logs.log_to_stderr", lambda: None)


def entry(name: str, role: str, pools: str = "") -> str:
    """Return a line of a token file; the token is the name with -token behind it."""
    digest = hashlib.sha256(f"{name}-token".encode()).hexdigest()
    return f"- {{name: {name}, sha256: '{digest}', role: {role}{f', pools: [{pools}]' if pools else ''}}}\n"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run a server with several principals, a small quota and impatience with uploads."""
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens.yaml"
    tokens.touch(0o600)
    tokens.write_text(entry("ann", "admin") + entry("wim", "write", "lab") + entry("ron", "read", "lab"))
    options = ("--token-file", str(tokens), "--quota", "400kB", "--upload-idle", "5", "--drain", "2")
    with RunningServer(folder, *options) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log
    for stalled in stalled_for_good:
        with contextlib.suppress(Exception):
            stalled.close()


def test_roles_over_the_wire(guarded: RunningServer) -> None:
    """Each token has the rights of its role and pools and no others; a wrong one has none."""
    X, y = small_data()
    with guarded.connect("/lab/data", token="wim-token") as writer:
        writer.put(X, y, tier="none")
        with pytest.raises(fo.ServerError, match="no access to the pool 'other'"):
            writer.put(X, y, key="other/data")
        with pytest.raises(fo.StoreURLError, match="already"):
            writer.put(X, y)
    with guarded.connect("/lab/data", token="ron-token") as reader:
        assert len(reader.select(k=2).features) == 2
        for call in (lambda: reader.put(X, y, replace=True), reader.delete):
            with pytest.raises(fo.ServerError, match="needs 'write'"):
                call()
        with pytest.raises(fo.ServerError, match="no access"):
            reader.list("other")
    for token in ("ron-toke", "ron-token ", hashlib.sha256(b"ron-token").hexdigest(), None):
        with guarded.connect(token=token) as stranger, pytest.raises(fo.ServerError, match="refuses the token"):
            stranger.list()


def test_quota_over_the_wire(guarded: RunningServer) -> None:
    """A store that does not fit is refused with the limit named, and the pool stays as it was."""
    with guarded.connect("/lab", token="ann-token") as client:
        before = client.list()
        with pytest.raises(fo.ServerError, match="at most 400000"):
            client.put(np.zeros((1000, 200), dtype=np.float32), key="large")
        assert client.list() == before


def test_tokens_are_read_again_on_sighup(guarded: RunningServer) -> None:
    """A new token counts after SIGHUP, a removed one no longer does, and a broken file changes nothing."""
    tokens = guarded.folder / "tokens.yaml"
    kept = tokens.read_text()

    def admitted(name: str, wanted: bool) -> None:
        with guarded.connect(token=f"{name}-token") as client:
            found = not wanted
            while found != wanted:
                time.sleep(0.05)
                try:
                    client.ping()
                    found = True
                except fo.ServerError:
                    found = False

    tokens.write_text(kept + entry("eve", "read"))
    guarded.signal(signal.SIGHUP)
    admitted("eve", True)
    tokens.write_text("- {name: eve}")
    guarded.signal(signal.SIGHUP)
    time.sleep(0.2)
    admitted("eve", True)
    tokens.write_text(kept)
    guarded.signal(signal.SIGHUP)
    admitted("eve", False)


@pytest.mark.parametrize(
    "content",
    [
        "- {name: 2020-13-45, sha256: x, role: read}",
        "- {name: " + "9" * 6000 + ", sha256: x, role: read}",
        "- {name: !!int '', sha256: !!bool x, role: !!timestamp x}",
        "- !!binary '*'",
        "[" * 5000,
        "# " + "x" * (1 << 20),
        None,
    ],
    ids=["date", "integer", "tags", "binary", "deep", "large", "pipe"],
)
def test_no_token_file_stops_a_server(guarded: RunningServer, content: str | None) -> None:
    """SIGHUP with a file that cannot be used, a named pipe included, logs one line; the old tokens stay in force."""
    tokens, before = guarded.folder / "tokens.yaml", guarded.log.count("the old tokens stay in force")
    kept = tokens.read_text()
    try:
        tokens.unlink()
        if content is None:
            os.mkfifo(tokens, 0o600)
        else:
            tokens.touch(0o600)
            tokens.write_text(content)
        guarded.signal(signal.SIGHUP)
        end = time.monotonic() + 20
        while guarded.log.count("the old tokens stay in force") == before:
            assert guarded.process.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server waits for the file"
            time.sleep(0.02)
        with guarded.connect(token="ann-token") as client:
            assert client.ping()["name"] == "ann"
    finally:
        tokens.unlink()
        tokens.touch(0o600)
        tokens.write_text(kept)


def test_pools_limit_what_is_seen_of_jobs(tmp_path: Path) -> None:
    """An administrator of one pool neither sees nor touches jobs of another, and a pool taken away takes its answers with it."""
    tokens = tmp_path / "tokens.yaml"
    tokens.touch(0o600)
    tokens.write_text(entry("ann", "admin") + entry("bea", "admin", "other") + entry("wim", "write", "lab, other"))
    X, y = small_data()
    with RunningServer(tmp_path / "server", "--token-file", str(tokens)) as running:
        with running.connect("/lab/data", token="wim-token") as writer:
            writer.put(X, y)
            writer.select(k=2)
            (job,) = [each["job"] for each in writer.call("jobs", {})["jobs"]]
        with running.connect("/other", token="bea-token") as limited:
            assert limited.call("jobs", {})["jobs"] == []
            for operation in ("result", "progress", "cancel", "resume"):
                with pytest.raises(fo.ServerError, match="no access to the pool 'lab'"):
                    limited.call(operation, {"job": job})
        with running.connect("/lab/data", token="ann-token") as admin:
            assert [each["job"] for each in admin.call("jobs", {})["jobs"]] == [job]
        tokens.write_text(entry("ann", "admin") + entry("wim", "write", "other"))
        running.signal(signal.SIGHUP)
        with running.connect("/other", token="wim-token") as writer:
            end = time.monotonic() + 20
            while writer.call("jobs", {})["jobs"]:
                assert time.monotonic() < end, "the jobs of a pool that was taken away are still listed"
                time.sleep(0.02)
            with pytest.raises(fo.ServerError, match="no access to the pool 'lab'"):
                writer.call("result", {"job": job})


@pytest.mark.parametrize("content", ["", "\n", "short", "two words of sufficient length"])
def test_a_local_token_file_that_holds_no_token(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file left empty by a loss of power does not make everybody administrator: the server says so and does not start."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path))
    file = local_token_file(7010)
    file.touch(0o600)
    file.write_text(content)
    access = Access()
    with pytest.raises(fo.InputError, match="remove it"):
        access.admit_local(7010)
    assert access.authenticate("") is None
    file.unlink()
    access.admit_local(7010)
    assert access.authenticate(file.read_text().strip()) == Principal("local", "admin")


def test_a_client_made_before_its_server_finds_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``fastomp serve &`` and at once a command that calls it: the token is looked up when the server answers."""
    server = RunningServer(tmp_path)
    try:
        server.kill()
        monkeypatch.setenv("FASTOMP_HOME", str(server.home))
        monkeypatch.delenv("FASTOMP_TOKEN", raising=False)
        file = server.home / "tokens" / f"loopback-{server.port}"
        file.unlink()
        with fo.connect(server.url) as client:
            assert not file.exists()
            server.start()
            assert client.list() == []
    finally:
        server.stop()


def test_no_token_is_nobodys_token(tmp_path: Path) -> None:
    """Calls without a token are refused even where the digest of the empty text is listed, unless the server is for anyone."""
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"- {{name: nobody, sha256: '{hashlib.sha256(b'').hexdigest()}', role: admin}}")
    access = Access(tokens)
    assert access.authenticate("") is None
    access.admit_anyone()
    assert access.authenticate("") == Principal("anyone", "admin")


def test_a_stalled_upload_is_reaped_and_does_not_stop_the_drain(guarded: RunningServer) -> None:
    """A client that begins to upload and falls silent loses its room after a while; others are served meanwhile."""
    plan: dict[str, Any] = {
        "pool": "lab",
        "key": "stalled",
        "n_obs": 1000,
        "features": {"numbered": 50, "prefix": "f"},
        "dtype": "float32",
        "missing": "error",
        "tier": "none",
        "replace": False,
    }
    with guarded.connect("/lab", token="wim-token") as client:
        upload = client.call("put", plan)["upload"]
        options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer wim-token")])
        stalled = flight.connect(guarded.url)
        stalled_for_good.append(stalled)
        descriptor = flight.FlightDescriptor.for_command(f'{{"upload": "{upload}"}}'.encode())
        writer, _ = stalled.do_put(descriptor, pa.schema([("bytes", pa.uint8())]), options)
        end = time.monotonic() + 60
        while any(path.name.startswith(".stalled") for path in (guarded.pools / "lab").iterdir()):
            assert time.monotonic() < end, "the upload was never reaped"
            time.sleep(0.1)
        with pytest.raises(fo.UploadLostError, match="begin again"):
            client.call("commit", {"upload": upload, "tiles": 0, "crc": 0})
        assert client.ping()["name"] == "wim"
    stalled_for_good.append(writer)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an authority, a certificate for 127.0.0.1, and one that expired."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make certificates with")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl(
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-days",
        "2",
        "-subj",
        "/CN=test authority",
    )
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=127.0.0.1")
    signing = ("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
    openssl(*signing, "-out", "cert.pem", "-days", "2")
    (folder / "index").touch()
    (folder / "serial").write_text("77\n")
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca=x\n[x]\ndatabase=index\nserial=serial\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n"
    )
    dates = ("-startdate", "20200101000000Z", "-enddate", "20200102000000Z")
    authority = ("-config", "ca.cnf", "-batch", "-notext", "-cert", "ca.pem", "-keyfile", "ca.key", "-extfile", "names")
    openssl("ca", *authority, "-in", "request.pem", "-out", "expired.pem", *dates)
    return folder


def test_tls(certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With TLS a client that trusts the authority is served, one that does not or speaks plainly gets a clear error in time."""
    tokens = tmp_path / "token"
    tokens.touch(0o600)
    tokens.write_text("a-token-of-some-length")
    options = (
        "--tls-cert",
        str(certificates / "cert.pem"),
        "--tls-key",
        str(certificates / "key.pem"),
        "--token-file",
        str(tokens),
    )
    with RunningServer(tmp_path / "server", *options, scheme="grpc+tls") as running:
        X, y = small_data()
        with running.connect("/lab/data", token="a-token-of-some-length", tls_ca=certificates / "ca.pem") as client:
            client.put(X, y)
            assert client.select(k=3).features
        monkeypatch.setattr(
            "fastomp_nvm.remote.client.time.sleep", lambda seconds: pytest.fail("a certificate does not become valid")
        )
        with (
            running.connect(token="a-token-of-some-length", timeout=60) as client,
            pytest.raises(UntrustedError, match="certificate"),
        ):
            client.ping()
        monkeypatch.undo()
        shell = [sys.executable, "-m", "fastomp_nvm", "info", f"{running.url}/lab/data", "--token-file", str(tokens)]
        told = subprocess.run(shell, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
        assert told.returncode == 1
        assert told.stderr.startswith("fastomp: the certificate of")
        assert len(told.stderr.splitlines()) == 1, "the library is not to speak, too"
        with (
            fo.connect(f"grpc://127.0.0.1:{running.port}", token="x" * 20, timeout=2) as client,
            pytest.raises(fo.UnreachableError, match="TLS"),
        ):
            client.ping()
        assert running.stop() == 0


def test_an_expired_certificate_is_refused(certificates: Path, tmp_path: Path) -> None:
    """A client does not talk to a server whose certificate has expired."""
    options = ("--tls-cert", str(certificates / "expired.pem"), "--tls-key", str(certificates / "key.pem"))
    with (
        RunningServer(tmp_path / "server", *options, scheme="grpc+tls") as running,
        running.connect(tls_ca=certificates / "ca.pem", timeout=60) as client,
        pytest.raises(UntrustedError, match="certificate"),
    ):
        client.ping()


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--listen", "0.0.0.0:0"], "--token-file"),
        (["--listen", "[::]:0"], "--token-file"),
        (["--listen", "127.0.0.1"], "HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "missing.pem"], "both"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "missing.pem", "--tls-key", "missing.pem"], "cannot be used"),
        (["--listen", "127.0.0.1:0", "--token-file", "missing"], "cannot be read"),
        (["--listen", "127.0.0.1:0", "--queue", "0"], "positive"),
        (["--listen", "127.0.0.1:0", "--drain", "nan"], "positive"),
        (["--listen", "127.0.0.1:0", "--drain", "inf"], "positive"),
        (["--listen", "127.0.0.1:0", "--upload-idle", "nan"], "positive"),
        (["--listen", "127.0.0.1:0", "--threads", "0"], "--threads is 0"),
        (["--listen", "127.0.0.1:0", "--threads", "-3"], "--threads is -3"),
        (["--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:0"], "--insecure"),
    ],
)
def test_what_serve_refuses(words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No server starts beyond loopback without token and TLS, nor with files or addresses that cannot be used."""
    assert main(["serve", "--pools", str(tmp_path / "pools"), *words]) == 2
    assert reason in capsys.readouterr().err
    assert main(["serve", "--pools", "dram:x", "--listen", "127.0.0.1:0"]) == 2


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_metrics_over_ipv6() -> None:
    """The metrics are served on an IPv6 address, too."""
    try:
        server = MetricsServer("::1", 0, tuple, {"/health": lambda: (None, {})})
    except OSError as error:
        pytest.skip(f"the loopback interface has no IPv6 address: {error}")
    try:
        with urllib.request.urlopen(f"http://[::1]:{server.port}/health", timeout=20) as reply:
            assert reply.read() == b"ok\n"
    finally:
        server.close()


@pytest.mark.usefixtures("quiet")
def test_a_port_is_not_shared(guarded: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second server on the port of another, for calls or for metrics, does not start, although the library would let it."""
    pools, taken = str(tmp_path / "pools"), f"127.0.0.1:{guarded.port}"
    for words in (["--listen", taken], ["--listen", "127.0.0.1:0", "--metrics", taken]):
        assert main(["serve", "--pools", pools, *words]) == 1
        assert "choose another port" in capsys.readouterr().err
