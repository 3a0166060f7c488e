"""The crash harness: simulated power cuts, SIGKILLs, mutated files, and deliberately broken logs that must be detected.

``make crash`` runs it to its goals. It works in small steps and appends their counts to a file, so that it can be stopped at any
moment and continues from there; ``--minutes`` bounds one session. A failure ends it with the error and the seed.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fastomp_nvm as fo
from benchmarks.harness.processes import private_home
from fastomp_nvm.analysis.synthetic import PaperDesign
from tests.harness.kill_trials import KILL_POINTS, kill_at_point, kill_at_random_times
from tests.harness.log_trials import BROKEN_LOGS, BrokenPromiseError, cut_power
from tests.harness.mutations import MutationTrials
from tests.harness.server_crash import JOB_POINTS, UPLOAD_POINTS, ServerTrials

__all__ = ["main"]

GOALS = {
    "broken logs caught": len(BROKEN_LOGS),
    "simulated images": 10_000,
    "SIGKILLs": 1_000,
    "SIGKILLs of a server": 150,
    "mutated files": 100_000,
}
QUICK_GOALS = {
    "broken logs caught": len(BROKEN_LOGS),
    "simulated images": 1_000,
    "SIGKILLs": 60,
    "SIGKILLs of a server": 20,
    "mutated files": 2_000,
}
ENOUGH_TRIES = 2  # of a kill point, after which at least one server must have reached it
MEDIA = ("mmap", "pmem")
GRANULES = (8, 64, 512, 4096)
REQUESTS: dict[str, dict[str, Any]] = {
    "fast_omp": {"k": 8, "target": "amount"},
    "sds_omp": {"k": 6, "target": "amount", "algorithm": "sds_omp"},
    "sds_ma": {"k": 4, "target": "amount", "algorithm": "sds_ma"},
    "auto": {"k": 6, "target": "amount", "tau": "auto"},
    "logistic": {"k": 4, "target": "class", "objective": "logistic"},
}


class Session:
    """Counts kept in a file, one JSON line per step.

    Parameters
    ----------
    path : Path
    seconds : float
        Time limit of this session.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self._path = path
        self._end = time.monotonic() + seconds
        self.tally: Counter[str] = Counter()
        if path.exists():
            for line in path.read_text(encoding="ascii").splitlines():
                self.tally.update(json.loads(line))

    def note(self, **found: int) -> None:
        """Add to the counts and append them to the file."""
        counts = {name.replace("_", " "): count for name, count in found.items()}
        with self._path.open("a", encoding="ascii") as file:
            file.write(json.dumps(counts) + "\n")
        self.tally.update(counts)

    def wants(self, name: str, goal: int) -> bool:
        """Return whether a goal is not reached yet and time is left."""
        return self.tally[name] < goal and time.monotonic() < self._end


def cut_powers(session: Session, goal: int) -> None:
    """Simulate power cuts."""
    while session.wants("simulated images", goal):
        seed = session.tally["lives"]
        session.note(lives=1, simulated_images=cut_power(seed, granule=GRANULES[seed % len(GRANULES)], limit=16))


def catch_broken_logs(session: Session, goal: int) -> None:
    """Check that the simulation detects every broken log."""
    names = list(BROKEN_LOGS)
    while session.wants("broken logs caught", goal):
        name = names[session.tally["broken logs caught"]]
        try:
            with BROKEN_LOGS[name]():
                for seed in range(200):
                    cut_power(seed, granule=GRANULES[seed % 2], limit=16)
        except BrokenPromiseError:
            session.note(broken_logs_caught=1)
        else:
            raise AssertionError(f"a log with {name} passed 200 simulated lives")


