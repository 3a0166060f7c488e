"""A store holds the given values, checked, filled, grouped and summarised in the same way for every kind and order of input."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import storage_backends
from fastomp_nvm.errors import DataError, RequestError
from fastomp_nvm.matrix import moments
from fastomp_nvm.stores.contract import BLOCK_COLUMNS
from fastomp_nvm.stores.names import NumberedNames
from fastomp_nvm.stores.open import open_store
from fastomp_nvm.stores.url import StoreURL
from storage_backends.build import statistics
from storage_backends.build.builder import StoreBuilder, build_from_arrays
from storage_backends.build.ingest import ingest
from storage_backends.build.schema import TableSchema
from storage_backends.build.targets import make_target
from storage_backends.media import dram

ROOT = Path(storage_backends.__file__).parents[1]
URL = "dram:builder"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Leave no store of one test to the next."""
    yield
    if dram.MEDIUM.exists(StoreURL.parse(URL)):
        dram.MEDIUM.discard(StoreURL.parse(URL))


def build(X, y=None, **options):
    """Build a store in memory, replacing the last one; return the report and the opened store."""
    report = build_from_arrays(URL, X, y, replace=True, **options)
    return report, open_store(URL)


def grid(n: int = 30, m: int = 5, seed: int = 0) -> np.ndarray:
    """Return an (n, m) matrix of normal numbers."""
    return np.random.default_rng(seed).normal(size=(n, m))


# --- schema --------------------------------------------------------------------------------------------------------------------


def test_a_schema_is_checked_when_it_is_made() -> None:
    """Empty tables, bad names, wrong offsets and features too wide for a block are refused with names."""
    for make, text in (
        (lambda: TableSchema.plain(0, ["a"]), "no observations"),
        (lambda: TableSchema.plain(3, []), "no features"),
        (lambda: TableSchema.plain(3, ["a", "b", "a"]), "two features are named 'a'"),
        (lambda: TableSchema.plain(3, ["a", ""]), "position 1 is named ''"),
        (lambda: TableSchema.plain(3, ["a", 7]), "position 1 is named 7"),
        (lambda: TableSchema.grouped(3, [("a", []), ("b", ["x"])]), "one column or more"),
        (lambda: TableSchema.grouped(3, [("a", ["x", "y"]), ("b", ["x", "z"])]), "two columns are named 'x'"),
        (lambda: TableSchema.grouped(3, [("zip", [f"z{i}" for i in range(257)])]), "'zip' spans 257 columns and at most 256"),
        (lambda: TableSchema(3, ["a"], ["a"], np.array([0, 2])), "offsets"),
    ):
        with pytest.raises(DataError, match=text):
            make()


@given(length=st.integers(0, 200), index=st.integers(-210, 210), text=st.text(max_size=6))
def test_numbered_names_are_the_list_they_stand_for(length: int, index: int, text: str) -> None:
    """Indexing, slicing, membership, search and comparison agree with the list of names."""
    names, listed = NumberedNames(length), [f"f{number}" for number in range(length)]
    assert list(names) == listed
    assert names == listed
    assert names[index:] == listed[index:]
    for candidate in (text, f"f{text}", f"f{index}", f"f0{index}"):
        assert (candidate in names) == (candidate in listed)
    if -length <= index < length:
        assert names[index] == listed[index]
        assert names.index(listed[index]) == index % length
    else:
        with pytest.raises(IndexError):
            names[index]
    with pytest.raises(ValueError, match="not in"):
        names.index("g0")


@given(widths=st.lists(st.integers(1, BLOCK_COLUMNS), min_size=1, max_size=40))
def test_the_grid_keeps_features_whole_and_blocks_full(widths: list[int]) -> None:
    """Blocks end at features, hold at most a block's columns, and could not take one feature more."""
    offsets = np.concatenate(([0], np.cumsum(widths)))
    blocks = statistics.column_grid(offsets)
    assert (blocks[0], blocks[-1]) == (0, offsets[-1])
    assert set(blocks) <= set(offsets)
    assert np.diff(blocks).max() <= BLOCK_COLUMNS
    for start, end in itertools.pairwise(blocks[:-1]):
        following = offsets[np.searchsorted(offsets, end) + 1]
        assert following - start > BLOCK_COLUMNS


