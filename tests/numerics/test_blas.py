"""One BLAS thread while a selection runs, and as many as before when the last one is done."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import scipy.linalg  # noqa: F401  (loads the BLAS of NumPy and that of SciPy)

from fastomp_nvm.matrix import threads as limits
from fastomp_nvm.matrix.threads import one_blas_thread

threadpoolctl = pytest.importorskip("threadpoolctl")

pytestmark = pytest.mark.numerics


@pytest.fixture(params=["linked", "found by threadpoolctl"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Find the functions of OpenBLAS among the libraries of NumPy and SciPy, or as those of another BLAS are found."""
    if request.param != "linked":
        monkeypatch.setattr(limits, "OPENBLAS_NAMES", ())
    limits._thread_counts.cache_clear()
    yield
    limits._thread_counts.cache_clear()


def threads() -> set[int]:
    """Return the thread counts of the BLAS libraries loaded."""
    return {library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"}


def test_the_limit_ends_with_the_last_of_several_blocks() -> None:
    """Of two blocks that are open at once, whichever is left first leaves the other its limit."""
    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        before = threads()
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        assert threads() == {1}
        first.__exit__(None, None, None)
        assert threads() == {1}
        second.__exit__(None, None, None)
        assert threads() == before
        with pytest.raises(KeyError), one_blas_thread():
            raise KeyError
        assert threads() == before


def test_the_limit_holds_whichever_thread_asks_for_it() -> None:
    """Another thread than the first that set a limit sets one too, and takes it away again: its bits must be those of the first."""

    def inside() -> set[int]:
        with one_blas_thread():
            return threads()

    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        before = threads()
        assert inside() == {1}
        with ThreadPoolExecutor(1) as executor:
            assert executor.submit(inside).result() == {1}
            assert executor.submit(threads).result() == before
        assert threads() == before
