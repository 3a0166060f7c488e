"""Features of a store by pattern, in pages; the same on this machine and on a server."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Any

from fastomp_nvm.errors import RequestError
from fastomp_nvm.limits import PATTERN_CHARACTERS, checkpoint
from fastomp_nvm.stores.contract import FeatureStore

__all__ = ["PAGE", "list_names"]

#: Features in a page; a reply of a server holds one page.
PAGE = 5_000


def list_names(store: FeatureStore, wanted: object) -> dict[str, Any]:
    """Return one page of the features that match a pattern, as plain JSON data.

    Parameters
    ----------
    store : FeatureStore
    wanted : mapping
        ``pattern``: a case-sensitive shell pattern; a text without wildcards may be anywhere in a name; None matches all.
        ``first``: index of the feature to begin with.

    Returns
    -------
    dict
        ``features``, a list of ``[name, number of columns]``, and ``next``, the feature to continue with, None at the end.
    """
    asked = wanted if isinstance(wanted, Mapping) else {}
    pattern, first = asked.get("pattern"), asked.get("first", 0)
    if not (pattern is None or (isinstance(pattern, str) and len(pattern) <= PATTERN_CHARACTERS)):
        raise RequestError(f"the pattern of names is not a text of at most {PATTERN_CHARACTERS} characters")
    if not isinstance(first, int) or first < 0:
        raise RequestError(f"the first feature is {first!r}: expected a whole number of at least 0")
    if pattern is not None and not re.search(r"[*?\[]", pattern):
        pattern = f"*{pattern}*"
    matches = (lambda name: True) if pattern is None else re.compile(fnmatch.translate(pattern)).match
    names, offsets = store.names, store.layout.offsets
    found: list[list[Any]] = []
    for index in range(first, len(names)):
        if index % 10_000 == 0:
            checkpoint()
        if len(found) == PAGE:
            return {"features": found, "next": index}
        if matches(name := names[index]):
            found.append([name, int(offsets[index + 1] - offsets[index])])
    return {"features": found, "next": None}
