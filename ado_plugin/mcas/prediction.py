"""A model on a store of an MCAS server, page by page.

A reply of the server holds less than 2 MB, so the linear predictor and the identifiers come in pages, of as many observations
as fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ado_plugin.mcas.calls import Plugin

__all__ = ["ROWS_PER_PAGE", "predicted_pages"]

#: Most observations of one reply: 1.4 MB in base64.
ROWS_PER_PAGE = 1 << 17


def predicted_pages(plugin: Plugin, pool: str, key: str, model: object, timeout: float) -> Iterator[dict[str, Any]]:
    """Yield the linear predictor of a model for a store, and the identifiers, in parts.

    Parameters
    ----------
    plugin : Plugin
    pool, key : str
    model : object
        As ``Selection.linear_model`` returns it; the server checks it.
    timeout : float
        Seconds for one call.
    """
    first, token = 0, None
    while first is not None:
        reply = plugin.call(pool, "predict", timeout, key=key, token=token, model=model, first=first, rows=ROWS_PER_PAGE)
        first, token = reply.pop("next"), reply.pop("token")
        yield reply
