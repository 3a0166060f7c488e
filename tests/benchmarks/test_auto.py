"""``fastomp bench auto`` measures every contestant of a cell and judges time, bytes and R^2 as it says."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fastomp_nvm as fo
from benchmarks import auto
from benchmarks.harness.report import Report, argument_parser
from fastomp_nvm.analysis.synthetic import sparse_design


@pytest.fixture
def report() -> Report:
    """Return a report that prints nothing until it is finished."""
    return Report(argument_parser("auto", "x").parse_args(["--json"]))


@pytest.mark.parametrize("state", ["warm", "cold", "larger than memory"])
def test_a_cell_of_a_store_has_all_contestants(tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str) -> None:
    """Every fixed choice is timed beside ``auto``, all with one answer, and the choices of ``auto`` come with it."""
    X, y = sparse_design(200, 400, 5, 0.3)
    fo.create_store(f"mmap://{tmp_path}/s", X, {"signal": y}).close()
    cell = auto.Cell(f"mmap://{tmp_path}/s", state, "fast_omp", 5, 2)
    assert auto.main(["--cell", json.dumps(asdict(cell))]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["seconds"]) == set(found["device_bytes"]) == {"auto", *auto.FIXED[state]}
    assert len(found["seconds"]["auto"]) == 2
    assert found["answers"] == 1
    assert {"tier", "io"} <= set(found["choices"])


def test_a_cell_of_algorithms_has_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    """``auto`` and every algorithm are timed and scored on the same data, and ``auto`` scores as the one it chose."""
    cell = auto.Cell("", "warm", "auto", 4, 1, "noise", (150, 60))
    assert auto.main(["--cell", json.dumps(asdict(cell))]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["seconds"]) == set(found["scores"]) == {"auto", *auto.ALGORITHMS}
    assert found["choices"]["algorithm"].startswith("fast_omp: ")
    assert found["scores"]["auto"] == found["scores"]["fast_omp"]


def test_contestants_far_behind_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After one turn ``auto`` and the choices near the fastest one as good are timed; the others keep their first time."""
    seconds = {"auto": 9.0, "near": 1.9, "fastest": 1.0, "far": 2.1, "worse": 0.1}
    turns: list[str] = []

    def in_turn(contestants: dict[str, Any], repeats: int, **_: object) -> tuple[dict[str, list[float]], dict[str, Any]]:
        turns.extend(contestants)
        return {name: [seconds[name]] * repeats for name in contestants}, {name: run() for name, run in contestants.items()}

    monkeypatch.setattr(auto, "in_turn", in_turn)
    runs = {name: lambda name=name: SimpleNamespace(score=0.8 if name == "worse" else 0.9) for name in seconds}
    timed, found = auto._contend(runs, 3)
    assert turns[len(seconds) :] == ["auto", "near", "fastest"]
    assert {name: len(each) for name, each in timed.items()} == {"auto": 3, "near": 3, "fastest": 3, "far": 1, "worse": 1}
    assert set(found) == set(seconds)
    assert auto._over(timed, "far") is None
    assert auto._against_the_best(timed, ["near", "far", "fastest"])[0] == "fastest"


@pytest.mark.parametrize(
    ("state", "seconds", "gigabytes", "limit", "met"),
    [
        ("warm", (1.1, 1.0, 3.0), (1, 1, 1), auto.WARM, True),
        ("warm", (1.2, 1.0, 3.0), (1, 1, 1), auto.WARM, False),
        ("cold", (1.2, 1.0, 3.0), (9, 1, 9), auto.COLD, True),
        ("cold", (1.5, 1.0, 3.0), (1.1, 9, 1), auto.COLD_BYTES, True),  # slower, and reads as little as any
        ("cold", (1.5, 1.0, 3.0), (1.2, 9, 1), auto.COLD, False),
        ("cold", (1.5, 1.0, 3.0), (0, 0, 0), auto.COLD, False),  # bytes are not counted here
    ],
)
def test_a_store_is_judged_by_the_best_fixed_choice(
    report: Report, state: str, seconds: tuple[float, ...], gigabytes: tuple[float, ...], limit: float, met: bool
) -> None:
    """Warm by time; cold by time, or by bytes where these are as few as those of any fixed choice."""
    names = ("auto", "exact", "int8")
    found = {
        "seconds": {name: [each] for name, each in zip(names, seconds, strict=True)},
        "device_bytes": {name: 1e9 * each for name, each in zip(names, gigabytes, strict=True)},
        "stayed": 0.0,
        "choices": {},
    }
    auto.judge_store(report, "cell", auto.Cell("mmap://s", state, "fast_omp", 5, 1), found)
    assert [(bar.limit, bar.met) for bar in report.bars] == [(limit, met)]


@pytest.mark.parametrize(
    ("seconds", "scores", "limit", "met"),
    [
        ({"auto": 1.1, "fast_omp": 1.0, "top_k": 0.1}, {"auto": 0.9, "fast_omp": 0.9, "top_k": 0.5}, auto.WARM, True),
        ({"auto": 1.1, "fast_omp": 1.0, "top_k": 0.1}, {"auto": 0.9, "fast_omp": 0.9, "top_k": 0.899}, auto.WARM, False),
        ({"auto": 0.1, "fast_omp": 1.0, "top_k": 0.1}, {"auto": 0.8, "fast_omp": 0.9, "top_k": 0.8}, auto.CLOSE, False),
    ],
)
def test_algorithms_are_judged_among_the_good_ones(
    report: Report, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], scores: dict[str, float], limit: float, met: bool
) -> None:
    """By time over the fastest algorithm whose R^2 is within .002 of the best; by R^2 where that of ``auto`` is not."""
    monkeypatch.setattr(auto, "ALGORITHMS", ("fast_omp", "top_k"))
    found: dict[str, Any] = {"seconds": {name: [each] for name, each in seconds.items()}, "scores": scores, "choices": {}}
    auto.judge_algorithms(report, "cell", found)
    assert [(bar.limit, bar.met) for bar in report.bars] == [(limit, met)]
