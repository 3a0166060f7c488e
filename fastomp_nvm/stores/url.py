"""Addresses of stores: ``scheme:path?query#fragment``."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

from fastomp_nvm.errors import StoreURLError

__all__ = ["REMOTE_SCHEMES", "StoreURL"]

#: URL schemes that name a server, not a store.
REMOTE_SCHEMES = frozenset({"grpc", "grpc+tls", "mcas"})


@dataclass(frozen=True, slots=True)
class StoreURL:
    """A parsed address of a store; ``text`` is the address as a whole."""

    scheme: str
    path: str
    query: Mapping[str, str]
    fragment: str
    text: str

    @classmethod
    def parse(cls, text: str) -> StoreURL:
        """Parse ``text``; a plain path means ``mmap://`` of that path, or ``plink://`` where it ends in .bed."""
        if not isinstance(text, str) or not text:
            raise StoreURLError(f"a store URL is a non-empty string such as mmap:///path/to/store, not {text!r}")
        scheme, colon, rest = text.partition(":")
        if not colon or "/" in scheme or len(scheme) < 2:
            scheme = "plink" if text.endswith(".bed") else "mmap"
            return cls(scheme, text, {}, "", f"{scheme}://{text}")
        parts = urllib.parse.urlsplit(rest)
        query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        path = urllib.parse.unquote(parts.netloc + parts.path)
        if not path:
            raise StoreURLError(f"{text!r} names no store: expected {scheme}:///path/to/store")
        return cls(scheme, path, query, urllib.parse.unquote(parts.fragment), text)
