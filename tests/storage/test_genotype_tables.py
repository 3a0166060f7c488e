"""Variants, people and phenotypes of PLINK's text files, and sentences for files that cannot be used."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fastomp_nvm.cli.main import main
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.stores.open import open_store
from storage_backends.plink.tables import variant_names
from tests.storage.genotype_files import filled, random_genotypes, write_genotypes


@pytest.fixture
def bed(tmp_path: Path) -> Path:
    """Return a file of 21 people and 12 variants."""
    return write_genotypes(tmp_path / "all", random_genotypes(21, 12), range(1, 22))


def test_every_variant_has_a_name_of_its_own() -> None:
    """Nameless and repeated variants are named by place and alleles, and numbered where that is repeated as well."""
    names = ["rs1", ".", "rs2", "rs2", ".", ".", "1:9:A:G", "1:9:A:G#2"]
    places = ["1:1:A:G", "1:2:A:G", "1:3:A:G", "1:4:C:T", "1:9:A:G", "1:9:A:G", "1:9:A:G", "1:10:A:G"]
    found = variant_names(names, places)
    assert found[:4] == ["rs1", "1:2:A:G", "1:3:A:G", "1:4:C:T"]
    assert found[4:] == ["1:9:A:G", "1:9:A:G#3", "1:9:A:G#4", "1:9:A:G#2"]


@pytest.mark.parametrize(
    ("written", "values", "classes"),
    [
        (["1", "2", "-9", "2", "0", "1"], [0.0, 1.0, None, 1.0, None, 0.0], ("control", "case")),
        (["1.5", "-9", "0", "2", "NA", "-9.0"], [1.5, None, 0.0, 2.0, None, None], ()),
        (["-9", "0", "0", "-9", "NA", "0"], None, ()),
    ],
)
def test_the_phenotype_of_a_fam(
    tmp_path: Path, written: list[str], values: list[float | None] | None, classes: tuple[str, ...]
) -> None:
    """1 and 2 are control and case beside 0 and -9, other numbers are values, and people without one are left out."""
    genotypes = random_genotypes(6, 4)
    bed = write_genotypes(tmp_path / "all", genotypes, written)
    with open_store(f"plink://{bed}") as store:
        if values is None:
            assert (dict(store.targets), store.layout.n_obs) == ({}, 6)
            return
        known = [place for place, value in enumerate(values) if value is not None]
        assert store.targets["phenotype"].classes == classes
        assert store.targets["phenotype"].values.tolist() == [values[place] for place in known]
        assert list(store.ids) == [f"I{place}" for place in known]
        np.testing.assert_array_equal(store.matrix[:], filled(genotypes[known]).T.astype(np.float32))
        assert store.complete().layout.n_obs == 6
    with open_store(f"plink://{bed}?target=none") as store:
        assert (dict(store.targets), store.layout.n_obs) == ({}, 6)


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("FID IID age height\nF1 I1 3 150.5\nF0 I0 4 140\n\nF5 I5 9 NA\nF3 I3 9 -9\nF6 I6 1 -3\nnobody I9 1 1\n", "height"),
        ("#IID\theight\nI6\t-3\nI1\t150.5\nI0\t140\n", "height"),
        ("F1 I1 3 150.5\nF0 I0 4 140\nF6 I6 1 -3\n", "2"),
    ],
)
def test_a_phenotype_is_joined_by_person(tmp_path: Path, bed: Path, text: str, column: str) -> None:
    """Lines are found by FID and IID, or IID, in any order; people without a value are left out."""
    (tmp_path / "pheno.txt").write_text(text)
    with open_store(f"plink://{bed}?target={tmp_path}/pheno.txt:{column}") as store:
        assert list(store.ids) == ["I0", "I1", "I6"]
        assert store.targets[column].values.tolist() == [140.0, 150.5, -3.0]
        assert store.choices["people"].value == 3


@pytest.mark.parametrize(
    ("text", "column", "sentence"),
    [
        ("FID IID height\nF1 I1 3\n", "heigth", "no column 'heigth' (did you mean 'height'?)"),
        ("F1 I1 3\n", "height", "expected 1 to 1"),
        ("F1 I1 3\n", "2", "expected 1 to 1"),
        ("FID IID height\nF1 I1 tall\n", "height", "'tall', which is no number"),
        ("FID IID height\nF1 I1 inf\n", "height", "'inf', which is no number"),
        ("FID IID height\nF1 I1\n", "height", "person 1 of"),
        ("FID IID height\nF1 I1 3\nF1 I1 4\n", "height", "F1 I1 twice"),
        ("FID IID height\nF2 I1 3\n", "height", "for any of the 21 people"),
        ("", "height", "expected 1 to"),
    ],
)
def test_a_phenotype_that_cannot_be_used(tmp_path: Path, bed: Path, text: str, column: str, sentence: str) -> None:
    """The file and what is wrong with it are named."""
    (tmp_path / "pheno.txt").write_text(text)
    with pytest.raises(DataError) as caught:
        open_store(f"plink://{bed}?target={tmp_path}/pheno.txt:{column}")
    assert sentence in str(caught.value)


def test_chromosomes_make_one_store(tmp_path: Path) -> None:
    """Files of the same people are one store, 1 to 26 in their order and then the others; repeated names are told apart."""
    genotypes = random_genotypes(13, 30)
    for chromosome, first in (("X", 20), ("2", 0), ("10", 10)):
        names = [f"rs{number}" for number in range(10)]
        write_genotypes(tmp_path / f"chr{chromosome}", genotypes[:, first : first + 10], names=names, chromosome=first)
    write_genotypes(tmp_path / "chrother", random_genotypes(9, 3))
    with open_store(f"plink://{tmp_path}/chr@.bed") as store:
        np.testing.assert_array_equal(store.matrix[:], filled(genotypes).T.astype(np.float32))
        np.testing.assert_array_equal(store.matrix[[25, 3, 11]], filled(genotypes).T[[25, 3, 11]].astype(np.float32))
        np.testing.assert_allclose(store.statistics.mean, filled(genotypes).mean(axis=0))
        assert store.names[0] == "0:1:A:G"
        assert len(set(store.names)) == 30
        store.verify()
        with open_store(store.url) as again:
            assert again.layout.fingerprint == store.layout.fingerprint
    write_genotypes(tmp_path / "chr3", random_genotypes(13, 3)[::-1], [1.5] * 13)
    (tmp_path / "chr3.fam").write_text("".join(reversed((tmp_path / "chr2.fam").read_text().splitlines(keepends=True))))
    with pytest.raises(DataError, match=r"the people of .*chr3.bed are not those of"):
        open_store(f"plink://{tmp_path}/chr@.bed")


SAMPLE_MAJOR = b"\x6c\x1b\x00"


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("all.bed", lambda data: data[:-1], "one of the three is cut off"),
        ("all.bed", lambda data: data + b"\0", "one of the three is cut off"),
        ("all.bed", lambda data: data[:2], "is no genotype file of PLINK 1"),
        ("all.bed", lambda data: b"", "it begins with nothing"),
        ("all.bed", lambda data: b"chr1\t100\t200\n", "is no genotype file of PLINK 1"),
        ("all.bed", lambda data: SAMPLE_MAJOR + data[3:], "sample-major"),
        ("all.bed", gzip.compress, "is compressed, and is used where it lies: unpack it first (gunzip)"),
        ("all.bed", lambda data: b"\x28\xb5\x2f\xfd" + data, "unpack it first (unzstd)"),
        ("all.bim", lambda data: b"\n".join(data.split(b"\n")[1:]), "11 variants"),
        ("all.bim", lambda data: data + b"1 rs99\n", "line 13 of"),
        ("all.bim", lambda data: b"", "all.bim is empty"),
        ("all.bim", gzip.compress, "is not text in UTF-8"),
        ("all.fam", lambda data: b"\n".join(data.split(b"\n")[5:]), "16 people"),
        ("all.fam", lambda data: data + data[:30].split(b"\n")[0] + b"\n", "twice"),
        ("all.fam", lambda data: b"", "all.fam is empty"),
        ("all.fam", lambda data: data.replace(b" 3\n", b" tall\n"), "'tall', which is no number"),
        ("all.fam", None, "a .bed needs all.bim and all.fam beside it"),
        ("all.bed", None, "there is no store at"),
    ],
)
def test_files_that_cannot_be_used(bed: Path, capsys: pytest.CaptureFixture[str], name: str, change, sentence: str) -> None:
    """One line that names the file and the fault, and exit code 2."""
    path = bed.with_name(name)
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    assert main(["select", f"plink://{bed}", "--k", "2"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    with pytest.raises(InputError):
        open_store(f"plink://{bed}")


def test_a_compressed_file_is_named_by_what_it_is(bed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also under its own extension."""
    bed.with_name("all.bed.gz").write_bytes(gzip.compress(bed.read_bytes()))
    assert main(["info", f"plink://{bed}.gz"]) == 2
    assert "is compressed" in capsys.readouterr().err
    assert main(["info", f"plink://{bed.parent}/chr@.bed"]) == 2
    assert "for any chromosome" in capsys.readouterr().err


def test_a_plain_path_of_a_bed_is_a_store(bed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``chr.bed`` needs no scheme, with filters or without."""
    monkeypatch.chdir(bed.parent)
    for words in (["info", "all.bed"], ["select", "all.bed", "--k", "1"], ["select", "all.bed", "--k", "1", "--maf", "0.01"]):
        assert main([*words, "--json"]) == 0
        assert '"plink"' in capsys.readouterr().out


def test_what_needs_a_built_store_says_so(bed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shards, tiers and checksums are parts of stores that were built."""
    for words in (["shard", str(bed), f"{bed}-shards", "--into", "2"], ["select", str(bed), "--k", "1", "--tier-load", "dram"]):
        assert main(words) == 2
        assert "is used where it lies" in capsys.readouterr().err
    assert not bed.with_name("all.bed-shards").exists()
    assert main(["verify", f"plink://{bed}", "--add-checksums"]) == 1
    assert "checksums are added to stores in files alone" in capsys.readouterr().err


def test_filters_are_for_genotypes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another store has no allele frequencies."""
    assert main(["select", str(tmp_path), "--k", "2", "--maf", "0.1"]) == 2
    assert "--maf is for genotypes in place" in capsys.readouterr().err
