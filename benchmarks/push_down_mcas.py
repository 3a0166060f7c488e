"""Selecting inside an MCAS server against fetching the matrix from it and selecting here, over sizes, and the break-even size.

Each measurement is a process of its own: from the connection to the answer, and for the push-down once more on the connection that
is open then. What answers may be a double of MCAS, which the report says: its copies are not those of the real server.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NoReturn

import numpy as np

import fastomp_nvm as fo
from ado_plugin.mcas.message import array_prefix
from ado_plugin.mcas.session import McasSession
from benchmarks.harness.processes import run_cell
from fastomp_nvm.errors import UnavailableError
from fastomp_nvm.remote.address import is_loopback, split_host_port

__all__ = ["break_even", "measure", "server_label"]

_POOL = "fastomp-bench"
_N_OBS = 500
_PIECE_BYTES = 256 << 20
_SECONDS = 300.0


def server_label() -> str:
    """Return what the client module of this machine talks to."""
    found = importlib.util.find_spec("mcas")
    if found is None or found.origin is None:
        raise UnavailableError("the MCAS client module 'mcas' cannot be imported here: see deploy/MCAS.md")
    return "a double of MCAS, whose speed is not that of MCAS" if "doubles" in found.origin else "MCAS"


def measure(address: str, megabytes: Sequence[float], k: int, repeats: int) -> list[dict[str, Any]]:
    """Return one row per size: median seconds of both ways, and whether the features agree."""
    # The largest first: it makes the pool, with room for three times its bytes.
    return [_measure_size(address, size, k, repeats) for size in sorted(megabytes, reverse=True)][::-1]


def break_even(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the megabytes from which the push-down is faster, between two measured sizes on a straight line.

    The smallest size if it is faster there already, None if it never is.
    """
    ahead = [row["push_seconds"] - row["pull_seconds"] for row in rows]
    for place, lead in enumerate(ahead):
        if lead <= 0:
            if not place:
                return float(rows[0]["megabytes"])
            before, low, high = ahead[place - 1], rows[place - 1]["megabytes"], rows[place]["megabytes"]
            return float(low + (high - low) * before / (before - lead))
    return None


def _measure_size(address: str, megabytes: float, k: int, repeats: int) -> dict[str, Any]:
    """Put a matrix, as a store and as plain values, and measure both ways in turns."""
    n_features = max(int(megabytes * 1e6 / (4 * _N_OBS)), 2 * k)
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((n_features, _N_OBS), dtype=np.float32)
    y = 3.0 * matrix[:k].sum(axis=0) + rng.standard_normal(_N_OBS)
    name = f"pd-{secrets.token_hex(4)}"
    host, port = split_host_port(address)
    session = McasSession(host, port)
    with fo.connect(f"mcas://{address}/{_POOL}/{name}", timeout=_SECONDS) as client:
        client.put(matrix.T, y, tier="none")
        step = max(_PIECE_BYTES // matrix[0].nbytes, 1)
        keys = []
        for first in range(0, n_features, step):
            piece = matrix[first : first + step]
            keys.append(f"{name}/{first}")
            session.put(_POOL, keys[-1], array_prefix(keys[-1], piece.shape, piece.dtype) + piece.tobytes(), _SECONDS)
        cell = {"address": address, "key": name, "keys": keys, "shape": matrix.shape, "y": y.tolist(), "k": k}
        try:
            turns = [
                {way: run_cell("benchmarks.push_down_mcas", {**cell, "way": way}, _SECONDS) for way in ("push", "pull")}
                for _ in range(repeats)
            ]
        finally:
            for key in keys:
                session.erase(_POOL, key, _SECONDS)
            session.close()
            client.delete()
    return {
        "megabytes": matrix.nbytes / 1e6,
        "push_seconds": median(turn["push"]["seconds"] for turn in turns),
        "push_again_seconds": median(turn["push"]["again"] for turn in turns),
        "pull_seconds": median(turn["pull"]["seconds"] for turn in turns),
        "same_features": all(turn["push"]["indices"] == turn["pull"]["indices"] for turn in turns),
    }


def _push(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Select inside the server, on a new connection and on an open one."""
    taken = []
    started = time.perf_counter()
    with fo.connect(f"mcas://{cell['address']}/{_POOL}/{cell['key']}", timeout=_SECONDS) as client:
        for _ in range(2):
            found = client.select(k=cell["k"], tier="exact")
            taken.append(time.perf_counter() - started)
            started = time.perf_counter()
    return {"seconds": taken[0], "again": taken[1], "indices": found.indices.tolist()}


def _pull(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Fetch the matrix by upstream's client and select in this process."""
    mcas: Any = importlib.import_module("mcas")
    host, port = split_host_port(cell["address"])
    started = time.perf_counter()
    pool = mcas.Session(host, port, "lo" if is_loopback(host) else "mlx5_0").open_pool(_POOL)
    matrix, first = np.empty(cell["shape"], dtype=np.float32), 0
    for key in cell["keys"]:
        view = pool.get_direct(key)
        count = min(max(_PIECE_BYTES // matrix[0].nbytes, 1), len(matrix) - first)
        data = np.frombuffer(view[len(view) - count * matrix[0].nbytes :], dtype=np.float32)
        matrix[first : first + count] = data.reshape(count, -1)
        pool.free_direct_memory(view)
        first += count
    found = fo.select(matrix.T, np.array(cell["y"]), k=cell["k"])
    return {"seconds": time.perf_counter() - started, "indices": found.indices.tolist()}


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Measure one cell and print it; ``push-down --mcas`` calls this."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", required=True)
    cell = json.loads(parser.parse_args(argv).cell)
    print(json.dumps({"push": _push, "pull": _pull}[cell["way"]](cell)), flush=True)
    os._exit(0)  # upstream prints when its objects are dropped, and the last line is the answer


if __name__ == "__main__":
    main()
