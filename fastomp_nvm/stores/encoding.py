"""How the columns of a table become columns of a store; kept with the store, so that new rows are encoded in the same way."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

__all__ = ["MISSING_LABEL", "ColumnEncoding", "Kind", "TableEncoding"]

#: What a column of a table holds.
Kind = Literal["number", "category", "date"]

_LARGEST = sys.float_info.max

#: The category of missing cells of a text column when missing numbers are imputed.
MISSING_LABEL = "(missing)"


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """The encoding of one column of a table.

    Attributes
    ----------
    kind : {"number", "category", "date"}
        A number is stored as it is and a date as days since 1970-01-01, each in one column of the store that has the name of the
        table's column. A category becomes one indicator column per label, named ``column=label``.
    labels : tuple of str
        Labels of a category in the order of its indicator columns. A value that is none of them is 0 in all of them.
    fill : float, optional
        Replacement of a missing number or date; for a category the position in ``labels`` of the label that missing cells get.
        None: missing cells are refused.
    format : str
        How the cells are written as text: of a date as for ``strptime``, empty for ISO 8601; of a number ``lenient`` if signs and
        units around it are dropped, and ``allele A G`` if it counts the copies of A at a variant whose other allele is G.
    """

    kind: Kind = "number"
    labels: tuple[str, ...] = ()
    fill: float | None = None
    format: str = ""

    def to_json(self) -> list[Any]:
        """Return the encoding in JSON terms."""
        return [self.kind, list(self.labels), self.fill, *([self.format] if self.format else [])]


@dataclass(frozen=True, slots=True)
class TableEncoding:
    """The encoding of a table.

    Attributes
    ----------
    columns : mapping of str to ColumnEncoding
        By name of the table's column. A column that is not listed is a number; under the policy ``mean`` its missing cells are
        replaced by the mean that the store's statistics hold.
    missing : {"error", "mean", "median", "drop-feature"}
        The policy under which the store was built.
    na_values : tuple of str
        Cells of text that mean "missing" besides the usual ones.
    thousands, decimal : str
        Separators in numbers written as text.
    """

    columns: Mapping[str, ColumnEncoding] = field(default_factory=dict)
    missing: str = "error"
    na_values: tuple[str, ...] = ()
    thousands: str = ""
    decimal: str = "."

    def indicators(self) -> dict[str, tuple[str, int]]:
        """Return the column of the table and the position of the label behind every indicator column of the store, by its name."""
        found = {f"{name}={label}": (name, at) for name, each in self.columns.items() for at, label in enumerate(each.labels)}
        # The only column of a feature has its name.
        return found | {name: (name, 0) for name, each in self.columns.items() if len(each.labels) == 1}

    def restricted(self, columns: Iterable[str]) -> TableEncoding:
        """Return the encoding of those columns of the table from which these ``columns`` of the store were made."""
        if not self.columns:
            return self
        indicators = self.indicators()
        sources = dict.fromkeys(indicators.get(name, (name, 0))[0] for name in columns)
        return replace(self, columns={name: self.columns[name] for name in sources if name in self.columns})

    def to_json(self) -> dict[str, Any]:
        """Return the encoding in JSON terms."""
        return {
            "columns": {name: each.to_json() for name, each in self.columns.items()},
            "missing": self.missing,
            "na_values": list(self.na_values),
            "thousands": self.thousands,
            "decimal": self.decimal,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> TableEncoding:
        """Return the encoding that ``to_json`` wrote; ``ValueError``, ``KeyError`` or ``TypeError`` if it is none."""
        columns = {}
        for name, (kind, labels, fill, *written) in found["columns"].items():
            fits = kind in ("number", "category", "date") and (kind == "category") == bool(labels) and len(written) < 2
            fits = fits and isinstance(labels, list) and all(isinstance(each, str) for each in (*labels, *written))
            if fits and fill is not None:
                fits = isinstance(fill, (int, float)) and not isinstance(fill, bool) and abs(fill) <= _LARGEST
                fits = fits and (kind != "category" or fill in range(len(labels)))
            if not fits:
                raise ValueError(f"the encoding of the column {name!r} is damaged")
            columns[name] = ColumnEncoding(kind, tuple(labels), fill, *written)
        texts = [found["missing"], found["thousands"], found["decimal"], *found["na_values"]]
        if not isinstance(found["na_values"], list) or not all(isinstance(text, str) for text in texts):
            raise ValueError("a setting of the encoding is not text")
        return cls(columns, found["missing"], tuple(found["na_values"]), found["thousands"], found["decimal"])
