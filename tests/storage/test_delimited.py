"""Delimited text: three parsers that agree, exact record boundaries, and errors that name row, line and column."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastomp_nvm.errors import DataError
from storage_backends.readers import open_reader, records
from storage_backends.readers.base import ReaderOptions
from storage_backends.readers.text import MISSING_TOKENS
from tests.storage.reading import SMALL, read_all


def write_csv(path: Path, table: np.ndarray, names: list[str] | None = None) -> None:
    """Write numbers so that they read back exactly."""
    header = names or [f"f{column}" for column in range(table.shape[1])]
    lines = [",".join(header), *(",".join(map(repr, row)) for row in table.tolist())]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def table() -> np.ndarray:
    """Return a table with more cells than a small budget, some of them zero, none of them -0."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal((300, 17))
    values[rng.random(values.shape) < 0.3] = 0.0
    values[0, :] = 1.0  # every column occurs in sparse formats
    return values


PARSERS = ["arrow", "loadtxt", "cells"]


@pytest.fixture
def only_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Leave one parser of delimited text in service (and the one that explains errors)."""
    if request.param == "arrow":
        pytest.importorskip("pyarrow")
        monkeypatch.setattr(records, "_ARROW_ROWS", 1)
    else:
        monkeypatch.setattr(records, "_arrow", lambda: None)
    if request.param == "cells":
        monkeypatch.setattr("storage_backends.readers.delimited.parse_loadtxt", lambda *_: None)
    return str(request.param)


@pytest.mark.parametrize("only_parser", PARSERS, indirect=True)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_parsers_agree(tmp_path: Path, table: np.ndarray, only_parser: str, end: str) -> None:
    """Every parser returns the written numbers, bit for bit."""
    path = tmp_path / "t.csv"
    write_csv(path, table * 10.0 ** np.arange(-8, 9))
    path.write_bytes(path.read_bytes().replace(b"\n", end.encode()))
    found = read_all(path, chunk_bytes=4 * SMALL)
    assert found.tobytes() == (table * 10.0 ** np.arange(-8, 9)).tobytes()
    np.testing.assert_array_equal(read_all(path, [0, 5, 16]), found[:, [0, 5, 16]])


@pytest.mark.parametrize("only_parser", PARSERS, indirect=True)
def test_csv_with_everything(tmp_path: Path, only_parser: str) -> None:
    """Byte order mark, quotes, separators and newlines in quotes, blank lines, spaces, missing tokens and no final newline."""
    path = tmp_path / "t.csv"
    text = '\ufeff"a, first",b,colour\r\n\r\n1,"2",red\r\n 3 ,NA,"light, blue"\r\n\r\n?,-4e2,"a ""very""\nlong name"\r\n5,None,'
    path.write_bytes(text.encode())
    with open_reader(str(path), ReaderOptions()) as reader:
        assert list(reader.names) == ["a, first", "b", "colour"]
        scan = reader.scan(np.arange(3))
    assert scan.categories[2].labels == ('a "very"\nlong name', "light, blue", "red")
    assert scan.categories[2].has_missing
    expected = [[1, 2, 2], [3, np.nan, 1], [np.nan, -400, 0], [5, np.nan, np.nan]]
    np.testing.assert_array_equal(read_all(path), expected)


@pytest.mark.parametrize(("name", "separator"), [("t.csv", ","), ("t.csv", ";"), ("t.tsv", "\t"), ("t.txt", "\t"), ("t.txt", ";")])
def test_csv_separators_and_gzip(tmp_path: Path, name: str, separator: str) -> None:
    """The separator follows from the extension and the first line, packed or not."""
    text = "a,b\n1,2\n3,4\n".replace(",", separator).encode()
    (tmp_path / name).write_bytes(text)
    (tmp_path / (name + ".gz")).write_bytes(gzip.compress(text))
    np.testing.assert_array_equal(read_all(tmp_path / name), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(read_all(tmp_path / (name + ".gz")), [[1, 2], [3, 4]])


def test_csv_without_header_and_with_row_labels(tmp_path: Path) -> None:
    """A first line without names is data; a first column without a heading is row labels; both are noted."""
    (tmp_path / "a.csv").write_text("1,2\n3,4\n")
    (tmp_path / "b.csv").write_text(",x,y\nr1,1,2\nr2,3,4\n")
    np.testing.assert_array_equal(read_all(tmp_path / "a.csv"), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(read_all(tmp_path / "b.csv"), [[1, 2], [3, 4]])
    for name, names, note in (("a.csv", ["f0", "f1"], "no names"), ("b.csv", ["x", "y"], "row labels")):
        with open_reader(str(tmp_path / name), ReaderOptions()) as reader:
            assert list(reader.names) == names
            assert note in reader.notes[0]


@pytest.mark.parametrize("cell", ["", "NA", "?", "nan"])
def test_a_missing_cell_makes_no_header(tmp_path: Path, cell: str) -> None:
    """A first line of numbers and missing cells is an observation like any other: neither it nor a column is lost."""
    (tmp_path / "t.csv").write_text(f"{cell},1,2\n3,4,5\n")
    np.testing.assert_array_equal(read_all(tmp_path / "t.csv"), [[np.nan, 1, 2], [3, 4, 5]])


def test_a_table_without_names_as_pandas_writes_it(tmp_path: Path) -> None:
    """Columns numbered from 0 behind an empty heading are names, and the first column is row labels."""
    (tmp_path / "t.csv").write_text(",0,1\n0,3.5,4.5\n1,5.5,6.5\n")
    np.testing.assert_array_equal(read_all(tmp_path / "t.csv"), [[3.5, 4.5], [5.5, 6.5]])
    with open_reader(str(tmp_path / "t.csv"), ReaderOptions()) as reader:
        assert list(reader.names) == ["0", "1"]
        assert any("numbers the columns from 0" in note for note in reader.notes)


@pytest.mark.parametrize(("heading", "noted"), [("cat,1,2", True), ("a,b,c", False), (",b,c", False)])
def test_a_header_that_holds_numbers_is_noted(tmp_path: Path, heading: str, noted: bool) -> None:
    """When the first line could be data, the report notes that it was taken as names."""
    (tmp_path / "t.csv").write_text(f"{heading}\n3,4,5\n")
    with open_reader(str(tmp_path / "t.csv"), ReaderOptions()) as reader:
        assert any("taken as column names" in note for note in reader.notes) == noted


@pytest.mark.parametrize("only_parser", PARSERS, indirect=True)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3\n", r"t\.csv: line 3 \(row 2\) has 1 cells, expected 2"),
        ("a,b\n1,2\n\n3,4,5\n", r"line 4 \(row 2\) has 3 cells, expected 2"),
        ("a,b\n1,2\n3,four\x07\n", r"row 2 \(line 3\), column 'b' holds 'four ?', expected a number"),
        ("a,b\n1,2\n3,1_000\n", r"row 2 \(line 3\), column 'b' holds '1_000', expected a number"),
        ('a,b\n"x\ny",1\nz,two\nz,3\n', r"row 2 \(line 4\), column 'b' holds 'two'"),
        ("a,b\n1,2\n3,\u0663\n", r"row 2 \(line 3\), column 'b' holds"),
        ('a,b\n1,2\n3,"4\n', r"the record at line 3 has a quote that is never closed"),
        ('a,b\nx"y,1\nz"w,2\n', "a cell between line 2 and line 4 has a quote in its middle"),
        ("a,b\n", "has a header but no rows"),
        ("\n\n\n", "nothing but blank lines"),
        ("a,b\r1,2\r", "lone carriage returns"),
    ],
)
def test_csv_errors(tmp_path: Path, only_parser: str, text: str, message: str) -> None:
    """An unreadable cell is named by row, line and column, whichever parser found it."""
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    with pytest.raises(DataError, match=message):
        read_all(path)


def test_csv_error_far_into_the_file(tmp_path: Path) -> None:
    """Rows and lines are counted through many runs."""
    path = tmp_path / "t.csv"
    lines = ["a,b"] + [f"{row},{row}" for row in range(5000)]
    lines[4322] = "17,oops" + "!" * 100
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"row 4322 \(line 4323\), column 'b' holds 'oops!+\.\.\.', expected a number"):
        read_all(path, chunk_bytes=SMALL)


def test_csv_bytes_that_are_no_text(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are reported with their line."""
    (tmp_path / "t.csv").write_bytes(b"a,b\n1,2\n3,\xe9t\xe9\n")
    with pytest.raises(DataError, match="line 3 holds the byte 0xe9, which is not UTF-8"):
        read_all(tmp_path / "t.csv")


