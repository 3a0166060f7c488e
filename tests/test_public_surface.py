"""What ``import fastomp_nvm`` offers, and what it must not need."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

import fastomp_nvm as fo
from fastomp_nvm.registry import Lazy

PUBLIC = {
    "CancelledError",
    "Client",
    "ConstraintError",
    "DataError",
    "FairnessReport",
    "FastOMPClassifier",
    "FastOMPRegressor",
    "FastOMPSelector",
    "FastompError",
    "FeatureStore",
    "InfeasibleError",
    "InputError",
    "MediumError",
    "RequestError",
    "Selection",
    "SelectionRequest",
    "ServerError",
    "StoreError",
    "StoreURLError",
    "UnavailableError",
    "UnreachableError",
    "UploadLostError",
    "__version__",
    "connect",
    "constraints",
    "create_store",
    "cross_validate",
    "fairness_report",
    "forget",
    "grid",
    "list_runs",
    "open_store",
    "resume",
    "select",
    "select_many",
    "stability",
}

#: Libraries that only those who use them need.
OPTIONAL = ("sklearn", "pandas", "pyarrow", "h5py", "yaml", "rich", "psutil", "matplotlib")


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


def test_the_public_names_are_these() -> None:
    """A name is added to or taken from the surface on purpose only, and there is each once."""
    assert set(fo.__all__) == PUBLIC
    assert len(fo.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_is_there(name) -> None:
    """Everything announced can be imported, and everything callable is documented."""
    if name.startswith("FastOMP"):
        pytest.importorskip("sklearn")
    thing = getattr(fo, name)
    assert thing.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The lazy names do not swallow misspelt ones."""
    with pytest.raises(AttributeError, match="FastOMPSelektor"):
        _ = fo.FastOMPSelektor


def test_importing_and_selecting_needs_numpy_and_scipy_only() -> None:
    """No optional library is loaded by importing the package and running a selection on an array."""
    done = run(
        "import sys, numpy as np, fastomp_nvm as fo\n"
        f"optional = {OPTIONAL!r}\n"
        "assert not set(optional) & set(sys.modules), set(optional) & set(sys.modules)\n"
        "for name in optional: sys.modules[name] = None\n"  # importing any of them fails from here on
        "X = np.random.default_rng(0).normal(size=(50, 8))\n"
        "print(fo.select(X, X[:, 3] - X[:, 5], k=2).indices.tolist())"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout)) == [3, 5]


def test_without_scikit_learn_the_estimator_says_what_is_missing() -> None:
    """The lazy import fails with one sentence of ours."""
    done = run("import sys; sys.modules['sklearn'] = None\nimport fastomp_nvm as fo\nfo.FastOMPSelector")
    assert done.returncode == 1
    assert "UnavailableError" in done.stderr
    assert "sklearn" in done.stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nowhere_to_be_found", "needs the package 'nowhere_to_be_found', which is not installed here"),
        (
            "raise ImportError('core failed\\nand much more')",
            "cannot be loaded (core failed): install releases",
        ),
        ("raise ImportError", "cannot be loaded (ImportError): install releases"),
    ],
)
def test_a_part_that_cannot_be_imported_is_one_sentence(tmp_path, monkeypatch, source, said) -> None:
    """What is missing is named; what is there and fails, as a package built for another NumPy does, has its first line told."""
    (tmp_path / "broken_part.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_part", raising=False)
    with pytest.raises(fo.UnavailableError, match=re.escape(said)):
        Lazy("broken_part:anything").load()
