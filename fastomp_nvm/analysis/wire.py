"""Analyses as jobs of a server: parameters and results in JSON terms, and how many selections each makes.

One class per kind of job. A client encodes the parameters and decodes the answers, a server decodes the parameters and encodes the
answers; both results are of the same class, and compare equal. Parameters may come from anybody: every shape and type is checked
before it is used, and the number of selections is known before anything is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from fastomp_nvm.algorithms.table import GREEDY
from fastomp_nvm.analysis.cross_validation import CrossValidation, cross_validate, sizes_to_try
from fastomp_nvm.analysis.grid import Cell, Grid, grid, settings_of
from fastomp_nvm.analysis.path import SelectionPath, path
from fastomp_nvm.analysis.sharing import Sharing
from fastomp_nvm.analysis.splits import checked_request
from fastomp_nvm.analysis.stability import Stability, stability
from fastomp_nvm.arrays import JSONObject
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Observer, Progress
from fastomp_nvm.errors import RequestError, ServerError
from fastomp_nvm.limits import ANALYSIS_SELECTIONS
from fastomp_nvm.matrix.choice import Choice
from fastomp_nvm.selection.codec import (
    decode_request,
    decode_selection,
    decode_vector,
    encode_request,
    encode_selection,
    encode_vector,
)
from fastomp_nvm.selection.recheck import Claim, Verification, recheck
from fastomp_nvm.selection.request import RequestFields, SelectionRequest, make_request
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.verification import StoreVerification, verify_store

__all__ = ["ANALYSES", "Analysis", "Result", "Runs", "decode_fields", "decode_result", "encode_fields", "selections_of"]

#: The result of a job other than a selection.
Result = Grid | CrossValidation | Stability | SelectionPath | StoreVerification | Verification

#: Returns the most features that a request can select.
Rank = Callable[[SelectionRequest], int]


class Runs(NamedTuple):
    """Selections that differ in their observations, or not at all in what they cost.

    Attributes
    ----------
    request : SelectionRequest
        The costliest of them.
    runs : int
        Runs of an algorithm.
    answers : int
        Selections in the result.
    weighted : bool
        Whether each has observation weights of its own.
    """

    request: SelectionRequest
    runs: int
    answers: int
    weighted: bool = False


class Analysis(Protocol):
    """A kind of job."""

    @property
    def run(self) -> Callable[..., Any]:
        """The function that returns the result.

        Called with a store, a response or None, ``threads``, ``observer``, ``cancelled``, ``verify``, the options and the fields of
        the request.
        """
        ...

    @property
    def encode_options(self) -> Callable[..., JSONObject]:
        """The function that returns its keyword arguments, the options, in JSON terms."""
        ...

    def decode_options(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options, each of its type; ``RequestError`` otherwise."""
        ...

    def runs(self, sent: Mapping[str, Any], options: Mapping[str, Any], rank: Rank) -> Iterator[Runs]:
        """Yield what it makes of a request in JSON terms, which is checked."""
        ...

    def encode(self, result: Any, options: Mapping[str, Any]) -> list[JSONObject]:
        """Return the answers of the job: an object of the result's own fields, and its selections; ``options`` in JSON terms."""
        ...

    def decode(self, answers: Sequence[Mapping[str, Any]]) -> Any:
        """Return the result; ``KeyError``, ``TypeError``, ``ValueError`` or ``IndexError`` where the answers are others."""
        ...


