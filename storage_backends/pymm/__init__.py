"""Stores on pymm shelves."""
