"""FAST_OMP as scikit-learn estimators: a selector for pipelines and searches, and two predictors with the refit model.

``FastOMPSelector`` is the transformer; ``FastOMPRegressor`` and ``FastOMPClassifier`` add ``predict``. They hold parameters,
validate input as scikit-learn does, and call :func:`fastomp_nvm.select` in ``fit``.

scikit-learn's features are *columns* here: ``n_features_in_``, ``support_`` and names count columns, and a feature of several
columns is selected as a whole. Every method that takes ``X`` also takes a store or its URL; ``fit`` sweeps it, the others read the
selected columns only. A table with text columns is encoded as by ``create_store``, one column per category: ``n_features_in_``,
``feature_names_in_`` and ``support_`` are then about the columns of the table, ``coef_`` and ``transform`` about the encoded ones.
With ``missing`` other than ``error`` missing cells are filled in, by values of the table of ``fit``, here and in every later ``X``.
``fastomp_nvm`` imports this module on first use.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal, Protocol, cast

import numpy as np
import sklearn.utils.validation as validation
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.feature_selection import SelectorMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Observer, Progress
from fastomp_nvm.errors import DataError, RequestError
from fastomp_nvm.runs.select import select
from fastomp_nvm.selection.request import RequestFields
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.source import has_text
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.media import medium_of
from fastomp_nvm.stores.open import create_store, open_store
from fastomp_nvm.stores.url import StoreURL

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn before 1.9 has no callbacks

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Stands for the class of later releases."""

    def with_callbacks(method: Any) -> Any:
        """Return the method as it is."""
        return method


__all__ = ["FastOMPClassifier", "FastOMPRegressor", "FastOMPSelector"]

_OTHERS = ("objective", "target", "weights", "offset", "covariates", "test_fraction")

#: Parameters passed on to ``SelectionRequest`` as they are.
_REQUEST_PARAMETERS = [name for name in RequestFields.__annotations__ if name not in _OTHERS]


def _opened(source: str | FeatureStore) -> AbstractContextManager[FeatureStore]:
    """Return a context manager of the store that closes it only if it was opened here."""
    return open_store(source) if isinstance(source, str) else nullcontext(source)


class _Memory(Protocol):
    """The medium of stores in memory."""

    def open(self, url: StoreURL) -> FeatureStore:
        """Open a store."""
        ...

    def discard(self, url: StoreURL) -> None:
        """Remove a store."""
        ...


@contextmanager
def _filled(data: Any, names: Sequence[str] | None, missing: str) -> Iterator[FeatureStore]:
    """Yield a store in memory of an array or table with missing cells filled in; it is discarded afterwards."""
    url = StoreURL.parse(f"dram:filled-{secrets.token_hex(8)}")
    create_store(url.text, data, names=names, dtype="float64", missing=missing, tier="none")
    medium = cast("_Memory", medium_of(url))
    try:
        yield medium.open(url)
    finally:
        medium.discard(url)


