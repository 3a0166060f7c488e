"""Limits of a server's jobs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JobLimits"]


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits of the queue.

    Attributes
    ----------
    queued, owned : int
        Jobs waiting or running, and those of one owner.
    merged : int
        Requests answered in shared sweeps at a time.
    memory : int
        Estimated bytes of memory of all jobs that have begun; jobs answered together take at most half of it, unless one alone
        needs more.
    work : int
        Estimated bytes that one job may read.
    seconds : float
        Time for which one job may have the processor.
    keep_seconds : float
        Time for which ended jobs are kept.
    kept, kept_bytes : int
        Most ended jobs of one owner, and bytes of their records; the oldest are removed first, the last one never.
    """

    queued: int = 1024
    owned: int = 256
    merged: int = 64
    memory: int = 8 << 30
    work: int = 100 << 40
    seconds: float = 7 * 86400.0
    keep_seconds: float = 7 * 86400.0
    kept: int = 1000
    kept_bytes: int = 1 << 30
