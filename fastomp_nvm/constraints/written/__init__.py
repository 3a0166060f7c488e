"""Constraints written as YAML or JSON."""
