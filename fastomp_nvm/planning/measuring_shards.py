"""What shards on this machine cost besides the work itself: a question, a connection, the way of a column to the driver.

Run as a program it measures and prints one JSON object. ``measure_shards`` runs it in a process of its own, because Ray is started
for it and because an address of a cluster in the environment must not send it there.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.matrix.remote_rows import RemoteRows
from fastomp_nvm.registry import Lazy
from fastomp_nvm.runs.select import select
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.open import create_store, open_store

__all__ = ["ShardCosts", "best_selection", "measure_shards"]

_CUT: Lazy[Any] = Lazy("storage_backends.build.sharding:cut")

#: Observations and features of the stores on which questions are timed, and the way of columns; and how many columns go it at once.
SHORT, LONG, CARRIED = (64, 4096), (4096, 4096), 2048

SHARDS = 2


@dataclass(frozen=True, slots=True)
class ShardCosts:
    """Seconds to ask all shards something, seconds to connect to them, and bytes per second of gathered columns."""

    call: float
    cluster_start: float
    bytes_per_second: float


def measure_shards(folder: Path, repeats: int) -> ShardCosts | None:
    """Measure in a process of its own; None where there is no Ray, or where it does not start, which stderr then tells.

    Parameters
    ----------
    folder : Path
        For stores of some 100 MB.
    repeats : int
    """
    if find_spec("ray") is None:
        return None
    environment = {name: value for name, value in os.environ.items() if name not in ("FASTOMP_RAY", "RAY_ADDRESS")}
    words = [sys.executable, "-m", "fastomp_nvm.planning.measuring_shards", str(folder), str(repeats)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"fastomp: shards could not be measured and stay assumed: {reason}", file=sys.stderr)
        return None
    return ShardCosts(**json.loads(done.stdout.splitlines()[-1]))


def best_selection(store: FeatureStore, repeats: int, **request: Any) -> dict[str, Any]:
    """Select from a store that was read before and whose shards are connected; return the figures of the best run.

    Its time is the clock's less what this thread and the shards waited for a processor. ``first_seconds`` are those of a first run,
    which fills the page cache and connects. A store of this machine is opened anew each time.
    """
    best: dict[str, Any] = {"seconds": math.inf}
    first = 0.0
    for attempt in range(repeats + 1):
        waited, started = _waiting(), time.perf_counter()
        data: Any = Dataset.of_store(store) if isinstance(store.matrix, RemoteRows) else store.url
        details = select(data, **request).to_json()
        clock = time.perf_counter() - started
        seconds = clock - (_waiting() - waited)
        if not attempt:
            first = clock
        elif seconds < best["seconds"]:
            best = {"seconds": seconds, "clock_seconds": clock, "full_passes": details["full_passes"]}
            best |= {"bytes_read": details["bytes_read"], "shard_calls": details.get("shard_calls", 0)}
            best["network_bytes"] = details.get("bytes_sent", 0) + details.get("bytes_received", 0)
    return best | {"first_seconds": first}


def _measured(folder: Path, repeats: int) -> ShardCosts:
    """Measure here."""
    cut = _CUT.load()
    manifests = {}
    for name, shape in {"short": SHORT, "long": LONG}.items():
        design = PaperDesign(*shape)
        with create_store(f"mmap://{folder / name}", design.matrix(), design.response(), rows="features", tier="none") as store:
            manifests[name] = cut(store, f"{folder / name}-shards", SHARDS)
    request: dict[str, Any] = {"k": 20, "tier": "exact"}
    with open_store(f"mmap://{folder / 'short'}") as store:
        alone = best_selection(store, repeats, **request)
    started = time.perf_counter()
    with open_store(f"cluster://{manifests['short']}") as store:
        opened = time.perf_counter() - started
        sharded = best_selection(store, repeats, **request)
        with open_store(f"cluster://{manifests['long']}") as long:  # inside, so that Ray goes on running
            columns = np.arange(0, len(long.matrix), len(long.matrix) // CARRIED)
            rate = max(_rate(long, columns) for _ in range(repeats + 1))
    return ShardCosts(
        call=max(sharded["seconds"] - alone["seconds"], 1e-4) / sharded["shard_calls"],
        cluster_start=max(opened + sharded["first_seconds"] - sharded["clock_seconds"], 1e-3),
        bytes_per_second=rate,
    )


def _rate(store: FeatureStore, columns: Any) -> float:
    """Return the bytes per second at which columns arrive."""
    started = time.perf_counter()
    return float(store.matrix[columns].nbytes / (time.perf_counter() - started))


def _waiting() -> float:
    """Return the seconds that this thread, and the thread of a shard that waited longest, were ready to run without a processor."""
    shards = [child for child in psutil.Process().children(recursive=True) if "::Actor" in child.name()]
    longest = max((_delay(thread) for shard in shards for thread in Path(f"/proc/{shard.pid}/task").iterdir()), default=0.0)
    return _delay(Path("/proc/thread-self")) + longest


def _delay(thread: Path) -> float:
    """Return the seconds a thread waited for a processor; 0 where the kernel does not say."""
    try:
        return int((thread / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


if __name__ == "__main__":
    print(json.dumps(asdict(_measured(Path(sys.argv[1]).resolve(), int(sys.argv[2])))))
