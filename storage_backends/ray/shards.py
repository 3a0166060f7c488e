"""Shards as Ray actors: one actor per shard, which maps its store and answers as a pure function; Ray restarts it if it dies.

A call waits for answers and for heartbeats. While a shard computes, a second thread of its actor reports its progress; when a shard
neither answers nor reports for ``timeout`` seconds (because its machine is gone and no other may serve the shard, for example),
the call raises an error that names it. So nothing hangs, and no sweep is too long. Every ``ray.get`` has a timeout.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastomp_nvm.cluster.driver import payload_bytes
from fastomp_nvm.cluster.shard import Shard, ShardAddress
from fastomp_nvm.engine.identity import sweep_build
from fastomp_nvm.errors import FastompError, StoreError, UnreachableError
from fastomp_nvm.matrix.kernels import kernel
from fastomp_nvm.version import __version__
from storage_backends.media.shards import open_shard
from storage_backends.ray.session import session

__all__ = ["RayShards", "ShardActor"]

#: Seconds between two heartbeats.
PULSE_SECONDS = 0.5

#: Values up to this size are sent with the call: fetching from the object store costs each shard some milliseconds.
INLINE_BYTES = 64 << 10

#: Retries of a call whose actor died: bounded, because the call itself may be the cause.
RETRIES = 3

#: Timeout in seconds for fetching a result that is ready.
FETCH_SECONDS = 60.0


class ShardActor:
    """A shard in a process of its own; its store is opened at the first call, so that a failure to open it is an answer.

    Parameters
    ----------
    address : ShardAddress
    neighbours : int
        Number of shards on the same machine, which share its cores.
    tier_in_memory : bool
    """

    def __init__(self, address: ShardAddress, neighbours: int, tier_in_memory: bool) -> None:
        self._address = address
        self._threads = max(len(os.sched_getaffinity(0)) // neighbours, 1)
        self._tier_in_memory = tier_in_memory
        self._shard: Shard | None = None
        self._opening = threading.Lock()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the shard."""
        with self._opening:
            if self._shard is None:
                self._shard = Shard(self._address, open_shard(self._address, tier_in_memory=self._tier_in_memory), self._threads)
        return getattr(self._shard, method)(*arguments)

    def pulse(self) -> float:
        """Return the progress of the sweep."""
        return 0.0 if self._shard is None else self._shard.progress()

    def process(self) -> int:
        """Return the process id of the actor."""
        return os.getpid()


