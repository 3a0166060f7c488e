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

from ado_plugin.execution import Execution
from ado_plugin.jobs import Job
from fastomp_nvm.cli import main
from fastomp_nvm.engine import Progress

__all__ = ["HELD_FROM"]

#: Features after which a job is held.
HELD_FROM = 5


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
                observer(step)  # again: notices are told from time to time only

        original(self, jobs, observe, stopped, dropped, ended)

    Execution.run = run  # type: ignore[method-assign]


if __name__ == "__main__":
    hold(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
