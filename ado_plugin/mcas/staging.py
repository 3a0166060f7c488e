"""Uploads into an MCAS pool: a store is built as files of this machine first, then put value by value.

MCAS accepts whole values only, so the feature-major layout is made here, in a private directory, by the same builder and with the
same checks as elsewhere; then the files of that store are put, the matrix in pieces of whole blocks. The store is visible in the
pool once the ledger there has its manifest. The directory is locked while its process lives; directories of dead processes
are removed by the next upload. Knows neither operations nor runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ado_plugin.mcas.message import array_prefix, value_of
from ado_plugin.mcas.session import LARGEST_VALUE, McasSession
from ado_plugin.service.uploads import Tile, UploadPlan, decode_ids, decode_targets
from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.durable_files import is_unlocked
from fastomp_nvm.errors import UploadLostError
from fastomp_nvm.remote.protocol import WireTile
from fastomp_nvm.stores.open import open_store
from storage_backends.build.builder import StoreBuilder
from storage_backends.files.durable import scratch_directory
from storage_backends.files.format import matrix_length
from storage_backends.media.mcas import FORMAT

__all__ = ["PIECE_BYTES", "Staging", "is_held"]

#: Bytes of one piece of a matrix, unless a block of the grid is larger; far below the largest value, to save memory.
PIECE_BYTES = 256 << 20

#: Enough for a piece even at the slowest rate seen.
_SECONDS_PER_PIECE = 60.0

_PREFIX = "fastomp-mcas-"


class Staging:
    """The uploads of one client.

    Parameters
    ----------
    session : McasSession

    Attributes
    ----------
    folder : str or None
        The directory of all uploads; None before the first.
    """

    def __init__(self, session: McasSession) -> None:
        self._session = session
        self.folder: str | None = None
        self._lock = -1
        self._uploads: dict[str, tuple[StoreBuilder, UploadPlan]] = {}

    def begin(self, plan: UploadPlan) -> dict[str, Any]:
        """Begin a store; tiles follow, then ``finish``."""
        if self.folder is None:
            self.folder, self._lock = scratch_directory(_PREFIX, tempfile.gettempdir())
        name = secrets.token_hex(8)
        builder = StoreBuilder(f"mmap://{self.folder}/{name}", plan.schema, **plan.settings)
        self._uploads[name] = (builder.__enter__(), plan)
        return {"upload": name, "next": 0, "crc": 0}

    def write(self, upload: str, tiles: Iterable[WireTile]) -> dict[str, Any]:
        """Write tiles."""
        builder, _ = self._find(upload)
        number = 0
        for tile in tiles:
            part = Tile.of(tile.header, tile.data.view(tile.header["dtype"]))
            builder.write_tile(part.first_obs, part.first_column, part.values())
            number = part.number + 1
        return {"next": number}

    def finish(self, body: Mapping[str, Any]) -> tuple[UploadPlan, dict[str, Any], Path]:
        """Seal an upload; return its plan, its report, and the directory of the store, which ``drop`` removes."""
        upload = body["upload"]
        builder, plan = self._find(upload)
        report = asdict(builder.finish(decode_targets(body), body["provenance"], ids=decode_ids(body)))
        return plan, report, Path(self.folder or "") / upload

    def manifest(self, key: str, folder: Path) -> dict[str, Any]:
        """Return the manifest of a store, which names the values that ``push`` puts, and this client."""
        with open_store(f"mmap://{folder}") as store:
            layout = store.layout
            arrays = ["matrix", *(["tier"] if store.tier is not None else [])]
        large = {f"{name}.npy" for name in arrays}
        return {
            "format": FORMAT,
            "key": key,
            "host": platform.node(),
            "folder": self.folder,
            "token": secrets.token_hex(6),
            "pieces": _pieces(layout.blocks, layout.n_obs * np.dtype(layout.dtype).itemsize),
            "files": [path.name for path in sorted(folder.iterdir()) if path.is_file() and path.name not in large],
            "arrays": arrays,
            "fingerprint": layout.fingerprint,
            "n_features": layout.n_features,
            "n_obs": layout.n_obs,
            "dtype": layout.dtype,
            "stored": sum(path.stat().st_size for path in folder.iterdir() if path.is_file()),
            "bytes": layout.n_columns * layout.n_obs * np.dtype(layout.dtype).itemsize,
        }

    def push(self, pool: str, folder: Path, manifest: Mapping[str, Any], timeout: float) -> None:
        """Put the files of a store into a pool."""
        prefix, n_obs = f"fo/{manifest['key']}/{manifest['token']}", manifest["n_obs"]
        for name in manifest["files"]:
            self._session.put(pool, f"{prefix}/{name}", value_of(f"{prefix}/{name}", (folder / name).read_bytes()), timeout)
        for name in manifest["arrays"]:
            dtype = np.dtype(manifest["dtype"] if name == "matrix" else np.int8)
            offset, row = matrix_length(0, n_obs, dtype.name), n_obs * dtype.itemsize
            for number, (first, last) in enumerate(itertools.pairwise(manifest["pieces"])):
                value = f"{prefix}/{name}/{number}"
                before = array_prefix(value, (last - first, n_obs), dtype)
                part = offset + first * row, (last - first) * row
                path = str(folder / f"{name}.npy")
                self._session.put_file(pool, value, before, path, *part, max(timeout, _SECONDS_PER_PIECE))

    def drop(self, upload: str) -> None:
        """Remove an upload with its files."""
        if upload in self._uploads:
            self._uploads.pop(upload)[0].__exit__(None, None, None)
            shutil.rmtree(Path(self.folder or "") / upload, ignore_errors=True)

    def close(self) -> None:
        """Remove all uploads."""
        for upload in list(self._uploads):
            self.drop(upload)
        if self.folder is not None:
            with contextlib.suppress(OSError):
                os.rmdir(self.folder)
            os.close(self._lock)
            self.folder = None

    def _find(self, upload: str) -> tuple[StoreBuilder, UploadPlan]:
        """Return an upload in progress."""
        if upload not in self._uploads:
            raise UploadLostError("this client does not have the upload any more: send all of it again")
        return self._uploads[upload]


def is_held(folder: str) -> bool:
    """Return whether a process of this machine uses this directory for uploads."""
    return os.path.isdir(folder) and not is_unlocked(folder)


def _pieces(blocks: IndexArray, row_bytes: int) -> list[int]:
    """Return the edges of pieces of whole blocks: at most ``PIECE_BYTES`` each, or one block."""
    edges = [0]
    for before, edge in itertools.pairwise(blocks.tolist()):
        if before > edges[-1] and (edge - edges[-1]) * row_bytes > min(PIECE_BYTES, LARGEST_VALUE):
            edges.append(before)
    edges.append(int(blocks[-1]))
    return edges
