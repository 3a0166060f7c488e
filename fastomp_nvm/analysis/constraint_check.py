"""A constraint over the features of a store: its rank and p, and a random test that it is downward closed."""

from __future__ import annotations

from dataclasses import dataclass

from fastomp_nvm.constraints import check_downward_closed
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import ConstraintError
from fastomp_nvm.selection.text import clean

__all__ = ["ConstraintFacts", "check_constraint"]


@dataclass(frozen=True, slots=True)
class ConstraintFacts:
    """What ``check_constraint`` found.

    Attributes
    ----------
    n_features, rank : int
        How many features there are, and the most that can be selected.
    p : float or None
        The constraint is a p-system; None: unknown.
    needs_base : bool
        Whether a selection continues until nothing more fits, because of lower bounds.
    samples : int
        Random chains of sets that were tested.
    downward_closed : bool
        No counterexample was found; otherwise there is an error instead.
    """

    n_features: int
    rank: int
    p: float | None
    needs_base: bool
    samples: int
    downward_closed: bool = True


def check_constraint(constraint: Constraint, dataset: Dataset, samples: int = 100, seed: int = 0) -> ConstraintFacts:
    """Return the facts of a constraint over a data set; ``ConstraintError`` if it is found not to be downward closed."""
    found = check_downward_closed(constraint, samples=samples, seed=seed)
    if found is not None:
        allowed, refused = (
            ", ".join(clean(dataset.names[feature], 24) for feature in features)
            for features in (found.allowed, found.refused_subset)
        )
        raise ConstraintError(
            f"the constraint is not downward closed: it allows {{{allowed}}} but refuses {{{refused}}}, a part of it; "
            "correct it, because no guarantee holds without this"
        )
    return ConstraintFacts(constraint.n_features, constraint.rank, constraint.p, constraint.needs_base, samples)
