"""The connections of a Flight server, bounded: the library accepts every one and offers no limit.

A connection costs a descriptor before anybody has shown a token, and a server without descriptors can neither run jobs nor answer.
So connections are counted from outside, among the process's own descriptors. One that carries no authenticated call soon after it
was opened is ended, and beyond the limit those that were silent longest are, the ones without a token first. Ending means
``shutdown``: the library sees a peer that has gone and closes the descriptor itself.
"""

from __future__ import annotations

import os
import resource
import socket
import stat
import threading
import time
from collections.abc import Iterable

__all__ = ["Connections"]

#: Seconds that a new connection has for its first authenticated call.
_GRACE_SECONDS = 20.0


class Connections:
    """The connections of one listening port.

    Parameters
    ----------
    port : int
    most : int
    """

    def __init__(self, port: int, most: int) -> None:
        self._port = port
        self._most = most
        self._lock = threading.Lock()
        self._heard: dict[int, float] = {}  # time of the last authenticated call, by the peer's port
        self._known: dict[tuple[int, int], float] = {}  # time at which it was first seen, by descriptor and the peer's port

    def heard(self, peer: str) -> None:
        """Note an authenticated call of a peer, in the library's notation, which ends in its port."""
        port = peer.rpartition(":")[2]
        with self._lock:
            self._heard[int(port) if port.isdecimal() else 0] = time.monotonic()

    def shed(self) -> int:
        """End connections without an authenticated call, and those beyond the limit; return the number of the ended."""
        now = time.monotonic()
        found = list(self._open())
        with self._lock:
            self._known = {key: self._known.get(key, now) for key in found}
            ports = {port for _, port in found}
            self._heard = {port: moment for port, moment in self._heard.items() if port in ports or moment > now - _GRACE_SECONDS}
            heard = dict(self._heard)
        order = sorted(found, key=lambda key: (key[1] in heard, heard.get(key[1], self._known[key])))
        surplus = len(order) - self._most
        ended = [
            key
            for place, key in enumerate(order)
            if place < surplus or (key[1] not in heard and self._known[key] < now - _GRACE_SECONDS)
        ]
        for descriptor, _ in ended:
            _end(descriptor)
        return len(ended)

    def _open(self) -> Iterable[tuple[int, int]]:
        """Yield the descriptor and the peer's port of every open connection."""
        for descriptor in _descriptors():
            try:
                if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    continue
                with _Borrowed(fileno=descriptor) as found:
                    if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] == self._port:
                        yield descriptor, found.getpeername()[1]
            except OSError:  # closed meanwhile, or the listening socket
                continue


class _Borrowed(socket.socket):
    """A socket of somebody else: it is not closed here."""

    def __exit__(self, *_: object) -> None:
        self.detach()


def _descriptors() -> Iterable[int]:
    """Return the open descriptors of this process or, when there is none left to list them with, all possible ones."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _end(descriptor: int) -> None:
    """End the connection with this descriptor."""
    try:
        with _Borrowed(fileno=descriptor) as found:
            found.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended by itself
