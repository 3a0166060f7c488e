"""Columns of a table as text: one line each, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from fastomp_nvm.cli.output import clean
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
    table = Table(box=None, pad_edge=False, header_style="")
    for heading, justify in (("column", "left"), ("type", "left"), ("missing", "right"), ("labels", "right")):
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    table.add_column("values", overflow="fold", ratio=1)
    table.add_column("assumed", overflow="fold", ratio=1)
    for column in columns[:_SHOWN]:
        table.add_row(
            clean(column.name, 40),
            column.type,
            "" if column.missing < 0 else f"{column.missing:,}",
            "" if column.categories is None else f"{column.categories:,}",
            clean(", ".join(column.examples), 60),
            "refused, see below" if column.problem else clean(column.assumed, None) + (", see below" if column.advice else ""),
        )
    console = Console(highlight=False, markup=False)
    console.print(table)
    if len(columns) > _SHOWN:
        console.print(f"and {len(columns) - _SHOWN:,} more columns: name a pattern, or use --json for all", soft_wrap=True)
    if total is not None and total > len(columns):
        console.print(f"{len(columns):,} of {total:,} columns match", soft_wrap=True)
