"""Features in the span of the fixed directions are found in the first sweep of a run, and are in no answer.

All of their length is along the directions, which are swept beside the first vectors that an algorithm asks about: that costs no
pass. Their scores are rounding, so that only algorithms that draw features whatever their scores are need to know first. Only
features with enough of their length along one of the directions are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fastomp_nvm.algorithms.protocol import Algorithm, Ask, Gradients, Outcome, Problem, Query
from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.matrix.fixed import Fixed
from fastomp_nvm.objectives.independent import DEPENDENT, DEPENDENT_IN_FLOAT32

__all__ = ["without_spanned"]


def without_spanned(problem: Problem, fixed: Fixed, run: Callable[[Problem], Algorithm], *, first: bool) -> Algorithm:
    """Run an algorithm without the features that the directions explain; its outcome names them.

    ``first``: they are found in a pass before it, because it draws features whatever their scores are.
    """
    if first and len(fixed.dual):
        answers = yield from problem.ask(0, 0.0, list(fixed.dual), problem.usable)
        spanned = _spanned(problem, answers)
        usable = np.setdiff1d(problem.usable, spanned)
        outcome = yield from run(replace(problem, usable=usable))
        return replace(outcome, spanned=spanned.tolist())
    return (yield from _looking(problem, fixed, run(problem)))


def _looking(problem: Problem, fixed: Fixed, algorithm: Algorithm) -> Algorithm:
    """Run ``algorithm``, the directions beside its first vectors; leave the features that they explain out of its sets."""
    spanned: IndexArray | None = None
    answers: Sequence[Gradients] | None = None
    outcome: Outcome
    while True:
        try:
            step = algorithm.send(answers)
        except StopIteration as stop:
            outcome = stop.value
            break
        if isinstance(step, Query) and spanned is None and len(fixed.dual):
            asks = tuple(Ask(vector, problem.usable) for vector in fixed.dual)
            found = yield replace(step, asks=(*step.asks, *asks))
            assert found is not None
            own = len(step.asks)
            answers, spanned = found[:own], _spanned(problem, found[own:])
        else:
            answers = yield step
    if spanned is None or not spanned.size:
        return outcome
    gone = spanned

    def left(features: IndexArray) -> IndexArray:
        return features[~np.isin(features, gone)]

    unpolished = None if outcome.unpolished is None else left(outcome.unpolished)
    greedy = [left(features) for features in outcome.greedy]
    return replace(outcome, selected=left(outcome.selected), unpolished=unpolished, greedy=greedy, spanned=spanned.tolist())


def _spanned(problem: Problem, answers: Sequence[Gradients]) -> IndexArray:
    """Return the features whose columns the directions explain, given the answers for each direction."""
    left = DEPENDENT if problem.design.matrix.dtype == np.float64 else DEPENDENT_IN_FLOAT32
    # All of a feature's length is along the directions, so at least an equal share of it is along one of them.
    share = (1.0 - left) / len(answers)
    features = np.unique(np.concatenate([answer.at_least(share) for answer in answers]))
    if not features.size:
        return features
    standardisation = problem.design.standardisation.subset(features)
    squares: Float64Array = np.sum([standardisation.scores(answer.of(features)[:, None])[:, 0] for answer in answers], axis=0)
    lengths = np.ones(len(features))
    for group in standardisation.whiteners:
        lengths[group.features] = group.matrices.any(axis=2).sum(axis=1)
    found: IndexArray = features[squares >= lengths * (1.0 - left)]
    return found
