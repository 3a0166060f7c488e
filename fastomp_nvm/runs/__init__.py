"""Durable runs: the log, the journal, the directory, the driver."""
