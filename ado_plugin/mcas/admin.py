"""A check of a live MCAS server: every step is tried, and a failure is explained by its known cause.

Upstream's server is research code with known defects. The check uses the same client as everybody, and compares the software of the
server's Python with that of this one, because the last bits of an answer depend on it.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ado_plugin.mcas.finding import Finding, Verdict
from fastomp_nvm import native
from fastomp_nvm.engine.identity import numeric_build
from fastomp_nvm.errors import (
    CallFailedError,
    FastompError,
    InputError,
    LockedError,
    ServerError,
    UnavailableError,
    UnreachableError,
)
from fastomp_nvm.matrix.kernels import kernel
from fastomp_nvm.remote.address import ServerURL
from fastomp_nvm.remote.client import Client, connect
from fastomp_nvm.runs.select import select
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.stores.open import create_store
from fastomp_nvm.version import __version__

__all__ = ["check_server"]

#: More calls than those after which upstream's reference-count fault was seen to end the ADO.
_CALLS = 80

#: Errors of a call that the server did not answer.
_SILENT = (UnreachableError, CallFailedError, LockedError)

#: Seconds for a first call, in which the server may start an ADO.
_PING_SECONDS = 45.0

_NO_CONNECTION = "server down, wrong port, or wrong network device: set FASTOMP_MCAS_DEVICE, and FABRIC_SERVER_ADDR at the server"
_NO_POOL = (
    "mapstore with an ADO needs the XPMEM kernel module; hstore needs its dax_config path to exist, with room; or the ADO died at "
    "its start ('long-wait for connection' in the server's log), and the server waits for it: start it again"
)
_NO_ANSWER = (
    "the personality did not load, which 'fastomp ado check CONF' at the server explains; or the ADO died at its start, which is "
    "rarer without address-space randomisation: start the server under 'setarch -R'"
)
_NO_PLUGIN = (
    "the server's Python does not find this package: run 'fastomp ado install --venv DIR', and put DIR/bin first on its PATH"
)
_WORN_OUT = "the ADO died after several calls: upstream's reference-count fault; runs survive it, each death costs 30 s"
_OTHER = "see the server's log"

_Outcome = tuple[Verdict, str]


def check_server(url: str, timeout: float = 45.0) -> Iterator[Finding]:
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
        steps: list[tuple[str, Callable[[], _Outcome], str]] = [
            ("connect", lambda: ("ok", f"release {client.ping()['version']} reached the server"), _NO_CONNECTION),
            ("put", lambda: _put(client, local), _NO_POOL),
            ("invoke", lambda: _invoke(client), _NO_ANSWER),
            ("software", lambda: _compare(client), _OTHER),
            ("resume", lambda: _resume(client, base, timeout, local[0]), _OTHER),
            ("endurance", lambda: _endure(client), _WORN_OUT),
            ("delete", lambda: _delete(client), _OTHER),
        ]
        for step, attempt, meaning in steps:
            began = time.monotonic()
            try:
                verdict, detail = attempt()
            except FastompError as error:
                verdict, detail = "failed", _explained(error, step, meaning)
            yield Finding(step, verdict, detail, time.monotonic() - began)
            # Runs survive a failure of endurance: continue, so that the store is deleted.
            if verdict == "failed" and step != "endurance":
                return


def _explained(error: FastompError, step: str, meaning: str) -> str:
    """Return an error with its known cause, unless its message names the cause."""
    if isinstance(error, UnavailableError):  # elsewhere the message names the missing package of this machine
        return f"{error}; known cause: {_NO_PLUGIN}" if step == "invoke" else str(error)
    # A server that answered neither hung nor failed to load the plugin: its own words are the reason.
    return f"{error}; known cause: {meaning}" if isinstance(error, _SILENT) else str(error)


def _put(client: Client, local: list[Selection]) -> _Outcome:
    """Put a small store, and compute the expected selection locally."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(200, 1000)).astype(np.float32)
    y = X[:, :8] @ np.arange(1.0, 9.0)
    report = client.put(X, y, replace=True)
    with create_store("dram:fastomp-ado-check", X, y, replace=True) as store:
        local.append(select(store, k=8, algorithm="sds_omp"))
    return "ok", f"{report['n_features']} features x {report['n_obs']} observations, fingerprint {report['fingerprint'][:12]}"


