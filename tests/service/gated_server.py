"""``fastomp serve`` whose jobs wait after some rounds while a file exists: ``python -m tests.service.gated_server FILE ...``.

So a test can act on a job in the middle of it however quick or slow the machine is. A job that is held still hears that it was
cancelled, or that the server is to stop.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ado_plugin.service.execution import Execution
from ado_plugin.service.job import Job
from fastomp_nvm.cli.main import main
from fastomp_nvm.engine.engine import Progress
from tests.service.running import RunningServer

__all__ = ["HELD_FROM", "GatedServer"]

#: Features after which a job is held.
HELD_FROM = 5


class GatedServer(RunningServer):
    """A running server whose jobs can be held in the middle.

    Parameters
    ----------
    folder : Path
    *options : str
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.gate = folder / "gate"
        super().__init__(folder, *options, program=("-m", "tests.service.gated_server", str(self.gate)))

    def close_gate(self) -> None:
        """Hold jobs in the middle, until the gate is opened or the server has ended."""
        self.gate.touch()

    def open_gate(self) -> None:
        """Let jobs continue."""
        self.gate.unlink(missing_ok=True)

    def _close(self) -> None:
        super()._close()
        self.open_gate()


def hold(gate: Path) -> None:
    """Have every job wait while ``gate`` exists."""
    original = Execution.run

    def run(
        self: Execution,
        jobs: Sequence[Job],
        observer: Callable[[Progress], None],
        stopped: Callable[[], bool],
        dropped: Callable[[Job], bool],
        ended: Callable[[Job, Any], None],
    ) -> None:
        def observe(step: Progress) -> None:
            observer(step)
            while step.selected >= HELD_FROM and gate.exists() and not stopped() and not any(map(dropped, jobs)):
                time.sleep(0.02)
                observer(step)  # again: notices are sent from time to time only

        original(self, jobs, observe, stopped, dropped, ended)

    Execution.run = run  # type: ignore[method-assign]


if __name__ == "__main__":
    hold(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