class _Grid:
    """Every combination of values of some fields."""

    run = staticmethod(grid)

    def encode_options(self, *, over: Mapping[str, Sequence[object]]) -> JSONObject:
        """Return the values of each field as ``encode_request`` writes them."""
        settings_of(over)  # raises for a field without values
        return {"over": {name: [_plain(name, value) for value in values] for name, values in over.items()}}

    def decode_options(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``over``."""
        over = _only(sent, "over")["over"]
        if not isinstance(over, Mapping) or not all(isinstance(values, list) for values in over.values()):
            raise RequestError("over is not an object of lists: expected the values of each field")
        if "lambda" in over and not all(_is_number(limit) for limit in over["lambda"]):
            raise RequestError("over holds a lambda that is no number")
        return {"over": _values(over)}

    def runs(self, sent: Mapping[str, Any], options: Mapping[str, Any], rank: Rank) -> Iterator[Runs]:
        """Yield one for each cell."""
        for each in settings_of(options["over"]):
            cell = {name: value for name, value in each.items() if name != "lambda"}
            if cell.get("weights") is not None:
                cell["weights"] = encode_vector(cell["weights"])
            yield Runs(decode_request({**sent, **cell}), 1, 1)

    def encode(self, result: Grid, options: Mapping[str, Any]) -> list[JSONObject]:
        """Return the values that vary, the traffic, and the selections."""
        found = [cell.selection for cell in result.cells]
        return _answers({"over": options["over"], "sharing": asdict(result.sharing)}, found, result.best.selection)

    def decode(self, answers: Sequence[Mapping[str, Any]]) -> Grid:
        """Return the grid."""
        own, selections = _parts(answers)
        settings = settings_of(_values(own["over"]))
        cells = [Cell(each, selection) for each, selection in zip(settings, selections, strict=True)]
        return Grid(cells, _sharing(own))


class _CrossValidation:
    """The choice of k by folds."""

    run = staticmethod(cross_validate)

    def encode_options(
        self, *, folds: object = 5, ks: Sequence[int] | None = None, k_max: int | None = None, rule: str = "best"
    ) -> JSONObject:
        """Return the options; folds that are given for each observation as a vector."""
        return {
            "folds": encode_vector(folds) if np.ndim(folds) else _item(folds),  # type: ignore[arg-type]
            "ks": None if ks is None else [_item(k) for k in ks],
            "k_max": _item(k_max),
            "rule": rule,
        }

    def decode_options(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options."""
        options = _only(sent, "folds", "ks", "k_max", "rule")
        if isinstance(options["folds"], Mapping):
            options["folds"] = folds = decode_vector(options["folds"], "folds")
            if folds.dtype.kind not in "iu":
                raise RequestError("folds are not whole numbers: give one from 0 for each observation")
        elif not _is_whole(options["folds"]):
            raise RequestError("folds must be a whole number, or one for each observation")
        if not (options["ks"] is None or (isinstance(options["ks"], list) and all(map(_is_whole, options["ks"])))):
            raise RequestError("ks is not a list of whole numbers")
        if not (options["k_max"] is None or _is_whole(options["k_max"])):
            raise RequestError("k_max is not a whole number")
        if not isinstance(options["rule"], str):
            raise RequestError("rule is not a text: expected best or one-standard-error")
        return options

    def runs(self, sent: Mapping[str, Any], options: Mapping[str, Any], rank: Rank) -> Iterator[Runs]:
        """Yield all folds and all sizes at once; nested greedy needs only the largest, but that is known with the data alone."""
        if sent.get("k") is not None:
            raise RequestError("cross-validation chooses k itself: give ks or k_max instead")
        folds, ks, k_max = options["folds"], options["ks"], options["k_max"]
        checked_request(_decoded(sent))
        count = len(ks) if ks is not None and k_max is None else k_max or 0
        per_size = 1 + (int(folds) if np.ndim(folds) == 0 else 1 + max(folds.tolist(), default=0))
        if max(count, 1) * per_size > ANALYSIS_SELECTIONS:  # before they are counted out
            yield Runs(checked_request(_decoded(sent)), 0, max(count, 1) * per_size)
            return
        tried = sizes_to_try(ks, k_max)
        request = decode_request({**sent, "k": tried[-1]})
        yield Runs(request, per_size * (1 if _one_run(request) else len(tried)), per_size * len(tried), weighted=True)

    def encode(self, result: CrossValidation, options: Mapping[str, Any]) -> list[JSONObject]:
        """Return the scores, the folds and the traffic, then the selection and those of each k and fold."""
        own = {
            **{name: getattr(result, name).tolist() for name in ("ks", "scores", "mean", "standard_error")},
            **{name: getattr(result, name) for name in ("best_k", "one_standard_error_k", "k")},
            "fold_of": encode_vector(result.fold_of),
            "sharing": asdict(result.sharing),
        }
        return _answers(own, [result.selection, *(each for row in result.fold_selections for each in row)], result.selection)

    def decode(self, answers: Sequence[Mapping[str, Any]]) -> CrossValidation:
        """Return the cross-validation."""
        own, (selection, *others) = _parts(answers)
        ks, scores = np.array(own["ks"], dtype=np.int64), np.array(own["scores"], dtype=np.float64)
        count, n_folds = scores.shape
        if len(others) != count * n_folds or len(ks) != count:
            raise ValueError("its parts do not fit together")
        return CrossValidation(
            ks=ks,
            scores=scores,
            mean=np.array(own["mean"], dtype=np.float64),
            standard_error=np.array(own["standard_error"], dtype=np.float64),
            best_k=int(own["best_k"]),
            one_standard_error_k=int(own["one_standard_error_k"]),
            k=int(own["k"]),
            selection=selection,
            fold_of=decode_vector(own["fold_of"], "fold_of"),
            fold_selections=[others[first : first + n_folds] for first in range(0, len(others), n_folds)],
            sharing=_sharing(own),
        )


class _Stability:
    """Frequencies over random subsamples."""

    run = staticmethod(stability)

    def encode_options(self, *, subsamples: int = 50, fraction: float = 0.5, threshold: float = 0.6) -> JSONObject:
        """Return the options."""
        return {"subsamples": _item(subsamples), "fraction": _item(fraction), "threshold": _item(threshold)}

    def decode_options(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options."""
        options = _only(sent, "subsamples", "fraction", "threshold")
        if not (_is_whole(options["subsamples"]) and options["subsamples"] >= 1):
            raise RequestError(f"subsamples is {str(options['subsamples'])[:40]}: expected a whole number of at least 1")
        for name in ("fraction", "threshold"):
            if not _is_number(options[name]):
                raise RequestError(f"{name} is {str(options[name])[:40]!r}: expected a number")
        return options

    def runs(self, sent: Mapping[str, Any], options: Mapping[str, Any], rank: Rank) -> Iterator[Runs]:
        """Yield all subsamples at once."""
        checked_request(_decoded(sent))
        count = options["subsamples"]
        yield Runs(decode_request(sent), count, count, weighted=True)

    def encode(self, result: Stability, options: Mapping[str, Any]) -> list[JSONObject]:
        """Return the fields, frequencies only of features that were selected."""
        own = {name: getattr(result, name) for name in Stability.__dataclass_fields__ if name not in ("frequencies", "indices")}
        own |= {
            "features": list(result.features),
            "stable": list(result.stable),
            "indices": encode_vector(result.indices),
            "frequencies": encode_vector(result.frequencies[result.indices]),
            "n_features": len(result.frequencies),
            "sharing": asdict(result.sharing),
        }
        return [{"analysis": own, "summary": {"objective": result.objective, "score": None, "selected": len(result.stable)}}]

    def decode(self, answers: Sequence[Mapping[str, Any]]) -> Stability:
        """Return the frequencies."""
        own, _ = _parts(answers)
        indices = decode_vector(own["indices"], "indices").astype(np.int64)
        frequencies = np.zeros(int(own.pop("n_features")))
        frequencies[indices] = decode_vector(own["frequencies"], "frequencies")
        return Stability(**{**own, "indices": indices, "frequencies": frequencies, "sharing": _sharing(own)})


class _WithoutOptions:
    """An analysis that a request alone describes."""

    def encode_options(self) -> JSONObject:
        """Return nothing: there are none."""
        return {}

    def decode_options(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Return nothing."""
        return _only(sent)


class _Path(_WithoutOptions):
    """A selection for every k."""

    run = staticmethod(path)

    def runs(self, sent: Mapping[str, Any], options: Mapping[str, Any], rank: Rank) -> Iterator[Runs]:
        """Yield all sizes at once."""
        request = decode_request(sent)
        if not {"algorithm", "quality"} & set(sent):
            request = decode_request({**sent, "algorithm": "sds_omp"})
        if request.k is None and request.constraint is None:
            raise RequestError("k is missing: give it, or a constraint that bounds how many features may be selected")
        sizes = max(rank(request), 1)
        yield Runs(request, 1 if _one_run(request) else sizes, sizes)

    def encode(self, result: SelectionPath, options: Mapping[str, Any]) -> list[JSONObject]:
        """Return the sizes, the reason and the traffic, and the selections."""
        own = {"ks": result.ks.tolist(), "nested": result.nested, "reason": result.reason, "sharing": asdict(result.sharing)}
        return _answers(own, result.selections, result.selections[-1])

    def decode(self, answers: Sequence[Mapping[str, Any]]) -> SelectionPath:
        """Return the path."""
        own, selections = _parts(answers)
        ks = np.array(own["ks"], dtype=np.int64)
        if len(ks) != len(selections) or not len(ks):
            raise ValueError("its parts do not fit together")
        return SelectionPath(ks, selections, bool(own["nested"]), str(own["reason"]), _sharing(own))


class _Proof:
    """The proof of a verified selection, checked again."""

    @staticmethod
    def run(
        store: FeatureStore,
        y: object,
        *,
        claim: Claim,
        threads: int | None,
        observer: Observer | None,
        cancelled: Callable[[], bool] | None,
        verify: bool,
        **request: Any,
    ) -> Verification:
        """Check a claim again."""
        if verify:
            store.verify()
        wanted = make_request(request)
        return recheck(Dataset.of_store(store), claim, wanted, y, threads=threads, observer=observer, cancelled=cancelled)

    def encode_options(self, *, claim: JSONObject) -> JSONObject:
        """Return the parts of the result, in JSON terms, that its proof is about."""
        return {"claim": {name: claim.get(name) for name in Claim.__dataclass_fields__}}

    def decode_options(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Return the claim."""
        claim = _only(sent, "claim")["claim"]
        try:
            return {"claim": Claim.of(claim if isinstance(claim, Mapping) else {})}
        except ValueError as error:
            raise RequestError(f"the selection cannot be verified: {error}") from error

    def runs(self, sent: Mapping[str, Any], options: Mapping[str, Any], rank: Rank) -> Iterator[Runs]:
        """Yield one."""
        yield Runs(decode_request(sent), 1, 1)

    def encode(self, result: Verification, options: Mapping[str, Any]) -> list[JSONObject]:
        """Return the fields."""
        return [
            {
                "analysis": {**asdict(result), "interchangeable": [list(each) for each in result.interchangeable]},
                "summary": {"score": None},
            }
        ]

    def decode(self, answers: Sequence[Mapping[str, Any]]) -> Verification:
        """Return the result."""
        own, _ = _parts(answers)
        steps = [(int(step), str(winner), str(second)) for step, winner, second in own["interchangeable"]]
        return Verification(bool(own["holds"]), str(own["sentence"]), steps)


class _Checksums(_WithoutOptions):
    """The checksums of a store."""

    @staticmethod
    def run(
        store: FeatureStore,
        y: object,
        *,
        threads: int | None,
        observer: Observer | None,
        cancelled: Callable[[], bool] | None,
        verify: bool,
        **request: Any,
    ) -> StoreVerification:
        """Compare all blocks with their checksums; progress is reported as that of one pass."""

        def report(done: int, total: int, seconds: float) -> None:
            if observer is not None:
                observer(Progress(0, 0, 0, 0, 0.0, done, seconds, sweep=1, share=done / total))

        return verify_store(store, report, cancelled)

    def runs(self, sent: Mapping[str, Any], options: Mapping[str, Any], rank: Rank) -> Iterator[Runs]:
        """Yield nothing: it makes no selections."""
        return iter(())

    def encode(self, result: StoreVerification, options: Mapping[str, Any]) -> list[JSONObject]:
        """Return the fields."""
        return [{"analysis": result.to_json()}]

    def decode(self, answers: Sequence[Mapping[str, Any]]) -> StoreVerification:
        """Return the result."""
        own, _ = _parts(answers)
        return StoreVerification(int(own["blocks"]), int(own["bytes"]), str(own["unchecked"]))


#: Kinds of jobs other than selections, by the names of their commands; ``proof`` is the other half of ``verify``.
ANALYSES: Mapping[str, Analysis] = MappingProxyType(
    {
        "grid": _Grid(),
        "cv": _CrossValidation(),
        "stability": _Stability(),
        "path": _Path(),
        "verify": _Checksums(),
        "proof": _Proof(),
    }
)


def decode_result(kind: str, answers: Sequence[Mapping[str, Any]]) -> Result:
    """Return the result of a job of a kind in ``ANALYSES``; ``ServerError`` where its answers cannot be read."""
    try:
        found: Result = ANALYSES[kind].decode(answers)
        return found
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ServerError(f"the server's answer cannot be read ({error}): it may be of another version") from error


def selections_of(result: Result) -> Sequence[Selection]:
    """Return the selections of a result that a report shows; none for some kinds."""
    if isinstance(result, Grid):
        return [cell.selection for cell in result.cells]
    if isinstance(result, SelectionPath):
        return result.selections
    return [result.selection] if isinstance(result, CrossValidation) else []


def encode_fields(given: RequestFields) -> JSONObject:
    """Return the fields that a caller gave in JSON terms, also those at their defaults: ``path`` asks which were given."""
    written = encode_request(make_request(given), complete=True)
    return {name: value for name, value in written.items() if name in given or name == "objective"}


def decode_fields(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields that were sent as keyword arguments; they were checked by ``Analysis.runs``."""
    return {"objective": "linear", **_values({name: [value] for name, value in sent.items()}, single=True)}


def _decoded(sent: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a request that was sent, each checked."""
    decode_request(sent)
    return decode_fields(sent)


def _values(over: Mapping[str, Any], *, single: bool = False) -> dict[str, Any]:
    """Return values of fields, in lists, with weights as arrays and no text that could be taken for the name of a file.

    A description that ends in .yaml is a name only on one line; ``single`` takes the only value out of each list.
    """

    def value(name: str, each: Any) -> Any:
        if name == "weights" and each is not None:
            return decode_vector(each, "weights")
        if name == "constraint" and isinstance(each, str) and each.endswith((".yaml", ".yml")):
            return f"{each}\n"
        return each

    found = {name: [value(name, each) for each in values] for name, values in over.items()}
    return {name: values[0] for name, values in found.items()} if single else found


def _plain(name: str, value: object) -> object:
    """Return a value of a field of a grid in JSON terms."""
    if name == "lambda":
        return _item(value)
    encoded = encode_request(make_request({name: value}), complete=True)[name]
    return encode_vector(value) if name == "weights" and value is not None else encoded  # as they are: settings show them


def _item(value: object) -> object:
    """Return a number of NumPy as one of Python, anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _one_run(request: SelectionRequest) -> bool:
    """Return whether one run of greedy answers every k whatever the data is; see ``nested``."""
    return request.algorithm in GREEDY and not request.certificate and request.constraint is None


def _only(sent: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return options if they are these."""
    if set(sent) != set(names):
        raise RequestError(f"the options are {', '.join(map(repr, sent))[:100] or 'none'}: expected {', '.join(names) or 'none'}")
    return dict(sent)


def _is_whole(value: object) -> bool:
    """Return whether a JSON value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62


def _is_number(value: object) -> bool:
    """Return whether a JSON value is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**62


def _answers(own: JSONObject, selections: Sequence[Selection], best: Selection) -> list[JSONObject]:
    """Return the answers of a job: fields of the result and what lists of jobs show of it, then its selections."""
    summary = {
        "objective": best.objective,
        "score": best.score,
        "seconds": best.seconds,
        "selected": len(best.indices),
        "rounds": best.gradient_rounds,
    }
    return [{"analysis": own, "summary": summary}, *map(encode_selection, selections)]


def _parts(answers: Sequence[Mapping[str, Any]]) -> tuple[JSONObject, list[Selection]]:
    """Return the fields of a result, and its selections."""
    first, *others = answers
    return dict(first["analysis"]), [decode_selection(dict(each)) for each in others]


def _sharing(own: JSONObject) -> Sharing:
    """Return the traffic of a result."""
    fields = own["sharing"]
    return Sharing(**{**fields, "gram": None if fields["gram"] is None else Choice(*fields["gram"])})
