"""The golden cases: data from fixed seeds, requests as data, and the one way to answer and record them.

Only the public interface is used (``fastomp_nvm`` and its ``constraints``, store URLs, the command line) and the servers and
doubles of the other tests, so that the cases outlive any move of modules.

Every number of the data is a multiple of 2**-10 and every response a sum of few of them with dyadic coefficients: float32 and
float64 hold the same values, and no sum depends on the processor.
"""

from __future__ import annotations

import csv
import functools
import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import fastomp_nvm as fo

__all__ = ["CASES", "RECORDS", "Case", "Places", "answer", "ask", "data", "differences", "expected"]

ROOT = Path(__file__).parents[2]
DOUBLES = ROOT / "tests" / "doubles"
RECORDS = Path(__file__).with_name("expected.json")

Fields = dict[str, Any]

#: Compared exactly although ``full_passes`` is a float.
COUNTERS = ("gradient_rounds", "sweeps", "full_passes", "bytes_read")
#: What is recorded of a selection besides indices and coefficients.
RECORDED = ("intercept", "score", "feasible", *COUNTERS)

ALGORITHMS = ("fast_omp", "sds_omp", "sds_ma", "dash", "isk", "lasso", "random", "top_k", "fast")
OBJECTIVES = ("linear", "logistic", "poisson")
#: Algorithms that keep any constraint; ISK keeps a fairness constraint.
CONSTRAINED = tuple(name for name in ALGORITHMS if name not in ("dash", "isk", "lasso"))
#: The target of each objective in every data set.
TARGETS = {"linear": "y", "logistic": "c", "poisson": "n"}


@dataclass(frozen=True)
class Data:
    """Observations (n_obs, n_columns), targets by name, and the columns of features of several columns."""

    X: np.ndarray
    targets: Mapping[str, np.ndarray]
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)


