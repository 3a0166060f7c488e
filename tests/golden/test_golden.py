"""Selections are those of the golden file, through every algorithm, constraint, medium and service.

``python -m tests.golden.take`` retakes the file where a change of answers is meant.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden.cases import CASES, COUNTERS, Places, answer

EXPECTED = json.loads(Path(__file__).with_name("expected.json").read_text())


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with Places(tmp_path_factory.mktemp("golden")) as places:
        yield places


def differences(found: Any, expected: Any, where: str = "") -> Iterator[str]:
    """Yield where two records differ: floats beyond rounding, everything else exactly."""
    if isinstance(expected, dict) and isinstance(found, dict) and found.keys() == expected.keys():
        for name in expected:
            if name in COUNTERS and found[name] != expected[name]:
                yield f"{where}/{name}: {found[name]} instead of {expected[name]}"
            elif name not in COUNTERS:
                yield from differences(found[name], expected[name], f"{where}/{name}")
    elif isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from differences(one, other, f"{where}/{place}")
    elif isinstance(expected, float) and isinstance(found, float):
        if found != pytest.approx(expected, rel=1e-9, abs=1e-12):
            yield f"{where}: {found!r} instead of {expected!r}"
    elif type(found) is not type(expected) or found != expected:
        yield f"{where}: {found!r} instead of {expected!r}"


def test_the_file_holds_the_cases() -> None:
    """Every case has a record, and every record a case."""
    assert EXPECTED.keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, places: Places) -> None:
    """Indices and counters are exactly those on record, coefficients and scores within rounding."""
    for module in CASES[name].needs:
        pytest.importorskip(module)
    assert list(differences(answer(CASES[name], places), EXPECTED[name])) == []
