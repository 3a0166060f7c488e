"""Feature names and patterns, turned into indices.

A text that is a feature's name means that feature, whatever signs it holds; any other is a shell pattern (``*``, ``?``, ``[...]``,
case matters). All patterns of a description are resolved together: names are looked up once per distinct length of the patterns'
literal beginnings, so a thousand prefixes over a million names are a few passes, not a thousand.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import re
from collections.abc import Iterable, Sequence

import numpy as np

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.constraints.written.document import near

__all__ = ["FeatureNames"]

_WILDCARD = re.compile(r"[*?\[]")

# Names that are compared to find a near match; comparing a million would take minutes.
_MOST_COMPARED = 20_000


class FeatureNames:
    """The names of all features.

    Parameters
    ----------
    names : sequence of str
        In the order of the features, without repetition.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    @functools.cached_property
    def indices(self) -> dict[str, int]:
        """Index of each name."""
        return {name: index for index, name in enumerate(self.names)}

    def resolve(self, texts: Sequence[str]) -> list[IndexArray]:
        """Return, per text, the sorted indices of the features it names; none where it names nothing.

        Parameters
        ----------
        texts : sequence of str

        Returns
        -------
        list of (m,) int64
        """
        found: dict[str, Sequence[int]] = {text: [self.indices[text]] for text in texts if text in self.indices}
        # literal beginning -> its patterns, by the length of the beginning
        patterns: dict[int, dict[str, list[str]]] = {}
        for text in dict.fromkeys(texts):
            if text not in found and (wildcard := _WILDCARD.search(text)):
                beginning = text[: wildcard.start()]
                patterns.setdefault(len(beginning), {}).setdefault(beginning, []).append(text)
        for length, by_beginning in patterns.items():
            begins: dict[str, list[int]] = {beginning: [] for beginning in by_beginning}
            for index, name in enumerate(self.names):
                if (bucket := begins.get(name[:length])) is not None:
                    bucket.append(index)
            for beginning, indices in begins.items():
                for pattern in by_beginning[beginning]:
                    found[pattern] = self._matching(pattern, length, indices)
        return [np.array(found.get(text, ()), dtype=np.int64) for text in texts]

    def unknown(self, text: str) -> str:
        """Return the sentence for a text that names no feature."""
        if _WILDCARD.search(text):
            beginning = _WILDCARD.split(text, maxsplit=1)[0]
            return f"the pattern {text!r} matches no feature{near(beginning, self._comparable(beginning)) if beginning else ''}"
        return f"there is no feature {text!r}{near(text, self._comparable(text))}"

    def _matching(self, pattern: str, length: int, indices: Sequence[int]) -> Sequence[int]:
        """Return those of ``indices``, whose names share the pattern's beginning, that match all of it."""
        if pattern[length:] == "*":
            return indices
        matches = re.compile(fnmatch.translate(pattern)).match
        return [index for index in indices if matches(self.names[index])]

    def _comparable(self, text: str) -> Iterable[str]:
        """Return names worth comparing with ``text``: all, or those with the same first letter where there are too many."""
        if len(self.names) <= _MOST_COMPARED:
            return self.names
        return itertools.islice((name for name in self.names if name[:1] == text[:1]), _MOST_COMPARED)
