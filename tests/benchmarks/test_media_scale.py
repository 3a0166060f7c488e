"""The benchmarks of media and of scale run at tiny sizes: every cell is measured or says why not, and the page can be read."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import cold_pass, media, scale
from benchmarks.harness import device, memory
from benchmarks.harness.report import Report, argument_parser
from fastomp_nvm.errors import MediumError
from storage_backends.files.durable import VOLATILE_FILE_SYSTEMS, file_system_type


def cell(medium: str, algorithm: str, seconds: list[float], **fields: object) -> dict[str, object]:
    """Return a row as the benchmark writes it."""
    row = {
        "data": "small",
        "medium": medium,
        "algorithm": algorithm,
        "tier": "exact",
        "seconds": sorted(seconds)[len(seconds) // 2],
    }
    row |= {"all_seconds": seconds, "load_seconds": 0.1, "passes": 4.0, "bytes_read": 100, "bytes_read_exact": 100, "score": 0.5}
    row |= {
        "emulated": "pmem" in medium,
        "detail": "<mapping>",
        "peak_memory": 10,
        "n_obs": 3,
        "n_features": 4,
        "bytes": 48,
        "k": 2,
    }
    return row | {"indices": [1, 2]} | fields


def page_of(rows: list[dict[str, object]], folder: Path) -> Path:
    """Write the page of some rows; return it."""
    report = Report(argument_parser("media", "A test.").parse_args(["--out", str(folder)]))
    for name in dict.fromkeys(str(row["data"]) for row in rows):
        media.show(report, name, [row for row in rows if row["data"] == name])
    media.judge(report, rows)
    report.finish()
    return folder / "media.html"


def test_media_measures_every_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each medium has a row for each algorithm with the same features, each absent medium a reason; page and figure are there."""
    tiny = [media.Data("small", 120, 60, "float32", 5, 2)]
    monkeypatch.setattr(media, "data_sets", lambda quick, scale: tiny)
    monkeypatch.setattr(media, "run_process", lambda cell, data: {**vars_of(cell, data), **media.measure_cell(cell)})
    monkeypatch.setattr(media, "_pushed", lambda cell: media.measure_cell(media.replace(cell, url=f"mmap://{cell.url[7:]}")))
    assert media.main(["--quick", "--out", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in (tmp_path / "media.jsonl").read_text().splitlines()]
    measured = [row for row in rows if "seconds" in row]
    assert {row["medium"] for row in measured} >= {"dram", "pmem", "mmap warm", "mmap cold"}
    assert {row["algorithm"] for row in measured} == {"fast_omp", "sds_omp"}
    assert all(len(row["all_seconds"]) == 2 and min(row["all_seconds"]) > 0 for row in measured)
    assert all(row["skipped"] for row in rows if "seconds" not in row)
    page = (tmp_path / "media.html").read_text()
    assert "NVM (emulated) against DRAM" in page
    assert "is a defect" not in page
    assert (tmp_path / "small.png").stat().st_size > 5_000
    assert not list(tmp_path.glob("media-*")), "the stores are removed"


def vars_of(one: media.Cell, data: media.Data) -> dict[str, object]:
    """Return the fields of a row that describe its cell."""
    return {**media.asdict(one), "n_obs": data.n_obs, "n_features": data.n_features, "bytes": data.bytes}


def test_a_cell_runs_in_a_process_of_its_own_within_its_limit(tmp_path: Path) -> None:
    """A cell under a memory limit says which kind of limit it was; one that is allowed too little is reported, not lost."""
    with memory.memory_group(1 << 30) as group:
        if group is None:
            pytest.skip("no right to make a memory control group here")
    data = media.Data("excess", 200, 400, "float64", 5, 1)
    media.build(data, f"mmap://{tmp_path / 'store'}")
    base = media.Cell(
        "excess", "mmap, limited", f"mmap://{tmp_path / 'store'}", "fast_omp", "int8", 5, 1, "tier", allowed=400 << 20
    )
    row = media.run_process(base, data)
    assert "cgroup v" in row["limit"]
    assert row["seconds"] > 0
    assert "killed" in media.run_process(media.replace(base, allowed=8 << 20), data)["skipped"]


def test_a_limit_holds_and_goes_away() -> None:
    """A process in a group cannot fill more than it allows, not by way of swap either, and the group is removed afterwards."""
    with memory.memory_group(64 << 20) as group:
        if group is None:
            pytest.skip("no right to make a memory control group here")
        fill = [sys.executable, "-c", "import sys; b = bytearray(int(sys.argv[1])); b[::4096] = b'x' * len(b[::4096])"]
        assert subprocess.run(group.command([*fill, "1000"]), check=False).returncode == 0
        assert subprocess.run(group.command([*fill, str(200 << 20)]), check=False).returncode == -9
        for swap in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
            if (group.folder / swap).exists():
                assert int((group.folder / swap).read_text()) == (0 if group.version == 2 else 64 << 20)
    assert not group.folder.exists()


def test_without_the_right_to_limit_rows_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no control group can be made, a limited cell is a row that says so."""
    monkeypatch.setattr(memory, "_MOUNT", tmp_path / "nowhere")
    one = media.Cell("excess", "mmap, limited", "mmap:///nowhere", "fast_omp", "exact", 5, 1, allowed=1 << 30)
    row = media.run_process(one, media.Data("excess", 10, 10, "float64", 5, 1))
    assert "control group" in row["skipped"]


def test_the_noise_is_the_spread_of_repetitions() -> None:
    """A ratio is within the noise when repetitions of one of its two cells differ as much; otherwise it is beyond."""
    rows = [cell("dram", "fast_omp", [1.0, 1.2, 1.4]), cell("pmem", "fast_omp", [1.3, 1.5, 1.6])]
    assert "is within the noise, as the paper found" in media.noise_sentence(rows)
    assert "pmem FAST_OMP exact 1.25 (within a noise of 1.40)" in media.noise_sentence(rows)
    rows[1] = cell("pmem", "fast_omp", [2.4, 2.4, 2.5])
    assert "in 0 of 1 pairs" in media.noise_sentence(rows)
    assert "pmem FAST_OMP exact 2.00 (beyond a noise of 1.40)" in media.noise_sentence(rows)


def test_an_outlier_does_not_make_a_steady_difference_noise() -> None:
    """1.8 times the time of DRAM at every repetition is beyond the noise, whatever another cell or one repetition of ten did."""
    steady = [1.8, 1.81, 1.8, 1.79, 1.8, 1.8, 1.81, 1.79, 1.8, 1.8]
    rows = [
        cell("dram", "fast_omp", [*[1.0] * 9, 3.0]),
        cell("pmem", "fast_omp", steady),
        cell("tmpfs-pmem", "fast_omp", [1.0, 5.0, 1.0]),
        cell("mmap warm", "fast_omp", [0.5, 0.5, 0.5]),
    ]
    sentence = media.noise_sentence(rows)
    assert "pmem FAST_OMP exact 1.80 (beyond a noise of 1.20)" in sentence
    assert "tmpfs-pmem FAST_OMP exact 1.00 (within a noise of 5.00)" in sentence


def test_the_page_names_an_answer_that_differs(tmp_path: Path) -> None:
    """An answer that depends on the medium is named and misses a bar, and quoted text is escaped."""
    rows = [cell("dram", "fast_omp", [1.0]), cell("pmem", "fast_omp", [1.0], indices=[3, 4])]
    page = page_of(rows, tmp_path).read_text()
    assert "for small/fast_omp, which is a defect" in page
    assert "MISSED answers that depend on the medium or the tier: 1" in page
    assert "&lt;mapping&gt;" in page
    assert "<mapping>" not in page


def test_exceeding_memory_is_judged_against_device_and_dram(tmp_path: Path) -> None:
    """The bars are ratios: to the run in DRAM with the tier, to passes x bytes / bandwidth without."""
    excess = {"data": "excess", "device_bytes_per_second": 50.0}
    rows = [
        cell("dram", "fast_omp", [1.0], data="excess"),
        cell("dram", "fast_omp", [0.5], tier="int8", data="excess"),
        cell("mmap, limited", "fast_omp", [2.8], **excess),
        cell("mmap, limited, tier in DRAM", "fast_omp", [1.5], tier="int8", **excess),
    ]
    page = page_of(rows, tmp_path).read_text()
    assert "met    FAST_OMP, tier in DRAM: times the all-in-DRAM run: 1.5 (bar at most 2)" in page
    assert "times the all-in-DRAM run with the tier: 3.00." in page
    assert "MISSED FAST_OMP, exact only: times passes x bytes / device bandwidth: 1.4 (bar at most 1.3)" in page


@pytest.mark.parametrize(("missing", "quick", "code"), [(True, False, 1), (True, True, 0), (False, False, 0)])
def test_media_judges_its_bars_on_data_of_full_size(
    missing: bool, quick: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bars and noise are printed, and a missed bar gives exit code 1; quick data are too small to be judged."""
    rows = [
        cell("dram", "fast_omp", [1.0, 1.0]),
        cell("pmem", "fast_omp", [1.5, 1.5]),
        cell("dram", "fast_omp", [1.0], data="excess"),
        cell("mmap, limited", "fast_omp", [2.8 if missing else 2.4], data="excess", device_bytes_per_second=50.0),
    ]
    monkeypatch.setattr(media, "measure", lambda *_: (row for row in rows))
    words = ["--scale", "100", "--out", str(tmp_path), *(["--quick"] if quick else [])]
    assert media.main(words) == code
    text = " ".join(capsys.readouterr().out.split())
    assert "is within the noise in 0 of 1 pairs" in text
    assert "met answers that depend on the medium or the tier: 0" in text
    verdict = "MISSED" if missing else "met"
    assert f"{verdict} FAST_OMP, exact only: times passes x bytes / device bandwidth: {1.4 if missing else 1.2}" in text


def test_a_small_file_system_in_memory_is_a_reason_to_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the store does not fit into /dev/shm the rows there are skipped with the sizes, and all others are measured."""
    disk, small = tmp_path / "disk", tmp_path / "small"
    disk.mkdir()
    small.mkdir()
    whole = media.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(media.shutil, "disk_usage", lambda place: whole._replace(free=1000) if place == small else whole)
    monkeypatch.setattr(media, "run_process", vars_of)
    rows = list(media._measure_data(media.Data("small", 120, 60, "float32", 5, 2), disk, small, None))
    (skipped,) = [row for row in rows if row["medium"] == "tmpfs-pmem"]
    assert "0 MB free" in skipped["skipped"]
    assert {row["medium"] for row in rows if "skipped" not in row} >= {"dram", "pmem", "mmap warm", "mmap cold"}
    assert not list(small.iterdir())


def test_scale_selects_in_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tiny run reports generation, ingest, all selections and what plain greedy would take, and leaves no store behind."""
    scale.main(["--features", "700", "--observations", "150", "--k", "20", "--exact", "--out", str(tmp_path)])
    row = json.loads((tmp_path / "scale.jsonl").read_text())
    assert row["same_features"]
    assert row["generation_seconds"] > 0
    assert row["ingest_seconds"] > 0
    assert row["fast"]["bytes_read_exact"] < row["exact_only"]["bytes_read_exact"]
    assert row["verified"]["selected"] == row["exact_only"]["selected"] == 20
    assert row["exact_only"]["peak_memory"] > 1e6
    assert row["ratio"] == pytest.approx(row["verified"]["seconds"] / row["fast"]["seconds"])
    judged = Report(argument_parser("scale", "A test.").parse_args([]))
    scale.bars(judged, {**row, "same_features": False})
    assert [bar.claim for bar in judged.bars] == [
        "verified over fast, seconds",
        "answers that the tier changes",
        "exact only: seconds over passes x bytes / device bandwidth",
    ]
    assert not judged.bars[1].met
    said = capsys.readouterr().out
    assert "same features with and without the tier: True" in said
    assert "s (estimated: 20 passes over the tier, 5 of them measured)" in said
    assert not list(tmp_path.glob("scale-*"))


def test_scale_checks_the_disk_first() -> None:
    """The full size asks for 55 GB; with less the next smaller one is taken, and a size asked for is refused."""
    default = argparse.Namespace(features=None, observations=None, quick=False, dtype="float32")
    assert scale.needed_bytes(1_000_000, 10_000, "float32") == 55_000_000_000
    assert scale.choose_size(default, 56 * 10**9) == (1_000_000, 10_000)
    assert scale.choose_size(default, 30 * 10**9) == (400_000, 5000)
    asked = argparse.Namespace(features=1_000_000, observations=10_000, quick=False, dtype="float32")
    with pytest.raises(MediumError, match=r"55\.0 GB"):
        scale.choose_size(asked, 30 * 10**9)


def test_cold_pass_reads_cold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each way is measured on a file that was not in memory; the direct one leaves it so."""
    if file_system_type(str(tmp_path)) in VOLATILE_FILE_SYSTEMS:
        pytest.skip("the temporary folder is on a file system in memory")
    cold_pass.main(["--observations", "1000", "--features", "2000", "--turns", "1", "--folder", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["ratio"] > 0
    assert found["resident_share_afterwards"]["direct"] < 0.05
    assert found["resident_share_afterwards"]["mmap"] > 0.9


def test_a_file_can_be_made_cold(tmp_path: Path) -> None:
    """Eviction is verified by looking at the pages, not by hope."""
    if file_system_type(str(tmp_path)) in VOLATILE_FILE_SYSTEMS:
        pytest.skip("the temporary folder is on a file system in memory")
    file = tmp_path / "bytes"
    file.write_bytes(b"x" * (4 << 20))
    assert device.resident_share(file) == 1.0
    assert device.evict(file) < 0.05
    file.read_bytes()
    assert device.resident_share(file) == 1.0
