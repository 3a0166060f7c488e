"""Bits of a stored matrix are flipped one at a time, and every way of reading it must give the right answer or refuse.

``python -m tests.harness.flipped_bits`` flips 1,500 bits of the matrix, and of the tier, for every way: through the mapping and
directly, with the tier and without, over shards. Exit code 1 when one answer is wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import fastomp_nvm as fo
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import StoreError
from fastomp_nvm.stores.contract import FeatureStore
from storage_backends.build.sharding import cut
from storage_backends.files import format as store_format
from tests.cluster.in_process import open_in_process

__all__ = ["WAYS", "FlippedBits", "main"]

#: Ways to read: how the store is opened, how its files are read, and whether the tier decides.
WAYS = [(place, io, tier) for place, io in (("file", "mmap"), ("file", "direct"), ("shards", "auto")) for tier in ("exact", "int8")]


class FlippedBits:
    """A store, its shards, and the answers they give while they are whole.

    Parameters
    ----------
    folder : Path
    seed : int
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(60, 300))
        y = X[:, :8] @ rng.normal(size=8) + rng.normal(size=60)
        self.store = folder / "store"
        with fo.create_store(str(self.store), X, y) as store:
            self.manifest = cut(store.url, str(folder / "cut"), 2)
        self._files = {"file": [self.store], "shards": sorted(path for path in self.manifest.parent.iterdir() if path.is_dir())}
        self._expected = {way: self._answer(*way) for way in WAYS}

    def run(self, count: int) -> Counter[tuple[str, str]]:
        """Flip ``count`` bits of matrices and of tiers for each way; count what came of it: right, refused or wrong."""
        tally: Counter[tuple[str, str]] = Counter()
        for way in WAYS:
            for name in (store_format.MATRIX, store_format.TIER):
                for _ in range(count):
                    with self.flipped(self._chance.choice(self._files[way[0]]) / name):
                        tally[" ".join(way) + f", {name}", self._outcome(way)] += 1
        return tally

    @contextmanager
    def flipped(self, path: Path) -> Iterator[None]:
        """Flip a random bit of the data of a file for the duration of a ``with``."""
        size = path.stat().st_size
        place, bit = self._chance.randrange(store_format.DATA_OFFSET, size), 1 << self._chance.randrange(8)

        def flip() -> None:
            with path.open("r+b") as file:
                file.seek(place)
                byte = file.read(1)[0]
                file.seek(place)
                file.write(bytes([byte ^ bit]))

        flip()
        try:
            yield
        finally:
            flip()

    def _outcome(self, way: tuple[str, str, str]) -> str:
        try:
            return "right" if self._answer(*way) == self._expected[way] else "wrong"
        except StoreError as error:
            if "does not match its checksum" not in str(error):
                raise
            return "refused"

    def _answer(self, place: str, io: str, tier: str) -> tuple[list[int], list[float]]:
        opened: Callable[[], FeatureStore] = {
            "file": lambda: fo.open_store(str(self.store)),
            "shards": lambda: open_in_process(self.manifest),
        }[place]
        with opened() as store:
            found = fo.select(Dataset.of_store(store, io), k=6, tier=tier)
            return found.indices.tolist(), found.coef.tolist()


def main(words: Sequence[str] | None = None) -> int:
    """Flip bits, print what came of it, and fail where an answer was wrong."""
    parser = argparse.ArgumentParser(prog="flipped_bits", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=1500, help="bits to flip per way and file (default 1500)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(words)
    folder = Path(tempfile.mkdtemp())
    try:
        tally = FlippedBits(folder, arguments.seed).run(arguments.flips)
    finally:
        shutil.rmtree(folder)
    for (way, outcome), count in sorted(tally.items()):
        print(f"{way:<28} {outcome:<8} {count:>6,}")
    wrong = sum(count for (_, outcome), count in tally.items() if outcome == "wrong")
    print(f"{wrong} wrong answers of {sum(tally.values()):,}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
