from fastomp_nvm.arrays import AnyArray, BoolArray, Float32Array, Float64Array, IndexArray

def maximise(
    family: str,
    design: Float64Array,
    response: Float64Array,
    weights: Float64Array,
    settings: tuple[float, float, float, float, float, int, bool],
    known: Float64Array | None,
    beta: Float64Array,
    eta: Float64Array,
    residual: Float64Array,
    factor: Float64Array,
    settled: int,
    /,
) -> int: ...
def gradients(
    rows: AnyArray,
    places: IndexArray,
    mean: Float64Array,
    scale: Float64Array,
    wide: BoolArray,
    vectors: Float64Array,
    out: Float64Array,
    /,
) -> None: ...
def roots(family: str, eta: Float64Array, weights: Float64Array, out: Float64Array, /) -> float: ...
def curvature(
    design: Float64Array, roots: Float64Array, scaled: Float32Array, units: tuple[float, float, bool], out: Float64Array, /
) -> bool: ...
def log_likelihood(family: str, eta: Float64Array, response: Float64Array, out: Float64Array, /) -> None: ...
def advance(
    family: str,
    design: Float64Array,
    response: Float64Array,
    weights: Float64Array,
    beta: Float64Array,
    eta: Float64Array,
    residual: Float64Array,
    factor: Float64Array,
    has_factor: bool,
    settings: tuple[float, float, float, float, float, int, bool],
    rows: AnyArray,
    places: IndexArray,
    mean: Float64Array,
    scale: Float64Array,
    wide: BoolArray,
    gradient: Float64Array,
    added: BoolArray,
    positions: IndexArray,
    blocked: IndexArray | None,
    kept: IndexArray,
    rule: tuple[float, float, bool],
    /,
) -> tuple[int, int, int]: ...
