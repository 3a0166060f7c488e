"""``fastomp report`` writes what was selected as one page; ``fastomp token`` keeps the tokens of a server."""

from __future__ import annotations

import html.parser
import json
import stat
from pathlib import Path

import numpy as np
import pytest

import fastomp_nvm as fo
from ado_plugin.service.access import Access
from fastomp_nvm.cli.main import main

NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a result and a model of one selection, of which a feature has the name of a tag."""
    made = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(5)
    X = rng.normal(size=(80, 12))
    names = [NASTY if column == 4 else f"gene_{column}" for column in range(12)]
    store = fo.create_store(f"mmap://{made}/store", X, X[:, 4] - 2 * X[:, 7] + rng.normal(size=80), names=names)
    selection = fo.select(store, k=3, certificate=True)
    assert NASTY in selection.features
    selection.save(made / "model.json")
    (made / "result.json").write_text(json.dumps(selection.to_json()))
    (made / "both.json").write_text(json.dumps([selection.to_json(), selection.to_json()]))
    return made


class Page(html.parser.HTMLParser):
    """Collects tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("source", ["model.json", "result.json", "both.json"])
def test_a_report_shows_the_selection_and_needs_nothing_else(folder: Path, tmp_path: Path, source: str) -> None:
    """Names, coefficients and certificate are on the page; no script, no link, no address of another host."""
    out = tmp_path / "out.html"
    assert main(["report", str(folder / source), str(out)]) == 0
    page = Page()
    page.feed(out.read_text(encoding="utf-8"))
    selection = fo.load(folder / "model.json")
    for feature, value in zip(selection.features, selection.coef, strict=True):
        assert feature in page.text
        assert f"{value:.6g}" in page.text
    assert "at least" in page.text
    assert page.tags.count("table") >= (2 if source == "both.json" else 1)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "http" not in out.read_text().replace("http-equiv", "").lower()


def test_a_report_refuses_what_it_cannot_read_or_would_replace(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence each, and no file is written or changed."""
    out = tmp_path / "out.html"
    (tmp_path / "other.json").write_text("[1, 2]")
    (tmp_path / "text.json").write_text("not JSON")
    for source in (tmp_path / "other.json", tmp_path / "text.json", tmp_path / "absent.json"):
        assert main(["report", str(source), str(out)]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert main(["report", str(folder / "model.json"), str(tmp_path / "out.pdf")]) == 2
    assert not out.exists()
    out.write_text("mine")
    assert main(["report", str(folder / "model.json"), str(out)]) == 2
    assert out.read_text() == "mine"
    assert main(["report", str(folder / "model.json"), str(out), "--replace"]) == 0
    assert "Coefficients" in out.read_text()


def test_a_new_token_is_printed_once_and_kept_as_a_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that reads the file knows the token, its role and pools; the file does not hold the token itself."""
    file = tmp_path / "tokens.yaml"
    words = ["--token-file", str(file)]
    assert main(["token", "new", "ada", "--role", "write", "--pools", "lab,wide", *words]) == 0
    ada = capsys.readouterr().out.strip()
    assert main(["token", "new", "bob", *words]) == 0
    bob = capsys.readouterr().out.strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert ada not in file.read_text()
    access = Access(file)
    for token, name, role, pools in ((ada, "ada", "write", frozenset({"lab", "wide"})), (bob, "bob", "read", None)):
        principal = access.authenticate(token)
        assert principal is not None
        assert (principal.name, principal.role, principal.pools) == (name, role, pools)
    assert main(["token", "list", "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "ada", "role": "write", "pools": ["lab", "wide"]},
        {"name": "bob", "role": "read"},
    ]
    assert main(["token", "revoke", "ada", *words]) == 0
    assert Access(file).authenticate(ada) is None
    assert Access(file).authenticate(bob) is not None


def test_tokens_that_would_be_lost_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name twice, an unknown name, the last name, and a file that is one token in clear: one sentence, nothing changed."""
    file, clear = tmp_path / "tokens.yaml", tmp_path / "clear"
    clear.write_text("a-token-in-clear-0123456789")
    clear.chmod(0o600)
    assert main(["token", "new", "ada", "--token-file", str(file)]) == 0
    before = file.read_bytes()
    capsys.readouterr()
    for words in (["new", "ada"], ["revoke", "nobody"], ["revoke", "ada"], ["new", "../up"], ["new", "x", "--pools", "a,../b"]):
        assert main(["token", *words, "--token-file", str(file)]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert main(["token", "new", "bob", "--token-file", str(clear)]) == 2
    assert file.read_bytes() == before
    assert clear.read_text() == "a-token-in-clear-0123456789"
