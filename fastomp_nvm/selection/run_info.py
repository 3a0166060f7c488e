"""One line of the list of runs: the same columns and words for durable runs of this machine and for jobs on a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal

from fastomp_nvm.arrays import JSONObject

__all__ = ["RunInfo", "Status", "describe_job", "score_so_far"]

Status = Literal["queued", "running", "stopped", "finished", "failed", "cancelled", "damaged"]

#: States of jobs, on the wire and in a server's records, as statuses of runs.
_STATUS_OF_STATE: Mapping[str, Status] = {
    "queued": "queued",
    "running": "running",
    "done": "finished",
    "failed": "failed",
    "cancelled": "cancelled",
}


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One line of the list of runs.

    Attributes
    ----------
    name : str
    status : {"queued", "running", "stopped", "finished", "failed", "cancelled", "damaged"}
        ``stopped``, ``failed`` and ``cancelled`` runs can be resumed.
    kind : str
        ``select``; of a job on a server also ``grid``, ``cv``, ``stability``, ``path``, ``verify`` or ``proof``.
    store, algorithm, objective : str
        The objective is ``auto`` until it has been chosen.
    k : int, optional
    rounds, selected : int
        Of a finished run ``gradient_rounds`` and the number of features of the result; before, queries answered so far and features
        selected when the last one was asked.
    score : float, optional
        As in the result: R^2 (linear) or mean log-likelihood (GLM). None until it is known: before the end that is R^2 alone,
        without ridge.
    seconds : float
        Time spent so far; for a run of this machine over all processes.
    created : str
        ISO 8601; empty where it is not recorded.
    detail : str
        The damage of a damaged run or the error of a failed one; otherwise empty.

    A job of several requests shows its first, one of another kind than ``select`` its best selection.
    """

    name: str
    status: Status
    store: str = ""
    algorithm: str = ""
    objective: str = ""
    k: int | None = None
    rounds: int = 0
    selected: int = 0
    score: float | None = None
    seconds: float = 0.0
    created: str = ""
    detail: str = ""
    kind: str = "select"

    @property
    def asked(self) -> str:
        """The kind, except of a selection, and the algorithm."""
        return ", ".join(part for part in ("" if self.kind == "select" else self.kind, self.algorithm) if part)

    def to_json(self) -> JSONObject:
        """Return the object that ``runs --json`` prints."""
        return asdict(self)

    @classmethod
    def of_job(cls, job: JSONObject, server: str) -> RunInfo:
        """Return the line of a job in the reply of the server at ``server`` to ``jobs``."""
        step = job["progress"][0] if job["progress"] else {}
        asked, result = job.get("request") or {}, job.get("result") or {}
        objective = str(result.get("objective", asked.get("objective", "")))
        score = score_so_far(objective, asked.get("ridge"), step["value"]) if step.get("selected") else None
        error = job["error"] or {}
        created = job.get("submitted")
        return cls(
            name=job["job"],
            status=_STATUS_OF_STATE.get(job["state"], "damaged"),
            store=f"{server}/{job['pool']}/{job['key']}",
            algorithm=str(asked.get("algorithm", "")),
            objective=objective,
            k=asked.get("k"),
            rounds=result.get("rounds", step.get("round", 0)),
            selected=result.get("selected", step.get("selected", 0)),
            score=result.get("score", score),
            seconds=result.get("seconds", step.get("seconds", 0.0)),
            created="" if created is None else datetime.fromtimestamp(created, UTC).isoformat(timespec="seconds"),
            detail="" if job["state"] == "cancelled" else str(error.get("message", "")),
            kind=str(job.get("kind", "select")),
        )


def score_so_far(objective: str, ridge: float | None, value: float) -> float | None:
    """Return the score of an unfinished run whose objective is ``value``; None where it does not follow from that."""
    return value if objective == "linear" and not ridge else None


def describe_job(request: Mapping[str, object], answers: Sequence[JSONObject] = (), kind: str = "select") -> JSONObject:
    """Return what ``RunInfo.of_job`` needs beside a job's state: parts of its first request, and of its answer once there is one.

    Parameters
    ----------
    request : mapping
        The first request, encoded.
    answers : sequence of dict
        The encoded selections, or answers of an analysis.
    kind : str
    """
    if kind == "verify":  # it selects nothing
        return {}
    usual = "fast_omp" if kind in ("select", "grid", "cv", "stability") else ""
    asked = {
        "algorithm": request.get("algorithm", usual),
        "objective": request.get("objective", "linear"),
        **{name: request.get(name) for name in ("k", "ridge")},
    }
    if answers and kind != "select":
        return {"request": asked, "result": dict(answers[0].get("summary", {}))}
    found = answers[0].get("json") if answers else None
    if found is None:
        return {"request": asked}
    result = {name: found[name] for name in ("objective", "score", "seconds")}
    return {"request": asked, "result": {**result, "selected": len(found["indices"]), "rounds": found["gradient_rounds"]}}
