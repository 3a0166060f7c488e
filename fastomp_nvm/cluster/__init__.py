"""Selections over shards: one shard's answers, and the driver that merges them."""