class RayShards:
    """The :class:`~fastomp_nvm.cluster.driver.Transport` over Ray.

    Parameters
    ----------
    addresses : sequence of ShardAddress
    ray_address : str
        Address of the cluster to join; empty to start one.
    timeout : float
        Seconds without a heartbeat after which a shard counts as lost.
    tier_in_memory : bool
        Whether shards copy their tier into memory.
    """

    def __init__(self, addresses: Sequence[ShardAddress], ray_address: str, timeout: float, tier_in_memory: bool = False) -> None:
        self._addresses = tuple(addresses)
        self._timeout = timeout
        self._report: Callable[[Sequence[float]], None] | None = None
        self._session = session(ray_address, timeout).__enter__()
        self._ray: Any = self._session.ray
        self._actors: list[Any] = []
        try:
            machines = _machines(self._ray.nodes())
            neighbours = -(-len(self._addresses) // len(machines))
            made = self._ray.remote(concurrency_groups={"pulse": 1})(_with_pulse(self._ray))
            affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            for place, address in enumerate(self._addresses):
                options: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": RETRIES}
                if address.resource:
                    options |= {"resources": {address.resource: 0.0001}, "scheduling_strategy": "SPREAD"}
                else:  # soft, so that another machine may replace a lost one
                    options["scheduling_strategy"] = affinity(machines[place % len(machines)], soft=True)
                    options["memory"] = 1  # without any requirement Ray ignores the strategy and chooses a random node
                self._actors.append(made.options(**options).remote(address, neighbours, tier_in_memory))
            self._check_builds()
        except BaseException:
            self.close()
            raise

    def share(self, value: Any) -> Any:
        """Put a value into the object store; small values are returned unchanged, to be sent with the call."""
        return value if payload_bytes(value) <= INLINE_BYTES else self._ray.put(value)

    def watch(self, report: Callable[[Sequence[float]], None] | None) -> None:
        """Call ``report`` while waiting."""
        self._report = report

    def processes(self) -> list[int]:
        """Return the process id of each shard's actor."""
        calls = {self._actors[shard].process.remote(): shard for shard in range(len(self._actors))}
        return [found for _, found in sorted(self._wait(calls).items())]

    def call(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call a method of several shards at once."""
        calls = {self._actors[shard].ask.remote(method, *given): shard for shard, given in arguments.items()}
        return self._wait(calls)

    def close(self) -> None:
        """End the actors, and Ray where it was started for them."""
        actors, self._actors = self._actors, []
        for actor in actors:
            with contextlib.suppress(Exception):  # the actor, or Ray itself, is gone already
                self._ray.kill(actor)
        if self._session is not None:
            self._session.__exit__()
            self._session = None  # type: ignore[assignment]

    def _wait(self, calls: dict[Any, int]) -> dict[int, Any]:
        """Return the results of calls by shard; raise when a shard cannot answer."""
        ray, results = self._ray, dict[int, Any]()
        heard = dict.fromkeys(calls.values(), time.monotonic())
        shares = dict.fromkeys(range(len(self._actors)), 1.0) | dict.fromkeys(calls.values(), 0.0)
        pulses: dict[Any, int] = {}
        while True:
            try:  # mostly all answers arrive before a heartbeat is due: then Ray is called once
                return results | dict(zip(calls.values(), ray.get([*calls], timeout=PULSE_SECONDS), strict=True))
            except (ray.exceptions.RayError, TimeoutError):
                ready, _ = ray.wait([*calls], num_returns=len(calls), timeout=0)
            for reference in ready:
                shard = calls.pop(reference)
                results[shard], shares[shard] = self._fetch(reference, shard), 1.0
            if not calls:
                return results
            self._hear(pulses, heard, shares)
            waiting = set(calls.values())
            silent = [shard for shard in sorted(waiting) if time.monotonic() - heard[shard] > self._timeout]
            if silent:
                raise self._silent(silent[0])
            for shard in waiting - set(pulses.values()):
                pulses[self._actors[shard].pulse.options(max_task_retries=0).remote()] = shard
            if self._report is not None:
                self._report([shares[shard] for shard in sorted(shares)])

    def _hear(self, pulses: dict[Any, int], heard: dict[int, float], shares: dict[int, float]) -> None:
        """Record the heartbeats that have arrived."""
        if not pulses:
            return
        ready, _ = self._ray.wait([*pulses], num_returns=len(pulses), timeout=0)
        for reference in ready:
            shard = pulses.pop(reference)
            try:
                shares[shard] = float(self._ray.get(reference, timeout=FETCH_SECONDS))
            except (self._ray.exceptions.RayError, TimeoutError):  # its process died: no heartbeat
                continue
            heard[shard] = time.monotonic()

    def _fetch(self, reference: Any, shard: int) -> Any:
        """Return the result of a call, or raise its error."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(reference, timeout=FETCH_SECONDS)
        except exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, BaseException) else error
            if isinstance(cause, FastompError):
                raise _named(cause, self._addresses[shard].name) from error
            raise UnreachableError(f"{self._addresses[shard].name} failed: {' '.join(str(cause).split())[:300]}") from error
        except exceptions.RayActorError as error:
            raise UnreachableError(
                f"{self._addresses[shard].name} lost its process {RETRIES + 1} times while it answered, or for good: look "
                "at the memory and the kernel log of its machine, then resume the run or start it again"
            ) from error
        except (exceptions.RayError, TimeoutError) as error:
            raise UnreachableError(f"{self._addresses[shard].name} failed: {' '.join(str(error).split())[:300]}") from error

    def _silent(self, shard: int) -> UnreachableError:
        """Return the error for a shard that has stopped sending heartbeats."""
        address = self._addresses[shard]
        where = f" (needs a machine with the Ray resource {address.resource!r})" if address.resource else ""
        return UnreachableError(
            f"{address.name} sent no heartbeat for {self._timeout:g} seconds; its machine may be gone and no other may serve it"
            f"{where}: bring one up, then resume the run or start it again"
        )

    def _check_builds(self) -> None:
        """Refuse shards with another kernel or release; warn where libraries differ, which may change last bits."""
        expected = {"release": __version__, **sweep_build(kernel().id)}
        for shard, found in self.call("hello", dict.fromkeys(range(len(self._actors)), ())).items():
            name = self._addresses[shard].name
            for what, value in found.items():
                if value == expected.get(what):
                    continue
                words = f"{name} runs with {what} {value} and this program with {expected.get(what)}"
                if what in ("release", "kernel", "block"):
                    raise StoreError(
                        f"{words}, so the answer would not be the same: install the same release, set FASTOMP_KERNEL alike"
                    )
                print(f"fastomp: {words}: the last bits of the answer may differ from those of one machine", file=sys.stderr)


def _machines(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the nodes for shards, always in the same order: those that offer CPUs, if any does."""
    alive = sorted((node for node in nodes if node["Alive"]), key=lambda node: str(node["NodeID"]))
    return [node["NodeID"] for node in alive if node["Resources"].get("CPU")] or [node["NodeID"] for node in alive]


def _with_pulse(ray: Any) -> type[ShardActor]:
    """Return the class of the actor, whose heartbeat runs on a thread of its own."""

    class Actor(ShardActor):
        @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
        def pulse(self) -> float:
            """Return the progress of the sweep."""
            return super().pulse()

        @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
        def process(self) -> int:
            """Return the number of the actor's process."""
            return super().process()

    return Actor


def _named(error: FastompError, name: str) -> FastompError:
    """Return a shard's error with the name of the shard."""
    return error if name in str(error) else type(error)(f"{name}: {error}")
