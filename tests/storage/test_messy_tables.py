"""Messy tables, as a user types them: what a cell means, what a column is, and what is said about both."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.stores.encoding import ColumnEncoding, TableEncoding
from storage_backends.build.new_rows import read_new_rows
from storage_backends.build.profile import Profile
from storage_backends.readers import delimited, open_reader, records
from storage_backends.readers.base import Chunk, ReaderOptions
from storage_backends.readers.cells import CellRules, as_days, shape_of
from storage_backends.readers.text import MISSING_TOKENS
from tests.storage.reading import read_all


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, in a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def columns(name: str) -> dict[str, np.ndarray]:
    """Return the columns of a store by name."""
    with fo.open_store(name) as store:
        return dict(zip(store.column_names, np.array(store.matrix), strict=True))


TOKENS = [
    "",
    "NA",
    "N/A",
    "n/a",
    "NaN",
    "nan",
    "null",
    "NULL",
    "Null",
    "None",
    "none",
    "<NA>",
    "<na>",
    "#N/A",
    "#NA",
    "?",
    ".",
    "-",
    "--",
]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("kind", ["number", "text", "target"])
def test_a_missing_cell_is_called_missing(token: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every token is missing in numbers, text and targets alike; it is refused with that word and imputed on request."""
    cells = {"number": ["1", "2", token], "text": ["a", "b", token], "target": ["3", "4", token]}[kind]
    Path("t.csv").write_text("x,c,y\n" + "".join(f"{row},{cell},1\n" for row, cell in enumerate(cells)))
    target = ["--target", "c"] if kind == "target" else []
    assert main(["ingest", "t.csv", "s", *target]) == 2
    message = capsys.readouterr().err
    assert "row 3 of" in message
    assert "'c' is missing" in message
    assert not Path("s").exists()
    if kind == "target":
        assert main(["ingest", "t.csv", "s", *target, "--drop-missing-target"]) == 0
        assert "1 observation with a missing target was left out" in capsys.readouterr().out
        assert columns("s")["x"].tolist() == [0, 1]
    else:
        assert main(["ingest", "t.csv", "s", "--missing", "mean"]) == 0
        assert "1 missing cell imputed" in capsys.readouterr().out


def test_more_missing_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """--na-values adds tokens, for all columns."""
    Path("t.csv").write_text("x,c\n1,a\n-999,unknown\n3,b\n")
    assert main(["ingest", "t.csv", "s", "--missing", "mean", "--na-values=-999,unknown"]) == 0
    found = columns("s")
    assert found["x"].tolist() == [1, 2, 3]
    assert found["c=(missing)"].tolist() == [0, 1, 0]
    with fo.open_store("s") as store:
        assert store.encoding is not None
        assert store.encoding.na_values == ("-999", "unknown")


ALMOST = {
    "money": (["$1,234", "$20,000.50", "-$3,100"], "--thousands ,", [1234, 20000.5, -3100]),
    "euros": (["1,234 \u20ac", "5 \u20ac", "12,000 \u20ac"], "--thousands ,", [1234, 5, 12000]),
    "grouped": (["1,234", "5,678", "9"], "--thousands ,", [1234, 5678, 9]),
    "apostrophe": (["1'234", "5'678", "10'000"], '--thousands "\'"', [1234, 5678, 10000]),
    "comma": (["1,5", "2,25", "3,0"], "--decimal ,", [1.5, 2.25, 3]),
    "points": (["1.234,5", "2.000,25", "3,5"], "--thousands . --decimal ,", [1234.5, 2000.25, 3.5]),
    "both": (["1 234,5", "2 000,25", "3,5"], "--thousands ' ' --decimal ,", [1234.5, 2000.25, 3.5]),
    "percent": (["12%", "8.5%", "100%"], "--numeric c", [12, 8.5, 100]),
    "comma percent": (["12,5%", "8%", "100%"], "--decimal , --numeric c", [12.5, 8, 100]),
    "percent bound": (["<5%", "7%", "8.5%"], "--numeric c", [5, 7, 8.5]),
    "negative": (["(558)", "(1,234.5)", "($7)"], "--numeric c", [-558, -1234.5, -7]),
    "bound": (["<5", "7", "8.5"], "--numeric c", [5, 7, 8.5]),
    "unit": (["3.5 kg", "4 kg", "10.25 kg"], "--numeric c", [3.5, 4, 10.25]),
}


