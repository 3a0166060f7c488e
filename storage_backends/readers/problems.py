"""Problems of a text file, collected with line and column after the fast readers have refused it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from fastomp_nvm.errors import DataError
from storage_backends.readers.cells import some_cells

__all__ = ["MOST_PROBLEMS", "Problem", "Problems"]

#: Problems of a file that are listed; the others are counted.
MOST_PROBLEMS = 100

# Different cells of a column kept as examples.
_EXAMPLES = 20

# Missing cells of a column that are listed one by one; they have one remedy.
_MISSING = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """A cell or a line that cannot be read.

    Attributes
    ----------
    source : str
        Name of the file.
    line, column : int
        From 1; column 0 stands for the whole line.
    text : str
        What was found and what was expected, for the list of problems.
    message : str
        The same as the beginning of a sentence that names the place.
    """

    source: str
    line: int
    column: int
    text: str
    message: str

    def __str__(self) -> str:
        where = f"{self.line}:{self.column}" if self.column else str(self.line)
        return f"{self.source}:{where}: {self.text}"


@dataclass
class Problems:
    """The first problems of a file, and counts of all; memory does not grow with the file."""

    first: list[Problem] = field(default_factory=list)
    total: int = 0
    #: Line of the last record that is malformed as a whole.
    malformed: int = 0
    #: Cells that are not what their column needs, by name of the column.
    cells: Counter[str] = field(default_factory=Counter)
    examples: dict[str, dict[str, None]] = field(default_factory=dict)
    #: Missing cells where none is allowed, by name of the column.
    missing: Counter[str] = field(default_factory=Counter)

    def add(self, problem: Problem) -> None:
        """Add a problem."""
        self.total += 1
        if len(self.first) < MOST_PROBLEMS:
            self.first.append(problem)

    def add_line(self, problem: Problem) -> None:
        """Add a record that is malformed as a whole."""
        self.add(problem)
        self.malformed = problem.line

    def add_cell(self, problem: Problem, column: str, cell: str) -> None:
        """Add a cell that is not what its column needs."""
        self.add(problem)
        self.cells[column] += 1
        kept = self.examples.setdefault(column, {})
        if len(kept) < _EXAMPLES:
            kept[cell] = None

    def add_missing(self, problem: Problem, column: str) -> None:
        """Add a cell that must not be missing."""
        self.missing[column] += 1
        if self.missing[column] <= _MISSING:
            self.add(problem)

    def lines(self, most: int = MOST_PROBLEMS) -> tuple[str, ...]:
        """Return the list of problems, one per line, and the number of those that are not listed."""
        shown = self.first[:most]
        more = self.total - len(shown)
        gaps = [
            f"column {column!r} has {count:,} missing cells in all: see --missing"
            for column, count in self.missing.items()
            if count > _MISSING
        ]
        return (*map(str, shown), *((f"and {more:,} more",) if more else ()), *gaps[:most])

    def error(self, raised: DataError, column_of: Callable[[Problem], str], options: Callable[[str], str]) -> DataError:
        """Return an error in place of ``raised`` that counts and lists all problems.

        Parameters
        ----------
        raised : DataError
            The error of the fast readers.
        column_of : callable
            Returns the name of the column of a problem.
        options : callable
            Returns the options that help with a column, by its name.
        """
        found = next((problem for problem in self.first if str(raised).startswith(problem.message)), None)
        sentence = str(raised)
        if found is not None and found.column and self.cells[column_of(found)]:
            column = column_of(found)
            others, cells = self.cells[column] - 1, some_cells(self.examples[column])
            more = f", and {others:,} more of its cells do not fit ({cells})" if others else ""
            sentence = f"{found.message}{more}: correct {'them' if others else 'it'} or use {options(column)}"
        return DataError(sentence, problems=() if found is not None and self.total == 1 else self.lines())
