"""A store holds the same bytes however its columns arrive, are transposed, sealed and written."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastomp_nvm import native
from fastomp_nvm.errors import DataError, MediumError
from fastomp_nvm.matrix.moments import moments
from fastomp_nvm.matrix.tier import quantise
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build import builder as builder_module
from storage_backends.build.builder import StoreBuilder, build_from_arrays
from storage_backends.build.ingest import ingest
from storage_backends.build.schema import TableSchema
from storage_backends.files import draft as draft_module
from storage_backends.files import staging
from storage_backends.readers import base, numpy_files

compiled = pytest.mark.skipif(not native.extension, reason="the compiled extension is not built")

#: Fingerprint and digests of matrix.npy, tier.npy, scale and norm of the tier, mean and range, of ``table()``, as written by the
#: release before columns were sealed as they arrive.
BEFORE = (
    "951dc6f3b8b1fdb027f071a451e69dc0",
    "2323a7cb8ad26f03c72841ebac6405e6",
    "f05c8f54186f6e4b96eab7db37bfbcbc",
    "78b58c83e8369d283216e79e257ff3bb",
    "6b63ba2309a9be3592d3f3941e02a323",
)


def table(n_obs: int = 1237, n_columns: int = 600) -> np.ndarray:
    """Return a matrix whose sums are exact in any order; a column is no whole number of pages."""
    return (((np.arange(n_obs)[:, None] * 7919 + np.arange(n_columns) * 104729) % 1009 - 504) / 64.0).astype(np.float32)


def digests(store: Path, fingerprint: str) -> tuple[str, ...]:
    """Return what ``BEFORE`` lists, of a store."""
    tier, statistics = np.load(store / "tier.npz"), np.load(store / "statistics.npz")
    named = f"# fastomp-store {fingerprint}".encode()  # that release did not name the store there
    parts = [(store / name).read_bytes().replace(named, b" " * len(named)) for name in ("matrix.npy", "tier.npy")]
    parts.append(tier["scale"].tobytes() + tier["norm"].tobytes())
    parts.append(b"".join(statistics[name].tobytes() for name in ("mean", "minimum", "maximum")))
    return (fingerprint, *(hashlib.sha256(part).hexdigest()[:32] for part in parts))


def by_columns(url: str, source: Path, step: int = 100) -> str:
    """Build from runs of columns in reverse order; return the fingerprint."""
    values = table()
    with StoreBuilder(url, TableSchema.plain(len(values), NumberedNames(values.shape[1]))) as builder:
        for first in reversed(range(0, values.shape[1], step)):
            builder.write_columns(first, values.T[first : first + step])
        return builder.finish().fingerprint


def by_rows(url: str, source: Path) -> str:
    """Build from runs of observations; return the fingerprint."""
    values = table()
    with StoreBuilder(url, TableSchema.plain(len(values), NumberedNames(values.shape[1]))) as builder:
        for first in range(0, len(values), 500):
            builder.write_rows(first, values[first : first + 500])
        return builder.finish().fingerprint


def from_memory(url: str, source: Path) -> str:
    """Build from an array of float64; return the fingerprint."""
    return build_from_arrays(url, table().astype(np.float64)).fingerprint


def from_file(url: str, source: Path) -> str:
    """Build from a file in C order; return the fingerprint."""
    np.save(source, table())
    return ingest(str(source), url).fingerprint


def from_fortran_file(url: str, source: Path) -> str:
    """Build from a file in Fortran order; return the fingerprint."""
    np.save(source, np.asfortranarray(table()))
    return ingest(str(source), url).fingerprint


def without_extension(patch: pytest.MonkeyPatch) -> None:
    """Compute in NumPy."""
    patch.setattr(native, "extension", None)


def with_direct_writes(patch: pytest.MonkeyPatch) -> None:
    """Write past the page cache whatever the size, where the file system allows it."""
    patch.setattr(draft_module, "DIRECT_BYTES", 0)


def with_refused_writes(patch: pytest.MonkeyPatch) -> None:
    """Have a file system that opens files for direct writes and then refuses them."""
    with_direct_writes(patch)
    write, opened = staging._write, set()

    def direct_descriptor(name: str, directory: int) -> int:
        opened.add(descriptor := os.open(name, os.O_WRONLY, dir_fd=directory))
        return descriptor

    def refusing(descriptor: int, data: np.ndarray, position: int) -> None:
        if descriptor in opened:
            opened.remove(descriptor)
            raise OSError(errno.EINVAL, "Invalid argument")
        write(descriptor, data, position)

    patch.setattr(draft_module, "direct_descriptor", direct_descriptor)
    patch.setattr(staging, "_write", refusing)


def with_small_steps(patch: pytest.MonkeyPatch) -> None:
    """Read, seal and write a few columns at a time."""
    with_direct_writes(patch)
    patch.setattr(builder_module, "_RUN_BYTES", 200_000)
    patch.setattr(numpy_files, "_STRIPS", 1)
    patch.setattr(numpy_files, "fillable_memory", lambda: 16 * 300_000)
    patch.setattr(numpy_files, "_SHORT_BYTES", 64)
    patch.setattr(numpy_files, "_READ_ROWS", 100)


@pytest.mark.parametrize("arrive", [by_columns, by_rows, from_memory, from_file, from_fortran_file])
@pytest.mark.parametrize("change", [None, without_extension, with_direct_writes, with_refused_writes, with_small_steps])
def test_stores_are_those_of_earlier_releases(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arrive: Callable[[str, Path], str],
    change: Callable[[pytest.MonkeyPatch], None] | None,
) -> None:
    """Matrix, codes, checksums and statistics have the bits of an earlier release, by every path."""
    if change is not None:
        change(monkeypatch)
    fingerprint = arrive(f"mmap://{tmp_path}/s", tmp_path / "t.npy")
    assert digests(tmp_path / "s", fingerprint) == BEFORE


def test_a_failed_write_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the device on the writing thread ends the build with its reason, and no directory stays."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(staging, "_write", fail)
    with pytest.raises(MediumError, match=r"cannot write the store at .*s: Input/output error"):
        by_columns(f"mmap://{tmp_path}/s", tmp_path / "t.npy")
    assert os.listdir(tmp_path) == []


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that ends early is named, and no store appears."""
    np.save(tmp_path / "t.npy", np.asfortranarray(table()))
    load = numpy_files.NpyReader._loaded

    def shrink(reader: numpy_files.NpyReader, slab: np.ndarray) -> np.ndarray:
        os.truncate(tmp_path / "t.npy", 4096)
        return load(reader, slab)

    monkeypatch.setattr(numpy_files.NpyReader, "_loaded", shrink)
    with pytest.raises(DataError, match=r"t\.npy was cut short while it was read"):
        ingest(str(tmp_path / "t.npy"), f"mmap://{tmp_path}/s")
    assert os.listdir(tmp_path) == ["t.npy"]


