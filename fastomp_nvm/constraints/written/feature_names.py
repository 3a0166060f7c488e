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
from fastomp_nvm.errors import ConstraintError, near
from fastomp_nvm.limits import PATTERN_CHARACTERS, PATTERN_COMPARISONS, checkpoint

__all__ = ["FeatureNames"]

_WILDCARD = re.compile(r"[*?\[]")
#: Names compared between two looks at the clock.
_STEP = 10_000
#: Characters of a text that an error shows.
_SHOWN = 100
_NONE: IndexArray = np.empty(0, dtype=np.int64)


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

        Raises
        ------
        ConstraintError
            A pattern is too long, or there are too many patterns for this number of names.
        """
        found: dict[str, Sequence[int]] = {text: [self.indices[text]] for text in texts if text in self.indices}
        # length of the literal prefix -> prefix -> patterns
        patterns: dict[int, dict[str, list[str]]] = {}
        for text in dict.fromkeys(texts):
            if text not in found and (wildcard := _WILDCARD.search(text)):
                if len(text) > PATTERN_CHARACTERS:
                    raise ConstraintError(
                        f"the pattern {_shortened(text)} has {len(text)} characters, at most {PATTERN_CHARACTERS} are possible"
                    )
                prefix = text[: wildcard.start()]
                patterns.setdefault(len(prefix), {}).setdefault(prefix, []).append(text)
        comparisons = len(patterns) * len(self)
        for length, by_prefix in patterns.items():
            _check_work(comparisons)
            indices: dict[str, list[int]] = {prefix: [] for prefix in by_prefix}
            for index, name in enumerate(self.names):
                if (bucket := indices.get(name[:length])) is not None:
                    bucket.append(index)
            comparisons += sum(len(indices[prefix]) * len(same_prefix) for prefix, same_prefix in by_prefix.items())
            _check_work(comparisons)
            for prefix, same_prefix in by_prefix.items():
                for pattern in same_prefix:
                    found[pattern] = self._matching(pattern, length, indices[prefix])
        arrays = {text: np.array(indices, dtype=np.int64) for text, indices in found.items()}
        return [arrays.get(text, _NONE) for text in texts]

    def unknown(self, text: str) -> str:
        """Return the error sentence for a text that names no feature."""
        if _WILDCARD.search(text):
            prefix = _WILDCARD.split(text, maxsplit=1)[0]
            return f"the pattern {_shortened(text)} matches no feature{near(prefix, self.names) if prefix else ''}"
        return f"there is no feature {_shortened(text)}{near(text[:_SHOWN], self.names)}"

    def _matching(self, pattern: str, length: int, indices: Sequence[int]) -> Sequence[int]:
        """Return the ``indices`` whose names match; all of them start with the first ``length`` characters of the pattern."""
        if pattern[length:] == "*":
            return indices
        matches = re.compile(fnmatch.translate(pattern)).match
        found: list[int] = []
        for first in range(0, len(indices), _STEP):
            checkpoint()
            found += [index for index in indices[first : first + _STEP] if matches(self.names[index])]
        return found


def _check_work(comparisons: int) -> None:
    """Raise ``ConstraintError`` where patterns are compared with names too often; stop with the request."""
    checkpoint()
    if comparisons > PATTERN_COMPARISONS:
        raise ConstraintError(
            f"the patterns take {comparisons} comparisons with names, at most {PATTERN_COMPARISONS} are possible: "
            "use fewer patterns, or begin them with letters instead of wildcards"
        )


def _shortened(text: str) -> str:
    """Return a text for an error, cut where it is long."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."
