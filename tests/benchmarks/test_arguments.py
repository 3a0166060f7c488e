"""Benchmarks refuse senseless arguments in one sentence, before anything is built."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import fastomp_nvm as fo
from benchmarks import cold_pass, media, peers, quality, scale
from fastomp_nvm.cli.main import main
from fastomp_nvm.errors import MediumError, RequestError

SENSELESS = [
    (scale, "--k 0"),
    (scale, "--k -3"),
    (scale, "--features -5"),
    (scale, "--features 0"),
    (scale, "--observations 0"),
    (scale, "--features 20 --k 30"),
    (media, "--scale 1e9"),
    (media, "--scale 0"),
    (media, "--scale nan"),
    (media, "--scale inf"),
    (peers, "--k 0"),
    (peers, "--k 500 --features 40"),
    (peers, "--k 50 --observations 40"),
    (peers, "--limit 0.1"),
    (peers, "--limit nan"),
    (peers, "--repeats 0"),
    (quality, "--seeds 0"),
    (quality, "--instances 0"),
    (quality, "--jobs 0"),
    (quality, "--constraint none"),
]


@pytest.mark.parametrize(("benchmark", "words"), SENSELESS, ids=lambda each: getattr(each, "__name__", each))
def test_senseless_arguments_are_refused(benchmark: ModuleType, words: str, tmp_path: Path) -> None:
    """One sentence, and nothing written."""
    with pytest.raises(RequestError):
        benchmark.main([*words.split(), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_media_checks_the_disk_first(tmp_path: Path) -> None:
    """Data that no disk holds are refused, not begun."""
    with pytest.raises(MediumError, match="are needed: choose a larger --scale"):
        media.main(["--scale", "1e-6", "--data", "large", "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", ["--dtype float16", "--features 41", "--observations 31", "--k 41"])
def test_scale_refuses_a_store_that_contradicts_its_options(words: str, tmp_path: Path) -> None:
    """An existing store is used as it is; an option that contradicts it is named, not ignored."""
    X = np.random.default_rng(0).normal(size=(30, 40))
    store = tmp_path / "store"
    fo.create_store(f"mmap://{store}", X, X[:, 0]).close()
    with pytest.raises(RequestError, match=words.split()[0]):
        scale.main(["--k", "5", *words.split(), "--store", str(store), "--out", str(tmp_path / "out")])
    agreeing = argparse.Namespace(features=40, observations=None, dtype="float32")
    scale.check_store(store, agreeing, 40)


def test_the_cold_pass_is_a_benchmark_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """``fastomp bench cold-pass`` is found, and checks its arguments."""
    assert main(["bench", "cold-pass", "--turns", "0"]) == 2
    assert "--turns is 0: expected at least 1" in capsys.readouterr().err
    with pytest.raises(RequestError):
        cold_pass.main(["--features", "0"])
