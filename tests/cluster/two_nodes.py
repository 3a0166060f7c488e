"""Run inside a network namespace of its own: a cluster of two nodes, one of which is killed in the middle of a selection.

Prints one JSON object: the answers with the node killed, and how the run ends for whose shard there is no spare node.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import psutil

from storage_backends.ray import shards as ray_cluster
from storage_backends.ray.session import _LOCAL_ENVIRONMENT

os.environ |= {**_LOCAL_ENVIRONMENT, "RAY_AUTH_TOKEN": "0123456789abcdef" * 4, "RAY_health_check_failure_threshold": "2"}
os.environ |= {"RAY_health_check_period_ms": "500", "RAY_health_check_initial_delay_ms": "500"}

ray_cluster.PULSE_SECONDS = 0.05


def main(manifest: str, pinned: str) -> None:
    """Start head and second node, and kill the second one twice."""
    import ray
    from ray.cluster_utils import Cluster

    import fastomp_nvm as fo
    from fastomp_nvm.errors import UnreachableError
    from fastomp_nvm.stores.contract import FeatureStore

    memory = 100 << 20
    head = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": memory, "resources": {"shard-0": 1}}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    found: dict[str, Any] = {"killed": []}

    def killing(store: FeatureStore, **request: Any) -> fo.Selection:
        """Select, and kill the second node, on which a shard must be, after the third round."""
        node = cluster.add_node(num_cpus=2, object_store_memory=memory, resources={"shard-1": 1})
        cluster.wait_for_nodes()
        rows: Any = store.matrix
        alive = True

        def observe(step: Any) -> None:
            nonlocal alive
            if alive and step.round >= 3:
                alive = False
                shards = rows.connection.transport.processes()
                # A machine takes its workers with it; left to themselves they outlive their raylet by up to a second, and answer.
                workers = psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True)
                cluster.remove_node(node, allow_graceful=False)
                for worker in workers:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        worker.kill()
                found["killed"].append([place for place, shard in enumerate(shards) if shard in {each.pid for each in workers}])

        return fo.select(store, observer=observe, **request)

    try:
        os.environ["FASTOMP_RAY"] = cluster.address
        with fo.open_store(f"cluster://{manifest}") as store:
            answer = killing(store, k=12, algorithm="sds_omp")
            found["indices"], found["coef"] = answer.indices.tolist(), [part.tolist() for part in answer.coef]
        started = time.monotonic()
        try:
            with fo.open_store(f"cluster://{pinned}?timeout=30") as store:
                killing(store, k=12, algorithm="sds_omp")
        except UnreachableError as error:
            found["error"], found["seconds"] = str(error), time.monotonic() - started
        print(json.dumps(found), flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # In the usual directory it would tell other programs that it is the cluster of this machine. Sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="two-nodes.", dir="/tmp", ignore_cleanup_errors=True) as private:
        os.environ["RAY_TMPDIR"] = private
        main(sys.argv[1], sys.argv[2])
