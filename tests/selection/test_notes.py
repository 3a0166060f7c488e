"""Notes on selections that deserve a second look: leaking columns, copies, too large a k, constant and protected features."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from fastomp_nvm.selection.codec import decode_selection, encode_selection

RNG = np.random.default_rng(3)
X = RNG.normal(size=(300, 20))
Y = X[:, 2] - 2 * X[:, 6] + 0.5 * RNG.normal(size=300)
CLASSES = np.where(Y > 0, "good", "bad")


def with_column(values: Any, place: int = 4) -> np.ndarray:
    """Return the table with another column at ``place``."""
    changed = X.copy()
    changed[:, place] = values
    return changed


def the_note(notes: Any) -> str:
    """Return the only note."""
    (note,) = notes
    return str(note)


def test_an_ordinary_selection_has_no_notes() -> None:
    """Nothing to say: no notes, and no key in the JSON object."""
    for target in (Y, CLASSES, np.abs(np.round(3 * Y))):
        found = fo.select(X, target, k=5, objective="poisson" if target is not Y and target is not CLASSES else "auto")
        assert list(found.notes) == []
        assert "notes" not in found.to_json()


@pytest.mark.parametrize("test_fraction", [None, 0.3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_leaking_column_is_named(dtype: type, test_fraction: float | None) -> None:
    """A column that alone explains a number, or separates two classes, is named, and excluding it as told ends the note."""
    leaking = with_column(3 * Y - 7).astype(dtype)
    found = fo.select(leaking, Y, k=3, test_fraction=test_fraction)
    assert "'f4' alone explains the target 'y'" in the_note(found.notes)
    found = fo.select(leaking, CLASSES, k=3, test_fraction=test_fraction)
    assert "'f4' alone separates the classes of the target 'y'" in the_note(found.notes)
    assert list(fo.select(leaking, Y, k=3, test_fraction=test_fraction, exclude=["f4"]).notes) == []


def test_several_columns_that_explain_the_target() -> None:
    """A target that is an exact sum of features is said to be one, without naming a single feature."""
    note = the_note(fo.select(X, X[:, 2] - 2 * X[:, 6], k=3).notes)
    assert "the selected features explain the target 'y' without error" in note


def test_a_leaking_feature_of_several_columns_is_named() -> None:
    """A categorical feature that is the target in other words is named too."""
    table = {"a": X[:, 0], "b": X[:, 1], "verdict": np.where(Y > 1, "great", np.where(Y > 0, "fine", "poor"))}
    pandas = pytest.importorskip("pandas")
    with fo.create_store("dram:leak", pandas.DataFrame(table), CLASSES) as store:
        assert "'verdict' alone separates" in the_note(fo.select(store, k=2).notes)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("sign", [1.0, -0.5])
def test_copies_among_the_selected_are_named(sign: float, standardize: bool) -> None:
    """Two selected columns of correlation 1 or -1 are named, also where rounding hides it; similar ones are not."""
    for noise in (0.0, 2e-5):  # the latter leaves 4e-10 of the squared length: not dependent, and yet a copy
        copied = fo.select(with_column(sign * X[:, 6] + noise * X[:, 4]), Y, k=12, algorithm="top_k", standardize=standardize)
        assert "'f6' and 'f4' are copies" in the_note(copied.notes).replace("'f4' and 'f6'", "'f6' and 'f4'")
    similar = fo.select(with_column(X[:, 6] + 1e-3 * X[:, 4]), Y, k=12, algorithm="top_k", standardize=standardize)
    assert list(similar.notes) == []


def test_as_many_features_as_observations() -> None:
    """K of at least the observations used is noted, but not where the data has fewer features."""
    assert "20 features may be selected from 15 observations" in " ".join(fo.select(X[:15], Y[:15], k=20).notes)
    assert "from 12 observations" in " ".join(fo.select(X[:15], Y[:15], k=12, test_fraction=0.2).notes)
    assert list(fo.select(X[:40], Y[:40], k=100).notes) == []


def test_constant_features_are_counted() -> None:
    """Features that are constant on the observations used are counted."""
    changed = with_column(4.0)
    changed[:, 9] = 0.0
    assert "2 features are constant" in the_note(fo.select(changed, Y, k=2).notes)
    weights = np.ones(300)
    weights[0] = 0.0
    nearly = with_column(np.eye(1, 300)[0])
    assert "1 feature is constant" in the_note(fo.select(nearly, Y, k=2, weights=weights).notes)
    assert list(fo.select(nearly, Y, k=2).notes) == []


def test_notes_survive_json() -> None:
    """A selection that was encoded has its notes again."""
    found = fo.select(with_column(Y), Y, k=2)
    assert list(decode_selection(json.loads(json.dumps(encode_selection(found)))).notes) == list(found.notes)


def test_notes_change_no_counter() -> None:
    """Columns beyond the memory budget are not read again for notes."""
    ample = fo.select(X, Y, k=6)
    scarce = fo.select(X, Y, k=6, gather_bytes=1)
    assert scarce.indices.tolist() == ample.indices.tolist()
    with fo.create_store("dram:notes", X, Y) as store:
        assert fo.select(store, k=6).bytes_read == fo.select(store, k=6).bytes_read


@pytest.fixture
def people(tmp_path: Path) -> str:
    """Ingest a table with a sensitive column and one whose name needs quotes in a shell."""
    rows = ["sex,age,grade at end,hired"]
    for row, y in zip(X, Y, strict=True):
        rows.append(f"{'f' if row[0] > 0 else 'm'},{row[2]},{y},{'yes' if y > 0 else 'no'}")
    (tmp_path / "people.csv").write_text("\n".join(rows) + "\n")
    assert main(["ingest", str(tmp_path / "people.csv"), str(tmp_path / "people"), "--target", "hired"]) == 0
    return str(tmp_path / "people")


def test_the_shell_prints_notes(people: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes stand under the table, and the option that one names works when typed."""
    monkeypatch.setenv("COLUMNS", "300")
    capsys.readouterr()
    assert main(["select", people, "--k", "2"]) == 0
    (note,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert "'grade at end' alone separates the classes of the target 'hired'" in note
    option = shlex.split(note[note.index("(--exclude") + 1 : note.index(", exclude=")])
    assert main(["select", people, "--k", "2", *option]) == 0
    assert "note: " not in capsys.readouterr().out


def test_an_excluded_protected_feature_is_said(people: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--protected removes the feature from the candidates and says so; with --keep-protected there is nothing to say."""
    capsys.readouterr()
    words = ["select", people, "--k", "2", "--protected", "sex", "--exclude", "grade at end", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert "'sex' was not a candidate" in the_note(found["notes"])
    assert "sex" not in found["features"]
    assert main([*words, "--keep-protected"]) == 0
    assert "notes" not in json.loads(capsys.readouterr().out)
