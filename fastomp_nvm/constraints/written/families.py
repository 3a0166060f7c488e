"""The written form of each family: its name, and the fields of its description as arguments of its class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastomp_nvm import constraints as fc
from fastomp_nvm.constraints.written.document import Item
from fastomp_nvm.constraints.written.field_reader import FieldReader

__all__ = ["FAMILIES"]


def _bounds(item: Item, reader: FieldReader) -> fc.Bounds:
    """Read ``{groups, lower, upper, total}``."""
    fields, n_features = item.fields("groups", "total", optional=("lower", "upper")), len(reader.names)
    names, groups = reader.disjoint_groups(fields["groups"])
    lower = reader.per_group(fields.get("lower"), names, default=0)
    upper = reader.per_group(fields.get("upper"), names, default=n_features)
    return fc.Bounds(n_features, groups, lower, upper, fields["total"].integer(), usable=reader.usable, names=names)


def _cardinality(item: Item, reader: FieldReader) -> fc.Cardinality:
    """Read ``k``."""
    return fc.Cardinality(len(reader.names), item.integer())


def _fairness(item: Item, reader: FieldReader) -> fc.Fairness:
    """Read ``{judgements, lambda, kind, accuracy, disparity, raises_accuracy, raises_disparity, unlisted}``."""
    tables, masks = ("accuracy", "disparity"), ("raises_accuracy", "raises_disparity")
    fields = item.fields("judgements", "lambda", optional=("kind", "unlisted", *tables, *masks))
    unlisted = fields["unlisted"].choice("error", "fair", "unfair") if "unlisted" in fields else "error"
    kind = fields["kind"].choice("apriori", "accuracy", "disparity") if "kind" in fields else "apriori"
    judgements = fc.effective_judgements(
        reader.judgements(fields["judgements"], unlisted=unlisted),
        kind=kind,  # type: ignore[arg-type]  # choice returned one of the three
        **{name: reader.judgements(fields[name], unlisted=unlisted) for name in tables if name in fields},
        **{name: reader.mask(fields[name]) for name in masks if name in fields},
    )
    return fc.Fairness(len(reader.names), judgements, fields["lambda"].number())


def _graphic(item: Item, reader: FieldReader) -> fc.Graphic:
    """Read ``{edges}``."""
    return fc.Graphic(len(reader.names), reader.edges(item.fields("edges")["edges"]))


def _knapsack(item: Item, reader: FieldReader) -> fc.Knapsack:
    """Read ``{costs, budget, default}``."""
    fields = item.fields("costs", "budget", optional=("default",))
    default = fields["default"].number() if "default" in fields else None
    costs = reader.numbers(fields["costs"], column="cost", default=default)
    return fc.Knapsack(len(reader.names), costs, fields["budget"].number())


def _laminar(item: Item, reader: FieldReader) -> fc.Laminar:
    """Read ``{groups, caps}``."""
    fields = item.fields("groups", "caps")
    names, groups = reader.groups(fields["groups"])
    return fc.Laminar(len(reader.names), groups, reader.per_group(fields["caps"], names), names=names)


def _monotone(item: Item, reader: FieldReader) -> fc.Monotone:
    """Read ``{function, threshold, takes, rank, workers}``."""
    fields = item.fields("function", "threshold", optional=("takes", "rank", "workers"))
    return fc.Monotone(len(reader.names), threshold=fields["threshold"].number(), **_function("h", fields, reader))


def _oracle(item: Item, reader: FieldReader) -> fc.Oracle:
    """Read ``module:function`` or ``{function, takes, rank, workers}``."""
    fields = {"function": item} if item.is_text else item.fields("function", optional=("takes", "rank", "workers"))
    return fc.Oracle(len(reader.names), **_function("function", fields, reader))


def _function(parameter: str, fields: Mapping[str, Item], reader: FieldReader) -> dict[str, Any]:
    """Return the function of a description, as the argument ``parameter``, and the optional arguments beside it."""
    by_name = "takes" in fields and fields["takes"].choice("indices", "names") == "names"
    options = {name: fields[name].integer() for name in ("rank", "workers") if name in fields}
    return {parameter: reader.function(fields["function"], by_name=by_name), **options}


def _partition(item: Item, reader: FieldReader) -> fc.Partition:
    """Read ``{groups, caps}``."""
    fields = item.fields("groups", "caps")
    names, groups = reader.disjoint_groups(fields["groups"])
    return fc.Partition(len(reader.names), groups, reader.per_group(fields["caps"], names), names=names)


def _random(item: Item, reader: FieldReader) -> fc.RandomSystem:
    """Read ``{p, groups, cap, seed}``."""
    numbers = {name: value.integer() for name, value in item.fields("p", "groups", "cap", optional=("seed",)).items()}
    return fc.RandomSystem(len(reader.names), n_groups=numbers.pop("groups"), **numbers)


#: Name of a family -> function that builds a constraint from its written form.
FAMILIES: Mapping[str, Callable[[Item, FieldReader], fc.Constraint]] = {
    "bounds": _bounds,
    "cardinality": _cardinality,
    "fairness": _fairness,
    "graphic": _graphic,
    "knapsack": _knapsack,
    "laminar": _laminar,
    "monotone": _monotone,
    "oracle": _oracle,
    "partition": _partition,
    "random": _random,
}
