"""One BLAS thread while a selection runs.

The big products run in our own kernel, on our own threads. What is left for BLAS is small, and there its threads do harm: their
barriers cost more than the work (ten times, on a machine that is busy), and their number changes the last bits of a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

__all__ = ["blas_libraries", "one_blas_thread"]


@lru_cache(maxsize=1)
def _controller() -> Any:
    """Return the controller of the BLAS libraries loaded by NumPy and SciPy, or None without threadpoolctl."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:  # the core promises to run with numpy and scipy alone; then BLAS does as it likes
        return None
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside the block."""
    controller = _controller()
    if controller is None:
        yield
        return
    with controller.limit(limits=1, user_api="blas"):
        yield


def blas_libraries() -> list[str]:
    """Return name, release and processor type of each BLAS loaded, sorted; empty without threadpoolctl."""
    controller = _controller()
    if controller is None:
        return []
    found = (library for library in controller.info() if library["user_api"] == "blas")
    return sorted(f"{library['internal_api']} {library['version']} {library.get('architecture', '')}".strip() for library in found)
