"""A fitted model as a scikit-learn pipeline, for programs that do not have this package.

The pipeline takes tables with the columns of the store's source, by name. Each number is a ``SimpleImputer`` with the store's value
for missing cells, or passed through if the store has none; each category is a ``SimpleImputer`` where the store has a category
for missing cells, then a ``OneHotEncoder`` that gives zeros for unseen labels. Dates are taken as days since 1970-01-01.
``skl2onnx`` converts it. ONNX computes in float32, so responses and probabilities then differ by about 1e-6 of the size of the
terms (coefficient times value) that they sum; the pipeline itself agrees with ``Selection.predict`` to the last digits of float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm.errors import RequestError, UnavailableError
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
        from sklearn.preprocessing import OneHotEncoder
    except ImportError as error:
        raise UnavailableError(f"a scikit-learn pipeline needs the package {error.name!r}, which is not installed here") from error
    if not len(selection.features):
        raise RequestError("the model has no features: there is nothing to make a pipeline of")
    encoding = selection.encoding or TableEncoding()
    names = [name for part in selection.columns for name in part]
    coefs = dict(zip(names, selection.column_coef.tolist(), strict=True))
    indicators = encoding.indicators()
    sources = list(dict.fromkeys(indicators.get(name, (name, 0))[0] for name in names))
    steps: list[tuple[str, object, list[str]]] = []
    rows: dict[str, list[object]] = {}  # one row per label: what the encoders are fitted to
    length = max([1, *(len(encoding.columns[name].labels) for name in sources if name in encoding.columns)])
    weights: list[float] = []
    for source in sources:
        settings = encoding.columns.get(source, ColumnEncoding())
        if settings.kind == "category":
            labels = list(settings.labels)
            encoder = OneHotEncoder(categories=[labels], handle_unknown="ignore", sparse_output=False)
            step: object = encoder
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
                step = SimpleImputer(strategy="median")  # of the rows below; a constant would not take columns of integers
            rows[source] = [settings.fill or 0.0] * length
            weights.append(coefs[source])
        steps.append((f"{len(steps)}", step, [source]))
    table = pandas.DataFrame(rows)
    encode = ColumnTransformer(steps, remainder="drop").fit(table)
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
