"""A store on its way into an MCAS pool: built as files of this machine first, then put value by value.

MCAS takes whole values only, so the feature-major layout is made here, in a private directory, by the same builder and with the
same checks as everywhere; what is put are the files of that store, the matrix in pieces of whole blocks. Nothing can be seen in the
pool before the manifest is there, and it is put last. Knows no operation and no run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ado_plugin.mcas_message import array_prefix, value_of
from ado_plugin.mcas_session import LARGEST_VALUE, McasSession
from ado_plugin.upload_plans import decode_schema
from fastomp_nvm import registry
from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.errors import UploadLostError
from fastomp_nvm.stores import Target
from fastomp_nvm.upload import WireTile
from fastomp_nvm.wire import decode_vector

__all__ = ["MANIFEST_BYTES", "PIECE_BYTES", "Staging", "padded_json", "values_of_store"]

#: Bytes of one piece of a matrix, unless a block of the grid is larger; far below what a value may have, to stay small in memory.
PIECE_BYTES = 256 << 20

#: Manifests have one size, so that replacing one never changes the size of a value.
MANIFEST_BYTES = 64 << 10

#: Even at the slowest rate seen a piece is there by then.
_SECONDS_PER_PIECE = 60.0

_FORMAT = 1  # that of storage_backends.mcas_pool, which checks it


class Staging:
    """The uploads of one client.

    Parameters
    ----------
    session : McasSession
    """

    def __init__(self, session: McasSession) -> None:
        self._session = session
        self._folder: str | None = None
        self._uploads: dict[str, Any] = {}

    def begin(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Start a store; tiles follow, then ``finish``."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="fastomp-mcas-")
        name = secrets.token_hex(8)
        builder = registry.load("storage_backends.builder:StoreBuilder")(
            f"mmap://{self._folder}/{name}",
            decode_schema(plan),
            dtype=plan["dtype"],
            missing=plan["missing"],
            tier=plan["tier"],
        )
        self._uploads[name] = (builder.__enter__(), dict(plan))
        return {"upload": name, "next": 0, "crc": 0}

    def write(self, upload: str, tiles: Iterable[WireTile]) -> dict[str, Any]:
        """Take in tiles."""
        builder, _ = self._find(upload)
        number = 0
        for tile in tiles:
            header = tile.header
            values = tile.data.view(header["dtype"])
            shape = (header["columns"], header["rows"]) if header["layout"] == "columns" else (header["rows"], header["columns"])
            table = values.reshape(shape).T if header["layout"] == "columns" else values.reshape(shape)
            builder.write_tile(header["first_obs"], header["first_column"], table)
            number = header["number"] + 1
        return {"next": number}

    def finish(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], Path]:
        """Seal an upload; return its plan, the report, and the directory of the store, which ``drop`` removes."""
        upload = body["upload"]
        builder, plan = self._find(upload)
        targets = {
            name: Target(decode_vector(sent["values"], f"the target {name!r}").astype(np.float64), tuple(sent["classes"]))
            for name, sent in body["targets"].items()
        }
        report = asdict(builder.finish(targets, body["provenance"]))
        return plan, report, Path(self._folder or "") / upload

    def push(self, pool: str, key: str, folder: Path, timeout: float) -> dict[str, Any]:
        """Put the files of a store into a pool, everything but the manifest, which is returned."""
        data_offset = registry.load("storage_backends.store_format:matrix_length")
        with registry.load("fastomp_nvm.stores:open_store")(f"mmap://{folder}") as store:
            layout = store.layout
            edges = _pieces(layout.blocks, layout.n_obs * np.dtype(layout.dtype).itemsize)
            large = {"matrix": (np.dtype(layout.dtype), folder / "matrix.npy")}
            if store.tier is not None:
                large["tier"] = (np.dtype(np.int8), folder / "tier.npy")
        token = secrets.token_hex(6)
        prefix = f"fo/{key}/{token}"
        small = [path for path in sorted(folder.iterdir()) if path.is_file() and path not in [file for _, file in large.values()]]
        for path in small:
            self._session.put(pool, f"{prefix}/{path.name}", value_of(f"{prefix}/{path.name}", path.read_bytes()), timeout)
        for name, (dtype, path) in large.items():
            offset, row = data_offset(0, layout.n_obs, dtype.name), layout.n_obs * dtype.itemsize
            for number, (first, last) in enumerate(itertools.pairwise(edges)):
                value = f"{prefix}/{name}/{number}"
                before = array_prefix(value, (last - first, layout.n_obs), dtype)
                part = offset + first * row, (last - first) * row
                self._session.put_file(pool, value, before, str(path), *part, max(timeout, _SECONDS_PER_PIECE))
        return {
            "format": _FORMAT,
            "token": token,
            "pieces": edges,
            "files": [path.name for path in small],
            "arrays": list(large),
            "fingerprint": layout.fingerprint,
            "n_features": layout.n_features,
            "n_obs": layout.n_obs,
            "dtype": layout.dtype,
            "bytes": layout.n_columns * layout.n_obs * np.dtype(layout.dtype).itemsize,
        }

    def drop(self, upload: str) -> None:
        """Forget an upload with its files."""
        builder, _ = self._uploads.pop(upload, (None, None))
        if builder is not None:
            builder.__exit__(None, None, None)
            shutil.rmtree(Path(self._folder or "") / upload, ignore_errors=True)

    def close(self) -> None:
        """Forget everything."""
        for upload in list(self._uploads):
            self.drop(upload)
        if self._folder is not None:
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)
            self._folder = None

    def _find(self, upload: str) -> tuple[Any, dict[str, Any]]:
        """Return an upload in progress."""
        if upload not in self._uploads:
            raise UploadLostError("this client does not hold the upload any more: send all of it again")
        builder, plan = self._uploads[upload]
        return builder, plan


def values_of_store(key: str, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of all values that a manifest speaks of."""
    prefix = f"fo/{key}/{manifest['token']}"
    yield from (f"{prefix}/{name}" for name in manifest["files"])
    for name in manifest["arrays"]:
        yield from (f"{prefix}/{name}/{number}" for number in range(len(manifest["pieces"]) - 1))


def padded_json(content: Mapping[str, Any], size: int) -> bytes:
    """Return a JSON object with spaces behind it up to ``size`` bytes; longer ones are as long as they are."""
    return json.dumps(content, separators=(",", ":")).encode().ljust(size)


def _pieces(blocks: IndexArray, row_bytes: int) -> list[int]:
    """Return where pieces of whole blocks begin and end: at most ``PIECE_BYTES`` each, or one block."""
    edges = [0]
    for before, edge in itertools.pairwise(blocks.tolist()):
        if before > edges[-1] and (edge - edges[-1]) * row_bytes > min(PIECE_BYTES, LARGEST_VALUE):
            edges.append(before)
    edges.append(int(blocks[-1]))
    return edges
