"""What ``import fastomp_nvm`` offers, and what it must not need."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Unpack, get_type_hints

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.registry import Lazy
from fastomp_nvm.selection.request import RequestFields

PUBLIC = {
    "CancelledError",
    "Client",
    "ConstraintError",
    "Covariates",
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
    "ingest",
    "list_runs",
    "load",
    "open_store",
    "path",
    "resume",
    "select",
    "select_many",
    "stability",
    "verify",
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


def test_importing_and_help_load_little() -> None:
    """The package and ``fastomp --help`` load neither NumPy nor SciPy; a selection loads no library beyond these two."""
    seen = "print(*sorted({name.partition('.')[0] for name in sys.modules} - before))"
    for program in ("import fastomp_nvm", "from fastomp_nvm.cli.main import main; sys.argv[1:] = ['--help']; quiet(main)"):
        done = run(
            "import contextlib, io, sys\n"
            "def quiet(main):\n"
            "    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main()\n"
            f"before = set()\n{program}\n{seen}"
        )
        assert not {"numpy", "scipy", "rich", "yaml", "storage_backends", "ado_plugin"} & set(done.stdout.split()), done.stderr
        assert "fastomp_nvm" in done.stdout.split()
    done = run(
        "import sys, numpy, scipy.linalg\n"
        "before = {name.partition('.')[0] for name in sys.modules} | set(sys.stdlib_module_names)\n"
        f"import fastomp_nvm; fastomp_nvm.select\n{seen}"
    )
    assert not {*OPTIONAL, "storage_backends", "ado_plugin"} & set(done.stdout.split()), done.stdout + done.stderr
    assert "fastomp_nvm" in done.stdout.split()


def test_a_selection_loads_only_the_modules_it_needs() -> None:
    """A linear selection from an array under a cardinality waits for no other objective or constraint, and for no display."""
    done = run(
        "import sys, numpy as np, fastomp_nvm as fo\n"
        "X = np.random.default_rng(0).normal(size=(50, 8))\n"
        "found = fo.select(X, X[:, 3] - X[:, 5], k=2)\n"
        "print(*sys.modules)\n"
        "print(repr(found), found.predict(X[:1]), found.plot_path)"
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines()[0].split())
    assert "fastomp_nvm.objectives.linear" in loaded
    needless = "algorithms.certificate algorithms.repair constraints.extendable constraints.graphic constraints.oracle matrix.gram "
    needless += "algorithms.trace matrix.reader matrix.tier stores.encoding stores.open stores.url selection.table_columns "
    needless += "objectives.glm stores.reports selection.display selection.model selection.plots"
    assert not {"multiprocessing", "scipy.sparse", "html", *(f"fastomp_nvm.{name}" for name in needless.split())} & loaded


def test_the_keyword_arguments_are_the_fields_of_a_request() -> None:
    """``RequestFields`` and ``SelectionRequest`` have the same names and types; vectors and tables may be any at first."""
    arguments, fields = get_type_hints(RequestFields), get_type_hints(fo.SelectionRequest)
    assert list(arguments) == list(fields)
    for name in ("weights", "offset", "covariates"):
        del arguments[name], fields[name]
    assert arguments == fields
    for function in (fo.select, fo.grid, fo.cross_validate, fo.stability, fo.Client.select, fo.Client.submit):
        assert get_type_hints(function, include_extras=True)["request"] == Unpack[RequestFields], function


def test_misspelt_names_fail_before_they_run(tmp_path) -> None:
    """Mypy refuses a field that a selection does not have and a parameter that a request does not have, and nothing else."""
    pytest.importorskip("mypy")
    (tmp_path / "snippet.py").write_text(
        "import numpy as np\n"
        "import fastomp_nvm as fo\n"
        "X, y = np.eye(3), np.arange(3.0)\n"
        "found = fo.select(X, y, k=3, tau='auto', weights=[1, 1, 0], verify=False)\n"
        "score: float = found.score + found.full_passes + found.store.n_obs\n"
        "print(found.scroe)\n"
        "fo.select(X, y, kk=3)\n"
        "fo.select(X, y, k='3')\n"
        "fo.grid(X, y, over={'k': [1, 2]}, epsilonn=0.1)\n"
    )
    root = Path(fo.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", tmp_path / "cache", "snippet.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    found = re.findall(r"^snippet\.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    assert found == [("6", "attr-defined"), ("7", "call-arg"), ("8", "arg-type"), ("9", "call-arg")], done.stdout + done.stderr


def test_a_misspelt_field_of_a_selection_is_an_attribute_error() -> None:
    """There is no attribute that is not declared."""
    X = np.random.default_rng(0).normal(size=(20, 3))
    found = fo.select(X, X[:, 0], k=1)
    with pytest.raises(AttributeError, match="scroe"):
        _ = found.scroe
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.score = 1.0


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
            "cannot be loaded (core failed): install compatible releases",
        ),
        ("raise ImportError", "cannot be loaded (ImportError): install compatible releases"),
    ],
)
def test_a_part_that_cannot_be_imported_is_one_sentence(tmp_path, monkeypatch, source, said) -> None:
    """What is missing is named; what is there and fails, as a package built for another NumPy does, has its first line quoted."""
    (tmp_path / "broken_part.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_part", raising=False)
    with pytest.raises(fo.UnavailableError, match=re.escape(said)):
        Lazy("broken_part:anything").load()