class FastOMPSelector(CallbackSupportMixin, SelectorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Select features by FAST_OMP, or another algorithm of this package.

    With scikit-learn 1.9 or later ``set_callbacks`` takes its callbacks, such as ``sklearn.callback.ProgressBar``: a fit is a task,
    and every round of it a subtask.

    Parameters
    ----------
    k : int or None
        Most features to select; None if the constraint bounds it. Keep it below the number that fits the target perfectly:
        beyond it all features score alike.
    objective : {"auto", "linear", "logistic", "poisson"}
        ``auto``: logistic for a target of two classes, linear for other numbers.
    constraint : Constraint, mapping, YAML text or path of a YAML file, optional
        Further limits on the selection; descriptions refer to features by name (``f0, f1, ...`` for arrays).
    algorithm, quality, epsilon, tau, seed, until, polish, skip_weak, plain, ridge, standardize, exclude, keep, keep_inside
        As in ``SelectionRequest``.
    certificate, lambda_min, gather_bytes
        As in ``SelectionRequest``.
    tier : {"auto", "exact", "int8"}
        As in ``SelectionRequest``; arrays have no tier.
    gram : {"auto", "never"}
        As in ``SelectionRequest``.
    missing : {"error", "mean", "median"}
        What replaces a missing number of a table or array, here and in later ones: the mean or median of its column in ``fit``; a
        missing text becomes a category of its own. ``error`` refuses missing cells. A store has its own rule.
    target : str, optional
        Which of a store's targets, when ``X`` is a store and ``y`` is None; the first when left out.
    threads : int, optional
        Threads of a sweep; the answer does not depend on it.
    observer : callable, optional
        Called with a ``Progress`` at every round.

    Attributes
    ----------
    selection_ : Selection
        The answer: features in order of selection, coefficients, score, costs.
    support_ : (n_features_in_,) bool
        Selected columns.
    objective_ : str
        The objective used.
    n_features_in_ : int
    feature_names_in_ : (n_features_in_,) object
        When ``X`` has string column names or is a store.

    Examples
    --------
    >>> import numpy as np, fastomp_nvm as fo
    >>> X = np.random.default_rng(0).normal(size=(200, 50))
    >>> fo.FastOMPSelector(k=2).fit(X, 3 * X[:, 7] - X[:, 21]).get_support(indices=True)
    array([ 7, 21])
    """

    def __init__(
        self,
        k: int | None = 5,
        *,
        objective: Literal["auto", "linear", "logistic", "poisson"] = "auto",
        constraint: Constraint | Mapping[str, object] | str | os.PathLike[str] | None = None,
        algorithm: str = "fast_omp",
        quality: Literal["fast", "verified", "best"] = "fast",
        epsilon: float = 0.1,
        tau: float | Literal["auto"] = 0.5,
        seed: int = 0,
        until: Literal["paper", "full"] = "paper",
        polish: Literal["pool", "none"] = "pool",
        skip_weak: bool = False,
        plain: bool = False,
        ridge: float | None = None,
        standardize: bool = True,
        exclude: Sequence[str] = (),
        keep: Sequence[str] = (),
        keep_inside: bool = False,
        certificate: bool = False,
        lambda_min: float | None = None,
        missing: Literal["error", "mean", "median"] = "error",
        target: str | None = None,
        gather_bytes: int | None = None,
        tier: Literal["auto", "exact", "int8"] = "auto",
        gram: Literal["auto", "never"] = "auto",
        threads: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.k = k
        self.objective = objective
        self.constraint = constraint
        self.algorithm = algorithm
        self.quality = quality
        self.epsilon = epsilon
        self.tau = tau
        self.seed = seed
        self.until = until
        self.polish = polish
        self.skip_weak = skip_weak
        self.plain = plain
        self.ridge = ridge
        self.standardize = standardize
        self.exclude = exclude
        self.keep = keep
        self.keep_inside = keep_inside
        self.certificate = certificate
        self.lambda_min = lambda_min
        self.missing = missing
        self.target = target
        self.gather_bytes = gather_bytes
        self.tier = tier
        self.gram = gram
        self.threads = threads
        self.observer = observer

    @with_callbacks  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> FastOMPSelector:
        """Select features and refit a model on them.

        Parameters
        ----------
        X : (n_samples, n_features) array or DataFrame, or FeatureStore or str
            Observations, or a store or its URL.
        y : (n_samples,) array, optional
            The target; may be None when the store holds it.
        sample_weight : (n_samples,) array, optional
            Weight of each observation; zero leaves it out.

        Returns
        -------
        self
        """
        if self.missing not in ("error", "mean", "median"):
            raise RequestError(f"missing is {self.missing!r}: expected error, mean or median")
        self._from_table = has_text(X)
        if isinstance(X, (str, FeatureStore)):
            with _opened(X) as store:
                self._fit_store(store, y, sample_weight)
            return self
        if self._from_table:
            self._fit_table(X, y, sample_weight)
            return self
        X, y = _validated(self, X, y, dtype=(np.float64, np.float32), ensure_min_samples=2, **self._finite())
        names = [str(name) for name in self.feature_names_in_] if hasattr(self, "feature_names_in_") else None
        if self.missing == "error":
            self._select(X, y, y, sample_weight, len(X), names)
        else:
            with _filled(X, names, self.missing) as store:
                self._select(store, y, y, sample_weight, len(X), None)
        return self

    def transform(self, X: Any) -> Any:
        """Reduce ``X`` to the selected columns, in the order they have there.

        Parameters
        ----------
        X : (n_samples, n_features) array or DataFrame, or FeatureStore or str
            Observations, or a store with the columns of ``fit`` or its URL.

        Returns
        -------
        (n_samples, n_selected) array or DataFrame
        """
        validation.check_is_fitted(self)
        if self._from_table or has_text(X):
            return self.selection_.encode(X).values[:, np.argsort(self.selection_.column_positions)]
        if isinstance(X, (str, FeatureStore)):
            return self._columns_of_store(X, self.get_support(indices=True))
        if self.missing != "error":
            return self._chosen(X)[:, np.argsort(self.selection_.column_positions)]
        return super().transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> AnyArray:
        """Return the names of the columns of ``transform``; ``input_features`` as in scikit-learn."""
        validation.check_is_fitted(self)
        if not self._from_table:
            return np.asarray(super().get_feature_names_out(input_features))
        names = np.array([name for part in self.selection_.columns for name in part], dtype=object)
        return names[np.argsort(self.selection_.column_positions)]

    def _fit_table(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Fit on a table with text columns."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        y = validation.column_or_1d(y, warn=True)
        names = [str(name) for name in (X.column_names if hasattr(X, "column_names") else X.columns)]
        if len(y) != len(X):
            raise DataError(f"y has {len(y)} values for the {len(X)} rows of X")
        self.n_features_in_, self.feature_names_in_ = len(names), np.array(names, dtype=object)
        if self.missing == "error":
            self._select(X, y, y, sample_weight, len(X), None)
        else:
            with _filled(X, None, self.missing) as store:
                self._select(store, y, y, sample_weight, len(X), None)
        selected = set(self.selection_.features)
        self.support_ = np.array([name in selected for name in names], dtype=np.bool_)

    def _fit_store(self, store: FeatureStore, y: Any, sample_weight: Any) -> None:
        """Fit on a store, with its own target when ``y`` is None."""
        self.n_features_in_ = store.layout.n_columns
        self.feature_names_in_ = np.array(list(store.column_names), dtype=object)
        given = y
        if y is None:
            if not store.targets:
                raise RequestError(f"the store {store.url} holds no target: give y")
            name = next(iter(store.targets)) if self.target is None else self.target
            if name not in store.targets:
                raise RequestError(f"the store has no target {name!r}: expected one of {', '.join(store.targets)}")
            kept = store.targets[name]
            given = np.array(kept.classes)[kept.values.astype(np.int64)] if kept.classes else kept.values
        self._select(store, given, y, sample_weight, store.layout.n_obs, None)

    def _select(self, data: Any, given: Any, y: Any, sample_weight: Any, n_obs: int, names: Sequence[str] | None) -> None:
        """Run the selection; ``given`` is the target as labels or numbers, ``y`` is None for a target of the store."""
        self.objective_ = self._resolve_objective(given)
        weights = None if sample_weight is None else _checked_weights(sample_weight, n_obs)
        fields = {name: getattr(self, name) for name in _REQUEST_PARAMETERS}
        if isinstance(data, FeatureStore) and y is None:
            fields["target"] = self.target
        request = {**fields, "objective": self.objective_, "weights": weights}
        with self._called_back(data, y) as observer:
            self.selection_: Selection = select(data, y, threads=self.threads, names=names, observer=observer, **request)
            self.support_ = np.zeros(self.selection_.store.n_columns, dtype=np.bool_)
            self.support_[self.selection_.column_positions] = True

    @contextmanager
    def _called_back(self, data: Any, y: Any) -> Iterator[Observer | None]:
        """Yield the observer of a selection: it calls scikit-learn's callbacks too, where its release has them."""
        if not hasattr(self, "_init_callback_context"):
            yield self.observer
            return
        context = self._init_callback_context(max_subtasks=None)
        given = {"X": None if isinstance(data, FeatureStore) else data, "y": y}

        def observe(step: Progress) -> None:
            if self.observer is not None:
                self.observer(step)
            if not step.share and not step.ended:
                task = context.subcontext(task_name="round")
                task.call_on_fit_task_begin(estimator=self)
                task.call_on_fit_task_end(estimator=self)  # a selection has no state to stop at

        context.call_on_fit_task_begin(estimator=self, **given)
        yield observe if getattr(self, "_skl_callbacks", None) else self.observer
        fitted = {name: value for name, value in vars(self).items() if name.endswith("_") and not name.startswith("_")}
        context.call_on_fit_task_end(estimator=self, reconstruction_attributes=fitted, **given)

    def _resolve_objective(self, y: Any) -> str:
        """Return the objective for a target."""
        if self.objective != "auto":
            return self.objective
        kind = type_of_target(y)
        if kind == "unknown":  # the wording that scikit-learn's checks expect
            raise DataError("Unknown label type: expected a target of numbers or of two classes, found objects")
        if kind == "binary":
            return "logistic"
        if np.asarray(y).dtype.kind in "fiub":
            return "linear"
        raise DataError(f"the target is {kind} and not numeric: expected numbers or two classes")

    def _columns_of_store(self, source: str | FeatureStore, positions: Any) -> AnyArray:
        """Read columns of a store as (n_obs, len(positions))."""
        with _opened(source) as store:
            url = store.url
            if store.layout.n_columns != self.n_features_in_:
                raise DataError(f"{url} has {store.layout.n_columns} columns: expected the {self.n_features_in_} seen in fit")
            for position in positions if hasattr(self, "feature_names_in_") else ():
                if store.column_names[position] != self.feature_names_in_[position]:
                    raise DataError(
                        f"column {position} of {url} is called {store.column_names[position]!r}: "
                        f"expected {self.feature_names_in_[position]!r} as in fit"
                    )
            return np.ascontiguousarray(Dataset.of_store(store).matrix[positions].T)

    def _linear_predictor(self, X: Any) -> Float64Array:
        """Return the refit model's linear predictor (n_samples,)."""
        validation.check_is_fitted(self)
        positions = self.selection_.model_columns[1]
        if self._from_table or has_text(X):
            chosen: AnyArray = self.selection_.encode(X).values
        elif isinstance(X, (str, FeatureStore)):
            chosen = self._columns_of_store(X, positions)
        else:
            chosen = self._chosen(X)
        return self.selection_.linear_predictor(chosen)

    def _chosen(self, X: Any) -> AnyArray:
        """Return the selected columns of an array or a table of numbers in the order of selection, missing cells filled in."""
        found: AnyArray = _validated(self, X, reset=False, dtype=(np.float64, np.float32), **self._finite())
        return found[:, self.selection_.model_columns[1]] if self.missing == "error" else self.selection_.encode(found).values

    def _finite(self) -> dict[str, Any]:
        """Return how scikit-learn's validation treats missing cells; its option had another name before 1.6."""
        if self.missing == "error":
            return {}
        return {"ensure_all_finite" if hasattr(validation, "validate_data") else "force_all_finite": "allow-nan"}

    def _get_support_mask(self) -> BoolArray:
        """Return the mask of selected columns for ``SelectorMixin``."""
        validation.check_is_fitted(self)
        return self.support_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.allow_nan = self.missing != "error"
        return tags

    def _more_tags(self) -> dict[str, Any]:
        """Return the same tags for scikit-learn before 1.6."""
        return {"requires_y": True, "allow_nan": self.missing != "error"}


class FastOMPRegressor(RegressorMixin, FastOMPSelector):  # type: ignore[misc]
    """Select features and predict numbers (``objective="linear"``) or counts (``"poisson"``) with the model refit on them.

    Parameters and attributes are those of ``FastOMPSelector``, and:

    Attributes
    ----------
    coef_ : (n_columns,) float64
        One per column after encoding, in original units, zero where not selected.
    intercept_ : float
    """

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> FastOMPRegressor:
        """Select features and refit; see ``FastOMPSelector.fit``."""
        super().fit(X, y, sample_weight)
        self.coef_ = _dense_coefficients(self)
        self.intercept_ = self.selection_.intercept
        return self

    def predict(self, X: Any) -> Float64Array:
        """Return the expected response (n_samples,) of the observations ``X``, or of the store at the URL ``X``."""
        eta = self._linear_predictor(X)  # first: it checks that the estimator is fitted
        return self.selection_.mean_response(eta)

    def _resolve_objective(self, y: Any) -> str:
        """Return the objective; ``auto`` is linear here, also for two values."""
        if self.objective == "logistic":
            raise RequestError("a regressor has no logistic objective: use FastOMPClassifier")
        return "linear" if self.objective == "auto" else self.objective


class FastOMPClassifier(ClassifierMixin, FastOMPSelector):  # type: ignore[misc]
    """Select features and classify with the logistic model refit on them; two classes.

    Parameters and attributes are those of ``FastOMPSelector``, and the ones below. For more classes wrap it in scikit-learn's
    ``OneVsRestClassifier``.

    Attributes
    ----------
    classes_ : (2,) array
    coef_ : (1, n_columns) float64
        One per column after encoding, in original units, zero where not selected.
    intercept_ : (1,) float64
    """

    def _select(self, data: Any, given: Any, y: Any, sample_weight: Any, n_obs: int, names: Sequence[str] | None) -> None:
        """Encode the labels as 0 and 1 and keep ``classes_`` in their own type for ``predict``."""
        check_classification_targets(given)
        self.classes_, codes = np.unique(given, return_inverse=True)
        if len(self.classes_) > 2:
            raise DataError(
                f"Only binary classification is supported. The type of the target is {type_of_target(given)}: "
                "wrap the classifier in OneVsRestClassifier"
            )
        if len(self.classes_) < 2:
            raise DataError("the target holds one class only: a classifier needs two classes")
        super()._select(data, codes, codes, sample_weight, n_obs, names)
        self.selection_ = replace(self.selection_, classes=[str(label) for label in self.classes_])
        self.coef_ = _dense_coefficients(self)[np.newaxis]
        self.intercept_ = np.array([self.selection_.intercept])

    def decision_function(self, X: Any) -> Float64Array:
        """Return the log odds (n_samples,) of ``classes_[1]``."""
        return self._linear_predictor(X)

    def predict_proba(self, X: Any) -> Float64Array:
        """Return the probability (n_samples, 2) of each class."""
        eta = self._linear_predictor(X)  # first: it checks that the estimator is fitted
        positive = self.selection_.mean_response(eta)
        return np.column_stack((1.0 - positive, positive))

    def predict(self, X: Any) -> AnyArray:
        """Return the likelier class (n_samples,)."""
        eta = self._linear_predictor(X)  # first: it checks that the estimator is fitted
        return np.asarray(self.classes_[(eta >= 0.0).astype(np.int64)])

    def _resolve_objective(self, y: Any) -> str:
        """Return ``logistic``, the only objective of a classifier."""
        if self.objective not in ("auto", "logistic"):
            raise RequestError(f"a classifier has no {self.objective} objective: use FastOMPRegressor")
        return "logistic"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _more_tags(self) -> dict[str, Any]:
        """Return the same tags for scikit-learn before 1.6."""
        return {**super()._more_tags(), "binary_only": True}


def _dense_coefficients(estimator: FastOMPSelector) -> Float64Array:
    """Return the coefficients of all columns."""
    coef = np.zeros(estimator.selection_.store.n_columns)
    _, positions, values = estimator.selection_.model_columns
    coef[positions] = values
    return coef


def _checked_weights(sample_weight: Any, n_obs: int) -> Float64Array:
    """Return sample weights as a vector (n_obs,); a number is repeated."""
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.ndim == 0:
        return np.full(n_obs, float(weights))
    if weights.shape != (n_obs,):
        raise DataError(f"sample_weight has shape {weights.shape}: expected one weight for each of {n_obs} observations")
    return weights


def _validated(estimator: FastOMPSelector, *arguments: Any, **options: Any) -> Any:
    """Validate data by scikit-learn's ``validate_data``, a method before 1.6."""
    validate = getattr(validation, "validate_data", None)
    return validate(estimator, *arguments, **options) if validate else estimator._validate_data(*arguments, **options)
