"""Tall data, 60,000 x 784: cross-validation and subsamples from Gram matrices of one pass, against the sweeps of every run.

The data are the images of Fashion-MNIST where Debian's package ``dataset-fashion-mnist`` is installed, otherwise smooth random
images of the same shape; the response is linear in a few pixels, with noise. ``gram="auto"`` and ``gram="never"`` are timed in turn
and must select the same features. A single selection must not pay for the choice. Medians are over ``--repeats`` turns, of single
selections over five times as many; a ratio is the median of the ratios of all turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

import fastomp_nvm as fo
from benchmarks.harness.real import fashion_mnist
from benchmarks.harness.report import Report, argument_parser, at_least
from benchmarks.harness.timing import in_turn, paired

__all__ = ["main"]

#: Least speed-up of cross-validation and subsamples together, and largest time of a single selection over that without the choice.
MANY_BAR, SINGLE_BAR = 5.0, 1.02


def images(count: int, side: int) -> tuple[str, np.ndarray]:
    """Return a name and images (count, side * side) with values 0 to 255 as float32."""
    if side == 28 and (real := fashion_mnist()) is not None:
        return "Fashion-MNIST", real[0][:count].astype(np.float32)
    random = np.random.default_rng(0)
    waves = np.sin(np.arange(1, 9)[:, None] * np.arange(side) * np.pi / (side - 1))  # zero at the edges, as most images are
    smooth = np.einsum("nij,ix,jy->nxy", random.normal(size=(count, 8, 8)).astype(np.float32), *[waves.astype(np.float32)] * 2)
    grain = random.normal(size=smooth.shape).astype(np.float32) * (waves[0][:, None] * waves[0] > 0.05)
    return "random images", np.clip(np.rint(40.0 * smooth + 20.0 * grain), 0.0, 255.0).reshape(count, -1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argument_parser("tall", __doc__)
    parser.add_argument("--repeats", type=int, help="turns (default 11, with --quick 1)")
    options = parser.parse_args(argv)
    repeats = (1 if options.quick else 11) if options.repeats is None else options.repeats
    at_least("--repeats", repeats, 1)
    report = Report(options, argv)
    n_obs, side, k, subsamples = (20_000, 15, 30, 10) if options.quick else (60_000, 28, 20, 50)
    ks = [15, 30] if options.quick else list(range(1, k + 1))
    name, X = images(n_obs, side)
    random = np.random.default_rng(1)
    bright = np.argsort(-X.var(axis=0), kind="stable")[: X.shape[1] // 3 : 16]
    signal = X[:, bright].astype(np.float64) @ random.normal(size=len(bright))
    y = signal + signal.std() * random.normal(size=n_obs)

    def many(gram: Any) -> Callable[[], Any]:
        def run() -> Any:
            cv = fo.cross_validate(store, folds=5, ks=ks, gram=gram, progress=False)
            return cv, fo.stability(store, k=k, subsamples=subsamples, gram=gram, progress=False)

        return run

    with fo.create_store("dram:benchmark-tall", X, y, replace=True) as store:
        del X
        chosen = {gram: many(gram) for gram in ("auto", "never")}
        seconds, found = in_turn(chosen, repeats, warm=0 if options.quick else 1)
        single: dict[str, Callable[[], Any]] = {
            gram: lambda gram=gram: fo.select(store, k=k, gram=gram)  # type: ignore[misc]
            for gram in chosen
        }
        alone, _ = in_turn(single, 5 * repeats, warm=1)
    rows = [
        (gram, median(seconds[gram]), *(each.sharing.full_passes for each in found[gram]), median(alone[gram])) for gram in chosen
    ]
    title = f"{name}, {n_obs} x {side * side}: 5 folds x {len(ks)} k to {k}, {subsamples} subsamples; medians of {repeats} turns"
    report.table(title, ("Gram", "cv and subsamples s", "passes of cv", "of subsamples", "single s"), rows)
    report.bar("cv and subsamples: times faster than by sweeps", paired(seconds["never"], seconds["auto"]), MANY_BAR)
    ratio = paired(alone["auto"], alone["never"])
    report.bar("a single selection: time over that without the choice", ratio, SINGLE_BAR, at_most=True)
    report.bar("selections that differ", _differing(found["auto"], found["never"]), 0, at_most=True)
    report.bar("passes from Gram matrices", max(each.sharing.full_passes for each in found["auto"]), 1.0, at_most=True)
    return report.finish()


def _differing(found: tuple[fo.CrossValidation, fo.Stability], swept: tuple[fo.CrossValidation, fo.Stability]) -> int:
    """Return how many selections of cross-validations, and frequencies of features, differ."""
    ours, theirs = (
        [each.indices.tolist() for row in cv.fold_selections for each in row] + [cv.selection.indices.tolist()]
        for cv, _ in (found, swept)
    )
    folds = sum(one != other for one, other in zip(ours, theirs, strict=True))
    return folds + int(np.count_nonzero(found[1].frequencies != swept[1].frequencies))


if __name__ == "__main__":
    raise SystemExit(main())
