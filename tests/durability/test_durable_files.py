"""Files of this program: written whole or not at all, removed only when no process holds them, and named safely."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fastomp_nvm import durable_files
from fastomp_nvm.durable_files import is_name, is_unlocked, lock_path, new_locked_directory, remove_abandoned, write_atomically


@pytest.mark.parametrize("step", ["open", "fsync", "rename"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Whichever step fails, the old content stays and nothing else is left in the directory."""
    write_atomically(tmp_path / "record", b"old")

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(durable_files.os, step, full)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(tmp_path / "record", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("record", b"old")]


def test_a_file_that_exists_is_kept_unless_replaced(tmp_path: Path) -> None:
    """Without ``replace`` an existing file is an error; the file is private by default."""
    write_atomically(tmp_path / "token", b"first", replace=False)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "token", b"second", replace=False)
    assert (tmp_path / "token").read_bytes() == b"first"
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    write_atomically(tmp_path / "token", b"third", durable=False)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("token", b"third")]


def test_only_what_no_process_holds_is_removed(tmp_path: Path) -> None:
    """A locked directory stays with its content; once its descriptor is closed it is removed, as is a file."""
    path, descriptor = new_locked_directory(lambda: tempfile.mkdtemp(dir=tmp_path))
    (Path(path) / "inside").touch()
    (tmp_path / "file").touch()
    assert not is_unlocked(path)
    assert lock_path(path) is None
    remove_abandoned(path)
    assert (Path(path) / "inside").exists()
    os.close(descriptor)
    assert is_unlocked(path)
    remove_abandoned(path)
    remove_abandoned(tmp_path / "file")
    remove_abandoned(tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_neither_followed_nor_removed(tmp_path: Path) -> None:
    """A symbolic link under the name of a leftover does not lead to the removal of its target."""
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    remove_abandoned(tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_a_directory_removed_before_its_lock_is_made_again(tmp_path: Path) -> None:
    """A new directory that another process removes before it is locked is replaced by another one."""
    made: list[str] = []

    def make() -> str:
        made.append(tempfile.mkdtemp(dir=tmp_path))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    path, descriptor = new_locked_directory(make)
    os.close(descriptor)
    assert (path, len(made)) == (made[1], 2)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0", "a\n", "-a", "ä", "x" * 101, None, 1, b"a"])
def test_an_unsafe_name_is_none(name: object) -> None:
    """Names that are hidden, lead elsewhere, are too long or not text are not safe as file names."""
    assert not is_name(name)
    assert is_name("a.B-1_")
