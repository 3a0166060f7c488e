"""Checks the proof of a verified selection again, in one pass over the data.

The winner of each recorded step must still beat every feature that could have been added, with the recorded runner-up and margin,
and the selection must be the recorded set or, where greedy was only the bar to reach, have at least its f. Scores are computed as
the run computed them; where kernel or BLAS differ, features closer than ``CLOSE`` may change places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest

import numpy as np

from fastomp_nvm.algorithms.protocol import Problem
from fastomp_nvm.algorithms.trace import CLOSE, Trace
from fastomp_nvm.algorithms.verified import retraced
from fastomp_nvm.arrays import IndexArray, JSONObject
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Engine, Observer, Run
from fastomp_nvm.engine.identity import target_digest
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.matrix.threads import one_blas_thread
from fastomp_nvm.objectives.linear import Linear
from fastomp_nvm.selection.proof import LARGEST, Proof
from fastomp_nvm.selection.request import SelectionRequest
from fastomp_nvm.selection.select import prepare, split_of

__all__ = ["Claim", "Verification", "recheck"]

#: Differences of margins, and relative ones of scores, that other kernels and builds of BLAS may cause; prefix fits of GLMs stop
#: at about five digits.
MARGIN_ROUNDING, SCORE_ROUNDING = 1e-4, 1e-6

#: Interchangeable features named in a sentence, at most.
MOST_NAMED = 10


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """The parts of a result that its proof is about.

    Attributes
    ----------
    indices : (s,) int64
    score : float
    quality, guarantee : str
    features_covered : int
    proof : Proof
    """

    indices: IndexArray
    score: float
    quality: str
    guarantee: str
    features_covered: int
    proof: Proof

    @classmethod
    def of(cls, result: Mapping[str, object]) -> Claim:
        """Return the claim of a result in JSON terms; ``ValueError`` if a part is missing or of the wrong type."""
        indices, score, covered, proof = (result.get(name) for name in ("indices", "score", "features_covered", "proof"))
        if not (isinstance(indices, list) and all(type(index) is int and 0 <= index < LARGEST for index in indices)):
            raise ValueError("it lacks indices")
        if not (isinstance(score, (int, float)) and isinstance(covered, int) and isinstance(proof, Mapping)):
            raise ValueError("it lacks score, features_covered or proof")
        quality, guarantee = str(result.get("quality")), str(result.get("guarantee"))
        return cls(np.array(indices, dtype=np.int64), float(score), quality, guarantee, covered, Proof.from_json(proof))


@dataclass(frozen=True, slots=True)
class Verification:
    """What checking a proof again has shown.

    Attributes
    ----------
    holds : bool
    sentence : str
        The result in words.
    interchangeable : sequence of (int, str, str)
        Steps, from 1, that were decided by less than ``CLOSE``: the winner, and the runner-up that could stand in its place.
    """

    holds: bool
    sentence: str
    interchangeable: Sequence[tuple[int, str, str]] = ()

    def to_json(self) -> JSONObject:
        """Return the fields in JSON terms."""
        return {**asdict(self), "interchangeable": [list(each) for each in self.interchangeable]}


def recheck(
    dataset: Dataset,
    claim: Claim,
    request: SelectionRequest,
    y: object = None,
    *,
    threads: int | None = None,
    observer: Observer | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Verification:
    """Check a claim again.

    Parameters
    ----------
    dataset : Dataset
    claim : Claim
    request : SelectionRequest
        The request that led to the claim.
    y : (n_obs,) array, optional
        Its response, where that is no target of the data.
    threads, observer, cancelled
        As for ``select``.

    Returns
    -------
    Verification
    """
    proof = claim.proof
    difference = _other_data(dataset, proof)
    if difference is None:
        with one_blas_thread():
            sweeper = Sweeper(threads)
            run = prepare(dataset, split_of(dataset, request), y, sweeper).run
            difference = _other_set(run.problem, claim)
            if difference is None:
                again = Run(run.problem, retraced(run.problem, proof.traces), tier=run.tier, account=run.account)
                Engine(dataset.matrix, sweeper, observer, cancelled).drive([again])
                assert again.outcome is not None
                pairs = zip(proof.traces, again.outcome.traces, strict=True)
                difference = next((found for pair in pairs if (found := _other_steps(dataset, *pair)) is not None), None)
    if difference is not None:
        return Verification(False, f"the proof does not hold: {difference}")
    close = [step for trace in proof.traces for step in _interchangeable(dataset, trace)]
    return Verification(True, _holds(claim, close), close)


def _other_data(dataset: Dataset, proof: Proof) -> str | None:
    """Return how the data differs from that of the proof."""
    if dataset.fingerprint != proof.fingerprint:
        now, then = (text[:16] or "none" for text in (dataset.fingerprint, proof.fingerprint))
        return f"the matrix is another one (fingerprint {now}, and {then} when the selection was made)"
    if target_digest(dataset) != proof.targets:
        return "the targets of the data are others than when the selection was made"
    return None


def _other_set(problem: Problem, claim: Claim) -> str | None:
    """Return why the claimed set, or that of a trace, cannot be right, before any pass; None where it may be."""
    if claim.features_covered != len(problem.usable):
        return f"it is said to cover {claim.features_covered:,} features, and there are {len(problem.usable):,} candidates"
    sets = {"the selection": claim.indices} | {trace.kind: np.array(trace.winners, dtype=np.int64) for trace in claim.proof.traces}
    for name, features in sets.items():
        if len(np.unique(features)) < len(features) or not np.isin(features, problem.usable).all():
            return f"{name} holds a feature twice, or one that is no candidate"
        if not problem.constraint.independent(features):
            return f"{name} breaks the constraint"
    if not isinstance(problem.objective, Linear) and any(trace.kind != "omp" for trace in claim.proof.traces):
        return "it has exact gains of a model that is not linear"
    fit = problem.objective.refit(problem.pool.columns(claim.indices))
    if not abs(fit.score - claim.score) <= SCORE_ROUNDING * max(abs(fit.score), SCORE_ROUNDING):  # NaN differs too
        return f"the score of the selection is {fit.score:.9g}, not {claim.score:.9g}"
    for name, features in sets.items():
        if claim.quality == "fast" and not np.array_equal(features, claim.indices):
            return f"the selection is not the set that {name} led to"
        value = problem.objective.refit(problem.pool.columns(features)).value
        if fit.value < (1.0 - SCORE_ROUNDING) * value and not problem.constraint.violations(features):
            return f"f of the selection is {fit.value:.9g}, and greedy by {name} reaches {value:.9g}"
    return None


def _other_steps(dataset: Dataset, recorded: Trace, now: Trace) -> str | None:
    """Return the first step that differs from its record."""
    names = dataset.names
    kept = zip(recorded.winners, recorded.runners_up, recorded.margins, strict=True)
    found = zip(now.winners, now.runners_up, now.margins, strict=True)
    for step, (was, new) in enumerate(zip_longest(kept, found), 1):
        if was is None:
            return f"{recorded.kind} ends after step {step - 1}, and {names[new[0]]!r} could still be added"
        assert new is not None, "a trace that ends early ends with a step that differs"
        place = f"step {step} of {recorded.kind}"
        if was[0] != new[0]:
            return f"{place} is won by {names[new[0]]!r}, not by {names[was[0]]!r}"
        if abs(was[2] - new[2]) > MARGIN_ROUNDING:
            return f"the margin of {place} is {new[2]:.6g}, not {was[2]:.6g}"
        if was[1] != new[1]:
            return f"the runner-up of {place} is {names[new[1]] if new[1] >= 0 else 'nothing'!r}, not the one recorded"
    return None


def _interchangeable(dataset: Dataset, trace: Trace) -> Iterator[tuple[int, str, str]]:
    """Yield the steps that were decided by less than ``CLOSE``."""
    for step, (winner, second, margin) in enumerate(zip(trace.winners, trace.runners_up, trace.margins, strict=True), 1):
        if second >= 0 and margin < CLOSE:
            yield step, dataset.names[winner], dataset.names[second]


def _holds(claim: Claim, close: Sequence[tuple[int, str, str]]) -> str:
    """Return the sentence for a proof that holds."""
    steps = " and ".join(f"all {len(trace.winners):,} steps of {trace.kind}" for trace in claim.proof.traces)
    words = f"the proof holds: {steps} win again over all {claim.features_covered:,} features"
    if claim.quality != "fast":
        words += ", and the selection reaches their f"
    if claim.guarantee.startswith("swap-optimal"):
        words += " (exchanges are not checked again)"
    if not close:
        return words
    named = ", ".join(f"{winner!r} or {second!r} at step {step}" for step, winner, second in close[:MOST_NAMED])
    more = f" and {len(close) - MOST_NAMED} more" if len(close) > MOST_NAMED else ""
    return f"{words}; interchangeable, decided by less than {CLOSE:g}: {named}{more}"
