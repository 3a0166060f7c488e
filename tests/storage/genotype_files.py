"""Files of PLINK made by tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

_CODES = {0.0: 3, 1.0: 2, 2.0: 0}


def random_genotypes(n_people: int, n_variants: int, seed: int = 0, missing: float = 0.03) -> np.ndarray:
    """Return counts of an allele, (n_people, n_variants), NaN where missing."""
    generator = np.random.default_rng(seed)
    found = generator.binomial(2, generator.uniform(0.1, 0.9, n_variants), (n_people, n_variants)).astype(float)
    found[generator.random(found.shape) < missing] = np.nan
    return found


def write_genotypes(
    stem: Path,
    genotypes: np.ndarray,
    phenotypes: Sequence[object] | None = None,
    names: Sequence[str] | None = None,
    chromosome: int = 1,
    padding: int = 0,
) -> Path:
    """Write ``stem``.bed, .bim and .fam and return the .bed; ``padding`` is the code of the entries behind the last person."""
    n_people, n_variants = genotypes.shape
    codes = np.full((n_variants, -(-n_people // 4) * 4), padding, dtype=np.uint8)
    for (person, variant), value in np.ndenumerate(genotypes):
        codes[variant, person] = _CODES.get(float(value), 1)
    four = codes.reshape(n_variants, -1, 4)
    data = four[:, :, 0] | four[:, :, 1] << 2 | four[:, :, 2] << 4 | four[:, :, 3] << 6
    bed = Path(f"{stem}.bed")
    bed.write_bytes(b"\x6c\x1b\x01" + data.astype(np.uint8).tobytes())
    names = [f"rs{number}" for number in range(n_variants)] if names is None else names
    lines = [f"{chromosome}\t{name}\t0\t{place}\tA\tG\n" for place, name in enumerate(names, start=1)]
    Path(f"{stem}.bim").write_text("".join(lines))
    values = ["-9"] * n_people if phenotypes is None else phenotypes
    Path(f"{stem}.fam").write_text("".join(f"F{number % 7} I{number} 0 0 1 {value}\n" for number, value in enumerate(values)))
    return bed


def filled(genotypes: np.ndarray) -> np.ndarray:
    """Return genotypes with the mean of the variant in place of missing ones."""
    with np.errstate(invalid="ignore"):
        means = np.nansum(genotypes, axis=0) / np.maximum((~np.isnan(genotypes)).sum(axis=0), 1)
    return np.where(np.isnan(genotypes), means, genotypes)