def kill_servers(session: Session, goal: int, folder: Path) -> None:
    """Kill servers with jobs in flight, during uploads, and, once per medium, three times under the same job."""
    if not session.wants("SIGKILLs of a server", goal):
        return
    with ServerTrials(folder, *data(), REQUESTS, MEDIA) as trials:
        while session.wants("SIGKILLs of a server", goal):
            trial = session.tally["server trials"]
            if trial % 50 < len(MEDIA):
                report = trials.suspect(trial)
            elif trial % 3 == 2:
                report = trials.kill_with_upload(trial // 3)
            else:
                report = trials.kill_with_jobs(trial - trial // 3)
            counts = {"jobs": report.jobs, "in_flight": report.in_flight, "uploads": report.uploads}
            points = Counter([f"tried {point}" for point in report.tried] + [f"reached {point}" for point in report.reached])
            session.note(server_trials=1, SIGKILLs=report.kills, SIGKILLs_of_a_server=report.kills, **counts, **points)
    for point in (*JOB_POINTS, *UPLOAD_POINTS):
        if session.tally[f"tried {point}"] >= ENOUGH_TRIES and not session.tally[f"reached {point}"]:
            raise AssertionError(f"no server ever reached the kill point {point!r}: it is not tested")


def data() -> tuple[Any, dict[str, Any]]:
    """Return observations (300, 1000) and two targets."""
    design = PaperDesign(300, 1000, seed=5)
    y = design.response()
    return design.matrix().T.astype(np.float32), {"amount": y, "class": np.where(y > 0, "good", "bad")}


def kill_processes(session: Session, goal: int, folder: Path) -> None:
    """Kill real processes at every named point and at random times, on mmap and pmem."""
    X, targets = data()
    urls, answers = [], {}
    for medium in MEDIA:
        urls.append(f"{medium}://{folder}/{medium}")
        fo.create_store(urls[-1], X, targets, replace=True).close()
        for name, request in REQUESTS.items():
            answers[urls[-1], name] = fo.select(urls[-1], threads=1, **request)
    while session.wants("SIGKILLs", goal):
        trial = session.tally["killed runs"]
        chance, url = random.Random(trial), urls[trial % 2]
        name = list(REQUESTS)[trial // 2 % len(REQUESTS)]
        expected, request = answers[url, name], REQUESTS[name]
        if trial // 2 % 2:
            point = list(KILL_POINTS)[trial // 4 % len(KILL_POINTS)]
            report = kill_at_point("crash", url, request, expected, point)
        else:
            report = kill_at_random_times("crash", url, request, expected, chance)
        session.note(killed_runs=1, SIGKILLs=report.kills, early_kills=report.early, processes=report.processes)


def mutate_files(session: Session, goal: int, folder: Path) -> None:
    """Open mutated files of every format."""
    while session.wants("mutated files", goal):
        trials = MutationTrials(folder, session.tally["mutated files"])
        tally = trials.run(min(3000, goal - session.tally["mutated files"]))
        trials.close()
        tried, refused = (sum(pair[place] for pair in tally.values()) for place in (0, 1))
        session.note(mutated_files=tried, refused=refused)


def show(tally: Counter[str], goals: dict[str, int], seconds: float) -> None:
    """Print the summary."""
    table = Table(title=f"crash harness, {datetime.now(UTC):%Y-%m-%d}, {seconds:.0f} s in this session")
    for column in ("", "done", "goal", "found"):
        table.add_column(column, justify="left" if column in ("", "found") else "right")
    points = sum(name.startswith("reached ") for name in tally)
    reached = sum(count for name, count in tally.items() if name.startswith("reached "))
    found = {
        "simulated images": f"0 lost, 0 invented, in {tally['lives']:,} lives of a log",
        "SIGKILLs": f"0 lost runs, 0 wrong results, 0 stores that fail to open, in {tally['killed runs']:,} local runs; "
        f"{tally['early kills']:,} more before anything was registered",
        "SIGKILLs of a server": f"0 lost or wrong of {tally['jobs']:,} jobs, {tally['in flight']:,} times in flight; "
        f"0 half stores in {tally['uploads']:,} uploads; {reached:,} kills at {points} named points",
        "mutated files": f"only our own errors, {tally['refused']:,} refused",
        "broken logs caught": "every one" if tally["broken logs caught"] >= len(BROKEN_LOGS) else "so far",
    }
    for name, goal in goals.items():
        table.add_row(name, f"{tally[name]:,}", f"{goal:,}", found[name])
    Console(highlight=False, markup=False).print(table)


def main(words: Sequence[str] | None = None) -> int:
    """Run towards the goals; exit code 0 once they are reached, 3 when time runs out before."""
    parser = argparse.ArgumentParser(prog="crash", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--state", type=Path, default=Path("crash-harness.jsonl"), help="file of counts; later sessions continue from it"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="time limit of this session (default 30)")
    parser.add_argument("--quick", action="store_true", help="small goals")
    arguments = parser.parse_args(words)
    goals = QUICK_GOALS if arguments.quick else GOALS
    session, started = Session(arguments.state, 60 * arguments.minutes), time.monotonic()
    with private_home() as folder:
        steps: tuple[tuple[Callable[..., None], str, tuple[Path, ...]], ...] = (
            (catch_broken_logs, "broken logs caught", ()),
            (cut_powers, "simulated images", ()),
            (kill_servers, "SIGKILLs of a server", (folder,)),
            (kill_processes, "SIGKILLs", (folder,)),
            (mutate_files, "mutated files", (folder,)),
        )
        for step, name, rest in steps:
            step(session, goals[name], *rest)
    show(session.tally, goals, time.monotonic() - started)
    return 0 if all(session.tally[name] >= goal for name, goal in goals.items()) else 3


if __name__ == "__main__":
    raise SystemExit(main())
