"""A double of the ADO process with upstream's Python personality: one process per pool, over the mapped pool file.

It decodes messages and values with a generic FlatBuffers reader of its own, evaluates the shipped text with separate globals and
locals, and dies where the real one does.
"""

from __future__ import annotations

import binascii
import contextlib
import importlib
import json
import mmap
import os
import pickle
import struct
import sys
import threading
import time
import traceback
import types
from typing import Any

import numpy as np

_FRAME = struct.Struct("<IQ")
_ORPHAN_SECONDS = 8.0  # the real one stays for ever when its server is gone
_LARGEST_RESULT = 2_000_000
_LARGEST_PARAMETERS = 1_400_000


class Table:
    """A FlatBuffers table, read field by field."""

    def __init__(self, data: Any, position: int) -> None:
        self.data, self.position = data, position
        self.vtable = position - struct.unpack_from("<i", data, position)[0]
        self.entries = (struct.unpack_from("<H", data, self.vtable)[0] - 4) // 2

    @classmethod
    def root(cls, data: Any) -> Table:
        """Return the root of a size-prefixed buffer."""
        return cls(data, 4 + struct.unpack_from("<I", data, 4)[0])

    def number(self, slot: int, code: str, default: int = 0) -> int:
        offset = self._offset(slot)
        return struct.unpack_from(f"<{code}", self.data, self.position + offset)[0] if offset else default

    def table(self, slot: int) -> Table:
        here = self.position + self._offset(slot)
        return Table(self.data, here + struct.unpack_from("<I", self.data, here)[0])

    def text(self, slot: int) -> bytes:
        here = self.position + self._offset(slot)
        start = here + struct.unpack_from("<I", self.data, here)[0]
        length = struct.unpack_from("<I", self.data, start)[0]
        return bytes(self.data[start + 4 : start + 4 + length])

    def _offset(self, slot: int) -> int:
        return struct.unpack_from("<H", self.data, self.vtable + 4 + 2 * slot)[0] if slot < self.entries else 0


def array_of(key: str, value: memoryview) -> np.ndarray:
    """Return the array in a value: a view, read-only, at whatever address it lies."""
    message = Table.root(value)
    assert message.number(0, "I", 0x0C0FFEE0) == 0x0C0FFEE0
    assert message.number(1, "h", 1) == 1
    assert message.number(2, "B") == 3, "not a data descriptor"
    descriptor = message.table(3)
    assert descriptor.number(0, "I") == 2, "not an array"
    assert descriptor.text(1) == key.encode(), "the value carries another name"
    position = 4 + struct.unpack_from("<I", value)[0]
    dimensions, itemsize = struct.unpack_from("<iq", value, position)
    shape = struct.unpack_from(f"<{dimensions}q", value, position + 12)
    strides = struct.unpack_from(f"<{dimensions}q", value, position + 12 + 8 * dimensions)
    flags, number = struct.unpack_from("<ii", value, position + 12 + 16 * dimensions)
    assert flags == 1
    dtype = next(np.dtype(code) for code in ("f2", "f4", "f8", "i1", "u8", "?") if np.dtype(code).num == number)
    assert dtype.itemsize == itemsize
    start = position + 12 + 16 * dimensions + 8
    assert descriptor.number(2, "Q") == start - position
    array = np.ndarray(shape, dtype, buffer=value, offset=start, strides=strides)
    # NumPy 2.3 and later refuse setflags(write=True) on the arrays of the real one; over an owner without buffers every NumPy does.
    interface = {**array.__array_interface__, "data": (array.ctypes.data, True)}
    return np.asarray(types.SimpleNamespace(__array_interface__=interface, owner=array))


class Pool:
    """The pool file as this process maps it; the server says where values lie and locks them."""

    def __init__(self, path: str, inbox: Any, outbox: Any) -> None:
        self._inbox, self._outbox = inbox, outbox
        with open(f"{path}.data", "r+b") as file:
            self._mapping = mmap.mmap(file.fileno(), 0)

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        header = self._inbox.read(_FRAME.size)
        if not header:
            return None
        length, size = _FRAME.unpack(header)
        return json.loads(self._inbox.read(length)), self._inbox.read(size)

    def send(self, header: dict[str, Any], data: bytes = b"") -> None:
        encoded = json.dumps(header).encode()
        self._outbox.write(_FRAME.pack(len(encoded), len(data)) + encoded + data)
        self._outbox.flush()

    def view(self, key: str, place: list[int]) -> np.ndarray:
        offset, length = place
        return array_of(key, memoryview(self._mapping)[offset : offset + length])

    def load(self, key: str) -> Any:
        assert threading.current_thread() is threading.main_thread(), "the real one's callbacks belong to its one thread"
        self.send({"load": key})
        received = self.receive()
        return None if received is None or received[0]["place"] is None else self.view(key, received[0]["place"])

    def save(self, key: str, value: Any) -> int:
        raise RuntimeError("the double does not save: overwriting a larger value corrupts a real pool for good")


def execute(pool: Pool, key: str, place: list[int], message: bytes) -> bytes | None:
    """Do what ``execute_python`` does; None is "-1" to the client."""
    root = Table.root(message)
    if root.number(2, "B") != 1:
        os.abort()
    operation = root.table(3).table(0)
    function, parameters, code = (operation.text(slot).decode() for slot in (1, 2, 3))
    if len(parameters) > _LARGEST_PARAMETERS:
        os.abort()
    target = pool.view(key, place)
    given = {key}

    def load(wanted: str) -> Any:
        if wanted in given:
            return None  # locked by this very call
        found = pool.load(wanted)
        given.update([wanted] if found is not None else [])
        return found

    ado = types.SimpleNamespace(load=load, save=pool.save)
    outer = {"__builtins__": __builtins__, "target": target, "ado": ado, "numpy": np, "pickle": pickle, "binascii": binascii}
    inner: dict[str, Any] = {}
    code += f"\nresult = pickle.dumps({function}(target, pickle.loads(binascii.a2b_base64('{parameters}'))))\n"
    try:
        compiled = compile(code, "jitcode", "exec")
    except SyntaxError:
        os.abort()  # an indented function ends the real one
    try:
        exec(compiled, outer, inner)
    except SystemExit:
        os._exit(1)
    except BaseException:
        traceback.print_exc()
        return None
    if len(inner["result"]) > _LARGEST_RESULT:
        os.abort()
    return bytes(inner["result"])


def main(path: str, dies_after: int) -> None:
    """Serve the server that started this process."""
    inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if dies_after < 0:
        os.abort()  # the start-up race: the ring was read before the server had filled it
    pool = Pool(path, inbox, outbox)
    # The real limit of 30 s leaves time for a first import; a shortened one does not.
    with contextlib.suppress(ImportError):
        importlib.import_module("ado_plugin.mcas.slice")
    outbox.write(b"ready")
    outbox.flush()
    invokes = 0
    while received := pool.receive():
        header, message = received
        invokes += 1
        if dies_after and invokes > dies_after:
            os.abort()  # upstream's reference-count fault
        result = execute(pool, header["key"], header["place"], message)
        pool.send({"status": -1 if result is None else 0}, result or b"")
    time.sleep(_ORPHAN_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
