"""What README and guide show is what happens: every block runs, every command, option and public name is documented."""

from __future__ import annotations

import argparse
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import whole_parser
from tests.docs.pages import GUIDE, PAGES, ROOT, Session, blocks

#: Share of the blocks that may be excused from running.
MOST_EXCUSED = 0.1


def _hooks() -> Any:
    """Return the module that fills generated parts of the guide."""
    spec = spec_from_file_location("hooks", GUIDE.parent / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_block_runs(page: Path, tmp_path: Path) -> None:
    """With the output that the page shows."""
    found = [block for block in blocks(page) if not block.excuse]
    with Session(tmp_path) as session:
        for block in found:
            session.run(block)


def test_few_blocks_are_excused(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with a reason on the page."""
    found = [(page, block) for page in PAGES for block in blocks(page)]
    excused = [(page, block) for page, block in found if block.excuse]
    with capsys.disabled():
        print(f"\n{len(found)} blocks, {len(excused)} excused")
        for page, block in excused:
            print(f"  {page.relative_to(ROOT)}:{block.line}: {block.excuse}")
    assert len(excused) <= MOST_EXCUSED * len(found)


def test_a_wrong_page_fails(tmp_path: Path) -> None:
    """A failing command, an exception, a different output, a constraint outside the schema."""
    wrong = ["```sh\nfalse\n```", "```python\n1 / 0\n```", "```sh\necho 1\n```\n```text\n2\n```", "```yaml\ncardinality: [1]\n```"]
    for place, text in enumerate(wrong):
        page, folder = tmp_path / f"{place}.md", tmp_path / str(place)
        page.write_text(text)
        folder.mkdir()
        with Session(folder) as session, pytest.raises(Exception, match=r".") as raised:
            session.run(blocks(page)[0])
        assert raised.typename in ("AssertionError", "ValidationError")


def test_every_public_name_is_in_the_reference() -> None:
    """Which shows their docstrings."""
    shown = set(re.findall(r"^::: fastomp_nvm\.([\w.]+)", (GUIDE / "reference" / "python.md").read_text(), re.MULTILINE))
    names = {name.rpartition(".")[2] for name in shown}
    assert set(fo.__all__) - {"__version__"} <= names


def test_every_command_and_option_is_in_the_reference() -> None:
    """Which is made from the parsers."""
    shown = _hooks().command_line()
    for command in whole_parser().actions():
        for parser in command.actions() or [command]:
            section = shown.partition(f"## {parser.prog}\n")[2].partition("\n## ")[0]
            hidden = {option for action in parser._actions if action.help == argparse.SUPPRESS for option in action.option_strings}
            missing = [
                option for option in parser.options if option not in hidden | {"-h", "--help"} and f"{option}" not in section
            ]
            assert section, parser.prog
            assert not missing, (parser.prog, missing)


def test_links_between_pages_and_files() -> None:
    """Lead to pages, headings and files that exist."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if re.match(r"[a-z+]+:", target):
                continue
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            assert linked.exists(), f"{page.relative_to(ROOT)} links to {target}"
            if anchor and linked.suffix == ".md":
                headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in slugs, f"{page.relative_to(ROOT)} links to {target}"
