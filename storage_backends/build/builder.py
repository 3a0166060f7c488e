"""Building a store on any medium from tiles of values in any order.

The builder checks every value, transposes observations x columns into the feature-major matrix, fills or drops missing values, and
computes the sidecars from the values *as stored*. It works on tiles of bounded size, so memory does not grow with the source.

Whole columns are transposed, checked and sealed (:mod:`storage_backends.build.sealing`) in one go while they are in the cache, and
written while the next ones are computed. Columns that arrive in parts, or with missing values, are sealed by ``finish``.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray, Float64Array
from fastomp_nvm.errors import DataError, RequestError
from fastomp_nvm.matrix.checksum import crc32_joined
from fastomp_nvm.matrix.memory import fillable_memory
from fastomp_nvm.matrix.moments import ColumnStatistics, gram
from fastomp_nvm.matrix.threads import together, unless_others_fail
from fastomp_nvm.matrix.tier import TierSidecar
from fastomp_nvm.stores.contract import MISSING_POLICIES, STORE_DTYPES, TIERS, Sidecars, StoreLayout, Target
from fastomp_nvm.stores.encoding import ColumnEncoding, TableEncoding
from fastomp_nvm.stores.media import medium_of
from fastomp_nvm.stores.reports import BuildReport
from fastomp_nvm.stores.url import StoreURL
from storage_backends.build.schema import TableSchema
from storage_backends.build.sealing import Sealer
from storage_backends.build.statistics import column_grid, fingerprint
from storage_backends.build.tables import as_table
from storage_backends.build.targets import make_target

__all__ = ["StoreBuilder", "build_from_arrays"]

_TILE_CELLS = 1 << 20
#: Most bytes of columns that are sealed and written at a time.
_RUN_BYTES = 32 << 20
#: Bytes of the draft that may be resident before the builder releases them.
_RESIDENT_BYTES = 64 << 20


class StoreBuilder:
    """Fills a draft and commits it. Use as a context manager: it leaves nothing behind unless ``finish`` returned.

    Parameters
    ----------
    url : str
        Where to build.
    schema : TableSchema
        Shape, names and grouping of the table.
    dtype : {"float32", "float64", "float16"}
    missing : {"error", "mean", "median", "drop-feature"}
        How to treat NaN.
    tier : {"int8", "none"}
        What to keep next to the exact matrix.
    replace : bool
        Replace a store that exists.
    progress : callable, optional
        Called with (bytes done, bytes to do); every byte of the matrix counts twice, when it is written and when it is sealed.
    folder : str, optional
        ``folder`` of an earlier builder of the same store, whose tiles ``adopt_tile`` takes over; file media only.
    """

    def __init__(
        self,
        url: str,
        schema: TableSchema,
        *,
        dtype: str = "float32",
        missing: str = "error",
        tier: str = "int8",
        replace: bool = False,
        progress: Callable[[int, int], None] | None = None,
        folder: str | None = None,
    ) -> None:
        options = (("dtype", dtype, STORE_DTYPES), ("policy for missing values", missing, MISSING_POLICIES), ("tier", tier, TIERS))
        for option, value, known in options:
            if value not in known:
                raise RequestError(f"unknown {option} {value!r}: expected one of {', '.join(known)}")
        parsed = StoreURL.parse(url)
        self._url = url
        self._schema = schema
        self._dtype = np.dtype(dtype)
        self._missing = missing
        self._progress = progress
        earlier: dict[str, Any] = {} if folder is None else {"folder": folder}
        self._draft = medium_of(parsed).draft(parsed, schema.n_columns, schema.n_obs, dtype, replace=replace, tier=tier, **earlier)
        self._written = np.zeros(schema.n_columns, dtype=np.int64)  # observations written so far, per column
        self._gaps = np.zeros(schema.n_columns, dtype=bool)  # whether a column has a missing value
        self._resident = 0
        self._done = 0
        run_bytes = int(min(_RUN_BYTES, fillable_memory() / 16))
        self._run = max(1, run_bytes // (schema.n_obs * self._dtype.itemsize))  # columns sealed and written at a time
        self._sealer = Sealer(schema.n_columns, schema.n_obs)

    def __enter__(self) -> StoreBuilder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._draft.abort()  # harmless after a commit

    @property
    def folder(self) -> str:
        """Name of the directory in which a file medium builds, for a later builder to continue."""
        return str(self._draft.folder)  # type: ignore[attr-defined]

    def leave(self) -> None:
        """Close the builder of a file medium and keep the written tiles for a later builder to continue."""
        self._draft.leave()  # type: ignore[attr-defined]

    def adopt_tile(self, first_obs: int, first_column: int, shape: tuple[int, int], is_whole: Callable[[AnyArray], bool]) -> bool:
        """Take over a tile written by an earlier builder if ``is_whole`` accepts its values; return whether it did.

        Parameters
        ----------
        first_obs, first_column : int
        shape : (int, int)
            Rows and columns.
        is_whole : callable
            Returns whether the (rows, columns) values are complete.
        """
        rows, columns = shape
        stored = self._draft.matrix[first_column : first_column + columns, first_obs : first_obs + rows]
        if stored.shape != (columns, rows) or not is_whole(stored.T):
            return False
        self._gaps[first_column : first_column + columns] |= np.isnan(stored).any(axis=1)
        self._written[first_column : first_column + columns] += rows
        self._touch(columns, rows)
        self._advance(stored.size)
        return True

    def write_rows(self, first_obs: int, values: AnyArray) -> None:
        """Write whole observations; tens of megabytes at a time are best.

        Parameters
        ----------
        first_obs : int
        values : (rows, n_columns) array
        """
        self.write_tile(first_obs, 0, values)

    def write_columns(self, first_column: int, values: AnyArray) -> None:
        """Write whole columns.

        Parameters
        ----------
        first_column : int
        values : (columns, n_obs) array
        """
        self.write_tile(0, first_column, np.asarray(values).T)

    def write_tile(self, first_obs: int, first_column: int, values: AnyArray) -> None:
        """Write a rectangle of the table. Every cell must be written exactly once.

        Parameters
        ----------
        first_obs, first_column : int
        values : (rows, columns) array of floats, integers or booleans
            NaN where a value is missing.

        Raises
        ------
        DataError
            A value is infinite, too large for the dtype, or missing under the policy ``error``.
        """
        values = np.asarray(values)
        if values.ndim != 2 or values.dtype.kind not in "fiub":
            raise DataError(f"a tile has shape {values.shape} and type {values.dtype}: a matrix of numbers is needed")
        rows, columns = values.shape
        n_obs, n_columns = self._schema.n_obs, self._schema.n_columns
        if min(first_obs, first_column) < 0 or first_obs + rows > n_obs or first_column + columns > n_columns:
            raise DataError(f"a tile of shape {values.shape} at row {first_obs + 1} does not fit the table of {n_obs} rows")
        if not values.size:
            return
        if rows == n_obs:
            self._write_whole(first_column, values)
        else:
            self._write_part(first_obs, first_column, values)
        self._written[first_column : first_column + columns] += rows
        self._advance(values.size)

    def _write_whole(self, first_column: int, values: AnyArray) -> None:
        """Write whole columns, and seal them unless missing values may change them."""
        for left in range(0, values.shape[1], self._run):
            piece, first = values[:, left : left + self._run], first_column + left
            stored, codes = self._draft.stage(first, piece.shape[1])

            def load(part: slice, piece: AnyArray = piece, stored: AnyArray = stored) -> None:
                _transpose(piece[:, part], stored[part])

            if self._missing in ("error", "mean"):
                unsealed = self._sealer.seal(first, stored, codes, load=load, only_finite=True)
                self._advance(piece.size - sum(end - start for start, end in unsealed) * len(piece))
            else:
                load(slice(None))
                unsealed = [(first, first + piece.shape[1])]
            for start, end in unsealed:
                part = slice(start - first, end - first)
                if not np.isfinite(stored[part]).all():
                    self._check_cells(piece[:, part].T, stored[part], 0, start)
            self._draft.store(first, stored, codes)

    def _write_part(self, first_obs: int, first_column: int, values: AnyArray) -> None:
        """Write some observations of some columns through the mapping, on all processors."""
        matrix, (rows, columns) = self._draft.matrix, values.shape
        height = min(rows, _TILE_CELLS)
        width = max(1, _TILE_CELLS // height)
        corners = [(top, left) for top in range(0, rows, height) for left in range(0, columns, width)]
        waiting, suspects = iter(corners), []

        def work() -> None:
            for top, left in waiting:
                piece = values[top : top + height, left : left + width]
                row, column = first_obs + top, first_column + left
                stored = np.empty(piece.shape[::-1], self._dtype)
                _transpose(piece, stored)
                if not np.isfinite(stored).all():
                    suspects.append((row, column, piece.T, stored))
                matrix[column : column + len(stored), row : row + stored.shape[1]] = stored
                self._touch(*stored.shape)

        together(unless_others_fail(work, waiting), min(len(corners), len(os.sched_getaffinity(0))) - 1)
        for row, column, piece, stored in sorted(suspects, key=lambda suspect: suspect[:2]):
            self._check_cells(piece, stored, row, column)

    def finish(
        self,
        targets: Mapping[str, Target] | None = None,
        provenance: Mapping[str, Any] | None = None,
        announce: Callable[[BuildReport], None] | None = None,
        ids: Sequence[str] | None = None,
    ) -> BuildReport:
        """Compute the sidecars and make the store visible.

        Parameters
        ----------
        targets : mapping of str to Target
            Responses, the default one first.
        provenance : mapping
            Where the data came from, as JSON data.
        announce : callable, optional
            Called with the report just before the store becomes visible.
        ids : sequence of str, optional
            Identifiers of the observations (n_obs,), where the schema did not have them yet.

        Returns
        -------
        BuildReport

        Raises
        ------
        DataError
            A cell was not written, a target does not fit, or a column or the table has no values left.
        """
        schema, targets = self._schema, dict(targets or {})
        wrong = np.flatnonzero(self._written != schema.n_obs)
        if wrong.size:
            column, given = schema.columns[int(wrong[0])], self._written[wrong[0]]
            raise DataError(f"column {column!r} has {given} observations, expected {schema.n_obs}")
        for name, target in targets.items():
            if target.values.shape != (schema.n_obs,):
                raise DataError(f"target {name!r} has {len(target.values)} values for {schema.n_obs} observations")
        ids = schema.ids if ids is None else ids
        if ids is not None and len(ids) != schema.n_obs:
            raise DataError(f"there are {len(ids)} identifiers for {schema.n_obs} observations")
        kept, dropped = self._drop_features()
        blocks = column_grid(kept.offsets)
        imputed: dict[str, int] = {}
        medians = np.empty(kept.n_columns) if self._missing == "median" and kept.encoding is not None else None
        statistics, sealer = self._seal(kept, imputed, medians)
        checksums = crc32_joined(sealer.values, blocks, kept.n_obs * self._dtype.itemsize)
        layout = StoreLayout(
            kept.n_obs,
            self._dtype.name,
            kept.offsets,
            blocks,
            fingerprint(kept.n_obs, self._dtype.name, kept.offsets, blocks, checksums),
        )
        tier = None
        if self._draft.tier is not None:
            codes = crc32_joined(sealer.codes, blocks, kept.n_obs)
            tier = TierSidecar(sealer.scale, sealer.error, sealer.size, codes, layout.fingerprint, sealer.codes)
        constant = tuple(kept.columns[int(column)] for column in np.flatnonzero(statistics.norm == 0))
        report = BuildReport(
            self._url, kept.n_obs, kept.n_features, kept.n_columns, layout.dtype, layout.fingerprint, imputed, dropped, constant
        )
        if announce is not None:
            announce(report)
        labels = (kept.features, kept.columns, targets, dict(provenance or {}))
        self._draft.commit(Sidecars(layout, statistics, checksums, *labels, tier, _completed(kept, medians), ids, sealer.values))
        return report

    def _check_cells(self, piece: AnyArray, stored: AnyArray, row: int, column: int) -> None:
        """Raise ``DataError`` for a cell that cannot be stored; mark columns with missing cells. Arrays are (columns, rows)."""
        missing = np.isnan(piece) if piece.dtype.kind == "f" else np.zeros(piece.shape, dtype=bool)
        self._gaps[column : column + len(piece)] |= missing.any(axis=1)
        refused = ~np.isfinite(stored)
        if self._missing != "error":
            refused &= ~missing
        if not refused.any():
            return
        observation, member = np.argwhere(refused.T)[0]
        where = f"row {row + observation + 1} of column {self._schema.columns[column + int(member)]!r}"
        value = piece[member, observation]
        if np.isnan(value):
            raise DataError(f"{where} is missing: fill it in or use --missing mean|median|drop-feature")
        if np.isinf(value):
            raise DataError(f"{where} is infinite: a finite number is needed")
        wider = next((dtype for dtype in ("float32", "float64") if abs(value) <= np.finfo(dtype).max), None)
        advice = f"use --dtype {wider}" if wider else "scale the column"
        raise DataError(f"{where} is {value:g}, too large for {self._dtype.name}: {advice}")

    def _drop_features(self) -> tuple[TableSchema, tuple[str, ...]]:
        """Remove features with missing values from the matrix; return the remaining schema and the names of dropped features."""
        schema = self._schema
        if self._missing != "drop-feature" or not self._gaps.any():
            return schema, ()
        starts, widths = schema.offsets[:-1], np.diff(schema.offsets)
        keep = ~np.logical_or.reduceat(self._gaps, starts)
        if not keep.any():
            raise DataError("every feature has a missing value, so none is left: use --missing mean or median")
        matrix = self._draft.matrix
        columns = np.flatnonzero(np.repeat(keep, widths))
        for target, source in enumerate(columns):
            if target != source:
                matrix[target] = matrix[source]
                self._touch(2, schema.n_obs)
        offsets = np.concatenate(([0], np.cumsum(widths[keep])))
        features = tuple(schema.features[int(feature)] for feature in np.flatnonzero(keep))
        names = features if schema.columns is schema.features else tuple(schema.columns[int(column)] for column in columns)
        dropped = tuple(schema.features[int(feature)] for feature in np.flatnonzero(~keep))
        self._gaps = np.zeros(len(columns), dtype=bool)
        encoding = schema.encoding and schema.encoding.restricted(names)
        return TableSchema(schema.n_obs, names, features, offsets, encoding), dropped

    def _seal(self, kept: TableSchema, imputed: dict[str, int], medians: Float64Array | None) -> tuple[ColumnStatistics, Sealer]:
        """Fill missing values and seal the columns that are not sealed yet; write ``medians`` if given."""
        sealer = self._sealer if kept is self._schema else Sealer(kept.n_columns, kept.n_obs)
        matrix, codes = self._draft.matrix, self._draft.tier
        for first, last in list(sealer.open_runs(self._run)):
            for column in (np.flatnonzero(self._gaps[first:last]) + first).tolist():
                self._fill(kept, matrix[column], column, imputed)
            tile = matrix[first:last]
            if medians is not None:  # filling does not change the median
                for column in range(first, last):
                    medians[column] = np.median(matrix[column].astype(np.float64), overwrite_input=True)
            sealer.seal(first, tile, None if codes is None else codes[first:last])
            self._touch(2 * len(tile), kept.n_obs)
            self._advance(tile.size)
        unbounded = np.flatnonzero(~np.isfinite(sealer.mean) | ~np.isfinite(sealer.norm))
        if unbounded.size:
            raise DataError(f"column {kept.columns[int(unbounded[0])]!r} has values whose sum overflows: scale it")
        grams: list[Float64Array] = []
        for feature in np.flatnonzero(np.diff(kept.offsets) > 1).tolist():
            first, last = int(kept.offsets[feature]), int(kept.offsets[feature + 1])
            grams.append(gram(matrix[first:last], sealer.mean[first:last]))
            self._touch(last - first, kept.n_obs)
        return ColumnStatistics(sealer.mean, sealer.norm, sealer.minimum, sealer.maximum, tuple(grams)), sealer

    def _fill(self, kept: TableSchema, values: AnyArray, column: int, imputed: dict[str, int]) -> None:
        """Fill the missing entries of one column in place and count them."""
        gaps = np.isnan(values)
        if gaps.all():
            raise DataError(f"column {kept.columns[column]!r} has no value at all: drop it or use --missing drop-feature")
        present = values[~gaps].astype(np.float64)  # the median of two large float16 would overflow
        values[gaps] = np.median(present) if self._missing == "median" else np.mean(present)
        feature = kept.features[int(np.searchsorted(kept.offsets, column, side="right")) - 1]
        imputed[feature] = imputed.get(feature, 0) + int(gaps.sum())

    def _touch(self, columns: int, observations: int) -> None:
        """Count pages of the draft that became resident, and release them when they are many."""
        pages = observations * self._dtype.itemsize // mmap.PAGESIZE + 1
        self._resident += columns * pages * mmap.PAGESIZE
        if self._resident > _RESIDENT_BYTES:
            self._draft.forget(0, self._schema.n_columns)
            self._resident = 0

    def _advance(self, cells: int) -> None:
        """Report progress."""
        self._done += cells * self._dtype.itemsize
        if self._progress is not None:
            self._progress(self._done, 2 * self._schema.n_obs * self._schema.n_columns * self._dtype.itemsize)


def _transpose(values: AnyArray, out: AnyArray) -> None:
    """Write the transpose of ``values`` to ``out``, converted to its type; what is too large becomes infinite."""
    floats = (np.float32, np.float64)
    if native.extension and values.dtype in floats and out.dtype in floats and values.dtype.isnative and values.flags.aligned:
        native.extension.transpose(values, out)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(out, values.T, casting="unsafe")


def _completed(kept: TableSchema, medians: Float64Array | None) -> TableEncoding | None:
    """Return the encoding of a store with the median of each column of numbers; means are part of the statistics."""
    if kept.encoding is None or medians is None:
        return kept.encoding
    columns, indicators = dict(kept.encoding.columns), kept.encoding.indicators()
    for name, median in zip(kept.columns, medians.tolist(), strict=True):
        if name not in indicators:
            columns[name] = dataclasses.replace(columns.get(name, ColumnEncoding()), fill=median)
    return dataclasses.replace(kept.encoding, columns=columns)


def build_from_arrays(
    url: str,
    X: Any,
    y: Any = None,
    *,
    names: Iterable[str] | None = None,
    dtype: str = "float32",
    rows: str = "observations",
    missing: str = "error",
    groups: Mapping[str, Sequence[str | int]] | None = None,
    tier: str = "int8",
    replace: bool = False,
    open_builder: Callable[..., Any] = StoreBuilder,
) -> BuildReport:
    """Build a store from data in memory; see ``fastomp_nvm.create_store`` for the parameters.

    ``open_builder`` makes the builder; a remote one sends the tiles to a server.

    Returns
    -------
    BuildReport
    """
    table = as_table(X, names=names, rows=rows, groups=groups, missing=missing)
    targets = {name: make_target(name, values) for name, values in _named_targets(y).items()}
    for name, target in targets.items():
        if len(target.values) != table.schema.n_obs:
            raise DataError(f"target {name!r} has {len(target.values)} values for {table.schema.n_obs} observations")
    with open_builder(url, table.schema, dtype=dtype, missing=missing, tier=tier, replace=replace) as builder:
        for first_obs, first_column, values in table.tiles():
            builder.write_tile(first_obs, first_column, values)
        report: BuildReport = builder.finish(targets, {"source": "memory"})
    imputed = Counter(report.imputed) + Counter(table.filled)
    return dataclasses.replace(report, imputed=dict(imputed))


def _named_targets(y: Any) -> dict[str, Any]:
    """Return targets by name: the keys of a mapping, the name of a series, else ``y``."""
    if y is None:
        return {}
    if isinstance(y, Mapping) or (hasattr(y, "items") and hasattr(y, "columns")):
        return {str(name): values for name, values in y.items()}
    name = getattr(y, "name", None)
    return {name if isinstance(name, str) and name else "y": y}
