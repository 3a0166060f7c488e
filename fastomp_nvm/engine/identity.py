"""Identity of a durable run: the software that the bits of an answer depend on, and a digest of the targets."""

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
    """Return the software that the bits of an answer depend on: that of sweeps, of fits and of inner rounds."""
    return {**sweep_build(kernel), "fits": compiled.fits(), "rounds": compiled.rounds()}


def sweep_build(kernel: str) -> dict[str, str]:
    """Return the software that the bits of a sweep, its decisions and its columns depend on: everything a shard computes.

    The kernel and the grid of blocks; the BLAS behind NumPy and SciPy with the processor type it selected, which also identifies
    the instruction set of NumPy's own loops; and their releases. The number of threads of a sweep changes no bit.
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
