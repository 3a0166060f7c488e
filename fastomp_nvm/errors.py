"""Every error fastomp raises on purpose, split by what the caller can do about it.

::

    FastompError                 root; exit code 1
    ├── InputError               the caller's input is at fault: change it (exit code 2)
    │   ├── DataError            a cell, a column, a row, a shape, a target
    │   ├── RequestError         a parameter of a selection
    │   ├── ConstraintError      a constraint or its file
    │   └── StoreURLError        an address that names no store, or names one that is in the way
    ├── InfeasibleError          no answer meets the constraint as written (exit code 3)
    ├── StoreError               a store that is damaged, foreign, stale or of another format
    ├── MediumError              the device failed: disk full, input/output error, mapping refused
    ├── UnavailableError         an optional library or device is missing; the text says how to get it
    ├── ServerError              a server refuses, is busy, or failed at a request
    │   ├── UnreachableError     no answer from the server: it is down, or out of reach
    │   │   └── UntrustedError   its certificate is not valid, not trusted, or another's: trying again does not help
    │   ├── UploadLostError      the server no longer has what was uploaded, or part of it: send that again
    │   ├── LockedError          another call is on the same key of an MCAS pool: wait for it
    │   └── CallFailedError      an MCAS server failed at a call, and its session was given up: try again
    └── CancelledError           the caller asked for the end

The message is one sentence: what was found, what was expected, what to do.
"""

from __future__ import annotations

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
    """Root of all errors raised on purpose."""

    exit_code = 1


class InputError(FastompError, ValueError):
    """The input is at fault; nothing was changed."""

    exit_code = 2


class DataError(InputError):
    """A value, column, row, shape or target of the data is unusable."""


class RequestError(InputError):
    """A parameter of a selection is out of its domain."""


class ConstraintError(InputError):
    """A constraint is malformed or does not fit the features."""


class StoreURLError(InputError):
    """A URL names no store, or a store stands where a new one should go."""


class InfeasibleError(FastompError):
    """No selection meets the constraint as it was written."""

    exit_code = 3


class StoreError(FastompError):
    """A store is damaged, foreign, stale or of another format."""


class MediumError(FastompError):
    """The device under a store failed."""


class UnavailableError(FastompError):
    """An optional library or device is missing."""


class ServerError(FastompError):
    """A server refuses, is busy, or failed at a request."""


class UnreachableError(ServerError):
    """No answer came from the server."""


class UntrustedError(UnreachableError):
    """The server's certificate is not valid, not trusted, or that of another name."""


class UploadLostError(ServerError):
    """The server no longer has what was uploaded."""


class LockedError(ServerError):
    """Another call is on the same key of an MCAS pool."""


class CallFailedError(ServerError):
    """An MCAS server failed at a call; its session was given up."""


class CancelledError(FastompError):
    """The caller cancelled the work."""
