"""A double of upstream's ``pymcas``, for what our values and calls look like to it; it prints on every call, and it unpickles."""

from __future__ import annotations

import pickle
from typing import Any

import mcas
from mcas_personality import array_of

__all__ = ["Pool", "Session", "create_session"]


def create_session(ip: str, port: int, device: str = "mlx5_0", extra: str | None = None, debug: int = 0) -> Session:
    return Session(ip, port, device, extra, debug)


class Session:
    """Creates pools, and only that."""

    def __init__(self, ip: str, port: int, device: str = "mlx5_0", extra: str | None = None, debug: int = 0) -> None:
        self.session = mcas.Session(ip, port, device, extra, debug)

    def create_pool(self, name: str, size: int = 32_000_000, count: int = 1000, create_only: bool = False) -> Pool:
        return Pool(self.session.create_pool(name, size, count, create_only))


class Pool:
    """A pool that knows arrays."""

    def __init__(self, pool: mcas.Pool) -> None:
        self._pool = pool

    def load(self, key: str) -> Any:
        value = self._pool.get_direct(key)
        print(f"load: raw length of {key} is {len(value)}")
        return array_of(key, value)

    def invoke(self, key: str, message: bytes) -> Any:
        print(f"invoke: total len = {len(message)}")
        return pickle.loads(self._pool.invoke_ado(key, bytearray(message)))
