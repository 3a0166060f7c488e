"""Selections are those of the golden file, through every algorithm, constraint, medium and service.

``python -m tests.golden.take`` retakes the file where a change of answers is meant.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.golden.cases import CASES, Places, answer, differences, expected


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with Places(tmp_path_factory.mktemp("golden")) as places:
        yield places


def test_the_file_holds_the_cases() -> None:
    """Every case has a record, and every record a case."""
    assert expected().keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, places: Places) -> None:
    """Indices and counters are exactly those on record, coefficients and scores within rounding."""
    for module in CASES[name].needs:
        pytest.importorskip(module)
    assert list(differences(answer(CASES[name], places), expected()[name])) == []