def test_gzip_cut_short(tmp_path: Path) -> None:
    """A packed file that ends early is refused, not read as a shorter table."""
    packed = gzip.compress(b"a,b\n" + b"1,2\n" * 10000)
    (tmp_path / "t.csv.gz").write_bytes(packed[:-20])
    with pytest.raises(DataError, match="not a whole gzip file"):
        read_all(tmp_path / "t.csv.gz")
    (tmp_path / "u.csv.gz").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(DataError, match="not a whole gzip file"):
        read_all(tmp_path / "u.csv.gz")


@pytest.mark.parametrize("only_parser", PARSERS, indirect=True)
def test_csv_of_features(tmp_path: Path, table: np.ndarray, only_parser: str) -> None:
    """One feature per line: names from the first column, the table transposed."""
    path = tmp_path / "t.csv"
    names = [f"gene {row}" for row in range(17)]
    header = ",".join(["gene", *(f"s{sample}" for sample in range(300))])
    path.write_text(
        "\n".join([header, *(",".join([name, *map(repr, line)]) for name, line in zip(names, table.T.tolist(), strict=True))])
    )
    np.testing.assert_array_equal(read_all(path, rows="features", chunk_bytes=4 * SMALL), table)
    with open_reader(str(path), ReaderOptions(rows="features")) as reader:
        assert list(reader.names) == names


