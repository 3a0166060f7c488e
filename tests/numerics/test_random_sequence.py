"""``rndSeq``: its keys are uniform and fixed for ever, its sequences are those of the paper's appendix."""

from __future__ import annotations

import functools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fastomp_nvm import constraints as fc
from fastomp_nvm import native, random_keys
from fastomp_nvm.algorithms import draws as sequences
from tests import oracles
from tests.numerics.constraint_systems import array, draw_independent, draw_system, every_family

pytestmark = pytest.mark.numerics


@pytest.mark.parametrize("compiled", [True, False])
def test_keys_are_fixed_for_ever(monkeypatch, compiled):
    """Stored runs are resumed with these numbers: they are pinned, and equal a transcription in plain integers."""
    if not compiled:
        monkeypatch.setattr(native, "extension", None)

    def absorb(state, word):
        z = ((state ^ word) + 0x9E3779B97F4A7C15) % 2**64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return z ^ (z >> 31)

    features = np.array([0, 1, 2, 10**6, 2**40, -1], dtype=np.int64)
    for seed in (5, -1, 2**70 + 5):
        expected = [functools.reduce(absorb, (seed % 2**64, 4, 3, 2, int(feature) % 2**64), 0) for feature in features]
        assert sequences.keys(seed, 4, 3, 2, features).tolist() == expected
        assert sequences.keys(seed, 4, 3, 2, features[::2]).tolist() == expected[::2]
    assert sequences.keys(0, 0, 0, 0, np.array([0])).tolist() == [8695987549771912286]


def test_keys_of_different_features_differ():
    """A million features have a million keys, so a permutation has no ties."""
    assert len(np.unique(sequences.keys(1, 0, 0, 0, np.arange(1_000_000)))) == 1_000_000


@pytest.mark.parametrize("word", range(4))
def test_permutations_are_uniform(word):
    """All 24 orders of four features are equally frequent over seeds, outer, inner and rndSeq rounds (chi-square, 1e-4)."""
    features = array([3, 11, 12, 40])
    words = [[value if position == word else 2 for position in range(4)] for value in range(4800)]
    orders = Counter(tuple(sequences.permutation(*four, features).tolist()) for four in words)
    assert len(orders) == 24
    assert stats.chisquare(list(orders.values())).pvalue > 1e-4


def test_first_positions_are_uniform_over_many_features():
    """Each of 1000 features comes first equally often, so no stretch of indices is favoured."""
    features = np.arange(1000)
    first = [int(np.argmin(sequences.keys(seed, 0, 0, 0, features))) for seed in range(20_000)]
    assert stats.chisquare(np.bincount(first, minlength=1000)).pvalue > 1e-4


@every_family
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_random_sequence_is_the_algorithm_of_the_appendix(family, data):
    """The sequence equals a naive transcription: prefixes independent, nothing left to add, rounds and calls counted."""
    n, system = draw_system(data, family, n_max=8)
    selected = draw_independent(data, n, system.defined, "selected")[:2]
    candidates = [s for s in range(n) if s not in selected]
    seed, outer, inner = (data.draw(st.integers(0, 3)) for _ in range(3))
    calls = rounds = 0
    left = []

    def permute(round_, features):
        nonlocal rounds
        left.append(len(features))
        rounds += 1
        return sequences.permutation(seed, outer, inner, round_, array(features)).tolist()

    expected = oracles.rnd_seq(system.defined, candidates, selected, permute)
    drawn, counted_rounds, calls = sequences.random_sequence(
        system.constraint, array(selected), array(candidates), seed=seed, outer=outer, inner=inner
    )
    assert drawn.tolist() == expected
    assert all(system.defined(frozenset([*selected, *expected[:j]])) for j in range(len(expected) + 1))
    assert not system.constraint.extensions(array([*selected, *expected]), array(candidates)).any()
    assert counted_rounds == rounds
    # Each round asks about every prefix and filters what the prefix did not take; together the prefixes are the sequence.
    assert calls == 2 * sum(left) - len(expected)


@pytest.mark.parametrize(
    "constraint",
    [
        fc.Intersection([fc.RandomSystem(20_000, p=2, n_groups=30, cap=4, seed=3), fc.Cardinality(20_000, 100)]),
        fc.Cardinality(20_000, 15_000),
        fc.Knapsack(20_000, np.arange(20_000) % 7, 25_000),
    ],
)
def test_a_huge_candidate_set_gives_the_sequence_of_a_full_sort(constraint):
    """Sorting only the smallest keys changes nothing, be the sequence short or long."""
    drawn, rounds, _ = sequences.random_sequence(constraint, array([]), np.arange(20_000), seed=1, outer=0, inner=0)
    left, expected = np.arange(20_000), array([])
    for round_ in range(rounds):
        order = sequences.permutation(1, 0, 0, round_, left)
        expected = np.concatenate((expected, order[: constraint.longest_prefix(expected, order)]))
        left = left[constraint.extensions(expected, left)]
    assert not left.size
    assert drawn.tolist() == expected.tolist()


def test_rounds_grow_with_the_root_of_the_rank():
    """The mean number of rounds stays below a small multiple of sqrt(rank) (Karp, Upfal and Wigderson, Theorem 6)."""
    for n_groups in (25, 100, 400):
        constraint = fc.Partition(4000, np.arange(4000) % n_groups, np.ones(n_groups, dtype=int))
        rounds = [
            sequences.random_sequence(constraint, array([]), np.arange(4000), seed=seed, outer=0, inner=0)[1] for seed in range(10)
        ]
        assert np.mean(rounds) <= 3 * math.sqrt(n_groups)


@pytest.mark.parametrize("room", [0, 1, 40, 130, 300])
def test_a_sequence_that_nothing_limits_is_the_same_in_pieces(room):
    """Drawn bit by bit it grows into the whole, which is the beginning of one permutation, and counts as one round."""
    constraint, selected = fc.Cardinality(1000, 50 + room), np.arange(50)
    candidates = np.arange(100, 350)
    whole = sequences.RandomSequence(constraint, selected, candidates, seed=2, outer=1, inner=3)
    whole.reach()
    expected = sequences.permutation(2, 1, 3, 0, candidates)[: min(room, 250)]
    assert whole.drawn.tolist() == expected.tolist()
    pieces = sequences.RandomSequence(constraint, selected, candidates, seed=2, outer=1, inner=3)
    reached = 0
    for length in (1, 7, 8, 60, 200, 400):
        assert pieces.reach(length) == (min(length, len(expected)) > reached)
        reached = len(pieces.drawn)
        assert pieces.drawn.tolist() == expected[:length].tolist()
    assert (pieces.rounds, pieces.calls) == (whole.rounds, whole.calls) == (1, 500 - len(expected))


def test_the_beginning_of_a_permutation_is_that_of_the_whole():
    """The first features by key equal the beginning of all features sorted by key, for few and for many."""
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 300, 40_000):
        features = np.sort(rng.choice(10**6, size, replace=False))
        for seed in (3, -1, 2**70 + 5):
            whole = sequences.permutation(seed, 1, 4, 1, features)
            for count in {0, 1, size // 3, size - 1, size}:
                assert features[random_keys.first_of((seed, 1, 4, 1), features, count)].tolist() == whole[:count].tolist()
