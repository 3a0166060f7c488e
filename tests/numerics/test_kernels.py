"""Claims about the sweep kernels: right, row-invariant, exact in integers, strict about their arguments, chosen by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastomp_nvm import native
from fastomp_nvm.errors import RequestError, UnavailableError
from fastomp_nvm.matrix import kernels
from fastomp_nvm.matrix.kernels import INT8_RESIDUAL_LIMIT, Kernel, available, kernel

pytestmark = pytest.mark.numerics

NAMES = ("c", "c-generic", "numpy")

#: Row type, residual type, largest error relative to the product of the norms.
PAIRINGS = (
    ("float16", "float32", 3e-7),
    ("float32", "float32", 3e-7),
    ("float16", "float64", 1e-14),
    ("float32", "float64", 1e-14),
    ("float64", "float64", 1e-14),
)


@pytest.fixture(scope="module", params=NAMES)
def each(request: pytest.FixtureRequest) -> Kernel:
    """Each kernel this machine has."""
    try:
        return kernel(request.param)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Load kernels anew, inside the test and after it, with FASTOMP_KERNEL unset."""
    monkeypatch.delenv("FASTOMP_KERNEL", raising=False)
    kernels._load.cache_clear()
    yield monkeypatch
    kernels._load.cache_clear()


def dots(each: Kernel, rows: Any, residuals: Any) -> Any:
    """Return the dots in a fresh array, poisoned beforehand."""
    out = np.full((len(rows), len(residuals)), np.nan)
    each.dots(rows, residuals, out)
    return out


def laid_out(rows: Any, shift: int, gap: int) -> Any:
    """Return the rows read-only in raw memory, ``shift`` bytes off a 64-byte boundary and with ``gap`` bytes after each row."""
    stride = rows.shape[1] * rows.itemsize + gap
    memory = np.zeros(len(rows) * stride + shift + 64, dtype=np.uint8)
    offset = -memory.ctypes.data % 64 + shift
    view = np.ndarray(rows.shape, dtype=rows.dtype, buffer=memory.data, offset=offset, strides=(stride, rows.itemsize))
    view[...] = rows
    view.flags.writeable = False
    return view


def bits(array: Any) -> Any:
    return np.ascontiguousarray(array).view(np.int64)


