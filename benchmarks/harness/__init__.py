"""Shared by all benchmarks: arguments, timing, bars, reports, devices, memory limits and child processes."""
