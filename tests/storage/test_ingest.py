"""Ingest: the same table gives the same store from every format, errors leave nothing behind, memory stays bounded."""

from __future__ import annotations

import contextlib
import csv
import errno
import gzip
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastomp_nvm.errors import DataError, FastompError, InputError, MediumError, StoreURLError
from fastomp_nvm.stores.encoding import MISSING_LABEL
from fastomp_nvm.stores.open import open_store
from fastomp_nvm.stores.reports import IngestReport
from storage_backends.build import ingest as ingest_module
from storage_backends.build.ingest import ingest
from storage_backends.files import mapped
from storage_backends.readers import base
from storage_backends.testing.power_cut import Fault, failing_calls

ROWS, WIDTH = 60, 7


@pytest.fixture
def table() -> np.ndarray:
    """Return a table that every format can hold exactly."""
    rng = np.random.default_rng(11)
    values = rng.standard_normal((ROWS, WIDTH))
    values[rng.random(values.shape) < 0.2] = 0.0
    values[0] = 1.0
    return values


def names() -> list[str]:
    """Return the names that formats without names give."""
    return [f"f{column}" for column in range(WIDTH)]


def write_text(path: Path, table: np.ndarray, separator: str = ",", quote: bool = False) -> None:
    """Write a header and numbers that read back exactly."""
    cells = [names(), *([repr(cell) for cell in row] for row in table.tolist())]
    text = "\n".join(separator.join(f'"{cell}"' if quote else cell for cell in row) for row in cells) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())


def write_parquet(path: Path, table: np.ndarray) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    arrow = pyarrow.table(dict(zip(names(), table.T, strict=True)))
    if path.suffix in (".parquet", ".pq"):
        parquet.write_table(arrow, path, row_group_size=25)
    else:
        feather.write_feather(arrow, str(path), chunksize=25)


def write_hdf5(path: Path, table: np.ndarray, as_columns: bool = False) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        if as_columns:
            for name, column in zip(names(), table.T, strict=True):
                file[name] = column
        else:
            file["anything"] = table


def write_svmlight(path: Path, table: np.ndarray) -> None:
    lines = ["0 " + " ".join(f"{column + 1}:{row[column]!r}" for column in range(WIDTH) if row[column]) for row in table.tolist()]
    path.write_text("\n".join(lines) + "\n")


def write_matrix_market(path: Path, table: np.ndarray) -> None:
    rows, columns = np.nonzero(table)
    entries = [f"{row + 1} {column + 1} {table[row, column].item()!r}" for row, column in zip(rows, columns, strict=True)]
    header = ["%%MatrixMarket matrix coordinate real general", f"{ROWS} {WIDTH} {len(entries)}"]
    path.write_text("\n".join([*header, *reversed(entries)]) + "\n")


FORMATS: dict[str, Callable[[Path, np.ndarray], None]] = {
    "t.csv": write_text,
    "t.csv.gz": write_text,
    "semicolon.csv": lambda path, table: write_text(path, table, ";"),
    "quoted.csv": lambda path, table: write_text(path, table, quote=True),
    "t.tsv": lambda path, table: write_text(path, table, "\t"),
    "t.tsv.gz": lambda path, table: write_text(path, table, "\t"),
    "c.npy": lambda path, table: np.save(path, table),
    "f.npy": lambda path, table: np.save(path, np.asfortranarray(table)),
    "c.npz": lambda path, table: np.savez(path, X=table),
    "f.npz": lambda path, table: np.savez_compressed(path, only=np.asfortranarray(table)),
    "t.parquet": write_parquet,
    "t.pq": write_parquet,
    "t.feather": write_parquet,
    "t.arrow": write_parquet,
    "t.h5": write_hdf5,
    "columns.hdf5": lambda path, table: write_hdf5(path, table, as_columns=True),
    "t.svm": write_svmlight,
    "t.mtx": write_matrix_market,
}


