"""Every kind of matrix on this machine answers the same questions with the same bits."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.errors import StoreError
from fastomp_nvm.matrix.checksum import Seal, row_checksums
from fastomp_nvm.matrix.gradients import Ask
from fastomp_nvm.matrix.moments import moments
from fastomp_nvm.matrix.pacing import DeviceProfile
from fastomp_nvm.matrix.pool import ColumnPool
from fastomp_nvm.matrix.reader import FileRows, MatrixFile
from fastomp_nvm.matrix.rows import ArrayRows, Design, LocalRows, PiecedRows
from fastomp_nvm.matrix.standardisation import Standardisation
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
from fastomp_nvm.matrix.traffic import Traffic

pytestmark = pytest.mark.numerics

N_COLUMNS, N_OBS = 70, 130
OFFSETS = np.array([*range(60), 63, 66, N_COLUMNS])  # three features of several columns
EDGES = np.array([0, 30, 59, N_COLUMNS])


def matrix() -> AnyArray:
    """Return random columns, one of them far from zero (accumulated in float64)."""
    values = np.random.default_rng(0).normal(size=(N_COLUMNS, N_OBS)).astype(np.float32)
    values[5] += 1e4
    return values


def in_file(path: Path, io: str, profile: DeviceProfile | None = None) -> FileRows:
    """Return the matrix in a file that begins with a page of something else."""
    path.write_bytes(bytes(4096) + matrix().tobytes())
    mapped = np.memmap(path, np.float32, "r", 4096, (N_COLUMNS, N_OBS))
    return FileRows(MatrixFile(mapped, 4096, lambda flags: os.open(path, flags), profile), io)


KINDS: dict[str, Callable[[Path], LocalRows]] = {
    "array": lambda path: ArrayRows(matrix()),
    "pieces": lambda path: PiecedRows(np.split(matrix(), EDGES[1:-1])),
    "array in C order": lambda path: ArrayRows(matrix().T.copy().T),
    "columns apart": lambda path: PiecedRows([row[np.newaxis].copy() for row in matrix()]),
    "mapped file": lambda path: in_file(path, "mmap"),
    "file read directly": lambda path: in_file(path, "direct"),
    "emulated device": lambda path: in_file(path, "direct", DeviceProfile("quick", 1e12, 1e-9)),
}


@pytest.fixture(params=KINDS)
def rows(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalRows:
    """Every kind, read in small blocks."""
    monkeypatch.setattr("fastomp_nvm.matrix.reader.BLOCK_BYTES", 7 * 4 * N_OBS)
    monkeypatch.setattr("fastomp_nvm.matrix.sweeper.TASK_BYTES", 7 * 4 * N_OBS)
    monkeypatch.setattr("fastomp_nvm.matrix.sweeper.INLINE_PRODUCTS", 0)
    return KINDS[request.param](tmp_path / "matrix")


def test_shape_and_rows_are_those_of_the_array(rows: LocalRows) -> None:
    """Shape, type and size, and rows by number, slice, list and mask."""
    whole = matrix()
    assert (rows.shape, rows.dtype, rows.nbytes, len(rows)) == (whole.shape, whole.dtype, whole.nbytes, len(whole))
    for index in (3, -1, slice(28, 33), slice(0, 60, 7), [40, 2, 2], whole[:, 0] > 0):
        assert np.array_equal(rows[index], whole[index])
    assert np.array_equal(np.concatenate(rows.arrays), whole)


def test_a_gather_copies_rows_in_their_order(rows: LocalRows) -> None:
    """In any order, repeated or not."""
    columns = np.random.default_rng(1).integers(0, N_COLUMNS, size=90)
    assert np.array_equal(Sweeper(2).gather(rows, columns), matrix()[columns])


def test_a_sweep_has_the_bits_of_the_array(rows: LocalRows) -> None:
    """Decisions about several asks, features of several columns and columns in float64 included."""
    whole, sweeper = ArrayRows(matrix()), Sweeper(2)
    (statistics,) = whole.moments([None])
    weights = np.random.default_rng(2).random(N_OBS)
    plain = Standardisation.from_moments(np.arange(N_COLUMNS + 1), statistics, N_OBS)
    (weighted,) = rows.standardisations([weights], plain)
    vectors = np.random.default_rng(3).normal(size=(N_OBS, 3))
    asks = [Ask(vector, np.arange(0, N_COLUMNS, 2)) for vector in vectors.T]
    found = []
    for each in (whole, rows):
        pool = ColumnPool(Design(each, weighted), sweeper, Traffic(), 1 << 20)
        answers = each.sweep(sweeper, Vectors(vectors, each.dtype), weighted.wide).answer(asks, 0, pool)
        found.append([(answer.top_mean(4), answer.argmax(), answer.of(np.arange(N_COLUMNS)).tobytes()) for answer in answers])
    assert found[0] == found[1]
    assert weighted.wide[5]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("wide", [[], [5], range(0, N_COLUMNS, 2)])
@pytest.mark.parametrize("count", [1, 3])
def test_a_sweep_after_moments_has_the_bits_of_a_sweep(
    rows: LocalRows, threads: int, wide: list[int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where moments were computed with the vector of the sweep, once or several times; columns in float64 included."""
    sweeper, in_float64 = Sweeper(threads), np.isin(np.arange(N_COLUMNS), wide)
    vector = np.random.default_rng(3).normal(size=(N_OBS, 1))
    vectors = Vectors(vector.repeat(count, axis=1), rows.dtype)
    expected = sweeper.dots(rows, vectors, in_float64)
    (statistics,) = rows.moments([None])
    found = rows.measure(sweeper, Vectors(vector, rows.dtype))
    for name in ("mean", "norm", "minimum", "maximum"):
        assert getattr(found, name).tobytes() == getattr(statistics, name).tobytes()
    visits: list[LocalRows] = []
    visit = type(rows).visit
    monkeypatch.setattr(type(rows), "visit", lambda self, *given, **more: (visits.append(self), visit(self, *given, **more))[1])
    assert rows.sweep(sweeper, vectors, in_float64).raw.tobytes() == expected.tobytes()
    assert (rows in visits) == (len(wide) > 1)  # read again only where many columns are needed in float64


