"""Predictions of the passes, bytes, memory and time of a selection, without data."""
