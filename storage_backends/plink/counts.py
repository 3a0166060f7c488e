"""Counts of genotypes and checksums of variants, kept in ``FASTOMP_HOME`` so that a file is surveyed once.

A record holds for one file and one set of people, as long as device, inode, size and times of change of the file are the same. It
is an economy: where it cannot be read or written, the file is surveyed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastomp_nvm.arrays import UInt32Array
from fastomp_nvm.durable_files import write_atomically
from fastomp_nvm.home import home
from fastomp_nvm.matrix.genotypes import Counts, Genotypes, People
from fastomp_nvm.matrix.sweeper import Sweeper
from storage_backends.plink.bed import BedFile

__all__ = ["Survey", "folder_of", "survey"]

_MAGIC = b"fastomp-genotypes-1\n"


class Survey(NamedTuple):
    """The counts of all variants, and the CRC-32 of the codes of each, (n,)."""

    counts: Counts
    checksums: UInt32Array


def folder_of(paths: Sequence[str]) -> Path:
    """Return the folder in ``FASTOMP_HOME`` for what belongs to these files, which exists."""
    digest = hashlib.blake2b("\0".join(paths).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    folder = home() / "in_place" / digest
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def survey(
    beds: Sequence[BedFile],
    rows: Genotypes,
    people: People,
    progress: Callable[[int, int], None] | None = None,
    *,
    again: bool = False,
) -> Survey:
    """Return the survey of all files, from records where they hold for all of them, otherwise (or ``again``) from one pass."""
    keys = [_key(bed, people) for bed in beds]
    found = [] if again else [_read(bed, key, people) for bed, key in zip(beds, keys, strict=True)]
    known = [each for each in found if each is not None]
    if len(known) < len(beds):
        known = [Survey(*each) for each in rows.survey(Sweeper(), progress)]
        for bed, key, each in zip(beds, keys, known, strict=True):
            _write(bed, key, people, each)
    counts = Counts(people.n_used, *(np.concatenate([each.counts[field] for each in known]) for field in (1, 2, 3)))
    return Survey(counts, np.concatenate([each.checksums for each in known]))


def _key(bed: BedFile, people: People) -> bytes:
    """Return the digest of a file's identity and the people used."""
    return hashlib.blake2b(repr((bed.identity, people.total)).encode() + people.mask.tobytes(), digest_size=16).digest()


def _place(bed: BedFile, people: People) -> Path:
    """Return the place of the record."""
    return folder_of([bed.path]) / f"{hashlib.blake2b(people.mask.tobytes(), digest_size=8).hexdigest()}.counts"


def _read(bed: BedFile, key: bytes, people: People) -> Survey | None:
    """Return the survey in a record, None where there is none for this file as it is."""
    count = len(bed.file.array)
    with contextlib.suppress(OSError, RuntimeError):  # no record, or no home
        place = _place(bed, people)
        if place.stat().st_size != len(_MAGIC) + 20 + 16 * count:
            return None
        data = place.read_bytes()
        if not data.startswith(_MAGIC + key) or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            return None
        table = np.frombuffer(data, "<u4", 4 * count, len(_MAGIC) + 16).reshape(4, count)
        return Survey(Counts(people.n_used, *table[:3].astype(np.int64)), table[3].astype(np.uint32))
    return None


def _write(bed: BedFile, key: bytes, people: People, found: Survey) -> None:
    """Keep a survey, where that is possible."""
    body = _MAGIC + key + np.array([*found.counts[1:], found.checksums], dtype="<u4").tobytes()
    with contextlib.suppress(OSError, RuntimeError):  # no space, or no home
        write_atomically(_place(bed, people), body + zlib.crc32(body).to_bytes(4, "little"), durable=False)
