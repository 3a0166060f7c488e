"""Stores inside an MCAS server: values of a pool as NumPy views, read in place.

::

    fo/KEY/TOKEN/FILE         the sidecars, as in a file store (see storage_backends.files.format)
    fo/KEY/TOKEN/matrix/N     columns pieces[N] to pieces[N + 1] of the matrix, whole blocks of the grid
    fo/KEY/TOKEN/tier/N       the same columns of the int8 tier, where there is one

KEY, TOKEN, pieces and files are in the manifest of the store, an entry of the ledger of the pool (``ado_plugin.mcas.ledger``). A
value is an array of int8, or of the matrix's type, at any address. Inside the server values are neither created nor removed, which
would not be safe there: state is written in place, into arrays created by the client. MCAS itself is not imported; callers pass
``load``, which returns a view, or raises ``BusyValueError`` for a value that cannot be seen: it is missing, or locked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.errors import StoreError, StoreURLError
from fastomp_nvm.matrix.checksum import Seal
from fastomp_nvm.matrix.rows import PiecedRows, Rows
from fastomp_nvm.stores.contract import MediumTraits, Sidecars
from storage_backends.files import format as store_format
from storage_backends.opened import OpenedStore

__all__ = ["FORMAT", "TRAITS", "BusyValueError", "PoolStore", "open_pool_store", "values_of_store", "writable_bytes"]

#: Version of the keys described above and of the manifest.
FORMAT = 2

#: Writing in place survives SIGKILL of the server (tested); nothing is flushed against a loss of power.
TRAITS = MediumTraits("mcas", "process", False, "zero-copy views of an MCAS pool; survives its processes, not a loss of power")

#: Seals of stores by prefix, and how many are kept: a store is opened for every slice of work, and its values never change.
_known_seals: dict[str, list[Seal | None]] = {}
_MOST_KNOWN = 16

Load = Callable[[str], AnyArray]


class BusyValueError(Exception):
    """A value cannot be seen in the server: another client has it locked, or it does not exist; only a client can tell which."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the value {key!r} is locked or missing")
        self.key = key


class PoolStore(OpenedStore):
    """A store whose matrix is one or more values of a pool. It has no regions: a run keeps its state in slots of the pool.

    Parameters
    ----------
    url : str
    prefix : str
        Of the names of its values, which no other store of this process has.
    matrix, sidecars, codes
        As for ``OpenedStore``.

    Attributes
    ----------
    watch : callable, optional
        Called by ``verify`` with (bytes done, bytes to do) where its caller gives no function; may raise to end it.
    """

    watch: Callable[[int, int], None] | None = None

    def __init__(self, url: str, prefix: str, matrix: AnyArray | Rows, sidecars: Sidecars, codes: AnyArray | Rows | None) -> None:
        super().__init__(url, TRAITS, matrix, sidecars, codes)
        while len(_known_seals) >= _MOST_KNOWN and prefix not in _known_seals:
            _known_seals.pop(next(iter(_known_seals)))
        self._seals = _known_seals.setdefault(prefix, self._seals)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Recompute all checksums; raise ``StoreError`` naming the first column, or block, that differs."""
        super().verify(progress or self.watch)

    def region(self, name: str, size: int = 0) -> NoReturn:
        """Raise ``StoreError``: values cannot be created inside the server."""
        raise StoreError(f"the store {self.url} is in an MCAS pool and has no regions: a run there keeps its own state")

    def regions(self) -> Sequence[str]:
        """Return no names."""
        return ()

    def drop_region(self, name: str) -> NoReturn:
        """Raise ``StoreURLError``: there are no regions."""
        raise StoreURLError(f"the store {self.url} is in an MCAS pool and has no region {name!r} to drop")


def open_pool_store(load: Load, key: str, manifest: Mapping[str, Any]) -> PoolStore:
    """Open the store of a pool.

    Parameters
    ----------
    load : callable
        Maps a key to a view.
    key : str
        Name of the store in the pool.
    manifest : mapping
        As ``ado_plugin.mcas.staging`` makes it.
    """
    try:
        if manifest["format"] != FORMAT:
            raise StoreError(f"the store {key!r} has format {manifest['format']!r} and this plugin reads {FORMAT}: put it again")
        prefix, pieces = f"fo/{key}/{manifest['token']}", [int(edge) for edge in manifest["pieces"]]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the manifest of the store {key!r} cannot be used: put the store again") from error

    def view(name: str) -> AnyArray:
        return load(f"{prefix}/{name}")

    def read(name: str, length: int) -> bytes:
        return view(name).view(np.uint8).tobytes()

    try:
        header = store_format.decode_header(read(store_format.HEADER, 0))
        sidecars = store_format.decode_sidecars(header, read)
    except StoreError as error:
        raise StoreError(f"the store {key!r} of this pool cannot be used: {error}") from error
    if not set(pieces) <= set(sidecars.layout.blocks.tolist()):
        raise StoreError(f"a piece of the store {key!r} ends inside a block of its grid: put the store again")

    def rows(kind: str, shape: store_format.Shape) -> Any:
        return _rows([view(f"{kind}/{number}") for number in range(len(pieces) - 1)], pieces, shape, key)

    return PoolStore(key, prefix, rows("matrix", header.matrix), sidecars, header.tier and rows("tier", header.tier))


def values_of_store(key: str, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of all values that a manifest names."""
    prefix = f"fo/{key}/{manifest['token']}"
    yield from (f"{prefix}/{name}" for name in manifest["files"])
    for name in manifest["arrays"]:
        yield from (f"{prefix}/{name}/{number}" for number in range(len(manifest["pieces"]) - 1))


def writable_bytes(array: AnyArray) -> AnyArray:
    """Return a writable view, as (size,) uint8, of the same memory as ``array``, which it keeps alive.

    MCAS returns values as read-only arrays over writable memory. NumPy 2.3 and later refuse ``setflags(write=True)`` on them, so
    the view is made from the address.
    """
    interface = dict(array.__array_interface__)
    address, _ = interface["data"]
    interface["data"] = address, False  # not read-only
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=array)).view(np.uint8)


def _rows(pieces: Sequence[AnyArray], edges: Sequence[int], shape: store_format.Shape, key: str) -> Any:
    """Return the pieces as one matrix after checking their shapes."""
    n_columns, n_obs, dtype = shape
    for piece, first, last in zip(pieces, edges, edges[1:], strict=False):
        if piece.dtype != store_format.element_type(dtype) or piece.shape != (last - first, n_obs):
            raise StoreError(f"a piece of the store {key!r} has shape {piece.shape} of {piece.dtype}: put the store again")
    if not pieces or edges[0] != 0 or edges[-1] != n_columns:
        raise StoreError(f"the pieces of the store {key!r} do not make up its {n_columns} columns: put the store again")
    rows = PiecedRows(pieces)
    return rows.arrays[0] if len(pieces) == 1 else rows
