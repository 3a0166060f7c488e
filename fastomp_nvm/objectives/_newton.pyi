from fastomp_nvm.arrays import Float64Array

def maximise(
    family: str,
    design: Float64Array,
    response: Float64Array,
    weights: Float64Array,
    ridge: float,
    intercept: bool,
    settings: tuple[float, float, float, int],
    known: Float64Array | None,
    moved: float,
    beta: Float64Array,
    eta: Float64Array,
    residual: Float64Array,
    factor: Float64Array,
    /,
) -> float: ...
