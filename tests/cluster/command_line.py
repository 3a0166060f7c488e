"""Commands that take a store, and what they say of it that does not depend on where it lies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastomp_nvm.cli.main import main

__all__ = ["COMMANDS", "said"]

#: Commands that print one JSON object, by name; the store goes behind the first word.
COMMANDS: dict[str, list[str]] = {
    "info": ["info"],
    "select": ["select", "--k", "5", "--target", "y", "--certificate"],
    "grid": ["grid", "--k", "3,5", "--tau", "0.4,0.8", "--seeds", "2", "--target", "y"],
    "cv": ["cv", "--k", "2,4", "--folds", "3", "--target", "y", "--tier", "exact"],
    "stability": ["stability", "--k", "4", "--subsamples", "4", "--target", "y"],
}

#: What they say of the medium, of the network, of time and of choices, such as how a file is read.
_OF_THE_MEDIUM = {"medium", "detail", "url", "shards", "seconds", "shard_calls", "choices"}


def said(words: list[str], store: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what a command prints about a store, less what concerns the medium."""
    capsys.readouterr()
    assert main([words[0], store, *words[1:], "--json"]) == 0
    return _pruned(json.loads(capsys.readouterr().out))


def _pruned(value: Any) -> Any:
    """Leave out what concerns the medium; with the tier, shards read more columns exactly than the one store does."""
    if isinstance(value, dict):
        return {
            name: _pruned(part)
            for name, part in value.items()
            if name not in _OF_THE_MEDIUM and not name.startswith(("bytes_", "full_passes", "sweeps"))
        }
    return [_pruned(part) for part in value] if isinstance(value, list) else value
