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

A message is one sentence: the fault, the expectation, the remedy. :func:`near` and :func:`how_to_install` write usual parts of it.
:func:`encode_error` and :func:`raise_error` carry an error from a server to its client.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NoReturn

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
    "encode_error",
    "how_to_install",
    "near",
    "raise_error",
]

#: Optional libraries by their import name, as pip wants them.
_LIBRARIES = {
    "h5py": "h5py>=3.8",
    "matplotlib": "matplotlib>=3.7",
    "pandas": "pandas>=2.0",
    "pyarrow": "pyarrow>=14",
    "ray": "ray>=2.52",
    "shtab": "shtab>=1.10",
    "sklearn": "scikit-learn>=1.3",
}

#: Names that difflib compares; a million take minutes.
_MOST_COMPARED = 5_000
#: Names that are looked at all; ten times as many take seconds.
_MOST_KNOWN = 5_000_000
_CHARACTERS = string.ascii_letters + string.digits + "_-. =:/"


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
    """A server refused a request, is busy, or failed.

    Attributes
    ----------
    reason : {"access", "busy", "limit", "space", "other"}
        Class of a refusal, counted by the server that raises it; not sent to clients.
    """

    def __init__(self, *arguments: object, reason: Literal["access", "busy", "limit", "space", "other"] = "other") -> None:
        super().__init__(*arguments)
        self.reason = reason


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


def encode_error(error: FastompError) -> dict[str, str]:
    """Return an error in JSON terms, for messages between client and server."""
    return {"kind": type(error).__name__, "message": " ".join(str(error).split())}


def raise_error(sent: Mapping[str, object]) -> NoReturn:
    """Raise the error that ``encode_error`` encoded; as a ``ServerError`` if its class is unknown."""
    kind = globals().get(str(sent.get("kind")))
    if not (isinstance(kind, type) and issubclass(kind, FastompError)):
        kind = ServerError
    raise kind(str(sent.get("message", "the server failed and did not say why")))


def how_to_install(module: str) -> str:
    """Return the command that installs an optional library, given the name under which it is imported.

    Parameters
    ----------
    module : str

    Returns
    -------
    str
    """
    library = _LIBRARIES.get(module.partition(".")[0], module.partition(".")[0])
    return f"pip install '{library}'" if ">" in library else f"pip install {library}"


def near(name: str, options: Collection[str]) -> str:
    """Return a hint such as ``" (did you mean 'age'?)"`` that lists the options similar to ``name``, or an empty string.

    Among many options those one typing mistake away are looked up, and only some of the rest are compared.

    Parameters
    ----------
    name : str
    options : collection of str

    Returns
    -------
    str
    """
    folded = name.casefold()
    if len(options) <= _MOST_COMPARED:
        found = _similar(folded, options)
    elif len(options) > _MOST_KNOWN:
        return ""
    else:
        known = set(options)
        found = sorted(known.intersection(_typed_wrongly(name)))[:3]
        if not found:
            half = max(len(name) // 2, 1)
            alike = (each for each in options if each[:half] == name[:half] or each[-half:] == name[-half:])
            found = _similar(folded, [each for each, _ in zip(alike, range(_MOST_COMPARED), strict=False)])
    return f" (did you mean {' or '.join(map(repr, found))}?)" if found else ""


def _similar(folded: str, options: Iterable[str]) -> list[str]:
    """Return at most three options that begin so, or else similar ones, the most similar first, whatever their case."""
    import difflib

    by_folded = {option.casefold(): option for option in options}
    if folded in by_folded:
        return [by_folded[folded]]
    found = difflib.get_close_matches(folded, by_folded, n=3)
    found = found[:1] + difflib.get_close_matches(folded, found[1:], n=2, cutoff=0.8)
    begun = [option for option in by_folded if option.startswith(folded)] if len(folded) > 1 else []
    return [by_folded[match] for match in begun[:3] or found]


def _typed_wrongly(name: str) -> Iterator[str]:
    """Yield the texts that differ from ``name`` by one character left out, added, replaced or swapped, or by their case."""
    yield from (name.lower(), name.upper(), name.capitalize())
    for place in range(len(name) + 1):
        before, after = name[:place], name[place:]
        yield before + after[1:]
        yield before + after[1:2] + after[:1] + after[2:]
        for character in _CHARACTERS:
            yield before + character + after
            yield before + character + after[1:]
