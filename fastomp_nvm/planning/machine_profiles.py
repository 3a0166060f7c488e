"""What a plan knows of machines, media and networks: measured on this machine, read from a file, or published and thus assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from fastomp_nvm.bounded_yaml import load_yaml
from fastomp_nvm.errors import RequestError

__all__ = ["MEDIA", "NETWORKS", "TYPICAL_NODE", "Machine", "Medium", "Network", "Profile", "read_profile", "write_profile"]

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine; rates are of a single core unless the name says otherwise.

    Attributes
    ----------
    source : str
        Where the numbers come from, in words.
    cores : int
    memory_bytes : float
    memory_bytes_per_second : float
        What sweeps on all cores take from memory together.
    entries_per_second : mapping of str to float
        Entries of the matrix a core sweeps with one vector, by element type; ``int8`` is the tier.
    products_per_second : float
        Multiply-adds of gathered columns with a block of vectors, beyond bringing the columns from memory.
    dense_products_per_second : float
        Multiply-adds of small dense factors in float64, on one core however many there are.
    copied_bytes_per_second : float
        Columns gathered from memory to memory.
    exact_decision, tier_decision : float
        Seconds per feature and pass for scores and decisions, by the exact products and by the intervals of the tier.
    opening : float
        Seconds per feature to open a store and prepare a selection.
    greedy_square, greedy_step : float
        Seconds of the polish per gathered column and square of the selection, and per gathered column and selected feature.
    inner_round : float
        Seconds of an inner round beyond its products.
    start : float
        Seconds of a selection beyond everything that grows.
    call : float
        Seconds to ask all shards something and have their answers, beyond the bytes.
    cluster_start : float
        Seconds to open a store of shards, with Ray running or started.
    """

    source: str
    cores: int
    memory_bytes: float
    memory_bytes_per_second: float
    entries_per_second: Mapping[str, float]
    products_per_second: float
    dense_products_per_second: float
    copied_bytes_per_second: float
    exact_decision: float
    tier_decision: float
    opening: float
    greedy_square: float
    greedy_step: float
    inner_round: float
    start: float
    call: float = 0.005
    cluster_start: float = 3.0


@dataclass(frozen=True, slots=True)
class Medium:
    """Where shards lie: sequential bytes per second of a node's device. ``in_memory`` needs no reading at all."""

    source: str
    bytes_per_second: float
    in_memory: bool = False


@dataclass(frozen=True, slots=True)
class Network:
    """What joins the nodes: bytes per second of one link."""

    source: str
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Profile:
    """A machine and, where they were measured too, its media by name and the way between its processes.

    Without ``network`` what shards cost (``call``, ``cluster_start`` of the machine) was not measured either.
    """

    machine: Machine
    media: Mapping[str, Medium]
    network: Network | None = None


#: Devices by data sheet or publication: assumptions until measured.
MEDIA: Mapping[str, Medium] = MappingProxyType(
    {
        "dram": Medium("the matrix is in memory", float("inf"), in_memory=True),
        # Samsung, PM9A3 NVMe U.2 product brief: sequential read up to 6900 MB/s (PCIe 4.0 x4).
        "nvme": Medium("one PCIe 4.0 drive by data sheet (Samsung PM9A3, 6.9 GB/s)", 6.9e9),
        # Izraelevitz et al., Basic Performance Measurements of the Intel Optane DC Persistent Memory Module, arXiv:1903.05714:
        # sequential read of six interleaved modules 39.4 GB/s.
        "optane": Medium("six interleaved Optane modules (Izraelevitz et al. 2019, 39.4 GB/s)", 39.4e9),
    }
)

#: Ethernet (IEEE 802.3) by line rate, of which four fifths are assumed to arrive as payload.
NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        f"{gigabits}gbe": Network(f"{gigabits} Gbit/s Ethernet, four fifths of the line rate", 0.8 * gigabits * 1e9 / 8)
        for gigabits in (10, 25, 100)
    }
)

#: A server nobody measured: per-core rates as measured on two cores of an AMD EPYC (Zen 4) by ``fastomp plan --measure`` on
#: 16 November 2026; three quarters of the 204.8 GB/s of eight channels of DDR4-3200 (JEDEC).
TYPICAL_NODE = Machine(
    source="32 cores like those measured here (AMD EPYC, Zen 4), 256 GiB, eight channels of DDR4-3200",
    cores=32,
    memory_bytes=256 * GIB,
    memory_bytes_per_second=0.75 * 204.8e9,
    entries_per_second={"float16": 8.4e9, "float32": 5.1e9, "float64": 2.9e9, "int8": 12.3e9},
    products_per_second=41e9,
    dense_products_per_second=26e9,
    copied_bytes_per_second=4.6e9,
    exact_decision=21e-9,
    tier_decision=41e-9,
    opening=95e-9,
    greedy_square=0.25e-9,
    greedy_step=100e-9,
    inner_round=0.17e-3,
    start=0.002,
)


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile as YAML."""
    plain = asdict(profile)
    path.write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")


def read_profile(path: Path) -> Profile:
    """Read a profile from a YAML file, naming what is wrong with it."""
    try:
        found = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RequestError(f"the profile {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict) or not isinstance(found.get("machine"), dict):
        raise RequestError(f"the profile {path} describes no machine: write one with 'fastomp plan --measure --out FILE'")
    rates = found["machine"].get("entries_per_second")
    if not isinstance(rates, dict) or not all(_positive(rates.get(name)) for name in TYPICAL_NODE.entries_per_second):
        names = ", ".join(TYPICAL_NODE.entries_per_second)
        raise RequestError(f"machine.entries_per_second of the profile {path} needs numbers above 0 for {names}")
    media = found.get("media") or {}
    if not isinstance(media, dict):
        raise RequestError(f"media of the profile {path} is no mapping from names to devices")
    return Profile(
        _described(Machine, found["machine"], f"machine of the profile {path}"),
        {str(name): _described(Medium, each, f"the medium {name} of the profile {path}") for name, each in media.items()},
        None if found.get("network") is None else _described(Network, found["network"], f"network of the profile {path}"),
    )


def _described(kind: Any, found: Any, place: str) -> Any:
    """Build a dataclass from a mapping, refusing unknown, missing and impossible values."""
    known = {field.name: field for field in fields(kind)}
    if not isinstance(found, dict):
        raise RequestError(f"{place} is no mapping of names to numbers")
    for name, value in found.items():
        if name not in known:
            raise RequestError(f"{place} has no {name!r}: expected {', '.join(known)}")
        if name not in ("source", "in_memory", "entries_per_second") and not _positive(value):
            raise RequestError(f"{name} of {place} is {value!r}: expected a number above 0")
    try:
        return kind(**found)
    except TypeError as error:
        raise RequestError(f"{place} is incomplete: {str(error).split('()')[-1].strip()}") from error


def _positive(value: Any) -> bool:
    """Tell whether a value is a number above 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
