"""Names, sizes and durations as text for people."""

from __future__ import annotations

__all__ = ["clean", "human_bytes", "human_seconds"]


def clean(text: str, longest: int | None = 60) -> str:
    """Return ``text`` fit for a terminal: control characters replaced, shortened in the middle to ``longest`` characters."""
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    if longest is None or len(shown) <= longest:
        return shown
    half = (longest - 3) // 2
    return f"{shown[:half]}...{shown[-half:]}"


def human_bytes(size: float) -> str:
    """Return a size in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"


def human_seconds(seconds: float) -> str:
    """Return a duration."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