def test_progress_is_complete_and_never_more(tmp_path: Path) -> None:
    """Progress grows to exactly its total, whether columns are sealed as they arrive or at the end."""
    for missing, gap in (("error", False), ("mean", False), ("mean", True), ("median", True), ("drop-feature", False)):
        values = table(50, 40)
        if gap:
            values[3, 5] = np.nan
        seen: list[tuple[int, int]] = []
        schema = TableSchema.plain(50, NumberedNames(40))
        url = f"mmap://{tmp_path}/{missing}-{gap}"
        with StoreBuilder(url, schema, missing=missing, progress=lambda *step, seen=seen: seen.append(step)) as builder:
            builder.write_columns(0, values.T)
            builder.finish()
        done, totals = zip(*seen, strict=True)
        assert set(totals) == {2 * values.nbytes}
        assert list(done) == sorted(done)
        assert done[-1] == totals[-1]


@compiled
@settings(max_examples=60, deadline=None)
@given(
    n_obs=st.one_of(st.integers(1, 40), st.sampled_from([8191, 8193, 16384, 20001])),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 99),
)
def test_codes_are_those_of_numpy(n_obs: int, dtype: type[np.floating], seed: int) -> None:
    """Codes, scales and norms have the bits of the reference, errors agree to rounding, also for constant and extreme columns."""
    rng = np.random.default_rng(seed)
    columns = (rng.standard_normal((6, n_obs)) * rng.lognormal(0, 5, (6, 1))).astype(dtype)
    columns[1], columns[2, 0] = 3.0, 1e30
    columns[3] = np.round(columns[3])  # many ties
    statistics = moments(columns)
    found = quantise(columns, statistics)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "extension", None)
        wanted = quantise(columns, statistics)
    for name in ("codes", "scale", "norm"):
        assert getattr(found, name).tobytes() == getattr(wanted, name).tobytes()
    np.testing.assert_allclose(found.error, wanted.error, rtol=1e-9)


@compiled
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    kinds=st.tuples(st.sampled_from("fd"), st.sampled_from("fd")),
    order=st.sampled_from("CF"),
    step=st.integers(1, 3),
)
def test_transposition_is_that_of_numpy(rows: int, columns: int, kinds: tuple[str, str], order: str, step: int) -> None:
    """Any shape, stride and pair of types gives the bits of NumPy's conversion, infinity for what is too large."""
    values = np.array(table(rows * step, columns) * 1e37, dtype=kinds[0], order=order)[::step]
    values[0, 0] = np.finfo(kinds[0]).max
    found = np.empty((columns, rows), kinds[1])
    native.extension.transpose(values, found)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, values.T.astype(kinds[1]))


@compiled
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (17, 40), (1000, 3), (3, 70_000)])
def test_strips_of_a_file_are_its_columns(tmp_path: Path, dtype: type[np.floating], shape: tuple[int, int]) -> None:
    """A strip holds the columns of the file; one that goes beyond its end is an error."""
    values = np.arange(shape[0] * shape[1], dtype=dtype).reshape(shape)
    values.tofile(tmp_path / "f")
    first, last = shape[1] // 3, max(1, shape[1] - 1)
    found, item = np.empty((last - first, shape[0]), dtype), values.itemsize
    with (tmp_path / "f").open("rb") as file:
        native.extension.read_strip(file.fileno(), first * item, shape[1] * item, found)
        np.testing.assert_array_equal(found, values[:, first:last].T)
        with pytest.raises(EOFError, match="ends before"):
            native.extension.read_strip(file.fileno(), values.nbytes, shape[1] * item, found)


def test_results_come_in_order_and_errors_where_they_belong() -> None:
    """Work that is done ahead yields its results in order, up to the item that fails."""

    def work(item: int) -> int:
        if item == 5:
            raise DataError("five")
        return item * item

    results = base.ahead(iter(range(9)), work, 2)
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    with pytest.raises(DataError, match="five"):
        next(results)
