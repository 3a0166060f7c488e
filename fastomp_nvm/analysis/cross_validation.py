"""Choice of k by cross-validation, all folds and all k in shared sweeps; nested greedy runs once per fold, for the largest k.

Folds are observation weights of 0 and 1 on the one stored matrix: means, norms and fits of a fold see its training observations
only, and the data is not copied. Tall data is read once, into a Gram matrix for each fold (``fastomp_nvm.selection.compression``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Unpack

import numpy as np

from fastomp_nvm.analysis.sharing import Sharing
from fastomp_nvm.analysis.splits import checked_request, draw_folds
from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray, JSONObject
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import DataError, RequestError
from fastomp_nvm.matrix.checksum import Check
from fastomp_nvm.selection.display import frame, html_table, listed, score_in_words
from fastomp_nvm.selection.group_fairness import GroupFairness
from fastomp_nvm.selection.progress import watched
from fastomp_nvm.selection.request import RequestFields, make_request
from fastomp_nvm.selection.response import every_weight, resolve_response
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.select import nested, select_shared
from fastomp_nvm.selection.source import Load, Way, open_dataset

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CrossValidation", "cross_validate", "sizes_to_try"]


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """The result of a cross-validation over k.

    Attributes
    ----------
    ks : (m,) int64
        Ascending.
    scores : (m, n_folds) float64
        On the held-out observations of each fold: R^2, or mean log-likelihood.
    mean, standard_error : (m,) float64
        Over the folds.
    best_k : int
        The k with the highest mean; the smallest among equals.
    one_standard_error_k : int
        The smallest k whose mean is within one standard error of the best.
    k : int
        The k chosen by the rule.
    selection : Selection
        With this k, on all observations.
    fold_of : (n_obs,) int64
        The fold in which each observation is held out.
    fold_selections : sequence of sequence of Selection
        By k and fold.
    sharing : Sharing
    """

    ks: IndexArray
    scores: Float64Array
    mean: Float64Array
    standard_error: Float64Array
    best_k: int
    one_standard_error_k: int
    k: int
    selection: Selection
    fold_of: IndexArray
    fold_selections: Sequence[Sequence[Selection]]
    sharing: Sharing

    def __repr__(self) -> str:
        place = int(np.flatnonzero(self.ks == self.k)[0])
        score = f"{self.mean[place]:.4g} (standard error {self.standard_error[place]:.2g})"
        return (
            f"<CrossValidation: k = {self.k} of {len(self.ks)} tried, mean score {score} over {self.scores.shape[1]} folds\n"
            f"  {listed(self.selection.features)}\n  {self.sharing.in_words()}>"
        )

    def _repr_html_(self) -> str:
        marks = {self.one_standard_error_k: "within one standard error", self.best_k: "best"}
        rows = [
            (str(k), f"{mean:.6g}", f"{error:.2g}", marks.get(k, ""))
            for k, mean, error in zip(self.ks.tolist(), self.mean, self.standard_error, strict=True)
        ]
        title = f"k = {self.k} by {self.scores.shape[1]} folds; on all observations: {score_in_words(self.selection)}"
        notes = [listed(self.selection.features), self.sharing.in_words()]
        fairness = "" if self.selection.fairness is None else self.selection.fairness._repr_html_()
        return html_table(title, ("k", "mean", "standard error", ""), rows, notes) + fairness

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per k: means, standard errors and the score of every fold."""
        splits = {f"fold_{fold}": self.scores[:, fold] for fold in range(self.scores.shape[1])}
        return frame({"k": self.ks, "mean": self.mean, "standard_error": self.standard_error, **splits})

    @property
    def cv_results_(self) -> dict[str, AnyArray]:
        """The scores as scikit-learn's searches name them: ``param_k``, ``split0_test_score``, ..., ``mean_test_score``, ..."""
        ranks = 1 + (self.mean[:, None] < self.mean).sum(axis=1)
        splits = {f"split{fold}_test_score": self.scores[:, fold] for fold in range(self.scores.shape[1])}
        return {
            "param_k": self.ks,
            "params": np.array([{"k": k} for k in self.ks.tolist()], dtype=object),
            **splits,
            "mean_test_score": self.mean,
            "std_test_score": self.scores.std(axis=1),
            "rank_test_score": ranks.astype(np.int32),
        }

    def to_json(self) -> JSONObject:
        """Return the object that ``cv --json`` prints."""
        return {
            "ks": self.ks.tolist(),
            "mean": self.mean.tolist(),
            "standard_error": self.standard_error.tolist(),
            "scores": self.scores.tolist(),
            "folds": self.scores.shape[1],
            "best_k": self.best_k,
            "one_standard_error_k": self.one_standard_error_k,
            "k": self.k,
            "selection": self.selection.to_json(),
            **self.sharing.to_json(),
        }


