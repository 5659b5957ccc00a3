"""Quantities in words, as messages tell them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3.2 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(n_bytes: float) -> str:
    """``350 MB``, ``1.2 GB``."""
    return f"{n_bytes / 1e6:.0f} MB" if n_bytes < 1e9 else f"{n_bytes / 1e9:.1f} GB"


def number(count: int, noun: str) -> str:
    """``1 slide``, ``2,000 slides``."""
    return f"{count:,} {noun}" + "s" * (count != 1)
