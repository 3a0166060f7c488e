"""A setting that was left to fastomp."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Choice"]


class Choice(NamedTuple):
    """The value of a setting that the request left open, and why it was chosen, in a few words."""

    value: str | int
    reason: str
