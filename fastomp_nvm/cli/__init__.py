"""The command ``fastomp``."""
