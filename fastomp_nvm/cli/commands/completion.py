"""``fastomp completion SHELL``: a script that completes commands, options and choices, made from the parsers themselves."""

from __future__ import annotations

import argparse
import sys

from fastomp_nvm.algorithms.table import ALGORITHMS
from fastomp_nvm.cli.main import COMMANDS, whole_parser
from fastomp_nvm.errors import UnavailableError, how_to_install
from fastomp_nvm.objectives.table import OBJECTIVES

__all__ = ["add_arguments", "run"]

_PLACES = {
    "bash": "fastomp completion bash > ~/.local/share/bash-completion/completions/fastomp",
    "zsh": "fastomp completion zsh > DIR/_fastomp      (DIR: a folder of $fpath)",
    "fish": "fastomp completion fish > ~/.config/fish/completions/fastomp.fish",
}

#: Words for arguments that are looked up by name when the command runs.
_WORDS = {
    "algorithm": ("auto", *ALGORITHMS),
    "objective": tuple(OBJECTIVES),
    "quality": ("fast", "verified", "best"),
    "until": ("paper", "full"),
    "polish": ("pool", "none"),
    "rule": ("best", "one-standard-error"),
    "topic": (*COMMANDS, "constraints"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=tuple(_PLACES), metavar="SHELL", help="bash, zsh or fish")
    parser.epilog = "to install:\n" + "\n".join(f"  {command}" for command in _PLACES.values())


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    try:
        import shtab
    except ImportError as error:
        raise UnavailableError(f"completion needs shtab, which is not installed: {how_to_install('shtab')}") from error
    parser = whole_parser()
    _add_words(parser, shtab.FILE)
    sys.stdout.write(shtab.complete(parser, shell=arguments.shell))
    return 0


def _add_words(parser: argparse.ArgumentParser, files: object) -> None:
    """Add the words that complete each argument: choices, or files where it is neither one of several words nor a number."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                _add_words(child, files)
        elif action.dest in _WORDS:
            action.choices = action.choices or _WORDS[action.dest]
        elif action.nargs != 0 and not action.choices and action.type not in (int, float):
            action.complete = files  # type: ignore[attr-defined]  # read by shtab
