"""Tools for operators of MCAS: a server configuration, the installation of the plugin, and a check of a live server.

Upstream's server is research code with known defects, so the check tries each step and names the known cause of a failure. Uses the
same transport as clients.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fastomp_nvm.errors import FastompError, InputError, ServerError, UnavailableError
from fastomp_nvm.remote.address import ServerURL
from fastomp_nvm.remote.client import Client, connect
from fastomp_nvm.runs.select import select
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.stores.open import create_store
from fastomp_nvm.version import __version__

__all__ = ["Finding", "check", "install", "server_configuration"]

#: Fields of a shard: the name in the server's configuration, and the default.
_SHARD: Mapping[str, tuple[str, str | int]] = {
    "core": ("core", 0),
    "port": ("port", 11911),
    "address": ("addr", "127.0.0.1"),
    "device": ("net", "lo"),
    "backend": ("default_backend", "hstore"),
    "ado_cores": ("ado_cores", "1"),
    "plugin": ("ado_plugins", "libpersonality-python.so"),
    "pool_path": ("path", "/mnt/pmem0"),
    "base_address": ("addr", "0x9000000000"),
}

#: More calls than those after which upstream's reference-count fault was seen to end the ADO.
_CALLS = 80

_PING_SECONDS = 45.0

_NO_CONNECTION = "server down, wrong port, or wrong network device: set FASTOMP_MCAS_DEVICE, and FABRIC_SERVER_ADDR at the server"
_NO_POOL = (
    "mapstore with an ADO needs the XPMEM kernel module; hstore needs its dax_config path to exist, with room; or the ADO hung at "
    "its start ('long-wait for connection' in the server's log), and the server with it: start it again"
)
_NO_ANSWER = (
    "the personality did not load (a declaration with 3 arguments against a definition with 4, or its hard-coded libpython path), "
    "or the ADO hung at its start, which happens with address-space randomisation on: start the server under 'setarch -R'"
)
_NO_PLUGIN = "the server's Python does not find this package: run 'fastomp ado install', or set PYTHONPATH for the server"
_WORN_OUT = "the ADO died after several calls: upstream's reference-count fault; runs survive it, each death costs 30 s"
_OTHER = "see the server's log"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one step of the check.

    Attributes
    ----------
    step : str
    passed : bool
    detail : str
        The observation; for a failure also its known cause.
    seconds : float
    """

    step: str
    passed: bool
    detail: str
    seconds: float


def server_configuration(described: object) -> dict[str, Any]:
    """Return the JSON configuration of an MCAS server.

    Parameters
    ----------
    described : object
        Parsed YAML: ``ado_path``, ``provider`` (sockets or verbs), and ``shards``, a list of objects with ``core``, ``port``,
        ``address``, ``device``, ``backend`` (hstore or mapstore), ``pool_path``, ``base_address``, ``plugin``, ``ado_cores``.

    Raises
    ------
    InputError
        A field is missing, unknown, or of the wrong type.
    """
    known = {"ado_path", "provider", "shards"}
    if not isinstance(described, Mapping) or set(described) - known or not isinstance(described.get("ado_path"), str):
        raise InputError("a server is described by ado_path, provider and shards: expected exactly these, ado_path as text")
    provider = described.get("provider", "sockets")
    shards = described.get("shards")
    if provider not in ("sockets", "verbs"):
        raise InputError(f"provider is {provider!r}: expected sockets or verbs")
    if not isinstance(shards, list) or not shards:
        raise InputError("shards are not a list of at least one shard")
    return {"shards": [_shard(each) for each in shards], "ado_path": described["ado_path"], "net_providers": provider}


def install(python: str, method: Literal["pth", "pip"] = "pth") -> dict[str, Any]:
    """Make this package importable in another Python; return that Python's versions and the plugin's path.

    Parameters
    ----------
    python : str
        The interpreter that the server's ADO embeds.
    method : {"pth", "pip"}
        A path file that points here, for a source tree; or an installation.
    """
    root = Path(__file__).resolve().parents[2]
    if method == "pip":
        if not (root / "pyproject.toml").exists():
            raise InputError(f"{root} is not a source tree, which pip needs: run this from one, or install the wheel there")
        _run([python, "-m", "pip", "install", "--quiet", "--no-deps", str(root)], "install with pip")
    else:
        if (root / "numpy").exists():
            raise InputError(f"{root} holds other packages too, which must not leak into another Python: use --method pip")
        target = _run(
            [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], "ask for its directories"
        ).strip()
        try:
            (Path(target) / "fastomp.pth").write_text(f"{root}\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{target} cannot be written ({error.strerror}): run this as the owner of {python}") from error
    probe = (
        "import json, sys, numpy, ado_plugin.mcas.slice as plugin, fastomp_nvm\n"
        "print(json.dumps({'python': sys.version.split()[0], 'numpy': numpy.__version__, 'fastomp': fastomp_nvm.__version__,"
        " 'plugin': plugin.__file__}))"
    )
    found: dict[str, Any] = json.loads(_run([python, "-c", probe], "import the plugin there").splitlines()[-1])
    return found