def left_in(directory: Path) -> set[str]:
    """Return the names in a directory, hidden files included."""
    return {entry.name for entry in directory.iterdir()}


def stored(path: Path) -> np.ndarray:
    """Return the matrix through the back door: plain NumPy."""
    return np.load(path / "matrix.npy")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return an empty directory for stores, apart from the sources."""
    (tmp_path / "stores").mkdir()
    return tmp_path / "stores"


@pytest.mark.parametrize("budget", [base.CHUNK_BYTES, 1024])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_store(
    tmp_path: Path, place: Path, table: np.ndarray, name: str, dtype: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored matrix is the table in the store's type, bit for bit, for every format and size of chunks."""
    monkeypatch.setattr(ingest_module, "ReaderOptions", lambda **options: base.ReaderOptions(**options, chunk_bytes=budget))
    FORMATS[name](tmp_path / name, table)
    report = ingest(str(tmp_path / name), str(place / "s"), dtype=dtype)
    assert stored(place / "s").tobytes() == np.ascontiguousarray(table.T.astype(dtype)).tobytes()
    assert (report.n_obs, report.n_features, report.n_columns) == (ROWS, WIDTH, WIDTH)
    assert report.bytes == table.size * np.dtype(dtype).itemsize
    with open_store(str(place / "s")) as store:
        assert list(store.names) == names()
        store.verify()
    assert left_in(place) == {"s"}


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.npy", "f.npy", "t.npz", "f.npz", "t.h5", "t.mtx"])
def test_rows_of_features_give_the_same_store(tmp_path: Path, place: Path, table: np.ndarray, name: str) -> None:
    """A transposed source with rows="features" is the same table."""
    path = tmp_path / name
    flipped = np.asfortranarray(table.T) if name.startswith("f.") else np.ascontiguousarray(table.T)
    if name.endswith("sv"):
        separator = "\t" if name.endswith("tsv") else ","
        lines = [
            ["feature", *(f"s{row}" for row in range(ROWS))],
            *([n, *map(repr, row)] for n, row in zip(names(), flipped.tolist(), strict=True)),
        ]
        path.write_text("\n".join(separator.join(line) for line in lines))
    elif name.endswith("npy"):
        np.save(path, flipped)
    elif name.endswith("npz"):
        np.savez(path, flipped)
    elif name.endswith("h5"):
        write_hdf5(path, flipped)
    else:
        values = "\n".join(map(repr, flipped.ravel(order="F").tolist()))
        path.write_text(f"%%MatrixMarket matrix array real general\n{WIDTH} {ROWS}\n{values}\n")
    np.savetxt(tmp_path / "y.txt", np.arange(ROWS))
    report = ingest(str(path), str(place / "s"), rows="features", targets=["f2", str(tmp_path / "y.txt")], dtype="float64")
    assert report.targets == ("f2", "y")
    np.testing.assert_array_equal(stored(place / "s"), np.delete(table, 2, axis=1).T)
    with open_store(str(place / "s")) as store:
        np.testing.assert_array_equal(store.targets["f2"].values, table[:, 2])
        np.testing.assert_array_equal(store.targets["y"].values, np.arange(ROWS))


PEOPLE = "id,age,colour,income,answer,note\n1,30,red,10.5,yes,a\n2,40,blue,11,no,b\n3,50,red,12,yes,c\n4,60,green,13.5,maybe,d\n"


