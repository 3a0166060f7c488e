from _typeshed import WriteableBuffer
from typing_extensions import Buffer

from fastomp_nvm.arrays import AnyArray, BoolArray, Float32Array, Float64Array, IndexArray, UInt32Array
from fastomp_nvm.objectives.compiled import ColumnArrays, FitArrays, Rounds

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

# checksums.c
def crc32(data: Buffer, start: int, way: int, /) -> int: ...
def row_checksums(rows: AnyArray, places: IndexArray, out: UInt32Array, /) -> None: ...

# moments.c
def moments(
    rows: AnyArray,
    weights: Float64Array | None,
    out: Float64Array,
    residuals: AnyArray | None,
    products: Float64Array | None,
    plain: bool,
    /,
) -> None: ...

# genotypes.c
def decode(codes: AnyArray, people: int, values: Float64Array, out: AnyArray, /) -> None: ...
def compact(codes: AnyArray, mask: AnyArray, out: AnyArray, /) -> None: ...
def dots_codes(codes: AnyArray, values: Float64Array, residuals: AnyArray, out: Float64Array, plain: bool, /) -> None: ...
def count_codes(codes: AnyArray, mask: AnyArray, out: IndexArray, /) -> None: ...

# ingest.c
def read_strip(descriptor: int, offset: int, stride: int, out: AnyArray, /) -> None: ...
def transpose(values: AnyArray, out: AnyArray, /) -> None: ...
def quantise(
    rows: AnyArray, mean: Float64Array, inverse: Float64Array, codes: AnyArray, size: Float64Array, rest: Float64Array, /
) -> None: ...

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

# gram.c, glm.c, newton.c, greedy.c
def gram_rounds(
    gram: Float64Array,
    gradient: Float64Array,
    lengths: Float64Array | None,
    offsets: IndexArray,
    in_model: BoolArray,
    ridge: float,
    tolerance: float,
    rounds: Rounds,
    /,
) -> tuple[int, int, int, int, float]: ...
def best(gradient: Float64Array, pivot: Float64Array, smallest: Float64Array, open: BoolArray, /) -> tuple[int, float]: ...
def follow(
    gram: Float64Array, directions: Float64Array, size: int, column: int, gradient: Float64Array, pivot: Float64Array, /
) -> float: ...
def grow(
    gram: Float64Array,
    at: IndexArray,
    directions: Float64Array,
    size: int,
    gradient: Float64Array,
    pivot: Float64Array,
    smallest: Float64Array,
    open: BoolArray,
    value: float,
    count: int,
    least: float,
    pursuit: bool,
    /,
) -> tuple[list[tuple[int, float]], int, float]: ...
def glm_rounds(
    fit: FitArrays, has_factor: bool, columns: ColumnArrays, gradient: Float64Array, in_model: BoolArray, rounds: Rounds, /
) -> tuple[int, int, int, int]: ...
def maximise(fit: FitArrays, known: Float64Array | None, settled: int, /) -> int: ...
def gradients(columns: ColumnArrays, vectors: Float64Array, out: Float64Array, /) -> None: ...
def likelihood(
    family: str, eta: Float64Array, response: Float64Array, weights: Float64Array, coef: Float64Array, ridge: float, /
) -> float: ...
def roots(family: str, eta: Float64Array, weights: Float64Array, out: Float64Array, /) -> float: ...
def curvature(
    design: Float64Array,
    roots: Float64Array,
    scaled: Float32Array,
    units: tuple[float, float, int],
    out: Float64Array,
    factor: Float64Array,
    above: Float64Array,
    /,
) -> bool: ...
def greedy(
    fit: FitArrays,
    has_factor: bool,
    columns: ColumnArrays,
    open: BoolArray,
    taken: IndexArray,
    gains: Float64Array,
    tolerances: tuple[float, float, float, float],
    schedule: tuple[float, int, int, int, int, int, int, float, float],
    /,
) -> tuple[int, int, int, float]: ...
