"""fastomp: select a few features out of millions, under fairness and other constraints, where the data lives.

Importing this package does no work: each public name is imported from its module on first use.

>>> import fastomp_nvm as fo
>>> store = fo.create_store("dram:example", [[1.0, 2.0], [2.0, 1.0], [3.0, 5.0], [4.0, 3.0]], [1.0, 2.0, 3.0, 4.1])
>>> fo.select(store, k=1).features
['f0']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastomp_nvm.registry import lazily
from fastomp_nvm.version import __version__

if TYPE_CHECKING:
    from fastomp_nvm import constraints
    from fastomp_nvm.analysis.cross_validation import cross_validate
    from fastomp_nvm.analysis.grid import grid
    from fastomp_nvm.analysis.path import path
    from fastomp_nvm.analysis.stability import stability
    from fastomp_nvm.errors import (
        CancelledError,
        ConstraintError,
        DataError,
        FastompError,
        InfeasibleError,
        InputError,
        MediumError,
        RequestError,
        ServerError,
        StoreError,
        StoreURLError,
        UnavailableError,
        UnreachableError,
        UploadLostError,
    )
    from fastomp_nvm.remote.client import Client, connect
    from fastomp_nvm.runs.drive import forget, list_runs, resume
    from fastomp_nvm.runs.select import select
    from fastomp_nvm.runs.verify import verify
    from fastomp_nvm.selection.covariates import Covariates
    from fastomp_nvm.selection.fairness import FairnessReport
    from fastomp_nvm.selection.group_fairness import fairness_report
    from fastomp_nvm.selection.model_file import load
    from fastomp_nvm.selection.request import SelectionRequest
    from fastomp_nvm.selection.result import Selection
    from fastomp_nvm.selection.select import select_many
    from fastomp_nvm.sklearn import FastOMPClassifier, FastOMPRegressor, FastOMPSelector
    from fastomp_nvm.stores.builders import ingest
    from fastomp_nvm.stores.contract import FeatureStore
    from fastomp_nvm.stores.open import create_store, open_store

__all__ = [
    "CancelledError",
    "Client",
    "ConstraintError",
    "Covariates",
    "DataError",
    "FairnessReport",
    "FastOMPClassifier",
    "FastOMPRegressor",
    "FastOMPSelector",
    "FastompError",
    "FeatureStore",
    "InfeasibleError",
    "InputError",
    "MediumError",
    "RequestError",
    "Selection",
    "SelectionRequest",
    "ServerError",
    "StoreError",
    "StoreURLError",
    "UnavailableError",
    "UnreachableError",
    "UploadLostError",
    "__version__",
    "connect",
    "constraints",
    "create_store",
    "cross_validate",
    "fairness_report",
    "forget",
    "grid",
    "ingest",
    "list_runs",
    "load",
    "open_store",
    "path",
    "resume",
    "select",
    "select_many",
    "stability",
    "verify",
]

_load = lazily(
    __name__,
    {
        "analysis.cross_validation": ("cross_validate",),
        "analysis.grid": ("grid",),
        "analysis.path": ("path",),
        "analysis.stability": ("stability",),
        "errors": tuple(name for name in __all__ if name.endswith("Error")),
        "remote.client": ("Client", "connect"),
        "runs.drive": ("forget", "list_runs", "resume"),
        "runs.select": ("select",),
        "runs.verify": ("verify",),
        "selection.fairness": ("FairnessReport",),
        "selection.group_fairness": ("fairness_report",),
        "selection.model_file": ("load",),
        "selection.covariates": ("Covariates",),
        "selection.request": ("SelectionRequest",),
        "selection.result": ("Selection",),
        "selection.select": ("select_many",),
        "sklearn": ("FastOMPClassifier", "FastOMPRegressor", "FastOMPSelector"),
        "stores.builders": ("ingest",),
        "stores.contract": ("FeatureStore",),
        "stores.open": ("create_store", "open_store"),
    },
)


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use."""
    if name == "constraints":  # a subpackage: importing it makes it an attribute
        import fastomp_nvm.constraints

        return fastomp_nvm.constraints
    return _load(name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