def test_columns_have_their_roles(tmp_path: Path, place: Path) -> None:
    """Features, several targets, an identifier and dropped columns are distinguished; text becomes indicators or classes."""
    (tmp_path / "p.csv").write_text(PEOPLE)
    report = ingest(
        str(tmp_path / "p.csv"), str(place / "s"), targets=["answer", "income"], id_column="id", drop=["no*"], dtype="float64"
    )
    assert report.targets == ("answer", "income")
    assert (report.n_features, report.n_columns) == (2, 4)
    with open_store(str(place / "s")) as store:
        assert list(store.names) == ["age", "colour"]
        assert list(store.column_names) == ["age", "colour=blue", "colour=green", "colour=red"]
        np.testing.assert_array_equal(store.matrix, [[30, 40, 50, 60], [0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 1, 0]])
        assert list(store.targets) == ["answer", "income"]
        assert store.targets["answer"].classes == ("maybe", "no", "yes")
        assert store.targets["answer"].values.tolist() == [2, 1, 2, 0]
        assert store.targets["income"].values.tolist() == [10.5, 11, 12, 13.5]
        assert store.targets["income"].classes == ()
    assert any("targets: answer, income" in line for line in report.summary)


@pytest.mark.parametrize(("text", "name"), [("income", "income"), ("3", "income"), ("-3", "income"), ("0", "id")])
def test_targets_by_name_and_position(tmp_path: Path, place: Path, text: str, name: str) -> None:
    """A target may be named or counted, from either end."""
    (tmp_path / "p.csv").write_text(PEOPLE)
    assert ingest(str(tmp_path / "p.csv"), str(place / "s"), targets=[text]).targets == (name,)


