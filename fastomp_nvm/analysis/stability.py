"""Stability selection: how often each feature is selected on random subsamples, all in shared sweeps.

Subsamples are observation weights of 0 and 1 on the one stored matrix; the data is not copied. Tall data is read once, into a Gram
matrix for each block of observations (``fastomp_nvm.selection.compression``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

import numpy as np

from fastomp_nvm.analysis.sharing import Sharing
from fastomp_nvm.analysis.splits import checked_request, draw_blocks, draw_subsample
from fastomp_nvm.arrays import Float64Array, IndexArray, JSONObject
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import RequestError
from fastomp_nvm.matrix.checksum import Check
from fastomp_nvm.selection.display import frame, html_table, listed
from fastomp_nvm.selection.progress import watched
from fastomp_nvm.selection.request import RequestFields, make_request
from fastomp_nvm.selection.response import every_weight, resolve_response
from fastomp_nvm.selection.select import select_shared
from fastomp_nvm.selection.source import Load, Way, open_dataset
from fastomp_nvm.selection.text import clean

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Stability", "stability"]


@dataclass(frozen=True, slots=True)
class Stability:
    """Frequencies of selection over random subsamples (Meinshausen and Buhlmann 2010).

    Attributes
    ----------
    frequencies : (n_features,) float64
        Share of the subsamples in which the feature was selected.
    indices : (s,) int64
        Features selected at least once, the most frequent first, the lower index first among equals.
    features : list of str
        Their names.
    stable : list of str
        Those selected in at least the share ``threshold`` of the subsamples.
    threshold, fraction : float
    subsamples : int
    average_size : float
        Features selected per subsample, on average.
    expected_false : float or None
        Bound ``q^2 / ((2 threshold - 1) n_features)`` on the expected number of irrelevant features among the stable ones,
        q the average size, if irrelevant features are exchangeable; None unless ``fraction`` is 0.5 and ``threshold`` above it.
    objective : str
    objective_reason : str or None
        As in a ``Selection``.
    sharing : Sharing
    """

    frequencies: Float64Array
    indices: IndexArray
    features: Sequence[str]
    stable: Sequence[str]
    threshold: float
    fraction: float
    subsamples: int
    average_size: float
    expected_false: float | None
    objective: str
    objective_reason: str | None
    sharing: Sharing

    def __repr__(self) -> str:
        stable = f"\n  {listed(self.stable)}" if self.stable else ""
        return (
            f"<Stability: {len(self.stable)} features in at least {self.threshold:.0%} of {self.subsamples} subsamples{stable}\n"
            f"  {self.sharing.in_words()}>"
        )

    def _repr_html_(self) -> str:
        rows = [
            (clean(name, 100), f"{self.frequencies[index]:.1%}", "stable" if place < len(self.stable) else "")
            for place, (name, index) in enumerate(zip(self.features, self.indices.tolist(), strict=True))
        ]
        title = f"{len(self.stable)} features in at least {self.threshold:.0%} of {self.subsamples} subsamples"
        return html_table(title, ("feature", "selected in", ""), rows, [self.sharing.in_words()])

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per feature that was selected at least once, the most frequent first."""
        frequencies = self.frequencies[self.indices]
        stable = np.arange(len(self.indices)) < len(self.stable)
        return frame({"feature": list(self.features), "index": self.indices, "frequency": frequencies, "stable": stable})

    @property
    def notes(self) -> Sequence[str]:
        """One sentence where ``expected_false`` says nothing or is not there."""
        if self.expected_false is None:
            return (
                "the number of irrelevant features among the stable ones has no bound here: it needs a fraction of 0.5 and a "
                "threshold above 0.5",
            )
        if self.expected_false < len(self.stable):
            return ()
        return (
            f"the bound on the expected number of irrelevant features, {self.expected_false:.3g}, is not below the "
            f"{len(self.stable)} stable ones and says nothing about them: a higher threshold or a smaller k sharpens it",
        )

    def to_json(self) -> JSONObject:
        """Return the object that ``stability --json`` prints; features that were never selected are left out."""
        return {
            "features": list(self.features),
            "indices": self.indices.tolist(),
            "frequencies": self.frequencies[self.indices].tolist(),
            "stable": list(self.stable),
            "threshold": self.threshold,
            "fraction": self.fraction,
            "subsamples": self.subsamples,
            "average_size": self.average_size,
            "expected_false": self.expected_false,
            "objective": self.objective,
            **({} if self.objective_reason is None else {"objective_reason": self.objective_reason}),
            **({"notes": list(self.notes)} if self.notes else {}),
            **self.sharing.to_json(),
        }


