"""Raw bytes for a Flight port: conversations of a real client, their HTTP/2 frames changed, and bytes that are no frames at all.

The bytes of a real client are recorded by a proxy on loopback. They are a preface of 24 bytes and frames: three bytes of length,
type, flags, four bytes of stream, payload (RFC 9113).
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["PREFACE", "Frame", "FrameFuzzer", "recorded", "split"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = struct.Struct(">HBBBI")
#: Seconds to wait for a reply before a connection is closed, and bytes of replies that are read.
_PATIENCE, _MOST_READ = 0.05, 1 << 16
#: Most bytes of a message that are sent: what a length promises need not follow.
_MOST_SENT = 1 << 20
#: Types: data, headers, priority, reset, settings, push promise, ping, go away, window update, continuation, and unknown ones.
_TYPES = (*range(10), 0x0B, 0x7F, 0xFF)


class Frame(NamedTuple):
    """A frame; ``length`` is that of the payload unless the header lies."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    length: int | None = None

    def __bytes__(self) -> bytes:
        """Return the frame as it is sent."""
        length = len(self.payload) if self.length is None else self.length
        return _HEAD.pack(length >> 8 & 0xFFFF, length & 0xFF, self.kind, self.flags, self.stream & 0xFFFFFFFF) + self.payload


def split(sent: bytes) -> list[Frame]:
    """Return the frames that a client sent after its preface."""
    assert sent.startswith(PREFACE)
    found, place = list[Frame](), len(PREFACE)
    while place + _HEAD.size <= len(sent):
        high, low, kind, flags, stream = _HEAD.unpack_from(sent, place)
        place += _HEAD.size
        length = high << 8 | low
        found.append(Frame(kind, flags, stream, sent[place : place + length]))
        place += length
    return found


def recorded(port: int, converse: Callable[[int], None]) -> list[Frame]:
    """Return the frames that a client sends to a port of loopback; ``converse`` lets it talk to the port of a proxy."""
    sent = bytearray()

    def forward(source: socket.socket, target: socket.socket, kept: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if kept is not None:
                    kept += data
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with proxy.accept()[0] as client, socket.create_connection(("127.0.0.1", port)) as server:
            back = threading.Thread(target=forward, args=(server, client, None))
            back.start()
            forward(client, server, sent)
            back.join()

    with socket.create_server(("127.0.0.1", 0)) as proxy:
        serving = threading.Thread(target=serve)
        serving.start()
        converse(proxy.getsockname()[1])
        serving.join()
    return split(bytes(sent))


class FrameFuzzer:
    """Sends changed conversations.

    Parameters
    ----------
    draw : random.Random
    conversations : list of list of Frame
    """

    def __init__(self, draw: random.Random, conversations: list[list[Frame]]) -> None:
        self._draw = draw
        self._conversations = conversations

    def message(self) -> bytes:
        """Return the bytes of one connection."""
        draw, chance = self._draw, self._draw.random()
        if chance < 0.1:
            start = draw.choice([b"", PREFACE, PREFACE[: draw.randrange(24)], b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"])
            return start + draw.randbytes(draw.choice([0, 9, 300, 70_000]))
        frames = list(draw.choice(self._conversations))
        for _ in range(draw.choice([0, 1, 1, 2, 5])):
            self._change(frames)
        sent = bytearray(PREFACE + b"".join(map(bytes, frames)))
        for _ in range(draw.choice([0, 0, 0, 1, 8])):
            sent[draw.randrange(len(sent))] ^= 1 << draw.randrange(8)
        if chance > 0.9:
            del sent[draw.randrange(len(sent)) :]
        return bytes(sent[:_MOST_SENT])

    def send(self, port: int) -> None:
        """Send the bytes of one connection, in one piece or in several, and read what comes until it is closed or silent."""
        draw, message = self._draw, self.message()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
            for piece in self._pieces(message):
                connection.sendall(piece)
            if draw.random() < 0.3:
                connection.shutdown(socket.SHUT_WR)
            connection.settimeout(_PATIENCE)
            read = 0
            while read < _MOST_READ and (data := connection.recv(1 << 14)):
                read += len(data)

    def _pieces(self, message: bytes) -> Iterator[bytes]:
        """Yield a message whole, or cut at random places."""
        cuts = sorted(self._draw.randrange(len(message) + 1) for _ in range(self._draw.choice([0, 0, 3])))
        for first, last in zip([0, *cuts], [*cuts, len(message)], strict=True):
            yield message[first:last]

    def _change(self, frames: list[Frame]) -> None:
        """Change one thing about the frames of a conversation."""
        draw, place = self._draw, self._draw.randrange(len(frames))
        frame = frames[place]
        match draw.randrange(9):
            case 0:
                frames[place] = frame._replace(kind=draw.choice(_TYPES))
            case 1:
                frames[place] = frame._replace(flags=draw.randrange(256))
            case 2:
                frames[place] = frame._replace(stream=draw.choice([0, 1, 2, 3, 2**31 - 1, 2**31, 2**32 - 1]))
            case 3:
                frames[place] = frame._replace(length=draw.choice([0, 1, 16384, 16385, 2**24 - 1]))
            case 4:
                frames[place] = frame._replace(payload=self._changed(frame.payload))
            case 5:
                frames.insert(place, Frame(draw.choice(_TYPES), draw.randrange(256), draw.choice([0, 1, 3]), draw.randbytes(64)))
            case 6:
                frames[place:place] = [frame] * draw.choice([1, 50])
            case 7:
                frames[place], frames[0] = frames[0], frame
            case _:
                if len(frames) > 1:
                    del frames[place]

    def _changed(self, payload: bytes) -> bytes:
        """Return a payload with other bytes, another end, or another length of the gRPC message in it."""
        draw, found = self._draw, bytearray(payload)
        match draw.randrange(4):
            case 0:
                for _ in range(draw.choice([1, 4, 30]) if found else 0):
                    found[draw.randrange(len(found))] = draw.randrange(256)
            case 1:
                del found[draw.randrange(len(found) + 1) :]
            case 2:
                found += draw.randbytes(draw.choice([1, 100, 20_000]))
            case _:
                found[:5] = struct.pack(">BI", draw.randrange(3), draw.choice([0, 1, 2**16, 2**26, 2**31, 2**32 - 1]))
        return bytes(found)