def test_csv_of_features_without_names_or_with_an_id(tmp_path: Path) -> None:
    """Lines of numbers alone get numbered names; an identifier column may be at any position."""
    (tmp_path / "a.csv").write_text("1,2,3\n4,5,6\n")
    (tmp_path / "b.csv").write_text("s1,key,s2\n1,7,2\n3,8,4\n")
    np.testing.assert_array_equal(read_all(tmp_path / "a.csv", rows="features"), [[1, 4], [2, 5], [3, 6]])
    np.testing.assert_array_equal(read_all(tmp_path / "b.csv", rows="features", id_column="key"), [[1, 3], [2, 4]])
    with open_reader(str(tmp_path / "b.csv"), ReaderOptions(rows="features", id_column="key")) as reader:
        assert list(reader.names) == ["7", "8"]


cells = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**6), 10**6).map(str),
    st.sampled_from(sorted(MISSING_TOKENS)),
)
labels = st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n"), max_size=6).map(
    lambda text: "l" + text.strip()
)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), rows=st.integers(1, 12), width=st.integers(1, 5), arrow=st.booleans(), quote_all=st.booleans())
def test_csv_round_trip(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, rows: int, width: int, arrow: bool, quote_all: bool
) -> None:
    """Any table that the standard library writes reads back: numbers exactly, missing as NaN, text as its category."""
    kinds = data.draw(st.lists(st.booleans(), min_size=width, max_size=width))
    columns = [data.draw(st.lists(labels if text else cells, min_size=rows, max_size=rows)) for text in kinds]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, quoting=csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL)
    writer.writerow([f"c{column}" for column in range(width)])
    writer.writerows(zip(*columns, strict=True))
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_bytes(buffer.getvalue().encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_ARROW_ROWS", 1 if arrow else 10**9)
        found = read_all(path)
    for column, text in enumerate(kinds):
        if text:
            order = sorted(set(columns[column]))
            expected = [order.index(cell) for cell in columns[column]]
        else:
            expected = [np.nan if cell in MISSING_TOKENS else float(cell) for cell in columns[column]]
        np.testing.assert_array_equal(found[:, column], expected)


def test_record_blocks_do_not_depend_on_their_size(tmp_path: Path) -> None:
    """Cutting a file elsewhere finds the same records under the same numbers."""
    (tmp_path / "t.csv").write_bytes(b'\xef\xbb\xbfa,b\r\n\r\n"1\n\n2",3\r\n4,"5""6"\n\n7,8')
    for size in range(1, 40):
        blocks = list(records.record_blocks(str(tmp_path / "t.csv"), skip_first=True, block_bytes=size))
        dialect = records.Dialect(str(tmp_path / "t.csv"), ",", ["a", "b"])
        found = [record for block in blocks for record in records.cell_rows(dialect, block)]
        assert [(row, cells) for row, _, cells in found] == [(0, ["1\n\n2", "3"]), (1, ["4", '5"6']), (2, ["7", "8"])]
        assert sum(block.rows for block in blocks) == 3
        assert list(records.known_blocks(str(tmp_path / "t.csv"), blocks)) == blocks


def test_a_file_that_changes_between_its_passes_is_refused(tmp_path: Path) -> None:
    """Records that are lost after they were counted are named, never filled in."""
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 1000)
    reader = open_reader(str(path), ReaderOptions())
    scan = reader.scan(np.arange(2))
    path.write_text("a,b\n" + "1,2\n" * 400)
    with pytest.raises(DataError, match=r"t\.csv has changed while it was read"):
        list(reader.chunks(np.arange(2), scan))
