"""The proof of a verified selection: its greedy runs step by step, and what another process needs to check them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fastomp_nvm.algorithms.trace import Trace
from fastomp_nvm.arrays import JSONObject

__all__ = ["LARGEST", "Proof"]

T = TypeVar("T", int, float)

#: Numbers of a trace stay below this: neither NaN nor infinite, and int64 holds them.
LARGEST = 2**62


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof of a verified selection; ``fastomp verify`` and ``fastomp_nvm.verify`` check it again.

    Attributes
    ----------
    traces : sequence of Trace
        The greedy runs that the guarantee rests on.
    fingerprint, targets : str
        Digests of the store's matrix (empty for an array) and of its targets.
    request : JSON object
        The request's fields other than defaults.
    missing : sequence of {"y", "weights", "constraint"}
        Parts of the request that are not in ``request``, because they are data or code of the caller.
    """

    traces: Sequence[Trace]
    fingerprint: str
    targets: str
    request: JSONObject
    missing: Sequence[str]

    @classmethod
    def from_json(cls, sent: Mapping[str, object]) -> Proof:
        """Return the proof in JSON terms; ``ValueError`` if a part is missing or of the wrong type."""
        traces, fingerprint, targets, request = (sent.get(name) for name in ("traces", "fingerprint", "targets", "request"))
        missing = sent.get("missing")
        if not (isinstance(fingerprint, str) and isinstance(targets, str) and isinstance(request, dict)):
            raise ValueError("the proof lacks fingerprint, targets or request")
        if not (isinstance(traces, list) and traces and isinstance(missing, list)):
            raise ValueError("the proof has no traces")
        return cls([_trace(each) for each in traces], fingerprint, targets, request, [str(part) for part in missing])


def _trace(sent: object) -> Trace:
    """Return a trace in JSON terms."""
    if not isinstance(sent, Mapping) or sent.get("kind") not in ("omp", "exact gains"):
        raise ValueError("a trace is not an object of a known kind")
    winners, runners_up = _numbers(sent.get("winners"), int), _numbers(sent.get("runners_up"), int)
    margins = _numbers(sent.get("margins"), float)
    if not len(winners) == len(runners_up) == len(margins):
        raise ValueError("the parts of a trace differ in length")
    return Trace(str(sent["kind"]), winners, runners_up, margins)


def _numbers(sent: object, kind: type[T]) -> list[T]:
    """Return a list of numbers."""
    if not isinstance(sent, list):
        raise ValueError("a part of a trace is not a list")
    found = [each for each in sent if isinstance(each, kind) and not isinstance(each, bool) and abs(each) < LARGEST]
    if len(found) < len(sent):
        raise ValueError("a part of a trace is not a list of numbers")
    return found
