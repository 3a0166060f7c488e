"""The ``plink`` medium: genotypes in ``.bed`` files as a read-only store, where they lie.

Nothing is written to the files or their folders. Counts of genotypes, checksums and logs of runs are kept in ``FASTOMP_HOME``.
"""

from __future__ import annotations

import hashlib
import math
import os
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np

from fastomp_nvm.arrays import AnyArray, BoolArray, IndexArray
from fastomp_nvm.durable_files import device_errors
from fastomp_nvm.errors import DataError, RequestError, StoreError, StoreURLError, near
from fastomp_nvm.home import home
from fastomp_nvm.matrix.choice import Choice
from fastomp_nvm.matrix.genotypes import Genotypes, People
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.stores.contract import BLOCK_COLUMNS, DurableRegion, FeatureStore, MediumTraits, StoreDraft, StoreLayout, Target
from fastomp_nvm.stores.encoding import ColumnEncoding, TableEncoding
from fastomp_nvm.stores.url import StoreURL
from storage_backends.files.durable import file_system_type
from storage_backends.files.regions import DirectoryRegions
from storage_backends.media.mmap import sync_durability
from storage_backends.plink.bed import BedFile, absolute, find_beds
from storage_backends.plink.counts import Survey, folder_of, survey
from storage_backends.plink.tables import Phenotype, fam_phenotype, read_phenotype, variant_names

__all__ = ["MEDIUM", "PlinkMedium", "PlinkStore"]

#: Parameters of a URL.
_PARAMETERS = ("dtype", "maf", "missing-rate", "target")

#: Name of the phenotype of a .fam.
_FAM_TARGET = "phenotype"

#: Left-out variants that are named.
_NAMED = 5


class PlinkMedium:
    """Stores that are files of PLINK."""

    def open(self, url: StoreURL) -> FeatureStore:
        """Open the files that a URL names."""
        for parameter in url.query:
            if parameter not in _PARAMETERS:
                expected = ", ".join(_PARAMETERS)
                raise StoreURLError(
                    f"unknown parameter {parameter!r} in {url.text!r}{near(parameter, _PARAMETERS)}: expected {expected}"
                )
        if url.fragment:
            raise StoreURLError(f"{url.text!r} ends in a fragment and plink takes none: write '#' in a path as %23")
        return PlinkStore([BedFile(path) for path in find_beds(url.path)], url)

    def draft(self, url: StoreURL, n_columns: int, n_obs: int, dtype: str, *, replace: bool, tier: str = "none") -> StoreDraft:
        """Refuse to build a store."""
        raise StoreURLError(f"{url.text} names genotypes where they lie, which are only read: build the store at mmap:///path")

    def exists(self, url: StoreURL) -> bool:
        """Return whether the files exist."""
        try:
            return all(map(os.path.isfile, find_beds(url.path)))
        except StoreURLError:
            return False


