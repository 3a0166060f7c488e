"""Benchmarks run: their figures are measurements, not tests, but a script that no longer starts is a defect."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    cluster,
    constraint_share,
    fast,
    first_answer,
    ingest,
    kernels,
    paper,
    peers,
    plan,
    quality,
    tall,
    tier_noise,
)
from benchmarks.harness import designs
from benchmarks.harness.data import refit_score
from benchmarks.harness.report import Report, argument_parser
from benchmarks.peers import Contestant, largest_on_path
from fastomp_nvm.errors import RequestError


def report(name: str, *words: str) -> Report:
    """Return a report as a benchmark begins it."""
    return Report(argument_parser(name, "A test.").parse_args(words))


def test_kernels_prints_every_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """The quick form has each bar, the tier's savings at the same answer, and every built-in constraint at the full sequence."""
    assert kernels.main(["--quick", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    *ratios, changed = printed["bars"]
    assert len(ratios) == 8
    assert all(bar["found"] > 0 for bar in ratios)
    assert changed["found"] == 0
    assert all(row["same_answer"] and row["times_fewer_bytes"] > 3 for row in printed["tier"])
    assert {row["constraint"]: row["sequence"] for row in printed["blocking"]} == dict.fromkeys(kernels.constraints(2000), 300)


def test_kernels_judges_the_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A tier that changes an answer is a bar that is missed, however quick it is; here of figures that were made up."""
    names = ("BLAS GEMV", "float32", "float16", "int8", "BLAS GEMM", "float32, 64 residuals", "BLAS GEMV, float64", "float64")
    seconds = {name: [took] for name, took in zip(names, (1.0, 1.0, 0.5, 0.1, 1.0, 1.0, 1.0, 1.0), strict=True)}
    monkeypatch.setattr(kernels, "after_a_pause", lambda *_: {"free": [1.0], "pinned": [1.0]})
    row = {"algorithm": "fast_omp", "seconds": 1.0, "times_faster": 2.0, "times_fewer_bytes": 4.0}
    monkeypatch.setattr(kernels, "sweeps", lambda *_: seconds)
    monkeypatch.setattr(kernels, "genotypes", lambda *_: {1: {"genotypes": [1.0], "float32": [1.0], "BLAS": [1.0]}})
    monkeypatch.setattr(kernels, "blocking", lambda *_: [])
    for same in (True, False):
        monkeypatch.setattr(kernels, "tier", lambda *_, same=same: [{**row, "same_answer": same}])
        assert kernels.main([]) == (0 if same else 1)
    assert capsys.readouterr().out.count("MISSED answers that the tier changes") == 1


def test_first_answer_judges_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    """The quick form times every form of the data and a process that starts, and judges R^2 and memory too."""
    assert first_answer.main(["--quick", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    problem = next(value for name, value in printed.items() if name.startswith("120 x 900"))
    assert [row["form"] for row in problem] == list(first_answer.forms(np.zeros((2, 2)), Path()))
    claims = {bar["claim"].split(": ")[1] for bar in printed["bars"]}
    assert {"times faster than scikit-learn", "R^2 above scikit-learn's", "times a prepared store's"} < claims
    assert all(bar["met"] for bar in printed["bars"] if "memory" in bar["claim"])
    assert printed["bars"][-1]["claim"].startswith("100 x 60, k = 10: first answer of a process")
    (started,) = printed["start_up"]["a process"]
    assert "fastomp_nvm.objectives.linear" in started["names"]
    assert started["code"] > 0  # the bytecode was cached


def test_tier_noise_prints_every_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """The quick form has a bar for each algorithm, and both answers alike."""
    assert tier_noise.main(["--quick", "--json"]) == 0
    *ratios, changed = json.loads(capsys.readouterr().out)["bars"]
    assert [bar["claim"].split(":")[0] for bar in ratios] == ["sds_omp", "fast_omp"]
    assert all(bar["interval"][0] <= bar["found"] <= bar["interval"][1] for bar in ratios)
    assert changed["found"] == 0


def test_quality_prints_every_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    """The quick form has each bar; those that do not depend on the draw of a design are met."""
    small = ("--jobs", "1", "--observations", "50", "--features", "60", "--k", "4", "--constraint", "knapsack")
    assert quality.main(["--quick", "--json", *small]) == 0
    found = {bar["claim"]: bar["found"] for bar in json.loads(capsys.readouterr().out)["bars"]}
    assert found["R^2 by which verified is below full greedy, largest"] <= 1e-9
    assert 0.95 <= found["R^2 of best over the optimum's, worst problem"] <= 1 + 1e-9
    assert "passes of best, most" in found


def test_quality_names_every_set_of_a_peer_that_is_better(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that finds a better set is named with design, seed and difference; one that is missing is listed."""
    cheat = Contestant("cheat", "numpy", lambda X, y, k: lambda: np.arange(X.shape[1]))
    monkeypatch.setattr(quality, "PEERS", [cheat, Contestant("absent", "no_such_package", cheat.prepare)])
    small = ("--observations", "40", "--features", "12", "--k", "5", "--seeds", "2", "--jobs", "1")
    assert quality.main(["--only", "designs", "--design", "independent", "--constraint", "k alone", *small]) == 1
    printed = capsys.readouterr().out
    assert "skipped: absent." in printed
    assert re.findall(r"cheat beats best by .*: independent, seed (\d+)", printed) == ["1000", "1001"]


def test_the_largest_set_within_k_on_a_path_counts() -> None:
    """Of the steps of a path with at most k features the last of the largest is taken; a path beyond k from the start has none."""
    path = np.array([[0, 1, 1, 0, 1], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]])
    assert [largest_on_path(path, k).tolist() for k in (3, 2, 1)] == [[0, 1, 2], [1, 2], [0]]
    assert largest_on_path(path[:, 4:], 2).tolist() == []


@pytest.mark.parametrize("design", list(designs.DESIGNS))
def test_designs_are_drawn_again_alike(design: str) -> None:
    """Half of the observations is held out, no column is constant, and only the seed decides; real data may be missing."""
    found = designs.drawn(design, 3, 40, 50, 12)
    if found is None:
        assert design in designs.REAL
        pytest.skip("no data")
    again, other = (designs.drawn(design, seed, 40, 50, 12) for seed in (3, 4))
    assert again is not None
    assert other is not None
    assert np.array_equal(found.X, again.X)
    assert not np.array_equal(found.y, other.y)
    assert found.test[0].shape[1] == found.X.shape[1] <= 50
    assert len(found.test[1]) == len(found.test[0]) >= len(found.X) == len(found.y) > found.k
    assert np.ptp(found.X, axis=0).min() > 0


def test_ingest_prints_every_ratio_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Small sizes have a ratio for each part and a peak of memory, and their files are removed."""
    pytest.importorskip("pyarrow")
    words = ("--quick", "--json", "--npy-gb", "0.02", "--blocks-gb", "0.02", "--folder", str(tmp_path))
    assert ingest.main(words) == 0
    ratios = json.loads(capsys.readouterr().out)["bars"]
    assert [bar["claim"].split(":")[0] for bar in ratios] == ["NPY in C order", "npy", "CSV", "blocks of 256 columns"]
    assert all(bar["found"] > 0 for bar in ratios)
    assert list(tmp_path.iterdir()) == []


def test_tall_prints_every_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """The quick form makes all selections from Gram matrices of one pass, the same ones as by sweeps."""
    tall.main(["--quick", "--json"])
    faster, single, differing, passes = json.loads(capsys.readouterr().out)["bars"]
    assert min(faster["found"], single["found"]) > 0
    assert (differing["found"], passes["found"]) == (0, 1)


def test_constraint_share_is_a_share(capsys: pytest.CaptureFixture[str]) -> None:
    """The quick form times the questions to the constraint, and the drawing of sequences, within the run."""
    assert constraint_share.main(["--quick", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    (bar,) = printed["bars"]
    assert 0 < bar["found"] < 1
    assert all(printed["parts"][name] > 0 for name in ("extensions", "blocking", "random sequences"))


def test_plan_compares_passes_and_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Predicted counts of one small run are near the real ones, and the constants are a machine file."""
    assert plan.main(["--quick", "--json", "--folder", str(tmp_path), "--machine", str(tmp_path / "machine.json")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert all(0.5 < row[name] < 2 for row in printed["rows"] for name in ("passes", "bytes read"))
    assert json.loads((tmp_path / "machine.json").read_text()) == printed["machine_constants"]
    assert [file.name for file in tmp_path.iterdir()] == ["machine.json"]


def test_fast_is_judged_against_the_quicker_fortran_form() -> None:
    """Of scikit-learn's two forms in Fortran order the quicker one counts."""
    for times in ((9.0, 7.0), (7.0, 9.0)):
        seconds = dict(zip((fast.C_ORDER, fast.FORTRAN, fast.NO_COPY), (20.0, *times), strict=True))
        races = {form: {form: [took], "FAST_OMP": [1.0], "SDS_OMP": [2.0]} for form, took in seconds.items()}
        judged = report("fast")
        fast.linear_bars(
            judged, fast.SIZES["small"], races, dict.fromkeys((fast.C_ORDER, "FAST_OMP"), 0.5), {fast.C_ORDER: 3, "FAST_OMP": 3}
        )
        assert [bar.found for bar in judged.bars if "Fortran" in bar.claim] == [7.0, 3.5]


def test_a_refit_does_not_depend_on_the_order_of_selection() -> None:
    """Equal features have equal R^2 to the last bit, so that a ratio of at least 1 can be asked for."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 40)), rng.normal(size=60)
    chosen = rng.permutation(40)[:20]
    scores = {refit_score(X, y, rng.permutation(chosen)) for _ in range(20)}
    assert len(scores) == 1


def test_fast_prints_every_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """The quick form compares equal numbers of features, and its share of bookkeeping is a share."""
    pytest.importorskip("sklearn")
    assert fast.main(["--quick", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    problems = [figures for name, figures in printed.items() if name.endswith("k = 10")]
    assert len(problems) == 2
    assert all(0 < problem["bookkeeping"] < 1 for problem in problems)
    assert all(row["selected"] == 10 for problem in problems for row in problem["rows"].values())
    assert len(printed["bars"]) == 19
    assert all(bar["found"] > 0 for bar in printed["bars"])


@pytest.mark.parametrize(("overhead", "same", "code"), [(24.0, True, 0), (26.0, True, 1), (24.0, False, 1)])
def test_cluster_judges_its_bar(
    overhead: float, same: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a round of two shards costs is judged, and so is the answer; here of figures that were made up."""
    names = ("rounds", "calls", "one", "shards", "ratio", "overhead_best_ms", "put_ms", "columns_ms", "columns", "matrix", "near")
    figures = dict.fromkeys((*names, "sent", "sent_formula", "received", "received_formula"), 1)
    figures |= {"overhead_ms": overhead, "overhead_quartiles_ms": (overhead, overhead), "same": same}
    monkeypatch.setattr(cluster, "measure", lambda *arguments: figures)
    words = ["--features", "600", "--observations", "20"]
    assert cluster.main(words) == cluster.main([*words, "--json"]) == code
    text = capsys.readouterr().out
    assert text.count("MISSED milliseconds") == (2 if overhead > cluster.BAR else 0)
    assert text.count("met    milliseconds") == (0 if overhead > cluster.BAR else 2)
    assert text.count("MISSED answers") == (not same)


def test_peers_lists_every_contestant(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On tiny data each installed contestant gets a line with its number of features, each missing one a reason."""
    absent = peers.Contestant("nobody", "no_such_module", peers.CONTESTANTS[0].prepare)
    monkeypatch.setattr(peers, "CONTESTANTS", (*peers.CONTESTANTS[:3], absent))
    words = ["--observations", "120", "--features", "300", "--k", "5", "--repeats", "1", "--limit", "60", "--out", str(tmp_path)]
    assert peers.main(words) == 0
    rows = [json.loads(line) for line in (tmp_path / "peers.jsonl").read_text().splitlines()]
    assert len(rows) == len(peers.CONTESTANTS) + 1
    assert [row.get("selected") for row in rows] == [5, 5, 5, None, 5]
    assert "no_such_module" in rows[3]["skipped"]
    assert "FAST_OMP" in capsys.readouterr().out


def test_paper_draws_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On shrunken plans the page, a figure per experiment and one line per run are written; data and settings are named."""
    pytest.importorskip("sklearn")
    plans = paper.read_plans(quick=True, seeds=2, scale=200)
    plans["small"] |= {"k": [5, 10]}
    plans["large"] |= {"shape": [1000, 60_000], "k": [5, 20]}
    plans["genes"] |= {"k": [3, 6]}
    monkeypatch.setattr(paper, "read_plans", lambda *_: plans)
    monkeypatch.delenv("FASTOMP_TEST_DATA", raising=False)
    assert paper.main(["--quick", "--out", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in (tmp_path / "paper.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 2 * (7 + 4 + 4)
    page = (tmp_path / "paper.html").read_text()
    for name in ("small", "large", "genes"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        assert f"{name}.png" in page
    assert "Skipped" in page
    for said in ("diabetes (shipped with", "breast cancer (shipped with", "tau 0.9, epsilon 0.1, until full", "A seed draws"):
        assert said in page


def test_the_mean_score_over_time_never_falls() -> None:
    """A run that has not begun counts as the null model, so that a late and bad one does not pull the mean down."""
    for objective, null in (("linear", 0.0), ("logistic", -0.7)):
        rows = [
            {
                "seconds": end,
                "score": null + 0.5,
                "final_value": 0.5,
                "n_obs": 1,
                "trace": [(first, 0.0), (2 * first, 0.3), (end, None)],
            }
            for first, end in ((0.01, 1.0), (0.4, 2.0))
        ]
        _, mean, low, high = paper._over_time(rows, objective)
        for curve in (mean, low, high):
            assert (np.diff(curve) >= 0).all()
        assert (low[0], high[-1]) == pytest.approx((null, null + 0.5))
        assert mean[-1] == pytest.approx(null + 0.5)


def test_the_compas_section_shows_mean_and_spread(tmp_path: Path) -> None:
    """Runs of several seeds become a line and a band, and two sentences on the distance from the optimum."""
    figures = {"FAST_OMP": (-0.66, -0.64), "FAST_OMP + polish": (-0.63, -0.62), "ISK": (-0.65,), "optimum": (-0.6,)}
    points = [
        {
            "judgement": "apriori",
            "evaluated_on": rows,
            "limit": limit,
            "algorithm": algorithm,
            "seed": seed,
            "log_likelihood": value - (rows == "held out"),
            "accuracy": 0.6 + limit / 10 - seed / 100,
            "outcome_fairness": -limit - seed / 100,
        }
        for rows in ("in-sample", "held out")
        for limit in (0.1, 0.5)
        for algorithm, values in figures.items()
        for seed, value in enumerate(values)
    ]
    written = report("paper", "--out", str(tmp_path))
    paper.show_compas(written, points)
    written.finish()
    page = (tmp_path / "paper.html").read_text()
    assert (tmp_path / "compas.png").stat().st_size > 10_000
    assert "FAST_OMP: the training log-likelihood is at most 8.33 % from the optimum in the mean over seeds and 6.67 %" in page
    assert "FAST_OMP + polish: the training log-likelihood is at most 4.17 %" in page


def test_paper_refuses_what_makes_no_sense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, and nothing written."""
    monkeypatch.delenv("FASTOMP_TEST_DATA", raising=False)
    for words in (["--seeds", "0"], ["--scale", "0"], ["--scale", "nan"], ["--genes", "nosuch.csv"], ["--only", "compas"]):
        with pytest.raises(RequestError):
            paper.main([*words, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
