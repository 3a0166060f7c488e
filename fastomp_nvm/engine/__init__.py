"""Drives algorithms over a matrix: merges their questions into shared sweeps."""
