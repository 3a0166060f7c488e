"""Genotypes of PLINK are used where they lie: decoded, counted and swept as the numbers that they stand for."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fastomp_nvm import native
from fastomp_nvm.errors import MediumError, StoreError, StoreURLError
from fastomp_nvm.matrix.genotypes import Genotypes, People, compact, count_codes, decode
from fastomp_nvm.matrix.reader import MatrixFile
from fastomp_nvm.matrix.rows import ArrayRows
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.open import create_store, open_store
from storage_backends.files.durable import VOLATILE_FILE_SYSTEMS, file_system_type
from storage_backends.testing.opened_contract import OpenedContract
from tests.oracles import plink_genotypes
from tests.storage.genotype_files import filled, random_genotypes, write_genotypes

IMPLEMENTATIONS = [
    pytest.param(True, id="reference"),
    pytest.param(False, id="compiled", marks=pytest.mark.skipif(not native.extension, reason="the extension is not built")),
]


@pytest.mark.skipif(
    file_system_type(tempfile.gettempdir()) in VOLATILE_FILE_SYSTEMS, reason="the temporary directory is not on a disk"
)
class TestPlink(OpenedContract):
    medium = "plink"
    durability = "power"

    def make_url(self, directory: Path) -> str:
        return f"plink://{directory}/some%20people.bed"

    @pytest.fixture
    def values(self) -> np.ndarray:
        return random_genotypes(40, 600, missing=0.0)

    def create(self, url: str, values: np.ndarray, y: np.ndarray | None = None) -> FeatureStore:
        write_genotypes(Path(url.removeprefix("plink://").replace("%20", " ").removesuffix(".bed")), values, y)
        return open_store(url)

    def test_nothing_is_built_in_place(self, url: str) -> None:
        """No store can be made at such an address."""
        with pytest.raises(StoreURLError, match="only read: build the store at mmap"):
            create_store(url, np.eye(3))

    def test_other_parameters_are_refused(self, url: str, values: np.ndarray) -> None:
        """A parameter that is none, or has no such value, is an error and not ignored."""
        self.create(url, values).close()
        for suffix in ("?colour=blue", "?dtype=int8", "?maf=2", "?missing-rate=few", "?target=height", "#part"):
            with pytest.raises(ValueError, match=r"expected|takes none"):
                open_store(url + suffix)


@pytest.mark.parametrize("reference", IMPLEMENTATIONS)
@pytest.mark.parametrize("n_people", [1, 2, 3, 4, 5, 7, 8, 9, 31, 66, 64, 257])
def test_every_code_in_every_place_is_decoded_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_people: int, reference: bool
) -> None:
    """Values, missing ones, moments and counts are those of the oracle, for all people and for some."""
    if reference:
        monkeypatch.setattr(native, "extension", None)
    genotypes = np.random.default_rng(n_people).choice([0.0, 1.0, 2.0, np.nan], (n_people, 40))
    genotypes[:, 0] = np.nan
    genotypes[:, 1] = 2.0
    bed = write_genotypes(tmp_path / "all", genotypes, padding=3)
    np.testing.assert_array_equal(plink_genotypes(bed.read_bytes(), n_people, 40), genotypes)
    codes = np.frombuffer(bed.read_bytes(), np.uint8, offset=3).reshape(40, -1)
    for used in (None, np.arange(0, n_people, 2), np.flatnonzero(np.random.default_rng(1).random(n_people) < 0.8)):
        people, known = People(n_people, used), genotypes[slice(None) if used is None else used]
        for dtype in (np.float32, np.float64):
            out = np.empty((40, len(known)), dtype)
            decode(compact(codes, people), np.tile([2.0, 0.3, 1.0, 0.0], (40, 1)), out)
            np.testing.assert_array_equal(out, np.where(np.isnan(known), dtype(0.3), known).T)
        expected = [np.isnan(known), known == 1.0, known == 0.0]
        np.testing.assert_array_equal(count_codes(codes, people).T, [each.sum(axis=0) for each in expected])


def test_a_decode_that_does_not_fit_is_refused() -> None:
    """Arguments of the compiled functions are checked before anything is written."""
    if not native.extension:
        pytest.skip("the extension is not built")
    codes, values, out = np.zeros((2, 3), np.uint8), np.zeros((2, 4)), np.zeros((2, 9), np.float32)
    native.extension.decode(codes, 9, values, out)
    for people, to in ((13, np.zeros((2, 13))), (9, out[:, :8].copy()), (-1, out)):
        with pytest.raises(ValueError, match=r"people|person"):
            native.extension.decode(codes, people, values, to)
    mask = np.array([0x33, 0x00, 0xF0], np.uint8)
    native.extension.compact(codes, mask, np.zeros((2, 1), np.uint8))
    for wrong, to in ((mask, np.zeros((2, 2), np.uint8)), (mask ^ np.uint8(1), np.zeros((2, 1), np.uint8)), (mask[:2], codes)):
        with pytest.raises(ValueError, match=r"mask"):
            native.extension.compact(codes, wrong, to)
    with pytest.raises(ValueError, match="mask"):
        native.extension.count_codes(codes, np.zeros(2, np.uint8), np.zeros((2, 3), np.int64))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("some", [False, True])
def test_products_have_the_bits_of_an_array(tmp_path: Path, dtype: str, some: bool) -> None:
    """Sweeps with few and many vectors, wide columns, gathers and slices equal those of the decoded matrix, bit for bit."""
    genotypes = random_genotypes(1203, 70)
    phenotypes = np.where(np.arange(1203) % 5, 1.5, -9) if some else None
    write_genotypes(tmp_path / "all", genotypes, phenotypes)
    known = genotypes[np.arange(1203) % 5 > 0] if some else genotypes
    with open_store(f"plink://{tmp_path}/all.bed?dtype={dtype}") as store:
        rows, expected = store.matrix, np.ascontiguousarray(filled(known).T.astype(dtype))
        assert (rows.shape, rows.dtype, store.layout.n_obs) == (expected.shape, expected.dtype, len(known))
        assert rows[:].tobytes() == expected.tobytes()
        np.testing.assert_array_equal(rows[3], expected[3])
        np.testing.assert_array_equal(rows[[5, 2, 5]], expected[[5, 2, 5]])
        np.testing.assert_array_equal(np.asarray(rows), expected)
        wide = np.arange(70) % 3 == 1
        for count in (1, 5, 70):
            vectors = Vectors(np.random.default_rng(count).normal(size=(len(known), count)), np.dtype(dtype))
            for threads in (1, 2):
                sweeper = Sweeper(threads)
                assert sweeper.dots(rows, vectors, wide).tobytes() == sweeper.dots(ArrayRows(expected), vectors, wide).tobytes()
        columns = np.array([69, 0, 7, 7, 33])
        assert Sweeper(2).gather(rows, columns).tobytes() == expected[columns].tobytes()


@pytest.mark.parametrize("io", ["mmap", "direct"])
def test_every_way_to_read_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, io: str) -> None:
    """Sweeps and gathers read in small blocks, through the page cache or past it, give the same numbers."""
    genotypes = random_genotypes(333, 500)
    write_genotypes(tmp_path / "all", genotypes)
    monkeypatch.setattr("fastomp_nvm.matrix.genotypes.BLOCK_BYTES", 700)
    monkeypatch.setattr("fastomp_nvm.matrix.reader.BLOCK_BYTES", 700)
    vectors = Vectors(np.random.default_rng(0).normal(size=(333, 2)), np.dtype(np.float32))
    with open_store(f"plink://{tmp_path}/all.bed") as store:
        expected = filled(genotypes).T.astype(np.float32)
        rows = store.matrix.reading(io)
        found = Sweeper(2).dots(rows, vectors, np.zeros(500, bool))
        assert found.tobytes() == Sweeper(1).dots(ArrayRows(expected), vectors, np.zeros(500, bool)).tobytes()
        columns = np.random.default_rng(1).permutation(500)
        np.testing.assert_array_equal(Sweeper(2).gather(rows, columns), expected[columns])


@pytest.mark.parametrize("reference", IMPLEMENTATIONS)
def test_moments_come_from_whole_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: bool) -> None:
    """Mean, norm, range, allele frequency and missingness are those of the people used, missing genotypes at the mean."""
    if reference:
        monkeypatch.setattr(native, "extension", None)
    genotypes = random_genotypes(101, 60, missing=0.2)
    genotypes[:, 4], genotypes[:, 5] = np.nan, 1.0
    write_genotypes(tmp_path / "all", genotypes, np.where(np.arange(101) % 3, 0.25, -9))
    known = genotypes[np.arange(101) % 3 > 0]
    with open_store(f"plink://{tmp_path}/all.bed") as store:
        full, found = filled(known), store.statistics
        np.testing.assert_allclose(found.mean, full.mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(found.norm, np.linalg.norm(full - full.mean(axis=0), axis=0), rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(found.norm[4:6], 0.0)
        full[:, 4] = 0.0
        keep = np.arange(60) != 4
        np.testing.assert_array_equal(found.minimum[keep], np.nanmin(known[:, keep], axis=0))
        np.testing.assert_array_equal(found.maximum[keep], np.nanmax(known[:, keep], axis=0))
        counts = store._survey.counts
        frequency = np.nansum(known, axis=0) / np.maximum(2 * (~np.isnan(known)).sum(axis=0), 1)
        np.testing.assert_allclose(counts.minor_frequency(), np.minimum(frequency, 1 - frequency), atol=1e-15)
        np.testing.assert_array_equal(counts.missing_rate(), np.isnan(known).mean(axis=0))
        np.testing.assert_array_equal(store.missing(np.array([4, 0])), np.isnan(known[:, [4, 0]]).T)


def test_a_file_is_surveyed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are kept outside the folder until the file changes or other people are used."""
    bed = write_genotypes(tmp_path / "all", random_genotypes(50, 30))
    long_ago = 10**18
    os.utime(bed, ns=(long_ago, long_ago))
    monkeypatch.setattr("storage_backends.files.checked._COARSEST_SECONDS", -1)  # the file is known to be old
    surveys: list[int] = []
    survey = Genotypes.survey
    monkeypatch.setattr(Genotypes, "survey", lambda self, *rest: (surveys.append(1), survey(self, *rest))[1])
    before = sorted(tmp_path.iterdir())
    for _ in range(3):
        with open_store(f"plink://{bed}") as store:
            mean = store.statistics.mean
    assert len(surveys) == 1
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "pheno.txt").write_text("IID h\n" + "".join(f"I{number} {number}.5\n" for number in range(20)))
    with open_store(f"plink://{bed}?target={tmp_path}/pheno.txt:h") as store:
        assert (store.layout.n_obs, len(store.statistics.mean)) == (20, 30)
    assert len(surveys) == 2
    write_genotypes(tmp_path / "all", random_genotypes(50, 30, seed=1))
    with open_store(f"plink://{bed}") as store:
        assert (store.statistics.mean != mean).any()
    assert len(surveys) == 3


