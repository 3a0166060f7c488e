"""Subcommands of ``fastomp``, one per file."""
