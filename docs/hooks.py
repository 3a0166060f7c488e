"""Fills generated parts of the guide: ``<!-- generate: NAME -->`` becomes the text of the function of that name."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastomp_nvm.cli.main import whole_parser
from fastomp_nvm.cli.parser import Parser

_ROOT = Path(__file__).resolve().parent.parent
_PART = re.compile(r"<!-- generate: ([a-z-]+) -->")


def command_line() -> str:
    """Return every command with its arguments and options, from the parsers themselves."""
    parts = []
    for command in whole_parser().actions():
        nested = command.actions()
        parts += [_command(each) for each in ([command, *nested] if nested else [command])]
    return "\n\n".join(parts)


def _command(parser: Parser) -> str:
    """Return the section of one command."""
    usage = parser.format_help().splitlines()[0].removeprefix("usage: ")
    lines = [f"## {parser.prog}", "", parser.description or "", "", "```text", usage, "```", ""]
    rows = [_row(parser, action) for action in parser._actions if _shown(action)]
    return "\n".join([*lines, *(["| argument | meaning |", "| --- | --- |", *rows] if rows else [])])


def _shown(action: argparse.Action) -> bool:
    """Return whether an argument has a row of its own."""
    nested = isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
    return not nested and action.help != argparse.SUPPRESS


def _row(parser: Parser, action: argparse.Action) -> str:
    """Return the row of one argument."""
    formatter = parser._get_formatter()
    words, value = ", ".join(action.option_strings), str(action.metavar or action.dest.upper())
    if action.option_strings and action.nargs != 0:
        words += f" {formatter._format_args(action, value)}"
    meaning = formatter._expand_help(action) if action.help else ""
    return f"| `{words or value}` | {meaning.replace('|', '&#124;')} |"


def benchmarks() -> str:
    """Return the recorded results, one heading level lower."""
    return _deeper((_ROOT / "benchmarks" / "RESULTS.md").read_text())


def architecture() -> str:
    """Return ARCHITECTURE.md, one heading level lower."""
    return _deeper((_ROOT / "ARCHITECTURE.md").read_text())


def constraint_families() -> str:
    """Return the annotated example of every family, as ``fastomp help constraints`` prints it."""
    from fastomp_nvm.cli.commands.help import constraint_examples

    return f"```yaml\n{constraint_examples().rstrip()}\n```"


def _deeper(text: str) -> str:
    """Return Markdown without its title, with every heading one level lower."""
    body = text.split("\n", 1)[1]
    return re.sub(r"^(#+ )", r"#\1", body, flags=re.MULTILINE)


#: Where a page that was opened from a folder gets its worker from, and what the site brings instead.
_FOREIGN_WORKER, _WORKER = "https://unpkg.com/iframe-worker/shim", "javascripts/worker.js"

GENERATED: dict[str, Callable[[], str]] = {
    "command-line": command_line,
    "benchmarks": benchmarks,
    "architecture": architecture,
    "constraint-families": constraint_families,
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill the generated parts of a page; called by MkDocs."""
    return _PART.sub(lambda found: GENERATED[found[1]](), markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Let pages load nothing from elsewhere; called by MkDocs."""
    return output.replace(_FOREIGN_WORKER, "../" * page.url.count("/") + _WORKER)


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """Do the same for pages that are no files of the guide, such as that of missing ones."""
    return output_content.replace(_FOREIGN_WORKER, _WORKER) if template_name.endswith(".html") else output_content
