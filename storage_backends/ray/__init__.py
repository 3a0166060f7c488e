"""Shards as Ray actors."""
