"""One medium per module."""