def check(url: str, timeout: float = 45.0) -> Iterator[Finding]:
    """Try put, invoke, resume and delete on a live server; yield the result of each step, up to the first failure.

    Parameters
    ----------
    url : str
        ``mcas://host:port/pool``; a store ``fastomp_check`` is put into the pool and deleted again.
    timeout : float
        Seconds per call; upstream's own limit is 30.
    """
    base = url.rstrip("/")
    address = ServerURL.parse(base)
    if address.scheme != "mcas" or address.pool is None or address.key is not None:
        raise InputError(f"{url!r} is no pool of an MCAS server: expected mcas://host:port/pool")
    with connect(f"{base}/fastomp_check", timeout=timeout) as client:
        local: list[Selection] = []
        steps: list[tuple[str, Callable[[], str], str]] = [
            ("connect", lambda: f"release {client.ping()['version']} reached the server", _NO_CONNECTION),
            ("put", lambda: _put(client, local), _NO_POOL),
            ("invoke", lambda: _invoke(client), _NO_ANSWER),
            ("resume", lambda: _resume(client, base, timeout, local[0]), _OTHER),
            ("endurance", lambda: _endure(client), _WORN_OUT),
            ("delete", lambda: _delete(client), _OTHER),
        ]
        for step, attempt, meaning in steps:
            began = time.monotonic()
            try:
                detail, passed = attempt(), True
            except FastompError as error:
                detail, passed, absent = str(error), False, isinstance(error, UnavailableError)
                if step == "invoke" or not absent:  # otherwise the message names the missing package of this machine
                    detail = f"{detail}; known cause: {_NO_PLUGIN if absent else meaning}"
            yield Finding(step, passed, detail, time.monotonic() - began)
            # Runs survive a failure of endurance: continue, so that the store is deleted.
            if not passed and step != "endurance":
                return


def _put(client: Client, local: list[Selection]) -> str:
    """Put a small store, and compute the expected selection locally."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(200, 1000)).astype(np.float32)
    y = X[:, :8] @ np.arange(1.0, 9.0)
    report = client.put(X, y, replace=True)
    with create_store("dram:fastomp-ado-check", X, y, replace=True) as store:
        local.append(select(store, k=8, algorithm="sds_omp"))
    return f"{report['n_features']} features x {report['n_obs']} observations, fingerprint {report['fingerprint'][:12]}"


def _ping(client: Client) -> dict[str, Any]:
    """Call the plugin."""
    transport: Any = client._transport
    pong: dict[str, Any] = transport.plugin.call(client._place(None)["pool"], "ping", _PING_SECONDS, attempts=1)
    return pong


def _invoke(client: Client) -> str:
    """Check the release of the plugin, and that it gets views and not copies."""
    pong = _ping(client)
    if pong["version"] != __version__:
        raise UnavailableError(f"the server has release {pong['version']} and this is {__version__}: install this one there")
    if pong["owns_data"]:
        raise ServerError("the server hands copies to the plugin, not views of the pool")
    return (
        f"Python {pong['python']}, numpy {pong['numpy']}, kernel {pong['kernel']}; value at {pong['address']:#x}, "
        f"{'aligned' if pong['address'] % 8 == 0 else 'unaligned'}, a view"
    )


def _resume(client: Client, base: str, timeout: float, expected: Selection) -> str:
    """Begin a run, end it over another connection, and compare with the local selection."""
    job = client.submit(k=8, algorithm="sds_omp")
    with connect(f"{base}/fastomp_check", timeout=timeout) as other:
        (found,) = other.result(job)
    if found.features != expected.features:
        raise ServerError(f"the answer {found.features} differs from the local one {expected.features}")
    same = found.column_coef.tobytes() == expected.column_coef.tobytes()
    bits = "same bits" if same else f"same features, other last bits (kernel {found.kernel} there, {expected.kernel} here)"
    return f"begun over one connection and ended over another: {bits} as the local answer"


def _endure(client: Client) -> str:
    """Call often enough to trigger upstream's reference-count fault."""
    began = time.monotonic()
    for _ in range(_CALLS):
        _ping(client)
    return f"{_CALLS} calls, {(time.monotonic() - began) / _CALLS * 1000:.0f} ms each"


def _delete(client: Client) -> str:
    """Delete the store with its runs, those of earlier failed checks included."""
    for job in client.jobs():
        client.cancel(job.name)
    client.delete()
    if any(each["key"] == "fastomp_check" for each in client.list()):
        raise ServerError("the store is still listed after it was deleted")
    return "store, run and index entry are gone"


def _shard(described: object) -> dict[str, Any]:
    """Return one shard of the server's configuration."""
    if not isinstance(described, Mapping) or set(described) - set(_SHARD):
        raise InputError(f"a shard is an object of {', '.join(_SHARD)}: found {described!r}")
    shard = {name: described.get(name, default) for name, (_, default) in _SHARD.items()}
    for name, (_, default) in _SHARD.items():
        if type(shard[name]) is not type(default):
            raise InputError(f"{name} of a shard is {shard[name]!r}: expected {'text' if isinstance(default, str) else 'a number'}")
    if shard["backend"] not in ("hstore", "mapstore"):
        raise InputError(f"backend is {shard['backend']!r}: expected hstore or mapstore")
    path, address, plugin = (shard.pop(name) for name in ("pool_path", "base_address", "plugin"))
    dax = {"dax_config": [{"path": path, "addr": address}]} if shard["backend"] == "hstore" else {}
    return {**{_SHARD[name][0]: value for name, value in shard.items()}, "ado_plugins": [plugin], **dax}


def _run(command: list[str], purpose: str) -> str:
    """Run a command and return its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{command[0]} cannot {purpose}: {error}") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise UnavailableError(f"{command[0]} cannot {purpose}: {last[0]}")
    return done.stdout