# --- writing -------------------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 40),
    m=st.integers(1, 40),
    cuts=st.lists(st.integers(1, 39), max_size=4),
    by_rows=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_the_way_values_arrive_does_not_matter(n: int, m: int, cuts: list[int], by_rows: bool, order) -> None:
    """Any split into rows or columns, in any order, gives the same fingerprint and the same statistics."""
    values = grid(n, m)
    build(values)
    with open_store(URL) as whole:
        length = n if by_rows else m
        edges = sorted({0, length, *(cut for cut in cuts if cut < length)})
        pieces = list(itertools.pairwise(edges))
        order.shuffle(pieces)
        with StoreBuilder(URL, TableSchema.plain(n, NumberedNames(m)), replace=True) as builder:
            for first, last in pieces:
                if by_rows:
                    builder.write_rows(first, values[first:last])
                else:
                    builder.write_columns(first, values.T[first:last])
            report = builder.finish()
        assert report.fingerprint == whole.layout.fingerprint
        with open_store(URL) as again:
            assert again.statistics.norm.tobytes() == whole.statistics.norm.tobytes()


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint64, np.float16, np.float64, np.longdouble, object, ">f4"])
@pytest.mark.parametrize("rows", ["observations", "features"])
def test_any_numbers_any_order(dtype, rows: str) -> None:
    """Every numeric type, either orientation, either memory order and strided views give the same store."""
    values = (np.arange(24).reshape(8, 3) % 2).astype(dtype)
    wanted = values.T.astype("float32")
    for variant in (values, np.asfortranarray(values), np.repeat(values, 2, axis=0)[::2], values[::-1][::-1]):
        _, store = build(variant if rows == "observations" else variant.T, rows=rows)
        np.testing.assert_array_equal(store.matrix, wanted)


def test_lists_and_masked_arrays_are_arrays() -> None:
    """A list of lists is an array; a masked entry is a missing one."""
    _, store = build([[1, 2], [3, 4]])
    assert store.matrix.tolist() == [[1, 3], [2, 4]]
    masked = np.ma.array([[1.0, 2.0], [3.0, 4.0], [9.0, 6.0]], mask=[[0, 0], [0, 0], [1, 0]])
    _, store = build(masked, missing="mean")
    assert store.matrix.tolist() == [[1, 3, 2], [2, 4, 6]]


def test_unusable_data_is_refused_with_its_place() -> None:
    """Each kind of unusable data raises DataError with a sentence that names the place and the reason."""
    cases = [
        (np.arange(4.0), {}, "two dimensions"),
        (np.zeros((2, 2, 2)), {}, "two dimensions"),
        (np.array([["a", "b"]]), {}, "numbers are needed"),
        (np.zeros((2, 2), dtype=complex), {}, "complex128"),
        (np.zeros((2, 2), dtype="M8[s]"), {}, "datetime64"),
        (np.array([[1, 2], [3, "x"]], dtype=object), {}, "row 2 of column 'f1' holds 'x'"),
        (grid(), {"names": ["a"]}, "there are 1 names for 5 columns"),
        (grid(), {"names": list("abcda")}, "two features are named 'a'"),
        (grid(), {"rows": "columns"}, "unknown rows 'columns'"),
        (grid(), {"groups": {"g": ["f9"]}}, "group 'g' names the column 'f9'"),
        (grid(), {"groups": {"g": [5]}}, "group 'g' names the column 5"),
        (grid(), {"groups": {"g": []}}, "group 'g' needs a list"),
        (grid(), {"groups": {"g": "f1"}}, "group 'g' needs a list"),
        (grid(), {"groups": {"g": [1, 2], "h": ["f2"]}}, "'f2' is listed twice, in groups 'g' and 'h'"),
        (grid(), {"groups": {"g": [1, 2], "h": ["f3"]}}, "group 'h' has the one column 'f3': name two or more"),
        (grid(), {"groups": {"f0": [1, 2]}}, "two features are named 'f0'"),
    ]
    for X, options, text in cases:
        with pytest.raises(DataError, match=text):
            build(X, **options)