def cross_validate(
    data: object,
    y: object = None,
    *,
    folds: int | Sequence[int] | IndexArray = 5,
    ks: Sequence[int] | None = None,
    k_max: int | None = None,
    rule: Literal["best", "one-standard-error"] = "best",
    threads: int | None = None,
    names: Sequence[str] | None = None,
    observer: Observer | None = None,
    progress: bool | None = None,
    cancelled: Callable[[], bool] | None = None,
    verify: bool = False,
    load: Load | None = None,
    io: Way | None = None,
    check: Check | None = None,
    protected: object = None,
    keep_protected: bool = False,
    bootstrap: int | None = None,
    **request: Unpack[RequestFields],
) -> CrossValidation:
    """Choose k by cross-validation, all folds and all k in shared sweeps.

    For each k and each fold a selection of at most k features is standardised and fitted on the training observations alone, and
    scored on the held-out ones. The selections on all observations are part of the same sweeps, so that the final one needs no
    further pass.

    Parameters
    ----------
    data, y, threads, names, observer, progress, cancelled, verify, load, io, check, protected, keep_protected, bootstrap
        As for ``select``. The fairness report is about the models of the folds with the k chosen, on the observations that each has
        not seen.
    folds : int or (n_obs,) int64
        How many, drawn by the request's ``seed`` with classes spread evenly; or the fold of each observation, from 0.
    ks : sequence of int, optional
        Values of k to try.
    k_max : int, optional
        Try 1 to ``k_max`` instead.
    rule : {"best", "one-standard-error"}
        How k is chosen.
    **request
        The other fields of ``SelectionRequest``. Observation weights apply to training and scores.

    Returns
    -------
    CrossValidation
    """
    tried = sizes_to_try(ks, k_max)
    if rule not in ("best", "one-standard-error"):
        raise RequestError(f"rule is {rule!r}: expected best or one-standard-error")
    if request.get("k") is not None:
        raise RequestError("cross-validation chooses k itself: give ks or k_max instead")
    common = checked_request(request)
    with open_dataset(data, names, verify=verify, load=load, io=io, check=check) as dataset:
        fairness = GroupFairness.of_request(dataset, y, request, protected, keep_protected, bootstrap)
        if fairness is not None:
            request = fairness.without_protected(request)
            common = checked_request(request)
        response = resolve_response(dataset, common, y)
        fold_of = draw_folds(folds, common, response)
        every, request = every_weight(dataset, common, request)
        n_folds = int(fold_of.max()) + 1
        training = [np.where(fold_of == fold, 0.0, every) for fold in range(n_folds)]
        held_out = [np.where(fold_of == fold, every, 0.0) for fold in range(n_folds)]
        if not all(weights.any() for weights in (*training, *held_out)):
            raise RequestError("a fold holds no observation with weight, or all of them: choose fewer folds")
        requests = [make_request({**request, "k": k, "weights": weights}) for k in tried for weights in training]
        requests += [make_request({**request, "k": k}) for k in tried]
        tests = [*held_out * len(tried), *[None] * len(tried)]
        last = (len(tried) - 1) * n_folds  # where the requests with the largest k begin
        longest = [*range(last, last + n_folds)] * len(tried) + [len(requests) - 1] * len(tried)
        with watched(observer, progress, "cv") as watching:
            selections, traffic = select_shared(
                dataset,
                requests,
                y,
                threads=threads,
                observer=watching,
                cancelled=cancelled,
                held_out=tests,
                longest=longest if nested(dataset, common) else (),
                beside=None if fairness is None else fairness.beside,
            )
        by_k = [selections[place * n_folds : (place + 1) * n_folds] for place in range(len(tried))]
        scores = np.array([[selection.test_score for selection in row] for row in by_k], dtype=np.float64)  # None becomes NaN
        if not np.isfinite(scores).all():
            raise DataError("the target is constant on the held-out observations of a fold: choose fewer folds")
        sharing = Sharing.of(traffic, selections, dataset.n_features)
        mean, error = scores.mean(axis=1), scores.std(axis=1, ddof=1) / math.sqrt(n_folds)
        best = int(np.argmax(mean))
        within = int(np.flatnonzero(mean >= mean[best] - error[best])[0])
        chosen = best if rule == "best" else within
        selection = selections[len(tried) * n_folds + chosen]
        if fairness is not None:
            selection = fairness.over_folds(selection, by_k[chosen], fold_of, y, request)
    return CrossValidation(
        ks=np.array(tried, dtype=np.int64),
        scores=scores,
        mean=mean,
        standard_error=error,
        best_k=tried[best],
        one_standard_error_k=tried[within],
        k=tried[chosen],
        selection=selection,
        fold_of=fold_of,
        fold_selections=by_k,
        sharing=sharing,
    )


def sizes_to_try(ks: Sequence[int] | None, k_max: int | None) -> list[int]:
    """Return the sizes to try, ascending, each once."""
    if (ks is None) == (k_max is None):
        raise RequestError("give either a list of sizes to try (ks; in the shell --k 1,2,5) or the largest of them (--k-max 20)")
    given = list(ks) if ks is not None else list(range(1, (k_max or 0) + 1))
    if not given:
        raise RequestError("there is no size to try: expected at least one k")
    for k in given:
        make_request({"k": k})
    return sorted({int(k) for k in given})
