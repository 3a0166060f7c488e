"""Selections from genotypes in place: the same as from an array and from an ingested store, filtered, resumed, and to predict."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from tests.storage.genotype_files import filled, random_genotypes, write_genotypes

N_VARIANTS, CAUSAL = 400, [3, 77, 210, 341]


def phenotypes(genotypes: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return a response to some variants."""
    noise = np.random.default_rng(seed).normal(scale=0.8, size=len(genotypes))
    return filled(genotypes)[:, CAUSAL] @ np.array([1.0, -0.8, 0.7, 0.6]) + noise


@pytest.mark.parametrize("objective", ["linear", "logistic"])
@pytest.mark.parametrize("missing", [0.0, 0.05])
@pytest.mark.parametrize("n_people", [240, 241, 242, 243])
def test_the_selection_is_that_of_an_array_and_of_a_store(tmp_path: Path, n_people: int, missing: float, objective: str) -> None:
    """Equal indices; coefficients to 1e-9 of float64 without missing genotypes, and to 1e-6 of float32 with them."""
    genotypes = random_genotypes(n_people, N_VARIANTS, seed=n_people, missing=missing)
    y = phenotypes(genotypes)
    known = np.arange(n_people) % 11 > 0  # some people have no phenotype
    target = y if objective == "linear" else np.where(y > np.median(y), 2, 1)
    write_genotypes(tmp_path / "chr1", genotypes[:, :150], [v if k else -9 for v, k in zip(target.tolist(), known, strict=True)])
    write_genotypes(tmp_path / "chr2", genotypes[:, 150:], (target * known).tolist(), [f"snp{place}" for place in range(250)])
    request: dict[str, Any] = {"k": 8, "seed": 5}
    found = fo.select(f"plink://{tmp_path}/chr@.bed", **request)
    dtype = np.float64 if missing == 0.0 else np.float32
    matrix = filled(genotypes[known]).astype(dtype)
    plain = fo.select(matrix, target[known].astype(np.float64) - (objective == "logistic"), objective=objective, **request)
    fo.create_store(f"mmap://{tmp_path}/store", filled(genotypes[known]), target[known], dtype=dtype.__name__).close()
    stored = fo.select(f"mmap://{tmp_path}/store", objective=objective, **request)
    assert found.objective == objective
    assert len(found.indices) == 8
    for other in (plain, stored):
        np.testing.assert_array_equal(found.indices, other.indices)
        np.testing.assert_allclose(found.column_coef, other.column_coef, rtol=0, atol=1e-9 if missing == 0.0 else 1e-6)
        assert found.score == pytest.approx(other.score, abs=1e-6)
    assert found.features[0] in {f"rs{place}" for place in range(150)} | {f"snp{place}" for place in range(250)}


def test_cross_validation_and_weights(tmp_path: Path) -> None:
    """Folds, weights and copies in memory agree with those of the array."""
    genotypes = random_genotypes(203, N_VARIANTS)
    y = phenotypes(genotypes)
    write_genotypes(tmp_path / "all", genotypes, y.tolist())
    matrix, url = filled(genotypes).astype(np.float32), f"plink://{tmp_path}/all.bed"
    weights = np.random.default_rng(0).integers(0, 3, 203).astype(float)
    for fields in ({"weights": weights}, {"test_fraction": 0.25}, {"quality": "verified"}, {"standardize": False}):
        plain, found = fo.select(matrix, y, k=5, **fields), fo.select(url, k=5, **fields)
        np.testing.assert_array_equal(found.indices, plain.indices)
        np.testing.assert_allclose(found.column_coef, plain.column_coef, atol=1e-5)
    np.testing.assert_array_equal(fo.select(url, k=5, load="dram").indices, fo.select(matrix, y, k=5).indices)
    here, there = fo.cross_validate(url, ks=[2, 4], folds=3), fo.cross_validate(matrix, y=y, ks=[2, 4], folds=3)
    np.testing.assert_allclose(here.scores, there.scores, rtol=1e-5)


def test_filtered_variants_are_never_selected(tmp_path: Path) -> None:
    """Rare variants and those with gaps among the people used keep their index and name, are left out, and the result says so."""
    genotypes = random_genotypes(300, 60, missing=0.0)
    y = 3.0 * genotypes[:, 7] + 2.0 * genotypes[:, 9] + np.random.default_rng(0).normal(size=300)
    genotypes[:, 20] = np.arange(300) < 6  # its frequency is 1 %
    genotypes[30:, 9] = np.where(np.arange(270) % 9, genotypes[30:, 9], np.nan)
    write_genotypes(tmp_path / "all", genotypes, y.tolist())
    plain = fo.select(f"plink://{tmp_path}/all.bed", k=2)
    assert plain.features == ["rs7", "rs9"]
    assert not {"maf", "missing_rate", "people"} & set(plain.choices)
    found = fo.select(f"plink://{tmp_path}/all.bed?maf=0.02&missing-rate=0.05", k=60)
    assert set(found.features) == {f"rs{place}" for place in range(60)} - {"rs9", "rs20"}
    assert found.choices["maf"].reason == "1 of 60 variants have a lower minor allele frequency and are never selected, rs20"
    assert found.choices["missing_rate"].reason.startswith("1 of 60 variants have a larger share of missing genotypes")


