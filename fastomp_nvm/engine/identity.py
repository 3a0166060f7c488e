"""What the bits of an answer depend on beside the data, and a digest of the targets: the identity of a durable run."""

from __future__ import annotations

import hashlib
import json
import platform

import numpy as np
import scipy

from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.matrix.threads import blas_libraries
from fastomp_nvm.objectives import compiled
from fastomp_nvm.stores.contract import BLOCK_COLUMNS

__all__ = ["numeric_build", "sweep_build", "target_digest"]


def numeric_build(kernel: str) -> dict[str, str]:
    """Return what the bits of an answer depend on beside the request and the data: those of sweeps, and what computes the rest."""
    return {**sweep_build(kernel), "fits": compiled.fits(), "rounds": compiled.rounds()}


def sweep_build(kernel: str) -> dict[str, str]:
    """Return what the bits of a sweep, its decisions and its columns depend on beside the data: all that a shard computes.

    The kernel and the grid of blocks; the BLAS behind NumPy and SciPy with the processor it was tuned for, which stands for the
    instruction set that NumPy's own loops choose too; and their releases. Not the number of threads of a sweep, which changes no
    bit.
    """
    return {
        "kernel": kernel,
        "block": str(BLOCK_COLUMNS),
        "blas": "; ".join(blas_libraries()) or "unknown",
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "machine": platform.machine(),
    }


def target_digest(dataset: Dataset) -> str:
    """Return a digest of the store's targets, which its fingerprint does not cover."""
    digest = hashlib.blake2b(digest_size=16)
    for name, target in dataset.targets.items():
        digest.update(json.dumps([name, *target.classes]).encode("ascii"))
        digest.update(np.ascontiguousarray(target.values, dtype="<f8").tobytes())
    return digest.hexdigest()
