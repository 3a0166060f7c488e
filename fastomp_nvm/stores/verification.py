"""A store compared with its checksums, as the result of a command or of a server's job."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from fastomp_nvm.arrays import JSONObject
from fastomp_nvm.errors import CancelledError
from fastomp_nvm.stores.contract import FeatureStore

__all__ = ["StoreVerification", "verify_store"]


@dataclass(frozen=True, slots=True)
class StoreVerification:
    """A store whose blocks all match their checksums.

    Attributes
    ----------
    blocks, bytes : int
        Of the matrix.
    unchecked : str
        Why selections do not compare columns with checksums as they read them; empty where they do.
    """

    blocks: int
    bytes: int
    unchecked: str

    @classmethod
    def of(cls, store: FeatureStore) -> StoreVerification:
        """Return that of a store that was verified."""
        return cls(len(store.layout.blocks) - 1, int(store.matrix.nbytes), store.unchecked)

    def to_json(self) -> JSONObject:
        """Return the fields."""
        return asdict(self)


def verify_store(
    store: FeatureStore,
    progress: Callable[[int, int, float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> StoreVerification:
    """Compare all blocks of matrix and tier with their checksums; ``StoreError`` names the first that differs.

    ``progress`` is called with (bytes done, bytes to do, seconds so far); a true answer of ``cancelled`` ends it with
    ``CancelledError``.
    """
    began = time.monotonic()

    def report(done: int, total: int) -> None:
        if cancelled is not None and cancelled():
            raise CancelledError("the verification was cancelled")
        if progress is not None:
            progress(done, total, time.monotonic() - began)

    store.verify(report)
    return StoreVerification.of(store)