def test_a_damaged_record_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record with a flipped bit, cut off, or unreadable is made again."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("storage_backends.files.checked._COARSEST_SECONDS", -1)
    bed = write_genotypes(tmp_path / "all", random_genotypes(50, 30))
    with open_store(f"plink://{bed}") as store:
        expected = store.statistics.mean
    (record,) = (tmp_path / "home").rglob("*.counts")
    content = record.read_bytes()
    flipped = bytearray(content)
    flipped[60] ^= 1
    for damaged in (bytes(flipped), content[:-9], b""):
        record.write_bytes(damaged)
        with open_store(f"plink://{bed}") as store:
            np.testing.assert_array_equal(store.statistics.mean, expected)
        assert record.read_bytes() == content


def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are then not kept, and the store declares that logs of runs survive nothing."""
    bed = write_genotypes(tmp_path / "all", random_genotypes(50, 30))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "file" / "home"))
    with open_store(f"plink://{bed}") as store:
        assert store.traits.durability == "none"
        assert len(store.statistics.mean) == 30
        store.verify()


def test_verify_finds_a_byte_that_changed_by_itself(tmp_path: Path) -> None:
    """Codes that differ from those first read are named, although size and time of the file are the same."""
    bed = write_genotypes(tmp_path / "all", random_genotypes(50, 30))
    with open_store(f"plink://{bed}") as store:
        store.verify()
        times = os.stat(bed)
        with open(bed, "r+b") as file:
            file.seek(3 + 7 * 13 + 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 4]))
        os.utime(bed, ns=(times.st_atime_ns, times.st_mtime_ns))
        with pytest.raises(StoreError, match=r"variant 8 \('rs7'\)"):
            store.verify()


def test_a_file_that_changes_in_use_is_an_error(tmp_path: Path) -> None:
    """A changed file and one that is cut off stop a sweep with a sentence, and with no signal."""
    bed = write_genotypes(tmp_path / "all", random_genotypes(5000, 300))
    vectors = Vectors(np.ones((5000, 1)), np.dtype(np.float32))
    with open_store(f"plink://{bed}") as store:
        _ = store.statistics
        os.utime(bed, ns=(5, 5))
        with pytest.raises(StoreError, match="was changed while it was in use"):
            Sweeper(1).dots(store.matrix, vectors, np.zeros(300, bool))
    with open_store(f"plink://{bed}") as store:
        _ = store.statistics
        os.truncate(bed, 10_000)
        for io in ("mmap", "direct"):
            with pytest.raises(MediumError, match="lost its end"):
                Sweeper(2).dots(store.matrix.reading(io), vectors, np.zeros(300, bool))
        with pytest.raises(MediumError, match="lost its end"):
            _ = store.matrix[299]


def test_files_open_with_odd_offsets_are_looked_up_in_the_page_cache(tmp_path: Path) -> None:
    """The share of a file that is in memory is known although its rows begin at the fourth byte."""
    bed = write_genotypes(tmp_path / "all", random_genotypes(3001, 300))
    with open(bed, "rb") as file:
        file.read()
    mapped = np.memmap(bed, np.uint8, "r", 3, (300, 751))
    share = MatrixFile(mapped, 3, lambda flags: os.open(bed, flags)).resident_share()
    assert share == pytest.approx(1.0, abs=0.05)