def test_sparse_matrices_are_named_as_such() -> None:
    """A SciPy sparse matrix is refused with advice."""
    from scipy import sparse

    with pytest.raises(DataError, match="toarray"):
        build(sparse.eye(3).tocsr())


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (np.inf, "float64", "row 3 of column 'f1' is infinite"),
        (-np.inf, "float32", "row 3 of column 'f1' is infinite"),
        (np.nan, "float32", r"row 3 of column 'f1' is missing: .*--missing mean\|median\|drop-feature"),
        (1e6, "float16", "row 3 of column 'f1' is 1e\\+06, too large for float16: use --dtype float32"),
        (-1e300, "float32", "row 3 of column 'f1' is -1e\\+300, too large for float32: use --dtype float64"),
        (1e300, "float16", "use --dtype float64"),
    ],
)
def test_values_that_cannot_be_stored_are_refused(value: float, dtype: str, text: str) -> None:
    """Infinite, missing and too large values are refused with row, column and remedy."""
    values = grid()
    values[2, 1] = value
    with pytest.raises(DataError, match=text):
        build(values, dtype=dtype)


def test_whole_numbers_too_large_for_the_dtype_are_refused() -> None:
    """Integers are checked like floats."""
    with pytest.raises(DataError, match="row 2 of column 'f0' is 70000, too large for float16"):
        build(np.array([[1], [70_000]]), dtype="float16")


def test_infinite_values_are_refused_whatever_the_policy() -> None:
    """No policy for missing values lets an infinite one through."""
    values = grid()
    values[0, 0], values[4, 0] = np.nan, np.inf
    for missing in ("mean", "median", "drop-feature"):
        with pytest.raises(DataError, match="row 5 of column 'f0' is infinite"):
            build(values, missing=missing)


def test_options_are_checked() -> None:
    """Unknown dtypes and policies are refused with a list of the known ones."""
    with pytest.raises(RequestError, match="float16, float32, float64"):
        build(grid(), dtype="int8")
    with pytest.raises(RequestError, match="drop-feature"):
        build(grid(), missing="zero")


def test_every_cell_is_to_be_written_once() -> None:
    """A table with cells left out or given twice is not sealed, and tiles outside it are refused."""
    schema = TableSchema.plain(10, ["a", "b"])
    with StoreBuilder(URL, schema) as builder:
        builder.write_rows(0, np.ones((9, 2)))
        with pytest.raises(DataError, match="'a' has 9 observations, expected 10"):
            builder.finish()
        builder.write_tile(9, 0, np.ones((1, 1)))
        with pytest.raises(DataError, match="'b' has 9 observations"):
            builder.finish()
        for first_obs, values in ((9, np.ones((2, 2))), (-1, np.ones((1, 2))), (0, np.ones((1, 3)))):
            with pytest.raises(DataError, match="does not fit the table"):
                builder.write_rows(first_obs, values)
        for values in (np.ones(2), np.array([["a", "b"]])):
            with pytest.raises(DataError, match="matrix of numbers"):
                builder.write_rows(0, values)


def test_progress_reaches_its_end() -> None:
    """Progress counts up to the total it announces."""
    seen: list[tuple[int, int]] = []
    with StoreBuilder(URL, TableSchema.plain(10, ["a", "b"]), progress=lambda done, total: seen.append((done, total))) as builder:
        builder.write_rows(0, np.ones((4, 2)))
        builder.write_rows(4, np.ones((6, 2)))
        builder.finish()
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (160, 160)


# --- missing values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("missing", "filled"), [("mean", 4.0), ("median", 2.0)])
def test_missing_values_are_filled_and_counted(missing: str, filled: float) -> None:
    """The filling is that of the column's present values, and the report counts it per feature."""
    values = np.array([[1.0, 0.0], [2.0, np.nan], [np.nan, 1.0], [9.0, np.nan]])
    report, store = build(values, missing=missing, names=["a", "b"])
    assert store.matrix.tolist() == [[1, 2, filled, 9], [0, 0.5, 1, 0.5]]
    assert report.imputed == {"a": 1, "b": 2}
    assert store.statistics.maximum.tolist() == [9, 1]


def test_dropping_drops_whole_features() -> None:
    """A missing value in one column of a feature drops all of its columns, and only them."""
    values = grid(6, 5)
    values[2, 3] = np.nan
    report, store = build(values, missing="drop-feature", groups={"pair": [1, 3]}, dtype="float64")
    assert report.dropped == ("pair",)
    assert list(store.names) == list(store.column_names) == ["f0", "f2", "f4"]
    np.testing.assert_array_equal(store.matrix, values[:, [0, 2, 4]].T)
    assert (report.n_features, report.imputed) == (3, {})


