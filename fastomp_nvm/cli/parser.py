"""The parser of the command line: usage errors of two lines, similar spellings, defaults in every help text."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from fastomp_nvm.errors import near

__all__ = ["Parser"]

#: Errors of argparse, and the same in terms of the person who typed.
_ERRORS = (
    (r"argument (?P<option>.+?): expected one argument", "{option} needs a value"),
    (r"argument (?P<option>.+?): expected at least one argument", "{option} needs a value"),
    (r"argument (?P<option>.+?): ignored explicit argument (?P<value>.+)", "{option} takes no value, and {value} was given"),
    (r"argument (?P<option>.+?): invalid (?P<kind>.+?) value: (?P<value>.+)", "{option} is {value}: expected {kind}"),
    (
        r"argument (?P<option>.+?): not allowed with argument (?P<other>.+)",
        "{option} and {other} exclude each other: leave one out",
    ),
    (r"argument (?P<option>.+?): (?P<rest>.+)", "{option}: {rest}"),
    (r"the following arguments are required: (?P<missing>.+)", "missing: {missing}"),
)
_CHOICE = re.compile(r"argument (?P<option>.+?): invalid choice: '?(?P<value>.*?)'? \(choose from (?P<choices>.+)\)", re.DOTALL)
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "comma-separated int": "whole numbers with commas between them",
    "comma-separated float": "numbers with commas between them",
    "comma-separated number or auto": "numbers (or auto) with commas between them",
}


class _Formatter(argparse.HelpFormatter):
    """Help of the width of the terminal, at most 100 columns, that states the default of each option that has a value."""

    def __init__(self, prog: str) -> None:
        import shutil

        super().__init__(prog, max_help_position=26, width=min(shutil.get_terminal_size().columns, 100) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Return a description wrapped, and a text of several lines, such as commands to copy, as it is."""
        return text if "\n" in text else super()._fill_text(text, width, indent)

    def _get_help_string(self, action: argparse.Action) -> str:
        """Return the help of an option with its default, unless the text gives one."""
        text = action.help or ""
        plain = isinstance(action.default, (int, float, str)) and not isinstance(action.default, bool)
        if action.option_strings and plain and action.default != argparse.SUPPRESS and "default" not in text:
            text += " (default %(default)s)"
        return text


class Parser(argparse.ArgumentParser):
    """``ArgumentParser`` with usage errors of two lines: one sentence, and where to read more.

    Options are not abbreviated: an option that is added later would make the abbreviation ambiguous.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": _Formatter, "allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        """Print the sentence and the command that shows the help, and exit with code 2."""
        from fastomp_nvm.cli.output import clean

        topic = "help" if self.prog == "fastomp" else f"{self.prog.removeprefix('fastomp ')} --help"
        print(f"fastomp: {clean(' '.join(_reworded(message).split()), longest=None)}\nsee: fastomp {topic}", file=sys.stderr)
        sys.exit(2)

    def format_help(self) -> str:
        """Return the help, with a usage of one line: what must be given."""
        if self.usage is None and self.prog != "fastomp":
            shown = [
                f"{''.join(action.option_strings[:1])} {_placeholder(action)}".strip()
                for action in (*self._get_positional_actions(), *self._get_optional_actions())
                if action.required or not action.option_strings
            ]
            self.usage = " ".join(("%(prog)s", *(word.replace("%", "%%") for word in shown), "[options]"))
        return super().format_help()

    def joined(self, words: Sequence[str]) -> list[str]:
        """Return the words with ``--option -999,NA`` as ``--option=-999,NA``: after an option that needs a value it is one."""
        found: list[str] = []
        for place, word in enumerate(words):
            action = self.options.get(words[place - 1]) if place else None
            needs_value = action is not None and action.nargs is None and "--" not in words[:place]
            if needs_value and re.match(r"-[^-]", word) and word not in self.options:
                found[-1] += f"={word}"
            else:
                found.append(word)
        return found

    def refuse_misspelt(self, words: Sequence[str]) -> None:
        """Raise the error for an unknown option, which explains more than that a value is missing."""
        if any(action.nargs == argparse.REMAINDER for action in self._actions):
            return
        before = words[: words.index("--")] if "--" in words else words
        unknown = [word for word in before if word.startswith("--") and word.partition("=")[0] not in self.options]
        if unknown:
            self.refuse_unknown(unknown)

    def refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        """Raise the error for words that the parser did not recognise."""
        options = [option for action in self._actions for option in action.option_strings if action.help != argparse.SUPPRESS]
        unknown = next((word for word in words if word.startswith("-")), None)
        if unknown is None:
            self.error(f"unexpected {words[0]!r}: the command takes no further words; quote a name that holds spaces")
        name = unknown.partition("=")[0]
        self.error(f"unknown option {name}{near(name, options)}")

    def descend(self, words: Sequence[str]) -> Parser:
        """Return the parser of the subcommand that ``words`` name, or this one."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for place, word in enumerate(words):
                    if word in action.choices:
                        child: Parser = action.choices[word]
                        return child.descend(words[place + 1 :])
        return self

    def actions(self) -> list[Parser]:
        """Return the parsers of the subcommands."""
        nested = (action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        return [child for action in nested for child in action.choices.values()]

    @property
    def options(self) -> dict[str, argparse.Action]:
        """The action of each option, by its spelling."""
        return {option: action for action in self._actions for option in action.option_strings}


def _placeholder(action: argparse.Action) -> str:
    """Return the placeholder of an argument in a usage line."""
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return f"[{name}]" if action.nargs in ("?", "*") else name


def _reworded(message: str) -> str:
    """Return an error of argparse as a sentence for the person who typed."""
    if found := _CHOICE.fullmatch(message):
        choices = [choice.strip("'") for choice in found["choices"].split(", ")]
        value = found["value"]
        return f"{found['option']} is {value!r}{near(value, choices)}: expected one of {', '.join(choices)}"
    message = message.removesuffix(", ...")  # of the words that a benchmark takes
    for pattern, sentence in _ERRORS:
        if match := re.fullmatch(pattern, message, re.DOTALL):
            words = match.groupdict()
            if "kind" in words:
                words["kind"] = _KINDS.get(words["kind"], f"a {words['kind']}")
            return sentence.format(**words)
    return message
