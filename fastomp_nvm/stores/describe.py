"""The description of a store that ``fastomp info`` prints, locally and from a server."""

from __future__ import annotations

import datetime
import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from fastomp_nvm.errors import InputError
from fastomp_nvm.limits import PATTERN_CHARACTERS, checkpoint
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.reports import ColumnReport

__all__ = ["columns_of", "describe"]

# Names that a description lists unless all columns are asked for.
_NAMES_SHOWN = 20
_EXAMPLES = 3


def describe(store: FeatureStore, columns: str | None = None) -> dict[str, Any]:
    """Return the description of a store as plain JSON data.

    Parameters
    ----------
    store : FeatureStore
    columns : str, optional
        Pattern (``*`` for all) of columns to describe one by one.
    """
    layout, traits = store.layout, store.traits
    listed = {} if columns is None else {"columns": [asdict(column) for column in columns_of(store, columns)]}
    shown = layout.n_features if columns == "*" else min(layout.n_features, _NAMES_SHOWN)
    return {
        "url": store.url,
        "medium": traits.medium,
        "durability": traits.durability,
        "emulated": traits.emulated,
        "detail": traits.detail,
        "n_features": layout.n_features,
        "n_columns": layout.n_columns,
        "n_obs": layout.n_obs,
        "dtype": layout.dtype,
        "bytes": int(store.matrix.nbytes),
        "blocks": len(layout.blocks) - 1,
        "tier": "none" if store.tier is None else "int8",
        "tier_bytes": 0 if store.tier is None else int(store.tier.codes.nbytes),
        "fingerprint": layout.fingerprint,
        "unchecked": store.unchecked,
        "constant_columns": int((store.statistics.norm == 0).sum()),
        "targets": {name: {"classes": list(target.classes)} for name, target in store.targets.items()},
        "identifiers": _identifiers(store),
        "names_shown": shown,
        "features": list(store.names[:shown]),
        **listed,
        **({"shards": list(store.shards)} if store.shards else {}),
    }


def columns_of(store: FeatureStore, pattern: str = "*") -> Iterator[ColumnReport]:
    """Yield what is known of the columns of the table behind a store whose names match a pattern.

    Parameters
    ----------
    store : FeatureStore
    pattern : str
        With ``*``, ``?`` and ``[...]``, or a name; at most ``PATTERN_CHARACTERS``.

    Raises
    ------
    InputError
        The pattern is too long.
    """
    if len(pattern) > PATTERN_CHARACTERS:
        raise InputError(
            f"the pattern of columns has {len(pattern)} characters, at most {PATTERN_CHARACTERS} are possible: shorten it with *"
        )
    match = re.compile(fnmatch.translate(pattern)).match
    table = _table(store)
    missing, advice = table.get("missing", {}), table.get("advice", {})
    for name, feature, first, labels in _sources(store):
        checkpoint()
        if name != pattern and match(name) is None:
            continue
        encoding = None if store.encoding is None else store.encoding.columns.get(name)
        kind = "category" if labels else "date" if encoding is not None and encoding.kind == "date" else "number"
        width = max(1, len(labels))
        constant = bool((store.statistics.norm[first : first + width] == 0).all())
        group = "" if name == feature else f", in the group {feature!r}"
        assumed = str(table.get("assumed", {}).get(name, "as it is"))
        if kind != "number":
            assumed = "one-hot" if labels else "days since 1970-01-01"
        examples = tuple(labels[:_EXAMPLES]) if labels else _examples(store, first, kind)
        yield ColumnReport(
            name,
            "constant" if constant else kind,
            int(missing.get(name, 0)),
            len(labels) or None,
            examples,
            assumed + group,
            str(advice.get(name, "")),
        )
    for name, target in store.targets.items():
        if name == pattern or match(name) is not None:
            values = tuple(target.classes[:_EXAMPLES]) or tuple(f"{value:g}" for value in target.values[:_EXAMPLES].tolist())
            kind = "category" if target.classes else "number"
            yield ColumnReport(name, "target", int(missing.get(name, 0)), len(target.classes) or None, values, kind)
    for name, kind, assumed in table.get("left_out", ()):
        if name == pattern or match(name) is not None:
            examples = tuple(store.ids[:_EXAMPLES]) if kind == "identifier" and store.ids is not None else ()
            yield ColumnReport(name, kind, -1 if kind == "dropped" else 0, None, examples, assumed)


def _sources(store: FeatureStore) -> Iterator[tuple[str, str, int, tuple[str, ...]]]:
    """Yield each column of the table: its name, its feature, its first column in the store, and its labels."""
    names, offsets, encoding = store.column_names, store.layout.offsets.tolist(), store.encoding
    known = {} if encoding is None else {name: each for name, each in encoding.columns.items() if each.labels}
    first_label = {f"{name}={each.labels[0]}": name for name, each in known.items()}
    for feature, first, last in zip(store.names, offsets, offsets[1:], strict=False):
        column = first
        while column < last:
            name = names[column]
            source = first_label.get(name, feature if feature in known and last - first == 1 else None)
            if source is not None:
                labels = known[source].labels
                yield source, feature, column, labels
                column += len(labels)
            elif encoding is None and last - first > 1 and name.startswith(f"{feature}="):
                labels = tuple(each.removeprefix(f"{feature}=") for each in names[first:last])
                yield feature, feature, first, labels
                column = last
            else:
                yield name, feature, column, ()
                column += 1


def _table(store: FeatureStore) -> Mapping[str, Any]:
    """Return what an ingest noted about the columns of its source, or nothing if it is not what an ingest writes."""
    provenance = getattr(store, "provenance", {})
    found = provenance.get("table") if isinstance(provenance, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    left_out = found.get("left_out", [])
    right = isinstance(left_out, (list, tuple)) and all(
        isinstance(entry, (list, tuple)) and len(entry) == 3 and all(isinstance(text, str) for text in entry) for entry in left_out
    )
    for key, kind in (("missing", int), ("assumed", str), ("advice", str)):
        entries = found.get(key, {})
        right = right and isinstance(entries, Mapping) and all(isinstance(value, kind) for value in entries.values())
    return found if right else {}


def _identifiers(store: FeatureStore) -> dict[str, Any] | None:
    """Return the name of the identifiers, a few of them and the number of repeated ones; None without identifiers."""
    if store.ids is None:
        return None
    name = next((name for name, kind, _ in _table(store).get("left_out", ()) if kind == "identifier"), None)
    return {"column": name, "first": list(store.ids[:_EXAMPLES]), "repeated": len(store.ids) - len(set(store.ids))}


def _examples(store: FeatureStore, column: int, kind: str) -> tuple[str, ...]:
    """Return the first values of a column; none if they are on other machines."""
    if store.shards:
        return ()
    values = np.asarray(store.matrix[column][:_EXAMPLES], dtype=np.float64).tolist()
    if kind == "date":
        epoch = datetime.date(1970, 1, 1)
        return tuple(str(epoch + datetime.timedelta(days=int(value // 1))) for value in values if abs(value) < 7e5)
    return tuple(f"{value:g}" for value in values)