def test_nothing_left_is_said() -> None:
    """A column without a value cannot be filled, a table without a complete feature cannot be stored."""
    values = grid(4, 2)
    values[:, 1] = np.nan
    with pytest.raises(DataError, match="'f1' has no value at all"):
        build(values, missing="median")
    values[0, 0] = np.nan
    with pytest.raises(DataError, match="none is left"):
        build(values, missing="drop-feature")


def test_the_median_of_large_halves_does_not_overflow() -> None:
    """Fillings are computed in float64 for every dtype."""
    _, store = build(np.array([[65000.0], [65000.0], [np.nan]]), missing="median", dtype="float16")
    assert np.isfinite(store.matrix).all()


# --- statistics ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 9),
    n=st.sampled_from([1, 2, 7, 8, 9, 127, 128, 129, 1000, 65536, 65537]),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    seed=st.integers(0, 999),
)
def test_a_columns_statistics_do_not_depend_on_its_company(rows: int, n: int, dtype: str, seed: int) -> None:
    """Alone, in company, or at another address, a column has the same statistics to the last bit."""
    columns = np.random.default_rng(seed).normal(size=(rows, n)).astype(dtype)
    together = moments.moments(columns)
    gram = moments.gram(columns, together.mean)
    for row in range(rows):
        shifted = np.empty(n + 3, dtype=dtype)[3:]
        shifted[:] = columns[row]
        alone = moments.moments(shifted[np.newaxis])
        for field in ("mean", "norm", "minimum", "maximum"):
            assert getattr(alone, field)[0] == getattr(together, field)[row]
        pair = moments.gram(columns[[0, row]], together.mean[[0, row]])
        assert pair[0, 1] == gram[0, row]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.sampled_from([1e-250, 1e-30, 1.0, 1e30, 1e200]))
def test_statistics_are_those_of_exact_arithmetic(numbers: list[float], scale: float) -> None:
    """Mean and centred norm agree with rational arithmetic at every magnitude, without overflow or underflow."""
    column = np.array([numbers]) * scale
    found = moments.moments(column)
    exact = [Fraction(float(value)) for value in column[0]]
    mean = sum(exact) / len(exact)
    squares = sum((value - mean) ** 2 for value in exact)
    largest = max(abs(value) for value in exact)
    assert abs(Fraction(float(found.mean[0])) - mean) <= largest * Fraction(1, 10**14)
    # Compared as squares, in rationals: the exact sum may lie outside float64.
    error = abs(Fraction(float(found.norm[0])) ** 2 - squares)
    assert error <= (squares + largest**2 * len(exact) * Fraction(1, 10**14)) * Fraction(1, 10**12) + Fraction(1, 10**600)


def test_a_constant_column_has_norm_zero() -> None:
    """A column of one value has exactly that mean and norm 0, though its sum rounds, and is reported."""
    values = grid(1000, 3)
    values[:, 1] = 0.1
    report, store = build(values, dtype="float64")
    assert (store.statistics.mean[1], store.statistics.norm[1]) == (0.1, 0.0)
    assert report.constant == ("f1",)


def test_values_too_large_to_add_up_are_refused() -> None:
    """A finite column whose sum is not finite is refused by name."""
    with pytest.raises(DataError, match="'f0' has values whose sum overflows"):
        build(np.array([[1.7e308], [1.6e308]]), dtype="float64")


def test_the_fingerprint_is_that_of_the_matrix() -> None:
    """Values, shape, dtype and grouping change it; names, targets and the way it was built do not."""
    values = grid(6, 4)
    reference = build(values)[0].fingerprint
    assert build(values, values[:, 0], names=list("abcd"))[0].fingerprint == reference
    changed = values.copy()
    changed[5, 3] += 1
    others = [build(changed)[0], build(values[:, :3])[0], build(values, dtype="float64")[0], build(values, groups={"g": [0, 1]})[0]]
    assert len({reference, *(report.fingerprint for report in others)}) == 5
    assert len(reference) == 32


# --- groups, tables, targets ---------------------------------------------------------------------------------------------------


def test_groups_stand_where_their_first_column_stood() -> None:
    """Grouped columns move to the first of them, in the order listed, and the others keep theirs."""
    values = np.arange(12.0).reshape(2, 6)
    _, store = build(values, names=list("abcdef"), groups={"late": ["e", "c"], "first": [5, "a"]})
    assert list(store.names) == ["first", "b", "late", "d"]
    assert list(store.column_names) == ["f", "a", "b", "e", "c", "d"]
    np.testing.assert_array_equal(store.matrix, values[:, [5, 0, 1, 4, 2, 3]].T)


