"""The configuration of an MCAS server: written from a description in YAML, and read as upstream's server reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastomp_nvm.errors import InputError

__all__ = ["cores_of", "read_configuration", "server_configuration", "server_program"]

#: Fields of a shard: the name in the server's configuration, and the default.
_SHARD: Mapping[str, tuple[str, str | int]] = {
    "core": ("core", 0),
    "port": ("port", 11911),
    "address": ("addr", "127.0.0.1"),
    "device": ("net", "lo"),
    "backend": ("default_backend", "hstore"),
    "ado_cores": ("ado_cores", "1"),
    "plugin": ("ado_plugins", "libpersonality-python.so"),
    "pool_path": ("path", "/mnt/pmem0"),
    "base_address": ("addr", "0x9000000000"),
}

_TEXTS = ("index", "net", "addr", "security_mode", "default_backend", "mm_plugin_path", "ado_cores")
_NUMBERS = ("core", "port", "security_port")
_LISTS = ("ado_plugins", "dax_config", "ado_signals")
#: Everything that upstream's server accepts; it ends at any other field.
_READ_OF_SHARD = {*_TEXTS, *_NUMBERS, *_LISTS, "ado_params", "ado_core_count"}
_READ_OF_SERVER = {"shards", "ado_path", "net_providers", "debug_level", "resources", "security", "cluster"}
_CORES = re.compile(r"(\d{1,4})(?:([-:])(\d{1,4}))?")


def server_configuration(described: object) -> dict[str, Any]:
    """Return the JSON configuration of an MCAS server.

    Parameters
    ----------
    described : object
        Parsed YAML: ``ado_path``, ``provider`` (sockets or verbs), and ``shards``, a list of objects with ``core``, ``port``,
        ``address``, ``device``, ``backend`` (hstore or mapstore), ``pool_path``, ``base_address``, ``plugin``, ``ado_cores``.

    Raises
    ------
    InputError
        A field is missing, unknown, or of the wrong type.
    """
    known = {"ado_path", "provider", "shards"}
    if not isinstance(described, Mapping) or set(described) - known or not isinstance(described.get("ado_path"), str):
        raise InputError("a server is described by ado_path, provider and shards: expected exactly these, ado_path as text")
    provider = described.get("provider", "sockets")
    shards = described.get("shards")
    if provider not in ("sockets", "verbs"):
        raise InputError(f"provider is {provider!r}: expected sockets or verbs")
    if not isinstance(shards, list) or not shards:
        raise InputError("shards are not a list of at least one shard")
    return {"shards": [_shard(each) for each in shards], "ado_path": described["ado_path"], "net_providers": provider}


def read_configuration(path: Path) -> dict[str, Any]:
    """Return a server's configuration with the fields and types that upstream's server and this project need.

    Raises
    ------
    InputError
        It cannot be read, or the server would end at it.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not a readable JSON file ({error}): expected a server's configuration, or mcas://host:port/pool"
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("ado_path"), str) or not isinstance(found.get("shards"), list):
        raise InputError(f"{path} is no server's configuration: expected an object with ado_path (text) and shards (a list)")
    if not found["shards"]:
        raise InputError(f"{path} has no shard: expected at least one, each with core, port, addr, ado_plugins and ado_cores")
    unknown = sorted(set(found) - _READ_OF_SERVER)
    for number, shard in enumerate(found["shards"]):
        if not isinstance(shard, dict):
            raise InputError(f"shard {number} of {path} is not an object")
        unknown += sorted(f"{each} of shard {number}" for each in set(shard) - _READ_OF_SHARD)
        for kind, names in ((str, _TEXTS), (int, _NUMBERS), (list, _LISTS)):
            wrong = next((name for name in names if name in shard and type(shard[name]) is not kind), None)
            if wrong is not None:
                raise InputError(f"{wrong} of shard {number} of {path} is {shard[wrong]!r}: expected {_KINDS[kind]}")
        missing = [
            name for name in ("core", "port", "ado_plugins", "ado_cores") if not shard.get(name, "") and shard.get(name) != 0
        ]
        if missing:
            raise InputError(f"shard {number} of {path} has no {missing[0]}: without it nothing runs next to the data")
        places = shard.get("dax_config", [])
        if not all(isinstance(each, dict) and isinstance(each.get("path"), str) for each in places):
            raise InputError(f"dax_config of shard {number} of {path} is {places!r}: expected a list of objects with path and addr")
    if unknown:
        raise InputError(f"{path} has {unknown[0]}, which the server does not know: it would end at its start")
    return found


_KINDS: Mapping[type, str] = {str: "text", int: "a whole number", list: "a list"}


def server_program(configuration: Mapping[str, Any]) -> Path:
    """Return the path of the server: upstream installs it beside the program of the ADO."""
    return Path(configuration["ado_path"]).with_name("mcas")


def cores_of(text: str) -> list[int]:
    """Return the cores in a list such as ``0-1,4:2`` (first and last, or first and count)."""
    cores: list[int] = []
    for part in text.split(","):
        found = _CORES.fullmatch(part)
        if found is None:
            raise InputError(f"ado_cores is {text!r}: expected numbers and ranges, such as 1, 1-3 or 1-3,5")
        first, sign, last = int(found[1]), found[2], int(found[3] or 0)
        cores += range(first, last + 1 if sign == "-" else first + last if sign else first + 1)
    if not cores:
        raise InputError(f"ado_cores is {text!r}, which names no core: write a range with its smaller number first")
    return cores


def _shard(described: object) -> dict[str, Any]:
    """Return one shard of the server's configuration."""
    if not isinstance(described, Mapping) or set(described) - set(_SHARD):
        raise InputError(f"a shard is an object of {', '.join(_SHARD)}: found {described!r}")
    shard = {name: described.get(name, default) for name, (_, default) in _SHARD.items()}
    for name, (_, default) in _SHARD.items():
        if type(shard[name]) is not type(default):
            raise InputError(f"{name} of a shard is {shard[name]!r}: expected {'text' if isinstance(default, str) else 'a number'}")
    if shard["backend"] not in ("hstore", "mapstore"):
        raise InputError(f"backend is {shard['backend']!r}: expected hstore or mapstore")
    cores_of(shard["ado_cores"])
    path, address, plugin = (shard.pop(name) for name in ("pool_path", "base_address", "plugin"))
    dax = {"dax_config": [{"path": path, "addr": address}]} if shard["backend"] == "hstore" else {}
    return {**{_SHARD[name][0]: value for name, value in shard.items()}, "ado_plugins": [plugin], **dax}