def test_a_column_wins_over_a_position_and_a_file(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a column comes first; ./ means the file."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("a,1,y.txt\n1,2,3\n4,5,7\n")
    Path("y.txt").write_text("70\n80\n")
    expected = {"1": ("1", [2, 5]), "0": ("a", [1, 4]), "y.txt": ("y.txt", [3, 7]), "./y.txt": ("y", [70, 80])}
    for number, (text, (name, values)) in enumerate(expected.items()):
        ingest("t.csv", str(place / str(number)), targets=[text])
        with open_store(str(place / str(number))) as store:
            assert list(store.targets) == [name]
            assert store.targets[name].values.tolist() == values


def test_marked_targets_are_the_default(tmp_path: Path, place: Path, table: np.ndarray) -> None:
    """The labels of SVMlight and ``y`` of an archive are targets unless others are asked for."""
    write_svmlight(tmp_path / "t.svm", table)
    np.savez(tmp_path / "t.npz", X=table, y=np.arange(ROWS), group=np.array(["a", "b"] * (ROWS // 2)))
    assert ingest(str(tmp_path / "t.svm"), str(place / "a")).targets == ("target",)
    assert ingest(str(tmp_path / "t.npz"), str(place / "b")).targets == ("y",)
    assert ingest(str(tmp_path / "t.npz"), str(place / "c"), targets=["group", "f1"]).targets == ("group", "f1")
    with open_store(str(place / "c")) as store:
        assert store.targets["group"].classes == ("a", "b")


def test_missing_cells(tmp_path: Path, place: Path) -> None:
    """Each policy for missing values treats numbers and text as documented."""
    (tmp_path / "t.csv").write_text("a,b,c\n1,2,x\n,4,NA\n3,6,y\n8,8,x\n")
    report = ingest(str(tmp_path / "t.csv"), str(place / "mean"), missing="mean", dtype="float64")
    assert report.imputed == 2
    with open_store(str(place / "mean")) as store:
        assert list(store.column_names) == ["a", "b", "c=x", "c=y", f"c={MISSING_LABEL}"]
        np.testing.assert_array_equal(store.matrix, [[1, 4, 3, 8], [2, 4, 6, 8], [1, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0]])
    ingest(str(tmp_path / "t.csv"), str(place / "median"), missing="median")
    assert stored(place / "median")[0].tolist() == [1, 3, 3, 8]
    report = ingest(str(tmp_path / "t.csv"), str(place / "drop"), missing="drop-feature")
    assert report.dropped == ("a", "c")
    assert stored(place / "drop").tolist() == [[2, 4, 6, 8]]


def test_report(tmp_path: Path, place: Path) -> None:
    """The report has the counts and notes the assumptions."""
    (tmp_path / "t.csv").write_text("1,5\n2,5\n3,5\n")
    seen: list[tuple[int, int]] = []
    report = ingest(str(tmp_path / "t.csv"), str(place / "s"), progress=lambda done, total: seen.append((done, total)))
    assert isinstance(report, IngestReport)
    assert report.constant == ("f1",)
    assert any("first line holds no names" in line for line in report.summary)
    assert any("constant" in line for line in report.summary)
    assert seen
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.svm", "t.mtx", "c.npy"])
def test_progress_covers_every_pass(
    tmp_path: Path, place: Path, table: np.ndarray, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress grows with every pass over a text, beginning with the first, and ends at the announced total."""
    monkeypatch.setattr("storage_backends.readers.delimited.BLOCK_BYTES", 512)
    monkeypatch.setattr("storage_backends.readers.svmlight._BLOCK_BYTES", 512)
    FORMATS[name](tmp_path / name, table)
    seen: list[tuple[int, int]] = []
    ingest(str(tmp_path / name), str(place / "s"), progress=lambda done, total: seen.append((done, total)))
    done = [step[0] for step in seen]
    assert done == sorted(done)
    assert seen[-1][0] == seen[-1][1]
    if name in ("t.csv", "t.svm"):
        assert max(np.diff(done)) < 0.25 * done[-1]  # no part of the work goes untold


ERRORS: list[tuple[str, str, dict[str, Any], type[Exception], str]] = [
    ("missing number", "a,b\n1,2\n3,\n", {}, DataError, r"row 2 of column 'b' is missing.*--missing"),
    ("missing text", "a,b\n1,x\n3,?\n", {}, DataError, r"row 2 of column 'b' is missing.*--missing"),
    ("infinite", "a,b\n1,2\n3,inf\n", {}, DataError, r"row 2 of column 'b' is infinite"),
    ("too large", "a,b\n1,2\n3,1e39\n", {}, DataError, r"row 2 of column 'b' is 1e\+39, too large for float32"),
    ("text in numbers", "a,b\n1,2\n3,x\n", {}, DataError, r"row 2 \(line 3\), column 'b' holds 'x'"),
    ("ragged", "a,b\n1,2\n3\n", {}, DataError, r"line 3 \(row 2\) has 1 cells, expected 2"),
    ("twice", "a,b,a\n1,2,3\n", {}, DataError, r"columns 1 and 3 are both named 'a'"),
    ("unnamed", "a,,b\n1,2,3\n", {}, DataError, r"column 2 has no name"),
    ("header only", "a,b\n", {}, DataError, "has a header but no rows"),
    ("only target", "a,b\n1,2\n", {"targets": ["a", "b"]}, DataError, "has no features"),
    ("missing target", "a,b\n1,2\n3,NA\n", {"targets": ["b"]}, DataError, "row 2 of target 'b' is missing"),
    ("missing class", "a,b\n1,u\n3,NA\n", {"targets": ["b"]}, DataError, "row 2 of target 'b' is missing"),
    ("unknown target", "alpha,b\n1,2\n", {"targets": ["alpa"]}, InputError, r"'alpa' is neither a column.*did you mean 'alpha'"),
    ("far target", "a,b\n1,2\n", {"targets": ["7"]}, InputError, "'7' is neither a column"),
    ("no target file", "a,b\n1,2\n", {"targets": ["./none.txt"]}, InputError, "there is no file ./none.txt"),
    ("target twice", "a,b,c\n1,2,3\n", {"targets": ["b", "1"]}, InputError, "two targets are the same column"),
    ("unknown id", "a,b\n1,2\n", {"id_column": "key"}, InputError, "no column 'key' to take identifiers from"),
    (
        "many labels",
        "who,x\n" + "".join(f"p{row},{row % 7}\n" for row in range(300)),
        {},
        DataError,
        r"column 'who' holds text with more than 256 different values.*--drop who .*--id who",
    ),
    ("decimal comma", "a;b\n1,5;2\n2,5;3\n", {}, DataError, r"column 'a' is almost numeric: 2 of 2 cells.*--decimal ,"),
    ("unknown drop", "a,b\n1,2\n", {"drop": ["z*"]}, InputError, r"no column of t\.csv matches 'z\*'"),
    ("unknown rows", "a,b\n1,2\n", {"rows": "lines"}, InputError, "expected observations or features"),
    ("unknown dtype", "a,b\n1,2\n", {"dtype": "int8"}, InputError, "unknown dtype 'int8'"),
    ("unknown policy", "a,b\n1,2\n", {"missing": "zero"}, InputError, "unknown policy for missing values 'zero'"),
    ("feature of text", "n,s,t\ng,1,2\nh,1,x\n", {"rows": "features"}, DataError, r"row 2 \(line 3\), column 't' holds 'x'"),
]


@pytest.mark.parametrize(("text", "options", "kind", "message"), [case[1:] for case in ERRORS], ids=[case[0] for case in ERRORS])
def test_errors_leave_nothing(
    tmp_path: Path, place: Path, text: str, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """Each mistake has one sentence that names the place, and the directory of the store stays empty."""
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(kind, match=message):
        ingest(str(tmp_path / "t.csv"), str(place / "s"), **options)
    assert left_in(place) == set()


def test_target_file_that_does_not_fit(tmp_path: Path, place: Path) -> None:
    """A target of another length is refused before anything is built."""
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "y.txt").write_text("1\n2\n3\n4\n")
    with pytest.raises(DataError, match=r"y\.txt holds 4 values, expected one for each of 2 observations"):
        ingest(str(tmp_path / "t.csv"), str(place / "s"), targets=[str(tmp_path / "y.txt")])
    assert left_in(place) == set()


def test_existing_store(tmp_path: Path, place: Path) -> None:
    """A store in the way is refused untouched, and replaced when asked; a failed replacement keeps the old one."""
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "u.csv").write_text("a,b\n5,6\n7,8\n")
    (tmp_path / "bad.csv").write_text("a,b\n5,6\n7,x\n")
    ingest(str(tmp_path / "t.csv"), str(place / "s"))
    with pytest.raises(StoreURLError, match="--replace"):
        ingest(str(tmp_path / "u.csv"), str(place / "s"))
    with pytest.raises(DataError):
        ingest(str(tmp_path / "bad.csv"), str(place / "s"), replace=True)
    assert stored(place / "s").tolist() == [[1, 3], [2, 4]]
    ingest(str(tmp_path / "u.csv"), str(place / "s"), replace=True)
    assert stored(place / "s").tolist() == [[5, 7], [6, 8]]
    assert left_in(place) == {"s"}


def test_failure_while_reading(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that fails in the middle of the source is a ``MediumError``, and nothing is left."""
    np.save(tmp_path / "t.npy", np.ones((8, 3)))

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("storage_backends.readers.numpy_files.as_float", fail)
    with pytest.raises(MediumError, match=r"reading .*t\.npy failed: Input/output error"):
        ingest(str(tmp_path / "t.npy"), str(place / "s"))
    assert left_in(place) == set()


@settings(max_examples=40, deadline=None)
@given(data=st.data(), rows=st.integers(1, 8), width=st.integers(1, 4))
def test_tables_survive_csv(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, rows: int, width: int) -> None:
    """Any finite numbers written as CSV are stored exactly."""
    number = st.floats(-1e150, 1e150)  # squares must not overflow: the store keeps norms
    values = np.array(data.draw(st.lists(st.lists(number, min_size=width, max_size=width), min_size=rows, max_size=rows)))
    directory = tmp_path_factory.mktemp("ingest")
    with (directory / "t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"name {column}" for column in range(width)])
        writer.writerows(values.tolist())
    ingest(str(directory / "t.csv"), str(directory / "s"), dtype="float64")
    np.testing.assert_array_equal(stored(directory / "s"), values.T)


CHILD = textwrap.dedent(
    """
    import resource, sys
    import numpy, pyarrow.csv
    from storage_backends.build.ingest import ingest
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
    limit = used + int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    report = ingest(sys.argv[1], sys.argv[2], targets=sys.argv[4:])
    print(report.n_obs, report.n_columns)
    """
)


def ingest_with_little_memory(source: Path, store: Path, allowance: int, *targets: str) -> str:
    """Ingest in a process that may allocate ``allowance`` bytes more than its imports took; mapped files do not count."""
    pytest.importorskip("pyarrow")
    # Allocators that reserve far more than they use, and the stacks of idle threads, would hide what is measured.
    frugal = {"ARROW_DEFAULT_MEMORY_POOL": "system", "ARROW_IO_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    environment = os.environ | frugal | {"MALLOC_TRIM_THRESHOLD_": "1000000"}
    command = [sys.executable, "-c", CHILD, str(source), str(store), str(allowance), *targets]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(200_000, 500), (1000, 100_000)])
def test_npy_needs_little_memory(tmp_path: Path, place: Path, shape: tuple[int, int]) -> None:
    """A 400 MB matrix, tall or wide, is ingested with a quarter of that."""
    matrix = np.lib.format.open_memmap(tmp_path / "t.npy", mode="w+", dtype=np.float32, shape=shape)
    matrix[::1000, ::7] = 1.0  # the file is sparse on disk, dense to the reader
    matrix.flush()
    del matrix
    assert ingest_with_little_memory(tmp_path / "t.npy", place / "s", 100 << 20) == f"{shape[0]} {shape[1]}"


@pytest.mark.slow
def test_packed_npz_needs_little_memory(tmp_path: Path, place: Path) -> None:
    """A 400 MB matrix inside a packed archive is never unpacked whole."""
    np.savez_compressed(tmp_path / "t.npz", X=np.zeros((100_000, 1000), dtype=np.float32))
    assert ingest_with_little_memory(tmp_path / "t.npz", place / "s", 150 << 20) == "100000 1000"


@pytest.mark.slow
def test_csv_needs_little_memory(tmp_path: Path, place: Path) -> None:
    """A 160 MB text file with numbers, text and a target is ingested with less memory than it is long."""
    numbers = np.random.default_rng(0).standard_normal((2000, 40)).tolist()
    block = "".join(",".join([*map(repr, row), "red" if row[0] > 0 else "blue"]) + "\n" for row in numbers)
    with (tmp_path / "t.csv").open("w") as file:
        file.write(",".join([f"c{column}" for column in range(40)] + ["colour"]) + "\n")
        for _ in range(105):
            file.write(block)
    assert (tmp_path / "t.csv").stat().st_size > 160e6
    assert ingest_with_little_memory(tmp_path / "t.csv", place / "s", 120 << 20, "c3") == f"{105 * 2000} 41"


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_every_call_of_an_ingest_may_fail(table: np.ndarray, tmp_path: Path, code: int) -> None:
    """Any call that makes, writes, maps, flushes or names fails the Nth time: our error, and no store or a whole one."""
    np.save(tmp_path / "table.npy", table)
    place = tmp_path / "place"
    calls = [(os, name) for name in ("fsync", "mkdir", "rename", "posix_fallocate", "ftruncate", "pwrite")]
    calls += [(mapped, "MappedFile"), (mapped.MappedFile, "flush")]
    for nth in range(1, 200):
        place.mkdir()
        fault = Fault(nth, code)
        with contextlib.suppress(FastompError), failing_calls(fault, *calls):
            ingest(str(tmp_path / "table.npy"), str(place / "s"))
        left = [entry.name for entry in place.iterdir()]
        assert left in ([], ["s"])
        if left:
            with open_store(str(place / "s")) as store:
                store.verify()
        shutil.rmtree(place)
        if not fault.fired:
            break
    assert left == ["s"]
    assert nth > 10
