from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray

def advance(
    gram: Float64Array,
    gradient: Float64Array,
    lengths: Float64Array | None,
    offsets: IndexArray,
    added: BoolArray,
    positions: IndexArray,
    blocked: IndexArray | None,
    kept: IndexArray,
    rule: tuple[float, float, float, float],
    skip_weak: bool,
    /,
) -> tuple[int, int, int, float]: ...
def best(
    gradient: Float64Array, pivot: Float64Array, smallest: Float64Array, open: BoolArray, gains: Float64Array, /
) -> tuple[int, float]: ...
def follow(
    gram: Float64Array, directions: Float64Array, size: int, column: int, gradient: Float64Array, pivot: Float64Array, /
) -> float: ...
def grow(
    gram: Float64Array,
    directions: Float64Array,
    size: int,
    gradient: Float64Array,
    pivot: Float64Array,
    smallest: Float64Array,
    open: BoolArray,
    gains: Float64Array,
    places: IndexArray,
    found: Float64Array,
    least: float,
    /,
) -> tuple[int, int]: ...