def _ping(client: Client) -> dict[str, Any]:
    """Call the plugin."""
    transport: Any = client._transport
    pong: dict[str, Any] = transport.plugin.call(client._place(None)["pool"], "ping", _PING_SECONDS, attempts=1)
    return pong


def _invoke(client: Client) -> _Outcome:
    """Check the release of the plugin, and that it gets views and not copies."""
    pong = _ping(client)
    if pong["version"] != __version__:
        raise UnavailableError(f"the server has release {pong['version']} and this is {__version__}: install this one there")
    if pong["owns_data"]:
        raise ServerError("the server hands copies to the plugin, not views of the pool: is it upstream's personality?")
    alignment = "aligned" if pong["address"] % 8 == 0 else "unaligned"
    return "ok", f"release {pong['version']} answered; value at {pong['address']:#x}, {alignment}, a view"


def _compare(client: Client) -> _Outcome:
    """Compare the software of the server's Python with that of this one."""
    pong = _ping(client)
    here, there = numeric_build(kernel().id), pong["build"]
    told = f"there {_software(pong['python'], there, pong['extension'])}"
    if pong["python"] != platform.python_version() or there != here:
        told = f"{told}; here {_software(platform.python_version(), here, bool(native.extension))}"
    if differing := _differing(here, there):
        return "note", f"{told}; answers may differ in their last bits because of {differing}"
    if not pong["extension"]:
        return "note", f"{told}; selections take longer without compiled kernels: install a C compiler and the plugin again"
    return "ok", f"{told}; answers have the same bits on both sides"


def _software(python: str, build: Mapping[str, str], extension: bool) -> str:
    """Return the software of one side for people."""
    kernels = f"{'compiled' if extension else 'no compiled'} kernels ({build['kernel']})"
    return f"Python {python}, numpy {build['numpy']}, scipy {build['scipy']}, {build['blas']}, {kernels}"


def _differing(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return the names of the software that bits depend on and that differs."""
    return ", ".join(name.replace("blas", "BLAS") for name in here if here[name] != there.get(name))


def _resume(client: Client, base: str, timeout: float, expected: Selection) -> _Outcome:
    """Begin a run, end it over another connection, and compare with the local selection."""
    job = client.submit(k=8, algorithm="sds_omp")
    with connect(f"{base}/fastomp_check", timeout=timeout) as other:
        (found,) = other.result(job)
    if found.features != expected.features:
        raise ServerError(f"the answer {found.features} differs from the local one {expected.features}")
    told = "begun over one connection and ended over another"
    if found.column_coef.tobytes() == expected.column_coef.tobytes():
        return "ok", f"{told}: same bits as the local answer"
    apart = float(np.abs(found.column_coef - expected.column_coef).max())
    differing = _differing(numeric_build(kernel().id), _ping(client)["build"])
    reason = f"explained by {differing}" if differing else "although the software is the same: tell the authors"
    return "note", f"{told}: same features as the local answer, coefficients up to {apart:.1e} apart, {reason}"


def _endure(client: Client) -> _Outcome:
    """Call often enough to trigger upstream's reference-count fault."""
    began = time.monotonic()
    for _ in range(_CALLS):
        _ping(client)
    return "ok", f"{_CALLS} calls, {(time.monotonic() - began) / _CALLS * 1000:.0f} ms each"


def _delete(client: Client) -> _Outcome:
    """Delete the store with its runs, those of earlier failed checks included."""
    for run in client.jobs():
        if run.status in ("queued", "running", "stopped"):
            client.cancel(run.name)
    client.delete()
    if any(each["key"] == "fastomp_check" for each in client.list()):
        raise ServerError("the store is still listed after it was deleted")
    return "ok", "store, run and index entry are gone"
