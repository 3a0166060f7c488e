"""Results of analyses as HTML: a table of what was compared, and the selection that it led to."""

from __future__ import annotations

from collections.abc import Sequence

from fastomp_nvm.analysis.cross_validation import CrossValidation
from fastomp_nvm.analysis.grid import Grid
from fastomp_nvm.analysis.path import SelectionPath
from fastomp_nvm.analysis.stability import Stability
from fastomp_nvm.analysis.wire import Result
from fastomp_nvm.selection.display import listed
from fastomp_nvm.selection.markup import Markup, element, joined, table
from fastomp_nvm.selection.recheck import Verification
from fastomp_nvm.selection.report import report_body
from fastomp_nvm.selection.text import clean, human_bytes

__all__ = ["result_view"]

#: Rows of a table that are shown.
_MOST_ROWS = 200


def result_view(found: Result) -> Markup:
    """Return a result as HTML."""
    if isinstance(found, Grid):
        return _grid(found)
    if isinstance(found, CrossValidation):
        marks = {found.one_standard_error_k: "within one standard error", found.best_k: "best"}
        columns = zip(found.ks.tolist(), found.mean.tolist(), found.standard_error.tolist(), strict=True)
        rows = [(k, mean, error, marks.get(k, "")) for k, mean, error in columns]
        caption = f"{found.scores.shape[1]} folds, score on held-out observations"
        return joined(_table(("k", "mean", "standard error", ""), rows, caption), report_body(found.selection))
    if isinstance(found, SelectionPath):
        steps = zip(found.ks.tolist(), found.changes, found.selections, strict=True)
        paths = [(clean(listed(changes), 100), k, selection.score) for k, changes, selection in steps]
        head = ("features that enter and leave", "k", "score")
        return joined(_table(head, paths, found.reason), report_body(found.selections[-1]))
    if isinstance(found, Stability):
        shares = found.frequencies[found.indices].tolist()
        named = zip(found.features, shares, strict=True)
        often = [(clean(name, 60), share, "stable" if share >= found.threshold else "") for name, share in named]
        return _table(("feature", "selected in", ""), often, f"share of {found.subsamples} subsamples")
    if isinstance(found, Verification):
        return element("p", clean(found.sentence, None))
    return element("p", f"All {found.blocks:,} blocks ({human_bytes(found.bytes)}) match their checksums.")


def _grid(found: Grid) -> Markup:
    """Return a grid: its cells, and the best selection."""
    rows = [
        (
            ", ".join(f"{name} {clean(str(value), 40)}" for name, value in cell.settings.items()),
            len(cell.selection.indices),
            cell.selection.score,
            cell.selection.test_score,
            "yes" if cell.selection.feasible else "no",
        )
        for cell in found.cells
    ]
    head = ("settings", "features", "score", "score held out", "feasible")
    return joined(_table(head, rows, f"{len(rows)} selections"), report_body(found.best.selection))


def _table(head: Sequence[str], rows: Sequence[Sequence[str | float | None]], caption: str) -> Markup:
    """Return a table, and how many rows it leaves out."""
    more = f"and {len(rows) - _MOST_ROWS} more rows: the download holds all of them" if len(rows) > _MOST_ROWS else None
    return joined(table(head, rows[:_MOST_ROWS], caption), None if more is None else element("p", more))
