"""The one argument parser and the one report writer of the benchmarks.

A report is printed as it grows. ``--json`` prints one object instead, ``--out DIR`` also writes ``NAME.jsonl`` (one line per
measurement) and ``NAME.html`` with figures, and ``--record`` replaces the section of the benchmark in ``benchmarks/RESULTS.md``.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness.machine import describe, fingerprint
from benchmarks.harness.timing import Ratio
from fastomp_nvm.errors import RequestError, UnavailableError, how_to_install

__all__ = ["RESULTS", "Bar", "Report", "argument_parser", "at_least"]

RESULTS = Path(__file__).parents[1] / "RESULTS.md"

_PREAMBLE = "# Results\n\nWritten by `fastomp bench NAME --record`; every section names its command, date and machine.\n"

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
img { max-width: 100%; } table { border-collapse: collapse; margin: 1rem 0; font-size: .85em; }
tr { border-bottom: 1px solid #ddd; }
th, td { padding: .2rem .8rem; text-align: right; white-space: nowrap; } th:first-child, td:first-child { text-align: left; }
td.note { white-space: normal; text-align: left; min-width: 14rem; } .note { color: #666; }
"""


def argument_parser(name: str, description: str, out: bool = False) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark.

    Parameters
    ----------
    name : str
        As in ``fastomp bench NAME``.
    description : str
        The docstring of the benchmark, of which the first line is shown.
    out : bool
        True where results are always written, by default to ``bench-out/NAME``.
    """
    parser = argparse.ArgumentParser(prog=f"fastomp bench {name}", description=description.splitlines()[0])
    default = Path("bench-out") / name if out else None
    parser.add_argument("--quick", action="store_true", help="small data and few repetitions: a smoke test, bars are not judged")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, default=default, metavar="DIR", help=f"folder of the results (default {default})")
    parser.add_argument("--record", action="store_true", help="write the results into benchmarks/RESULTS.md")
    parser.add_argument("--cell", type=json.loads, help=argparse.SUPPRESS)  # one measurement, in a process of its own
    parser.set_defaults(benchmark=name)
    return parser


def at_least(option: str, value: float, least: float) -> None:
    """Refuse the value of an option that is below ``least``, or not a number."""
    if not value >= least:
        raise RequestError(f"{option} is {value:g}: expected at least {least:g}")


@dataclass(frozen=True, slots=True)
class Bar:
    """A claim, the figure of this run, its interval where there is one, and its limit from below, or from above."""

    claim: str
    found: float
    limit: float
    at_most: bool = False
    interval: tuple[float, float] | None = None

    @property
    def met(self) -> bool:
        """True when the figure is within the limit."""
        return self.found <= self.limit if self.at_most else self.found >= self.limit

    def __str__(self) -> str:
        """Return verdict, claim, figure and limit."""
        spread = "" if self.interval is None else "; {:.3g} to {:.3g}".format(*self.interval)
        limit = f"bar {'at most ' if self.at_most else ''}{self.limit:g}{spread}"
        return f"{'met   ' if self.met else 'MISSED'} {self.claim}: {self.found:.3g} ({limit})"


class Report:
    """The report of one run of a benchmark.

    Parameters
    ----------
    options : Namespace
        From ``argument_parser``.
    words : sequence of str, optional
        The command line.
    part : str
        What of the benchmark runs, where not all of it: recorded in a section of its own.
    """

    def __init__(self, options: argparse.Namespace, words: Sequence[str] | None = None, part: str = "") -> None:
        if options.record and options.quick:
            raise RequestError("--record needs a full run: leave --quick out")
        self.name: str = options.benchmark
        self._section = f"{self.name}: {part}" if part else self.name
        self.machine = fingerprint()
        self.bars: list[Bar] = []
        self._figures: dict[str, Any] = {}
        self._options = options
        # A recorded command names no folder of the machine.
        shown = [Path(word).name if word.startswith(("/", "~", ".")) else word for word in words or ()]
        self._command = shlex.join(["fastomp", "bench", self.name, *shown])
        self._markdown: list[str] = []
        self._html: list[str] = []
        self._console = Console(width=150, highlight=False, markup=False, quiet=options.json)
        self._console.print(describe(self.machine))
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            self._lines.write_text("", encoding="utf-8")

    @property
    def _lines(self) -> Path:
        return Path(self._options.out / f"{self.name}.jsonl")

    def figures(self, **figures: Any) -> None:
        """Add figures to the JSON object."""
        self._figures.update(figures)

    def measured(self, row: Any) -> None:
        """Append one measurement to the file of lines, at once."""
        if self._options.out is not None:
            with self._lines.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"machine": self.machine, **row}, default=_plain) + "\n")

    def progress(self, text: str) -> None:
        """Print a line about work that goes on."""
        self._console.print(text)

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._add(text, f"### {text}", f"<h2>{html.escape(text)}</h2>")

    def say(self, text: str) -> None:
        """Add a paragraph."""
        self._add(text, text, f"<p>{html.escape(text)}</p>")

    def table(self, title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add a table; floats are shown with four digits, and a last column named ``note`` as text."""
        shown = [[_shown(cell) for cell in row] for row in rows]
        table = Table(*heads, title=title or None)
        for row in shown:
            table.add_row(*row)
        lines = [list(heads), ["---"] * len(heads), *shown]
        marked = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        kinds = [" class=note" if head == "note" else "" for head in heads]
        page = "".join(f"<th>{html.escape(head)}</th>" for head in heads)
        for row in shown:
            page += "</tr><tr>" + "".join(f"<td{kind}>{html.escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        named = f"{title}\n\n" if title else ""
        self._add(table, named + marked, f"<p>{html.escape(title)}</p><table><tr>{page}</tr></table>")

    def records(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add a table with one row per mapping, of equal keys."""
        self.table(title, tuple(rows[0]) if rows else (), [tuple(row.values()) for row in rows])

    def columns(self, title: str, found: Mapping[str, Mapping[str, Any]]) -> None:
        """Add a table with one column per mapping, of equal keys, and one row per key."""
        names = next(iter(found.values()), {})
        self.table(title, ("figure", *found), [(name, *(each[name] for each in found.values())) for name in names])

    def figure(self, name: str, draw: Callable[[Path], None]) -> None:
        """Add a figure to the page: ``draw`` writes it to a path with matplotlib. Without ``--out`` there is no page."""
        if self._options.out is None:
            return
        try:
            import matplotlib as mpl

            mpl.use("Agg")
        except ImportError as error:
            raise UnavailableError(f"the figures need matplotlib: {how_to_install('matplotlib')}") from error
        draw(self._options.out / f"{name}.png")
        self._html.append(f"<img src={name}.png alt='{html.escape(name)}'>")

    def bar(self, claim: str, found: float | Ratio, limit: float, at_most: bool = False) -> None:
        """Judge a figure."""
        interval = (found.low, found.high) if isinstance(found, Ratio) else None
        value = found.median if isinstance(found, Ratio) else float(found)
        self.bars.append(Bar(claim, value, limit, at_most, interval))
        self._add(str(self.bars[-1]), f"- {self.bars[-1]}", f"<p>{html.escape(str(self.bars[-1]))}</p>")

    def finish(self, judged: bool | None = None) -> int:
        """Write the results; return 1 when a bar was missed and bars are ``judged`` (without ``--quick``), else 0."""
        options = self._options
        if options.json:
            bars = [{**asdict(bar), "met": bar.met} for bar in self.bars]
            print(json.dumps({"machine": self.machine, **self._figures, "bars": bars}, default=_plain))
        if options.out is not None:
            title = f"fastomp bench {self.name}"
            page = options.out / f"{self.name}.html"
            page.write_text(
                f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
                f"<p class=note>{html.escape(describe(self.machine))}</p>{''.join(self._html)}</html>\n",
                encoding="utf-8",
            )
            self._console.print(f"wrote {page}")
        if options.record:
            record(RESULTS, self._section, f"`{self._command}`: {describe(self.machine)}", self._markdown)
        judged = not options.quick if judged is None else judged
        return 1 if judged and not all(bar.met for bar in self.bars) else 0

    def _add(self, printed: Any, marked: str, page: str) -> None:
        self._console.print(printed)
        self._markdown.append(marked)
        self._html.append(page)


def record(path: Path, name: str, source: str, parts: Sequence[str]) -> None:
    """Replace the section of a benchmark in a file of results, or append it."""
    text = path.read_text(encoding="utf-8") if path.exists() else _PREAMBLE
    body = "\n\n".join([f"## {name}", source, *parts])
    body = re.sub(r"(?m)^(- .*)\n\n(?=- )", r"\1\n", body)  # one list of bars
    sections = re.split(r"(?m)^(?=## )", text)
    kept = [section.strip() for section in sections if not section.startswith(f"## {name}\n")]
    path.write_text("\n\n".join([*kept, body.strip()]) + "\n", encoding="utf-8")


def _shown(cell: Any) -> str:
    """Return a cell as text."""
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return "" if cell is None else str(cell)


def _plain(value: Any) -> Any:
    """Return what JSON can hold of a dataclass or path."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
