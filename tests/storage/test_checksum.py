"""Every implementation computes zlib's CRC-32, and checksums of columns make up those of blocks."""

from __future__ import annotations

import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastomp_nvm import native
from fastomp_nvm.matrix import checksum

compiled = pytest.mark.skipif(not native.extension, reason="the compiled extension is not built")


@given(data=st.binary(max_size=3000), start=st.integers(0, 2**32 - 1), cut=st.integers(0, 3000))
def test_the_checksum_is_that_of_zlib(data: bytes, start: int, cut: int) -> None:
    """At every length and alignment, from every start, in one piece or two, the number is zlib's."""
    values = np.frombuffer(b"x" + data, np.uint8)[1:]
    assert checksum.crc32(values.data, start) == zlib.crc32(data, start)
    assert checksum.crc32(values[cut:].data, checksum.crc32(values[:cut].data, start)) == zlib.crc32(data, start)


@compiled
@given(size=st.integers(0, 1500), start=st.integers(0, 2**32 - 1), seed=st.integers(0, 9))
def test_all_ways_agree(size: int, start: int, seed: int) -> None:
    """Whatever the processor can do, the number is the same."""
    data = np.random.default_rng(seed).bytes(size)
    assert {native.extension.crc32(data, start, way) for way in range(3)} == {zlib.crc32(data, start)}


@pytest.mark.parametrize("extension", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_rows_have_the_checksums_of_their_bytes(extension: bool, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows, or some in any order, of any type, also of a part of a wider matrix, with and without the extension."""
    if not extension:
        monkeypatch.setattr(native, "extension", None)
    whole = (np.random.default_rng(0).normal(size=(9, 331)) * 20).astype(dtype)
    for rows in (whole, whole[:, 3:200], whole[::2], whole[:, :1]):
        wanted = [zlib.crc32(row.tobytes()) for row in rows]
        assert checksum.row_checksums(rows).tolist() == wanted
        places = np.array([4, 0, 4, 1])
        assert checksum.row_checksums(rows, places).tolist() == [wanted[place] for place in places]


@compiled
def test_rows_that_are_not_there_are_refused() -> None:
    """Places outside of the matrix, rows that are not contiguous and arrays of other lengths are errors, not reads elsewhere."""
    rows, out = np.zeros((3, 8), np.float32), np.zeros(1, np.uint32)
    for place in (-1, 3):
        with pytest.raises(ValueError, match="outside of rows"):
            native.extension.row_checksums(rows, np.array([place]), out)
    with pytest.raises(ValueError, match="contiguous"):
        native.extension.row_checksums(rows[:, ::2], np.array([0]), out)
    with pytest.raises(ValueError, match="entries"):
        native.extension.row_checksums(rows, np.array([0, 1]), out)


@given(widths=st.lists(st.integers(1, 5), min_size=1, max_size=6), length=st.integers(1, 300), seed=st.integers(0, 99))
def test_checksums_of_columns_make_up_those_of_blocks(widths: list[int], length: int, seed: int) -> None:
    """The checksum of a block of columns follows from those of its columns."""
    edges = np.concatenate(([0], np.cumsum(widths)))
    columns = np.random.default_rng(seed).integers(0, 256, (int(edges[-1]), length), dtype=np.uint8)
    joined = checksum.crc32_joined(checksum.row_checksums(columns), edges, length)
    assert joined.tolist() == [zlib.crc32(columns[first:last].tobytes()) for first, last in pairwise(edges)]
