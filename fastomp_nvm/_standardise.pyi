from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray

def fill(
    rows: AnyArray, index: IndexArray, mean: Float64Array, scale: Float64Array, factors: Float64Array | None, out: AnyArray, /
) -> None: ...
