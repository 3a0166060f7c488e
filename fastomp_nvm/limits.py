"""Limits on what a file or a request may contain, and on the time that a server spends on a request.

All limits are here; SECURITY.md lists them. A server's threads call :func:`checkpoint` inside long loops, so that work ends at its
deadline and with its client.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from fastomp_nvm.errors import CancelledError, InputError, ServerError

__all__ = ["check_regular", "checkpoint", "limited"]

#: Most bytes of one JSON message, in either direction.
MESSAGE_BYTES = 64 << 20
#: Most bytes of the command of an upload, and of the metadata of a tile.
NOTE_BYTES = 4096
#: Most bytes of a request without ``y``, weights, and the names, identifiers and targets of an upload.
REQUEST_BYTES = 1 << 20
#: Most lists and objects in a request, and most values; counted before parsing, as brackets and commas, inside of texts too.
REQUEST_LISTS = 1_000_000
REQUEST_VALUES = 4_000_000
#: Longest time in seconds that a server computes for one reply outside of jobs.
REQUEST_SECONDS = 20.0
#: Most selections of one grid, cross-validation, stability selection or path that a server makes.
ANALYSIS_SELECTIONS = 1_000

#: Most characters of a YAML text.
YAML_CHARACTERS = 64 << 20
#: Most levels of lists and mappings in YAML; no format of this project needs more than ten.
YAML_LEVELS = 32
#: Most values in YAML after the expansion of aliases: enough for a cost of each of a million features.
YAML_VALUES = 2_000_000
#: Most directives (``%TAG``) in YAML; libyaml compares each with all others.
YAML_DIRECTIVES = 16

#: Most characters of a pattern of names; translating one takes time quadratic in its brackets.
PATTERN_CHARACTERS = 1_000
#: Most comparisons of patterns with names in one constraint.
PATTERN_COMPARISONS = 20_000_000

#: Most bytes of a token file.
TOKEN_FILE_BYTES = 1 << 20
#: Most bytes of a table's sparse cells per byte of its file: the columns of a sparse file need no entry.
SPARSE_CELLS_PER_BYTE = 100_000


@dataclass(frozen=True, slots=True)
class _Allowance:
    """The time that a request may take: its end on the monotonic clock, and whether its client is gone."""

    end: float
    seconds: float
    gone: Callable[[], bool]


_allowed: ContextVar[_Allowance | None] = ContextVar("allowed", default=None)


@contextlib.contextmanager
def limited(seconds: float, gone: Callable[[], bool]) -> Iterator[None]:
    """Let :func:`checkpoint` raise inside the block after ``seconds``, or when ``gone`` returns true."""
    before = _allowed.set(_Allowance(time.monotonic() + seconds, seconds, gone))
    try:
        yield
    finally:
        _allowed.reset(before)


def checkpoint() -> None:
    """Raise if the request of this thread has taken too long or has lost its client; does nothing outside of :func:`limited`."""
    allowed = _allowed.get()
    if allowed is None:
        return
    if time.monotonic() > allowed.end:
        raise ServerError(f"the request takes longer than {allowed.seconds:g} s, the most it may: ask for less at a time")
    if allowed.gone():
        raise CancelledError("the client of the request is gone")


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise ``InputError`` for a path that exists and is no regular file: a pipe or a device may never end."""
    with contextlib.suppress(OSError):  # opening it reports this better
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"{os.fspath(path)} is no regular file: copy its content into one, or use standard input (-)")
