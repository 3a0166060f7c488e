"""Grids, cross-validations and the like on a server: the same words and the same results as the functions of the package."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, cast

import numpy as np

from fastomp_nvm.analysis.constraint_check import ConstraintFacts
from fastomp_nvm.analysis.cross_validation import CrossValidation
from fastomp_nvm.analysis.grid import Grid
from fastomp_nvm.analysis.path import SelectionPath
from fastomp_nvm.analysis.stability import Stability
from fastomp_nvm.analysis.wire import ANALYSES, Result, decode_result, encode_fields
from fastomp_nvm.arrays import IndexArray, JSONObject
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.engine.engine import Observer, Progress
from fastomp_nvm.errors import InputError, RequestError, ServerError
from fastomp_nvm.runs.verify import claim_of
from fastomp_nvm.selection.codec import decode_selection, decode_vector, encode_constraint
from fastomp_nvm.selection.export import Extract, check_format, labelled, write_extract
from fastomp_nvm.selection.progress import watched
from fastomp_nvm.selection.recheck import Verification
from fastomp_nvm.selection.request import RequestFields, named_file
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.stores.verification import StoreVerification

__all__ = ["RemoteAnalyses"]


class RemoteAnalyses(ABC):
    """The part of a client beyond selections, uploads and stores.

    ``key`` is as for all methods of a ``Client``, ``run`` the name of the job, under which ``fetch`` finds the result later.
    """

    @abstractmethod
    def call(self, operation: str, body: Mapping[str, object]) -> JSONObject:
        """Carry out an operation by name and return its one reply."""

    @abstractmethod
    def replies(self, operation: str, body: Mapping[str, object]) -> Sequence[JSONObject]:
        """Carry out an operation by name and return all of its replies."""

    @abstractmethod
    def follow(self, job: str) -> Iterator[JSONObject]:
        """Yield the progress of a job until it has ended."""

    @abstractmethod
    def _queue(self, operation: str, y: object, key: str | None, run: str | None, **fields: Any) -> str:
        """Queue a job and return its name."""

    @abstractmethod
    def _place(self, key: str | None) -> dict[str, str]:
        """Return the pool and key that ``key`` or the URL names."""

    def grid(
        self,
        y: object = None,
        *,
        over: Mapping[str, Sequence[object]],
        key: str | None = None,
        run: str | None = None,
        verify: bool = False,
        observer: Observer | None = None,
        progress: bool | None = None,
        **request: Unpack[RequestFields],
    ) -> Grid:
        """Answer every combination of parameters next to the data; as ``fastomp_nvm.grid``."""
        job = self.submit_analysis("grid", y, {"over": over}, key=key, run=run, verify=verify, **request)
        return cast("Grid", self._watched("grid", job, observer, progress))

    def cross_validate(
        self,
        y: object = None,
        *,
        folds: int | Sequence[int] | IndexArray = 5,
        ks: Sequence[int] | None = None,
        k_max: int | None = None,
        rule: Literal["best", "one-standard-error"] = "best",
        key: str | None = None,
        run: str | None = None,
        verify: bool = False,
        observer: Observer | None = None,
        progress: bool | None = None,
        **request: Unpack[RequestFields],
    ) -> CrossValidation:
        """Choose k by cross-validation next to the data; as ``fastomp_nvm.cross_validate``."""
        options = {"folds": folds, "ks": ks, "k_max": k_max, "rule": rule}
        job = self.submit_analysis("cv", y, options, key=key, run=run, verify=verify, **request)
        return cast("CrossValidation", self._watched("cv", job, observer, progress))

    def stability(
        self,
        y: object = None,
        *,
        subsamples: int = 50,
        fraction: float = 0.5,
        threshold: float = 0.6,
        key: str | None = None,
        run: str | None = None,
        verify: bool = False,
        observer: Observer | None = None,
        progress: bool | None = None,
        **request: Unpack[RequestFields],
    ) -> Stability:
        """Count how often features are selected on subsamples, next to the data; as ``fastomp_nvm.stability``."""
        options = {"subsamples": subsamples, "fraction": fraction, "threshold": threshold}
        job = self.submit_analysis("stability", y, options, key=key, run=run, verify=verify, **request)
        return cast("Stability", self._watched("stability", job, observer, progress))

    def path(
        self,
        y: object = None,
        *,
        key: str | None = None,
        run: str | None = None,
        verify: bool = False,
        observer: Observer | None = None,
        progress: bool | None = None,
        **request: Unpack[RequestFields],
    ) -> SelectionPath:
        """Select for every number of features up to k next to the data; as ``fastomp_nvm.path``."""
        job = self.submit_analysis("path", y, key=key, run=run, verify=verify, **request)
        return cast("SelectionPath", self._watched("path", job, observer, progress))

    def verify(
        self,
        *,
        key: str | None = None,
        run: str | None = None,
        observer: Observer | None = None,
        progress: bool | None = None,
    ) -> StoreVerification:
        """Compare all blocks of the store with their checksums, on the server; ``StoreError`` names what differs."""
        job = self.submit_analysis("verify", key=key, run=run)
        return cast("StoreVerification", self._watched("verify", job, observer, progress))

    def verify_proof(
        self,
        selection: str | os.PathLike[str] | Selection,
        y: object = None,
        *,
        key: str | None = None,
        run: str | None = None,
        observer: Observer | None = None,
        progress: bool | None = None,
        **request: Unpack[RequestFields],
    ) -> Verification:
        """Check the proof of a verified selection again, in one pass over the data on the server; as ``fastomp_nvm.verify``.

        Parameters
        ----------
        selection : str, path or Selection
            The name of a finished run of this machine, a file of ``select --json`` or ``--save``, or a selection.
        y, key, run, observer, progress, **request
            As for ``select``; fields that the proof does not hold.
        """
        result, fields, response = claim_of(selection, y, request)
        job = self.submit_analysis("proof", response, {"claim": result}, key=key, run=run, **fields)
        return cast("Verification", self._watched("verify", job, observer, progress))

    def check_constraint(
        self,
        constraint: Mapping[str, object] | str | os.PathLike[str],
        *,
        key: str | None = None,
        samples: int = 100,
        seed: int = 0,
    ) -> ConstraintFacts:
        """Return rank and p of a constraint over the store; ``ConstraintError`` if it cannot be used or is not downward closed."""
        if isinstance(constraint, Constraint) or not isinstance(constraint, (str, Mapping, os.PathLike)):
            raise InputError(
                f"the constraint is a {type(constraint).__name__}: expected a description, a mapping, YAML text or a file"
            )
        given = encode_constraint(named_file(constraint))
        reply = self.call("check_constraint", {**self._place(key), "constraint": given, "samples": samples, "seed": seed})
        return ConstraintFacts(**reply)

    def extract(self, selection: Selection, *, key: str | None = None) -> Extract:
        """Return the selected columns of the store, their names, the target and the identifiers."""
        return self.extract_columns(selection.indices, selection.objective, selection.target, key=key)

    def extract_columns(self, indices: IndexArray, objective: str, target: str | None, *, key: str | None = None) -> Extract:
        """Return columns of features by position; see ``extract``."""
        asked = {**self._place(key), "indices": indices.tolist(), "objective": objective, "target": target}
        head, *parts = self.replies("extract", asked)
        first = 0
        while first < len(head["names"]) and (columns := self.replies("extract", {**asked, "first": first})):
            parts += columns
            first = int(columns[-1]["next"])

        def joined(name: str, dtype: str) -> Any:
            found = [decode_vector(part[name], name) for part in parts if name in part]
            return np.concatenate([np.empty(0, dtype), *found])

        try:
            names, n_obs = [str(name) for name in head["names"]], int(head["n_obs"])
            values = joined("values", head["dtype"]).reshape(len(names), n_obs).T
            y = labelled(joined("target", "<f8"), head["classes"])
            ids = np.array([text for part in parts for text in part.get("ids", ())], dtype=str) if head["ids"] else None
            if len(y) != n_obs or not (ids is None or len(ids) == n_obs):
                raise ValueError("its parts do not fit together")
            return Extract(values, names, str(head["label"]), y, ids)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise _unreadable(error) from error

    def export(self, selection: Selection, out: str | os.PathLike[str], *, key: str | None = None) -> Extract:
        """Write the selected columns of the store, their names and the target to a file; return them.

        Parameters
        ----------
        selection : Selection
        out : str or path
            Its extension says the format: .csv, .npy, .npz or .parquet.
        key : str, optional
        """
        path = check_format(out)
        return write_extract(self.extract(selection, key=key), Path(path))

    def submit_analysis(
        self,
        kind: str,
        y: object = None,
        options: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        run: str | None = None,
        verify: bool = False,
        **request: Unpack[RequestFields],
    ) -> str:
        """Queue an analysis and return the name of its job, which outlives this client; ``fetch`` returns the result.

        Parameters
        ----------
        kind : {"grid", "cv", "stability", "path", "verify"}
        y : (n_obs,) array, optional
        options : mapping
            Parameters of the analysis itself: ``{"over": ...}`` of a grid, ``{"folds": ..., "k_max": ...}`` of ``cv``, ...
        key, run, verify
            As for ``select``.
        **request
            Fields of ``SelectionRequest``.
        """
        if kind not in ANALYSES:
            raise RequestError(f"there is no analysis {kind!r}: expected one of {', '.join(ANALYSES)}")
        try:
            encoded = ANALYSES[kind].encode_options(**(options or {}))
        except TypeError as error:
            raise RequestError(f"the options of {kind} cannot be understood ({error})") from error
        fields = encode_fields(request)
        return self._queue("analyse", y, key, run, verify=verify, kind=kind, options=encoded, request=fields)

    def fetch(self, job: str, *, observer: Observer | None = None) -> Sequence[Selection] | Result:
        """Wait for a job of any kind and return its result: the selections, one per request, or what the analysis returns."""
        for progress in self.follow(job):
            for step in progress["progress"]:
                if observer is not None and step:
                    observer(Progress.of_json(step))
        replies = self.replies("result", {"job": job})
        kind = str(replies[0].get("kind", "select")) if replies else "select"
        try:
            answers = [answer for reply in replies for answer in reply["answers"]]
            if kind != "select":
                return decode_result(kind, answers)
            found = [decode_selection(answer) for answer in answers]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise _unreadable(error) from error
        for selection in found:
            if selection.violations:
                warnings.warn(f"the answer breaks the constraint as written: {'; '.join(selection.violations)}", stacklevel=4)
        return found

    def _watched(self, label: str, job: str, observer: Observer | None, progress: bool | None) -> object:
        """Return the result of a job, with its progress shown."""
        with watched(observer, progress, label) as watching:
            return self.fetch(job, observer=watching)


def _unreadable(error: Exception) -> ServerError:
    """Return the error for an answer that is not as expected."""
    return ServerError(f"the server's answer cannot be read ({error}): it may be of another version")
