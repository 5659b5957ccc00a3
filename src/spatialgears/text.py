"""Quantities and names in words, as messages show them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

#: What is not text: control characters, which can steer a terminal, and marks that turn the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    r"""The text with control characters, but for tabs and line ends, written out: ``\x1b[31m``."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def holds_control(name: str) -> bool:
    """Whether a name holds a control character, tabs and line ends among them."""
    return bool(_CONTROL.search(name)) or "\n" in name or "\t" in name


def not_a_formula(name: str) -> str:
    """A :func:`plain` name for a table: one that a spreadsheet would compute (``= + - @``) comes after an apostrophe."""
    name = plain(name)
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t")) else name


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


def p_value(value: float) -> str:
    """``= 0.003``; what is too small to mean more, ``< 1e-16``."""
    return "< 1e-16" if value < 1e-16 else f"= {value:.1g}"


def similar_names(name: str, names: Iterable[object], most: int = 3) -> list[str]:
    """Names that differ from ``name`` in case only; else those with the most similar spelling."""
    known = list(map(str, names))
    return [one for one in known if one.lower() == name.lower()][:most] or get_close_matches(
        name, known, n=most
    )


def listed(names: Iterable[object], most: int = 12) -> str:
    """Names for an error message, the first dozen of them."""
    found = [repr(str(name)) for name in names]
    more = f" and {len(found) - most:,} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more if found else "none"