@pytest.mark.parametrize("case", ALMOST)
def test_a_column_that_is_almost_numeric_is_named(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused with examples and options; the options named read the numbers, or keep the labels."""
    cells, options, numbers = ALMOST[case]
    Path("t.csv").write_text("x;c\n" + "".join(f"{row};{cell}\n" for row, cell in enumerate(cells)))
    assert main(["ingest", "t.csv", "s"]) == 2
    message = capsys.readouterr().err
    assert "column 'c'" in message
    assert repr(cells[0]) in message or cells[0] in message
    assert "--categorical c" in message
    assert f"use {options}" in message
    assert not Path("s").exists()
    assert main(["ingest", "t.csv", "s", "--dtype", "float64", *shlex.split(options)]) == 0
    np.testing.assert_allclose(columns("s")["c"], numbers)
    assert main(["ingest", "t.csv", "labels", "--categorical", "c"]) == 0
    assert sorted(columns("labels")) == sorted(["x", *(f"c={cell}" for cell in cells)])


def test_a_few_texts_among_numbers_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """The message has the place of the first cell, the number of others, examples and options; each option works."""
    cells = [str(row) for row in range(1000)]
    cells[40], cells[500], cells[900] = "broken", "broken", "lost"
    Path("t.csv").write_text("x,c\n" + "".join(f"{row % 7},{cell}\n" for row, cell in enumerate(cells)))
    assert main(["ingest", "t.csv", "s"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        "fastomp: t.csv: row 41 (line 42), column 'c' holds 'broken', expected a number, and 2 more of its cells do not fit "
        "('broken', 'lost'): correct them or use --na-values broken,lost --missing mean or --categorical c or --drop c"
    )
    assert [line.strip() for line in lines[1:]] == [
        "t.csv:42:2: column 'c' holds 'broken', expected a number",
        "t.csv:502:2: column 'c' holds 'broken', expected a number",
        "t.csv:902:2: column 'c' holds 'lost', expected a number",
    ]
    assert main(["ingest", "t.csv", "s", "--na-values", "broken,lost", "--missing", "mean"]) == 0


def test_texts_among_quantities_are_named_together(capsys: pytest.CaptureFixture[str]) -> None:
    """One remedy covers the quantities and up to three different texts, and works as typed; more texts are not listed."""
    for texts, remedy in ((["n.d.", "lost"], "--numeric c --na-values lost,n.d. --missing mean"), (list("pqrs"), "--numeric c (")):
        cells = [f"{row}%" for row in range(50)] + texts
        Path("t.csv").write_text("x,c\n" + "".join(f"{row},{cell}\n" for row, cell in enumerate(cells)))
        assert main(["ingest", "t.csv", "s"]) == 2
        message = capsys.readouterr().err
        assert f"use {remedy}" in message
        assert ("--na-values for the texts" in message) == (len(texts) > 3)
    Path("t.csv").write_text("x,c\n1,5%\n2,6%\n3,7%\n4,-x\n" + "5,8%\n" * 20)
    assert main(["ingest", "t.csv", "s"]) == 2
    words = capsys.readouterr().err.partition("use ")[2].partition(" (")[0]
    assert words == "--numeric c --na-values=-x --missing mean"
    assert main(["ingest", "t.csv", "s", *shlex.split(words)]) == 0


def test_numbers_that_do_not_fit_the_separators_are_no_classes(capsys: pytest.CaptureFixture[str]) -> None:
    """With a point between thousands, 0.3 is neither a number nor a class: the cell is named, in a dry run too."""
    Path("t.csv").write_text("x;y\n1;0.3\n2;0.5\n4;0.3\n")
    words = ["--target", "y", "--decimal", ","]
    for more, expected in ((["--thousands", "."], "whose groups have three digits"), ([], "as --decimal , reads them")):
        assert main(["ingest", "t.csv", "s", *words, *more]) == 2
        message = capsys.readouterr().err
        assert "column 'y' holds '0.3', expected numbers as" in message
        assert expected in message
        report = fo.ingest("t.csv", dry_run=True, targets=["y"], decimal=",", thousands=more[1] if more else None)
        assert "holds '0.3'" in report.problems[0]
    assert main(["ingest", "t.csv", "s", *words, "--categorical", "y"]) == 0


@pytest.mark.parametrize(
    ("cells", "option"),
    [
        (["31.12.2023", "01.02.2024"], "--date when:%d.%m.%Y"),
        (["31/12/2023", "01/02/2024"], "--date when:%d/%m/%Y"),
        (["12/31/2023", "02/01/2024"], "--date when:%m/%d/%Y"),
        (["2023/12/31", "2024/02/01"], "--date when:%Y/%m/%d"),
        (["2023-12-31", "2024-02-01"], "--date when"),
        (["01/02/2024", "03/04/2024"], "--date when:FORMAT (such as %d/%m/%Y or %m/%d/%Y)"),
    ],
)
def test_the_format_of_dates_is_recognised(cells: list[str], option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The note about text like dates names the option with the format, which reads them; an uncertain one is not chosen."""
    Path("t.csv").write_text("x,when\n" + "".join(f"{row},{cell}\n" for row, cell in enumerate(cells * 2)))
    assert main(["ingest", "t.csv", "s"]) == 0
    assert f"column 'when' holds text like dates: {option} reads it" in " ".join(capsys.readouterr().out.split())
    if "FORMAT" not in option:
        assert main(["ingest", "t.csv", "days", "--dtype", "float64", *shlex.split(option)]) == 0
        assert columns("days")["when"].tolist() == [19722, 19754] * 2


def test_labels_that_only_look_like_quantities_stay_labels(capsys: pytest.CaptureFixture[str]) -> None:
    """Classes of travellers, of incomes and of ages are categories, not numbers."""
    Path("t.csv").write_text("x,class,drive,age,income\n1,1st,4WD,18-25,<=50K\n2,2nd,2WD,26-40,>50K\n3,3rd,4WD,>40,>50K\n")
    assert main(["ingest", "t.csv", "s", "--target", "income"]) == 0
    assert "class=2nd" in columns("s")
    with fo.open_store("s") as store:
        assert store.targets["income"].classes == ("<=50K", ">50K")


def test_every_problem_is_listed_up_to_a_hundred(capsys: pytest.CaptureFixture[str]) -> None:
    """One attempt names all problems with line and column: texts, ragged lines, missing cells; the rest are counted."""
    rows = ["1,2,3"] * 400
    rows[3], rows[5], rows[7] = "1,x,3", "1,2", "1,,3"
    for row in range(100, 350):
        rows[row] = "bad,2,3"
    Path("t.csv").write_text("a,b,c\n" + "\n".join(rows) + "\n")
    assert main(["ingest", "t.csv", "s"]) == 2
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == 102
    assert lines[1] == "t.csv:5:2: column 'b' holds 'x', expected a number"
    assert lines[2] == "t.csv:7: 2 cells, expected 3 as in the first line"
    assert "t.csv:9:2: column 'b' is missing" in lines
    assert lines[-1].startswith("and 1")
    with pytest.raises(DataError) as caught:
        fo.ingest("t.csv", "s")
    assert list(caught.value.problems) == lines[1:]


def test_missing_cells_do_not_hide_other_problems(capsys: pytest.CaptureFixture[str]) -> None:
    """Of many missing cells of a column a few are listed and all are counted, so that the list shows the rest."""
    rows = [f"{'' if row % 2 else row},{row if row != 300 else 'x'}" for row in range(400)]
    Path("t.csv").write_text("a,b\n" + "\n".join(rows) + "\n")
    assert main(["ingest", "t.csv", "s"]) == 2
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == 8
    assert "'b' holds 'x', expected a number" in lines[0]
    assert lines[1] == "t.csv:3:1: column 'a' is missing"
    assert lines[6:] == [
        "t.csv:302:2: column 'b' holds 'x', expected a number",
        "column 'a' has 200 missing cells in all: see --missing",
    ]


def test_several_columns_are_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns that are almost numeric are all named by one attempt, together with single cells."""
    Path("t.csv").write_text("a;b;c\n" + "".join(f"{row}%;{row} kg;{row if row != 4 else 'x'}\n" for row in range(1, 30)))
    assert main(["ingest", "t.csv", "s"]) == 2
    message = capsys.readouterr().err
    for expected in ("column 'a' is almost numeric", "column 'b' is almost numeric", "t.csv:5:3: column 'c' holds 'x'"):
        assert expected in message


def test_codes_become_categories(capsys: pytest.CaptureFixture[str]) -> None:
    """Whole numbers that are codes are categories on request, from text and from typed files."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    Path("t.csv").write_text("zip,x\n0101,1\n0102,2\n0101,3\n")
    parquet.write_table(pyarrow.table({"zip": [101, 102, None], "x": [1.0, 2.0, 3.0]}), "t.parquet")
    np.savez("t.npz", X=np.array([[101.0, 1], [102, 2], [np.nan, 3]]), names=np.array(["zip", "x"]))
    assert main(["ingest", "t.csv", "a", "--categorical", "zip"]) == 0
    assert list(columns("a")) == ["zip=0101", "zip=0102", "x"]
    for source in ("t.parquet", "t.npz"):
        assert main(["ingest", source, "b", "--categorical", "z*", "--missing", "mean", "--replace"]) == 0
        found = columns("b")
        assert list(found) == ["zip=101", "zip=102", "zip=(missing)", "x"]
        assert found["zip=102"].tolist() == [0, 1, 0]
        with fo.open_store("b") as store:
            assert store.encoding is not None
            assert store.encoding.columns["zip"].labels == ("101", "102", "(missing)")


def test_dates_become_days(capsys: pytest.CaptureFixture[str]) -> None:
    """ISO dates and moments by default, any format after a colon, text of typed files too; another cell is a problem."""
    Path("t.csv").write_text("a,b:c,x\n2024-03-01,31.12.1999,1\n1970-01-02T12:00:00Z,01.01.2000,2\n1969-12-31,?,4\n")
    assert main(["ingest", "t.csv", "s", "--date", "a", "--date", "b:c:%d.%m.%Y", "--missing", "median", "--dtype", "float64"]) == 0
    found = columns("s")
    epoch = datetime.date(1970, 1, 1)
    assert found["a"].tolist() == [(datetime.date(2024, 3, 1) - epoch).days, 1.5, -1]
    assert found["b:c"].tolist() == [10956, 10957, 10956.5]
    with fo.open_store("s") as store:
        assert store.encoding is not None
        assert store.encoding.columns["a"].kind == "date"
    assert main(["info", "s", "--columns", "a"]) == 0
    assert "2024-03-01" in capsys.readouterr().out
    assert main(["ingest", "t.csv", "z", "--date", "a", "--date", "b:c", "--missing", "mean"]) == 2
    message = capsys.readouterr().err
    assert "column 'b:c' holds '31.12.1999', expected a date like 2024-12-31" in message
    assert "--date b:c:%d.%m.%Y" in message
    assert main(["ingest", "t.csv", "z", "--date", "b:c", "--numeric", "b:c"]) == 2
    assert "is named by --numeric and by --date" in capsys.readouterr().err


def test_a_bad_date_of_new_rows_is_one_sentence() -> None:
    """It names no option of an ingest, which the prediction of new rows does not have."""
    Path("new.csv").write_text("when\n2024-01-01\n0001-01-01T00:00:00+05:00\n")
    encoding = TableEncoding({"when": ColumnEncoding("date")})
    with pytest.raises(
        DataError, match=r"row 2 \(line 3\), column 'when' holds .*: correct the cell, .* or remove the row$"
    ) as caught:
        read_new_rows("new.csv", ["when"], encoding)
    assert "--" not in str(caught.value)


def test_text_in_another_encoding(capsys: pytest.CaptureFixture[str]) -> None:
    """A byte that is not UTF-8 is refused with the option that reads it; the labels come out right, from UTF-16 too."""
    text = "stadt,x\nZ\u00fcrich,1\nGen\u00e8ve,2\nZ\u00fcrich,4\n"
    Path("t.csv").write_bytes(text.encode("latin-1"))
    assert main(["ingest", "t.csv", "s"]) == 2
    assert (
        "line 2 holds the byte 0xfc, which is not UTF-8: name the encoding of the file with --encoding" in capsys.readouterr().err
    )
    for encoding in ("latin-1", "utf-16"):
        Path("t.csv").write_bytes(text.encode(encoding))
        assert main(["ingest", "t.csv", "s", "--encoding", encoding, "--replace"]) == 0
        assert "stadt=Z\u00fcrich" in columns("s")
    assert main(["ingest", "t.csv", "z", "--encoding", "klingon"]) == 2
    assert "unknown encoding 'klingon'" in capsys.readouterr().err


def test_indicators_of_the_source_are_one_feature(capsys: pytest.CaptureFixture[str]) -> None:
    """--group makes one feature of columns anywhere in the table; a mistake in it is one sentence."""
    Path("t.csv").write_text("c_red,x,c_blue,z,note\n1,2,0,3,a\n0,4,1,5,b\n0,6,1,8,a\n")
    assert main(["ingest", "t.csv", "s", "--group", "colour=c_*", "--group", "rest=z,note"]) == 0
    with fo.open_store("s") as store:
        assert list(store.names) == ["colour", "x", "rest"]
        assert list(store.column_names) == ["c_red", "c_blue", "x", "z", "note=a", "note=b"]
        np.testing.assert_array_equal(store.matrix, [[1, 0, 0], [0, 1, 1], [2, 4, 6], [3, 5, 8], [1, 0, 1], [0, 1, 0]])
    mistakes = {
        "colour": "names no columns",
        "a=q*": "no column of t.csv matches 'q*'",
        "a=x": "which is a target, an identifier or dropped",
        "a=z": "group 'a' has the one column 'z': name two or more, or leave it out",
    }
    for group, message in mistakes.items():
        assert main(["ingest", "t.csv", "z", "--group", group, "--target", "x"]) == 2
        assert message in capsys.readouterr().err
    assert main(["ingest", "t.csv", "z", "--group", "a=x", "--group", "b=x,z"]) == 2
    assert "is in the groups 'a' and 'b'" in capsys.readouterr().err


def test_identifiers_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """--id keeps the cells as they are written, also repeated ones, without the rows that are left out; info says so."""
    Path("t.csv").write_text("key,x,y\n007,1,2\n008,2,\n007,3,4\na b,5,1\n")
    assert main(["ingest", "t.csv", "s", "--id", "key", "--target", "y", "--drop-missing-target"]) == 0
    assert "'key' is kept as identifiers of the observations; 1 of them repeat" in capsys.readouterr().out
    with fo.open_store("s") as store:
        assert list(store.ids or ()) == ["007", "007", "a b"]
        assert list(store.names) == ["x"]
    assert main(["info", "s"]) == 0
    assert "column key: 007, 007, a b, ... (1 repeated)" in capsys.readouterr().out
    np.savez("t.npz", X=np.array([[1.5, 7], [2, 8]]))
    assert fo.ingest("t.npz", "n", id_column="f0").n_features == 1
    with fo.open_store("n") as store:
        assert list(store.ids or ()) == ["1.5", "2"]


def test_the_next_command_works_when_typed(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line of an ingest runs in a shell as it is, with a space and with classes; without target it names the option."""
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'yes' if a + 0.3 * b > 0 else 'no'}" for a, b in rng.standard_normal((60, 2))]
    Path("t.csv").write_text("a,b,y\n" + "\n".join(rows) + "\n")
    assert main(["ingest", "t.csv", "my store", "--target", "y"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("next: fastomp select 'my store' ")
    command = line.removeprefix("next: fastomp ")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m fastomp_nvm {command}",
        shell=True,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert main(["ingest", "t.csv", "other"]) == 0
    assert "add --target COLUMN" in capsys.readouterr().out.splitlines()[-1]


def test_an_ingest_says_what_it_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """Counts by type, imputed cells, dropped and constant columns, and columns that look like something else."""
    rows = range(400)
    days = [f"2024-01-{row % 28 + 1:02d}" for row in rows]
    cells = [f"{row + 1},{'Bern' if row % 3 else 'Zug'},{days[row]},{int(row == 9)},7,{row % 11 or ''},q,{row % 5}" for row in rows]
    lines = ["row,city,when,flag,same,x,junk,y,rare", *(f"{line},{'b' if row == 5 else 'a'}" for row, line in enumerate(cells))]
    Path("t.csv").write_text("\n".join(lines))
    assert main(["ingest", "t.csv", "s", "--target", "y", "--drop", "junk", "--missing", "mean"]) == 0
    printed = capsys.readouterr().out
    assert "columns: 3 numbers, 3 categories, 1 constant, 1 dropped, 1 target" in printed
    assert "37 missing cells imputed" in printed
    assert "column 'row' looks like a row number: --id row keeps it" in printed
    assert "column 'when' holds text like dates: --date when" in printed
    assert "column 'flag' is nearly constant: 99.75% of its values are 0; --drop flag" in printed
    assert "column 'rare' is nearly constant: 99.75% of its labels are 'a'; --drop rare" in printed
    assert "1 constant column, never selected: same" in printed


MESSY = "id,a,b,c,d\n" + "".join(
    f'k{row},{row},"{"NA" if row % 7 == 0 else row / 4}", {"red" if row % 3 else "?"} ,"{row % 5},{row % 9}"\n'
    for row in range(700)
)


@pytest.mark.parametrize("text", [MESSY, MESSY.replace("\n", "\r\n"), MESSY.replace('"NA"', "n/a")])
def test_messy_files_read_the_same_with_and_without_pyarrow(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parsers give the same table for quotes, blanks, tokens, decimal commas and labels."""
    pytest.importorskip("pyarrow")
    Path("t.csv").write_bytes(text.encode())
    rules = CellRules.of(["13"], "", ",")
    monkeypatch.setattr(records, "_ARROW_ROWS", 1)
    fast = read_all(Path("t.csv"), [1, 3, 4], rules=rules)
    with open_reader("t.csv", ReaderOptions(rules=rules)) as reader:
        keys = reader.identifiers(0)
    monkeypatch.setattr(records, "_arrow", lambda: None)
    np.testing.assert_array_equal(read_all(Path("t.csv"), [1, 3, 4], rules=rules), fast)
    with open_reader("t.csv", ReaderOptions(rules=rules)) as reader:
        assert reader.identifiers(0) == keys == [f"k{row}" for row in range(700)]
    assert np.isnan(fast[13, 0])
    assert fast[7, 2] == 2.7


@settings(max_examples=100, deadline=None)
@given(value=st.integers(-(10**12), 10**12), cents=st.integers(0, 99))
def test_grouped_numbers_read_back(value: int, cents: int) -> None:
    """Whatever Python groups with a separator is read back, with and without a currency sign; nothing else is accepted."""
    text = f"{value:,}.{cents:02d}"
    expected = float(f"{value}.{cents:02d}")
    english = CellRules(thousands=",")
    assert english.number(text) == expected
    assert english.number(text.replace("-", "-$") if value < 0 else f"${text}") == expected
    swapped = text.translate({ord(","): ".", ord("."): ","})
    assert CellRules(thousands=".", decimal=",").number(swapped) == expected
    assert english.number("1,23") is None
    assert english.number("1,2345") is None
    assert shape_of(text, CellRules()) in ("number", "grouped")


def test_days_and_tokens() -> None:
    """Days count from 1970 in UTC; tokens are words in any case and marks, never inside a longer cell."""
    assert as_days("1970-01-02T00:00:00+01:00") == pytest.approx(23 / 24)
    assert as_days("tomorrow") is None
    assert as_days("0001-01-01T00:00:00+05:00") is None
    with pytest.raises(InputError, match="'%y%y' names a part of the date twice"):
        as_days("2121", "%y%y")
    assert {"nUlL", "N/a", "--", "."} <= MISSING_TOKENS
    assert not {"-1", "..", "nano", "---"} & MISSING_TOKENS


def test_options_that_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """A column that is not there, separators that clash, and a date made of numbers are one sentence each."""
    Path("t.csv").write_text("alpha,b\n1,2\n3,4\n")
    np.save("t.npy", np.ones((3, 2)))
    mistakes = [
        (["t.csv", "--categorical", "alpah"], "--categorical: no column of t.csv matches 'alpah': did you mean 'alpha'?"),
        (["t.csv", "--thousands", ",", "--decimal", ","], "--thousands and --decimal are both ','"),
        (["t.csv", "--thousands", "ab"], "expected one character"),
        (["t.npy", "--date", "f0"], "column 'f0' holds numbers, expected text for --date"),
        (["t.csv", "--drop-missing-target"], "needs a target"),
        (["t.csv", "--categorical", "b", "--numeric", "b"], "is named by --categorical and by --numeric"),
    ]
    for words, message in mistakes:
        assert main(["ingest", words[0], "s", *words[1:]]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1
        assert not Path("s").exists()


def test_python_and_the_shell_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """``fo.ingest`` takes the options of the command and returns its report; an unknown one is refused."""
    Path("t.csv").write_text('p,c,y\n"$1,000",1,2\n"$2,500",2,4\n"$3,000",1,8\n')
    report = fo.ingest(Path("t.csv"), "a", targets=["y"], thousands=",", categorical=["c"])
    assert report.types == {"number": 1, "category": 1, "target": 1}
    assert main(["ingest", "t.csv", "b", "--target", "y", "--thousands", ",", "--categorical", "c", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == report.fingerprint
    with pytest.raises(TypeError, match="colour"):
        fo.ingest("t.csv", "z", colour="red")  # type: ignore[call-arg]
    with pytest.raises(InputError, match="no place for the store"):
        fo.ingest("t.csv")


@pytest.mark.parametrize("rows", [3, 600])  # read by two parsers
@pytest.mark.parametrize("cell", ["-999", " -999", "-999.0", '"-999"'])
def test_a_number_that_means_missing(cell: str, rows: int) -> None:
    """``--na-values -999,NOPE`` begins as an option does, and means the number, however it is written, in files and tables."""
    pandas = pytest.importorskip("pandas")
    lines = [f"{cell if row % 3 == 0 else row + 1.0},{'NOPE' if row % 3 == 1 else row},{row}" for row in range(rows)]
    Path("t.csv").write_text("a,b,y\n" + "\n".join(lines) + "\n")
    options = ["--na-values", "-999,NOPE", "--missing", "mean", "--target", "y", "--dtype", "float64"]
    assert main(["ingest", "t.csv", "s", *options]) == 0
    number = np.arange(rows)
    gaps = number % 3 == 0
    expected = np.where(gaps, (number + 1.0)[~gaps].mean(), number + 1.0)
    np.testing.assert_allclose(columns("s")["a"], expected)
    pandas.DataFrame({"a": np.where(gaps, -999.0, number + 1.0), "y": number}).to_parquet("t.parquet")
    assert main(["ingest", "t.parquet", "p", *options]) == 0
    np.testing.assert_allclose(columns("p")["a"], expected)
    model = fo.select("s", k=2, objective="linear")
    table = pandas.DataFrame({"a": [-999.0, 2.0], "b": [1.0, 1.0]})
    table.to_csv("new.csv", index=False)
    np.testing.assert_allclose(model.predict(table), model.predict("new.csv"))
    np.testing.assert_allclose(model.predict(table.replace(-999.0, np.nan)), model.predict(table))


def test_a_nearly_constant_column_that_begins_otherwise() -> None:
    """The usual value is found although the first chunk of a long table holds exceptions alone."""
    profile = Profile(2, 10_000)
    for first in range(0, 10_000, 40):
        late = np.full(40, 7.0 if first == 0 else 0.0)
        profile.add(Chunk(first, 0, np.column_stack((late, np.arange(40) % 2.0))))
    assert profile.usual(0) == 0.0
    assert profile.usual_share(0) == pytest.approx(1 - 40 / 10_000)
    assert profile.usual_share(1) == 0.0


def test_a_long_record_is_read_by_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pyarrow refuses a record that does not fit its block; one long cell among short ones leaves the fast parser in charge."""
    pytest.importorskip("pyarrow")
    rows = [f"{row},{'x' * (3_000_000 if row == 150 else 3)},{row * 2}" for row in range(400)]
    Path("t.csv").write_text("a,text,y\n" + "\n".join(rows) + "\n")

    def refuse(*arguments: object) -> None:
        raise AssertionError("read cell by cell")

    monkeypatch.setattr(delimited, "parse_cells", refuse)
    fo.ingest("t.csv", "s", targets=["y"], drop=["text"], dtype="float64")
    assert columns("s")["a"].tolist() == list(range(400))
