import numpy as np
import numpy.typing as npt
from _typeshed import WriteableBuffer

from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array, IndexArray

# sweep.c
kernel_id: str
plain_kernel_id: str

def dots(rows: AnyArray, index: IndexArray | None, residuals: AnyArray, out: Float64Array | IndexArray, plain: bool, /) -> None: ...
def gather(rows: AnyArray, index: IndexArray, out: AnyArray, /) -> None: ...

# reads.c
def read_columns(
    descriptor: int,
    offset: int,
    column_bytes: int,
    near_bytes: int,
    columns: IndexArray,
    places: IndexArray,
    out: AnyArray,
    buffer: WriteableBuffer,
    /,
) -> None: ...

# keys.c
def mix(words: tuple[int, ...], last: IndexArray, out: npt.NDArray[np.uint64], /) -> None: ...

# standardise.c
def standardise(
    products: Float64Array,
    mean: Float64Array,
    scale: Float64Array,
    wide: BoolArray,
    sums: Float64Array,
    wide_sums: Float64Array,
    /,
) -> None: ...

# guards.c
def install_guard() -> None: ...
def guard(address: int, length: int, /) -> bool: ...
def unguard(address: int, /) -> None: ...
def lost(address: int, length: int, /) -> bool: ...
