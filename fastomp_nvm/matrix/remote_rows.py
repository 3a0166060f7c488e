"""A matrix whose rows lie on other machines: the contract between the code that walks a matrix and the one that has it asked.

A sibling of :class:`~fastomp_nvm.matrix.pieces.PiecedRows`. It has the shape of an array and hands out the few rows that are asked
for; nothing ever pulls the whole of it. Sweeps are not run over it: the engine has ``sweep`` answer the decisions where the rows
are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.errors import RequestError

if TYPE_CHECKING:
    from fastomp_nvm.algorithms.protocol import Gradients, Query
    from fastomp_nvm.matrix.pool import ColumnPool
    from fastomp_nvm.matrix.standardisation import Standardisation

__all__ = ["Network", "RemoteRows", "network_figures", "restart_network_figures"]


@dataclass(slots=True)
class Network:
    """What crossed the network, by the size of the payloads.

    Attributes
    ----------
    sent : int
        Bytes to the shards; what all of them are given counts once per shard.
    received : int
        Bytes from the shards, gathered columns included.
    received_columns : int
        Those of gathered columns.
    calls : int
        Times the shards were asked and waited for.
    """

    sent: int = 0
    received: int = 0
    received_columns: int = 0
    calls: int = 0


class RemoteRows(ABC):
    """Rows (n_columns, n_obs) that lie elsewhere.

    Attributes
    ----------
    shape : (int, int)
    dtype : dtype
    network : Network
        Counts what crosses it, for this object and all made from it with ``under``.
    """

    ndim = 2

    def __init__(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        self.itemsize = dtype.itemsize
        self.size = shape[0] * shape[1]
        self.nbytes = self.size * self.itemsize
        self.network = Network()

    @abstractmethod
    def gather(self, columns: IndexArray, out: AnyArray) -> None:
        """Copy ``columns`` of the design (rows of the matrix), in their order, into ``out`` (n, n_obs)."""

    @abstractmethod
    def under(self, standardize: bool, weights: Float64Array | None) -> RemoteRows:
        """Return these rows such that decisions about them are taken under another standardisation."""

    @abstractmethod
    def standardisations(self, weights: Sequence[Float64Array], plain: Standardisation) -> list[Standardisation]:
        """Compute the standardisation under each of ``weights`` where the rows are, in one pass; ``plain`` is the one without."""

    @abstractmethod
    def sweep(self, vectors: Float64Array, tiered: bool) -> Callable[[Query, int, ColumnPool], Sequence[Gradients]]:
        """Return what answers a query, given where its vectors begin and the pool of its run.

        Parameters
        ----------
        vectors : (m, n_obs) float64
            All vectors of one sweep.
        tiered : bool
            Decide from the int8 tier where it decides; the answers are the same.
        """

    @abstractmethod
    def watch(self, told: Callable[[Sequence[float]], None] | None) -> None:
        """Have ``told`` called, while shards are waited for, with the share of its sweep that each has done."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> AnyArray:
        if isinstance(index, (int, np.integer)):
            row: AnyArray = self[np.array([int(index) % len(self)])][0]
            return row
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)))
        columns = np.asarray(index)
        columns = np.flatnonzero(columns) if columns.dtype == np.bool_ else columns.astype(np.int64)
        out = np.empty((len(columns), self.shape[1]), dtype=self.dtype)
        self.gather(columns, out)
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise RequestError("the matrix of a cluster stays with its shards and is not copied to one machine: leave --load out")


def network_figures(matrix: Any) -> dict[str, int]:
    """Return what a result says of the network; nothing for a matrix of this machine."""
    if not isinstance(matrix, RemoteRows):
        return {}
    network = matrix.network
    return {
        "bytes_sent": network.sent,
        "bytes_received": network.received,
        "bytes_received_columns": network.received_columns,
        "shard_calls": network.calls,
    }


def restart_network_figures(matrix: Any) -> None:
    """Count from nothing again."""
    if isinstance(matrix, RemoteRows):
        matrix.network.sent = matrix.network.received = matrix.network.received_columns = matrix.network.calls = 0
