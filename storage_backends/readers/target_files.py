"""Targets in separate files: text with one value per line, or an NPY vector."""

from __future__ import annotations

import csv
import io
import os

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.limits import check_regular
from storage_backends.readers.base import library_errors
from storage_backends.readers.text import MISSING_TOKENS, decode, open_bytes, parse_number, read_some

__all__ = ["TARGET_EXTENSIONS", "is_target_file", "read_target_file"]

#: Extensions of files that may hold a target.
TARGET_EXTENSIONS = (".csv", ".npy", ".tsv", ".txt")


def is_target_file(text: str) -> bool:
    """Return whether ``text`` names an existing file that may hold a target."""
    return text.lower().endswith(TARGET_EXTENSIONS) and os.path.isfile(text)


def read_target_file(path: str, n_obs: int) -> tuple[str, AnyArray]:
    """Read a target and its name.

    Parameters
    ----------
    path : str
        ``.npy``, or text with one value per line. The first of ``n_obs + 1`` lines is a heading, unless it could be a value.
    n_obs : int
        Values expected.

    Returns
    -------
    name : str
        The heading, or the file's name without extension.
    values : (n_obs,) float64 or str
    """
    check_regular(path)
    label = os.path.basename(path)
    name = os.path.splitext(label)[0]
    if path.lower().endswith(".npy"):
        values = _read_npy(path, label)
    elif path.lower().endswith(TARGET_EXTENSIONS):
        cells = _read_lines(path, label)
        if len(cells) == n_obs + 1 and _is_heading(cells[0], cells[1:]):
            name = cells.pop(0)
        values = _numbers_or_labels(cells, label)
    else:
        raise InputError(f"{label} cannot hold a target: expected a file in {', '.join(TARGET_EXTENSIONS)}")
    if len(values) != n_obs:
        raise DataError(f"{label} holds {len(values)} values, expected one for each of {n_obs} observations")
    return name, values


def _read_npy(path: str, label: str) -> AnyArray:
    """Load a vector."""
    with library_errors(f"{label} is not a readable NPY file"), open(path, "rb") as stream:
        values = np.lib.format.read_array(stream, allow_pickle=False)
    if values.ndim != 1 and not (values.ndim == 2 and values.shape[1] == 1):
        raise DataError(f"{label} holds an array of shape {values.shape}, expected one value per observation")
    return np.asarray(values.reshape(-1))


def _read_lines(path: str, label: str) -> list[str]:
    """Return the cells of a file with one cell per line, without blank lines."""
    with open_bytes(path) as stream:
        text = decode(read_some(stream, -1, path), path, 1).removeprefix("\ufeff")
    cells = []
    source = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if path.lower().endswith(".tsv") else ",")
    try:
        for record in source:
            if len(record) > 1:
                raise DataError(f"{label}: line {source.line_num} has {len(record)} cells, expected one value per line")
            if record:
                cells.append(record[0].strip())
    except csv.Error as error:
        raise DataError(f"{label}: line {source.line_num} is not well quoted: {error}") from error
    return cells


def _is_heading(cell: str, values: list[str]) -> bool:
    """Return whether the first cell is certainly a heading: mistaking a value for one would shift all others."""
    return parse_number(cell) is None and cell not in MISSING_TOKENS and cell not in values


def _numbers_or_labels(cells: list[str], label: str) -> AnyArray:
    """Return numbers if all cells are numbers, text if none is; raise ``DataError`` naming the row otherwise."""
    numbers = [parse_number(cell) for cell in cells]
    for row, cell in enumerate(cells, start=1):
        if cell in MISSING_TOKENS:
            raise DataError(f"{label}: row {row} is missing, and a target must be complete: remove the observation")
    texts = [row for row, number in enumerate(numbers, start=1) if number is None]
    if not texts:
        return np.array(numbers, dtype=np.float64)
    if len(texts) < len(cells):
        odd = texts[0]
        raise DataError(f"{label}: row {odd} holds {cells[odd - 1]!r} among numbers, expected all numbers or all labels")
    return np.array(cells)
