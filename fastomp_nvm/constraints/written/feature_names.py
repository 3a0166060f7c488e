"""Indices of feature names and patterns.

A text equal to a feature's name means that feature, even if it contains wildcards; any other text is a case-sensitive shell pattern
(``*``, ``?``, ``[...]``). Patterns are resolved together, in one pass over the names per distinct length of their literal prefixes,
so a thousand prefixes over a million names take a few passes.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Sequence

import numpy as np

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.errors import near

__all__ = ["FeatureNames"]

_WILDCARD = re.compile(r"[*?\[]")


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
        """Return, per text, the sorted indices of the features it names, possibly none.

        Parameters
        ----------
        texts : sequence of str

        Returns
        -------
        list of (m,) int64
        """
        found: dict[str, Sequence[int]] = {text: [self.indices[text]] for text in texts if text in self.indices}
        # length of the literal prefix -> prefix -> patterns
        patterns: dict[int, dict[str, list[str]]] = {}
        for text in dict.fromkeys(texts):
            if text not in found and (wildcard := _WILDCARD.search(text)):
                prefix = text[: wildcard.start()]
                patterns.setdefault(len(prefix), {}).setdefault(prefix, []).append(text)
        for length, by_prefix in patterns.items():
            indices: dict[str, list[int]] = {prefix: [] for prefix in by_prefix}
            for index, name in enumerate(self.names):
                if (bucket := indices.get(name[:length])) is not None:
                    bucket.append(index)
            for prefix, same_prefix in by_prefix.items():
                for pattern in same_prefix:
                    found[pattern] = self._matching(pattern, length, indices[prefix])
        return [np.array(found.get(text, ()), dtype=np.int64) for text in texts]

    def unknown(self, text: str) -> str:
        """Return the error sentence for a text that names no feature."""
        if _WILDCARD.search(text):
            prefix = _WILDCARD.split(text, maxsplit=1)[0]
            return f"the pattern {text!r} matches no feature{near(prefix, self.names) if prefix else ''}"
        return f"there is no feature {text!r}{near(text, self.names)}"

    def _matching(self, pattern: str, length: int, indices: Sequence[int]) -> Sequence[int]:
        """Return the ``indices`` whose names match; all of them start with the first ``length`` characters of the pattern."""
        if pattern[length:] == "*":
            return indices
        matches = re.compile(fnmatch.translate(pattern)).match
        return [index for index in indices if matches(self.names[index])]
