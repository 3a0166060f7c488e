from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array, IndexArray

def maximise(
    family: str,
    design: Float64Array,
    response: Float64Array,
    weights: Float64Array,
    settings: tuple[float, float, float, int, bool],
    known: Float64Array | None,
    beta: Float64Array,
    eta: Float64Array,
    residual: Float64Array,
    factor: Float64Array,
    /,
) -> int: ...
def gradients(
    rows: AnyArray, places: IndexArray, mean: Float64Array, scale: Float64Array, vectors: Float64Array, out: Float64Array, /
) -> None: ...
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
    settings: tuple[float, float, float, int, bool],
    rows: AnyArray,
    places: IndexArray,
    mean: Float64Array,
    scale: Float64Array,
    gradient: Float64Array,
    added: BoolArray,
    positions: IndexArray,
    blocked: IndexArray | None,
    kept: IndexArray,
    rule: tuple[float, float, bool],
    /,
) -> tuple[int, int, int]: ...
