"""Where things are found by name: media, readers, objectives, constraints, selectors, commands of other packages.

Tables of strings, imported on first use, so that the hub imports no other package of ours and a missing library is met only by
those who need it. Adding a medium, an objective, a constraint or an algorithm is one file and one line here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fastomp_nvm.errors import RequestError, StoreURLError, UnavailableError

if TYPE_CHECKING:
    from fastomp_nvm.stores.media import Medium

__all__ = ["CONSTRAINTS", "MEDIA", "OBJECTIVES", "REMOTE", "SELECTORS", "TRANSPORTS", "load", "lookup", "medium"]

#: URL scheme -> object with ``open``, ``draft`` and ``exists``.
MEDIA: Mapping[str, str] = MappingProxyType(
    {
        "cluster": "storage_backends.media.cluster:MEDIUM",
        "dram": "storage_backends.media.dram:MEDIUM",
        "mmap": "storage_backends.media.mmap:MEDIUM",
        "pmem": "storage_backends.media.pmem:MEDIUM",
        "shelf": "storage_backends.pymm.shelf:MEDIUM",
    }
)

#: URL schemes that name a server, not a store.
REMOTE = frozenset({"grpc", "grpc+tls", "mcas"})

#: URL scheme -> class that carries a client's calls to a server.
TRANSPORTS: Mapping[str, str] = MappingProxyType(
    {
        "grpc": "ado_plugin.flight.transport:FlightTransport",
        "grpc+tls": "ado_plugin.flight.transport:FlightTransport",
        "mcas": "ado_plugin.mcas.transport:McasTransport",
    }
)

#: Objective name -> class.
OBJECTIVES: Mapping[str, str] = MappingProxyType(
    {
        "linear": "fastomp_nvm.objectives.linear:Linear",
        "logistic": "fastomp_nvm.objectives.logistic:Logistic",
        "poisson": "fastomp_nvm.objectives.poisson:Poisson",
    }
)

#: Algorithm name -> generator function.
SELECTORS: Mapping[str, str] = MappingProxyType(
    {
        "dash": "fastomp_nvm.algorithms.dash:dash",
        "fast": "fastomp_nvm.algorithms.fast:fast",
        "fast_omp": "fastomp_nvm.algorithms.fast_omp:fast_omp",
        "isk": "fastomp_nvm.algorithms.isk:isk",
        "lasso": "fastomp_nvm.algorithms.lasso:lasso",
        "random": "fastomp_nvm.algorithms.random:random_base",
        "sds_ma": "fastomp_nvm.algorithms.sds_ma:sds_ma",
        "sds_omp": "fastomp_nvm.algorithms.sds_omp:sds_omp",
        "top_k": "fastomp_nvm.algorithms.top_k:top_k",
    }
)

#: Constraint name in YAML -> class.
CONSTRAINTS: Mapping[str, str] = MappingProxyType(
    {
        "bounds": "fastomp_nvm.constraints.bounds:Bounds",
        "cardinality": "fastomp_nvm.constraints.cardinality:Cardinality",
        "fairness": "fastomp_nvm.constraints.fairness:Fairness",
        "graphic": "fastomp_nvm.constraints.graphic:Graphic",
        "knapsack": "fastomp_nvm.constraints.knapsack:Knapsack",
        "laminar": "fastomp_nvm.constraints.laminar:Laminar",
        "monotone": "fastomp_nvm.constraints.monotone:Monotone",
        "oracle": "fastomp_nvm.constraints.oracle:Oracle",
        "partition": "fastomp_nvm.constraints.partition:Partition",
        "random": "fastomp_nvm.constraints.random_system:RandomSystem",
    }
)


def load(target: str) -> Any:
    """Import ``package.module:name`` and return the object."""
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise UnavailableError(f"{module} needs the package {error.name!r}, which is not installed here") from error
    except ImportError as error:  # a package that is there, but broken, or built for another release of what it needs
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UnavailableError(f"{module} cannot be loaded ({said}): install releases of its parts that fit each other") from error


def lookup(table: Mapping[str, str], kind: str, name: str) -> Any:
    """Return the entry ``name`` of ``table``, or say which names there are."""
    if name not in table:
        raise RequestError(f"unknown {kind} {name!r}: expected one of {', '.join(sorted(table))}")
    return load(table[name])


def medium(scheme: str) -> Medium:
    """Return the medium behind a URL scheme."""
    if scheme in REMOTE:
        raise StoreURLError(f"{scheme}:// names a server, not a store: use connect, which sends the request to the data")
    if scheme not in MEDIA:
        raise StoreURLError(f"unknown medium {scheme!r}: expected one of {', '.join(sorted(MEDIA))}")
    found: Medium = load(MEDIA[scheme])
    return found
