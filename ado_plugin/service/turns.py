"""The processor as a turn that batches of jobs pass around, so that jobs of different owners advance together.

A sweep uses every core, so batches that run at once would only slow each other down, and one that starts would wait for nobody's
end. Instead each has a thread, and one of them the turn. It offers the turn at every round and about every 100 ms of a sweep; once
its slice is over and another batch waits, it goes to the end of the line and pauses right there, in the middle of the sweep. A
holder that offers nothing for a while, as in a phase that cannot be interrupted, loses the turn and runs beside the next one.
"""

from __future__ import annotations

import threading
import time

__all__ = ["Turn", "Turns"]


class Turns:
    """The line of those that wait for the turn.

    Parameters
    ----------
    slice_seconds : float
        Time after which the holder passes the turn on to another that waits.
    patience : float
        Further time after which the turn is taken from a holder that does not offer it.
    """

    def __init__(self, slice_seconds: float = 0.2, patience: float = 0.8) -> None:
        self._slice = slice_seconds
        self._patience = patience
        self._changed = threading.Condition()
        self._line: list[Turn] = []
        self._holder: Turn | None = None
        self._since = 0.0
        self._open = True

    def join(self) -> Turn:
        """Return a new place at the end of the line."""
        turn = Turn(self)
        with self._changed:
            self._line.append(turn)
        return turn

    def close(self) -> None:
        """Make nobody wait any more."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def _offer(self, turn: Turn) -> None:
        """Pass the turn on where it is due; return when ``turn`` has it."""
        if self._holder is turn and (not self._line or time.monotonic() < self._since + self._slice):
            return
        with self._changed:
            if self._holder is turn:
                self._release(turn)
            if turn not in self._line:
                self._line.append(turn)
            while self._open and not (self._line[0] is turn and (wait := self._left()) <= 0.0):
                self._changed.wait(wait if self._line[0] is turn else None)
            self._line.remove(turn)
            if self._holder is not None:
                self._release(self._holder)
            self._holder, self._since = turn, time.monotonic()
            self._changed.notify_all()  # the next in line counts from now

    def _left(self) -> float:
        """Return the seconds until the first in line gets the turn, at the latest."""
        return 0.0 if self._holder is None else self._since + self._slice + self._patience - time.monotonic()

    def _leave(self, turn: Turn) -> None:
        """Give the turn, or the place in line, up for good."""
        with self._changed:
            if self._holder is turn:
                self._release(turn)
            if turn in self._line:
                self._line.remove(turn)
            self._changed.notify_all()

    def _release(self, turn: Turn) -> None:
        """Take the turn from its holder; the caller holds the lock."""
        turn.used += time.monotonic() - self._since
        self._holder = None
        self._changed.notify_all()


class Turn:
    """A place among those that share the processor, made by ``Turns.join``."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._heard: float | None = None
        self.used = 0.0  # seconds of slices that have ended

    def offer(self) -> None:
        """Let others have the turn if that is due, and wait until it is here; call it often, and first of all."""
        self._heard = None
        self._turns._offer(self)
        self._heard = time.monotonic()

    def leave(self) -> None:
        """Give the turn up for good."""
        self._heard = None
        self._turns._leave(self)

    @property
    def seconds(self) -> float:
        """Seconds for which the turn was here."""
        turns = self._turns
        return self.used + (time.monotonic() - turns._since if turns._holder is self else 0.0)

    @property
    def silence(self) -> float:
        """Seconds since the last offer; 0 while waiting."""
        return 0.0 if (heard := self._heard) is None else time.monotonic() - heard
