"""Selections through the public API alone, timed on request: one process of ``side_by_side`` on one checkout.

Run by path with ``PYTHONPATH`` naming the checkout; imports nothing else of this package, because the checkout may be an old one.
Reads one line per request, a cell or ``drop CELL``, and answers a cell with the seconds and the indices of one run.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

import numpy as np

import fastomp_nvm as fo

CELLS = {
    "linear, dram store": {"n_obs": 2000, "n_features": 20_000, "k": 100},
    "linear, array": {"n_obs": 2000, "n_features": 20_000, "k": 100},
    "logistic, dram store": {"n_obs": 800, "n_features": 20_000, "k": 50, "objective": "logistic"},
    "partition, dram store": {"n_obs": 2000, "n_features": 20_000, "k": 100},
    "small, array": {"n_obs": 1000, "n_features": 500, "k": 150},
    "durable, mmap": {"n_obs": 2000, "n_features": 20_000, "k": 100},
}


def data(n_obs: int, n_features: int) -> tuple[Any, Any]:
    """Return independent features (n_obs, n_features) float32, and a response of 100 of them plus noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_features, n_obs), dtype=np.float32).T
    true = min(100, n_features)
    return X, X[:, :true] @ rng.standard_normal(true) + rng.standard_normal(n_obs)


def prepare(name: str, folder: str, scale: int) -> Any:
    """Return a function that runs a cell once and returns the selection."""
    request: dict[str, Any] = dict(CELLS[name])
    n_obs, n_features = request.pop("n_obs"), request.pop("n_features") // scale
    request["k"] = min(request["k"], max(n_features // 10, 1)) if scale > 1 else request["k"]
    X, y = data(n_obs, n_features)
    if request.get("objective") == "logistic":
        y = (y > 0).astype(np.int64)
    if name.startswith("partition"):
        request["constraint"] = fo.constraints.Partition(n_features, np.arange(n_features) % 50, np.full(50, 4))
    if name.endswith("array"):
        return lambda: fo.select(X, y, **request)
    if name.endswith("dram store"):
        store = fo.create_store(f"dram:{name.split(',')[0]}", X, y, replace=True)
        return lambda: fo.select(store, **request)
    url = f"mmap://{folder}/{name.split(',')[0]}"
    fo.create_store(url, X, y, replace=True).close()
    return lambda: fo.select(url, run=f"run-{time.monotonic_ns()}", **request)


def main() -> None:
    """Answer requests until the end of input."""
    runs: dict[str, Any] = {}
    scale = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            name = line.strip()
            if name.startswith("drop "):
                runs.pop(name.removeprefix("drop "), None)
                continue
            if name not in runs:
                runs[name] = prepare(name, folder, scale)
                runs[name]()  # warms up
            started = time.perf_counter()
            found = runs[name]()
            seconds = time.perf_counter() - started
            print(json.dumps({"seconds": seconds, "indices": found.indices.tolist()}), flush=True)


if __name__ == "__main__":
    main()
