"""Each feature is an edge of a graph, and selected edges must form a forest: the graphic matroid.

Features that are relations (gene-gene interactions, differences of two measurements) are redundant exactly when they close a
cycle. A candidate edge is blocked from the moment its two ends become connected. A union-find without path compression records
that moment; finding it takes a climb of logarithmic length towards the root, done for all candidates at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.constraints.base import Matroid
from fastomp_nvm.constraints.checks import array_of, whole_number
from fastomp_nvm.errors import ConstraintError

__all__ = ["Graphic"]


class Graphic(Matroid):
    """Sets of edges without a cycle. A matroid; the rank is exact.

    Written ``graphic: {edges: {age_diff: [age_1, age_2], ...}}`` or ``graphic: {edges: edges.csv}`` with columns
    ``feature,u,v``; a feature that is not listed is unrestricted.

    Parameters
    ----------
    n_features : int
    edges : (n_features, 2) int
        The two vertices of each feature, numbered from 0; (-1, -1) for a feature that is not an edge and always allowed. An edge
        from a vertex to itself is a cycle and never allowed.
    """

    def __init__(self, n_features: int, edges: npt.ArrayLike) -> None:
        self.n_features = whole_number(n_features, "the number of features")
        self.edges = _checked_edges(edges, self.n_features)
        self._is_edge = self.edges[:, 0] >= 0
        self._n_vertices = int(self.edges.max(initial=-1)) + 1
        components = self._components(np.arange(self.n_features))[0]
        self.rank = self._n_vertices - components + int((~self._is_edge).sum())

    def independent(self, features: IndexArray) -> bool:
        """Return whether the edges form a forest."""
        return self._surplus(features) == 0

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Name the number of features to leave out so that no cycle remains."""
        surplus = self._surplus(features)
        return () if surplus == 0 else (f"the selected features close cycles: {surplus} of them must be left out",)

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return the position at which the ends of the candidate become connected."""
        never = len(sequence) + 1
        component = self._components(selected)[1]
        parent, linked_at = self._links(component, sequence)
        blocked = np.full(len(candidates), never, dtype=np.int64)
        edges = np.flatnonzero(self._is_edge[candidates])
        one, other = component[self.edges[candidates[edges]]].T
        blocked[edges[one == other]] = 0
        edges, one, other = (values[one != other] for values in (edges, one, other))
        while edges.size:
            # Links nearer to the root are later, so the end with the earlier link climbs and never passes a common ancestor.
            climbs = linked_at[one] < linked_at[other]
            moment = np.where(climbs, linked_at[one], linked_at[other])
            one, other = np.where(climbs, parent[one], one), np.where(climbs, other, parent[other])
            met = one == other
            blocked[edges[met]] = moment[met]
            apart = ~met & (moment < never)  # moment == never: both ends are roots and stay apart
            edges, one, other = edges[apart], one[apart], other[apart]
        return blocked

    def _links(self, component: IndexArray, sequence: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Return each component's parent in the union-find after ``sequence``, and after how many additions it was linked to it."""
        parent = np.arange(int(component.max(initial=-1)) + 1)
        linked_at = np.full(len(parent), len(sequence) + 1, dtype=np.int64)
        up: dict[int, int] = {}  # dictionaries: indexing arrays one element at a time is ten times slower
        size: dict[int, int] = {}
        positions = np.flatnonzero(self._is_edge[sequence])
        ends = component[self.edges[sequence[positions]]].tolist()
        for position, (one, other) in zip(positions.tolist(), ends, strict=True):
            while one in up:
                one = up[one]
            while other in up:
                other = up[other]
            if size.get(one, 1) > size.get(other, 1):  # linking the smaller below the larger keeps climbs logarithmic
                one, other = other, one
            up[one] = parent[one] = other
            linked_at[one] = position + 1
            size[other] = size.get(one, 1) + size.get(other, 1)
        return parent, linked_at

    def _components(self, features: IndexArray) -> tuple[int, IndexArray]:
        """Return the number of connected components of the graph of ``features`` and the component of every vertex."""
        return _connect(self.edges[features[self._is_edge[features]]], self._n_vertices)

    def _surplus(self, features: IndexArray) -> int:
        """Return the number of edges beyond a spanning forest of ``features``."""
        edges = self.edges[features[self._is_edge[features]]]
        vertices, compact = np.unique(edges, return_inverse=True)  # the cost must not depend on the number of all vertices
        components, _ = _connect(compact.reshape(-1, 2), len(vertices))
        return len(edges) - (len(vertices) - components)


def _connect(edges: IndexArray, n_vertices: int) -> tuple[int, IndexArray]:
    """Return the number of connected components and the component of every vertex."""
    if not n_vertices:
        return 0, np.empty(0, dtype=np.int64)
    graph = coo_array((np.ones(len(edges), dtype=np.bool_), (edges[:, 0], edges[:, 1])), shape=(n_vertices, n_vertices))
    components, component = connected_components(graph, directed=False)
    return int(components), component.astype(np.int64)


def _checked_edges(edges: npt.ArrayLike, n_features: int) -> IndexArray:
    """Return the edges as a read-only (n_features, 2) array, the vertices renumbered from 0 without gaps."""
    array = array_of(edges, "the edges")
    if array.shape != (n_features, 2):
        raise ConstraintError(f"the edges have shape {array.shape}: expected ({n_features}, 2)")
    if array.size and array.dtype.kind not in "iu":
        raise ConstraintError(f"the edges are of type {array.dtype}: expected whole numbers")
    wrong = (array < 0).any(axis=1) & (array != -1).any(axis=1)
    if wrong.any():
        feature = int(wrong.argmax())
        raise ConstraintError(
            f"feature {feature} has the edge {tuple(array[feature].tolist())}: "
            "expected two vertices numbered from 0, or (-1, -1) for no edge"
        )
    vertices, compact = np.unique(array, return_inverse=True)
    checked = compact.reshape(-1, 2).astype(np.int64) - int(vertices[:1].sum() == -1)
    checked.flags.writeable = False
    return checked
