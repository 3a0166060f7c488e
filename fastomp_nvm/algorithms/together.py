"""Several algorithms, or parts of them, side by side: their queries share sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fastomp_nvm.algorithms.protocol import Counters, Gradients, Problem, Query, Result, Steps

__all__ = ["together"]


def together(problem: Problem, parts: Sequence[Callable[[Problem], Steps[Result]]]) -> Steps[list[Result]]:
    """Run ``parts`` over one pool of columns, each query of one with the waiting queries of the others; return their results.

    Between two shared queries rounds count as those of the part with most of them, calls of all parts add up.
    """
    children = [replace(problem, counters=Counters(traffic=problem.counters.traffic)) for _ in parts]
    steps = [part(child) for part, child in zip(parts, children, strict=True)]
    found: dict[int, Result] = {}
    answers: dict[int, Sequence[Gradients] | None] = dict.fromkeys(range(len(parts)))
    while answers:
        waiting: dict[int, Query] = {}
        for place, answer in answers.items():
            try:
                step = steps[place].send(answer)
                while not isinstance(step, Query):
                    yield step
                    step = steps[place].send(None)
                waiting[place] = step
            except StopIteration as stop:
                found[place] = stop.value
        _add_up(problem.counters, [child.counters for child in children])
        answers = {}
        if waiting:
            ahead = max(waiting.values(), key=lambda query: query.value)
            asks = tuple(ask for query in waiting.values() for ask in query.asks)
            exact = any(query.exact for query in waiting.values())
            answered = yield Query(ahead.selected, ahead.f, asks, exact, members=ahead.members)
            assert answered is not None
            first = 0
            for place, query in waiting.items():
                answers[place] = answered[first : first + len(query.asks)]
                first += len(query.asks)
    return [found[place] for place in range(len(parts))]


def _add_up(total: Counters, parts: Sequence[Counters]) -> None:
    """Add the counters of parallel runs, rounds by their maximum and calls by their sum; reset the parts."""
    total.gradient_rounds += max(part.gradient_rounds for part in parts)
    total.gradient_calls += sum(part.gradient_calls for part in parts)
    total.independence_rounds += max(part.independence_rounds for part in parts)
    total.independence_calls += sum(part.independence_calls for part in parts)
    for part in parts:
        part.gradient_rounds = part.gradient_calls = part.independence_rounds = part.independence_calls = 0
