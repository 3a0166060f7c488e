"""Several algorithms, or parts of them, side by side: their queries share sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fastomp_nvm.algorithms.protocol import Counters, Gradients, Problem, Query, Result, Steps

__all__ = ["together"]


def together(problem: Problem, parts: Sequence[Callable[[Problem], Steps[Result]]]) -> Steps[list[Result]]:
    """Run ``parts`` over one pool of columns, each query of one with the waiting queries of the others; return their results.

    Rounds count as those of the longest part, calls of all parts add up.
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
        answers = {}
        if waiting:
            ahead = max(waiting.values(), key=lambda query: query.value)
            answered = yield Query(ahead.selected, ahead.f, tuple(ask for query in waiting.values() for ask in query.asks))
            assert answered is not None
            first = 0
            for place, query in waiting.items():
                answers[place] = answered[first : first + len(query.asks)]
                first += len(query.asks)
    totals, counted = problem.counters, [child.counters for child in children]
    totals.gradient_rounds += max(each.gradient_rounds for each in counted)
    totals.gradient_calls += sum(each.gradient_calls for each in counted)
    totals.independence_rounds += max(each.independence_rounds for each in counted)
    totals.independence_calls += sum(each.independence_calls for each in counted)
    return [found[place] for place in range(len(parts))]
