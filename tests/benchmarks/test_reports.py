"""The report writer: one section per benchmark in the file of results, bars with their intervals, a page that escapes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.harness import report as reports
from benchmarks.harness.report import Bar, Report, argument_parser
from benchmarks.harness.timing import Ratio
from fastomp_nvm.errors import RequestError


def begun(name: str, *words: str, part: str = "") -> Report:
    """Return a report as a benchmark begins it."""
    return Report(argument_parser(name, "A test.").parse_args(words), words, part)


def test_record_replaces_the_section_of_its_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command, date, machine, table and bars with their spread; other sections stay as they are."""
    monkeypatch.setattr(reports, "RESULTS", tmp_path / "RESULTS.md")
    for name, value in (("first", 1.0), ("second", 2.0), ("first", 3.0)):
        report = begun(name, "--record")
        report.table("sizes", ("what", "found"), [("a|b", value)])
        report.bar("ratio", Ratio(value, 0.5, 4.0), 1.0)
        report.bar("share", 0.1, 0.2, at_most=True)
        assert report.finish() == 0
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.startswith("# Results\n")
    assert text.count("## first\n") == text.count("## second\n") == 1
    assert text.index("## second") < text.index("## first")
    assert "`fastomp bench first --record`: 20" in text
    assert "| a\\|b | 3 |" in text
    assert "- met    ratio: 3 (bar 1; 0.5 to 4)\n- met    share: 0.1 (bar at most 0.2)\n" in text
    assert "| a\\|b | 1 |" not in text


def test_a_part_is_recorded_beside_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part replaces its own section only, and its command names the benchmark."""
    monkeypatch.setattr(reports, "RESULTS", tmp_path / "RESULTS.md")
    for part, value in (("", 1.0), ("a", 2.0), ("b", 3.0), ("a", 4.0)):
        report = begun("any", "--record", part=part)
        report.say(f"found {value}")
        report.finish()
    text = (tmp_path / "RESULTS.md").read_text()
    assert re.findall(r"(?m)^## (.*)|found (.*)", text) == [
        ("any", ""),
        ("", "1.0"),
        ("any: b", ""),
        ("", "3.0"),
        ("any: a", ""),
        ("", "4.0"),
    ]
    assert text.count("`fastomp bench any --record`") == 3


def test_a_quick_run_is_not_recorded() -> None:
    """Its figures are no measurement."""
    with pytest.raises(RequestError, match="--quick"):
        begun("any", "--quick", "--record")


@pytest.mark.parametrize(("words", "judged", "code"), [([], None, 1), (["--quick"], None, 0), (["--quick"], True, 1)])
def test_a_missed_bar_is_the_exit_code(words: list[str], judged: bool | None, code: int) -> None:
    """Quick runs are judged only where a benchmark says so."""
    report = begun("any", *words)
    report.bar("claim", 1.0, 2.0)
    assert report.finish(judged) == code


def test_bars_are_limits_from_below_and_above() -> None:
    """A figure that is not a number meets none."""
    assert Bar("a", 2.0, 2.0).met
    assert Bar("a", 2.0, 2.0, at_most=True).met
    assert not Bar("a", 1.9, 2.0).met
    assert not Bar("a", 2.1, 2.0, at_most=True).met
    assert not Bar("a", float("nan"), 2.0).met
    assert not Bar("a", float("nan"), 2.0, at_most=True).met


def test_results_are_lines_a_page_and_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every measurement is a line, the page escapes text, and --json prints nothing else."""
    report = begun("any", "--json", "--out", str(tmp_path))
    report.measured({"value": 1})
    report.measured({"value": Ratio(1.0, 0.5, 2.0)})
    report.figures(found=[1, 2])
    report.say("a < b")
    report.finish()
    lines = [json.loads(line) for line in (tmp_path / "any.jsonl").read_text().splitlines()]
    assert [line["value"] for line in lines] == [1, {"median": 1.0, "low": 0.5, "high": 2.0}]
    assert "a &lt; b" in (tmp_path / "any.html").read_text()
    assert json.loads(capsys.readouterr().out)["found"] == [1, 2]
