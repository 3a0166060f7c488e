"""From files to a store: what ``fastomp ingest`` runs.

The source is read in one or two passes of bounded memory and written to a builder chunk by chunk. The store appears only when it is
complete; nothing is left behind when the ingest fails. A dry run reads in the same way and builds nothing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any, Unpack, cast

import numpy as np

from fastomp_nvm.arrays import BoolArray
from fastomp_nvm.errors import DataError, InputError, MediumError, RequestError
from fastomp_nvm.stores.contract import MISSING_POLICIES
from fastomp_nvm.stores.encoding import TableEncoding
from fastomp_nvm.stores.ingest_options import IngestFields, IngestOptions
from fastomp_nvm.stores.media import medium_of
from fastomp_nvm.stores.reports import ColumnReport, IngestReport, first_names
from fastomp_nvm.stores.url import StoreURL
from storage_backends.build.builder import StoreBuilder
from storage_backends.build.column_schema import read_schema, write_schema
from storage_backends.build.layout import Layout, rows_with_targets
from storage_backends.build.plan import Plan, assigned, make_plan
from storage_backends.build.profile import LENIENT, Profile, refusal
from storage_backends.opened import already_exists
from storage_backends.readers.base import Reader, ReaderOptions, RowsOf, Scan
from storage_backends.readers.cells import CellRules
from storage_backends.readers.problems import Problems
from storage_backends.readers.sources import local_files, open_sources

__all__ = ["ingest"]

# Most columns whose appearance is kept with a store.
_MOST_KEPT = 1000
# Cells that cannot be read that a dry run lists; the columns they are in are named with counts.
_CELLS_SHOWN = 10


def ingest(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    url: str | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    open_builder: Callable[..., Any] | None = None,
    **options: Unpack[IngestFields],
) -> IngestReport:
    """Build a store from one or more files.

    Parameters
    ----------
    source : str, path, or sequence of them
        Files, joined row by row; their extensions determine the format. A pattern with ``*``, ``?`` or ``[...]`` stands for all
        files that match, a ``.zip`` archive for the one file in it, ``-`` for standard input.
    url : str, optional
        Where to build the store; not needed with ``dry_run``.
    progress : callable, optional
        Called with (bytes done, bytes to do) as the source is read and the store is written; the total is an estimate at first.
    open_builder : callable, optional
        Used in place of ``StoreBuilder``: a remote one sends the values to a server.
    **options
        See :class:`fastomp_nvm.stores.ingest_options.IngestOptions`.

    Returns
    -------
    IngestReport

    Raises
    ------
    InputError
        The source, a name or a cell is not as expected; the message names it. After a cell that cannot be read,
        ``DataError.problems`` lists the first hundred.
    """
    asked = IngestOptions(**options)
    if asked.rows not in ("observations", "features"):
        raise InputError(f"unknown rows {asked.rows!r}: expected observations or features")
    if asked.missing not in (None, *MISSING_POLICIES):
        raise RequestError(f"unknown policy for missing values {asked.missing!r}: expected one of {', '.join(MISSING_POLICIES)}")
    if url is None and not asked.dry_run:
        raise InputError("no place for the store was given: name one, or ask for a dry run")
    if open_builder is None and url is not None and not asked.dry_run:
        parsed = StoreURL.parse(url)
        if not asked.replace and medium_of(parsed).exists(parsed):  # before the source is read; the draft checks again
            raise already_exists(url)
    sources = [os.fspath(source)] if isinstance(source, (str, os.PathLike)) else [os.fspath(each) for each in source]
    try:
        with local_files(sources, asked.format) as paths:
            return _Ingest(paths, asked, progress).run(url or "", open_builder or StoreBuilder)
    except OSError as error:
        raise MediumError(f"reading {', '.join(sources)} failed: {error.strerror or error}") from error


class _Ingest:
    """One ingest of local files."""

    def __init__(self, paths: Sequence[str], options: IngestOptions, progress: Callable[[int, int], None] | None) -> None:
        self._paths = paths
        self._schema = None if options.schema is None else read_schema(options.schema)
        merged = options if self._schema is None else self._schema.merged(options)
        self._options, self._missing = merged, merged.missing or "error"
        self._meter = _Meter(progress, paths)

    def run(self, url: str, open_builder: Callable[..., Any]) -> IngestReport:
        """Read the files, and build the store unless this is a dry run."""
        asked = self._options
        rules = CellRules.of(asked.na_values, asked.thousands or "", asked.decimal or ".")
        options = ReaderOptions(
            rows=cast("RowsOf", asked.rows),
            dataset=asked.dataset,
            id_column=asked.id_column,
            consumed=self._meter.consumed,
            rules=rules,
            encoding=asked.encoding or "utf-8",
            format=asked.format,
        )
        with open_sources(self._paths, options) as opened:
            if self._schema is not None:
                self._schema.check(opened)
            plan = make_plan(opened, asked, None if self._schema is None else self._schema.rules)
            reader = assigned(opened, plan)
            self._meter.passes = reader.passes + (reader.passes > 0) * (
                (plan.id_column is not None) + (asked.drop_missing_target and bool(plan.target_columns))
            )
            try:
                return self._dry(reader, plan) if asked.dry_run else self._build(reader, plan, url, open_builder)
            except DataError as error:
                if asked.dry_run:
                    raise
                self._meter.stop()
                needed = plan.columns.tolist() if self._missing == "error" else plan.target_columns
                explained = reader.explain(error, plan.columns, needed)
                if explained is error:
                    raise
                raise DataError(*explained.args, problems=(*error.problems, *explained.problems)) from error

    def _build(self, reader: Reader, plan: Plan, url: str, open_builder: Callable[..., Any]) -> IngestReport:
        """Build the store."""
        asked = self._options
        scan = reader.scan(plan.columns)
        refused = []
        for position, categories in scan.categories.items():
            column = int(plan.columns[position])
            problem = refusal(reader, reader.names[column], categories, scan.n_obs, explicit=column in plan.rules)
            if problem:
                joint = "is " if problem.startswith(("almost", "mixed")) else "holds " if problem.startswith("more") else ""
                refused.append(f"{reader.label}: column {reader.names[column]!r} {joint}{problem}")
        if refused:
            raise DataError(refused[0], problems=refused[1:])
        ids, keep = self._rows(reader, plan, scan)
        encoding = TableEncoding({}, self._missing, tuple(asked.na_values), asked.thousands or "", asked.decimal or ".")
        layout = Layout(reader, plan, scan, encoding, keep)
        schema = layout.schema if ids is None else replace(layout.schema, ids=ids)
        profile = Profile(len(plan.columns), scan.n_obs, filled=self._missing in ("mean", "median"))
        with open_builder(
            url,
            schema,
            dtype=asked.dtype,
            missing=self._missing,
            tier=asked.tier,
            replace=asked.replace,
            progress=self._meter.built,
        ) as builder:
            with ThreadPoolExecutor(1, "fastomp-profile") as pool, closing(reader.read(plan.columns, scan)) as chunks:
                for chunk in chunks:
                    looking = pool.submit(profile.add, chunk)
                    layout.write(builder, chunk)
                    looking.result()
            responses = layout.responses()
            columns = profile.reports(reader, plan, scan, ids, Problems(), every=False)
            left_out = np.ones(len(reader.names), dtype=bool)
            left_out[plan.columns] = False
            dropped = [reader.names[column] for column in np.flatnonzero(left_out).tolist() if column != plan.id_column]
            provenance = self._provenance(columns, profile.missing_cells(reader, plan, scan), dropped)
            built = builder.finish(responses, provenance)
        if asked.schema_out is not None:
            write_schema(asked.schema_out, reader, plan, scan, asked)
        return IngestReport(
            n_obs=built.n_obs,
            n_features=built.n_features,
            n_columns=built.n_columns,
            bytes=built.n_obs * built.n_columns * np.dtype(built.dtype).itemsize,
            imputed=sum(built.imputed.values()) + layout.filled,
            dropped=built.dropped,
            constant=built.constant,
            targets=tuple(responses),
            notes=tuple(reader.notes),
            fingerprint=built.fingerprint,
            types=profile.types(columns, len(reader.names)),
            classes=tuple(len(target.classes) for target in responses.values()),
            columns=columns,
        )

    def _dry(self, reader: Reader, plan: Plan) -> IngestReport:
        """Read the source and report what was understood, with everything that an ingest would refuse."""
        asked, found = self._options, Problems()
        reader.collect(found)
        scan = reader.scan(plan.columns)
        overflowing = {position for position, categories in scan.categories.items() if categories.overflow}
        chosen = [position for position in range(len(plan.columns)) if position not in overflowing]
        read = plan.columns[chosen]
        known = {place: scan.categories[at] for place, at in enumerate(chosen) if at in scan.categories}
        profile = Profile(len(plan.columns), scan.n_obs, filled=self._missing in ("mean", "median"))
        places = np.array(chosen, dtype=np.int64)
        for chunk in reader.read(read, Scan(scan.n_obs, known)) if chosen else ():
            profile.add(chunk, places)
        ids, keep = self._rows(reader, plan, scan)
        columns = profile.reports(reader, plan, scan, ids, found)
        if asked.schema_out is not None:
            write_schema(asked.schema_out, reader, plan, scan, asked)
        used = [column for column in columns if column.type not in ("identifier", "dropped")]
        features = [column for column in used if column.type != "target"]
        problems = [f"column {column.name!r}: {column.problem}" for column in used if column.problem]
        empty = [column.name for column in features if column.missing == scan.n_obs]
        if empty and self._missing != "drop-feature":
            word = shlex.quote(empty[0])
            problems.append(f"columns without any value ({first_names(empty)}): leave them out with --drop {word}")
        gaps = [column.name for column in features if column.missing > 0]
        if gaps and self._missing == "error":
            count = f"{len(gaps):,} column{'s' * (len(gaps) > 1)}"
            problems.append(f"{count} with missing cells ({first_names(gaps)}): use --missing mean|median|drop-feature")
        gaps = [column.name for column in used if column.type == "target" and column.missing > 0]
        if gaps and not asked.drop_missing_target:
            problems.append(f"the target {gaps[0]!r} has missing cells: leave such rows out with --drop-missing-target")
        return IngestReport(
            n_obs=scan.n_obs if keep is None else int(keep.sum()),
            n_features=len(features) - sum(len(members) - 1 for members in plan.groups.values()),
            n_columns=0,
            bytes=0,
            imputed=0,
            dropped=(),
            constant=tuple(column.name for column in features if column.type == "constant"),
            targets=tuple(source.name for source in plan.targets),
            notes=tuple(reader.notes),
            fingerprint="",
            types=profile.types(columns, len(reader.names)),
            classes=tuple(_classes(columns, source.name) for source in plan.targets),
            columns=columns,
            problems=(*problems, *found.lines(_CELLS_SHOWN)),
        )

    def _rows(self, reader: Reader, plan: Plan, scan: Scan) -> tuple[list[str] | None, BoolArray | None]:
        """Return the identifiers of the observations and a mask of those to keep, each None if it was not asked for."""
        keep = rows_with_targets(reader, plan, scan) if self._options.drop_missing_target and plan.targets else None
        if keep is not None and not keep.all():
            count = int((~keep).sum())
            what = "1 observation with a missing target was" if count == 1 else f"{count:,} observations with a missing target were"
            reader.notes.append(f"{what} left out")
        elif self._options.drop_missing_target and not plan.targets:
            raise InputError("--drop-missing-target needs a target: name it with --target")
        if plan.id_column is None:
            return None, keep
        ids = reader.identifiers(plan.id_column)
        if keep is not None:
            ids = [text for text, kept in zip(ids, keep.tolist(), strict=True) if kept]
        name, repeated = reader.names[plan.id_column], len(ids) - len(set(ids))
        again = f"; {repeated:,} of them repeat an earlier one" if repeated else ""
        reader.notes.append(f"column {name!r} is kept as identifiers of the observations{again}")
        return ids, keep

    def _provenance(self, columns: Sequence[ColumnReport], missing: Mapping[str, int], dropped: Sequence[str]) -> dict[str, Any]:
        """Return where the data came from and what was understood of its columns, as JSON data."""
        asked = self._options
        names = [os.path.basename(path) for path in self._paths]
        identifiers = [column for column in columns if column.type == "identifier"]
        advised = {column.name: column.advice for column in columns if column.advice}
        return {
            "source": names[0],
            **({"sources": names} if len(names) > 1 else {}),
            "source_bytes": sum(map(os.path.getsize, self._paths)),
            "rows": asked.rows,
            "missing": self._missing,
            "table": {
                "missing": dict(missing),
                "left_out": [
                    *([column.name, column.type, column.assumed] for column in identifiers),
                    *([name, "dropped", "left out as asked"] for name in dropped),
                ],
                "assumed": {column.name: column.assumed for column in columns if column.assumed == LENIENT},
                "advice": dict(list(advised.items())[:_MOST_KEPT]),
                "advised": len(advised),
            },
        }


def _classes(columns: Sequence[ColumnReport], target: str) -> int:
    """Return the number of classes of a target, 0 for numbers."""
    return next((column.categories or 0 for column in columns if column.name == target and column.type == "target"), 0)


class _Meter:
    """Progress of reading the source and building the store, as one sum."""

    def __init__(self, progress: Callable[[int, int], None] | None, paths: Sequence[str]) -> None:
        self._progress = progress
        self._source_bytes = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
        self._read = self._built = 0
        # Estimates until the reader and the builder exist; readers that read on opening make two passes.
        self.passes, self._to_build = 2, 2 * self._source_bytes

    def consumed(self, count: int) -> None:
        """Count bytes of the source."""
        self._read += count
        self._report()

    def built(self, done: int, total: int) -> None:
        """Set the progress of the builder."""
        self._built, self._to_build = done, total
        self._report()

    def stop(self) -> None:
        """Report nothing more."""
        self._progress = None

    def _report(self) -> None:
        """Report the sum."""
        if self._progress is not None:
            self._progress(self._read + self._built, self.passes * self._source_bytes + self._to_build)
