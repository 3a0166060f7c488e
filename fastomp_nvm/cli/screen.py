"""Tables and sentences on stdout: with frames and word wrap in a terminal, plain and never wrapped in a pipe or a file."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["Screen"]

#: Characters of a line in a pipe: more than any line has.
_PIPE_COLUMNS = 10_000


class Screen(Console):
    """A console that writes text as it is, without markup or colours of its own."""

    def __init__(self) -> None:
        # Whether rich sees a terminal can be forced by the environment, which must not put frames into a pipe.
        plain = not sys.stdout.isatty()
        super().__init__(
            highlight=False, markup=False, width=_PIPE_COLUMNS if plain else None, force_terminal=False if plain else None
        )
        self._plain = plain

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as ``Console.print`` does; tables without frames where this is no terminal."""
        if not self._plain:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            for table in objects:
                if isinstance(table, Table):
                    if table.title is not None:
                        super().print(table.title)
                    table.title, table.box, table.pad_edge, table.expand = None, None, False, False
                    table.padding = (0, 2, 0, 0)
            super().print(*objects, **{**options, "soft_wrap": True})
        self.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))
