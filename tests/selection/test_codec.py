"""Requests, selections and vectors survive JSON, and nothing else is accepted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.selection.codec import (
    decode_request,
    decode_selection,
    decode_vector,
    encode_request,
    encode_selection,
    encode_vector,
)
from fastomp_nvm.selection.covariates import Covariates

REQUEST = fo.SelectionRequest(
    k=7,
    algorithm="sds_omp",
    objective="logistic",
    constraint={"cardinality": 5},
    epsilon=0.2,
    tau=0.3,
    seed=4,
    until="full",
    polish="none",
    skip_weak=True,
    plain=True,
    ridge=0.5,
    standardize=False,
    target="sold",
    weights=np.array([0.1, 1.0, 2.0]),
    offset="exposure",
    test_fraction=0.25,
    exclude=("f1", "f2"),
    keep=("age", "pc_*"),
    keep_inside=True,
    covariates=Covariates(("a", "b"), np.array([[0.1, 1.0], [0.2, 3.0], [0.3, 4.0]]), ("p", "q", "r")),
    certificate=True,
    lambda_min=0.5,
    gather_bytes=1 << 20,
    tier="exact",
    gram="never",
)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def fields(request: fo.SelectionRequest) -> dict[str, Any]:
    out = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    lists = {name: list(out[name]) for name in ("exclude", "keep")}
    if out["covariates"] is not None:
        lists["covariates"] = [out["covariates"].names, out["covariates"].values.tolist(), out["covariates"].ids]
    return {**out, **lists, "weights": None if out["weights"] is None else out["weights"].tolist()}


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("request_", [REQUEST, fo.SelectionRequest(k=3)], ids=["every field", "defaults"])
def test_a_request_survives(request_: fo.SelectionRequest, complete: bool) -> None:
    """Every field comes back; complete requests name all of them, others the objective and those that differ from the defaults."""
    encoded = through_json(encode_request(request_, complete=complete))
    assert fields(decode_request(encoded)) == fields(request_)
    names = set(fo.SelectionRequest.__dataclass_fields__)
    changed = names - {"quality"} if request_ is REQUEST else {"k", "objective"}  # a quality belongs to the default algorithm
    assert set(encoded) == (names if complete else changed)


def test_a_request_of_an_older_release_is_linear() -> None:
    """A request without an objective was written by a release whose default was linear, and stays linear."""
    assert decode_request({"k": 3}).objective == "linear"
    assert decode_request({"k": 3, "objective": "auto"}).objective == "auto"


def test_a_constraint_file_is_encoded_with_the_files_it_names(tmp_path: Path) -> None:
    """A path becomes a description that needs no file; a constraint object cannot be encoded."""
    (tmp_path / "costs.csv").write_text("feature,cost\nf0,2\nf1,3\n")
    (tmp_path / "c.yaml").write_text("knapsack: {costs: costs.csv, budget: 4}\n")
    encoded = through_json(encode_request(fo.SelectionRequest(constraint=tmp_path / "c.yaml")))
    assert "costs.csv" not in encoded["constraint"]
    with pytest.raises(fo.RequestError, match="give its description"):
        encode_request(fo.SelectionRequest(constraint=fo.constraints.Cardinality(9, 2)))
    with pytest.raises(fo.RequestError, match="cannot be written as JSON"):
        encode_request(fo.SelectionRequest(constraint={"cardinality": float("nan")}))


@pytest.mark.parametrize("request_", [{"k": 4}, {"k": 2, "certificate": True, "tau": "auto", "test_fraction": 0.2}])
@pytest.mark.parametrize("objective", ["linear", "logistic"])
def test_a_selection_survives(request_: dict[str, Any], objective: str) -> None:
    """The decoded selection prints the same object, predicts the same bits and has the same columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 12))
    y = X[:, 1] - X[:, 5] + 0.3 * rng.normal(size=80)
    with fo.create_store("dram:codec", X, y > 0 if objective == "logistic" else y, groups={"g": [1, 2]}, replace=True) as store:
        found = fo.select(store, objective=objective, **request_)
    again = decode_selection(through_json(encode_selection(found)))
    assert list(again.to_json().items()) == list(through_json(found.to_json()).items())
    assert np.array_equal(again.predict(X), found.predict(X))
    assert (again.columns, again.certificate, again.store) == (found.columns, found.certificate, found.store)


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: sent.pop("columns"),
        lambda sent: sent["json"].pop("score"),
        lambda sent: sent["json"].update(indices=["one"]),
        lambda sent: sent["json"]["coef"].pop(),
        lambda sent: sent["column_positions"].append(3),
        lambda sent: sent["json"].update(features=[1, 2]),
        lambda sent: sent.update(json=[]),
    ],
)
def test_a_damaged_selection_is_refused(change: Any) -> None:
    """A missing field, one of the wrong type and parts that do not fit together are a ValueError; unknown fields are ignored."""
    X = np.random.default_rng(0).normal(size=(30, 4))
    sent = through_json(encode_selection(fo.select(X, X[:, 0] - X[:, 2], k=2)))
    sent["json"]["of a later release"] = 1
    decode_selection(sent)
    change(sent)
    with pytest.raises(ValueError, match=r"a field is missing or of the wrong type|do not fit together|invalid literal"):
        decode_selection(sent)


@pytest.mark.parametrize("values", [[1.5, -0.0], [True, False], ["a", "b"], np.array([1, 2], dtype=">i2"), [[1.0], [2.0]]])
def test_a_vector_survives(values: Any) -> None:
    """Numbers, truth values and text come back with their bits; a column is a vector."""
    again = decode_vector(through_json(encode_vector(values)), "y")
    assert again.tolist() == np.asarray(values).ravel().tolist()
    assert again.dtype.kind == np.asarray(values).dtype.kind


@pytest.mark.parametrize(
    ("shape", "accepted"), [([2], True), ([2, 1], True), ([1, 2], True), ([2, 2], False), ([3], False), ("2", False)]
)
def test_a_vector_may_state_its_shape(shape: Any, accepted: bool) -> None:
    """Files of the first format state it; any other than that of a vector of this length is refused."""
    sent = {**encode_vector([1.0, 2.0]), "shape": shape}
    if accepted:
        assert decode_vector(sent, "y").tolist() == [1.0, 2.0]
    else:
        with pytest.raises(fo.RequestError, match="y has the shape"):
            decode_vector(sent, "y")
