"""CRC-32 of large buffers, by the quickest means at hand; every means gives the same number."""

from __future__ import annotations

import contextlib
import importlib
import zlib
from collections.abc import Callable
from typing import Any

__all__ = ["QUICK", "crc32"]


def _quickest() -> Callable[..., int]:
    """Return isal's function where it is installed, which is several times quicker, otherwise that of zlib."""
    module: Any = zlib
    with contextlib.suppress(ImportError):
        module = importlib.import_module("isal.isal_zlib")
    found: Callable[..., int] = module.crc32
    return found


_crc32 = _quickest()

#: Whether a checksum takes next to no time beside a sweep of the same bytes (isal: 50 GB/s and core measured; zlib: 4).
QUICK = _crc32 is not zlib.crc32


def crc32(buffer: Any, start: int = 0) -> int:
    """Return the CRC-32 of a buffer's bytes, going on from ``start``; other threads run meanwhile."""
    return _crc32(buffer, start)
