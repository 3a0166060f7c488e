"""Selections and reports as text for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from rich.table import Table

from fastomp_nvm.algorithms.certificate import certificate_in_words
from fastomp_nvm.analysis.sharing import Sharing
from fastomp_nvm.cli.output import clean, human_bytes, human_seconds
from fastomp_nvm.cli.screen import Screen
from fastomp_nvm.errors import InfeasibleError
from fastomp_nvm.selection.display import GUARANTEES
from fastomp_nvm.selection.result import Selection

__all__ = ["infeasible", "sharing_in_words", "show_selection"]


def infeasible(violations: Sequence[str]) -> int:
    """Print the violations of an infeasible answer and return the exit code."""
    print(f"fastomp: the answer breaks the constraint: {'; '.join(violations)}", file=sys.stderr)
    return InfeasibleError.exit_code


def show_selection(selection: Selection) -> None:
    """Print a selection for a person."""
    console = Screen()
    count = len(selection.features)
    table = Table(title=f"{count:,} feature{'s' * (count != 1)} selected")
    table.add_column("#", justify="right")
    table.add_column("feature", overflow="fold")
    table.add_column("coefficient", justify="right")
    for place, (name, coef) in enumerate(zip(selection.features, selection.coef, strict=True)):
        shown = f"{coef:.6g}" if np.ndim(coef) == 0 else f"{coef[0]:.6g}" if len(coef) == 1 else f"{len(coef)} columns"
        table.add_row(str(place + 1), clean(name), shown)
    for column in selection.kept:
        table.add_row("kept", clean(column.column), f"{column.coef:.6g}")
    console.print(table)
    scale = "R^2" if selection.objective == "linear" else "mean log-likelihood"
    polished = f" ({selection.score_unpolished:.6g} before the polish)" if selection.polish != "none" else ""
    console.print(f"{scale} {selection.score:.6g}{polished}, intercept {selection.intercept:.6g}")
    if selection.objective_reason is not None:
        console.print(f"objective {selection.objective}: {clean(selection.objective_reason, None)}")
    if selection.test_score is not None:
        console.print(f"{scale} {selection.test_score:.6g} on {selection.test_rows:,} observations held out")
    console.print(
        f"{selection.algorithm} on {selection.medium}: {selection.full_passes:.2f} passes over "
        f"{selection.store.n_features:,} features, {human_bytes(selection.bytes_read)} read, "
        f"{selection.gradient_rounds} rounds, {human_seconds(selection.seconds)}"
    )
    if selection.guarantee is not None and selection.guarantee in GUARANTEES:
        console.print(GUARANTEES[selection.guarantee])
    estimated = selection.rank if selection.rank_estimated else None
    if estimated is not None:
        console.print(
            f"rank of the constraint estimated by random draws: its largest sets are taken to have {estimated:,} features"
        )
    if selection.tau_chosen is not None:
        console.print(f"tau {selection.tau_chosen:g} was the best of those tried")
    if selection.certificate is not None:
        console.print(certificate_in_words(selection.certificate, estimated))
    if selection.bytes_sent is not None and selection.bytes_received is not None:
        console.print(f"{human_bytes(selection.bytes_sent)} sent to the shards, {human_bytes(selection.bytes_received)} received")
    if selection.medium == "pmem" and selection.emulated:
        console.print("persistent memory is emulated on this machine")
    for name, choice in selection.choices.items():
        value = human_bytes(choice.value) if name == "gather_bytes" and isinstance(choice.value, int) else clean(str(choice.value))
        console.print(f"{clean(name.replace('_', ' '))} {value}: {clean(choice.reason, None)}", soft_wrap=True)
    for note in selection.notes:
        console.print(f"note: {clean(note, None)}")


def sharing_in_words(sharing: Sharing) -> str:
    """Return in one sentence what sharing the sweeps saved."""
    return (
        f"{human_bytes(sharing.bytes_read)} read in {sharing.full_passes:.1f} passes; one by one it would have been "
        f"{human_bytes(sharing.bytes_read_alone)} in {sharing.full_passes_alone:.1f}"
        f"{sharing.gram_in_words()}"
    )
