"""Default feature names, computed on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

__all__ = ["NumberedNames"]


class NumberedNames(Sequence[str]):
    """The names ``f0, f1, ...`` as a sequence that stores none of them.

    Parameters
    ----------
    length : int
        Number of names.
    prefix : str
        Text before the number.
    """

    __slots__ = ("length", "prefix")

    def __init__(self, length: int, prefix: str = "f") -> None:
        self.length = length
        self.prefix = prefix

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        numbers = range(self.length)[index]
        return f"{self.prefix}{numbers}" if isinstance(numbers, int) else [f"{self.prefix}{number}" for number in numbers]

    def __iter__(self) -> Iterator[str]:
        return (f"{self.prefix}{number}" for number in range(self.length))

    def __contains__(self, name: object) -> bool:
        return self._position(name) is not None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NumberedNames):
            return (self.length, self.prefix) == (other.length, other.prefix)
        if isinstance(other, (list, tuple)):
            return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        return NotImplemented

    def __repr__(self) -> str:
        return f"NumberedNames({self.length}, {self.prefix!r})"

    def index(self, name: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the position of ``name``, read from its number; ``ValueError`` when it is not one of the names."""
        position = self._position(name)
        if position is None or position not in range(self.length)[start:stop]:
            raise ValueError(f"{name!r} is not in {self!r}")
        return position

    def _position(self, name: object) -> int | None:
        """Return the number in ``name``, or None when it is not one of the names."""
        if not isinstance(name, str) or not name.startswith(self.prefix):
            return None
        digits = name[len(self.prefix) :]
        # isascii, because "²".isdigit() is true; the bound on the length, because int() is quadratic in the digits.
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            return None
        number = int(digits)
        return number if number < self.length and str(number) == digits else None