def table_columns() -> dict[str, list]:
    """Return a small table with every kind of column."""
    return {
        "age": [31, 45, 27],
        "score": [0.5, None, 2.5],
        "member": [True, False, True],
        "site": ["rome", "oslo", "rome"],
        "grade": [None, "a", "b"],
    }


def check_table(X) -> None:
    """Check the store built from ``table_columns``."""
    report, store = build(X, missing="mean")
    assert report.imputed == {"score": 1, "grade": 1}
    assert list(store.names) == ["age", "score", "member", "site", "grade"]
    assert list(store.column_names) == ["age", "score", "member", "site=oslo", "site=rome", "grade=a", "grade=b", "grade=(missing)"]
    assert store.matrix.tolist() == [
        [31, 45, 27],
        [0.5, 1.5, 2.5],
        [1, 0, 1],
        [0, 1, 0],
        [1, 0, 1],
        [0, 1, 0],
        [0, 0, 1],
        [1, 0, 0],
    ]
    with pytest.raises(DataError, match="row 2 of column 'score' is missing"):
        build(X)
    report, store = build(X, missing="drop-feature")
    assert report.dropped == ("score", "grade")
    assert list(store.column_names) == ["age", "member", "site=oslo", "site=rome"]
    _, store = build(X, missing="mean", groups={"place": ["site", "age"]})
    assert list(store.names) == ["place", "score", "member", "grade"]
    assert list(store.column_names)[:3] == ["site=oslo", "site=rome", "age"]
    _, store = build(X, missing="mean", names=list("vwxyz"))
    assert list(store.column_names)[-1] == "z=(missing)"
    with pytest.raises(DataError, match="rows"):
        build(X, rows="features")


@pytest.mark.parametrize("missing", ["mean", "drop-feature"])
def test_a_table_is_the_same_from_memory_and_from_files(tmp_path: Path, missing: str) -> None:
    """Text with blanks around it, empty or missing gives the same store from a DataFrame, an Arrow table, CSV and Parquet."""
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    columns = {"a": [1.0, 2.0, 4.0, 8.0, 9.0], "c": ["x", " y", "", None, "NA"]}
    frame, table = pandas.DataFrame(columns), pyarrow.table(columns)
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    given = [frame, table]
    if hasattr(pyarrow, "string_view"):
        given.append(table.set_column(1, "c", table["c"].cast(pyarrow.string_view())))
    reports = [build(X, missing=missing)[0] for X in given]
    for name in ("t.csv", "t.parquet"):
        found = ingest(str(tmp_path / name), str(tmp_path / "store"), missing=missing, replace=True)
        for report in reports:
            assert report.fingerprint == found.fingerprint
            assert sum(report.imputed.values()) == found.imputed
            assert report.dropped == found.dropped
    with pytest.raises(DataError, match="row 3 of column 'c' is missing"):
        build(frame)


