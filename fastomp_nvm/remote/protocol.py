"""The binary part of the protocol: numbered tiles of an upload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastomp_nvm.arrays import AnyArray

__all__ = ["WireTile"]


@dataclass(frozen=True, slots=True, eq=False)
class WireTile:
    """A numbered tile; see ``ado_plugin.service.uploads.Tile``.

    Attributes
    ----------
    header : mapping
        Number, checksum, position, shape and element type, in JSON terms.
    data : (n,) uint8
        The values as bytes.
    """

    header: Mapping[str, Any]
    data: AnyArray