def stability(
    data: object,
    y: object = None,
    *,
    subsamples: int = 50,
    fraction: float = 0.5,
    threshold: float = 0.6,
    threads: int | None = None,
    names: Sequence[str] | None = None,
    observer: Observer | None = None,
    progress: bool | None = None,
    cancelled: Callable[[], bool] | None = None,
    verify: bool = False,
    load: Load | None = None,
    io: Way | None = None,
    check: Check | None = None,
    **request: Unpack[RequestFields],
) -> Stability:
    """Select on random subsamples of the observations, all in shared sweeps, and count how often each feature is selected.

    Parameters
    ----------
    data, y, threads, names, observer, progress, cancelled, verify, load, io, check
        As for ``select``.
    subsamples : int
        How many, drawn by the request's ``seed`` without replacement, classes in proportion. Of many observations they are unions
        of random blocks; see ``draw_blocks`` in ``fastomp_nvm.analysis.splits``.
    fraction : float in (0, 1)
        Share of the observations in each.
    threshold : float in (0, 1]
        Share of the subsamples in which a stable feature is selected.
    **request
        Fields of ``SelectionRequest``.

    Returns
    -------
    Stability
    """
    if isinstance(subsamples, bool) or not isinstance(subsamples, (int, np.integer)) or subsamples < 1:
        raise RequestError(f"subsamples is {subsamples!r}: expected a whole number of at least 1")
    if not 0 < fraction < 1:
        raise RequestError(f"fraction is {fraction!r}: expected a number between 0 and 1, both excluded")
    if not 0 < threshold <= 1:
        raise RequestError(f"threshold is {threshold!r}: expected a number above 0 and at most 1")
    common = checked_request(request)
    with open_dataset(data, names, verify=verify, load=load, io=io, check=check) as dataset:
        response = resolve_response(dataset, common, y)
        every, request = every_weight(dataset, common, request)
        block_of = draw_blocks(fraction, common, response)
        drawn = [draw_subsample(fraction, common, response, block_of, draw) for draw in range(subsamples)]
        if not all(every[rows].any() for rows in drawn):
            raise RequestError(f"a subsample of {fraction:g} of the observations holds none with weight: take a larger fraction")
        requests = [make_request({**request, "weights": np.where(rows, every, 0.0)}) for rows in drawn]
        with watched(observer, progress, "stability") as watching:
            selections, traffic = select_shared(dataset, requests, y, threads=threads, observer=watching, cancelled=cancelled)
        sharing = Sharing.of(traffic, selections, dataset.n_features)
        counts = np.bincount(np.concatenate([found.indices for found in selections]), minlength=dataset.n_features)
        indices = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        features = [dataset.names[index] for index in indices.tolist()]
    frequencies = counts / subsamples
    size = float(counts.sum()) / subsamples
    bounded = threshold > 0.5 and fraction == 0.5
    return Stability(
        frequencies=frequencies,
        indices=indices,
        features=features,
        stable=[name for name, index in zip(features, indices, strict=True) if frequencies[index] >= threshold],
        threshold=threshold,
        fraction=fraction,
        subsamples=subsamples,
        average_size=size,
        expected_false=size**2 / ((2 * threshold - 1) * len(counts)) if bounded else None,
        objective=response.objective,
        objective_reason=response.reason,
        sharing=sharing,
    )
