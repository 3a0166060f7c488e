"""The randomly generated p-system of the paper's experiments.

The paper does not define it. Here it is the intersection of ``p`` partition matroids, each of which assigns every feature to one of
``n_groups`` groups at random and allows ``cap`` features of each group. It is a p-system by construction, and it binds when
``cap * n_groups`` is near the wanted size. Equal seeds give equal systems on every machine and under every version of NumPy.
"""

from __future__ import annotations

import numpy as np

from fastomp_nvm.constraints.checks import whole_number
from fastomp_nvm.constraints.intersection import Intersection
from fastomp_nvm.constraints.partition import Partition
from fastomp_nvm.random_keys import mix

__all__ = ["RandomSystem"]

_MOST_MATROIDS = 100


class RandomSystem(Intersection):
    """The intersection of ``p`` random partition matroids.

    Written ``random: {p: 2, groups: 100, cap: 3, seed: 0}``.

    Parameters
    ----------
    n_features : int
    p : int
        Number of partition matroids, at most 100.
    n_groups : int
        Groups of each of them, at most as many as features.
    cap : int
        Features allowed from each group.
    seed : int
        Feature ``s`` is in group ``mix(seed, matroid, s) % n_groups``, see :mod:`fastomp_nvm.random_keys`.
    """

    def __init__(self, n_features: int, *, p: int, n_groups: int, cap: int, seed: int = 0) -> None:
        features = np.arange(whole_number(n_features, "the number of features"), dtype=np.int64)
        # The limits bound memory, because descriptions may come from clients of a server.
        n_matroids = whole_number(p, "p", minimum=1, maximum=_MOST_MATROIDS)
        n_groups = whole_number(n_groups, "the number of groups", minimum=1, maximum=max(len(features), 1))
        caps = np.full(n_groups, whole_number(cap, "the cap"), dtype=np.int64)
        seed = whole_number(seed, "the seed")
        super().__init__(
            [
                Partition(
                    len(features),
                    (mix((seed, matroid), features) % np.uint64(n_groups)).astype(np.int64),
                    caps,
                    names=[f"{matroid}.{group}" for group in range(n_groups)],
                )
                for matroid in range(n_matroids)
            ]
        )