@functools.cache
def data(name: str) -> Data:
    """Return a data set by name; column 7 of each is constant."""
    seed, n_obs, n_columns = {"plain": (1, 120, 90), "grouped": (2, 130, 60), "wide": (3, 90, 1300), "large": (4, 256, 34000)}[name]
    random = np.random.RandomState(seed)
    drawn = np.rint(random.randn(n_obs, n_columns) * 256) / 256
    X = drawn.copy()
    X[:, 1:] += drawn[:, :-1] / 4  # neighbours correlate
    X[:, 20:24] += 32.0  # means far from 0
    X[:, 7] = 2.5
    signal = np.arange(10) * (n_columns // 10) + 3
    strength = np.array([4.0, -3.5, 3.0, -2.5, 2.25, 2.0, -1.75, 1.5, -1.25, 1.0])
    noise = np.rint(random.randn(n_obs) * 256) / 256
    eta = sum((X[:, place] * value for place, value in zip(signal, strength, strict=True)), noise)
    eta = eta - np.sort(eta)[n_obs // 2]
    targets = {
        "y": eta,
        "c": np.where(eta + 4 * random.permutation(noise) > 0, "yes", "no"),
        "n": np.floor(np.square(np.maximum(eta + 8, 0) / 8)),
    }
    groups = {f"g{start}": [start, start + 1, start + 2] for start in range(9, 54, 9)} if name == "grouped" else {}
    return Data(X.astype(np.float32) if name == "large" else X, targets, groups)


class Places:
    """Stores, servers and shards that cases use, each made on first use and ended with this object.

    Parameters
    ----------
    folder : Path
        An empty directory for all of them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._made: dict[Any, Any] = {}

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def store(self, medium: str, name: str, **options: Any) -> str:
        """Return the URL of a store that holds a data set."""
        label = "-".join([medium, name, *map(str, options.values())])
        url = f"dram:golden-{label}" if medium == "dram" else f"{medium}://{self.folder}/{label}"

        def build() -> str:
            held = data(name)
            fo.create_store(url, held.X, held.targets, groups=held.groups, **options).close()
            return url

        return self._once(url, build)

    def service(self, name: str) -> fo.Client:
        """Return a client of a real server on loopback, which holds the data set."""

        def start() -> Any:
            from tests.service.running import RunningServer

            return self._stack.enter_context(RunningServer(self.folder / "service"))

        def connect() -> fo.Client:
            client = self._stack.enter_context(self._once("service", start).connect(f"/lab/{name}"))
            client.put(data(name).X, data(name).targets, groups=data(name).groups)
            return client

        return self._once(("service", name), connect)

    def mcas(self, name: str) -> fo.Client:
        """Return a client of the MCAS double, which holds the data set."""

        def start() -> Any:
            from tests.doubles.running_mcas import RunningMcas

            server = RunningMcas(self.folder / "mcas")
            self._stack.callback(server.kill)
            sys.path.insert(0, str(DOUBLES))  # where a client finds the doubles of upstream's modules
            self._stack.callback(sys.path.remove, str(DOUBLES))
            return server

        def connect() -> fo.Client:
            client = self._stack.enter_context(fo.connect(f"{self._once('mcas', start).url}/{name}"))
            client.put(data(name).X, data(name).targets, groups=data(name).groups)
            return client

        return self._once(("mcas", name), connect)

    def shards(self, name: str) -> fo.FeatureStore:
        """Return a store in two shards that answer in this process."""

        def cut() -> fo.FeatureStore:
            from tests.cluster.in_process import open_in_process

            out = self.folder / f"shards-{name}"
            cut = command("shard", self.store("mmap", name), str(out), "--into", "2", "--json")
            return self._stack.enter_context(open_in_process(cut["url"].removeprefix("cluster://")))

        return self._once(("shards", name), cut)

    def ingested(self, name: str) -> str:
        """Return the URL of a store that the command line built from a CSV file with a column of text."""

        def ingest() -> str:
            held, table = data(name), self.folder / f"{name}.csv"
            towns = np.array(["Bern", "Oslo", "Turin"])[np.digitize(held.targets["y"], [-4.0, 6.0])]
            with table.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow([*(f"f{column}" for column in range(held.X.shape[1])), "town", *held.targets])
                columns = [*held.X.T.tolist(), towns.tolist(), *(values.tolist() for values in held.targets.values())]
                writer.writerows(zip(*columns, strict=True))
            url = f"mmap://{self.folder}/ingested-{name}"
            command("ingest", str(table), url, *(word for target in held.targets for word in ("--target", target)), "--json")
            return url

        return self._once(("ingested", name), ingest)

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returned the first time."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


def command(*words: str) -> Any:
    """Run ``fastomp`` in a process of its own and return the JSON object that it prints."""
    ended = subprocess.run([sys.executable, "-m", "fastomp_nvm", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@dataclass(frozen=True)
class Case:
    """One question.

    Attributes
    ----------
    request : dict
        Fields of the request; ``objective`` decides the target. The constraint may be a function of the number of features.
    of : str
        Name of the data set.
    place : str
        A key of ``PLACES``: how the data is handed over.
    ask : str
        A key of ``ASKS``: what is done with it.
    options : dict
        Further arguments of ``ask``.
    """

    request: dict[str, Any]
    of: str = "plain"
    place: str = "array"
    ask: str = "select"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def needs(self) -> tuple[str, ...]:
        """Modules without which the case is skipped."""
        return ("pyarrow.flight",) if self.place == "service" else ()


def _array(order: Any, dtype: str) -> Callable[[Places, str], np.ndarray]:
    return lambda places, name: np.array(data(name).X, order=order, dtype=dtype)


def _store(medium: str, **options: Any) -> Callable[[Places, str], str]:
    return lambda places, name: places.store(medium, name, **options)


#: How the data of a case is handed over.
PLACES: dict[str, Callable[[Places, str], Any]] = {
    "array": _array("C", "float64"),
    "array-fortran": _array("F", "float64"),
    "array-float32": _array("C", "float32"),
    "array-float32-fortran": _array("F", "float32"),
    "dram": _store("dram"),
    "dram-float64": _store("dram", dtype="float64"),
    "dram-float16": _store("dram", dtype="float16"),
    "mmap": _store("mmap"),
    "mmap-float64": _store("mmap", dtype="float64"),
    "mmap-untiered": _store("mmap", tier="none"),
    "pmem": _store("pmem"),
    "service": Places.service,
    "mcas": Places.mcas,
    "shards": Places.shards,
    "ingested": Places.ingested,
}


def _fields(found: fo.Selection | Mapping[str, Any]) -> dict[str, Any]:
    """Return what is recorded of a selection, an object of Python or the JSON of the command line."""
    if isinstance(found, Mapping):
        coef = [np.atleast_1d(part).tolist() for part in found["coef"]]
        return {"indices": found["indices"], "coef": coef} | {name: found[name] for name in RECORDED}
    coef = [np.atleast_1d(part).tolist() for part in found.coef]
    rest = {name: getattr(found, name) for name in RECORDED}
    return {"indices": np.asarray(found.indices).tolist(), "coef": coef, **rest}


def _select(handed: Any, y: Fields, request: Fields) -> Any:
    return _fields(handed.select(**y, **request) if isinstance(handed, fo.Client) else fo.select(handed, **y, **request))


def _select_many(handed: Any, y: Fields, request: Fields, *, each: Sequence[Mapping[str, Any]]) -> Any:
    named, given = (y, {}) if "target" in y else ({}, y)
    requests = [{**request, **named, **own} for own in each]
    many = handed.select_many(requests) if isinstance(handed, fo.Client) else fo.select_many(handed, requests, **given)
    return [_fields(found) for found in many]


def _grid(handed: Any, y: Fields, request: Fields, **options: Any) -> Any:
    found = fo.grid(handed, **y, **request, **options)
    cells = [_fields(cell.selection) for cell in found.cells]
    return {"cells": cells, "bytes_read": found.sharing.bytes_read, "full_passes": found.sharing.full_passes}


def _cross_validate(handed: Any, y: Fields, request: Fields, **options: Any) -> Any:
    found = fo.cross_validate(handed, **y, **request, **options)
    return {
        "scores": found.scores.tolist(),
        "k": found.k,
        "one_standard_error_k": found.one_standard_error_k,
        "selection": _fields(found.selection),
        "folds": [[_fields(each) for each in row] for row in found.fold_selections],
        "bytes_read": found.sharing.bytes_read,
        "full_passes": found.sharing.full_passes,
    }


def _stability(handed: Any, y: Fields, request: Fields, **options: Any) -> Any:
    found = fo.stability(handed, **y, **request, **options)
    return {
        "indices": found.indices.tolist(),
        "frequencies": found.frequencies[found.indices].tolist(),
        "stable": list(found.stable),
        "bytes_read": found.sharing.bytes_read,
        "full_passes": found.sharing.full_passes,
    }


def _durable(handed: Any, y: Fields, request: Fields, *, name: str, rounds: int | None = None) -> Any:
    """Select in a durable run; with ``rounds``, cancel it after so many of its rounds and resume it."""
    if rounds is None:
        return _fields(fo.select(handed, **y, run=name, **request))
    asked = iter(range(rounds))
    try:
        fo.select(handed, **y, run=name, cancelled=lambda: next(asked, None) is None, **request)
    except fo.CancelledError:
        return _fields(fo.resume(name))
    raise AssertionError(f"the run {name} ended before it was cancelled")


def _command(handed: Any, y: Fields, request: Fields, *, words: Sequence[str]) -> Any:
    """Print the answer of a subcommand about a store."""
    target = [word for name, value in y.items() for word in (f"--{name}", value)]
    options = [word for name, value in request.items() for word in (f"--{name}", str(value))]
    printed = command(words[0], handed, *target, *options, *words[1:], "--json")
    if words[0] == "select":
        return _fields(printed)
    if words[0] == "grid":
        return [_fields(cell) for cell in printed["cells"]]
    if words[0] == "cv":
        return {"scores": printed["scores"], "k": printed["k"], "selection": _fields(printed["selection"])}
    return {name: printed[name] for name in ("indices", "frequencies", "stable")}


#: What is done with the data; each returns the record of a case.
ASKS: dict[str, Callable[..., Any]] = {
    "select": _select,
    "select_many": _select_many,
    "grid": _grid,
    "cross_validate": _cross_validate,
    "stability": _stability,
    "durable": _durable,
    "command": _command,
}


def answer(case: Case, places: Places) -> Any:
    """Return the record of a case, made of numbers, strings, lists and dictionaries."""
    return ask(case, PLACES[case.place](places, case.of))


def ask(case: Case, handed: Any) -> Any:
    """Return the record of a case whose data is ``handed`` over: a client, a store, its URL, an array or a table."""
    request = dict(case.request)
    if callable(request.get("constraint")):
        request["constraint"] = request["constraint"](data(case.of).X.shape[1])
    target = TARGETS[request.get("objective", "linear")]
    named = isinstance(handed, (str, fo.FeatureStore, fo.Client))
    y = {"target": target} if named else {"y": data(case.of).targets[target]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an answer breaks its constraint: ``feasible`` is recorded
        record = ASKS[case.ask](handed, y, request, **case.options)
    return json.loads(json.dumps(record, default=lambda number: number.item()))


@functools.cache
def expected() -> dict[str, Any]:
    """Return the records of the golden file by name of the case."""
    found: dict[str, Any] = json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.exists() else {}
    return found


def differences(found: Any, expected: Any, where: str = "", *, counted: bool = True) -> Iterator[str]:
    """Yield where two records differ: floats beyond rounding, everything else exactly; counters only if ``counted``."""
    if isinstance(expected, dict) and isinstance(found, dict) and found.keys() == expected.keys():
        for name in expected:
            if name not in COUNTERS:
                yield from differences(found[name], expected[name], f"{where}/{name}", counted=counted)
            elif counted and found[name] != expected[name]:
                yield f"{where}/{name}: {found[name]} instead of {expected[name]}"
    elif isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from differences(one, other, f"{where}/{place}", counted=counted)
    elif isinstance(expected, float) and isinstance(found, float):
        if not math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{where}: {found!r} instead of {expected!r}"
    elif type(found) is not type(expected) or found != expected:
        yield f"{where}: {found!r} instead of {expected!r}"


def _sum_of_places(features: np.ndarray) -> float:
    """Return a monotone set function: the sum of the features' last digits."""
    return float(sum(feature % 10 for feature in features.tolist()))


def _no_close_pair(features: np.ndarray) -> bool:
    """Allow sets of at most six features, no two of them fewer than ten places apart."""
    return len(features) <= 6 and bool((np.diff(np.sort(features)) >= 10).all())


def _judgements(n_features: int) -> np.ndarray:
    """Return what 20 people think of each feature (20, n_features), True for fair."""
    return np.random.RandomState(5).rand(20, n_features) > 0.06


def _edges(n_features: int) -> np.ndarray:
    """Return a random graph on 9 vertices whose edges are the features (n_features, 2)."""
    return np.random.RandomState(6).randint(0, 9, size=(n_features, 2))


TENS = {f"tens{digit}": [f"f{digit}?"] for digit in range(1, 9)}
PARTITION = {"partition": {"groups": TENS, "caps": 1}}
KNAPSACK = {"knapsack": {"costs": {f"f{column}": 1 + column % 4 for column in range(0, 90, 2)}, "budget": 9, "default": 1.5}}
NESTED = {"low": ["f1?", "f2?", "f3?"], "lower": ["f1?"], "high": ["f8?"]}
LAMINAR = {"laminar": {"groups": NESTED, "caps": {"low": 2, "lower": 1, "high": 1}}}
APART = {"low": ["f1?", "f2?"], "high": ["f6?", "f7?"]}
BOUNDS = {"bounds": {"groups": APART, "lower": {"low": 3}, "upper": {"high": 1}, "total": 7}}

#: Constraints over "plain" by family. A rank estimated by the family itself decides the run where no k is given.
FAMILIES: dict[str, dict[str, Any]] = {
    "cardinality": {"constraint": {"cardinality": 7}},
    "partition": {"constraint": PARTITION, "k": 7},
    "partition-without-k": {"constraint": {"partition": {"groups": {**TENS, "ones": ["f?"]}, "caps": 1}}},
    "bounds": {"constraint": BOUNDS},
    "laminar": {"constraint": LAMINAR, "k": 7},
    "graphic": {"constraint": lambda n: fo.constraints.Graphic(n, _edges(n))},
    "graphic-written": {"constraint": {"graphic": {"edges": {"f3": ["a", "b"], "f12": ["b", "c"], "f21": ["a", "c"]}}}, "k": 6},
    "knapsack": {"constraint": KNAPSACK, "k": 7},
    "knapsack-without-k": {"constraint": KNAPSACK},
    "fairness": {"constraint": lambda n: fo.constraints.Fairness(n, _judgements(n), 0.3), "k": 7},
    "fairness-without-k": {"constraint": lambda n: fo.constraints.Fairness(n, _judgements(n), 0.3)},
    "monotone": {"constraint": lambda n: fo.constraints.Monotone(n, _sum_of_places, 25.0), "k": 7},
    "monotone-without-k": {"constraint": lambda n: fo.constraints.Monotone(n, _sum_of_places, 25.0)},
    "oracle": {"constraint": lambda n: fo.constraints.Oracle(n, _no_close_pair), "k": 5},
    "oracle-without-k": {"constraint": lambda n: fo.constraints.Oracle(n, _no_close_pair)},
    "oracle-rank": {"constraint": lambda n: fo.constraints.Oracle(n, _no_close_pair, rank=6)},
    "random": {"constraint": {"random": {"p": 2, "groups": 12, "cap": 1, "seed": 3}}, "k": 7},
    "random-without-k": {"constraint": {"random": {"p": 2, "groups": 12, "cap": 1, "seed": 3}}},
    "partition-and-knapsack": {"constraint": {"all": [PARTITION, KNAPSACK, {"cardinality": 6}]}},
    "laminar-and-random": {"constraint": {"all": [LAMINAR, {"random": {"p": 1, "groups": 9, "cap": 1}}]}, "k": 6},
    "bounds-and-knapsack": {"constraint": {"all": [BOUNDS, KNAPSACK]}},
    "infeasible": {"constraint": {"all": [BOUNDS, PARTITION]}},
    "fairness-and-partition": {
        "constraint": lambda n: fo.constraints.intersect(
            [fo.constraints.Fairness(n, _judgements(n), 0.3), fo.constraints.Partition(n, np.arange(n) % 5, [2, 2, 1, 1, 1])]
        )
    },
    "oracle-and-graphic": {
        "constraint": lambda n: fo.constraints.intersect(
            [fo.constraints.Oracle(n, _no_close_pair), fo.constraints.Graphic(n, _edges(n))]
        )
    },
}

#: Here one threshold finds a better set than the others. Where two find the same set in different orders, rounding decides.
AUTO = {"k": 7, "tau": "auto", "seed": 2}

#: Variants of FAST_OMP.
VARIANTS: dict[str, dict[str, Any]] = {
    "tau-low": {"tau": 0.2},
    "tau-high": {"tau": 0.9},
    "tau-auto": {**AUTO},
    "epsilon": {"epsilon": 0.35},
    "until-full": {"until": "full", "epsilon": 0.4},
    "unpolished": {"polish": "none"},
    "unpolished-full": {"polish": "none", "until": "full", "tau": 0.8, "epsilon": 0.3},
    "unpolished-auto": {**AUTO, "polish": "none"},
    "skip-weak": {"skip_weak": True, "tau": 0.7, "epsilon": 0.5},
    "skip-weak-unpolished": {"skip_weak": True, "tau": 0.7, "epsilon": 0.5, "polish": "none"},
    "ridge": {"ridge": 0.3},
    "weights": {"weights": np.random.RandomState(7).randint(0, 4, 120).astype(np.float64)},
    "unstandardised": {"standardize": False},
    "certificate": {"certificate": True},
    "certificate-lambda": {"certificate": True, "lambda_min": 0.25},
    "seed": {"seed": 12345678901},
    "seed-unpolished": {"seed": 12345678901, "polish": "none"},
    "exclude": {"exclude": ["f3", "f12"]},
    "test-fraction": {"test_fraction": 0.25},
    "little-memory": {"gather_bytes": 4000},
}


def _cases() -> Iterator[tuple[str, Case]]:
    """Yield every case with its name."""
    for algorithm in ALGORITHMS:
        for objective in OBJECTIVES if algorithm != "lasso" else ("linear", "logistic"):
            chosen = {"algorithm": algorithm, "objective": objective}
            yield f"algorithm/{algorithm}/{objective}", Case({**chosen, "k": 6})
            yield f"categorical/{algorithm}/{objective}", Case({**chosen, "k": 5}, "grouped", "dram-float64")
    for algorithm in CONSTRAINED:
        for objective in OBJECTIVES:
            yield (
                f"constrained/{algorithm}/{objective}",
                Case({"algorithm": algorithm, "objective": objective, "constraint": PARTITION, "k": 6}),
            )
    for objective in OBJECTIVES:
        yield f"constrained/isk/{objective}", Case({"algorithm": "isk", "objective": objective, **FAMILIES["fairness"]})
    for name, variant in VARIANTS.items():
        for objective in OBJECTIVES:
            yield f"variant/{name}/{objective}", Case({"k": 8, "objective": objective, **variant})
    for name, limits in FAMILIES.items():
        for algorithm in ("fast_omp", "sds_omp"):
            yield f"family/{name}/{algorithm}", Case({"algorithm": algorithm, **limits})
        yield f"family/{name}/logistic", Case({"objective": "logistic", **limits})
        yield f"family/{name}/unpolished", Case({"tau": 0.6, "polish": "none", **limits})
    for tier in ("exact", "int8", "auto"):
        for algorithm in ALGORITHMS:
            yield f"tier/{tier}/{algorithm}", Case({"algorithm": algorithm, "k": 6, "tier": tier}, "plain", "mmap")
        for algorithm in ("fast_omp", "sds_omp"):
            for objective in OBJECTIVES:
                asked = {"algorithm": algorithm, "objective": objective, "k": 8, "tier": tier}
                yield f"tier-wide/{tier}/{algorithm}/{objective}", Case(asked, "wide", "dram")
        yield f"tier-large/{tier}", Case({"k": 8, "tier": tier}, "large", "mmap")
    yield "tier-large/auto/sds_omp", Case({"k": 4, "algorithm": "sds_omp"}, "large", "mmap")
    for place in PLACES:
        if place not in ("service", "mcas", "shards", "ingested"):
            for objective in OBJECTIVES:
                yield f"place/{place}/{objective}", Case({"k": 7, "objective": objective}, "plain", place)
    each = [{"k": 5}, AUTO, {"k": 4, "algorithm": "sds_omp"}, {"k": 6, "constraint": PARTITION, "seed": 2}]
    for place in ("array", "mmap"):
        for objective in ("linear", "logistic"):
            common = {"objective": objective}
            many = Case(common, "plain", place, "select_many", {"each": each})
            yield f"select_many/{place}/{objective}", many
            grid = Case(common, "plain", place, "grid", {"over": {"tau": [0.3, 0.8], "k": [3, 6], "seed": [0, 1]}})
            yield f"grid/{place}/{objective}", grid
            yield (
                f"cross_validate/{place}/{objective}",
                Case(common, "plain", place, "cross_validate", {"ks": [2, 5, 8], "folds": 3}),
            )
            sampled = Case({"k": 5, **common}, "plain", place, "stability", {"subsamples": 8, "threshold": 0.75})
            yield f"stability/{place}/{objective}", sampled
    yield (
        "grid/lambda",
        Case({"constraint": FAMILIES["fairness"]["constraint"], "k": 6}, ask="grid", options={"over": {"lambda": [0.2, 0.3, 0.5]}}),
    )
    for number, (place, request) in enumerate(
        [
            ("mmap", {"k": 6}),
            ("mmap", {**AUTO, "tier": "int8"}),
            ("mmap", {"k": 5, "algorithm": "sds_omp"}),
            ("pmem", {"k": 4, "objective": "logistic", "algorithm": "sds_omp"}),
            ("pmem", {"k": 6, "constraint": PARTITION, "polish": "none"}),
        ]
    ):
        for rounds in (None, 1, 2):
            ending = "whole" if rounds is None else f"resumed-{rounds}"
            options = {"name": f"golden-{number}-{ending}", "rounds": rounds}
            yield f"durable/{place}-{number}/{ending}", Case(request, "plain", place, "durable", options)
    for place, name in (("service", "plain"), ("service", "grouped"), ("mcas", "plain"), ("shards", "wide")):
        for objective in OBJECTIVES:
            yield f"{place}/{name}/fast_omp/{objective}", Case({"k": 6, "objective": objective}, name, place)
        for algorithm in ALGORITHMS if name == "plain" else ("sds_omp", "top_k", "random"):
            if algorithm != "lasso":  # its library takes seconds to import, in each process
                yield f"{place}/{name}/{algorithm}", Case({"k": 4, "algorithm": algorithm}, name, place)
    for place, name in (("service", "plain"), ("mcas", "plain"), ("shards", "wide")):
        yield f"{place}/{name}/partition", Case({"k": 6, "constraint": PARTITION}, name, place)
        yield f"{place}/{name}/int8", Case({**AUTO, "tier": "int8"}, name, place)
        yield f"{place}/{name}/many", Case({}, name, place, "select_many", {"each": each})
    for name, words, request in (
        ("select", ["select", "--certificate"], {"k": 5}),
        ("select-logistic", ["select", "--tier", "int8"], {"k": 5, "objective": "logistic", "tau": 0.7}),
        ("grid", ["grid", "--seeds", "2"], {"k": "3,5", "tau": "0.4,0.8"}),
        ("cv", ["cv", "--folds", "3"], {"k": "2,4"}),
        ("stability", ["stability", "--subsamples", "6"], {"k": 4}),
    ):
        yield f"command/{name}", Case(request, "plain", "ingested", "command", {"words": words})


CASES: dict[str, Case] = dict(_cases())
