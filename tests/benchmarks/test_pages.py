"""The page of the media benchmark in a real browser: its figure is shown and nothing runs off the side."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks import media
from tests.benchmarks.test_media_scale import cell, page_of

WIDTH = 1400


def screenshot(page: Path) -> np.ndarray:
    """Return (height, width, 3) uint8: what Debian's chromium shows of a page."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no chromium here (Debian: apt-get install chromium)")
    image = pytest.importorskip("matplotlib.image")
    picture = page.with_suffix(".shot.png")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={page.parent / 'profile'}"]
    options += [
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-quic",
    ]
    command = [browser, *options, f"--screenshot={picture}", f"--window-size={WIDTH},1600", page.as_uri()]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    return np.asarray(255 * image.imread(picture)[:, :, :3], dtype=np.uint8)


def test_the_media_page_shows_its_figure_and_fits(tmp_path: Path) -> None:
    """Bars of both algorithms are on the screen, with short and with very long ones, and both margins are empty."""
    fields = {"data": "excess", "device_bytes_per_second": 50.0, "limit": "cgroup v2, 800 MB, page cache included"}
    rows = [
        cell("dram", "fast_omp", [1.0, 1.1, 1.2], data="excess"),
        cell("dram", "sds_omp", [6.0, 6.1, 6.2], data="excess"),
        cell("mmap, limited, tier in DRAM", "fast_omp", [1.5, 1.6, 1.7], tier="int8", **fields),
        cell("mmap, limited", "sds_omp", [100.123, 110.456, 120.789], **fields),
    ]
    shown = screenshot(page_of(rows, tmp_path)).astype(np.int64)
    for kind in (("fast_omp", "exact"), ("fast_omp", "int8"), ("sds_omp", "exact")):
        colour = [int(media.COLOURS[kind][first : first + 2], 16) for first in (1, 3, 5)]
        assert (np.abs(shown - colour).max(axis=2) <= 2).sum() > 1000, f"no bar of {kind}"
    assert shown.shape[1] == WIDTH
    assert (shown[:, :40] == 255).all()
    assert (shown[:, -40:] == 255).all()
