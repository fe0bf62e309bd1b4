"""Suggestions for an unknown name."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that looks most like `name`, or None."""
    import difflib  # for errors only

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the hint for an unknown name: the nearest name, and all known ones."""
    names = sorted(known)
    close = nearest(name, names)
    listing = f"Known: {', '.join(names)}." if names else "There are none."
    return f"Did you mean {close!r}? {listing}" if close else listing
