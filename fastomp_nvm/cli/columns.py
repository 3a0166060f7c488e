"""Columns of a table as text: one line each, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fastomp_nvm.cli.output import clean
from fastomp_nvm.cli.screen import Screen
from fastomp_nvm.stores.reports import ColumnReport

__all__ = ["print_columns"]

#: Columns that are printed; a pattern or --json shows the others.
_SHOWN = 200


def print_columns(columns: Sequence[ColumnReport], total: int | None = None) -> None:
    """Print what was understood of columns, at most 200, and how many more there are.

    Parameters
    ----------
    columns : sequence of ColumnReport
    total : int, optional
        Number of columns that ``columns`` were chosen from.
    """
    headings = ("column", "type", "missing", "labels", "values", "assumed")
    rows = [
        (
            clean(column.name, 40),
            column.type,
            "" if column.missing < 0 else f"{column.missing:,}",
            "" if column.categories is None else f"{column.categories:,}",
            clean(", ".join(column.examples), 60),
            "refused, see below" if column.problem else clean(column.assumed, None) + (", see below" if column.advice else ""),
        )
        for column in columns[:_SHOWN]
    ]
    console = Screen()
    widths = [max(map(len, cells)) for cells in zip(headings, *rows, strict=True)]
    widths[0] = min(widths[0], max(console.width * 2 // 7, 24))
    widths[5] = min(widths[5], max(console.width - 20, 60) // 5)
    widths[4] = min(widths[4], max(console.width - sum(widths) + widths[4] - 2 * len(headings), 10))
    table = Table(box=None, pad_edge=False, header_style="")
    for heading, width in zip(headings, widths, strict=True):
        examples, count = heading == "values", heading in ("missing", "labels")
        table.add_column(heading, justify="right" if count else "left", overflow="ellipsis" if examples else "fold", width=width)
        table.columns[-1].no_wrap = examples
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if len(columns) > _SHOWN:
        console.print(f"and {len(columns) - _SHOWN:,} more columns: name a pattern, or use --json for all", soft_wrap=True)
    if total is not None and total > len(columns):
        console.print(f"{len(columns):,} of {total:,} columns match", soft_wrap=True)