def test_pandas_tables() -> None:
    """A DataFrame keeps its names; text and categorical columns become one feature each; nullable types are numbers."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table_columns())
    check_table(frame)
    check_table(frame.astype({"age": "Int64", "score": "Float64", "member": "boolean", "site": "category", "grade": "string"}))
    check_table(frame.astype({"age": object, "score": object, "member": object, "site": object, "grade": object}))
    for column, text in (
        (pandas.to_timedelta([1] * 3), "timedelta64"),
        ([1, "x", 2], "mixes text"),
        ([{}, [], ()], "objects"),
        ([None, None, None], "no value at all"),
        ([1j, 2j, 3j], "complex"),
        ([str(number) for number in range(300)], "spans 300 columns"),
    ):
        with pytest.raises(DataError, match=text):
            build(pandas.DataFrame({"when": column}), missing="mean")
    with pytest.raises(DataError, match="two features are named 'a'"):
        build(pandas.DataFrame(np.eye(2), columns=["a", "a"]))


def test_pandas_numbers_as_categories() -> None:
    """Declared categories are categories even when they are numbers, in the order of the numbers."""
    pandas = pytest.importorskip("pandas")
    _, store = build(pandas.DataFrame({"floor": pandas.Categorical([10, 9, 10])}))
    assert list(store.column_names) == ["floor=9", "floor=10"]


def test_arrow_tables() -> None:
    """A pyarrow table gives the same store as a DataFrame, chunked and dictionary-encoded columns included."""
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table(table_columns())
    check_table(table)
    check_table(pyarrow.concat_tables([table.slice(0, 1), table.slice(1)]))
    check_table(table.set_column(3, "site", table["site"].dictionary_encode()))
    with pytest.raises(DataError, match="'when' holds list"):
        build(pyarrow.table({"when": [[1], [2]]}))


def test_targets_of_every_kind() -> None:
    """Numbers and booleans stay numbers, text becomes sorted classes, and names come from the mapping or the series."""
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    values = grid(3, 2)
    for y, numbers, classes in (
        ([3, 1, 2], [3, 1, 2], ()),
        (np.array([True, False, True]), [1, 0, 1], ()),
        (["b", "a", "b"], [1, 0, 1], ("a", "b")),
        (np.array([b"b", b"a", b"b"]), [1, 0, 1], ("a", "b")),
        (np.array(["b", "a", "b"], dtype=object), [1, 0, 1], ("a", "b")),
        (pandas.Categorical(["b", "a", "b"]), [1, 0, 1], ("a", "b")),
        (pandas.array([3, 1, 2], dtype="Int64"), [3, 1, 2], ()),
        (pyarrow.chunked_array([["b"], ["a", "b"]]), [1, 0, 1], ("a", "b")),
    ):
        _, store = build(values, y)
        assert list(store.targets) == ["y"]
        assert store.targets["y"].values.tolist() == numbers
        assert store.targets["y"].classes == classes
    assert list(build(values, pandas.Series([1, 2, 3], name="dose"))[1].targets) == ["dose"]
    assert list(build(values, pandas.DataFrame({"b": [1, 2, 3], "a": [1, 2, 3]}))[1].targets) == ["b", "a"]
    assert list(build(values)[1].targets) == []


@pytest.mark.parametrize(
    ("y", "text"),
    [
        ([1, 2], "2 values for 3 observations"),
        ([[1], [2], [3]], "one value per observation"),
        ([1, np.nan, 3], "row 2 of target 'y' is missing"),
        ([1, 2, np.inf], "row 3 of target 'y' is infinite"),
        (["a", None, "b"], "row 2 of target 'y' is missing"),
        (np.array(["a", 2, "b"], dtype=object), "mixes text and numbers: row 2 holds 2"),
        ([{}, {}, {}], "dict objects"),
        ([1j, 2, 3], "complex128"),
    ],
)
def test_unusable_targets_are_refused(y, text: str) -> None:
    """A target of the wrong length or with an unusable entry is refused with its name and row, before anything is written."""
    with pytest.raises(DataError, match=text):
        build(grid(3, 2), y)
    assert not dram.MEDIUM.exists(StoreURL.parse(URL))


def test_missing_targets_of_pandas_are_found() -> None:
    """``pandas.NA`` in a target is a missing value like any other."""
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError, match="row 2 of target 'dose' is missing"):
        make_target("dose", pandas.array([1, None, 3], dtype="Int64"))


# --- memory --------------------------------------------------------------------------------------------------------------------

CHILD = """
import resource, sys
import numpy as np
from storage_backends.build.builder import StoreBuilder, build_from_arrays
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.schema import TableSchema

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

directory, n, m = sys.argv[1], 2_000, 60_000
source = np.memmap(directory + "/source", dtype="float32", mode="w+", shape=(n, m))
source[0] = 1  # the rest is a hole
limit = status("VmData:") + 300_000_000
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
build_from_arrays(directory + "/copy", source)
del source
before = status("VmRSS:")
with open("/proc/self/clear_refs", "w") as peak:
    peak.write("5")
with StoreBuilder(directory + "/rows", TableSchema.plain(n, NumberedNames(m)), missing="drop-feature") as builder:
    chunk = np.ones((100, m), dtype="float32")
    chunk[50, 7] = np.nan
    for first in range(0, n, 100):
        builder.write_rows(first, chunk)
    builder.finish()
print(status("VmHWM:") - before)
"""


@pytest.mark.slow
def test_a_build_needs_a_fraction_of_the_data(tmp_path: Path) -> None:
    """Building a 480 MB store, from a mapped array or from rows, needs 400 MB of memory at most, pages not yet written included."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 400_000_000
