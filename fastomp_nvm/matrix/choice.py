"""A setting that was left to fastomp."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Choice"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The value of a setting that the request left open, and why it was chosen, in a few words."""

    value: str | int
    reason: str
