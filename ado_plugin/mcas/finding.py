"""What one step of a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Verdict"]

#: ``note``: it works, and the operator should know this; ``failed``: it cannot work.
Verdict = Literal["ok", "note", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one step of a check.

    Attributes
    ----------
    step : str
    verdict : {"ok", "note", "failed"}
    detail : str
        The observation; unless it is ``ok`` also what to do.
    seconds : float
    """

    step: str
    verdict: Verdict
    detail: str
    seconds: float = 0.0
