"""Durable runs: log, journal, registration, directory and driver."""