def test_another_vector_after_moments_is_swept(rows: LocalRows) -> None:
    """Products of the pass of moments answer the next sweep alone, and only for their own vector."""
    sweeper, wide = Sweeper(2), np.zeros(N_COLUMNS, dtype=np.bool_)
    one, other = (Vectors(np.random.default_rng(seed).normal(size=(N_OBS, 1)), rows.dtype) for seed in (3, 4))
    expected = [sweeper.dots(rows, vectors, wide).tobytes() for vectors in (one, other)]
    rows.measure(sweeper, one)
    assert rows.sweep(sweeper, other, wide).raw.tobytes() == expected[1]
    assert rows.sweep(sweeper, one, wide).raw.tobytes() == expected[0]
    rows.measure(sweeper, one)
    for _ in range(2):
        found = rows.sweep(sweeper, one, wide).raw
        assert found.tobytes() == expected[0]
        found[...] = 0.0  # a sweep owns its products


def test_standardisations_are_those_of_the_array(rows: LocalRows) -> None:
    """Under several weights at once, with the Gram matrices of features of several columns."""
    whole = ArrayRows(matrix())
    rng = np.random.default_rng(4)
    weights = [rng.random(N_OBS), (rng.random(N_OBS) < 0.5).astype(float)]
    grams = tuple(np.eye(int(width)) for width in np.diff(OFFSETS) if width > 1)
    plain = Standardisation.from_moments(OFFSETS, replace(moments(matrix()), grams=grams), N_OBS)
    for one, other in zip(rows.standardisations(weights, plain), whole.standardisations(weights, plain), strict=True):
        assert one.mean.tobytes() == other.mean.tobytes()
        assert one.scale.tobytes() == other.scale.tobytes()
        assert [group.matrices.tobytes() for group in one.whiteners] == [group.matrices.tobytes() for group in other.whiteners]


@pytest.mark.parametrize("damaged", [None, 0, 65])
def test_rows_are_compared_with_their_checksums(rows: LocalRows, damaged: int | None) -> None:
    """Copies, sweeps, gathers and single rows that match are read; a column that does not match is an error that names it."""
    whole, everything = matrix(), np.arange(N_COLUMNS)
    checksums = row_checksums(whole)
    if damaged is not None:
        checksums[damaged] ^= 1
    if rows.arrays[0].strides[1] != rows.itemsize:
        return  # no store has such rows
    vectors = Vectors(np.ones((N_OBS, 1)), rows.dtype)
    out = np.empty_like(whole)
    reads: list[Callable[[], object]] = [
        rows.in_memory,
        lambda: Sweeper(2).dots(rows, vectors, np.zeros(N_COLUMNS, np.bool_)),
        lambda: Sweeper(2).gather(rows, everything, out),
        lambda: rows[slice(None)],
        lambda: rows[65],
        lambda: np.asarray(rows),
    ]
    for read in reads:
        rows.seal = Seal(checksums, lambda column: StoreError(f"column {column}"))
        if damaged is None or (damaged == 0 and read is reads[4]):
            read()
        else:
            with pytest.raises(StoreError, match=f"column {damaged}"):
                read()
    rows.seal = Seal(row_checksums(whole), lambda column: StoreError(f"column {column}"))
    copy = rows.in_memory()
    assert np.array_equal(copy.array, whole)
    assert not copy.array.flags.writeable
    assert rows.seal.settle()
    rows.seal.checksums = rows.seal.checksums ^ 1  # not looked at any more
    rows.in_memory()
