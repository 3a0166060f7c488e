"""The errors that fastomp raises, grouped by the caller's remedy.

::

    FastompError                 root; exit code 1
    ├── InputError               invalid input: change it (exit code 2)
    │   ├── DataError            a cell, a column, a row, a shape, a target
    │   ├── RequestError         a parameter of a selection
    │   ├── ConstraintError      a constraint or its file
    │   └── StoreURLError        an address without a store, or a store where a new one should be built
    ├── InfeasibleError          no selection satisfies the constraint as written (exit code 3)
    ├── StoreError               a store is damaged, foreign, stale or of another format
    ├── MediumError              a device failed: disk full, input/output error, mapping refused
    ├── UnavailableError         an optional library or device is missing; the message says how to get it
    ├── ServerError              a server refused a request, is busy, or failed
    │   ├── UnreachableError     no answer from the server: it is down or unreachable
    │   │   └── UntrustedError   the certificate is invalid, not trusted, or for another name: retrying does not help
    │   ├── UploadLostError      the server lost an upload or part of it: send that again
    │   ├── LockedError          another call holds the same key of an MCAS pool: wait for it
    │   └── CallFailedError      a call of an MCAS server failed and its session was closed: retry
    └── CancelledError           the caller cancelled the work

A message is one sentence: the fault, the expectation, the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "CallFailedError",
    "CancelledError",
    "ConstraintError",
    "DataError",
    "FastompError",
    "InfeasibleError",
    "InputError",
    "LockedError",
    "MediumError",
    "RequestError",
    "ServerError",
    "StoreError",
    "StoreURLError",
    "UnavailableError",
    "UnreachableError",
    "UntrustedError",
    "UploadLostError",
]


class FastompError(Exception):
    """Root of all errors of this package."""

    exit_code = 1


class InputError(FastompError, ValueError):
    """The input is invalid; nothing was changed."""

    exit_code = 2


class DataError(InputError):
    """A value, column, row, shape or target of the data is unusable.

    Attributes
    ----------
    problems : tuple of str
        Every problem of a file with its line and column, if there are several: the first hundred, and how many more there are.
    """

    def __init__(self, *arguments: object, problems: Sequence[str] = ()) -> None:
        super().__init__(*arguments)
        self.problems = tuple(problems)


class RequestError(InputError):
    """A parameter of a selection is invalid."""


class ConstraintError(InputError):
    """A constraint is malformed or does not match the features."""


class StoreURLError(InputError):
    """A URL names no store, or names an existing one where a new one should be built."""


class InfeasibleError(FastompError):
    """No selection satisfies the constraint as written."""

    exit_code = 3


class StoreError(FastompError):
    """A store is damaged, foreign, stale or of another format."""


class MediumError(FastompError):
    """The device under a store failed."""


class UnavailableError(FastompError):
    """An optional library or device is missing."""


class ServerError(FastompError):
    """A server refused a request, is busy, or failed."""


class UnreachableError(ServerError):
    """The server did not answer."""


class UntrustedError(UnreachableError):
    """The server's certificate is invalid, not trusted, or for another name."""


class UploadLostError(ServerError):
    """The server lost an upload or part of it."""


class LockedError(ServerError):
    """Another call holds the same key of an MCAS pool."""


class CallFailedError(ServerError):
    """A call of an MCAS server failed; its session was closed."""


class CancelledError(FastompError):
    """The caller cancelled the work."""
