"""Calls of the plugin in an MCAS server: repeated while the pool is busy, or after a lost reply, within a time limit.

A call is made on one of the *doors* of a pool, values without content: the server refuses two calls on one value, and queues those
on different values. Clients read no value directly, so that none has to wait for a reader; what a call needs is created by its
client, and what nobody needs any more is erased by any.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import secrets
import time
from collections.abc import Mapping
from typing import Any

from ado_plugin.mcas.message import plugin_message, read_plugin_reply, value_of
from ado_plugin.mcas.session import LOCK_POLL_SECONDS, McasSession, PoolFullError
from fastomp_nvm.errors import CallFailedError, FastompError, LockedError, ServerError, StoreError, StoreURLError

__all__ = ["Plugin"]

#: Number of doors.
_DOORS = 16
_DOOR_BYTES = 64

#: Attempts at one call whose reply is lost: upstream's client gave up, or the server's helper process died.
_ATTEMPTS = 4

_LONGEST_PAUSE = 0.5
_MOST_ROOMS = 50


class Plugin:
    """The plugin, as one client calls it.

    Parameters
    ----------
    session : McasSession

    Attributes
    ----------
    client : str
        Identifies this client in the pool.
    acknowledged : set of str
        Runs whose end this client has seen; the next call says so.
    """

    def __init__(self, session: McasSession) -> None:
        self._session = session
        self._checked: tuple[str, int] | None = None  # the pool whose doors exist, and the connection that has seen them
        self._erased: list[str] = []
        self.client = secrets.token_hex(8)
        self.acknowledged: set[str] = set()

    def found(self, pool: str, timeout: float) -> None:
        """Make the doors of a pool unless they exist."""
        if not self._exists(pool, timeout):
            for number in range(_DOORS):
                self._session.put(pool, _door(number), value_of(_door(number), bytes(_DOOR_BYTES)), timeout)

    def call(self, pool: str, operation: str, timeout: float, *, attempts: int = _ATTEMPTS, **parameters: Any) -> dict[str, Any]:
        """Carry out an operation in a pool and return its reply; raise its error."""
        if not self._exists(pool, timeout):
            raise StoreURLError(f"there is no store in the pool {pool!r} of {self._session.server}: put one into it first")
        began, pause, failures, rooms = time.monotonic(), LOCK_POLL_SECONDS / 8, 0, 0
        names = {"pool": pool, "client": self.client, "call": secrets.token_hex(4)}
        sent: dict[str, Any] = {"operation": operation, **names, **parameters}
        while True:
            acknowledged, erased = sorted(self.acknowledged), self._erased[:]
            noted = {"acknowledged": acknowledged, "erased": erased}
            message = plugin_message({**sent, **{name: value for name, value in noted.items() if value}})
            try:
                reply = read_plugin_reply(self._invoke(pool, message, timeout))
            except CallFailedError:
                failures += 1
                if failures == attempts:
                    raise
                continue
            if "room" in reply:
                rooms += 1
                if rooms > _MOST_ROOMS:
                    raise ServerError(f"the pool {pool!r} asks for room again and again: another release may use it too")
                self._make_room(pool, reply["room"], sent, timeout)
                continue
            if "busy" not in reply and "wait" not in reply:
                break
            if time.monotonic() - began > timeout:
                raise self._unseen(pool, reply["busy"], timeout) if "busy" in reply else ServerError(reply["wait"])
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        self.acknowledged.difference_update(acknowledged)
        self._erased = [key for key in self._erased if key not in erased]
        for key in reply.pop("garbage", ()):
            with contextlib.suppress(FastompError):  # another client erases it
                self._session.erase(pool, key, timeout)
                self._erased.append(key)
        return reply

    def _exists(self, pool: str, timeout: float) -> bool:
        """Return whether a pool has its doors. A call of a value that does not exist would end the server's helper process."""
        if self._checked is None or self._checked != (pool, self._session.connections):
            if not self._session.size(pool, _door(_DOORS - 1), timeout):  # the one made last
                return False
            self._checked = pool, self._session.connections
        return True

    def _invoke(self, pool: str, message: bytes, timeout: float) -> bytes:
        """Call the plugin through a free door and return its reply."""
        end, doors = time.monotonic() + timeout, random.sample(range(_DOORS), _DOORS)
        for attempt in itertools.count(1):
            try:
                return self._session.invoke(pool, _door(doors[attempt % _DOORS]), message, timeout)
            except LockedError:
                if time.monotonic() > end:
                    raise
                if not attempt % _DOORS:
                    time.sleep(LOCK_POLL_SECONDS)
        raise AssertionError("the loop ends with a reply or an error")

    def _make_room(self, pool: str, room: Mapping[str, int], sent: dict[str, Any], timeout: float) -> None:
        """Create values that the plugin asks for; note in the call those created, or that the pool is full."""
        for key, size in room.items():
            if not self._session.size(pool, key, timeout):
                try:
                    self._session.put(pool, key, value_of(key, bytes(size)), timeout)
                except PoolFullError:
                    sent["full"] = True
                    return
            sent["made"] = {**sent.get("made", {}), key: size}

    def _unseen(self, pool: str, key: str, timeout: float) -> FastompError:
        """Return the error for a value that the plugin did not see in time, which alone proves nothing."""
        if not self._session.size(pool, key, timeout):
            return StoreError(f"the pool {pool!r} lacks the value {key}: it was erased, or its upload did not finish; put it again")
        return ServerError(
            f"the value {key} of the pool {pool!r} stayed locked for {timeout:.3g} s: another client uses it, or the server keeps "
            "the lock of one that has left, a known defect (deploy/MCAS.md): close the pool in all clients, and try again",
            reason="busy",
        )


def _door(number: int) -> str:
    """Return the key of a door."""
    return f"fastomp/door/{number}"
