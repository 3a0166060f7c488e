"""Sources as a user names them, dry runs, schema files, and the columns that ``info`` lists."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from fastomp_nvm.errors import DataError
from fastomp_nvm.stores.describe import describe
from tests.storage.test_messy_tables import columns, here

__all__ = ["here"]  # a fixture

HEADER = "key,city,x,when,y\n"
FIRST = HEADER + "a1,Bern,1,2024-01-01,yes\na2,Zug,2,2024-01-02,no\na3,,3,2024-01-03,yes\n"
SECOND = HEADER + "b1,Basel,4,2024-01-04,no\nb2,Bern,5.5,2024-01-05,yes\n"
OPTIONS = ["--target", "y", "--id", "key", "--date", "when", "--missing", "mean"]


def fingerprint(name: str) -> str:
    """Return the fingerprint of a store."""
    with fo.open_store(name) as store:
        return store.layout.fingerprint


@pytest.fixture
def whole(here: Path) -> str:
    """Write two parts and the whole table, and return the fingerprint of its store."""
    Path("part-1.csv").write_text(FIRST)
    Path("part-2.csv").write_text(SECOND)
    Path("whole.csv").write_text(FIRST + SECOND.removeprefix(HEADER))
    assert main(["ingest", "whole.csv", "whole", *OPTIONS]) == 0
    return fingerprint("whole")


def test_several_files_are_one_table(whole: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Files one after the other, and a quoted pattern, give the store of the whole table, labels and identifiers included."""
    for words in (["part-1.csv", "part-2.csv"], ["part-*.csv"]):
        assert main(["ingest", *words, "s", *OPTIONS, "--replace"]) == 0
        assert "2 files were joined row by row, part-1.csv first" in capsys.readouterr().out
        assert fingerprint("s") == whole
        with fo.open_store("s") as store:
            assert list(store.ids or ()) == ["a1", "a2", "a3", "b1", "b2"]
            assert store.targets["y"].values.tolist() == [1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("key,town,x,when,y\n", "b.csv has 'town' as column 2 where part-1.csv has 'city'"),
        ("key,city,x,when,y,z\n", "b.csv has 'z' as column 6 where part-1.csv has no such column"),
        ("key,city,x,when\n", "b.csv has no such column as column 5 where part-1.csv has 'y'"),
    ],
)
def test_files_with_other_columns_are_refused(whole: str, header: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first difference is named."""
    width = header.count(",")
    Path("b.csv").write_text(header + "1" + ",1" * width + "\n")
    assert main(["ingest", "part-1.csv", "b.csv", "s", *OPTIONS]) == 2
    assert message in capsys.readouterr().err


def test_a_column_that_is_text_in_one_file_only(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers here and text there are neither silently labels nor numbers: the column is named, with the option that decides."""
    Path("a.csv").write_text("c,x\n1,2\n2,3\n")
    Path("b.csv").write_text("c,x\nlow,2\nhigh,3\n")
    assert main(["ingest", "a.csv", "b.csv", "s"]) == 2
    message = capsys.readouterr().err
    assert "column 'c' is mixed: 2 of 4 cells are numbers ('1', '2'), the others text ('high', 'low')" in message
    assert "--categorical c" in message
    assert main(["ingest", "a.csv", "b.csv", "s", "--categorical", "c"]) == 0
    assert list(columns("s")) == ["c=1", "c=2", "c=high", "c=low", "x"]


def test_problems_of_a_later_file_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines are counted per file, and the label is that of the file."""
    Path("a.csv").write_text("c,x\n1,2\n2,3\n")
    Path("b.csv").write_text("c,x\n1,2\n2,oops\n5,7\n5,bad\n")
    assert main(["ingest", "a.csv", "b.csv", "s"]) == 2
    message = capsys.readouterr().err
    assert "b.csv:3:2: column 'x' holds 'oops'" in message
    assert "b.csv:5:2: column 'x' holds 'bad'" in message


def test_an_archive_with_one_table(whole: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A zip of one file is that file; one of several names them; a damaged one is refused."""
    with zipfile.ZipFile("one.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write("whole.csv", "data/whole.csv")
        archive.writestr("__MACOSX/._whole.csv", "x")
    assert main(["ingest", "one.zip", "s", *OPTIONS]) == 0
    assert fingerprint("s") == whole
    with zipfile.ZipFile("two.zip", "w") as archive:
        archive.write("part-1.csv")
        archive.write("part-2.csv")
    assert main(["ingest", "two.zip", "z", *OPTIONS]) == 2
    assert "two.zip holds 2 files (part-1.csv, part-2.csv), expected one table" in capsys.readouterr().err
    Path("bad.zip").write_bytes(b"PK not really")
    assert main(["ingest", "bad.zip", "z"]) == 2
    assert "bad.zip is not a readable zip archive" in capsys.readouterr().err


def test_standard_input(whole: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A table may come through a pipe, as CSV or in the format that is named; an empty pipe is refused."""
    for text, extra in (
        (Path("whole.csv").read_text(), []),
        (Path("whole.csv").read_text().replace(",", "\t"), ["--format", "tsv"]),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main(["ingest", "-", "s", *OPTIONS, *extra, "--replace"]) == 0
        assert fingerprint("s") == whole
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert main(["ingest", "-", "z"]) == 2
    assert "standard input is empty" in capsys.readouterr().err


def test_a_format_in_place_of_the_extension(whole: str) -> None:
    """A file with another extension is read in the format that is named."""
    Path("whole.csv").rename("whole.dat")
    assert main(["ingest", "whole.dat", "s", *OPTIONS, "--format", "csv"]) == 0
    assert fingerprint("s") == whole


def test_sources_that_are_not_there(whole: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A pattern without files, a missing file, and a missing store are one sentence each."""
    for words, message in (
        (["q*.csv", "s"], "no file matches 'q*.csv'"),
        (["none.csv", "s"], "there is no file none.csv"),
        (["part-1.csv"], "name the source and then the store"),
    ):
        assert main(["ingest", *words]) == 2
        assert message in capsys.readouterr().err


def dirty_row(row: int) -> str:
    """Return a line of a table with a column of every kind."""
    lab = "<5" if row % 50 == 9 else str(row % 4)
    return f'{row + 1},n{row},"${row + 1},000",{lab},2024-02-{row % 28 + 1:02d},{int(row == 3)},{row % 3},{row % 7}'


DIRTY = "\n".join(["row,name,price,lab,when,flag,c,y", *map(dirty_row, range(250))]) + "\n"


def test_a_dry_run_lists_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    """Types, missing cells, labels, values; columns that are refused or look like something else, with options; nothing built."""
    Path("t.csv").write_text(DIRTY)
    assert main(["ingest", "--dry-run", "t.csv", "--target", "y"]) == 2
    printed = capsys.readouterr()
    for expected in (
        "column 'row' looks like a row number: --id row",
        "column 'name' looks like an identifier: all labels differ; --id name",
        "column 'when' holds text like dates: --date when",
        "column 'flag' is nearly constant: 99.60% of its values are 0",
        "nothing was built",
    ):
        assert expected in printed.out
    assert "column 'price': almost numeric: 250 of 250 cells are like '$1,000'" in printed.err
    assert "column 'lab': 5 cells are not numbers ('<5'): use --numeric lab" in printed.err
    assert "t.csv:11:4: column 'lab' holds '<5', expected a number" in printed.err
    names = [line.split()[0] for line in printed.out.splitlines()[:9]]
    assert names == ["column", "row", "name", "price", "lab", "when", "flag", "c", "y"]  # one line each in a pipe
    assert {entry.name for entry in Path().iterdir()} == {"t.csv"}
    words = ["--thousands", ",", "--numeric", "lab", "--date", "when", "--id", "name", "--categorical", "c", "--drop", "row"]
    assert main(["ingest", "--dry-run", "t.csv", "s", "--target", "y", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {column["name"]: column["type"] for column in found["columns"]} == {
        "row": "dropped",
        "name": "identifier",
        "price": "number",
        "lab": "number",
        "when": "date",
        "flag": "number",
        "c": "category",
        "y": "target",
    }
    assert found["problems"] == []
    assert not Path("s").exists()


def test_a_dry_run_in_python() -> None:
    """The report has the columns and the problems; no store is needed."""
    Path("t.csv").write_text("x,c,y\n1,a,5\n,b,6\n3,,7\n")
    report = fo.ingest("t.csv", dry_run=True, targets=["y"])
    assert [(column.name, column.type, column.missing, column.categories) for column in report.columns] == [
        ("x", "number", 1, None),
        ("c", "category", 1, 2),
        ("y", "target", 0, None),
    ]
    assert report.problems == ("2 columns with missing cells (x, c): use --missing mean|median|drop-feature",)
    assert fo.ingest("t.csv", dry_run=True, targets=["y"], missing="mean").problems == ()


def test_options_may_stand_anywhere(whole: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Options between the sources and the store change nothing; an option that is not known is still refused."""
    assert main(["ingest", "part-1.csv", *OPTIONS[:2], "part-2.csv", *OPTIONS[2:], "s"]) == 0
    assert fingerprint("s") == whole
    with pytest.raises(SystemExit):
        main(["ingest", "part-1.csv", "--colour", "red", "z"])
    assert "--colour" in capsys.readouterr().err


def test_a_schema_file_repeats_an_ingest(capsys: pytest.CaptureFixture[str]) -> None:
    """The file of a dry run gives the same store as the options it was made with; labels are fixed for later tables."""
    Path("t.csv").write_text(DIRTY)
    words = ["--thousands", ",", "--numeric", "lab", "--date", "when", "--id", "name", "--categorical", "c", "--drop", "row"]
    words += ["--target", "y", "--group", "both=price,flag", "--na-values", "zzz"]
    assert main(["ingest", "--dry-run", "t.csv", *words, "--schema-out", "cols.yaml"]) == 0
    assert main(["ingest", "t.csv", "a", *words]) == 0
    assert main(["ingest", "t.csv", "b", "--schema", "cols.yaml"]) == 0
    assert fingerprint("a") == fingerprint("b")
    with fo.open_store("a") as first, fo.open_store("b") as second:
        assert first.encoding == second.encoding
        assert list(first.ids or ()) == list(second.ids or ())
        assert list(first.names) == list(second.names) == ["both", "lab", "when", "c"]
        assert list(first.targets) == list(second.targets)
    Path("few.csv").write_text("\n".join(DIRTY.splitlines()[:3]) + "\n")
    assert main(["ingest", "few.csv", "few", "--schema", "cols.yaml"]) == 0
    assert list(columns("few")) == list(columns("a"))
    Path("new.csv").write_text(DIRTY.replace(",2,5\n", ",9,5\n"))
    capsys.readouterr()
    assert main(["ingest", "new.csv", "new", "--schema", "cols.yaml"]) == 2
    assert "column 'c' holds '9', expected a label of the schema" in capsys.readouterr().err


def test_a_schema_file_repeats_the_treatment_of_missing_cells(capsys: pytest.CaptureFixture[str]) -> None:
    """Policy and rows without a target come from the file; an option wins over it."""
    Path("t.csv").write_text("x,c,y\n1,a,1\n,b,2\n3,,4\n9,a,\n")
    words = ["--target", "y", "--missing", "mean", "--drop-missing-target"]
    assert main(["ingest", "t.csv", "a", *words, "--schema-out", "cols.yaml"]) == 0
    assert "missing: mean\ndrop_missing_target: true\n" in Path("cols.yaml").read_text()
    assert main(["ingest", "t.csv", "b", "--schema", "cols.yaml"]) == 0
    assert fingerprint("a") == fingerprint("b")
    assert columns("b")["x"].tolist() == [1, 2, 3]
    assert main(["ingest", "t.csv", "d", "--schema", "cols.yaml", "--missing", "error"]) == 2
    assert "is missing" in capsys.readouterr().err
    assert main(["ingest", "t.csv", "c", "--schema", "cols.yaml", "--missing", "drop-feature", "--drop", "c"]) == 2
    assert "every feature has a missing value" in capsys.readouterr().err


def test_a_dry_run_counts_the_category_of_missing_cells() -> None:
    """It says as many indicator columns as the store gets; classes of a target are not counted so."""
    Path("t.csv").write_text("x,c,y\n1,a,u\n2,b,v\n3,,\n")
    options: dict[str, Any] = {"targets": ["y"], "missing": "mean", "drop_missing_target": True}
    dry, built = fo.ingest("t.csv", dry_run=True, **options), fo.ingest("t.csv", "s", **options)
    assert dry.columns == built.columns
    assert [(column.categories, column.assumed) for column in dry.columns[1:]] == [(3, "one-hot"), (2, "2 classes")]
    assert list(columns("s")) == ["x", "c=a", "c=b", "c=(missing)"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("format: 1\nmissing: average\ncolumns: {a: number, b: number}", "missing is 'average', expected one of error, mean"),
        ("format: 1\ndrop_missing_target: 1\ncolumns: {a: number, b: number}", "is 1, expected true or false"),
        ("format: 1\ncolumns: {a: number, b: nomber}", "column 'b' has the type 'nomber', expected one of number, category"),
        ("format: 1\ncolumns: {a: number, b: number, z: number}", "describes the column 'z', which t.csv does not have"),
        ("format: 1\ncolumns: {a: number}", "t.csv has the column 'b', which cols.yaml does not describe"),
        ("format: 1\ncolumns: {a: {type: date, fmt: x}, b: number}", "column 'a' has the unknown entry 'fmt'"),
        ("format: 1\ncolour: red\ncolumns: {}", "unknown entry 'colour'"),
        ("format: 1\nthousands: 3\ncolumns: {a: number, b: number}", "thousands is 3, expected text"),
        ("format: 1\ncolumns: {a: identifier, b: identifier}", "are both identifiers"),
        ("[1, 2]", "is no schema of columns"),
        ("{", "is not readable YAML"),
    ],
)
def test_mistakes_in_a_schema_file(schema: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is one sentence, and nothing is built."""
    Path("t.csv").write_text("a,b\n1,2\n3,4\n")
    Path("cols.yaml").write_text(schema)
    assert main(["ingest", "t.csv", "s", "--schema", "cols.yaml"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not Path("s").exists()


def test_info_lists_the_columns_of_the_table(whole: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Type, missing cells, labels and values of every column, also of targets, identifiers and dropped ones; a pattern chooses."""
    assert main(["ingest", "part-*.csv", "s", *OPTIONS, "--drop", "x"]) == 0
    capsys.readouterr()
    assert main(["info", "s", "--columns", "--json"]) == 0
    found = {column["name"]: column for column in json.loads(capsys.readouterr().out)["columns"]}
    assert {name: column["type"] for name, column in found.items()} == {
        "city": "category",
        "when": "date",
        "y": "target",
        "key": "identifier",
        "x": "dropped",
    }
    assert (found["city"]["missing"], found["city"]["categories"]) == (1, 4)
    assert found["when"]["examples"] == ["2024-01-01", "2024-01-02", "2024-01-03"]
    assert found["key"]["examples"] == ["a1", "a2", "a3"]
    assert main(["info", "s", "--columns", "w*"]) == 0
    printed = capsys.readouterr().out
    assert "when" in printed
    assert "city" not in printed
    assert main(["info", "s", "--columns", "q*"]) == 2
    assert "no column of s matches 'q*'" in capsys.readouterr().err


def test_nothing_is_cut_silently(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a wide table info names the first columns and says how many there are; --columns --json lists all."""
    np.save("t.npy", np.random.default_rng(0).standard_normal((4, 777)))
    assert main(["ingest", "t.npy", "s"]) == 0
    capsys.readouterr()
    assert main(["info", "s", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["names_shown"], len(found["features"]), found["n_features"]) == (20, 20, 777)
    assert main(["info", "s"]) == 0
    assert "769 more" in " ".join(capsys.readouterr().out.split())
    assert main(["info", "s", "--columns"]) == 0
    assert "and 577 more columns" in capsys.readouterr().out
    assert main(["info", "s", "--columns", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["columns"]) == len(found["features"]) == found["names_shown"] == 777
    assert main(["info", "s", "--columns", "f7*", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (len(found["columns"]), len(found["features"]), found["names_shown"]) == (88, 20, 20)
    assert main(["info", "s", "--columns", "f" * 1001]) == 2
    assert "the pattern of columns has 1001 characters, at most 1000 are possible" in capsys.readouterr().err


@pytest.mark.parametrize(
    "table",
    [
        {"left_out": 5, "missing": []},
        {"left_out": [["a", "identifier"]]},
        {"left_out": [["a", "identifier", 3]]},
        {"missing": {"f0": "many"}},
        {"advice": {"f0": {}}},
        {"assumed": [1]},
        "text",
    ],
)
def test_a_strange_report_of_a_table_is_ignored(table: object) -> None:
    """What came with an upload is checked before it is shown."""
    store = fo.create_store("dram:strange", np.eye(4), np.arange(4.0), replace=True)
    store.provenance = {"table": table}  # type: ignore[attr-defined]
    assert [column["type"] for column in describe(store, "*")["columns"]] == ["number"] * 4 + ["target"]
    store.close()


def test_a_very_wide_ingest_reports_what_is_notable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a limit plain numbers are counted, not listed; missing cells, constants and targets are still named."""
    monkeypatch.setattr("storage_backends.build.profile.MOST_REPORTED", 10)
    values = np.random.default_rng(0).standard_normal((30, 50))
    values[:, 7] = 4
    values[3, 20] = np.nan
    np.save("t.npy", values)
    report = fo.ingest("t.npy", "s", targets=["f40"], missing="mean")
    assert report.types == {"number": 48, "constant": 1, "target": 1}
    assert [column.name for column in report.columns] == ["f7", "f20", "f40"]
    assert report.imputed == 1


def test_typed_text_is_named_not_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers and dates that a typed file holds as text stay labels, and are named with the option that reads them."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = {"n": ["1", "2", "2"], "d": ["2024-01-01", "2024-01-02", None], "x": [1.0, 2.0, 3.0]}
    parquet.write_table(pyarrow.table(table), "t.parquet")
    assert main(["ingest", "t.parquet", "s", "--missing", "mean"]) == 0
    printed = capsys.readouterr().out
    assert "column 'n' holds text like numbers: --numeric n" in printed
    assert "column 'd' holds text like dates: --date d" in printed
    assert main(["ingest", "t.parquet", "s", "--missing", "mean", "--numeric", "n", "--date", "d", "--replace"]) == 0
    found = columns("s")
    assert found["n"].tolist() == [1, 2, 2]
    assert found["d"][:2].tolist() == [19723, 19724]
    with pytest.raises(DataError, match="column 'd' holds '2024-01-01', expected a number"):
        fo.ingest("t.parquet", "z", numeric=["d"], missing="mean")
