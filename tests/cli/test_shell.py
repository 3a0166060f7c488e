"""Manners of the shell: help, completion, listings of names, one spelling per option, and any working directory."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

import fastomp_nvm as fo
from fastomp_nvm.cli.commands.help import GROUPS, constraint_examples
from fastomp_nvm.cli.main import COMMANDS, command_parser, main
from fastomp_nvm.cli.parser import Parser
from fastomp_nvm.constraints.written.description import parse_constraint, schema
from fastomp_nvm.constraints.written.families import FAMILIES

SCRIPT = Path(sys.executable).with_name("fastomp")
NAMES = ["age", "income", "savings_bank", "savings_cash", "zip_north", "zip_south"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build a store with a feature of several columns."""
    rng = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("names") / "people"
    groups = {"zip": ["zip_north", "zip_south"]}
    fo.create_store(f"mmap://{path}", rng.normal(size=(30, 6)), rng.normal(size=30), names=NAMES, groups=groups).close()
    return str(path)


def parsers() -> Iterator[Parser]:
    """Yield the parser of every command and of every action of one."""
    for name in COMMANDS:
        parser = command_parser(name)
        yield parser
        yield from parser.actions()


def test_every_command_has_its_task(capsys: pytest.CaptureFixture[str]) -> None:
    """``fastomp``, ``fastomp help`` and ``fastomp --help`` list each command once, under a task, in 80 columns."""
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    shown = []
    for words in ([], ["help"], ["--help"], ["-h"]):
        assert main(words) == 0
        shown.append(capsys.readouterr().out)
    assert len(set(shown)) == 1
    assert max(map(len, shown[0].splitlines())) <= 80
    for name in COMMANDS:
        assert shown[0].count(f"\n  {name} ") == 1


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """``help COMMAND`` is ``COMMAND --help``: a usage line, then every option; no line is wider than the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["help", name]) == 0
    shown = capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == shown
    assert shown.startswith(f"usage: fastomp {name}")
    assert shown.splitlines()[1] == ""
    assert max(map(len, shown.splitlines())) <= 80


def test_help_of_an_action_and_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """``help ado check`` explains the action; an unknown topic is one sentence."""
    assert main(["help", "ado", "check"]) == 0
    assert "mcas://HOST:PORT/POOL" in capsys.readouterr().out
    with pytest.raises(fo.StoreURLError, match="is not the address of a server"):
        main(["ado", "check", "nowhere://host/pool", "--debug"])
    assert main(["help", "constraint"]) == 2
    assert "did you mean 'constraints'" in capsys.readouterr().err


def test_every_default_is_stated() -> None:
    """The help of each option with a value says what holds without it."""
    for parser in parsers():
        for action in parser._actions:
            if action.option_strings and action.nargs != 0 and not action.required:
                text = parser._get_formatter()._expand_help(action)
                assert "default" in text, f"{parser.prog} {action.option_strings}: {text}"
            assert action.help, f"{parser.prog} {action.dest}"


#: Options that mean something else in another command.
DIFFERENT = {
    "--k": "one number, or several in grid and cv",
    "--pools": "the place of all pools of a server, the names of those that a token reaches",
    "--epsilon": "several in grid",
    "--tau": "several in grid",
    "--ridge": "several in grid",
    "--target": "a column of a file where a store is built, a target of the store afterwards",
    "--tier": "what a store keeps where it is built or planned, what is read afterwards",
    "--token-file": "the tokens that a server accepts, or the one that a client sends",
    "--insecure": "of the server, or of the client",
    "--check": "of the settings of a server before it starts, of columns where a store is read",
    "--store": "of export",
    "--id": "kept with a store where it is built, written beside predictions",
}


def test_one_spelling_per_option() -> None:
    """The same option has the same value and help in every command, and the same help never has two spellings."""
    seen: dict[str, tuple[str, object, str]] = {}
    spelt: dict[str, str] = {}
    for parser in parsers():
        for option, action in parser.options.items():
            text = re.sub(r" \(default [^)]*\)", "", action.help or "")
            if option in DIFFERENT or text.startswith("as for select") or not option.startswith("--"):
                continue
            described = (text, action.metavar)
            assert seen.setdefault(option, (*described, parser.prog))[:2] == described, f"{option}: {parser.prog}, {seen[option]}"
            if not option.startswith("--no-"):
                assert spelt.setdefault(text, option) == option, f"{option} and {spelt[text]} are both {text!r}"


def test_examples_of_constraints_are_what_the_reader_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``help constraints`` shows one example per family, from the published schema; each is valid, parsed and bound."""
    jsonschema = pytest.importorskip("jsonschema")
    (tmp_path / "rules.py").write_text(
        "def allowed(names):\n    return len(names) < 4\n\n\ndef cost(names):\n    return float(len(names))\n"
    )
    properties = schema()["$defs"]["constraint"]["properties"]
    assert set(properties) == {"all", *FAMILIES}
    assert main(["help", "constraints"]) == 0
    shown = capsys.readouterr().out
    assert shown.rstrip("\n") == constraint_examples()
    assert max(map(len, shown.splitlines())) <= 80
    texts = re.split(r"\n\n(?=# )", shown)[1:]
    assert len(texts) == len(properties)
    for text, family in zip(texts, properties, strict=True):
        document = yaml.safe_load(text)
        assert list(document) == [family]
        jsonschema.Draft202012Validator(schema()).validate(document)
        constraint = parse_constraint(text, NAMES, base_path=tmp_path)
        assert constraint.n_features == len(NAMES)
        assert constraint.rank >= 1


