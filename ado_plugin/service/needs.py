"""What a job needs of the machine: upper estimates of its memory and of the bytes that it reads, known before it is queued.

The runs of an analysis (grid, cross-validation and the like) share their sweeps, and what they gather where the request leaves it
open is bounded by a share of the server's limit: that changes bytes read, never an answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ado_plugin.service.limits import JobLimits
from fastomp_nvm.algorithms.verified import LONGEST, PRODUCT_BYTES
from fastomp_nvm.analysis.wire import ANALYSES, Runs
from fastomp_nvm.arrays import AnyArray, JSONObject
from fastomp_nvm.constraints.written.description import parse_constraint
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import RequestError, ServerError
from fastomp_nvm.limits import ANALYSIS_SELECTIONS, checkpoint
from fastomp_nvm.matrix.pool import LARGEST_BUDGET, SMALLEST_BUDGET
from fastomp_nvm.selection.codec import decode_request
from fastomp_nvm.selection.compression import COLUMNS_PER_PASS, FEWEST_PER_COLUMN, MOST_BYTES, passes_of
from fastomp_nvm.selection.request import SelectionRequest
from fastomp_nvm.selection.response import resolve_response
from fastomp_nvm.stores.contract import FeatureStore, StoreLayout

__all__ = ["check_vectors", "estimate", "needs_of_analysis", "rank_of"]

#: Algorithms that read the matrix at most once per selected feature; the others about ``1 / epsilon`` times.
_ONE_PASS_PER_FEATURE = ("sds_omp", "sds_ma", "isk")

#: Share of the memory of jobs that columns gathered by the runs of one analysis may take, where the request leaves it open.
_COLUMNS_SHARE = 4


def estimate(request: SelectionRequest, layout: StoreLayout, rank: int) -> tuple[int, int]:
    """Return upper estimates of the bytes of memory, beside the mapped matrix, and of the bytes read by a request.

    ``rank`` is the most features it can select from a matrix of this layout.
    """
    matrix = layout.n_columns * layout.n_obs * {"float16": 2, "float32": 4, "float64": 8}[layout.dtype]
    rank = min(rank, layout.n_features)
    rounds = rank if request.algorithm in _ONE_PASS_PER_FEATURE else math.ceil(1 / request.epsilon)
    models = 4 if request.tau == "auto" else 1
    products = 3 * 8 * models * layout.n_columns
    if request.quality != "fast" or (request.algorithm in ("sds_omp", "sds_ma") and not request.plain):
        rounds += rank if request.quality != "fast" else 0  # at worst, plain greedy after FAST_OMP
        products += 3 * min(PRODUCT_BYTES, 8 * 2 * LONGEST * layout.n_columns)
    factors = 2 * 8 * min(rank, layout.n_obs) * layout.n_obs
    return min(request.gather_bytes or LARGEST_BUDGET, matrix) + products + factors, (rounds + 2) * matrix


def needs_of_analysis(
    kind: str, sent: JSONObject, options: Mapping[str, Any], y: AnyArray | None, store: FeatureStore, limits: JobLimits
) -> tuple[JSONObject, int, int]:
    """Return the request with a budget for columns, and estimates of the bytes of memory and of the bytes read by an analysis.

    Parameters
    ----------
    kind : str
        A name in ``ANALYSES``.
    sent : dict
        The fields of the request, in JSON terms.
    options : mapping
        The options, decoded.
    y : (n_obs,) array, optional
    store : FeatureStore
    limits : JobLimits

    Raises
    ------
    RequestError, ConstraintError
        The request or an option is invalid.
    ServerError
        It makes too many selections.
    """
    decode_request(sent)
    ranks: dict[int, int] = {}

    def rank(request: SelectionRequest) -> int:
        key = id(request.constraint)  # the same object in every cell; a description may be long
        if key not in ranks:
            ranks[key] = rank_of(replace(request, k=None), store)
        return ranks[key] if request.k is None else min(ranks[key], int(request.k))

    found: list[Runs] = []
    for each in ANALYSES[kind].runs(sent, options, rank):
        checkpoint()
        found.append(each)
        if (made := sum(each.answers for each in found)) > ANALYSIS_SELECTIONS:
            raise ServerError(
                f"{made} selections or more are asked for, and at most {ANALYSIS_SELECTIONS} are made in one job: ask for fewer",
                reason="limit",
            )
    if not found:
        return sent, 0, int(store.matrix.nbytes)
    runs = sum(each.runs for each in found)
    share = max(limits.memory // _COLUMNS_SHARE // runs, SMALLEST_BUDGET)
    if sent.get("gather_bytes") is None and min(LARGEST_BUDGET, store.matrix.nbytes) > share:
        sent = {**sent, "gather_bytes": share}
        found = [each._replace(request=replace(each.request, gather_bytes=share)) for each in found]
    layout, memory, work = store.layout, 0, 0
    for each in found:
        check_vectors(each.request, store)
        of_run, read = estimate(each.request, layout, rank(each.request))
        weighted = each.weighted * (16 * layout.n_columns + 8 * layout.n_obs)
        memory += each.runs * (of_run + weighted)
        work = max(work, read)  # they share their sweeps
    if _may_be_compressed(found, y, store):  # its runs then work on as many rows as there are columns
        columns = layout.n_columns + 1
        small = replace(layout, n_obs=columns)
        memory = MOST_BYTES + sum(each.runs * estimate(each.request, small, rank(each.request))[0] for each in found)
    return sent, memory, work


def rank_of(request: SelectionRequest, store: FeatureStore) -> int:
    """Return the most features that a request can select; raise if its constraint names files or code."""
    ranks = [store.layout.n_features]
    if request.k is not None:
        ranks.append(int(request.k))
    if request.constraint is not None:
        ranks.append(parse_constraint(request.constraint, store.names, base_path=None, allow_oracle=False).rank)  # type: ignore[arg-type]
    return min(ranks)


def check_vectors(request: SelectionRequest, store: FeatureStore) -> None:
    """Refuse weights, an offset or covariates of other observations than there are."""
    n_obs = store.layout.n_obs
    for what, given in (("weights", request.weights), ("offset", request.offset)):
        if given is not None and not isinstance(given, str) and len(given) != n_obs:
            raise RequestError(f"{len(given)} {what} were given for {n_obs} observations")
    if request.covariates is not None:
        request.covariates.matched(store.ids, n_obs)


def _may_be_compressed(found: Sequence[Runs], y: AnyArray | None, store: FeatureStore) -> bool:
    """Return whether several selections over tall data are expected to be made from Gram matrices; see ``compress``."""
    request, n_obs, columns = found[0].request, store.layout.n_obs, store.layout.n_columns
    if request.gram != "auto" or not request.standardize or request.tier == "int8" or n_obs < FEWEST_PER_COLUMN * columns:
        return False
    runs = sum(each.runs for each in found)
    passes = sum(each.runs * passes_of(each.request, columns, weighted=each.weighted) for each in found)
    if columns * (1.0 + runs * columns / n_obs) > COLUMNS_PER_PASS * passes:
        return False
    return resolve_response(Dataset.of_store(store), request, y).objective == "linear"
