"""Real data of the benchmarks, where the machine has them: from ``FASTOMP_TEST_DATA``, Debian's packages and scikit-learn."""

from __future__ import annotations

import gzip
import os
from functools import cache
from pathlib import Path

import numpy as np

__all__ = ["diabetes", "fashion_mnist", "leukaemia_age"]

#: Folder of Debian's package ``dataset-fashion-mnist``.
DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")


@cache
def fashion_mnist() -> tuple[np.ndarray, np.ndarray] | None:
    """Return images (60000, 784) and labels (60000,), uint8, from the test data or Debian's package; None without either."""
    for folder in (Path(os.environ.get("FASTOMP_TEST_DATA", "")) / "fashion-mnist", DEBIAN_FASHION):
        if folder.is_dir():
            images, labels = (
                gzip.decompress((folder / f"train-{name}-ubyte.gz").read_bytes()) for name in ("images-idx3", "labels-idx1")
            )
            return np.frombuffer(images, np.uint8, offset=16).reshape(-1, 784), np.frombuffer(labels, np.uint8, offset=8)
    return None


@cache
def leukaemia_age() -> tuple[np.ndarray, np.ndarray] | None:
    """Return gene expression (n_obs, 12625) float32 of the patients whose age is known, and their age; None without the data."""
    path = Path(os.environ.get("FASTOMP_TEST_DATA", "")) / "all_leukemia.npz"
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as data:
        known = np.isfinite(data["age"])
        return data["X"][known], data["age"][known].astype(np.float64)


@cache
def diabetes() -> tuple[np.ndarray, np.ndarray] | None:
    """Return scikit-learn's ten measurements of 442 patients and the progress of the disease; None without scikit-learn."""
    try:
        from sklearn.datasets import load_diabetes
    except ImportError:
        return None
    X, y = load_diabetes(return_X_y=True)
    return X / X.std(axis=0), y