class PlinkStore(FeatureStore):
    """Genotypes in ``.bed`` files of the same people.

    Parameters
    ----------
    beds : sequence of BedFile
    url : StoreURL
        With the parameters ``target`` (``FILE:COLUMN``, or ``none`` for all people), ``maf``, ``missing-rate`` and ``dtype``.
    """

    # Plain attributes of the class, so that they override the abstract properties of the contract.
    __slots__ = ("column_names", "layout", "names", "targets", "traits", "url")
    layout: StoreLayout
    names: Sequence[str]
    column_names: Sequence[str]
    targets: Mapping[str, Target]
    traits: MediumTraits
    url: str

    def __init__(self, beds: Sequence[BedFile], url: StoreURL) -> None:
        self._beds, first = beds, beds[0]
        for bed in beds[1:]:
            if bed.fam.people != first.fam.people:
                raise DataError(f"the people of {bed.path} are not those of {first.path}, in the same order: make them the same")
        self._least, self._most = (_share(url, name) for name in ("maf", "missing-rate"))
        dtype = url.query.get("dtype", "float32")
        if dtype not in ("float32", "float64"):
            raise StoreURLError(f"dtype is {dtype!r} in {url.text!r}: expected float32 or float64")
        wanted = url.query.get("target")
        name, phenotype = _phenotype(beds, wanted)
        known = np.ones(len(first.fam.people), dtype=np.bool_) if phenotype is None else phenotype.known
        self._people = People(len(known), None if known.all() else np.flatnonzero(known))
        self.targets = {} if phenotype is None else {name: phenotype.target}
        for target in self.targets.values():
            target.values.flags.writeable = False
        self.url = _address(url)
        self._places = [place for bed in beds for place in bed.variants.places]
        self.names = self.column_names = variant_names([each for bed in beds for each in bed.variants.names], self._places)
        self.traits = _traits()
        n, digest = len(self.names), hashlib.blake2b(dtype.encode() + self._people.mask.tobytes(), digest_size=16)
        for bed in beds:
            digest.update(bed.fingerprint())
        blocks = np.append(np.arange(0, n, BLOCK_COLUMNS), n)
        self.layout = StoreLayout(self._people.n_used, dtype, np.arange(n + 1, dtype=np.int64), blocks, digest.hexdigest())
        self._rows: Genotypes | None = Genotypes(
            [bed.file for bed in beds], self._people, np.dtype(dtype), lambda: self._survey.counts, self._unchanged
        )
        for array in (self.layout.offsets, self.layout.blocks):
            array.flags.writeable = False

    @property
    def matrix(self) -> AnyArray:
        """``Genotypes``, (n_variants, n_used), indexed like an array."""
        if self._rows is None:
            raise StoreError(f"the store {self.url} is closed: open it again")
        return self._rows  # type: ignore[return-value]

    @cached_property
    def _survey(self) -> Survey:
        """Counts and checksums of all variants; read in one pass unless they are known."""
        return survey(self._beds, self._genotypes(), self._people)

    @cached_property
    def statistics(self) -> ColumnStatistics:
        """Moments of each variant over the people used."""
        found = self._survey.counts.statistics()
        for array in (found.mean, found.norm, found.minimum, found.maximum):
            array.flags.writeable = False
        return found

    def load_tier(self) -> None:
        """Refuse: there is no tier."""
        raise StoreURLError(f"{self.url} is used where it lies and has no int8 tier: leave --tier-load out")

    @property
    def encoding(self) -> TableEncoding:
        """Every variant is a number, and a missing one its mean."""
        return _VariantEncoding(missing="mean", store=self)

    @cached_property
    def ids(self) -> Sequence[str]:
        """Identifiers of the people used: their own, with that of the family where two families share one."""
        people = self._beds[0].fam.people
        shared = len({person for _, person in people}) < len(people)
        names = [f"{family}:{person}" if shared else person for family, person in people]
        return names if self._people.used is None else [names[place] for place in self._people.used.tolist()]

    @cached_property
    def _left_out(self) -> Mapping[str, tuple[Choice, BoolArray]]:
        """The variants that each filter excludes, and the words for it."""
        found: dict[str, tuple[Choice, BoolArray]] = {}
        if self._least is not None:
            rare = self._survey.counts.minor_frequency() < self._least
            found["maf"] = Choice(f"{self._least:g}", self._named(rare, "a lower minor allele frequency")), rare
        if self._most is not None:
            gappy = self._survey.counts.missing_rate() > self._most
            found["missing_rate"] = Choice(f"{self._most:g}", self._named(gappy, "a larger share of missing genotypes")), gappy
        return found

    @property
    def choices(self) -> Mapping[str, Choice]:
        """The people and the variants that are left out."""
        total, used = self._people.total, self._people.n_used
        people = {"people": Choice(used, f"{total - used} of {total} have no value of the target")} if used < total else {}
        return people | {name: choice for name, (choice, _) in self._left_out.items()}

    @property
    def excluded(self) -> IndexArray:
        """Variants never to select."""
        masks = [mask for _, mask in self._left_out.values()]
        return np.flatnonzero(np.logical_or.reduce(masks)) if masks else np.empty(0, dtype=np.int64)

    def complete(self) -> PlinkStore:
        """Return a store with all people, those without a value of the target included."""
        if self._people.used is None:
            return self
        url = StoreURL.parse(self.url)
        return PlinkStore([BedFile(bed.path) for bed in self._beds], StoreURL.parse(_with(url, {**url.query, "target": "none"})))

    def alleles(self, column: int) -> tuple[str, str]:
        """Return the allele whose copies a column counts, and the other one."""
        _, _, counted, other = self._places[column].split(":", 3)
        return counted, other

    def missing(self, columns: IndexArray) -> BoolArray:
        """Return which genotypes of ``columns`` are missing, (c, n_obs)."""
        return self._genotypes().missing(columns)

    @property
    def unchecked(self) -> str:
        """Why columns are not compared with checksums when they are read."""
        return "the file belongs to another program: 'fastomp verify' compares it with what was read first"

    def region(self, name: str, size: int = 0) -> DurableRegion:
        """Open the durable region ``name``, in ``FASTOMP_HOME``; create it with ``size`` bytes when it is absent."""
        return self._regions().region(name, size)

    def regions(self) -> Sequence[str]:
        """Names of the durable regions that exist, in order."""
        return self._regions().regions()

    def drop_region(self, name: str) -> None:
        """Remove a durable region."""
        self._regions().drop_region(name)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read all codes again and compare them with the checksums of when they were first read."""
        rows, before = self._genotypes(), self._survey.checksums
        first = 0
        for bed, (_, now) in zip(self._beds, rows.survey(Sweeper(), progress), strict=True):
            wrong = np.flatnonzero(now != before[first : first + len(now)])
            if wrong.size:
                name = self.names[first + int(wrong[0])]
                raise StoreError(
                    f"{bed.path} is damaged: variant {int(wrong[0]) + 1} ({name!r}) is not what it was when it was first read, "
                    "although the file was not changed since; restore the file"
                )
            first += len(now)

    def close(self) -> None:
        """Release the files."""
        self._rows = None

    def _genotypes(self) -> Genotypes:
        """Return the rows; raise when the store is closed."""
        _ = self.matrix
        assert self._rows is not None
        return self._rows

    def _regions(self) -> DirectoryRegions:
        """Return the regions of these files."""
        _ = self.matrix
        with device_errors("make a folder for logs of runs"):
            return DirectoryRegions(folder_of([bed.path for bed in self._beds]))

    def _unchanged(self) -> None:
        """Raise ``StoreError`` where a file was changed since it was opened."""
        for bed in self._beds:
            bed.check()

    def _named(self, mask: BoolArray, what: str) -> str:
        """Return the words for variants that are left out."""
        places = np.flatnonzero(mask).tolist()
        names = ", ".join(self.names[place] for place in places[:_NAMED])
        more = f", {names}{', ...' if len(places) > _NAMED else ''}" if places else ""
        return f"{len(places)} of {len(self.names)} variants have {what} and are never selected{more}"

    def __reduce__(self) -> NoReturn:
        raise StoreError(f"the store {self.url} cannot be pickled: send its url and open it there")


@dataclass(frozen=True, slots=True, eq=False)
class _VariantEncoding(TableEncoding):
    """The encoding of a store of variants: those that are asked for are written out, with their alleles."""

    store: PlinkStore | None = None

    def restricted(self, columns: Iterable[str]) -> TableEncoding:
        """Return the encoding of some variants."""
        assert self.store is not None
        pairs = {name: self.store.alleles(self.store.names.index(name)) for name in columns}
        return TableEncoding(
            {name: ColumnEncoding(format=f"allele {counted} {other}") for name, (counted, other) in pairs.items()}, "mean"
        )


def _phenotype(beds: Sequence[BedFile], wanted: str | None) -> tuple[str, Phenotype | None]:
    """Return the name and the values of the target: of the .fam, of ``FILE:COLUMN``, or none."""
    fam, path = beds[0].fam, beds[0].path.removesuffix(".bed") + ".fam"
    if wanted == "none":
        return "", None
    if wanted is None:
        return _FAM_TARGET, fam_phenotype(fam, path)
    file, colon, column = wanted.rpartition(":")
    if not (colon and file and column):
        raise StoreURLError(f"target is {wanted!r}: expected FILE:COLUMN, or none for all people")
    return column, read_phenotype(file, column, fam.people)


def _traits() -> MediumTraits:
    """Return the properties of files in place, whose durable regions are in ``FASTOMP_HOME``."""
    try:
        place = str(home())
    except (OSError, RuntimeError):
        return MediumTraits("plink", "none", False, "genotypes in place; no folder for logs of runs")
    kind = file_system_type(place)
    return MediumTraits("plink", sync_durability(kind), False, f"genotypes in place; logs of runs in {place} on {kind}")


def _share(url: StoreURL, name: str) -> float | None:
    """Return a share given in a URL."""
    text = url.query.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 1.0:
        raise RequestError(f"{name} is {text!r}: expected a number from 0 to 1")
    return value


def _address(url: StoreURL) -> str:
    """Return the URL with absolute paths."""
    query = dict(url.query)
    file, colon, column = query.get("target", "").rpartition(":")
    if colon:
        query["target"] = f"{os.path.abspath(file)}:{column}"
    return _with(url, query)


def _with(url: StoreURL, query: Mapping[str, str]) -> str:
    """Return a URL of the same files with another query."""
    parameters = urllib.parse.urlencode(query, safe="/:")
    return f"plink://{urllib.parse.quote(absolute(url.path), safe='/@')}{'?' if parameters else ''}{parameters}"


MEDIUM = PlinkMedium()