def test_names_by_pattern(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All names, by pattern, by a part of the name, and as JSON; the number of columns is said where it is not one."""
    assert main(["names", store]) == 0
    assert capsys.readouterr().out == "age\nincome\nsavings_bank\nsavings_cash\nzip  (2 columns)\n"
    for pattern, found in (
        ("savings_*", ["savings_bank", "savings_cash"]),
        ("ing", ["savings_bank", "savings_cash"]),
        ("z?p", ["zip"]),
    ):
        assert main(["names", store, pattern, "--json"]) == 0
        assert [each["name"] for each in json.loads(capsys.readouterr().out)] == found
    assert main(["names", store, "zip", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "zip", "columns": 2}]
    assert main(["names", store, "x*"]) == 2
    assert "no feature matches 'x*'" in capsys.readouterr().err


def test_a_path_is_a_constraint_in_python_too(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``constraint=`` takes the path of a YAML file as text; a file that is missing is one sentence; YAML text stays text."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    file = tmp_path / "few.yaml"
    file.write_text("cardinality: 2\n")
    for given in (str(file), file, "cardinality: 2", "cardinality: 2\n"):
        assert len(fo.select(store, constraint=given, until="full").features) == 2
    assert len(fo.select(store, constraint=str(file), run="few", until="full").features) == 2
    fo.forget("few")
    assert len(fo.select_many(store, [{"constraint": str(file), "until": "full"}])[0].features) == 2
    with pytest.raises(fo.RequestError, match=r"there is no constraint file nowhere\.yaml: expected the path"):
        fo.select(store, constraint="nowhere.yaml")


def test_a_server_opens_no_constraint_file() -> None:
    """A text that comes over the wire is never taken for a path."""
    from fastomp_nvm.selection.codec import decode_request

    assert decode_request({"k": 2, "constraint": "/etc/secret.yaml"}).constraint == "/etc/secret.yaml"


BASH = """
source "$1"
function=$(complete -p fastomp | sed 's/.*-F \\([^ ]*\\).*/\\1/')
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
"$function" fastomp "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the completion script of each shell."""
    pytest.importorskip("shtab", reason="shtab is not installed")
    folder = tmp_path_factory.mktemp("completion")
    for shell, name in (("bash", "fastomp.bash"), ("zsh", "_fastomp"), ("fish", "fastomp.fish")):
        command = [sys.executable, "-m", "fastomp_nvm", "completion", shell]
        (folder / name).write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (folder / "table.csv").touch()
    return folder


#: What is typed, and the word that the shell makes of its end.
COMPLETED = [
    ("fastomp sel", "select"),
    ("fastomp st", "stability"),
    ("fastomp select --obj", "--objective"),
    ("fastomp select STORE --objective log", "logistic"),
    ("fastomp select STORE --algorithm fast_", "fast_omp"),
    ("fastomp select STORE --io d", "direct"),
    ("fastomp ingest tab", "table.csv"),
    ("fastomp ingest table.csv out --missing med", "median"),
    ("fastomp names --js", "--json"),
    ("fastomp ado check --time", "--timeout"),
    ("fastomp completion fi", "fish"),
    ("fastomp help constr", "constraints"),
]


@pytest.mark.parametrize(("typed", "expected"), COMPLETED)
@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_completion(shell: str, typed: str, expected: str, scripts: Path) -> None:
    """The shell itself completes commands, options, choices and files."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    if shell == "bash":
        command = ["bash", "--norc", "-c", BASH, "bash", "fastomp.bash", *typed.split(" ")]
    else:
        command = ["fish", "--no-config", "-c", f"source fastomp.fish; complete -C '{typed}'"]
    home = {"HOME": str(scripts), "XDG_CONFIG_HOME": str(scripts), "XDG_DATA_HOME": str(scripts)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=scripts, check=True, env={**os.environ, **home})
    assert expected in [line.partition("\t")[0] for line in done.stdout.splitlines()], done


def test_completion_in_zsh(scripts: Path) -> None:
    """An interactive zsh, in a terminal, completes each line at the key Tab."""
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    terminal, inside = pty.openpty()
    home = {"HOME": str(scripts), "ZDOTDIR": str(scripts), "TERM": "dumb", "PS1": "ready> "}
    child = subprocess.Popen(
        ["zsh", "-f", "-i", "-V"], stdin=inside, stdout=inside, stderr=inside, cwd=scripts, env={**os.environ, **home}
    )
    os.close(inside)

    def typed_and_shown(line: str, expected: str) -> str:
        """Type a line; return what the terminal shows until the expected text is there, or until a minute of silence."""
        os.write(terminal, line.encode())
        shown = ""
        while expected not in shown and select.select([terminal], [], [], 60)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
        return shown

    try:
        for line in (f"fpath=({scripts} $fpath)", "autoload -Uz compinit", "compinit -D -u", "unsetopt beep; echo 'begin'now"):
            typed_and_shown(f"{line}\n", "beginnow" if "begin" in line else "ready>")
        for line, expected in COMPLETED:
            whole = f"{line.rpartition(' ')[0]} {expected}"
            assert whole in typed_and_shown(f"{line}\t", whole), line
            typed_and_shown("\x15echo 'begin'now\n", "beginnow")  # the key that clears a line
    finally:
        child.kill()
        child.wait()
        os.close(terminal)


@pytest.mark.parametrize("command", [[str(SCRIPT)], [sys.executable, "-m", "fastomp_nvm"]], ids=["script", "module"])
def test_our_own_benchmarks_whatever_the_folder(command: list[str], tmp_path: Path) -> None:
    """A folder with packages of our names does not get in the way, neither of the command nor of the processes it starts."""
    if not Path(command[0]).exists():
        pytest.skip("the command fastomp is not installed")
    for package in ("benchmarks", "ado_plugin", "storage_backends"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('a stranger was imported')\n")
    done = subprocess.run([*command, "bench", "tier-noise", "--help"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout[:31]) == (0, "usage: fastomp bench tier-noise"), done.stderr
    assert (
        "tier-noise" in subprocess.run([*command, "help", "bench"], capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    )


def test_processes_of_benchmarks_find_our_own_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement in a process of its own runs the module of this tree."""
    from benchmarks.harness.processes import CellError, run_cell

    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").write_text("raise SystemExit('a stranger was imported')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CellError) as failed:
        run_cell("benchmarks.peers", {"nothing": 1})
    assert "stranger" not in str(failed.value)
