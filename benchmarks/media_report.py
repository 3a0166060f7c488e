"""Figures and one HTML page of the media benchmark: which medium, which algorithm, what does it cost."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.machine import Bar
from benchmarks.paper_report import STYLE
from fastomp_nvm.errors import UnavailableError
from fastomp_nvm.matrix.pacing import PROFILES

__all__ = ["media_bars", "noise_sentence", "write_report"]

COLOURS = {
    ("fast_omp", "exact"): "#d62728",
    ("fast_omp", "int8"): "#ff9896",
    ("sds_omp", "exact"): "#1f77b4",
    ("sds_omp", "int8"): "#aec7e8",
}

#: On top of the page's: notes are sentences, everything else stays on a line.
NOTES = """
body { max-width: 80rem; } table { font-size: .85em; } td { white-space: nowrap; }
td:last-child, th:last-child { white-space: normal; text-align: left; min-width: 14rem; }
"""

#: Beyond this factor between the quickest and the slowest the axis of a figure is logarithmic.
WIDE = 30

#: Repetitions from which quantiles mean something.
FEW = 5

#: What exceeding the memory may cost: over the run in DRAM with the tier loaded, over passes x bytes / bandwidth without.
TIER_BAR, EXACT_BAR = 2.0, 1.3

TITLES = {
    "small": "The paper's small set, far smaller than memory",
    "large": "The paper's large set scaled down, smaller than memory",
    "excess": "Four times the memory allowed",
}

Rows = list[dict[str, Any]]


def write_report(folder: Path, rows: Rows, machine: dict[str, Any]) -> Path:
    """Write a figure per data set and the page; return the page.

    Parameters
    ----------
    rows : list of dict
        As in ``media.jsonl``.
    machine : dict
        What it ran on.
    """
    try:
        import matplotlib as mpl

        mpl.use("Agg")
    except ImportError as error:
        raise UnavailableError("the figures need matplotlib: pip install 'fastomp-nvm[report]'") from error
    parts = []
    for name in dict.fromkeys(row["data"] for row in rows):
        mine = [row for row in rows if row["data"] == name]
        measured = [row for row in mine if "seconds" in row]
        if measured:
            _figure(folder / f"{name}.png", measured)
        parts.append(_section(name, mine, measured))
    title = "What a selection costs on each medium"
    facts = ", ".join(f"{html.escape(str(key))} {html.escape(str(value))}" for key, value in machine.items())
    page = folder / "media.html"
    page.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}{NOTES}</style><h1>{title}</h1>"
        "<p>Every row is a process of its own and gives the median over its repetitions, after one that does not count where the "
        "medium is warm. Copying into DRAM is not part of the time and is given beside it. The selected features are the same on "
        f"every medium{_agreement(rows)}.</p><p class=note>Emulated persistent memory is a mapping of an ordinary or in-memory "
        "file system, without the latencies of a real device. At Optane pace, reads from the same mapping are held back to what is "
        f"published of {html.escape(PROFILES['optane'].description)}: an emulation of its reading time, nothing more.</p>"
        f"{''.join(parts)}<p class=note>{facts}</p></html>",
        encoding="utf-8",
    )
    return page


def media_bars(rows: Rows) -> list[Bar]:
    """Judge a run: the same features on every medium, and what exceeding the memory costs."""
    excess = [row for row in rows if row["data"] == "excess" and "seconds" in row]
    claim = "answers that depend on the medium or the tier"
    return [Bar(claim, len(_differing(rows)), 0, at_most=True), *_excess_bars(excess)]


def _excess_bars(rows: Rows) -> list[Bar]:
    """Judge what exceeding the memory costs."""
    bars = []
    for algorithm in ("fast_omp", "sds_omp"):
        dram, tiered = _find(rows, "dram", algorithm, "exact"), _find(rows, "mmap, limited, tier in DRAM", algorithm, "int8")
        if dram and tiered:
            claim = f"{algorithm.upper()}, tier in DRAM: times the all-in-DRAM run"
            bars.append(Bar(claim, tiered["seconds"] / dram["seconds"], TIER_BAR, at_most=True))
        if exact := _find(rows, "mmap, limited", algorithm, "exact"):
            claim = f"{algorithm.upper()}, exact only: times passes x bytes / device bandwidth"
            ratio = exact["seconds"] * exact["device_bytes_per_second"] / exact["bytes_read"]
            bars.append(Bar(claim, ratio, EXACT_BAR, at_most=True))
    return bars


def _agreement(rows: Rows) -> str:
    """Return what contradicts that the medium does not change the answer; nothing when nothing does."""
    differing = _differing(rows)
    return f", except for {', '.join(differing)}, which is a defect" if differing else " and tier (checked)"


def _differing(rows: Rows) -> list[str]:
    """Return the data sets and algorithms whose features depend on the medium or the tier."""
    answers: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for row in rows:
        if "indices" in row:
            answers.setdefault((row["data"], row["algorithm"]), set()).add(tuple(row["indices"]))
    return [f"{data}/{algorithm}" for (data, algorithm), found in answers.items() if len(found) > 1]


def _figure(path: Path, rows: Rows) -> None:
    """Draw seconds per medium, a bar for each algorithm and tier, with the range of the repetitions."""
    from matplotlib import pyplot

    media = list(dict.fromkeys(row["medium"] for row in rows))
    kinds = [kind for kind in COLOURS if any((row["algorithm"], row["tier"]) == kind for row in rows)]
    figure, axis = pyplot.subplots(figsize=(11, 1.2 + 0.75 * len(media)))
    height = 0.8 / len(kinds)
    for place, kind in enumerate(kinds):
        for row in rows:
            if (row["algorithm"], row["tier"]) == kind:
                level = media.index(row["medium"]) + (place - (len(kinds) - 1) / 2) * height
                spread = [[row["seconds"] - min(row["all_seconds"])], [max(row["all_seconds"]) - row["seconds"]]]
                axis.barh(level, row["seconds"], height * 0.9, xerr=spread, color=COLOURS[kind], error_kw={"lw": 0.8})
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLOURS[kind]) for kind in kinds]
    names = [f"{algorithm.upper()}, {tier}" for algorithm, tier in kinds]
    figure.legend(handles, names, loc="lower center", ncols=len(names), frameon=False)
    axis.set_yticks(range(len(media)), media)
    axis.invert_yaxis()
    least, most = (extreme(row["seconds"] for row in rows) for extreme in (min, max))
    if most > WIDE * least > 0:
        axis.set(xscale="log", xlim=(least / 2, 2 * most), xlabel="seconds (logarithmic)")
        axis.xaxis.set_major_formatter("{x:g}")
    else:
        axis.set(xlabel="seconds")
    axis.grid(alpha=0.3, axis="x")
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _section(name: str, rows: Rows, measured: Rows) -> str:
    """Return the HTML of one data set: what was found, figure, table."""
    size = next(
        (f"{row['n_obs']:,} x {row['n_features']:,}, {row['bytes'] / 1e6:,.0f} MB, k = {row['k']}" for row in rows if "k" in row),
        "",
    )
    asked = next((row.get("asked", {}) for row in rows if row.get("algorithm") == "fast_omp"), {})
    settings = ", ".join(f"{key} {value}" for key, value in asked.items()) or "its defaults"
    parts = [f"<h2>{html.escape(TITLES.get(name, name))}</h2><p>{size}; FAST_OMP with {html.escape(settings)}</p>"]
    sentences = _excess_sentences(measured) if name == "excess" else [noise_sentence(measured), *_cost_sentences(measured)]
    parts += [f"<p>{html.escape(sentence)}</p>" for sentence in sentences if sentence]
    if measured:
        parts.append(f"<img src={name}.png alt='seconds per medium'>")
    heads = ("medium", "algorithm", "tier", "seconds", "least to most", "load s", "passes", "GB read", "peak MB", "score", "note")
    parts.append("<table><tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>")
    for row in sorted(rows, key=lambda row: "skipped" in row):
        if "seconds" not in row:
            cells = [
                row["medium"],
                row.get("algorithm", ""),
                row.get("tier", ""),
                "skipped",
                "",
                "",
                "",
                "",
                "",
                "",
                row["skipped"],
            ]
        else:
            note = "; ".join(filter(None, [row.get("limit", ""), row["detail"] if row["emulated"] else ""]))
            cells = [
                row["medium"],
                row["algorithm"].upper(),
                row["tier"],
                f"{row['seconds']:.3f}",
                f"{min(row['all_seconds']):.3f} to {max(row['all_seconds']):.3f}",
                f"{row['load_seconds']:.2f}",
                f"{row['passes']:.1f}",
                f"{row['bytes_read'] / 1e9:.2f}",
                f"{row['peak_memory'] / 1e6:.0f}" if row["peak_memory"] else "",
                f"{row['score']:.4f}",
                note,
            ]
        parts.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    parts.append("</table>")
    return "".join(parts)


def _find(rows: Rows, medium: str, algorithm: str, tier: str) -> dict[str, Any] | None:
    """Return the row of a cell."""
    return next((row for row in rows if (row["medium"], row["algorithm"], row["tier"]) == (medium, algorithm, tier)), None)


def noise_sentence(rows: Rows) -> str:
    """Say whether persistent memory and DRAM differ by more than the noise.

    The noise of a pair is the larger of the factors that the repetitions of either cell spread over. What other cells do, and one
    slow repetition among many, is no reason to call a steady difference noise.
    """
    parts = []
    for algorithm, tier in COLOURS:
        dram = _find(rows, "dram", algorithm, tier)
        media = ("tmpfs-pmem", "pmem, Optane pace", "pmem")
        others = [found for medium in media if (found := _find(rows, medium, algorithm, tier))]
        if dram is None or not others:
            continue
        for other in others:
            noise = max(_spread(dram["all_seconds"]), _spread(other["all_seconds"]))
            ratio = other["seconds"] / dram["seconds"]
            verdict = "within" if max(ratio, 1 / ratio) <= noise else "beyond"
            parts.append(f"{other['medium']} {algorithm.upper()} {tier} {ratio:.2f} ({verdict} a noise of {noise:.2f})")
    if not parts:
        return ""
    kind = "emulated" if all(row["emulated"] for row in rows if "pmem" in row["medium"]) else "real"
    within = sum("(within" in part for part in parts)
    verdict = (
        "is within the noise, as the paper found"
        if within == len(parts)
        else f"is within the noise in {within} of {len(parts)} pairs"
    )
    return f"NVM ({kind}) against DRAM {verdict}. Times the seconds of DRAM: {', '.join(parts)}."


def _spread(seconds: list[float]) -> float:
    """Return the factor between the 90th and the 10th percentile of repetitions, or between the extremes of few."""
    least, most = np.quantile(seconds, (0.1, 0.9) if len(seconds) >= FEW else (0.0, 1.0))
    return float(most / least)


def _cost_sentences(rows: Rows) -> list[str]:
    """Say what FAST_OMP saves over SDS_OMP on each medium, and what cold costs."""
    ratios = []
    for medium in dict.fromkeys(row["medium"] for row in rows):
        fast, slow = _find(rows, medium, "fast_omp", "exact"), _find(rows, medium, "sds_omp", "exact")
        if fast and slow:
            ratios.append(f"{medium} {slow['seconds'] / fast['seconds']:.1f}")
    return [f"SDS_OMP takes this many times FAST_OMP's seconds (exact): {', '.join(ratios)}."] if ratios else []


def _excess_sentences(rows: Rows) -> list[str]:
    """Say what exceeding the memory costs, against the bars, and what else bears on it."""
    sentences = [
        f"{bar.claim}: {bar.found:.2f} (bar {bar.limit:g}, {'met' if bar.met else 'missed'})." for bar in _excess_bars(rows)
    ]
    for algorithm in ("fast_omp", "sds_omp"):
        both, tiered = _find(rows, "dram", algorithm, "int8"), _find(rows, "mmap, limited, tier in DRAM", algorithm, "int8")
        if both and tiered:
            ratio = tiered["seconds"] / both["seconds"]
            sentences.append(
                f"{algorithm.upper()}, tier in DRAM: times the all-in-DRAM run that has the tier there too: {ratio:.2f}."
            )
        if exact := _find(rows, "mmap, limited", algorithm, "exact"):
            sentences.append(
                f"{algorithm.upper()}, exact only: device bandwidth {exact['device_bytes_per_second'] / 1e9:.2f} GB/s."
            )
    return sentences
