"""Facts about a shared object, read from the file itself: what it links, and which Python and NumPy it was built for.

An ELF file is read here without a library: the dynamic section names the linked libraries and their directories. NumPy is not
linked but imported by name, and each of its major versions has another name, which the headers compile into the file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastomp_nvm.errors import InputError

__all__ = ["PluginFile", "read_plugin"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_LOAD, _DYNAMIC = 1, 2  # types of segments
_NEEDED, _STRINGS, _RPATH, _RUNPATH = 1, 5, 15, 29  # tags of the dynamic section
_MACHINES: Mapping[int, str] = {21: "ppc64le", 62: "x86_64", 183: "aarch64"}

_LIBPYTHON = re.compile(r"libpython(3\.\d+)\.so")
_FIXED_LIBPYTHON = re.compile(rb"/[\w./+-]*/libpython3[\w.]*\.so[\w.]*")


@dataclass(frozen=True, slots=True)
class PluginFile:
    """A shared object as it is on disk.

    Attributes
    ----------
    machine : str
        As ``platform.machine()`` names it.
    needed, directories : tuple of str
        Linked libraries, and where the file says that they are.
    libpython : str or None
        Version of the linked libpython, such as ``3.11``.
    numpy : int or None
        Major version of NumPy whose headers it was compiled against; None where it does not use NumPy.
    fixed_libpython : tuple of str
        Paths of libpython that stand in the code, which upstream loads at start.
    """

    machine: str
    needed: tuple[str, ...]
    directories: tuple[str, ...]
    libpython: str | None
    numpy: int | None
    fixed_libpython: tuple[str, ...]


def read_plugin(path: Path) -> PluginFile:
    """Return the facts about a shared object.

    Raises
    ------
    InputError
        The file cannot be read, or is no shared object of a 64-bit machine.
    """
    try:
        data = path.read_bytes()
        machine, dynamic = _dynamic_section(data)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): name the file, or build it") from error
    except (struct.error, ValueError) as error:
        raise InputError(f"{path} is not a shared object of a 64-bit Linux (or it is truncated): build it again") from error
    needed = tuple(text for tag, text in dynamic if tag == _NEEDED)
    linked = next((found[1] for found in map(_LIBPYTHON.match, needed) if found), None)
    directories = [part for tag, text in dynamic if tag in (_RPATH, _RUNPATH) for part in text.split(":") if part]
    return PluginFile(
        machine=machine,
        needed=needed,
        directories=tuple(each.replace("$ORIGIN", str(path.parent)) for each in directories),
        libpython=linked,
        numpy=2 if b"numpy._core._multiarray_umath" in data else 1 if b"numpy.core._multiarray_umath" in data else None,
        fixed_libpython=tuple(dict.fromkeys(found.decode() for found in _FIXED_LIBPYTHON.findall(data))),
    )


def _dynamic_section(data: bytes) -> tuple[str, list[tuple[int, str]]]:
    """Return the machine, and the entries of the dynamic section that are texts."""
    identity, _, machine, _, _, segments, _, _, _, size, count, *_ = _HEADER.unpack_from(data)
    if identity[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
        raise ValueError
    loads, entries = [], []
    for number in range(count):
        kind, _, offset, address, _, length, *_ = _SEGMENT.unpack_from(data, segments + number * size)
        if kind == _LOAD:
            loads.append((address, offset, length))
        elif kind == _DYNAMIC:
            whole = data[offset : offset + length // _ENTRY.size * _ENTRY.size]
            entries = list(_ENTRY.iter_unpack(whole))
    table = next(value for tag, value in [*entries, (_STRINGS, -1)] if tag == _STRINGS)
    start = next((offset + table - address for address, offset, length in loads if address <= table < address + length), None)
    if start is None:
        raise ValueError
    texts = [(tag, value) for tag, value in entries if tag in (_NEEDED, _RPATH, _RUNPATH)]
    found = [(tag, data[start + value : data.index(b"\0", start + value)].decode()) for tag, value in texts]
    return _MACHINES.get(machine, f"machine {machine}"), found
