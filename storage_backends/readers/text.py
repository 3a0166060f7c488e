"""Shared by text formats: opening files (gzip included), runs of whole lines, tokens for missing cells, fast parsing of numbers.

Damaged bytes (truncated gzip, invalid UTF-8) raise ``DataError`` here, so the formats deal with their grammar only.
"""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, cast

import numpy as np

from fastomp_nvm.arrays import Float64Array
from fastomp_nvm.errors import DataError, InputError

__all__ = [
    "ARROW_NUMBERS",
    "ARROW_TEXTS",
    "BLOCK_BYTES",
    "MISSING_TOKENS",
    "Consumed",
    "LineBlock",
    "decode",
    "is_utf8",
    "line_blocks",
    "open_bytes",
    "parse_number",
    "parse_numbers",
    "read_some",
    "shorten",
]

#: Called with the number of bytes of a file read since the previous call.
Consumed = Callable[[int], None] | None

#: Bytes of text parsed at once; parsed values may take four times as much.
BLOCK_BYTES = 8 << 20

_MISSING_WORDS = ("na", "n/a", "nan", "null", "none", "<na>", "#n/a", "#na")

#: Cells that mean "missing" in every text format, after stripping blanks: words in any case, and marks.
MISSING_TOKENS = frozenset(
    {"", "?", ".", "-", "--"}
    | {"".join(letters) for word in _MISSING_WORDS for letters in itertools.product(*({letter, letter.upper()} for letter in word))}
)

#: Types of text in Arrow, by name, because the oldest pyarrow we support does not know the last one.
ARROW_TEXTS = frozenset({"string", "large_string", "string_view"})

#: Types of Arrow that are read as numbers, by name; a column of type null holds nothing but missing values.
ARROW_NUMBERS = re.compile(r"(u?int\d+|halffloat|float|double|bool|null)\Z|decimal\d+\(")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines of a file: the bytes, and the 1-based number of the first."""

    data: bytes
    first_line: int


def open_bytes(path: str, encoding: str = "utf-8") -> IO[bytes]:
    """Open a file for reading bytes, decompressed if its name ends in .gz; text of another encoding is returned as UTF-8."""
    if not is_utf8(encoding):
        return cast("IO[bytes]", _Recoded(open_bytes(path), encoding))
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.lower().endswith(".gz") else open(path, "rb")


def is_utf8(encoding: str) -> bool:
    """Return whether an encoding is UTF-8; raise ``InputError`` for one that is not known."""
    try:
        return codecs.lookup(encoding).name in ("utf-8", "ascii")
    except LookupError as error:
        raise InputError(f"unknown encoding {encoding!r}: expected one such as utf-8, latin-1, cp1252 or utf-16") from error


class _Recoded:
    """A stream of text in some encoding, read as UTF-8."""

    def __init__(self, stream: IO[bytes], encoding: str) -> None:
        self._stream, self._encoding = stream, encoding
        self._text = io.TextIOWrapper(stream, encoding=encoding, newline="")
        #: The file under the stream, whose position tells how much of it was read.
        self.fileobj: IO[bytes] = getattr(stream, "fileobj", stream)

    def read(self, size: int) -> bytes:
        try:
            return self._text.read(size).encode()
        except UnicodeError as error:
            name = os.path.basename(str(getattr(self._stream, "name", "the file")))
            raise DataError(f"{name} is not text in {self._encoding}: name its encoding with --encoding") from error

    def __enter__(self) -> _Recoded:
        return self

    def __exit__(self, *_: object) -> None:
        self._text.close()


def read_some(stream: IO[bytes], size: int, path: str, consumed: Consumed = None) -> bytes:
    """Read up to ``size`` bytes and report the bytes taken from the file; a broken gzip stream is a ``DataError``."""
    file: IO[bytes] = getattr(stream, "fileobj", stream)  # of a gzip stream, the compressed file under it
    before = file.tell()
    try:
        data = stream.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{os.path.basename(path)} is not a whole gzip file ({error}): compress or fetch it again") from error
    if consumed is not None:
        consumed(file.tell() - before)
    return data


def line_blocks(path: str, block_bytes: int = BLOCK_BYTES, consumed: Consumed = None) -> Iterator[LineBlock]:
    """Yield the file as runs of whole lines, each ending in a newline; ``consumed`` as for ``read_some``."""
    with open_bytes(path) as stream:
        pending, line = b"", 1
        while data := read_some(stream, block_bytes, path, consumed):
            cut = data.rfind(b"\n") + 1
            if not cut:
                pending += data
                continue
            block = LineBlock(pending + data[:cut], line)
            pending = data[cut:]
            line += block.data.count(b"\n")
            yield block
        if pending:
            yield LineBlock(pending + b"\n", line)


def decode(data: bytes, path: str, first_line: int) -> str:
    """Decode UTF-8; raise ``DataError`` naming the line of the first invalid byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise DataError(
            f"{os.path.basename(path)}: line {line} holds the byte 0x{data[error.start]:02x}, which is not UTF-8: "
            "name the encoding of the file with --encoding (latin-1, cp1252, utf-16, ...)"
        ) from error


def parse_number(text: str) -> float | None:
    """Return the number in a stripped cell, or None.

    Unlike ``float`` it refuses ``1_000`` and digits of other scripts, as the fast parsers do.
    """
    if "_" in text or not text.isascii():
        return None
    try:
        return float(text)
    except ValueError:
        return None


def parse_numbers(data: bytes) -> Float64Array | None:
    """Return the numbers of a text of numbers and white space; None if it contains anything else."""
    if not data.strip():
        return np.empty(0)  # fromstring would return one number for a blank text
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # NumPy before 2.3 only warns about malformed text
        try:
            return cast("Float64Array", np.fromstring(data, dtype=np.float64, sep=" "))
        except (ValueError, DeprecationWarning):
            return None


def shorten(text: str, limit: int = 40) -> str:
    """Return ``text`` for an error message: quoted, on one line, without control characters, at most ``limit`` long."""
    clean = _CONTROL.sub(" ", text)
    return repr(clean if len(clean) <= limit else clean[: limit - 3] + "...")