@pytest.mark.parametrize("n_obs", [0, 1, 3, 7, 8, 9, 511, 513, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize(("row_type", "residual_type", "tolerance"), PAIRINGS)
def test_dots_are_the_dot_products(each: Kernel, row_type: str, residual_type: str, tolerance: float, n_obs: int) -> None:
    """Every pairing of types gives the float64 dot products to the precision of its residuals, for any number of observations."""
    rng = np.random.default_rng(n_obs)
    for n_rows, n_residuals in ((1, 1), (6, 5), (9, 1), (3, 70)):
        rows = (rng.standard_normal((n_rows, n_obs)) + 1).astype(row_type)
        residuals = rng.standard_normal((n_residuals, n_obs)).astype(residual_type)
        wide, factors = rows.astype(np.float64), residuals.astype(np.float64)
        scale = np.outer(np.linalg.norm(wide, axis=1), np.linalg.norm(factors, axis=1))
        assert (np.abs(dots(each, rows, residuals) - wide @ factors.T) <= tolerance * scale).all()


@pytest.mark.parametrize(("n_rows", "n_residuals"), [(0, 3), (3, 0), (0, 0)])
def test_nothing_in_nothing_out(each: Kernel, n_rows: int, n_residuals: int) -> None:
    """No rows or no residuals is no error."""
    assert dots(each, np.ones((n_rows, 9)), np.ones((n_residuals, 9))).shape == (n_rows, n_residuals)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("residual_type", ["float32", "float64"])
def test_every_half_is_widened_exactly(each: Kernel, residual_type: str) -> None:
    """All 65536 float16 values, subnormal, infinite and NaN included, keep their value."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)[:, None]
    np.testing.assert_array_equal(dots(each, halves, np.ones((1, 1), dtype=residual_type)), halves.astype(np.float64))


def test_a_memory_map_is_read_in_place(each: Kernel, tmp_path: Path) -> None:
    """A read-only memory map, or a slice of one, serves as rows."""
    values = np.random.default_rng(0).standard_normal((7, 100)).astype(np.float32)
    values.tofile(tmp_path / "rows")
    mapped = np.memmap(tmp_path / "rows", dtype=np.float32, mode="r", shape=(7, 100))
    residuals = np.ones((2, 100), dtype=np.float32)
    np.testing.assert_array_equal(bits(dots(each, mapped[1::2], residuals)), bits(dots(each, values, residuals)[1::2]))


@settings(max_examples=60, deadline=None)
@given(
    pairing=st.sampled_from(PAIRINGS),
    n_obs=st.one_of(st.integers(1, 40), st.sampled_from([511, 1024, 1025, 2047, 4099])),
    n_rows=st.integers(1, 11),
    n_residuals=st.sampled_from([1, 2, 3, 4, 64, 65, 67]),
    shift=st.integers(0, 63),
    gap=st.integers(0, 70),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_dot_depends_on_its_row_and_residual_only(
    each: Kernel, pairing: tuple[str, str, float], n_obs: int, n_rows: int, n_residuals: int, shift: int, gap: int, seed: int
) -> None:
    """Order, subset, repetition, width, alignment and stride change no bit."""
    rng = np.random.default_rng(seed)
    row_type, residual_type, _ = pairing
    rows = (rng.standard_normal((n_rows, n_obs)) * 10.0 ** rng.integers(-3, 4, (n_rows, 1))).astype(row_type)
    residuals = rng.standard_normal((n_residuals, n_obs)).astype(residual_type)
    alone = np.array(
        [[dots(each, rows[i : i + 1].copy(), residuals[j : j + 1].copy())[0, 0] for j in range(n_residuals)] for i in range(n_rows)]
    )
    order, columns = rng.integers(0, n_rows, 2 * n_rows + 1), rng.integers(0, n_residuals, n_residuals)
    together = dots(each, laid_out(rows[order], shift, gap), residuals[columns])
    np.testing.assert_array_equal(bits(together), bits(alone[np.ix_(order, columns)]))


@pytest.mark.parametrize(("row_type", "residual_type", "tolerance"), PAIRINGS)
def test_threads_and_reversed_rows_agree(each: Kernel, row_type: str, residual_type: str, tolerance: float) -> None:
    """Blocks computed by several threads at once, or with negative row stride, have the bits of one call."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((40, 3001)).astype(row_type)
    residuals = rng.standard_normal((5, 3001)).astype(residual_type)
    whole = dots(each, rows, residuals)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda top: dots(each, rows[top : top + 7], residuals), range(0, 40, 7)))
    np.testing.assert_array_equal(bits(np.concatenate(parts)), bits(whole))
    np.testing.assert_array_equal(bits(dots(each, rows[::-1], residuals)[::-1]), bits(whole))


#: Element types that kernels sweep as float64, besides floats.
NUMBERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@settings(max_examples=60, deadline=None)
@given(
    pairing=st.sampled_from([("float32", "float32"), *((row, "float64") for row in ("float16", "float32", "float64", *NUMBERS))]),
    n_obs=st.one_of(st.integers(1, 70), st.sampled_from([511, 512, 1024, 1025, 2047, 4099])),
    n_rows=st.one_of(st.integers(1, 40), st.sampled_from([300, 1025])),
    n_residuals=st.sampled_from([1, 2, 3, 9]),
    shift=st.integers(0, 63),
    gap=st.integers(0, 70),
    seed=st.integers(0, 2**32 - 1),
)
def test_interleaved_rows_have_the_bits_of_contiguous_rows(
    each: Kernel, pairing: tuple[str, str], n_obs: int, n_rows: int, n_residuals: int, shift: int, gap: int, seed: int
) -> None:
    """The transpose of an array in C order gives the bits of contiguous rows: all rows, any strip of them, and rows gathered."""
    rng = np.random.default_rng(seed)
    row_type, residual_type = pairing
    rows = (np.abs(rng.standard_normal((n_rows, n_obs))) * 10.0 ** rng.integers(0, 3, (n_rows, 1))).astype(row_type)
    residuals = rng.standard_normal((n_residuals, n_obs)).astype(residual_type)
    interleaved, contiguous = laid_out(rows.T, shift, gap).T, dots(each, rows, residuals)
    np.testing.assert_array_equal(bits(dots(each, interleaved, residuals)), bits(contiguous))
    first, last = np.sort(rng.integers(0, n_rows + 1, 2))
    np.testing.assert_array_equal(bits(dots(each, interleaved[first:last], residuals)), bits(contiguous[first:last]))
    index = rng.integers(0, n_rows, 5)
    for dtype in (row_type, "float64"):
        out = np.zeros((5, n_obs), dtype=dtype)
        each.gather(interleaved, index, out)
        np.testing.assert_array_equal(out, rows[index].astype(dtype))


