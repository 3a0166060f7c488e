"""Many selections in shared sweeps, and what a selection means for groups of people."""
