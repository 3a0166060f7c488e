"""Names of features that nobody named: a million of them must cost nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

__all__ = ["NumberedNames"]


class NumberedNames(Sequence[str]):
    """The names ``f0, f1, ...``, made on demand so that a million of them cost nothing to keep or to open.

    Parameters
    ----------
    length : int
        How many names there are.
    prefix : str
        What precedes the number.
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
        """Return the position of ``name`` without a search; ``ValueError`` when it is not among the names."""
        position = self._position(name)
        if position is None or position not in range(self.length)[start:stop]:
            raise ValueError(f"{name!r} is not in {self!r}")
        return position

    def _position(self, name: object) -> int | None:
        """Return the number in ``name``, or None when ``name`` is not exactly one of the names."""
        if not isinstance(name, str) or not name.startswith(self.prefix):
            return None
        digits = name[len(self.prefix) :]
        # isascii: "²".isdigit() is true; the length bound keeps int() away from endless digits.
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            return None
        number = int(digits)
        return number if number < self.length and str(number) == digits else None
