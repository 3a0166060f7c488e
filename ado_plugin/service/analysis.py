"""An analysis (grid, cross-validation or the like) next to the data, in the terms of a server's job: checked, and carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ado_plugin.service.limits import JobLimits
from ado_plugin.service.needs import needs_of_analysis
from fastomp_nvm.analysis.wire import ANALYSES, decode_fields
from fastomp_nvm.arrays import AnyArray, JSONObject
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import RequestError
from fastomp_nvm.selection.codec import decode_vector
from fastomp_nvm.stores.contract import FeatureStore

__all__ = ["carry_out", "checked_analysis"]


def checked_analysis(
    kind: str, sent: JSONObject, options: Mapping[str, Any], y: AnyArray | None, store: FeatureStore, limits: JobLimits
) -> tuple[JSONObject, int, int]:
    """Return what ``needs_of_analysis`` does for an analysis whose kind and options come from anybody.

    Parameters
    ----------
    kind : str
    sent, options : mapping
        Fields of the request, and the options, in JSON terms.
    y : (n_obs,) array, optional
    store : FeatureStore
    limits : JobLimits
    """
    if kind not in ANALYSES:
        raise RequestError(f"there is no analysis {kind[:40]!r}: expected one of {', '.join(ANALYSES)}")
    return needs_of_analysis(kind, sent, ANALYSES[kind].decode_options(options), y, store, limits)


def carry_out(
    kind: str,
    sent: Mapping[str, Any],
    options: Mapping[str, Any],
    y: object,
    store: FeatureStore,
    *,
    verify: bool,
    observer: Observer,
    cancelled: Callable[[], bool],
    threads: int | None = None,
) -> list[dict[str, Any]]:
    """Carry out an analysis that was checked, and return its answers, encoded.

    Parameters
    ----------
    kind, sent, options, store
        As for ``checked_analysis``.
    y : object
        The response, encoded, or None.
    verify : bool
        Compare the store with its checksums first.
    observer, cancelled, threads
        As for ``fastomp_nvm.select``.
    """
    analysis = ANALYSES[kind]
    result = analysis.run(
        store,
        None if y is None else decode_vector(y, "y"),
        threads=threads,
        observer=observer,
        cancelled=cancelled,
        verify=verify,
        **analysis.decode_options(options),
        **decode_fields(sent),
    )
    return analysis.encode(result, options)
