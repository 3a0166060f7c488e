"""Dates of the certificates in a PEM file; the standard library shows those of a peer alone."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

from fastomp_nvm.errors import InputError

__all__ = ["validity"]

_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME, _CENTURY_BOUND = 0xA0, 0x17, 50


def validity(chain: bytes) -> tuple[datetime, datetime]:
    """Return the moments between which all certificates of a PEM file are valid.

    Raises
    ------
    InputError
        The file holds no certificate, or one that is damaged.
    """
    try:
        spans = [_span(ssl.PEM_cert_to_DER_cert(block)) for block in _BLOCK.findall(chain.decode("ascii", "replace"))]
        return max(begin for begin, _ in spans), min(end for _, end in spans)
    except (ValueError, IndexError, StopIteration) as error:
        raise InputError("the certificate file holds no readable certificate: expected PEM") from error


def _span(der: bytes) -> tuple[datetime, datetime]:
    """Return the validity of one certificate: the fourth field of its signed part, the optional version aside (RFC 5280)."""
    _, certificate = next(_elements(der))
    _, signed = next(_elements(certificate))
    fields = [content for tag, content in _elements(signed) if tag != _VERSION]
    begin, end = (_moment(tag, content.decode("ascii")) for tag, content in _elements(fields[3]))
    return begin, end


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of consecutive elements."""
    place = 0
    while place < len(der):
        tag, length = der[place], der[place + 1]
        place += 2
        if length & 0x80:  # the length of the length
            count = length & 0x7F
            length = int.from_bytes(der[place : place + count], "big")
            place += count
        yield tag, der[place : place + length]
        place += length


def _moment(tag: int, text: str) -> datetime:
    """Read a time; the short form has two digits of the year."""
    if tag == _UTC_TIME:
        text = f"{20 if int(text[:2]) < _CENTURY_BOUND else 19}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
