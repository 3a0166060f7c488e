"""A small store on each durable medium, and a home of its own for every test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.runs.log import StateLog

N_OBS, N_FEATURES = 120, 300

#: A run of five rounds.
REQUEST: dict[str, Any] = {"k": 5, "algorithm": "sds_omp", "target": "amount"}


class PulledPlugError(Exception):
    """The process ends here."""


@pytest.fixture(scope="session")
def design() -> PaperDesign:
    """Return the data of all stores."""
    return PaperDesign(N_OBS, N_FEATURES, seed=3)


def build(url: str, design: PaperDesign) -> None:
    """Build a store with a numeric and a class target and a feature of three columns."""
    y = design.response()
    targets = {"amount": y, "class": np.where(y > 0, "good", "bad")}
    fo.create_store(url, design.matrix().T.astype(np.float32), targets, groups={"region": [10, 11, 12]}).close()


@pytest.fixture
def store_url(tmp_path: Path, design: PaperDesign) -> str:
    """Address of a store of its own for one test."""
    build(f"mmap://{tmp_path}/store", design)
    return f"mmap://{tmp_path}/store"


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory, design: PaperDesign) -> dict[str, str]:
    """Addresses of the same store on every durable medium."""
    folder = tmp_path_factory.mktemp("durable")
    urls = {medium: f"{medium}://{folder}/{medium}" for medium in ("mmap", "pmem")}
    for url in urls.values():
        build(url, design)
    return urls


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test a home without runs."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def stopped(store_url: str) -> str:
    """Leave a run ``half`` behind that stopped after three rounds; return the address of its store."""
    stop_after_three_rounds("half", store_url)
    return store_url


def stop_after_three_rounds(name: str, store_url: str) -> None:
    """Start a run and leave it behind after three rounds."""
    original = StateLog.write

    def write(log: StateLog, *records: bytes) -> None:
        if log.sequence == 3:
            raise PulledPlugError
        original(log, *records)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateLog, "write", write)
        with pytest.raises(PulledPlugError):
            fo.select(store_url, run=name, **REQUEST)
