"""What the columns of a source look like: types, missing cells, examples, and columns that may be meant otherwise.

Numbers are looked at as they are read, in one pass over each chunk; labels and their counts come from the scan.
"""

from __future__ import annotations

import datetime
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.stores.encoding import MISSING_LABEL
from fastomp_nvm.stores.reports import ColumnReport
from storage_backends.build.plan import Plan
from storage_backends.readers.base import MAX_CATEGORIES, Categories, Chunk, Reader, Scan, as_text
from storage_backends.readers.cells import Shape, advice, date_option, looks_like_dates, shape_of, some_cells
from storage_backends.readers.problems import Problems
from storage_backends.readers.text import shorten

__all__ = ["LENIENT", "MOST_REPORTED", "Profile", "refusal"]

#: Columns of a table that are all reported when a store is built.
MOST_REPORTED = 5000

#: What is assumed of a column that was asked for as numbers.
LENIENT = "signs and units dropped, as asked"

#: What is assumed of a target that is no column of the source.
OUTSIDE = "not a column"


_EXAMPLES = 3
# Rows of the first chunk in which the most frequent value of a column is looked for.
_SAMPLE = 100
# A column with a smaller share of other values is nearly constant.
_OTHERS = 0.005
# Fewer whole numbers in a row are no evidence of a row number.
_FEWEST_NUMBERS = 10
# Fewer different labels such as "<5" or "4 doors" may well be categories.
_FEWEST_QUANTITIES = 8
# Share of the cells of a text column that must look like numbers.
_ALMOST = 0.9


