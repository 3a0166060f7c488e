"""Both implementations compute the same CRC-32."""

from __future__ import annotations

import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastomp_nvm.matrix import checksum


@given(data=st.binary(max_size=3000), start=st.integers(0, 2**32 - 1), cut=st.integers(0, 3000))
def test_the_checksum_is_that_of_zlib(data: bytes, start: int, cut: int) -> None:
    """At every length and alignment, from every start, in one piece or two, the number is zlib's."""
    values = np.frombuffer(b"x" + data, np.uint8)[1:]
    assert checksum.crc32(values.data, start) == zlib.crc32(data, start)
    assert checksum.crc32(values[cut:].data, checksum.crc32(values[:cut].data, start)) == zlib.crc32(data, start)


def test_without_isal_it_is_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums work without the faster library."""
    checksum._fastest.cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "isal.isal_zlib", None)  # what Python takes for "not to be imported"
        assert checksum._fastest() is zlib.crc32
    checksum._fastest.cache_clear()
