"""Where the values of a source go: columns of the store, indicators of categories, targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray, first_missing
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.stores.contract import Target
from fastomp_nvm.stores.encoding import ColumnEncoding, TableEncoding
from fastomp_nvm.stores.reports import first_names
from storage_backends.build.builder import StoreBuilder
from storage_backends.build.indicators import Indicators
from storage_backends.build.plan import Plan
from storage_backends.build.schema import TableSchema
from storage_backends.build.targets import make_target
from storage_backends.readers.base import Chunk, Reader, Scan

__all__ = ["Layout", "rows_with_targets"]


def rows_with_targets(reader: Reader, plan: Plan, scan: Scan) -> BoolArray:
    """Return a mask (n_obs,) of the observations whose targets are all present; may read the source once.

    Parameters
    ----------
    reader : Reader
    plan : Plan
    scan : Scan
        Of the columns of the plan.
    """
    keep = np.ones(scan.n_obs, dtype=bool)
    for source in plan.targets:
        if source.load is not None:
            values = source.load(scan.n_obs)[1]
            if values.dtype.kind == "f":
                keep &= ~np.isnan(values)
    columns = np.array(plan.target_columns, dtype=np.int64)
    if columns.size:
        positions = np.searchsorted(plan.columns, columns).tolist()
        known = {place: scan.categories[at] for place, at in enumerate(positions) if at in scan.categories}
        for chunk in reader.read(columns, Scan(scan.n_obs, known)):
            keep[chunk.first_obs : chunk.first_obs + len(chunk.values)] &= ~np.isnan(chunk.values).any(axis=1)
    if not keep.any():
        raise DataError(f"{reader.label}: every observation has a missing target, so none is left: name another target")
    return keep


class Layout:
    """Maps each chosen column to columns of the store or to a target.

    Parameters
    ----------
    reader : Reader
    plan : Plan
    scan : Scan
        Of the columns of the plan.
    encoding : TableEncoding
        Settings of the encoding; the columns are filled in here.
    keep : (n_obs,) bool, optional
        Observations to keep; all by default.

    Attributes
    ----------
    schema : TableSchema
        Without identifiers.
    """

    def __init__(self, reader: Reader, plan: Plan, scan: Scan, encoding: TableEncoding, keep: BoolArray | None = None) -> None:
        self._reader = reader
        self._categories = scan.categories
        self._keep = keep
        self._row_of = None if keep is None else np.concatenate(([0], np.cumsum(keep)))
        n_obs = scan.n_obs if self._row_of is None else int(self._row_of[-1])
        #: Name of each target with the target, or with the position of its column.
        self._targets: list[tuple[str, Target | int]] = []
        #: Values of the targets that are columns, by position.
        self._target_values: dict[int, Float64Array] = {}
        columns = plan.columns
        for source in plan.targets:
            if source.load is not None:  # before the chunks, so that a target that does not fit is refused early
                name, values = source.load(scan.n_obs)
                self._targets.append((name, make_target(name, values if keep is None else values[keep])))
            else:
                position = int(np.searchsorted(columns, source.column))
                self._targets.append((source.name, position))
                self._target_values[position] = np.empty(n_obs)
        given = [name for name, _ in self._targets]
        if len(set(given)) < len(given):
            raise InputError(f"two targets have the same name among {first_names(given)}: rename one of them")
        names = reader.names
        self._texts = {
            position: Indicators(names[int(columns[position])], categories, encoding.missing)
            for position, categories in scan.categories.items()
            if position not in self._target_values
        }
        self._first_column = np.zeros(len(columns), dtype=np.int64)
        grouped = {int(np.searchsorted(columns, column)): name for name, members in plan.groups.items() for column in members}
        self._special = np.array(sorted({*self._target_values, *self._texts, *grouped}), dtype=np.int64)
        encoding = self._encoded(encoding, plan)
        if not self._special.size and len(columns) == len(names):
            self._first_column = np.arange(len(columns))
            self.schema = TableSchema.plain(n_obs, names, encoding)
            return
        self.schema = TableSchema.grouped(n_obs, self._arranged(columns, plan, grouped), encoding)

    def _arranged(self, columns: IndexArray, plan: Plan, grouped: dict[int, str]) -> list[tuple[str, Sequence[str]]]:
        """Return each feature with its columns, and note where the columns begin; a group stands where its first column does."""
        names, first, done = self._reader.names, 0, set[str]()
        features: list[tuple[str, Sequence[str]]] = []
        plain = np.ones(len(columns), dtype=bool)
        plain[self._special] = False
        for position, column in enumerate(columns.tolist()):
            if plain[position]:
                name = names[column]
                features.append((name, (name,)))
                self._first_column[position] = first
                first += 1
                continue
            group = grouped.get(position)
            if position in self._target_values or group in done:
                continue
            members = [position]
            if group is not None:
                done.add(group)
                members = np.searchsorted(columns, plan.groups[group]).tolist()
            spread: list[str] = []
            for member in members:
                self._first_column[member] = first + len(spread)
                text = self._texts.get(member)
                spread.extend([names[int(columns[member])]] if text is None else text.columns)
            first += len(spread)
            features.append((names[column] if group is None else group, spread))
        return features

    def _encoded(self, encoding: TableEncoding, plan: Plan) -> TableEncoding:
        """Return the encoding of the table, column by column."""
        found = {}
        for position, column in enumerate(plan.columns.tolist()):
            if position in self._texts:
                found[self._reader.names[column]] = self._texts[position].encoding
            elif position not in self._target_values:
                kind, rule = self._reader.kind_of(column), plan.rules.get(column)
                written = "" if rule is None else "lenient" if rule.lenient else rule.format
                if kind == "date" or written:
                    found[self._reader.names[column]] = ColumnEncoding(kind, format=written)
        return replace(encoding, columns=found)

    def write(self, builder: StoreBuilder, chunk: Chunk) -> None:
        """Write a chunk to the builder: runs of numeric columns, text as indicators; keep the values of targets."""
        values, first_obs = chunk.values, chunk.first_obs
        if self._keep is not None and self._row_of is not None:
            kept = self._keep[first_obs : first_obs + len(values)]
            values = values if kept.all() else values[kept]
            first_obs = int(self._row_of[first_obs])
        first, last = chunk.first_column, chunk.first_column + values.shape[1]
        begin = first
        for special in (
            *self._special[np.searchsorted(self._special, first) : np.searchsorted(self._special, last)].tolist(),
            last,
        ):
            if begin < special:
                builder.write_tile(first_obs, int(self._first_column[begin]), values[:, begin - first : special - first])
            begin = special + 1
            if special == last:
                break
            cells = values[:, special - first]
            if special in self._target_values:
                self._target_values[special][first_obs : first_obs + len(cells)] = cells
            elif special in self._texts:
                for top, tile in self._texts[special].tiles(first_obs, cells, self._reader.options.chunk_bytes):
                    builder.write_tile(top, int(self._first_column[special]), tile)
            else:
                builder.write_tile(first_obs, int(self._first_column[special]), cells[:, np.newaxis])

    @property
    def filled(self) -> int:
        """Missing texts that became a category of their own so far."""
        return sum(text.filled for text in self._texts.values())

    def responses(self) -> dict[str, Target]:
        """Return the targets; complete once all chunks were written."""
        found = {}
        for name, target in self._targets:
            if isinstance(target, int):  # numbers, or codes of a text column
                missing = first_missing(self._target_values[target])
                if missing is not None:
                    raise DataError(
                        f"row {missing + 1} of target {name!r} is missing: fill it in, or leave such rows out with "
                        "--drop-missing-target"
                    )
                values = make_target(name, self._target_values[target]).values
                found[name] = Target(values, self._categories[target].labels if target in self._categories else ())
            else:
                found[name] = target
        return found
