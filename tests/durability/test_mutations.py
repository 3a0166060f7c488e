"""Whatever byte changes in the files on disk, only errors of this project are raised."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastomp_nvm.errors import FastompError, StoreError
from fastomp_nvm.runs.registration import Registration
from fastomp_nvm.runs.sealed import seal, unseal
from tests.harness.mutations import MutationTrials, mutate


def test_mutated_files_raise_our_errors_only(tmp_path: Path) -> None:
    """A few hundred mutations of every format: headers, sidecars, slots, records, registrations, results."""
    trials = MutationTrials(tmp_path, 0)
    tally = trials.run(1800)
    trials.close()
    assert len(tally) == 6
    assert all(tried == 300 for tried, _ in tally.values())
    assert all(refused > 50 for _, refused in tally.values()), tally


def test_a_foreign_exception_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trials can fail: a decoder that lets another exception out is found."""
    trials = MutationTrials(tmp_path, 1)

    def careless(data: bytes) -> Registration:
        raise KeyError("name")

    with monkeypatch.context() as patch:
        patch.setattr(Registration, "from_bytes", careless)
        with pytest.raises(KeyError):
            trials.run(60)
    trials.close()


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_no_registration(data: bytes) -> None:
    """Bytes from anywhere are refused."""
    with pytest.raises(StoreError):
        Registration.from_bytes(data)


@given(st.text())
def test_arbitrary_text_is_not_sealed(text: str) -> None:
    """Text from anywhere is refused."""
    with pytest.raises(FastompError):
        unseal("fastomp-run", text.encode())


def test_a_mutation_changes_something() -> None:
    """Nearly every mutation differs from its original."""
    chance, data = random.Random(0), bytes(range(256))
    assert sum(mutate(data, chance) != data for _ in range(200)) > 180


@pytest.mark.parametrize(
    "wrong", [{"text": 5}, {"folder": None}, {"source": None}, {"digest": 3}], ids=["text", "folder", "source", "digest"]
)
def test_a_constraint_of_the_wrong_kind_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """A registration whose constraint file is not made of texts is refused when it is read, not when it is used."""
    constraint = {"text": "cardinality: 2", "source": "c.yaml", "folder": str(tmp_path), "digest": "x", **wrong}
    fields = dict.fromkeys(("name", "created", "store", "fingerprint", "targets"), "x") | {
        "request": {},
        "build": {},
        "response": None,
    }
    data = seal("fastomp-run", {**fields, "id": "0" * 32, "load": None, "verify": False, "constraint": constraint})
    with pytest.raises(StoreError, match="of the wrong type"):
        Registration.from_bytes(data)