class Profile:
    """Looks at the numbers of the chosen columns, chunk by chunk.

    Parameters
    ----------
    n_columns, n_obs : int
    filled : bool
        Whether the missing cells of a text become a category of their own.

    Attributes
    ----------
    missing : (n_columns,) int64
        Missing cells so far.
    """

    def __init__(self, n_columns: int, n_obs: int, *, filled: bool = False) -> None:
        self._n_obs, self._filled = n_obs, filled
        self.missing = np.zeros(n_columns, dtype=np.int64)
        self._examples = np.full((_EXAMPLES, n_columns), np.nan)
        self._start = np.full(n_columns, np.nan)  # first value of a column that counts its rows so far
        self._counts = np.ones(n_columns, dtype=bool)
        self._usual = np.full(n_columns, np.nan)
        self._others = np.zeros(n_columns, dtype=np.int64)

    def add(self, chunk: Chunk, places: IndexArray | None = None) -> None:
        """Look at a chunk; the first rows of a column come before its other rows. ``places`` are the positions of its columns."""
        values = chunk.values
        at = np.arange(values.shape[1]) + chunk.first_column
        at = at if places is None else places[at]
        with np.errstate(all="ignore"):
            gaps = np.flatnonzero(np.isnan(values.sum(axis=0)))
        if gaps.size:
            self.missing[at[gaps]] += np.isnan(values[:, gaps]).sum(axis=0)
        if chunk.first_obs == 0:
            shown = values[:_EXAMPLES]
            self._examples[: len(shown), at] = shown
            self._start[at] = values[0]
            with np.errstate(invalid="ignore"):
                self._counts[at] = values[0] == np.floor(values[0])
        if chunk.first_obs <= _OTHERS * self._n_obs:  # all rows so far may be exceptions
            sample = np.sort(values[:: len(values) // _SAMPLE + 1], axis=0)  # NaN last
            middle = (~np.isnan(sample)).sum(axis=0) // 2
            usual = sample[np.minimum(middle, len(sample) - 1), np.arange(sample.shape[1])]
            new = usual != self._usual[at]
            self._usual[at[new]], self._others[at[new]] = usual[new], chunk.first_obs
        top, step = 0, _SAMPLE
        while top < len(values):  # most columns are settled by a few rows
            near = np.flatnonzero(self._others[at] <= _OTHERS * self._n_obs)
            if not near.size:
                break
            part = values[top : top + step, near]
            self._others[at[near]] += ((part != self._usual[at[near]]) & ~np.isnan(part)).sum(axis=0)
            top, step = top + step, 4 * step
        rows = chunk.first_obs + np.arange(len(values))
        for seen in (slice(0, 2), slice(None)):  # two rows are enough to tell most columns
            counting = np.flatnonzero(self._counts[at])
            if counting.size:
                expected = self._start[at[counting]] + rows[seen, np.newaxis]
                self._counts[at[counting]] = (values[seen, counting] == expected).all(axis=0)

    def examples(self, position: int) -> list[float]:
        """Return the first values of a column, without missing ones."""
        return [value for value in self._examples[:, position].tolist() if value == value]

    def usual_share(self, position: int) -> float:
        """Return the share of the most frequent value among the values of a column, 0 if it is not near 1."""
        present = self._n_obs - int(self.missing[position])
        others = int(self._others[position])
        return 1 - others / present if present and others <= _OTHERS * present else 0.0

    def usual(self, position: int) -> float:
        """Return the most frequent value of a nearly constant column."""
        return float(self._usual[position])

    def is_row_number(self, position: int) -> bool:
        """Return whether a column holds consecutive whole numbers."""
        return bool(self._counts[position]) and self._n_obs >= _FEWEST_NUMBERS

    def reports(
        self,
        reader: Reader,
        plan: Plan,
        scan: Scan,
        ids: Sequence[str] | None,
        problems: Problems,
        *,
        every: bool = True,
    ) -> tuple[ColumnReport, ...]:
        """Return a report of every column of the source, in its order, and of targets from elsewhere.

        Parameters
        ----------
        reader : Reader
        plan : Plan
        scan : Scan
        ids : sequence of str, optional
            Identifiers of the observations.
        problems : Problems
            Cells that could not be read.
        every : bool
            Report all columns of a very wide table, too, not only those that are not plain numbers and the first others of note.
        """
        position_of = {column: position for position, column in enumerate(plan.columns.tolist())}
        targets = set(plan.target_columns)
        group_of = {column: name for name, members in plan.groups.items() for column in members}
        found = []
        names = reader.names
        wanted = range(len(names)) if every or len(names) <= MOST_REPORTED else self._notable(plan, scan)
        for column in wanted:
            name, position = names[column], position_of.get(column)
            if column == plan.id_column:
                repeated = 0 if ids is None else len(ids) - len(set(ids))
                kept = f"kept as identifiers{f', {repeated:,} of them repeated' if repeated else ''}"
                found.append(ColumnReport(name, "identifier", 0, None, tuple((ids or ())[:_EXAMPLES]), kept))
            elif position is None:
                found.append(ColumnReport(name, "dropped", -1, assumed="left out as asked"))
            else:
                report = self._report(reader, plan, scan, column, position, problems)
                if column in targets:
                    kind = "number" if report.categories is None else f"{report.categories} classes"
                    advised = report.advice if report.advice.startswith("holds text like") else ""
                    report = ColumnReport(
                        name, "target", report.missing, report.categories, report.examples, kind, advised, report.problem
                    )
                elif column in group_of:
                    assumed = f"{report.assumed}, in the group {group_of[column]!r}"
                    report = ColumnReport(name, report.type, report.missing, report.categories, report.examples, assumed)
                found.append(report)
        found.extend(ColumnReport(source.name, "target", assumed=OUTSIDE) for source in plan.targets if source.load is not None)
        return tuple(found)

    def types(self, reports: Sequence[ColumnReport], n_columns: int) -> Mapping[str, int]:
        """Return the number of columns of each type; those of ``n_columns`` that have no report are numbers."""
        found = Counter(report.type for report in reports)
        silent = n_columns - sum(report.assumed != OUTSIDE for report in reports)
        if silent > 0:
            constant = int(((self._others == 0) & (self.missing < self._n_obs)).sum())
            constant = max(0, min(silent, constant - found["constant"]))
            found += Counter(constant=constant, number=silent - constant)
        return dict(found.most_common())

    def missing_cells(self, reader: Reader, plan: Plan, scan: Scan) -> dict[str, int]:
        """Return the number of missing cells of each column that has some."""
        counts = self.missing.copy()
        for position, categories in scan.categories.items():
            counts[position] = categories.missing
        return {reader.names[int(plan.columns[at])]: int(counts[at]) for at in np.flatnonzero(counts).tolist()}

    def _notable(self, plan: Plan, scan: Scan) -> list[int]:
        """Return the columns that are not plain numbers, and the first ones with missing cells or an odd look."""
        odd = (self.missing > 0) | (self._others <= _OTHERS * self._n_obs) | self._counts
        chosen = {*plan.columns[np.flatnonzero(odd)[:MOST_REPORTED]].tolist(), *plan.target_columns, *plan.rules}
        chosen.update(int(plan.columns[position]) for position in scan.categories)
        return sorted(chosen | ({plan.id_column} if plan.id_column is not None else set()))

    def _report(self, reader: Reader, plan: Plan, scan: Scan, column: int, position: int, problems: Problems) -> ColumnReport:
        """Return the report of a feature or a target."""
        name = reader.names[column]
        rule = plan.rules.get(column)
        if position in scan.categories:
            categories = scan.categories[position]
            order = sorted(range(len(categories.labels)), key=lambda label: -categories.counts[label])
            examples = tuple(shorten(categories.labels[label], 24)[1:-1] for label in order[:_EXAMPLES])
            count = len(categories.labels)
            kind = "constant" if count == 1 and not categories.missing else "category"
            if self._filled and categories.missing and column not in plan.target_columns:
                count += MISSING_LABEL not in categories.labels
            assumed = f"one-hot{', as asked' if rule is not None else ''}"
            if categories.overflow:
                assumed = f"more than {MAX_CATEGORIES} labels"
            problem = refusal(reader, name, categories, scan.n_obs, explicit=rule is not None)
            hint = "" if problem or rule is not None else _label_advice(name, categories, scan.n_obs, reader)
            return ColumnReport(name, kind, categories.missing, count, examples, assumed, hint, problem)
        missing = int(self.missing[position])
        values, share = self.examples(position), self.usual_share(position)
        word, hint = shlex.quote(name), ""
        if reader.kind_of(column) == "date":
            shown = tuple(
                str(datetime.date(1970, 1, 1) + datetime.timedelta(days=int(value // 1))) for value in values if abs(value) < 7e5
            )
            return ColumnReport(name, "constant" if share == 1 else "date", missing, None, shown, "days since 1970-01-01")
        unfit = problems.cells[name]
        missing -= unfit
        problem = ""
        if unfit:
            cells = problems.examples[name]
            problem = f"{unfit:,} cells are not numbers ({some_cells(cells)}): use {advice(cells, name, reader.options.rules)}"
        elif share == 1:
            pass
        elif share:
            hint = f"is nearly constant: {share:.2%} of its values are {as_text(self.usual(position))}; --drop {word} leaves it out"
        elif self.is_row_number(position):
            hint = f"looks like a row number: --id {word} keeps it as identifier, --drop {word} leaves it out"
        assumed = LENIENT if rule is not None and rule.lenient else "as it is"
        kind = "constant" if share == 1 else "number"
        return ColumnReport(name, kind, missing, None, tuple(map(as_text, values)), assumed, hint, problem)


def refusal(reader: Reader, name: str, categories: Categories, n_obs: int, *, explicit: bool) -> str:
    """Return why a column of labels is refused, or nothing.

    Parameters
    ----------
    reader : Reader
    name : str
    categories : Categories
    n_obs : int
    explicit : bool
        Whether the user asked for a category.
    """
    labels, rules, word = categories.labels, reader.options.rules, shlex.quote(name)
    if not explicit and not reader.typed:
        resembling = _resembling(categories, reader)
        misfits = [label for label in resembling if shape_of(label, rules) == "misfit"]
        if misfits:
            written = f"--thousands {shlex.quote(rules.thousands)} --decimal {shlex.quote(rules.decimal)}"
            written = written if rules.thousands else f"--decimal {shlex.quote(rules.decimal)}"
            groups = " whose groups have three digits" if rules.thousands else ""
            return (
                f"holds {shorten(misfits[0], 24)}, expected numbers as {written} reads them{groups}: leave the option out, or use "
                f"--categorical {word} or --drop {word}"
            )
        if resembling:
            count = sum(categories.counts[labels.index(label)] for label in resembling)
            counted = "its cells" if categories.overflow else f"{count:,} of {n_obs - categories.missing:,} cells"
            others = [label for label in labels if label not in resembling]
            options = advice([*resembling, *others], name, rules)
            if count < _ALMOST * (n_obs - categories.missing) and not categories.overflow:
                text = f"the others text ({some_cells(others)})"
                return f"mixed: {counted} are numbers ({some_cells(resembling)}), {text}: use {options}"
            rest = f", besides {some_cells(others, 2)}" if others else ""
            return f"almost numeric: {counted} are like {some_cells(resembling)}{rest}: use {options}"
    if not categories.overflow:
        return ""
    if looks_like_dates(labels):
        return (
            f"more than {MAX_CATEGORIES} dates such as {some_cells(labels, 2)}: read them with "
            f"{date_option(labels, name)}, or leave them out with --drop {word}"
        )
    return (
        f"holds text with more than {MAX_CATEGORIES} different values: leave it out with --drop {word} (or --id {word} if it "
        "identifies the rows), or merge rare values"
    )


def _resembling(categories: Categories, reader: Reader) -> list[str]:
    """Return the labels that look like quantities if nearly all cells do, else nothing."""
    labels, rules = categories.labels, reader.options.rules
    shapes: dict[str, Shape] = {label: shape_of(label, rules) for label in labels}
    cells: Counter[str] = Counter()
    for label, count in zip(labels, categories.counts, strict=True):
        cells[shapes[label]] += count
    alike = [label for label in labels if shapes[label] != "text"]
    total = sum(cells.values())
    if not total or total - cells["text"] < _ALMOST * total:
        # Numbers among labels: the first rows held none, so that they were taken for labels.
        return [label for label in labels if shapes[label] == "number"] if cells["number"] else []
    if not any(cells[shape] for shape in ("grouped", "comma", "negative", "percent", "misfit", "number")):
        units = {label.lstrip("+-.0123456789eE").strip() for label in alike if shapes[label] == "unit"}
        measured = len(units) == 1 and any("." in label or " " in label for label in alike)
        if len(alike) <= _FEWEST_QUANTITIES and not (measured and not cells["bound"]):
            return []
        if len(units) > 1:  # 1st, 2nd, 3rd
            return []
    return alike


def _label_advice(name: str, categories: Categories, n_obs: int, reader: Reader) -> str:
    """Return what a category looks like, with the option that reads it in that way, or nothing."""
    labels, word = categories.labels, shlex.quote(name)
    present = n_obs - categories.missing
    if labels and looks_like_dates(labels):
        return f"holds text like dates: {date_option(labels, name)} reads it as days since 1970-01-01"
    if reader.typed and labels and all(shape_of(label, reader.options.rules) == "number" for label in labels):
        return f"holds text like numbers: --numeric {word} reads it as numbers"
    if len(labels) == present and present >= _FEWEST_NUMBERS:
        return f"looks like an identifier: all labels differ; --id {word} keeps it as such, --drop {word} leaves it out"
    most = max(categories.counts, default=0)
    if most < present and most >= (1 - _OTHERS) * present:
        usual = labels[categories.counts.index(most)]
        return f"is nearly constant: {most / present:.2%} of its labels are {shorten(usual, 24)}; --drop {word} leaves it out"
    return ""
