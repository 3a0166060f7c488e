"""Models as JSON files: the object of :mod:`fastomp_nvm.selection.codec` under a format and a version.

``model.schema.json`` beside this module describes the file. It holds data, never code.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from fastomp_nvm.durable_files import write_atomically
from fastomp_nvm.errors import InputError, MediumError
from fastomp_nvm.selection.codec import decode_selection, encode_selection
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.version import __version__

__all__ = ["FORMAT", "SCHEMA", "VERSION", "load", "read_selections", "save"]

FORMAT = "fastomp-model"
VERSION = 2

#: What earlier releases read: models without kept columns and offsets.
PLAIN_VERSION = 1

#: JSON schema of the file.
SCHEMA = Path(__file__).with_name("model.schema.json")


def save(selection: Selection, path: str | os.PathLike[str], *, replace: bool = False) -> None:
    """Write a selection to a file, atomically; ``InputError`` if the file exists and ``replace`` is False."""
    version = VERSION if selection.kept or selection.offset is not None else PLAIN_VERSION
    content = {"format": FORMAT, "version": version, "written_by": f"fastomp {__version__}", "model": encode_selection(selection)}
    data = json.dumps(content, allow_nan=False, indent=1).encode("ascii") + b"\n"
    try:
        write_atomically(Path(path), data, replace=replace, mode=0o644)
    except FileExistsError as error:
        raise InputError(f"{os.fspath(path)} exists: choose another name or ask to replace it (--replace)") from error
    except OSError as error:
        raise MediumError(f"cannot write {os.fspath(path)}: {error.strerror}") from error


def load(path: str | os.PathLike[str]) -> Selection:
    """Read a model that ``Selection.save`` or ``fastomp select --save`` wrote.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    Selection

    Raises
    ------
    InputError
        There is no such file, it is no model, it is damaged, or a later release wrote it.
    """
    name = os.fspath(path)
    content = _read_json(path, "a model: expected the JSON that 'fastomp select --save' writes")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{name} is not a model: expected the JSON that 'fastomp select --save' writes")
    if content.get("version") not in (PLAIN_VERSION, VERSION):
        raise InputError(
            f"the model {name} has the format version {content.get('version')!r} and this release reads up to {VERSION}: "
            "use the release that wrote it"
        )
    try:
        return decode_selection(content["model"])
    except (KeyError, ValueError) as error:
        raise InputError(f"the model {name} is damaged ({error}): save it again") from error


def read_selections(path: str | os.PathLike[str]) -> list[Selection]:
    """Read a model, or one or more results that ``fastomp select --json`` printed, for display: positions of columns are not kept.

    Raises
    ------
    InputError
        There is no such file, or it is neither.
    """
    content = _read_json(path, "JSON: expected the file that 'fastomp select --save' or --json writes")
    if isinstance(content, dict) and content.get("format") == FORMAT:
        return [load(path)]
    try:
        return [_decode_printed(result) for result in (content if isinstance(content, list) else [content])]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{os.fspath(path)} is neither a model nor the output of 'fastomp select --json' ({str(error)[:100]})"
        ) from error


def _decode_printed(result: object) -> Selection:
    """Return the selection of a JSON object that ``Selection.to_json`` made."""
    if not isinstance(result, dict):
        raise TypeError(f"a {type(result).__name__} is no result")
    columns = result.get("columns") or [[name] for name in result["features"]]
    return decode_selection({"json": result, "columns": columns, "column_positions": list(range(sum(map(len, columns))))})


def _read_json(path: str | os.PathLike[str], expected: str) -> object:
    """Return the content of a JSON file; ``expected`` ends the sentence on one that is not."""
    name = os.fspath(path)
    try:
        found: object = json.loads(Path(path).read_bytes())
        return found
    except OSError as error:
        raise InputError(f"the model {name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is not {expected}") from error
