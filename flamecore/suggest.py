"""What was perhaps meant by a name that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like `name`, if one does."""
    import difflib  # for errors only

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """The second line of an error about an unknown name: what was perhaps meant, and all there is."""
    names = sorted(known)
    close = nearest(name, names)
    listing = f"Known: {', '.join(names)}." if names else "There are none."
    return f"Did you mean {close!r}? {listing}" if close else listing
