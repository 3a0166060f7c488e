"""fastomp: select a few features out of millions, under fairness and other constraints, where the data lives.

>>> import fastomp_nvm as fo
>>> store = fo.create_store("dram:example", [[1.0, 2.0], [2.0, 1.0], [3.0, 5.0], [4.0, 3.0]], [1.0, 2.0, 3.0, 4.1])
>>> fo.select(store, k=1).features
['f0']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastomp_nvm import constraints
from fastomp_nvm.analysis.group_fairness import FairnessReport, fairness_report
from fastomp_nvm.analysis.many import cross_validate, grid, stability
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
from fastomp_nvm.runs.drive import resume, runs
from fastomp_nvm.selection.request import SelectionRequest
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.select import select, select_many
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.open import create_store, open_store

if TYPE_CHECKING:
    from fastomp_nvm.sklearn import FastOMPClassifier, FastOMPRegressor, FastOMPSelector

__version__ = "0.1.0"

__all__ = [
    "CancelledError",
    "Client",
    "ConstraintError",
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
    "grid",
    "open_store",
    "resume",
    "runs",
    "select",
    "select_many",
    "stability",
]


def __getattr__(name: str) -> Any:
    """Import the scikit-learn estimators on first use: everything else works without scikit-learn."""
    if name in ("FastOMPClassifier", "FastOMPRegressor", "FastOMPSelector"):
        from fastomp_nvm import registry

        return registry.load(f"fastomp_nvm.sklearn:{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
