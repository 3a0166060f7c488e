"""The pages of the guide and their code blocks, and how the blocks of a page are run.

Python blocks of a page share a namespace, shell blocks a shell, both in one folder with a FASTOMP_HOME of its own. A block ``yaml
title="NAME"`` is written to the file NAME; other YAML is a constraint and must fit the schema. A ``text`` block right after a block
is its output, in which ``...`` stands for anything. A block after a line ``*Not run: reason.*`` is excused.
"""

from __future__ import annotations

import contextlib
import doctest
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["GUIDE", "PAGES", "ROOT", "Block", "Session", "blocks"]

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDE = ROOT / "docs" / "guide"
PAGES = [ROOT / "README.md", *sorted(GUIDE.rglob("*.md"))]

_FENCE = re.compile(r"^```(\w+)?([^\n`]*)\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
_EXCUSE = re.compile(r"\*Not run: (.+?)\*\s*\Z", re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')

#: Languages whose blocks are run.
RUN = ("python", "sh", "yaml")

#: Addresses on the pages, which stand for free ports.
SHOWN_PORTS = ("127.0.0.1:7010", "127.0.0.1:7011", "127.0.0.1:7012")

#: Seconds for one block.
LIMIT = 120

#: Reads blocks as JSON from its input, runs them in one namespace and answers with JSON.
_PYTHON = """
import contextlib, io, json, sys, traceback
namespace = {"__name__": "__main__"}
replies = sys.stdout
for line in sys.stdin:
    out, failed = io.StringIO(), ""
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(json.loads(line), "<page>", "exec"), namespace)
        except Exception:
            failed = traceback.format_exc()
    print(json.dumps([out.getvalue(), failed]), file=replies, flush=True)
"""


class Block(NamedTuple):
    """A fenced block of a page.

    Attributes
    ----------
    line : int
        Where it begins.
    language, code : str
    title : str or None
        The file that the block shows.
    excuse : str or None
        Why it is not run.
    output : str or None
        The output that the page shows.
    """

    line: int
    language: str
    code: str
    title: str | None
    excuse: str | None
    output: str | None


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page that are run or excused, in order."""
    text = page.read_text()
    found, fences = [], list(_FENCE.finditer(text))
    for place, fence in enumerate(fences):
        if fence[1] not in RUN:
            continue
        following = fences[place + 1] if place + 1 < len(fences) else None
        shown = following is not None and following[1] == "text" and not text[fence.end() : following.start()].strip()
        excuse, title = _EXCUSE.search(text[: fence.start()]), _TITLE.search(fence[2])
        found.append(
            Block(
                text.count("\n", 0, fence.start()) + 1,
                fence[1],
                fence[3],
                title[1] if title else None,
                excuse[1] if excuse else None,
                following[3] if shown and following else None,
            )
        )
    return found


def _free_port() -> int:
    """Return a port of loopback that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Session:
    """A folder, a shell and a Python process for the blocks of one page."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        bin_ = Path(sys.executable).parent
        self._variables = {
            **os.environ,
            "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
            "FASTOMP_HOME": str(folder / ".home"),
            "MPLBACKEND": "agg",
            "COLUMNS": "100",
        }
        (folder / ".home").mkdir(mode=0o700)
        self._ports = {shown: f"127.0.0.1:{_free_port()}" for shown in SHOWN_PORTS}
        self._shell = self._process(["bash", "--noprofile", "--norc"])
        self._python = self._process([sys.executable, "-P", "-c", _PYTHON])

    def _process(self, words: list[str]) -> subprocess.Popen[str]:
        """Start a process that reads blocks from its input."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            words, cwd=self._folder, env=self._variables, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )

    def run(self, block: Block) -> str:
        """Run a block and return its output; an ``AssertionError`` says how it failed."""
        code = block.code
        for shown, port in self._ports.items():
            code = code.replace(shown, port)
        if block.language == "yaml":
            self._file(block.title, code)
            return ""
        output = self._in_python(code) if block.language == "python" else self._in_shell(code)
        for shown, port in self._ports.items():
            output = output.replace(port, shown)
        if block.output is not None:
            alike = doctest.OutputChecker().check_output(block.output, output, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            assert alike, f"line {block.line}: the page shows\n{block.output}\nbut the output is\n{output}"
        return output

    def _file(self, title: str | None, text: str) -> None:
        """Write a file that the page shows, or hold a constraint against its schema."""
        if title:
            (self._folder / title).write_text(text)
            return
        import jsonschema
        import yaml

        from fastomp_nvm.constraints.written.description import schema

        jsonschema.validate(yaml.safe_load(text), schema())

    def _in_python(self, code: str) -> str:
        """Return what Python prints."""
        output, failed = json.loads(self._exchange(self._python, json.dumps(code), None)[0])
        assert not failed, f"{code}\n{failed}"
        return str(output)

    def _in_shell(self, code: str) -> str:
        """Return what the shell prints; the block must end with code 0."""
        mark = "end-of-block"
        lines = self._exchange(self._shell, f"{code.rstrip()}\nprintf '\\n{mark} %s\\n' $?", mark)
        code_of_exit = int(lines.pop().removeprefix(mark))
        output = "\n".join(lines)
        assert code_of_exit == 0, f"{code}\nended with code {code_of_exit}:\n{output}"
        return output

    def _exchange(self, process: subprocess.Popen[str], text: str, mark: str | None) -> list[str]:
        """Send ``text`` and return the lines of the answer: the first one, or all up to the one that begins with ``mark``."""
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(LIMIT, process.kill)
        timer.start()
        try:
            process.stdin.write(text + "\n")
            process.stdin.flush()
            lines = list(self._answer(process, mark))
        finally:
            timer.cancel()
        return lines

    def _answer(self, process: subprocess.Popen[str], mark: str | None) -> Iterator[str]:
        """Yield the lines of an answer."""
        assert process.stdout is not None
        for line in process.stdout:
            yield line.rstrip("\n")
            if mark is None or line.startswith(mark):
                return
        raise AssertionError(f"the process ended, or a block took longer than {LIMIT} s")

    def __enter__(self) -> Session:
        """Return the session."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes, and what the shell left running in the background."""
        with contextlib.suppress(BrokenPipeError):  # the shell was ended by a block
            assert self._shell.stdin is not None
            self._shell.stdin.write("kill $(jobs -p) 2>/dev/null; wait\n")
            self._shell.stdin.flush()
        for process in (self._shell, self._python):
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                process.communicate(timeout=30)
            process.kill()
            process.wait()
