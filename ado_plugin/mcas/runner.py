"""Runs in progress inside the server's helper process: each in a thread that is parked between two calls.

A call there must end within seconds, and a pass over a large matrix takes longer. The thread of a run therefore asks, at every
round and about every 100 ms of a pass, whether it may go on; when the call that drives it is over it waits right there, in the
middle of the pass, until another call lets it continue. A thread that dies with its process loses nothing that is durable: the
journal in the pool brings a new one back to where the last round ended; an analysis, which has none, starts again. Values of the
pool are loaded by the calling thread alone, so a thread that needs a region asks the caller for it.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ado_plugin.mcas.ledger import RoomNeededError, RunSlots
from ado_plugin.service.analysis import carry_out, checked_analysis
from ado_plugin.service.limits import JobLimits
from fastomp_nvm.constraints.written.description import parse_constraint
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.errors import CancelledError
from fastomp_nvm.runs.drive import JournaledRun, drive
from fastomp_nvm.runs.log import StateLog
from fastomp_nvm.selection.codec import decode_request, decode_vector, encode_message, encode_selection
from fastomp_nvm.stores.contract import DurableRegion
from storage_backends.media.mcas import BusyValueError, PoolStore

__all__ = ["PATIENCE", "Runner"]

#: Seconds that a call waits for a thread to park. One in a phase that does not ask continues beside the calls that follow.
PATIENCE = 5.0

_Request = tuple[str, tuple[Any, ...]]


class Runner:
    """A run in progress.

    Parameters
    ----------
    record : mapping
        ``requests``, ``y`` and ``verify`` of the run; of an analysis also ``kind`` and ``options``.
    store : PoolStore
        Closed when the run ends.
    logs : mapping
        Name of the journal of each request -> its id.
    first_room : int
        Bytes of the first region of a journal.
    values : sequence of str
        Keys of the values that the store consists of.

    Attributes
    ----------
    finished : bool
    answers : bytes or None
        The encoded selections, or those of an analysis, once finished.
    error : BaseException or None
        The reason for ending without answers.
    share : float
        Share of the pass in flight that is done.
    steps : dict
        By number of a run of an analysis: its last progress.
    """

    def __init__(
        self, record: Mapping[str, Any], store: PoolStore, logs: Mapping[str, bytes], first_room: int, values: Sequence[str]
    ) -> None:
        self._record, self._store, self._logs, self._first_room = record, store, logs, first_room
        self.values = values
        self.finished = False
        self.answers: bytes | None = None
        self.error: BaseException | None = None
        self.share = 0.0
        self.steps: dict[int, Progress] = {}
        store.watch = self._verified
        self._changed = threading.Condition()
        self._allowed = self._parked = self._discarded = False
        self._granted = False  # one step, however short the call
        self._asked: _Request | None = None
        self._given: tuple[Any, BaseException | None] | None = None
        self._thread = threading.Thread(target=self._work, name="run", daemon=True)

    def advance(self, end: float, slots: RunSlots) -> None:
        """Let the run go on until it has finished or the clock shows ``end``; park it.

        An error in providing a region, such as ``RoomNeededError``, is raised here, and the request is repeated by the next call.
        """
        with self._changed:
            self._allowed = self._granted = True
            self._changed.notify_all()
            if self._thread.ident is None:
                self._thread.start()
            try:
                while not self.finished:
                    if self._asked is not None:
                        self._serve(self._asked, slots)
                        continue
                    left = end - time.monotonic()
                    self._allowed = left > 0
                    if not self._allowed and ((self._parked and not self._granted) or left < -PATIENCE):
                        break
                    self._changed.wait(left if self._allowed else left + PATIENCE)
            finally:
                self._allowed = False

    @property
    def discarded(self) -> bool:
        """Whether the run is to end without answers."""
        return self._discarded

    def discard(self) -> bool:
        """End the run where it is; return whether it has ended, after which it touches no value any more."""
        with self._changed:
            self._discarded = True
            self._changed.notify_all()
            return self._thread.ident is None or self._changed.wait_for(lambda: self.finished, PATIENCE)

    def _serve(self, asked: _Request, slots: RunSlots) -> None:
        """Carry out a request of the thread; the caller holds the lock."""
        name, arguments = asked
        try:
            self._given = getattr(slots, name)(*arguments), None
        except (RoomNeededError, BusyValueError):
            raise  # the client has to solve it
        except Exception as error:
            self._given = None, error
        self._asked = None
        self._changed.notify_all()

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Have the calling thread carry out a method of ``RunSlots``; return its result."""
        with self._changed:
            self._asked, self._given = (name, arguments), None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._given is not None or self._discarded)
            given: tuple[Any, BaseException | None] = self._given or (None, CancelledError("the run was removed"))
        found, error = given
        if error is not None:
            raise error
        return found

    def region(self, name: str, size: int = 0) -> DurableRegion:
        """Open a region, for the thread of the run."""
        found: DurableRegion = self._ask("region", name, size)
        return found

    def regions(self) -> Sequence[str]:
        """Return the names of the regions, for the thread of the run."""
        found: Sequence[str] = self._ask("regions")
        return found

    def drop_region(self, name: str) -> None:
        """Give a region back, for the thread of the run."""
        self._ask("drop_region", name)

    def _offer(self) -> bool:
        """Wait here while no call drives the run; return whether it is to end."""
        with self._changed:
            if not self._allowed and not self._granted:
                self._parked = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._allowed or self._granted or self._discarded)
                self._parked = False
            self._granted = False
            return self._discarded

    def _observe(self, progress: Progress) -> None:
        """Note the progress of a pass."""
        self.share = progress.share
        self.steps[progress.run] = progress

    def _verified(self, done: int, total: int) -> None:
        """Note the bytes of the store that were verified, and wait while no call drives the run."""
        self.share = done / total
        if self._offer():
            raise CancelledError("the run was removed")

    def _work(self) -> None:
        """Drive the run to its end."""
        try:
            self.answers = self._drive()
        except BaseException as error:
            self.error = error
        finally:
            self._store.close()
            with self._changed:
                self.finished = True
                self._changed.notify_all()

    def _drive(self) -> bytes:
        """Return the encoded answers."""
        record, store = self._record, self._store
        if "kind" in record:
            return encode_message({"kind": record["kind"], "answers": self._analyse(record["kind"])})
        runs = []
        for (name, identifier), sent in zip(self._logs.items(), record["requests"], strict=True):
            request = decode_request(sent)
            if request.constraint is not None:
                parse_constraint(request.constraint, store.names, base_path=None, allow_oracle=False)  # type: ignore[arg-type]
            open_log: Callable[[], StateLog] = functools.partial(StateLog, self, name, identifier, self._first_room)
            runs.append(JournaledRun(request, open_log, {"request": sent, "response": record["y"]}))
        if record["verify"]:
            store.verify()
        response = None if record["y"] is None else decode_vector(record["y"], "y")
        drive(Dataset.of_store(store), runs, response, verified=record["verify"], cancelled=self._offer, observer=self._observe)
        return encode_message({"answers": [encode_selection(each.selection) for each in runs if each.selection is not None]})

    def _analyse(self, kind: str) -> list[dict[str, Any]]:
        """Return the encoded answers of an analysis."""
        record, store = self._record, self._store
        sent, _, _ = checked_analysis(kind, record["requests"][0], record["options"], None, store, JobLimits())
        return carry_out(
            kind,
            sent,
            record["options"],
            record["y"],
            store,
            verify=record["verify"],
            observer=self._observe,
            cancelled=self._offer,
        )
