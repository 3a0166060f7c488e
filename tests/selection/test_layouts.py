"""The same numbers give the same selection however they lie: arrays of either order, tables, memory maps, stores, shards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.errors import DataError
from fastomp_nvm.matrix.rows import ArrayRows, PiecedRows, rows_of_array
from fastomp_nvm.selection.table_columns import rows_of_table
from storage_backends.build.sharding import cut
from tests.cluster.in_process import open_in_process
from tests.golden.cases import CASES, Case, ask, data, differences, expected

#: Algorithms by objective; the others ask for nothing that these do not ask for.
QUESTIONS = [("linear", name) for name in ("fast_omp", "sds_omp", "sds_ma", "dash", "lasso", "isk", "top_k")]
QUESTIONS += [(objective, name) for objective in ("logistic", "poisson") for name in ("fast_omp", "sds_omp", "sds_ma")]
N_OBS, N_FEATURES = 110, 700


def near_ties(n_obs: int = N_OBS, n_features: int = N_FEATURES) -> np.ndarray:
    """Return columns among which are exact duplicates, near-duplicates at 1e-8 and columns of mean 1e6 and deviation 1."""
    rng = np.random.default_rng(8)
    X = rng.standard_normal((n_obs, n_features))
    X[:, 100:130] = X[:, 5:35]
    X[:, 200:240] = X[:, :40] + 1e-8 * rng.standard_normal((n_obs, 40))
    X[:, 300:320] += 1e6
    X[:, 7] = 2.5
    return X


def responses(X: np.ndarray) -> dict[str, np.ndarray]:
    """Return a response of each objective that ties matter for."""
    rng = np.random.default_rng(9)
    eta = X[:, 10:30] @ rng.choice([-1.0, 1.0], 20) + (X[:, 300:304] - 1e6).sum(axis=1) + 0.5 * rng.standard_normal(len(X))
    return {
        "linear": eta,
        "logistic": np.where(eta > np.median(eta), "yes", "no"),
        "poisson": np.floor(np.square(np.maximum(eta + 8, 0) / 8)),
    }


def frame(X: np.ndarray, *edges: int) -> Any:
    """Return a pandas table whose blocks end at ``edges``."""
    pd = pytest.importorskip("pandas")
    table = pd.concat([pd.DataFrame(part) for part in np.split(X, edges, axis=1)], axis=1)
    table.columns = [f"f{column}" for column in range(X.shape[1])]
    return table


def memory_map(X: np.ndarray, path: Path, order: str) -> np.ndarray:
    """Return a read-only memory map of a file that holds ``X`` in this order."""
    (X if order == "C" else X.T).tofile(path)
    mapped = np.memmap(path, X.dtype, "r", shape=X.shape if order == "C" else X.shape[::-1])
    return mapped if order == "C" else mapped.T


def unaligned(X: np.ndarray) -> np.ndarray:
    """Return ``X`` in C order, one byte off every boundary and with 3 bytes after each row."""
    memory = np.zeros(len(X) * (X.shape[1] * X.itemsize + 3) + 1, dtype=np.uint8)
    view = np.ndarray(X.shape, X.dtype, memory.data, 1, (X.shape[1] * X.itemsize + 3, X.itemsize))
    view[...] = X
    return view


def arrow(X: np.ndarray) -> Any:
    """Return a pyarrow table."""
    return pytest.importorskip("pyarrow").table({f"f{column}": values.copy() for column, values in enumerate(X.T)})


def polars(X: np.ndarray) -> Any:
    """Return a polars table."""
    return pytest.importorskip("polars").DataFrame({f"f{column}": values.copy() for column, values in enumerate(X.T)})


#: Forms of the same numbers in memory; the reference is Fortran order, columns contiguous as in a store.
FORMS: Mapping[str, Callable[[np.ndarray, Path], Any]] = {
    "C order": lambda X, path: np.ascontiguousarray(X),
    "C order, rows reversed twice": lambda X, path: np.ascontiguousarray(X[::-1])[::-1],
    "C order, part of an array": lambda X, path: np.pad(X, ((0, 0), (3, 5)))[:, 3:-5],
    "C order, every other row": lambda X, path: np.repeat(X, 2, axis=0)[::2],
    "C order, unaligned": lambda X, path: unaligned(X),
    "contiguous in neither direction": lambda X, path: np.repeat(np.repeat(X, 2, axis=0), 3, axis=1)[::2, ::3],
    "foreign byte order": lambda X, path: X.astype(X.dtype.newbyteorder()),
    "memory map in C order": lambda X, path: memory_map(X, path / "rows", "C"),
    "memory map in Fortran order": lambda X, path: memory_map(X, path / "columns", "F"),
    "table of one block": lambda X, path: frame(X),
    "table of three blocks": lambda X, path: frame(X, 1, 130),
    "table of many blocks": lambda X, path: frame(X, *range(1, X.shape[1], 3)),
    "pyarrow": lambda X, path: arrow(X),
    "polars": lambda X, path: polars(X),
}


def same(found: fo.Selection, expected: fo.Selection) -> None:
    """Assert equal indices in equal order, and coefficients to the last digits of BLAS."""
    assert found.indices.tolist() == expected.indices.tolist()
    np.testing.assert_allclose(np.hstack(found.coef), np.hstack(expected.coef), rtol=1e-9, atol=1e-12)
    assert found.intercept == pytest.approx(expected.intercept, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_in_memory_gives_the_same_selection(form: str, tmp_path: Path) -> None:
    """Duplicates, near-ties and shifted columns are decided alike, with as many passes; neither data nor their flags change."""
    X = near_ties()
    y = responses(X)["linear"]
    data = FORMS[form](X, tmp_path)
    writable = data.flags.writeable if isinstance(data, np.ndarray) else None
    for algorithm in ("fast_omp", "sds_omp"):
        expected = fo.select(np.asfortranarray(X), y, k=12, algorithm=algorithm)
        found = fo.select(data, y, k=12, algorithm=algorithm)
        same(found, expected)
        assert (found.full_passes, found.sweeps) == (expected.full_passes, expected.sweeps)
    if isinstance(data, np.ndarray):
        assert data.flags.writeable == writable
        np.testing.assert_array_equal(data, X)


@pytest.mark.parametrize(("objective", "algorithm"), QUESTIONS)
def test_c_order_answers_as_fortran_order(objective: str, algorithm: str) -> None:
    """Algorithms and objectives, with and without observation weights, in both element types."""
    X = near_ties()
    y = responses(X)[objective]
    weights = np.random.default_rng(1).integers(0, 3, len(X)).astype(np.float64)
    for dtype in ("float32", "float64"):
        values = X.astype(dtype)
        for options in ({}, {"weights": weights}):
            request = {"k": 6, "algorithm": algorithm, "objective": objective, **options}
            same(fo.select(np.ascontiguousarray(values), y, **request), fo.select(np.asfortranarray(values), y, **request))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint64", "float16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numbers_of_other_types_select_as_float64(dtype: str, order: str) -> None:
    """Integers, booleans and float16 give the answer of the same numbers in float64, in either order."""
    rng = np.random.default_rng(4)
    X = rng.integers(0, 2 if dtype == "bool" else 120, (90, 400)).astype(dtype)
    y = X[:, :9].astype(np.float64) @ rng.standard_normal(9) + rng.standard_normal(90)
    assert rows_of_array(np.asarray(X, order=order)).array.dtype == dtype  # type: ignore[call-overload]
    for algorithm in ("fast_omp", "sds_omp", "sds_ma"):
        found = fo.select(np.asarray(X, order=order), y, k=8, algorithm=algorithm)  # type: ignore[call-overload]
        same(found, fo.select(np.asfortranarray(X.astype(np.float64)), y, k=8, algorithm=algorithm))


@pytest.mark.parametrize("form", ["C order", "memory map in Fortran order", "table of three blocks"])
@pytest.mark.parametrize(("options", "more"), [({}, 0), ({"weights": np.arange(1.0, N_OBS + 1)}, 1), ({"standardize": False}, 0)])
def test_moments_come_from_the_first_sweep(
    form: str, options: dict[str, Any], more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A selection of 12 features in 12 sweeps reads the data 12 times; once more for moments under weights."""
    X = near_ties()
    y, data, read = responses(X)["linear"], FORMS[form](X, tmp_path), []
    for kind in (ArrayRows, PiecedRows):
        visit = kind.visit
        monkeypatch.setattr(kind, "visit", lambda *given, visit=visit, **more: (read.append(1), visit(*given, **more))[1])
    fo.select(data, y, k=12, algorithm="sds_omp", plain=True, **options)
    assert len(read) == 12 + more


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_columns_of_mixed_types_select_as_float64(library: str) -> None:
    """A table of integers and floats of two widths gives the answer of its values in float64, from its own columns."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(4)
    types = ("float32", "int16", "float64", "int64")
    values = {f"f{place}": rng.integers(-99, 99, 80).astype(types[place % 4]) for place in range(120)}
    table = pd.DataFrame(values) if library == "pandas" else getattr(pytest.importorskip(library), "DataFrame", dict)(values)
    if library == "pyarrow":
        table = pytest.importorskip("pyarrow").table(values)
    X = np.column_stack([column.astype(np.float64) for column in values.values()])
    y = X[:, :5].sum(axis=1) + rng.standard_normal(80)
    same(fo.select(table, y, k=6), fo.select(np.asfortranarray(X), y, k=6))
    rows = rows_of_table(table)
    assert rows is not None
    assert {array.dtype.name for array in rows.arrays} == set(types)


#: How the same data is handed over: in memory, or from a store, with the tier to read there.
LAYOUTS: Mapping[str, Callable[[np.ndarray], Any] | Literal["exact", "int8"]] = {
    "C order": np.ascontiguousarray,
    "Fortran order": np.asfortranarray,
    "table": lambda X: frame(X, X.shape[1] // 3),
    "store": "exact",
    "tier": "int8",
    "shards": "exact",
}


@contextmanager
def stored(path: Path, X: np.ndarray, y: Any, **options: Any) -> Iterator[dict[str, fo.FeatureStore]]:
    """Yield a store by layout, cut into three shards for the last."""
    with (
        mock.patch("storage_backends.build.statistics.BLOCK_COLUMNS", 16),  # of small data, too, there are blocks for three shards
        fo.create_store(f"mmap:{path}/whole", X, y, dtype="float64", tier="int8", **options) as store,
        open_in_process(cut(store, f"{path}/cut", 3)) as shards,
    ):
        yield {"store": store, "tier": store, "shards": shards}


@pytest.mark.parametrize(("objective", "algorithm"), QUESTIONS)
def test_near_ties_are_decided_alike(objective: str, algorithm: str, tmp_path: Path) -> None:
    """Near-ties at 1e-8 and duplicates: one answer from arrays of both orders, a table, a store, its tier and its shards."""
    X = near_ties()
    y = responses(X)[objective]
    request = {"k": 12, "algorithm": algorithm, "objective": objective}
    expected = fo.select(X, y, **request)
    with stored(tmp_path, X, y) as stores:
        for layout, way in LAYOUTS.items():
            found = fo.select(way(X), y, **request) if callable(way) else fo.select(stores[layout], tier=way, **request)
            same(found, expected)


def golden() -> Iterator[tuple[str, Case]]:
    """Yield the golden cases about the data as they are, each question once, whatever place and tier it is recorded from."""
    known = set()
    for name, case in CASES.items():
        request = {field: value for field, value in case.request.items() if field != "tier"}
        question = repr((sorted(request.items()), case.of, case.ask, case.options))
        if case.ask not in ("durable", "command") and case.place != "dram-float16" and question not in known:
            known.add(question)
            yield name, replace(case, request=request)


@pytest.fixture(scope="module")
def golden_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, fo.FeatureStore]]]:
    """Yield the stores of the golden data by name of the data."""
    with ExitStack() as stack:
        made = {}
        for name in {case.of for _, case in golden()}:
            held = data(name)
            places = stored(tmp_path_factory.mktemp(name), held.X, held.targets, groups=held.groups)
            made[name] = stack.enter_context(places)
        yield made


@pytest.mark.parametrize("layout", LAYOUTS)
def test_golden_requests_are_answered_alike(layout: str, golden_stores: dict[str, dict[str, fo.FeatureStore]]) -> None:
    """Every golden request gives the features, in order, the coefficients to 1e-9 and the scores on record."""
    wrong, way = [], LAYOUTS[layout]
    for name, case in golden():
        if callable(way):
            if data(case.of).groups:  # arrays and tables have no features of several columns
                continue
            found = ask(case, way(data(case.of).X))
        else:
            found = ask(replace(case, request={**case.request, "tier": way}), golden_stores[case.of][layout])
        wrong += differences(found, expected()[name], name, counted=False)
    assert wrong == []


@pytest.mark.parametrize("form", ["C order", "memory map in Fortran order", "table of three blocks", "pyarrow"])
def test_a_value_that_is_not_finite_is_named(form: str, tmp_path: Path) -> None:
    """The message names row and column, whatever the layout."""
    X = near_ties()
    X[41, 131] = np.inf
    with pytest.raises(DataError, match="row 42, column 131"):
        fo.select(FORMS[form](X, tmp_path), np.arange(len(X)), k=3)


def test_missing_entries_of_tables_are_refused_as_before() -> None:
    """A column with nulls cannot be used where it lies; the message is that of any missing value."""
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"a": [1.0, None, 3.0], "b": [2.0, 1.0, 0.5]})
    assert rows_of_table(table) is None
    with pytest.raises(DataError, match="NaN"):
        fo.select(table, [1.0, 2.5, 4.0], k=1)


#: Selects under a limit on the memory that the process may allocate: the data twice, and this much more.
LIMITED = """
import resource, sys
import numpy as np
import fastomp_nvm as fo
rng = np.random.default_rng(0)
order, dtype = sys.argv[1:]
X = np.empty((1500, 30_000), dtype=dtype, order=order)
for first in range(0, 1500, 100):
    X[first:first + 100] = rng.integers(-99, 99, (100, 30_000)) if dtype == "int16" else rng.standard_normal((100, 30_000))
y = X[:, ::3000].astype(np.float64).sum(axis=1) + rng.standard_normal(1500)
fo.select(X[:50, :300].copy(), y[:50], k=3)  # imports, threads
status = open("/proc/self/status").read()
used = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))
allowed = used + int(0.1 * X.nbytes) + (32 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
print(len(fo.select(X, y, k=20).indices))
"""


@pytest.mark.parametrize(("order", "dtype"), [("C", "float32"), ("F", "float32"), ("C", "float64"), ("C", "int16")])
def test_memory_beyond_the_data_is_a_tenth_of_them(order: str, dtype: str) -> None:
    """A selection from an array allocates at most 10 % of it plus 32 MB, in a process that may not allocate more."""
    done = subprocess.run([sys.executable, "-c", LIMITED, order, dtype], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("20", 0), done.stderr
