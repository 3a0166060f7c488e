"""Traffic of selections that share their sweeps, compared with that of the same selections one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fastomp_nvm.arrays import JSONObject
from fastomp_nvm.matrix.choice import Choice
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.text import human_bytes

__all__ = ["Sharing"]


@dataclass(frozen=True, slots=True)
class Sharing:
    """Traffic of selections in shared sweeps, and of the same selections one by one.

    Attributes
    ----------
    bytes_read, bytes_read_alone : int
    full_passes, full_passes_alone : float
    gram : Choice, optional
        Whether the selections were made from Gram matrices, and why; as in ``Selection.choices``.
    """

    bytes_read: int
    bytes_read_alone: int
    full_passes: float
    full_passes_alone: float
    gram: Choice | None = None

    @classmethod
    def of(cls, traffic: Traffic, selections: Sequence[Selection], n_features: int) -> Sharing:
        """Return the comparison of ``traffic`` with the selections one by one; a run that answers several of them counts once."""
        runs = [selection for selection in selections if "run" not in selection.choices]
        return cls(
            bytes_read=traffic.bytes_read,
            bytes_read_alone=sum(selection.bytes_read for selection in runs),
            full_passes=traffic.features_visited / n_features,
            full_passes_alone=sum(selection.full_passes for selection in runs),
            gram=selections[0].choices.get("gram"),
        )

    def to_json(self) -> JSONObject:
        """Return the fields; ``gram`` only where it says something."""
        gram = {} if self.gram is None else {"gram": self.gram._asdict()}
        return {name: value for name, value in asdict(self).items() if name != "gram"} | gram

    def in_words(self) -> str:
        """Return the traffic as text."""
        return f"{self.full_passes:.1f} passes, {human_bytes(self.bytes_read)} read{self.gram_in_words()}"

    def gram_in_words(self) -> str:
        """Return whether Gram matrices were used and why, as the end of a sentence; empty where they were not considered."""
        return "" if self.gram is None else f"; Gram matrices {self.gram.value}: {self.gram.reason}"
