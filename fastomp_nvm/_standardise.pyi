from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array, IndexArray

def fill(
    rows: AnyArray, index: IndexArray, mean: Float64Array, scale: Float64Array, factors: Float64Array | None, out: AnyArray, /
) -> None: ...
def apply(
    products: Float64Array,
    mean: Float64Array,
    scale: Float64Array,
    wide: BoolArray,
    sums: Float64Array,
    wide_sums: Float64Array,
    /,
) -> None: ...
