"""A fitted model as a scikit-learn pipeline, for programs that do not have this package.

The pipeline takes tables with the columns of the store's source, by name, and arrays with all columns if their names are those of
an array (``f0, f1, ...``). Each number is a ``SimpleImputer`` with the store's value for missing cells, or passed through if the
store has none; each category is a ``SimpleImputer`` where the store has a category for missing cells, then a ``OneHotEncoder``
that gives zeros for unseen labels. Dates, and categories with labels such as ``1`` or ``true`` that tables also hold as numbers,
are a ``FunctionTransformer`` that encodes as ``Selection.predict`` does: such a pipeline needs this package after all, and ONNX
has no such step. ``skl2onnx`` converts the others. ONNX computes in float32, so responses and probabilities then differ by about
1e-6 of the size of the terms (coefficient times value) that they sum; the pipeline itself agrees with ``Selection.predict`` to the
last digits of float64.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm.arrays import Float64Array
from fastomp_nvm.errors import RequestError, UnavailableError
from fastomp_nvm.selection.model import ModelColumns
from fastomp_nvm.stores.encoding import ColumnEncoding, TableEncoding

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

    from fastomp_nvm.selection.answer import Answer

__all__ = ["make_pipeline"]


def make_pipeline(selection: Answer) -> Pipeline:
    """Return a fitted ``sklearn.pipeline.Pipeline`` that predicts as ``selection`` does.

    Its steps are ``encode`` (a ``ColumnTransformer``) and ``model`` (``LinearRegression``, ``LogisticRegression`` or
    ``PoissonRegressor`` with the coefficients of the selection). Classes are those of the selection, as text.
    """
    try:
        import pandas
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import SimpleImputer
        from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
        from sklearn.pipeline import Pipeline
        from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
    except ImportError as error:
        raise UnavailableError(f"a scikit-learn pipeline needs the package {error.name!r}, which is not installed here") from error
    if not len(selection.features):
        raise RequestError("the model has no features: there is nothing to make a pipeline of")
    if selection.beside or selection.offset_beside:
        raise RequestError(
            "the model has covariates or an offset that are no columns of the data, which a pipeline has no place for: predict "
            "with the selection itself"
        )
    encoding = selection.encoding or TableEncoding()
    names, places, values = selection.model_columns
    coefs = dict(zip(names, values.tolist(), strict=True))
    indicators = encoding.indicators()
    members: dict[str, list[str]] = {}  # the columns of the model by column of the table
    for name in names:
        members.setdefault(indicators.get(name, (name, 0))[0], []).append(name)
    sources = list(members)
    steps: list[tuple[str, object, list[str] | list[int]]] = []
    rows: dict[str, list[object]] = {}  # one row per label: what the encoders are fitted to
    length = max([1, *(len(encoding.columns[name].labels) for name in sources if name in encoding.columns)])
    weights: list[float] = []
    for source in sources:
        settings = encoding.columns.get(source, ColumnEncoding())
        if settings.kind == "date" or any(map(_stands_for_a_number, settings.labels)):
            own = members[source]
            alone = replace(encoding, columns={source: settings})
            columns = ModelColumns(own, np.arange(len(own)), len(own), alone)
            step: object = FunctionTransformer(_encoded, kw_args={"columns": columns})
            rows[source] = [settings.labels[0] if settings.labels else pandas.Timestamp(0)] * length
            weights += [coefs[name] for name in own]
        elif settings.kind == "category":
            labels = list(settings.labels)
            encoder = OneHotEncoder(categories=[labels], handle_unknown="ignore", sparse_output=False)
            step = encoder
            if settings.fill is not None:
                filling = {"strategy": "constant", "fill_value": labels[int(settings.fill)]}
                fills = [SimpleImputer(missing_values=missing, **filling) for missing in (np.nan, None)]  # both occur in tables
                step = Pipeline([("fill_nan", fills[0]), ("fill_none", fills[1]), ("encode", encoder)])
            rows[source] = [labels[place % len(labels)] for place in range(length)]
            single = len(labels) == 1 and source in coefs
            weights += [coefs[source]] if single else [coefs.get(f"{source}={label}", 0.0) for label in labels]
        else:
            step = "passthrough"
            if settings.fill is not None:
                plain = StandardScaler(with_mean=False, with_std=False)  # makes truth values and integers floats, and no more
                step = Pipeline([("number", plain), ("fill", SimpleImputer(strategy="median"))])  # of the rows below
            rows[source] = [settings.fill or 0.0] * length
            weights.append(coefs[source])
        steps.append((f"{len(steps)}", step, [source]))
    table = pandas.DataFrame(rows)
    positions = places.tolist()
    of_array = names == [f"f{position}" for position in positions] and all(
        encoding.columns.get(name, ColumnEncoding()).kind == "number" for name in names
    )
    if of_array:
        # The columns of an array: fitted to a table, a position stands for the name in tables and for itself in arrays.
        whole = np.zeros((length, selection.store.n_columns))
        whole[:, positions] = table[names].to_numpy(dtype=np.float64)
        table = pandas.DataFrame(whole, columns=[f"f{position}" for position in range(selection.store.n_columns)])
        steps = [(label, step, [position]) for (label, step, _), position in zip(steps, positions, strict=True)]
    encode = ColumnTransformer(steps, remainder="drop").fit(table)
    for _, step, _ in encode.transformers_ if of_array else ():
        if isinstance(step, Pipeline):
            del step[0].feature_names_in_  # it would warn of arrays
    coef, n_inputs = np.array(weights), len(weights)
    if selection.objective == "linear":
        model = LinearRegression()
        model.coef_, model.intercept_, model.rank_ = coef, float(selection.intercept), n_inputs
    elif selection.objective == "logistic":
        model = LogisticRegression()
        model.classes_ = np.array(selection.classes, dtype=str)
        model.coef_, model.intercept_ = coef[np.newaxis], np.array([selection.intercept])
        model.n_iter_ = np.array([1], dtype=np.int32)
    elif selection.objective == "poisson":
        model = PoissonRegressor(alpha=0.0)
        model.coef_, model.intercept_, model.n_iter_ = coef, float(selection.intercept), 1
        model._base_loss = model._get_loss()
    else:
        raise RequestError(f"scikit-learn has no {selection.objective} model: predict with the selection itself")
    model.n_features_in_ = n_inputs
    return Pipeline([("encode", encode), ("model", model)])


def _encoded(table: object, columns: ModelColumns) -> Float64Array:
    """Return the columns of the model that come from the only column of ``table``."""
    return columns.of(table).values


def _stands_for_a_number(label: str) -> bool:
    """Tell whether a table may hold a label as a number or a truth value."""
    try:
        float(label)
    except ValueError:
        return label.lower() in ("true", "false")
    return True