@pytest.mark.parametrize("dtype", [*NUMBERS, "float16", "float32"])
def test_numbers_of_any_type_are_swept_as_float64(each: Kernel, dtype: str) -> None:
    """With float64 residuals, rows of any real numbers have the bits of rows converted beforehand; gathered, they are converted."""
    rng = np.random.default_rng(3)
    top = 1 if dtype == "bool" else 100 if "float" in dtype else np.iinfo(dtype).max
    rows = rng.integers(0, top, (9, 1301), endpoint=True, dtype="uint64").astype(dtype)
    residuals = rng.standard_normal((3, 1301))
    np.testing.assert_array_equal(bits(dots(each, rows, residuals)), bits(dots(each, rows.astype(np.float64), residuals)))
    out = np.zeros((2, 1301))
    each.gather(rows, INDEX, out)
    np.testing.assert_array_equal(out, rows[INDEX].astype(np.float64))


@settings(max_examples=30, deadline=None)
@given(
    n_obs=st.one_of(st.integers(0, 40), st.sampled_from([2047, 2048, 2049, 20000])),
    n_rows=st.integers(0, 9),
    n_residuals=st.integers(0, 5),
    shift=st.integers(0, 63),
    gap=st.integers(0, 70),
    seed=st.integers(0, 2**32 - 1),
)
def test_int8_dots_are_exact(each: Kernel, n_obs: int, n_rows: int, n_residuals: int, shift: int, gap: int, seed: int) -> None:
    """int8 by int16 gives the integer, whatever the layout."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(-128, 128, (n_rows, n_obs), dtype=np.int8)
    residuals = rng.integers(-INT8_RESIDUAL_LIMIT, INT8_RESIDUAL_LIMIT + 1, (n_residuals, n_obs), dtype=np.int16)
    out = np.full((n_rows, n_residuals), -1, dtype=np.int64)
    each.dots_int8(laid_out(rows, shift, gap), residuals, out)
    np.testing.assert_array_equal(out, rows.astype(np.int64) @ residuals.T.astype(np.int64))


@pytest.mark.parametrize("entry", [-128, -127, 127])
@pytest.mark.parametrize("factor", [-INT8_RESIDUAL_LIMIT, INT8_RESIDUAL_LIMIT])
def test_int8_extremes_never_overflow(each: Kernel, entry: int, factor: int) -> None:
    """The largest entries with equal signs throughout add up exactly over many chunks."""
    n_obs = 100_003
    out = np.zeros((5, 4), dtype=np.int64)
    each.dots_int8(np.full((5, n_obs), entry, dtype=np.int8), np.full((4, n_obs), factor, dtype=np.int16), out)
    assert (out == n_obs * entry * factor).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_gather_copies_rows(each: Kernel, dtype: str) -> None:
    """Rows arrive in the order of the index, repeats included, from any layout."""
    rows = laid_out(np.arange(6 * 13).reshape(6, 13).astype(dtype), 1, 3)
    index = np.array([5, 0, 0, 3], dtype=np.int64)
    out = np.zeros((4, 13), dtype=dtype)
    each.gather(rows, index, out)
    np.testing.assert_array_equal(out, rows[index])
    each.gather(rows, index[:0], out[:0])


@pytest.mark.parametrize(
    ("dtype", "residual"), [("float16", "float32"), ("float32", "float32"), ("float32", "float64"), ("float64", "float64")]
)
def test_rows_picked_by_number_have_the_bits_of_rows_in_order(each: Kernel, dtype: str, residual: str) -> None:
    """``dots_at`` equals ``dots`` of the rows picked, repeats and any layout included."""
    rng = np.random.default_rng(0)
    rows = laid_out(rng.normal(size=(23, 2311)).astype(dtype), 1, 3)
    residuals = rng.normal(size=(5, 2311)).astype(residual)
    index = np.append(rng.permutation(23)[:18], [4, 4])
    whole, picked = np.empty((23, 5)), np.empty((20, 5))
    each.dots(rows, residuals, whole)
    each.dots_at(rows, index, residuals, picked)
    assert picked.tobytes() == whole[index].tobytes()
    each.dots_at(rows, index[:0], residuals, picked[:0])


@pytest.mark.parametrize("residual", ["float32", "float64"])
@pytest.mark.parametrize("n_obs", [1, 2, 3, 4, 15, 16, 17, 1023, 1024, 1025, 5001])
def test_dots_of_codes_have_the_bits_of_the_numbers(each: Kernel, residual: str, n_obs: int) -> None:
    """Genotypes unpacked inside the kernel give what the same numbers in an array give, whatever stands behind the last one."""
    rng = np.random.default_rng(n_obs)
    codes = rng.integers(0, 256, (9, -(-n_obs // 4)), dtype=np.uint8)
    values = rng.normal(size=(9, 4))
    apart = np.stack([codes >> shift & 3 for shift in (0, 2, 4, 6)], axis=2).reshape(9, -1)[:, :n_obs]
    numbers = np.take_along_axis(values, apart.astype(np.int64), axis=1).astype(residual)
    for count in (1, 4, 70):
        residuals, out = rng.normal(size=(count, n_obs)).astype(residual), np.full((9, count), np.nan)
        each.dots_codes(codes, values, residuals, out)
        assert (bits(out) == bits(dots(each, numbers, residuals))).all()


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


F32 = np.ones((4, 9), dtype=np.float32)
F64 = np.ones((4, 9))
I8, I16 = np.ones((4, 9), dtype=np.int8), np.ones((2, 9), dtype=np.int16)
OUT, OUT64 = np.zeros((4, 2)), np.zeros((4, 2), dtype=np.int64)
INDEX = np.array([0, 3], dtype=np.int64)
CODES, VALUES = np.zeros((4, 3), dtype=np.uint8), np.ones((4, 4))

MISUSE: dict[str, Callable[[Kernel], None]] = {
    "float64 rows, float32 residuals": lambda each: each.dots(F64, F32[:2], OUT),
    "integer rows": lambda each: each.dots(I8, I16, OUT),
    "foreign byte order": lambda each: each.dots(F32.astype(F32.dtype.newbyteorder()), F32[:2], OUT),
    "complex rows": lambda each: each.dots(F64.astype(complex), F64[:2], OUT),
    "one-dimensional rows": lambda each: each.dots(F32[0], F32[:2], OUT),
    "three-dimensional residuals": lambda each: each.dots(F32, F32[:2, :, None], OUT),
    "spread entries": lambda each: each.dots(np.ones((4, 18), dtype=np.float32)[:, ::2], F32[:2], OUT),
    "strided residuals": lambda each: each.dots(F32, F32[::2], OUT),
    "other observations": lambda each: each.dots(F32, np.ones((2, 8), dtype=np.float32), OUT),
    "out of float32": lambda each: each.dots(F32, F32[:2], OUT.astype(np.float32)),
    "out transposed": lambda each: each.dots(F32, F32[:2], np.zeros((2, 4)).T),
    "out of another shape": lambda each: each.dots(F32, F32[:2], np.zeros((4, 3))),
    "out read-only": lambda each: each.dots(F32, F32[:2], read_only(np.zeros((4, 2)))),
    "out unaligned": lambda each: each.dots(
        F32, F32[:2], np.frombuffer(bytearray(65), dtype=np.uint8)[1:].view(np.float64).reshape(4, 2)
    ),
    "int8 into float64": lambda each: each.dots_int8(I8, I16, OUT),
    "int8 by int8": lambda each: each.dots_int8(I8, I8[:2], OUT64),
    "floats as int8": lambda each: each.dots_int8(F32, F32[:2], OUT64),
    "int16 too large": lambda each: each.dots_int8(I8, I16 * (INT8_RESIDUAL_LIMIT + 1), OUT64),
    "int16 too small": lambda each: each.dots_int8(I8, I16 * -(INT8_RESIDUAL_LIMIT + 1), OUT64),
    "picked past the end": lambda each: each.dots_at(F32, INDEX + 1, F32[:2], OUT[:2]),
    "picked by int32": lambda each: each.dots_at(F32, INDEX.astype(np.int32), F32[:2], OUT[:2]),
    "picked for another shape": lambda each: each.dots_at(F32, INDEX, F32[:2], OUT),
    "codes of int8": lambda each: each.dots_codes(CODES.view(np.int8), VALUES, F32[:2], OUT),
    "codes too short": lambda each: each.dots_codes(CODES[:, :2], VALUES, F32[:2], OUT),
    "codes without values": lambda each: each.dots_codes(CODES, VALUES[:3], F32[:2], OUT),
    "codes by int16": lambda each: each.dots_codes(CODES, VALUES, I16, OUT),
    "codes into another shape": lambda each: each.dots_codes(CODES, VALUES, F32[:2], OUT[:3]),
    "index past the end": lambda each: each.gather(F32, INDEX + 1, np.zeros((2, 9), dtype=np.float32)),
    "index negative": lambda each: each.gather(F32, INDEX - 1, np.zeros((2, 9), dtype=np.float32)),
    "index of int32": lambda each: each.gather(F32, INDEX.astype(np.int32), np.zeros((2, 9), dtype=np.float32)),
    "gather into another type": lambda each: each.gather(F64, INDEX, np.zeros((2, 9), dtype=np.float32)),
    "gather into another shape": lambda each: each.gather(F32, INDEX, np.zeros((3, 9), dtype=np.float32)),
    "gather into read-only": lambda each: each.gather(F32, INDEX, read_only(np.zeros((2, 9), dtype=np.float32))),
}


@pytest.mark.parametrize("misuse", MISUSE.values(), ids=MISUSE.keys())
def test_misuse_is_a_value_error(each: Kernel, misuse: Callable[[Kernel], None]) -> None:
    """Arguments that do not fit raise ``ValueError``, whatever the kernel."""
    with pytest.raises(ValueError, match=r"."):
        misuse(each)


@pytest.mark.parametrize("name", ["c", "c-generic"])
def test_interleaved_rows_are_swept_whole_and_as_floats(name: str) -> None:
    """The extension refuses interleaved rows where it has no code for them: picked by number, or int8 by int16."""
    if not available()[name].startswith("c-"):
        pytest.skip(available()[name])
    with pytest.raises(ValueError, match="must be contiguous"):
        kernel(name).dots_at(F32.T.copy().T, INDEX, F32[:2], OUT[:2])
    with pytest.raises(ValueError, match="contiguous rows of"):
        kernel(name).dots_int8(I8.T.copy().T, I16, OUT64)


@pytest.mark.parametrize("name", ["c", "c-generic"])
def test_no_buffer_is_a_value_error(name: str) -> None:
    """The extension turns away objects that are no arrays."""
    if not available()[name].startswith("c-"):
        pytest.skip(available()[name])
    for arguments in (([[1.0]], F32, OUT), (F32, None, OUT), (F32, F32[:2], b"x" * 64)):
        with pytest.raises(ValueError, match="buffer"):
            kernel(name).dots(*arguments)


def test_each_kernel_has_an_id_of_its_own() -> None:
    """Kernels are known by id, and asking twice gives the same kernel."""
    found = available()
    assert tuple(found) == NAMES
    assert found["numpy"] == "numpy-1"
    assert kernel("numpy") is kernel("numpy")


def test_environment_names_the_kernel(forgetful: pytest.MonkeyPatch) -> None:
    """FASTOMP_KERNEL decides where no name is given, and only there."""
    forgetful.setenv("FASTOMP_KERNEL", "numpy")
    assert kernel().id == "numpy-1"
    forgetful.setenv("FASTOMP_KERNEL", "fortran")
    with pytest.raises(RequestError, match="fortran"):
        kernel()
    assert kernel("numpy").id == "numpy-1"


def test_numpy_serves_without_the_extension(forgetful: pytest.MonkeyPatch) -> None:
    """Without the compiled extension the NumPy kernel is used, and asking for a compiled one names the remedy."""
    forgetful.setattr(native, "extension", None)
    found = available()
    assert "compiler" in found["c"]
    assert kernel().id == found["numpy"]
    with pytest.raises(UnavailableError, match="compiler"):
        kernel("c")