def test_the_shell_takes_filters_and_phenotypes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--target FILE:COLUMN``, ``--maf`` and ``--missing-rate`` are the URL's parameters; info, names and verify take that URL."""
    genotypes = random_genotypes(120, 50)
    y = 2.0 * filled(genotypes)[:, 7] + np.random.default_rng(0).normal(size=120)
    write_genotypes(tmp_path / "all", genotypes)
    lines = "".join(f"F{place % 7}\tI{place}\t{value}\n" for place, value in enumerate(y.tolist()) if place % 4)
    (tmp_path / "pheno.txt").write_text(f"FID\tIID\tBMI\n{lines}")
    monkeypatch.chdir(tmp_path)
    filters = ["--target", "pheno.txt:BMI", "--maf", "0.05", "--missing-rate", "0.5"]
    assert main(["select", "plink:all.bed", "--k", "1", *filters, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["features"], found["choices"]["people"]["value"], found["target"]) == (["rs7"], 90, "BMI")
    assert main(["info", "plink:all?target=pheno.txt:BMI", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["url"] == f"plink://{tmp_path}/all.bed?target={tmp_path}/pheno.txt:BMI"
    assert (facts["n_obs"], facts["bytes"], list(facts["targets"])) == (90, 50 * 30, ["BMI"])
    assert main(["info", facts["url"], "--columns", "rs7"]) == 0
    assert "rs7" in capsys.readouterr().out
    assert main(["verify", facts["url"]]) == 0
    assert main(["cv", facts["url"], "--k", "2", "--json"]) == 0


def test_a_run_is_resumed_unless_the_file_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stopped run goes on to the uninterrupted answer; on another file it stops. Nothing is written to the folder."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    folder = tmp_path / "data"
    folder.mkdir()
    genotypes = random_genotypes(150, N_VARIANTS)
    bed = write_genotypes(folder / "all", genotypes, phenotypes(genotypes).tolist())
    before = [(each.name, each.stat().st_mtime_ns) for each in sorted(folder.iterdir())]
    url, request = f"plink://{bed}?maf=0.11", {"k": 5, "algorithm": "sds_omp", "plain": True}
    expected = fo.select(url, **request)
    for name in ("whole", "stopped", "changed"):
        rounds = [0 if name == "whole" else 3]

        def cancelled(rounds: list[int] = rounds) -> bool:
            rounds[0] -= 1
            return rounds[0] == 0

        if name == "whole":
            found = fo.select(url, run=name, **request)
            np.testing.assert_array_equal(found.indices, expected.indices)
            continue
        with pytest.raises(fo.CancelledError):
            fo.select(url, run=name, cancelled=cancelled, **request)
    assert {info.name: info.status for info in fo.list_runs()} == {"whole": "finished", "stopped": "stopped", "changed": "stopped"}
    resumed = fo.resume("stopped")
    np.testing.assert_array_equal(resumed.indices, expected.indices)
    assert resumed.column_coef.tobytes() == expected.column_coef.tobytes()
    assert [(each.name, each.stat().st_mtime_ns) for each in sorted(folder.iterdir())] == before
    os.utime(bed, ns=(1, 1))
    assert main(["resume", "changed"]) == 1
    assert "holds another matrix" in capsys.readouterr().err


def test_a_model_predicts_on_other_files(tmp_path: Path) -> None:
    """Variants are found by name; all people are predicted; the other allele is turned around; gaps get the training mean."""
    genotypes = random_genotypes(200, 30)
    y = filled(genotypes)[:, [3, 8, 20]] @ [1.0, 2.0, -1.5]
    write_genotypes(tmp_path / "old", genotypes, y.tolist())
    model = fo.select(f"plink://{tmp_path}/old.bed", k=3)
    assert sorted(model.indices.tolist()) == [3, 8, 20]
    model.save(tmp_path / "model.json")
    new, order = random_genotypes(17, 30, seed=4, missing=0.3), np.random.default_rng(0).permutation(30)
    values = np.where(np.isnan(new), filled(genotypes).mean(axis=0), new)
    expected = values[:, model.indices] @ model.column_coef + model.intercept
    bed = write_genotypes(tmp_path / "new", new[:, order], ["-9", "1.5"] * 8 + ["-9"], [f"rs{place}" for place in order])
    for each in (model, fo.load(tmp_path / "model.json")):
        np.testing.assert_allclose(each.predict(f"plink://{bed}"), expected, atol=1e-6)
    swapped = np.where(order == 8, 2.0 - new[:, order], new[:, order])
    write_genotypes(tmp_path / "new", swapped, None, [f"rs{place}" for place in order])
    bim = bed.with_suffix(".bim")
    text = bim.read_text()
    bim.write_text("".join(line.replace("A\tG", "G\tA") if "\trs8\t" in line else line for line in text.splitlines(keepends=True)))
    np.testing.assert_allclose(model.predict(f"plink://{bed}"), expected, atol=1e-6)
    bim.write_text(
        "".join(line.replace("A\tG", "0\tG") if "\trs3\t" in line else line for line in bim.read_text().splitlines(True))
    )
    np.testing.assert_allclose(model.predict(f"plink://{bed}"), expected, atol=1e-6)
    bim.write_text(text.replace("A\tG", "A\tC"))
    with pytest.raises(fo.DataError, match=r"has the alleles A/C in .* and A/G in the model"):
        model.predict(f"plink://{bed}")
    bim.write_text(text.replace("rs20\t", "rs99\t"))
    with pytest.raises(fo.DataError, match="lacks the column 'rs20'"):
        model.predict(f"plink://{bed}")
    table = tmp_path / "new.csv"
    table.write_text("rs20,rs3,rs8\n" + "".join(f"{a:g},{b:g},{c:g}\n" for a, b, c in np.nan_to_num(new, nan=1)[:, [20, 3, 8]]))
    by_name = {name: np.nan_to_num(new, nan=1)[:, int(name[2:])] for name in model.features}
    expected = sum(by_name[name] * coef for name, coef in zip(model.features, model.column_coef, strict=True)) + model.intercept
    np.testing.assert_allclose(model.predict(str(table)), expected, atol=1e-6)
