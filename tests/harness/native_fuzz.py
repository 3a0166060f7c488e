"""Calls the compiled functions with arguments of which one or two are absurd: each call returns or refuses them.

``python -m tests.harness.native_fuzz [CALLS] [SEED]``; ``make sanitize`` runs it under the sanitizers of addresses and of undefined
behaviour, which end the process at the first finding.
"""

from __future__ import annotations

import mmap
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from fastomp_nvm import native

__all__ = ["fuzz"]

_INTEGERS = (-(2**63), -(2**31), -1, 0, 1, 2, 7, 4096, 2**15, 2**31 - 1, 2**31, 2**62, 2**63 - 1)
_FLOATS = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 5e-324, 1e-9, 0.5, 1.0, 2.0, 1e308)
#: Errors by which a call may refuse its arguments.
_REFUSALS = (TypeError, ValueError, OverflowError, BufferError, MemoryError, OSError, EOFError)


class _Arguments:
    """Valid arguments of every function, drawn at random."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._numbers = np.random.default_rng(draw.getrandbits(32))
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - for the life of the process
        self._file.write(bytes(range(256)) * 256)
        self._file.flush()

    def _normal(self, *shape: int) -> Any:
        return self._numbers.normal(size=shape)

    def _matrix(self, rows: int, columns: int) -> Any:
        return self._normal(rows, columns).astype(self._draw.choice(["f4", "f8"]))

    def _size(self, most: int = 9) -> int:
        return self._draw.randint(1, most)

    def best(self) -> tuple[Any, ...]:
        n = self._size()
        return self._normal(n), self._normal(n) ** 2, np.full(n, 1e-9), np.ones(n, bool)

    def follow(self) -> tuple[Any, ...]:
        n, rows = self._size(), self._size()
        return self._normal(n), self._normal(rows, n), rows - 1, n - 1, self._normal(n), self._normal(n) ** 2 + 1

    def grow(self) -> tuple[Any, ...]:
        n, rows = self._size(), self._size()
        design = self._normal(n, 12)
        return (
            design @ design.T,
            np.zeros((rows, n)),
            0,
            self._normal(n),
            self._normal(n) ** 2 + 9,
            np.full(n, 1e-9),
            np.ones(n, bool),
            0.0,
            self._draw.randint(0, rows),
            0.0,
        )

    def gram_rounds(self) -> tuple[Any, ...]:
        count = self._size()
        widths = self._numbers.integers(1, 4, count)
        columns = int(widths.sum())
        design = self._normal(columns, 12)
        offsets = np.concatenate(([0], np.cumsum(widths))).astype(np.int64)
        lengths = None if self._draw.random() < 0.5 else np.ones(columns)
        return design @ design.T, self._normal(columns), lengths, offsets, np.zeros(count, bool), 0.1, 1e-9, self._rounds(count)

    def glm_rounds(self) -> tuple[Any, ...]:
        count, n = self._size(), self._size(20)
        rounds = self._rounds(count)
        fit = self._fit(len(rounds[2]) + 2, n)
        return fit, False, self._columns(count, n), self._normal(count), np.zeros(count, bool), rounds

    def greedy(self) -> tuple[Any, ...]:
        count, n, wanted = self._size(), self._size(20), self._size(4)
        schedule = (0.5, 3, 2, 4, 32, 3, 64, 1e-6, 1e-9)
        taken, gains = np.zeros(wanted, np.int64), np.zeros(wanted)
        fit, columns = self._fit(wanted + 2, n), self._columns(count, n)
        return fit, False, columns, np.ones(count, bool), taken, gains, (0.0, 1e-9, 1e-5, 1e-9), schedule

    def maximise(self) -> tuple[Any, ...]:
        d = self._size(5)
        known = None if self._draw.random() < 0.5 else np.eye(self._draw.randint(1, d))
        return self._fit(d, self._size(20)), known, self._draw.randint(-1, d)

    def gradients(self) -> tuple[Any, ...]:
        count, n, vectors = self._size(), self._size(40), self._size(3)
        return self._columns(count, n), self._normal(vectors, n), np.empty((count, vectors))

    def likelihood(self) -> tuple[Any, ...]:
        n = self._size()
        return self._family(), self._normal(n), np.ones(n), np.ones(n), self._normal(3), 0.1

    def roots(self) -> tuple[Any, ...]:
        n = self._size()
        return self._family(), self._normal(n), np.ones(n), np.empty(n)

    def curvature(self) -> tuple[Any, ...]:
        n, size, near = self._size(), self._size(4), self._size(4)
        scaled = np.zeros((size + near, n), np.float32)
        outputs = np.empty((near, near)), np.empty((size, size)), np.empty((near, size))
        return self._normal(size, n), np.ones(n), scaled, (0.1, 1.0, True), *outputs

    def dots(self) -> tuple[Any, ...]:
        rows, n, vectors = self._size(), self._size(300), self._size(5)
        matrix = self._matrix(rows, n)
        index = None if self._draw.random() < 0.5 else self._numbers.integers(0, rows, self._size())
        out = np.empty((rows if index is None else len(index), vectors))
        return matrix, index, self._normal(vectors, n).astype(matrix.dtype), out, self._draw.random() < 0.5

    def decode(self) -> tuple[Any, ...]:
        rows, people = self._size(), self._size(300)
        out = np.empty((rows, people), self._draw.choice(["f4", "f8"]))
        return self._codes(rows, people), people, self._normal(rows, 4), out

    def compact(self) -> tuple[Any, ...]:
        rows, people = self._size(), self._size(300)
        mask = (self._codes(1, people)[0] & 0x55) * np.uint8(3)
        return self._codes(rows, people), mask, np.empty((rows, (int(np.unpackbits(mask).sum()) + 7) // 8), np.uint8)

    def count_codes(self) -> tuple[Any, ...]:
        rows, people = self._size(), self._size(300)
        return self._codes(rows, people), self._codes(1, people)[0], np.empty((rows, 3), np.int64)

    def dots_codes(self) -> tuple[Any, ...]:
        rows, people, vectors = self._size(), self._size(3000), self._size(5)
        residuals = self._normal(vectors, people).astype(self._draw.choice(["f4", "f8"]))
        out = np.empty((rows, vectors))
        return self._codes(rows, people), self._normal(rows, 4), residuals, out, self._draw.random() < 0.5

    def gather(self) -> tuple[Any, ...]:
        rows, n, count = self._size(), self._size(300), self._size()
        matrix = self._matrix(rows, n)
        return matrix, self._numbers.integers(0, rows, count), np.empty((count, n), matrix.dtype)

    def moments(self) -> tuple[Any, ...]:
        rows, n = self._size(), self._size(300)
        matrix = self._matrix(rows, n)
        weights = None if self._draw.random() < 0.5 else np.ones(n)
        return matrix, weights, np.empty((rows, 4)), None, None, self._draw.random() < 0.5

    def standardise(self) -> tuple[Any, ...]:
        n, m = self._size(), self._size()
        return self._normal(n, m), self._normal(n), np.ones(n), np.zeros(n, bool), self._normal(m), self._normal(m)

    def transpose(self) -> tuple[Any, ...]:
        rows, n = self._size(70), self._size(70)
        return self._matrix(rows, n), np.empty((n, rows), self._draw.choice(["f4", "f8"]))

    def quantise(self) -> tuple[Any, ...]:
        rows, n = self._size(), self._size(300)
        return self._matrix(rows, n), np.zeros(rows), np.ones(rows), np.empty((rows, n), np.int8), np.empty(rows), np.empty(rows)

    def read_columns(self) -> tuple[Any, ...]:
        count = self._size()
        columns = np.sort(self._numbers.integers(0, 30, count))
        out, buffer = np.empty((count, 1000), np.uint8), mmap.mmap(-1, 4 * 4096)
        return self._file.fileno(), 96, 1000, self._draw.choice([0, 5000]), columns, np.arange(count), out, buffer

    def read_strip(self) -> tuple[Any, ...]:
        columns, rows = self._size(), self._size()
        return self._file.fileno(), 0, 8 * columns + self._draw.choice([0, 64]), np.empty((columns, rows))

    def lost(self) -> tuple[Any, ...]:
        return 4096, 4096

    def unguard(self) -> tuple[Any, ...]:
        return (4096,)

    def _codes(self, rows: int, people: int) -> Any:
        return self._numbers.integers(0, 256, (rows, -(-people // 4)), dtype=np.uint8)

    def _family(self) -> str:
        return self._draw.choice(["logistic", "poisson"])

    def _fit(self, d: int, n: int) -> tuple[Any, ...]:
        settings = (0.1, 1e-9, 0.5, 1.0, 0.1, 20, True)
        y = np.ones(n)
        return self._family(), settings, self._normal(d, n), y, y.copy(), np.zeros(d), np.zeros(n), np.zeros(n), np.zeros(d * d)

    def _columns(self, count: int, n: int) -> tuple[Any, ...]:
        return self._matrix(count + 1, n), np.arange(count), np.zeros(count), np.ones(count), np.zeros(count, bool)

    def _rounds(self, count: int) -> tuple[Any, ...]:
        given = self._draw.random() < 0.5
        room = self._size() if given else self._draw.randint(1, count)
        added = self._numbers.integers(0, count, room)
        sizes = np.zeros((room, 2), np.int64)
        blocked = None if self._draw.random() < 0.5 else self._numbers.integers(0, 9, count)
        features = np.arange(count)
        return features, features.copy(), added, sizes, blocked, (1, 2, 3), 0.5, 0.9, 1e9, given, self._draw.random() < 0.5


def _mutated(value: Any, draw: random.Random) -> Any:
    """Return another value in place of an argument; of a tuple, one of its entries is changed."""
    if isinstance(value, tuple) and value:
        place = draw.randrange(len(value))
        return (*value[:place], _mutated(value[place], draw), *value[place + 1 :])
    if isinstance(value, np.ndarray):
        return draw.choice(_ARRAYS)(value, draw)
    if isinstance(value, bool | float):
        return draw.choice(_FLOATS)
    if isinstance(value, int):
        return draw.choice(_INTEGERS)
    return draw.choice([None, 0, "logistic", (), np.zeros(3), np.zeros((2, 2)), np.arange(4)])


def _extreme(array: Any, draw: random.Random) -> Any:
    """Return an array with one entry out of the ordinary."""
    found = array.copy()
    if found.size:
        values = _FLOATS if found.dtype.kind == "f" else _INTEGERS
        with np.errstate(over="ignore"):
            found.flat[draw.randrange(found.size)] = np.array(draw.choice(values)).astype(found.dtype)
    return found


def _frozen(array: Any, draw: random.Random) -> Any:
    """Return a copy that cannot be written."""
    found = array.copy()
    found.flags.writeable = False
    return found


_ARRAYS: tuple[Callable[[Any, random.Random], Any], ...] = (
    _extreme,
    _extreme,
    _extreme,
    _frozen,
    lambda array, draw: array[:-1].copy(),
    lambda array, draw: np.concatenate([array, array]),
    lambda array, draw: array[:0].copy(),
    lambda array, draw: array[..., :-1],
    lambda array, draw: array[::-1],
    lambda array, draw: array.T,
    lambda array, draw: array[np.newaxis],
    lambda array, draw: array.reshape(-1),
    lambda array, draw: array.astype(draw.choice(["f4", "f8", "i4", "i8", "i1", "f2", ">f8", "c16", "O"])),
)


def fuzz(calls: int, seed: int) -> Counter[str]:
    """Return the number of calls by outcome: returned, refused."""
    assert native.extension is not None
    draw, outcomes = random.Random(seed), Counter[str]()
    valid = _Arguments(draw)
    names = sorted(name for name in vars(_Arguments) if not name.startswith("_"))
    for number in range(calls):
        name = names[number % len(names)]
        arguments: tuple[Any, ...] = getattr(valid, name)()
        for _ in range(draw.choice([0, 1, 1, 2])):
            arguments = _mutated(arguments, draw)
        try:
            getattr(native.extension, name)(*arguments)
            outcomes["returned"] += 1
        except _REFUSALS:
            outcomes["refused"] += 1
    return outcomes


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    calls, seed = (numbers + [20_000, 0][len(numbers) :])[:2]
    found = fuzz(calls, seed)
    print(f"{calls} calls of compiled functions, seed {seed}: {found['returned']} returned, {found['refused']} refused, no finding")
