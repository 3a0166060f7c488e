"""Benchmarks: every claim of speed is a ratio printed by a script here, measured side by side in one run."""
