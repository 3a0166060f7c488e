"""Readers: every format yields the same table, in bounded chunks, and names precisely the input it cannot read."""

from __future__ import annotations

import gzip
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastomp_nvm.errors import DataError, InputError, UnavailableError
from storage_backends.readers import READERS, open_reader
from storage_backends.readers.base import Reader, ReaderOptions
from storage_backends.readers.sparse import ColumnSlabs
from storage_backends.readers.target_files import read_target_file
from storage_backends.readers.text import line_blocks, parse_number, shorten
from tests.storage.reading import SMALL, read_all


def write_sparse(path: Path, table: np.ndarray, *, rng: np.random.Generator) -> None:
    """Write a coordinate .mtx with its entries in random order."""
    rows, columns = np.nonzero(table)
    order = rng.permutation(len(rows))
    lines = [f"{rows[i] + 1} {columns[i] + 1} {float(table[rows[i], columns[i]])!r}" for i in order]
    path.write_text(
        "\n".join(
            [
                "%%MatrixMarket matrix coordinate real general",
                "% a remark",
                f"{table.shape[0]} {table.shape[1]} {len(rows)}",
                *lines,
            ]
        )
        + "\n"
    )


def write_svmlight(path: Path, table: np.ndarray, labels: np.ndarray, *, base: int) -> None:
    """Write index:value lines that leave zeros out."""
    lines = [
        " ".join([repr(float(label)), *(f"{column + base}:{float(row[column])!r}" for column in np.flatnonzero(row))])
        for row, label in zip(table, labels, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def table() -> np.ndarray:
    """Return a table with more cells than a small budget, some of them zero, none of them -0."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal((300, 17))
    values[rng.random(values.shape) < 0.3] = 0.0
    values[0, :] = 1.0  # every column occurs in sparse formats
    return values


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("rows", ["observations", "features"])
@pytest.mark.parametrize("extension", ["npy", "npz", "npz-packed", "h5", "mtx", "mtx-array"])
def test_matrix_formats_in_both_orders_and_orientations(
    tmp_path: Path, table: np.ndarray, extension: str, rows: str, order: str
) -> None:
    """Memory order and orientation do not change the values read."""
    stored = np.asarray(table if rows == "observations" else table.T, order=order)
    path = tmp_path / f"t.{extension.partition('-')[0]}"
    if extension == "npy":
        np.save(path, stored)
    elif extension == "npz":
        np.savez(path, X=stored)
    elif extension == "npz-packed":
        np.savez_compressed(path, anything=stored)
    elif extension == "h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file.create_dataset(
                "group/X", data=stored, chunks=(7, 5) if order == "C" else None, compression="gzip" if order == "C" else None
            )
    elif extension == "mtx":
        write_sparse(path, stored, rng=np.random.default_rng(1))
    else:
        values = "\n".join(repr(value) for value in stored.ravel(order="F").tolist())
        path.write_text(f"%%MatrixMarket matrix array real general\n{stored.shape[0]} {stored.shape[1]}\n{values}\n")
    np.testing.assert_array_equal(read_all(path, rows=rows, chunk_bytes=SMALL), table)
    np.testing.assert_array_equal(read_all(path, [1, 2, 9, 16], rows=rows, chunk_bytes=SMALL), table[:, [1, 2, 9, 16]])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", ">f8", "int8", "uint16", "int64", "bool"])
def test_element_types(tmp_path: Path, dtype: str) -> None:
    """Every real element type is read correctly in either byte order."""
    values = np.arange(12).reshape(4, 3).astype(dtype)
    np.save(tmp_path / "a.npy", values)
    np.savez(tmp_path / "b.npz", values)
    for name in ("a.npy", "b.npz"):
        np.testing.assert_array_equal(read_all(tmp_path / name), values.astype(float))


@pytest.mark.parametrize(("group_rows", "budget"), [(1, 64 << 20), (50, 64 << 20), (300, SMALL), (7, SMALL)])
@pytest.mark.parametrize("extension", ["parquet", "feather"])
def test_columnar_formats_by_rows_and_by_columns(
    tmp_path: Path, table: np.ndarray, extension: str, group_rows: int, budget: int
) -> None:
    """Batches of rows and slabs of columns give the same table, text and missing cells included."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    colours = np.array(["red", None, " green ", "red", "NA", "blue"] * 50, dtype=object)
    columns = {f"a.{column}": table[:, column] for column in range(17)}
    columns["whole"] = pyarrow.array([None if row % 7 == 0 else row for row in range(300)])
    columns["colour"] = pyarrow.array(colours)
    columns["coded"] = pyarrow.array(colours).dictionary_encode()
    arrow = pyarrow.table(columns)
    path = tmp_path / f"t.{extension}"
    if extension == "parquet":
        parquet.write_table(arrow, path, row_group_size=group_rows)
    else:
        feather.write_feather(arrow, str(path), chunksize=group_rows)
    codes = {"red": 2.0, " green ": 1.0, "blue": 0.0}
    expected_codes = np.array([codes.get(colour, np.nan) for colour in colours])
    whole = np.array([np.nan if row % 7 == 0 else row for row in range(300)])
    found = read_all(path, chunk_bytes=budget)
    np.testing.assert_array_equal(found, np.column_stack((table, whole, expected_codes, expected_codes)))
    with open_reader(str(path), ReaderOptions()) as reader:
        scan = reader.scan(np.array([3, 18]))
    assert scan.categories[1].labels == ("blue", "green", "red")
    assert scan.categories[1].has_missing


@pytest.mark.parametrize("groups", [1, 300])
@pytest.mark.parametrize("extension", ["parquet", "feather"])
def test_columns_that_float32_holds_are_read_as_float32(tmp_path: Path, table: np.ndarray, extension: str, groups: int) -> None:
    """Runs of columns keep their width; missing cells are NaN; columns of ever changing widths are all float64."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    gap = np.where(np.arange(300) % 11 == 0, np.nan, 1.0)
    columns: dict[str, Any] = {f"f{column}": table[:, column].astype(np.float32) for column in range(6)}
    columns["gap"] = pyarrow.array([None if value != value else value for value in gap.tolist()], pyarrow.float32())
    columns |= {"half": table[:, 6].astype(np.float16), "small": np.arange(300, dtype=np.int16), "true": table[:, 7] > 0}
    columns |= {"wide": table[:, 8], "large": np.arange(300) + (1 << 24), "last": table[:, 9].astype(np.float32)}
    path = tmp_path / f"t.{extension}"

    def read(arrow: Any) -> tuple[np.ndarray, list[str]]:
        if extension == "parquet":
            parquet.write_table(arrow, path, row_group_size=300 // groups)
        else:
            feather.write_feather(arrow, str(path), chunksize=300 // groups)
        with open_reader(str(path), ReaderOptions()) as reader:
            chosen = np.arange(len(reader.names))
            types = {
                place: chunk.values.dtype.name
                for chunk in reader.chunks(chosen, reader.scan(chosen))
                for place in range(chunk.first_column, chunk.first_column + chunk.values.shape[1])
            }
        return read_all(path), [types[place] for place in chosen.tolist()]

    found, types = read(pyarrow.table(columns))
    assert types == ["float32"] * 10 + ["float64"] * 2 + ["float32"]
    np.testing.assert_array_equal(found, np.column_stack([*(np.asarray(column, dtype=np.float64) for column in columns.values())]))
    changing = {f"c{column}": table[:, 0].astype(np.float32 if column % 2 else np.float64) for column in range(20)}
    assert set(read(pyarrow.table(changing))[1]) == {"float64"}


def test_row_labels_of_pandas_are_no_column(tmp_path: Path) -> None:
    """An index without a name that pandas wrote into a Parquet file is left out, with a note; a named one stays."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 7.0]}, index=[7, 3, 5])
    path = tmp_path / "t.parquet"
    frame.to_parquet(path)
    with open_reader(str(path), ReaderOptions()) as reader:
        assert list(reader.names) == ["a", "b"]
        assert "row labels" in reader.notes[0]
    np.testing.assert_array_equal(read_all(path), frame.to_numpy())
    np.testing.assert_array_equal(read_all(path, [1]), frame[["b"]].to_numpy())
    frame.rename_axis("row").to_parquet(path)
    with open_reader(str(path), ReaderOptions()) as reader:
        assert list(reader.names) == ["a", "b", "row"]
        assert not reader.notes


def test_columnar_types_that_are_neither_number_nor_text(tmp_path: Path) -> None:
    """A column of durations is refused by name when used, and no obstacle when not; dates and moments are days since 1970."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    columns = {
        "took": pyarrow.array([1, 2], pyarrow.duration("s")),
        "day": pyarrow.array([1, None], pyarrow.date32()),
        "moment": pyarrow.array([43_200_000, 86_400_000], pyarrow.timestamp("ms", tz="Europe/Zurich")),
        "x": [1.0, 2.0],
    }
    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(DataError, match=r"'took' is of type duration.*--drop"):
        read_all(path)
    np.testing.assert_array_equal(read_all(path, [1, 2, 3]), [[1, 0.5, 1], [np.nan, 1, 2]])


def test_hdf5_group_of_columns(tmp_path: Path) -> None:
    """A group of one-dimensional datasets is a table, text columns included."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "t.hdf5"
    with h5py.File(path, "w") as file:
        group = file.create_group("people")
        group["age"] = np.arange(4)
        group["city"] = ["Rome", "Bonn", "", "Rome"]
        file["matrix"] = np.zeros((2, 2))
    np.testing.assert_array_equal(read_all(path, dataset="people"), [[0, 1], [1, 0], [2, np.nan], [3, 1]])
    np.testing.assert_array_equal(read_all(path), np.zeros((2, 2)))


@pytest.mark.parametrize("kind", ["external", "virtual", "link"])
def test_hdf5_does_not_bring_in_other_files(tmp_path: Path, kind: str) -> None:
    """A dataset whose values are in another file is refused: it would copy a file that only the reader may see into a store."""
    h5py = pytest.importorskip("h5py")
    secret, path = tmp_path / "secret", tmp_path / "t.h5"
    secret.write_bytes(np.arange(8.0).tobytes())
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["values"] = np.arange(8.0)
    with h5py.File(path, "w") as file:
        if kind == "external":
            file.create_dataset("X", (4, 2), "f8", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout((4, 2), "f8")
            for column in range(2):
                layout[:, column] = h5py.VirtualSource(tmp_path / "other.h5", "values", (8,))[column::2]
            file.create_virtual_dataset("X", layout)
        else:
            file["column"] = h5py.ExternalLink(tmp_path / "other.h5", "values")
    with pytest.raises(DataError, match="are in another file"):
        read_all(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wide.mtx", "%%MatrixMarket matrix coordinate real general\n1 1000000000 1\n1 1 3.0\n"),
        ("tall.mtx", "%%MatrixMarket matrix coordinate real general\n1000000000 1 1\n1 1 3.0\n"),
        ("array.mtx", "%%MatrixMarket matrix array real general\n100000 100000\n3.0\n"),
        ("wide.svm", "1 60000000:3.0\n"),
    ],
)
def test_small_files_that_announce_large_tables(tmp_path: Path, name: str, text: str) -> None:
    """A few bytes that announce a billion cells are refused before anything is allocated."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError, match="at most 100000 per byte are possible"):
        open_reader(str(path), ReaderOptions())


@pytest.mark.parametrize("name", ["t.csv", "t.npy", "t.h5", "t.parquet"])
def test_pipes_and_devices_are_no_sources(tmp_path: Path, name: str) -> None:
    """A named pipe without a writer, or a device without an end, is refused at once, as table and as target."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="is no regular file"):
        open_reader(str(tmp_path / name), ReaderOptions())
    with pytest.raises(InputError, match="is no regular file"):
        open_reader("/dev/zero", ReaderOptions(format=name[2:]))
    with pytest.raises(InputError, match="is no regular file"):
        read_target_file(str(tmp_path / name), 3)


def test_containers_carry_names_and_vectors(tmp_path: Path, table: np.ndarray) -> None:
    """NPZ and HDF5 may hold names and targets beside the matrix; the names must fit."""
    h5py = pytest.importorskip("h5py")
    names, labels = [f"n{column}" for column in range(17)], np.array(["a", "b"] * 150)
    np.savez(tmp_path / "t.npz", X=table, y=np.arange(300), other=labels, names=names, unrelated=np.zeros(3))
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["X"], file["y"], file["other"], file["feature_names"] = table, np.arange(300), labels.tolist(), names
    for name in ("t.npz", "t.h5"):
        with open_reader(str(tmp_path / name), ReaderOptions()) as reader:
            assert list(reader.names) == names
            assert sorted(reader.vectors) == ["other", "y"]
            assert reader.default_target == "y"
            assert reader.vector("other").tolist() == labels.tolist()
            np.testing.assert_array_equal(reader.vector("y"), np.arange(300))
    np.savez(tmp_path / "bad.npz", X=table, names=names[1:])
    with pytest.raises(DataError, match=r"'names' has shape \(16,\), expected one name for each of 17 columns"):
        open_reader(str(tmp_path / "bad.npz"), ReaderOptions())


@pytest.mark.parametrize("base", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_svmlight(tmp_path: Path, table: np.ndarray, base: int, packed: bool) -> None:
    """Sparse lines become the dense table; whether indices start at 0 or 1 is seen from the file."""
    path = tmp_path / "t.svm"
    write_svmlight(path, table, np.arange(300) % 2 * 2 - 1.0, base=base)
    text = "# a comment alone\n\n" + path.read_text().replace("\n", "  # remark 3:4\n", 5).replace(" ", " qid:3 ", 1)
    if packed:
        path = tmp_path / "t.libsvm.gz"
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    np.testing.assert_array_equal(read_all(path, chunk_bytes=SMALL), table)
    with open_reader(str(path), ReaderOptions()) as reader:
        np.testing.assert_array_equal(reader.vector("target"), np.arange(300) % 2 * 2 - 1.0)


def test_svmlight_indices_in_any_order(tmp_path: Path) -> None:
    """The entries of a line may come in any order."""
    (tmp_path / "t.svm").write_text("1 3:3 1:1\n0 2:2 3:5 1:4\n")
    np.testing.assert_array_equal(read_all(tmp_path / "t.svm"), [[1, 0, 3], [4, 2, 5]])


def test_svmlight_agrees_with_scikit_learn(tmp_path: Path, table: np.ndarray) -> None:
    """The other reader of this format finds the same table."""
    datasets = pytest.importorskip("sklearn.datasets")
    path = tmp_path / "t.svm"
    datasets.dump_svmlight_file(table, np.arange(300), str(path), zero_based=False)
    expected, _ = datasets.load_svmlight_file(str(path))
    np.testing.assert_array_equal(read_all(path), expected.toarray())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 2 3:4:5", "line 3 holds '2', expected index:value"),
        ("1,2 3:4", "line 3 holds '1,2', expected a number as label"),
        ("1 3:x", "line 3 holds '3:x', expected index:value"),
        ("1 :4", "line 3 holds ':4', expected index:value"),
        ("1 1.5:4", "line 3 has the index 1.5, expected a whole number"),
        ("1 -1:4", "line 3 has the index -1, expected a whole number"),
        ("3:4 5:6", "line 3 holds '3:4', expected a number as label"),
        ("1 500000000:1", "line 3 has the index 500000000, expected a whole number from 0 to 67108863"),
        ("1 3:1 3:2", "line 3 has the index 3 twice"),
        ("1 3:1 2:5 3:2", "line 3 has the index 3 twice"),
    ],
)
def test_svmlight_errors(tmp_path: Path, line: str, message: str) -> None:
    """A malformed line is named, with the word that is wrong."""
    path = tmp_path / "t.svm"
    path.write_text(f"1 1:2\n0 2:3\n{line}\n1 1:1\n")
    with pytest.raises(DataError, match=message.replace(".", r"\.")):
        read_all(path)


@pytest.mark.parametrize("layout", ["coordinate", "array"])
@pytest.mark.parametrize("symmetry", ["symmetric", "skew-symmetric"])
def test_matrix_market_symmetries_agree_with_scipy(tmp_path: Path, layout: str, symmetry: str) -> None:
    """Triangular storage unfolds as in SciPy."""
    scipy_io = pytest.importorskip("scipy.io")
    sparse = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(2)
    half = np.tril(rng.standard_normal((9, 9)), -1)
    full = half - half.T if symmetry == "skew-symmetric" else half + half.T + np.eye(9)
    path = tmp_path / "t.mtx"
    scipy_io.mmwrite(path, sparse.coo_matrix(full) if layout == "coordinate" else full, symmetry=symmetry, precision=17)
    expected = scipy_io.mmread(path)
    expected = expected.toarray() if layout == "coordinate" else expected
    np.testing.assert_array_equal(read_all(path, chunk_bytes=128), expected)
    np.testing.assert_array_equal(read_all(path, chunk_bytes=128, rows="features"), expected.T)


def test_matrix_market_pattern_and_repeated_entries(tmp_path: Path) -> None:
    """A pattern is a matrix of ones; entries of one cell add up."""
    path = tmp_path / "t.mtx.gz"
    path.write_bytes(gzip.compress(b"%%MatrixMarket matrix coordinate pattern general\n2 3 3\n1 3\n2 1\n1 3\n"))
    np.testing.assert_array_equal(read_all(path), [[0, 0, 2], [1, 0, 0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense\n", "does not start with '%%MatrixMarket"),
        ("%%MatrixMarket matrix coordinate complex general\n1 1 0\n", "coordinate complex, expected"),
        ("%%MatrixMarket matrix coordinate real hermitian\n1 1 0\n", "is hermitian, expected general"),
        ("%%MatrixMarket matrix coordinate real general\n% only\n", "the size line is ''"),
        ("%%MatrixMarket matrix coordinate real general\n2 2\n", "the size line is '2 2', expected rows columns entries"),
        ("%%MatrixMarket matrix coordinate real general\ninf 3 1\n", "the size line is 'inf 3 1', expected"),
        ("%%MatrixMarket matrix coordinate real general\nnan 3 1\n", "the size line is 'nan 3 1', expected"),
        ("%%MatrixMarket matrix coordinate real general\n2.7 3 1\n", "the size line is '2.7 3 1', expected"),
        ("%%MatrixMarket matrix coordinate real general\n1e30 3 1\n", "the size line is '1e30 3 1', expected"),
        ("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 5\n", "has 1 entries, but its size line says 2"),
        ("%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 5\n", "at row 3, column 1 of a matrix of shape"),
        ("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 5\n1 two 5\n", "line 4 is '1 two 5', expected 3 numbers"),
        ("%%MatrixMarket matrix array real general\n1 2\n1\n2\n3\n", "has more than the 2 values"),
        ("%%MatrixMarket matrix array real symmetric\n1 2\n1\n", "is symmetric but has shape"),
    ],
)
def test_matrix_market_errors(tmp_path: Path, text: str, message: str) -> None:
    """A malformed file is refused with the reason."""
    path = tmp_path / "t.mtx"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_all(path)


def test_column_slabs_spill_and_add() -> None:
    """Entries in any order and number of runs come back as their sum, for any width of slabs."""
    rng = np.random.default_rng(3)
    expected = np.zeros((50, 23))
    with ColumnSlabs(50, 23, budget=1500) as slabs:
        for _ in range(5):
            rows, columns, values = rng.integers(0, 50, 200), rng.integers(0, 23, 200), rng.integers(1, 9, 200).astype(float)
            np.add.at(expected, (rows, columns), values)
            slabs.add(rows, columns, values)
        found = np.concatenate([values for _, values in slabs.slabs()], axis=1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["t.npy", "t.npz", "t.parquet", "t.feather", "t.h5", "t.svm", "t.mtx", "t.csv.gz"])
def test_garbage_is_refused(tmp_path: Path, name: str) -> None:
    """Bytes of another format are a ``DataError`` that names the file."""
    (tmp_path / name).write_bytes(bytes(range(256)) * 8)
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        read_all(tmp_path / name)


@pytest.mark.parametrize("name", ["t.npy", "t.npz", "t.parquet", "t.feather", "t.h5", "t.svm", "t.mtx", "t.csv"])
def test_empty_files_missing_files_and_directories(tmp_path: Path, name: str) -> None:
    """Each defect has its own message, in every format."""
    with pytest.raises(InputError, match="there is no file"):
        read_all(tmp_path / name)
    (tmp_path / name).touch()
    with pytest.raises(DataError, match="is empty"):
        read_all(tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match="is a directory"):
        read_all(tmp_path / name)


@pytest.mark.parametrize("name", ["t.npy", "t.npz", "t.parquet", "t.feather", "t.h5"])
def test_truncated_files(tmp_path: Path, table: np.ndarray, name: str) -> None:
    """A binary file that ends early is refused, not read in part."""
    path = tmp_path / name
    if name == "t.npy":
        np.save(path, table)
    elif name == "t.npz":
        np.savez(path, table)
    elif name == "t.h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["X"] = table
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import feather, parquet

        arrow = pyarrow.table({"a": table[:, 0]})
        parquet.write_table(arrow, path) if name == "t.parquet" else feather.write_feather(arrow, str(path))
    path.write_bytes(path.read_bytes()[:-700])
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        read_all(path)


def test_damaged_archive_member(tmp_path: Path, table: np.ndarray) -> None:
    """A flipped byte inside a NPZ member is caught by the checksum of the zip."""
    path = tmp_path / "t.npz"
    np.savez(path, X=table)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"t\.npz: array 'X' is damaged"):
        read_all(path)


@pytest.mark.parametrize("as_target", [False, True])
def test_an_archive_by_the_name_of_an_array(tmp_path: Path, as_target: bool) -> None:
    """A NPZ archive called .npy is refused by name, as table and as target."""
    np.savez(tmp_path / "t.npz", X=np.eye(3))
    path = (tmp_path / "t.npz").rename(tmp_path / "t.npy")
    with pytest.raises(DataError, match=r"t\.npy is not a readable NPY file"):
        read_target_file(str(path), 3) if as_target else read_all(path)


@pytest.mark.parametrize("extension", ["npy", "npz"])
def test_damaged_numpy_headers(tmp_path: Path, extension: str) -> None:
    """Any error of NumPy about a malformed or oversized header becomes an error that names the file."""
    stored = io.BytesIO()
    np.save(stored, np.eye(3))
    for damage in (lambda data: data.replace(b"(3, 3)", b"(3, (3"), lambda data: data.replace(b"(3, 3), ", b"(9**9,3)")):
        path = tmp_path / f"t.{extension}"
        if extension == "npy":
            path.write_bytes(damage(stored.getvalue()))
        else:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("X.npy", damage(stored.getvalue()))
        with pytest.raises(DataError, match=rf"t\.{extension} is not a readable"):
            read_all(path)


def test_an_archive_that_promises_more_than_it_holds(tmp_path: Path) -> None:
    """A header with an absurd shape is refused before anything of that size is made."""
    stored = io.BytesIO()
    np.lib.format.write_array_header_1_0(stored, {"descr": "<f8", "fortran_order": False, "shape": (2**40, 2**30)})
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("X.npy", stored.getvalue())
    with pytest.raises(DataError, match="is truncated"):
        read_all(tmp_path / "t.npz")


@pytest.mark.parametrize("signature", [b"TREE", b"HEAP", b"SNOD"])
def test_damaged_hdf5(tmp_path: Path, table: np.ndarray, signature: bytes) -> None:
    """Any error of the library about damaged objects becomes an error that names the file."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "t.h5"
    with h5py.File(path, "w") as file:
        file["column"] = table[:, 0]
    path.write_bytes(path.read_bytes().replace(signature, b"gone"))
    with pytest.raises(DataError, match=r"t\.h5 is damaged"):
        read_all(path)


def test_text_with_damaged_offsets(tmp_path: Path) -> None:
    """Offsets that lead outside a text column's bytes are refused before anything follows them."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather

    path = tmp_path / "t.feather"
    cells = [f"label {row % 5}" for row in range(100)]
    feather.write_feather(pyarrow.table({"a": cells}), str(path), compression="uncompressed")
    offsets = pyarrow.array(cells).buffers()[1].to_pybytes()[: 4 * 101]
    data = path.read_bytes()
    assert data.count(offsets) == 1
    damaged = np.frombuffer(offsets, dtype=np.int32).copy()
    damaged[50] = 2**30
    path.write_bytes(data.replace(offsets, damaged.tobytes()))
    with pytest.raises(DataError, match=r"t\.feather is damaged"):
        read_all(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros((2, 2)), "b": np.zeros((2, 2))}, r"2 two-dimensional arrays \(a, b\) and none called X"),
        ({"a": np.zeros(3)}, "no two-dimensional array"),
        ({"X": np.array([["a", "b"]])}, "expected real numbers"),
        ({"X": np.zeros((2, 2), dtype=complex)}, "expected real numbers"),
    ],
)
def test_archives_without_a_table(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    """The table of an archive must be unambiguous and numeric."""
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_all(tmp_path / "t.npz")


def test_arrays_of_objects_beside_the_table_are_noted(tmp_path: Path) -> None:
    """A pickled target is not loaded, and the report notes it."""
    np.savez(tmp_path / "t.npz", X=np.eye(2), y=np.array(["a", None], dtype=object))
    with open_reader(str(tmp_path / "t.npz"), ReaderOptions()) as reader:
        assert reader.vectors == ()
        assert "'y' holds Python objects and was left out" in reader.notes[0]


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    """Object arrays are refused."""
    objects = np.array([[1, "a"]], dtype=object)
    np.save(tmp_path / "t.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "t.npz", X=objects)
    for name in ("t.npy", "t.npz"):
        with pytest.raises(DataError):
            read_all(tmp_path / name)


def test_unknown_extension_lists_the_known(tmp_path: Path) -> None:
    """The message lists the known formats."""
    with pytest.raises(InputError, match=r"\.csv.*\.parquet.*\.gz"):
        read_all(tmp_path / "t.docx")
    with pytest.raises(InputError, match=r"spreadsheet: save its sheet as a \.csv"):
        read_all(tmp_path / "t.xlsx")
    with pytest.raises(InputError, match="no extension of a known format"):
        read_all(tmp_path / "t.npy.gz")


def test_missing_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A format whose library is absent is unavailable, with the command that helps."""

    def absent(module: str) -> None:
        raise ModuleNotFoundError("no", name="pyarrow")

    (tmp_path / "t.parquet").write_bytes(b"x")
    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(UnavailableError, match=r"needs the package 'pyarrow'.*: pip install 'pyarrow>=14'"):
        open_reader(str(tmp_path / "t.parquet"), ReaderOptions())


def test_every_reader_of_the_table_exists() -> None:
    """Each entry of the table of formats imports."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("h5py")
    for extension in READERS:
        assert issubclass(READERS.load(extension), Reader)


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("1\n2\n3\n", "t", [1.0, 2.0, 3.0]),
        ("height\n1\n2\n3\n", "height", [1.0, 2.0, 3.0]),
        ("no\nyes\nno", "t", ["no", "yes", "no"]),
        ("answer\nno\nyes\nno\n", "answer", ["no", "yes", "no"]),
    ],
)
def test_target_files(tmp_path: Path, text: str, name: str, values: list[Any]) -> None:
    """One value per line; one line more than observations is a heading if it cannot be a value."""
    path = tmp_path / "t.csv"
    path.write_text(text)
    found_name, found = read_target_file(str(path), 3)
    assert found_name == name
    assert found.tolist() == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n2\n", "holds 2 values, expected one for each of 3 observations"),
        ("0\n1\n0\n1\n", "holds 4 values, expected one for each of 3 observations"),
        ("no\nyes\nno\nyes\n", "holds 4 values, expected one for each of 3 observations"),
        ("NA\n1\n2\n3\n", "row 1 is missing"),
        ("1\nNA\n3\n", "row 2 is missing"),
        ("1\nx\n3\n", "row 2 holds 'x' among numbers"),
        ("1,2\n", "line 1 has 2 cells"),
    ],
)
def test_target_file_errors(tmp_path: Path, text: str, message: str) -> None:
    """A target file that does not fit is refused; a value is never taken for a heading, which would shift all others."""
    (tmp_path / "t.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        read_target_file(str(tmp_path / "t.txt"), 3)


def test_line_blocks_keep_every_line(tmp_path: Path) -> None:
    """Runs of lines are whole, complete and numbered for every block size."""
    (tmp_path / "t").write_bytes(b"ab\n\ncdefgh\ni")
    for size in range(1, 15):
        blocks = list(line_blocks(str(tmp_path / "t"), size))
        assert b"".join(block.data for block in blocks) == b"ab\n\ncdefgh\ni\n"
        seen = 1
        for block in blocks:
            assert block.first_line == seen
            assert block.data.endswith(b"\n")
            seen += block.data.count(b"\n")


def test_numbers_and_messages() -> None:
    """``parse_number`` accepts what all parsers accept; ``shorten`` keeps a message on one line."""
    assert parse_number("1e3") == 1000.0
    assert parse_number("1_000") is None
    assert parse_number("\u0663") is None
    assert parse_number("0x10") is None
    assert shorten("a\nb\x1b[31m" + "c" * 100) == repr("a b [31m" + "c" * 29 + "...")
