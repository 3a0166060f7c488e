from _typeshed import ReadableBuffer, WriteableBuffer

def read_columns(
    descriptor: int,
    offset: int,
    column_bytes: int,
    near_bytes: int,
    columns: ReadableBuffer,
    places: ReadableBuffer,
    out: WriteableBuffer,
    buffer: WriteableBuffer,
    /,
) -> None: ...
