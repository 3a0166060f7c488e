"""One BLAS thread while a selection runs.

The big products run in our own kernel, on our own threads. What is left for BLAS is small, and there its threads do harm: their
barriers cost more than the work (ten times, on a machine that is busy), and their number changes the last bits of a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import Any

__all__ = ["blas_libraries", "one_blas_thread"]


@lru_cache(maxsize=1)
def _controller() -> Any:
    """Return the controller of the BLAS libraries loaded by NumPy and SciPy, or None without threadpoolctl."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:  # the core promises to run with numpy and scipy alone; then BLAS does as it likes
        return None
    return ThreadpoolController().select(user_api="blas")


_lock = Lock()
_inside: list[list[int]] = []  # one entry per block that is open: how many threads each library had


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside the block, and until the last of several that are open at once is left."""
    controller = _controller()
    if controller is None:
        yield
        return
    with _lock:
        # The limit is the process's: the first to leave must not lift it for the others, whose bits it would change.
        _inside.append(_inside[0] if _inside else [library.num_threads for library in controller.lib_controllers])
        for library in controller.lib_controllers:  # one by one: its own limiter takes ten times as long
            _limit(library, 1)
    try:
        yield
    finally:
        with _lock:
            before = _inside.pop()
            if not _inside:
                for library, threads in zip(controller.lib_controllers, before, strict=True):
                    _limit(library, threads)


def _limit(library: Any, threads: int) -> None:
    """Set the threads of a BLAS, whichever thread calls.

    From 3.8 on threadpoolctl does nothing, without a word, for any thread but the first that set a limit. Who may set one here is
    up to ``_inside``.
    """
    getattr(library, "_real_set_num_threads", library.set_num_threads)(threads)


def blas_libraries() -> list[str]:
    """Return name, release and processor type of each BLAS loaded, sorted; empty without threadpoolctl."""
    controller = _controller()
    if controller is None:
        return []
    described = (
        f"{library['internal_api']} {library['version']} {library.get('architecture', '')}" for library in controller.info()
    )
    return sorted(each.strip() for each in described)
