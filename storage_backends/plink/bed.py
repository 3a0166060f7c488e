"""The ``.bed`` files behind a store: found, checked against ``.bim`` and ``.fam``, and opened for reads of whole variants."""

from __future__ import annotations

import functools
import hashlib
import mmap
import os
import re
from collections.abc import Sequence

import numpy as np

from fastomp_nvm.durable_files import device_errors
from fastomp_nvm.errors import DataError, StoreError, StoreURLError
from fastomp_nvm.limits import check_regular
from fastomp_nvm.matrix.reader import MatrixFile
from storage_backends.files.checked import Identity, identity_of
from storage_backends.plink.tables import Fam, Variants, read_fam, read_variants

__all__ = ["BedFile", "absolute", "find_beds"]

#: The first bytes of a .bed; the third is 1 where it holds variant by variant, and 0 where it holds person by person.
_MAGIC, _HEADER = b"\x6c\x1b", 3

#: First bytes of compressed files.
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"\x28\xb5": "unzstd"}

#: What ``@`` stands for: a chromosome.
_CHROMOSOME = r"(\d{1,2}|X|Y|XY|MT|M)"


def absolute(path: str) -> str:
    """Return the absolute path of a .bed, whose extension may be left out."""
    if "\0" in path:
        raise StoreURLError(f"{path!r} contains a null character, which a path cannot")
    return os.path.abspath(path if path.endswith(".bed") or os.path.isfile(path) else f"{path}.bed")


def find_beds(path: str) -> list[str]:
    """Return the files that ``path`` names: one, or with ``@`` for the chromosome all that exist, 1 to 26 first; real paths."""
    path = absolute(path)
    folder, name = os.path.split(path)
    if "@" not in name or os.path.isfile(path):
        return [os.path.realpath(path)]
    pattern = re.compile(_CHROMOSOME.join(map(re.escape, name.split("@", 1))))
    try:
        matches = [found for entry in os.listdir(folder) if (found := pattern.fullmatch(entry))]
    except OSError as error:
        raise StoreURLError(f"the folder of {path} cannot be read: {error.strerror}") from error
    if not matches:
        raise StoreURLError(f"there is no file {path} for any chromosome (@ stands for 1 to 26, X, Y, XY or MT)")
    order = sorted(matches, key=lambda found: (not found[1].isdigit(), found[1].zfill(2)))
    return [os.path.realpath(os.path.join(folder, found[0])) for found in order]


class BedFile:
    """One ``.bed`` with its ``.bim`` and ``.fam``.

    Parameters
    ----------
    path : str

    Attributes
    ----------
    path : str
    variants : Variants
    fam : Fam
    file : MatrixFile
        Of the codes, (n_variants, bytes) uint8.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        check_regular(path)
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            reason = "there is no store at" if isinstance(error, FileNotFoundError) else f"{error.strerror}:"
            raise StoreURLError(f"{reason} {path}: give the path of a PLINK .bed file") from error
        with device_errors(f"read {path}"):
            _check_header(os.pread(self._descriptor, _HEADER, 0), path)
            self._opened = self._stat()
            self.identity: Identity = identity_of(self._descriptor)
        stem = path.removesuffix(".bed")
        self.variants: Variants = read_variants(f"{stem}.bim")
        self.fam: Fam = read_fam(f"{stem}.fam")
        n_variants, n_people = len(self.variants.names), len(self.fam.people)
        if not n_variants or not n_people:
            raise DataError(f"{stem}.{'fam' if n_variants else 'bim'} is empty: a store needs variants and people")
        width, size = -(-n_people // 4), self._opened[1]
        if size != _HEADER + n_variants * width:
            raise DataError(
                f"{path} has {size:,} bytes, and {n_variants:,} variants in its .bim of {n_people:,} people in its .fam take "
                f"{_HEADER + n_variants * width:,}: one of the three is cut off, or they do not belong together"
            )
        with device_errors(f"read {path}"):
            mapping = mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ)
            codes = np.frombuffer(mapping, np.uint8, n_variants * width, _HEADER).reshape(n_variants, width)
            self.file = MatrixFile(codes, _HEADER, functools.partial(os.open, f"/proc/self/fd/{self._descriptor}"))

    def __del__(self) -> None:
        if (descriptor := getattr(self, "_descriptor", -1)) >= 0:
            os.close(descriptor)

    def fingerprint(self) -> bytes:
        """Return a digest of the file's inode, size and time of change, and of the content of its ``.bim``."""
        return hashlib.blake2b(repr(self._opened).encode() + self.variants.digest, digest_size=16).digest()

    def check(self) -> None:
        """Raise ``StoreError`` where the file was changed since it was opened."""
        with device_errors(f"look at {self.path}"):
            if self._stat() != self._opened:
                raise StoreError(f"{self.path} was changed while it was in use: leave it alone and start again")

    def _stat(self) -> Sequence[int]:
        """Return inode, size and time of change."""
        found = os.fstat(self._descriptor)
        return found.st_ino, found.st_size, found.st_mtime_ns


def _check_header(header: bytes, path: str) -> None:
    """Raise ``DataError`` unless a file begins as a .bed that holds variant by variant."""
    if header[:2] in _COMPRESSED:
        raise DataError(f"{path} is compressed, and is used where it lies: unpack it first ({_COMPRESSED[header[:2]]})")
    if len(header) < _HEADER or header[:2] != _MAGIC or header[2] > 1:
        raise DataError(f"{path} is no genotype file of PLINK 1: it begins with {header.hex(' ') or 'nothing'} and not 6c 1b 01")
    if header[2] == 0:
        stem = os.path.basename(path).removesuffix(".bed")
        raise DataError(
            f"{path} holds person by person (sample-major): 'plink1.9 --bfile {stem} --make-bed --out NEW' turns it around"
        )
