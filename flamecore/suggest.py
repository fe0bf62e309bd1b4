"""Suggestions: for an unknown name, and for a package that is not installed."""

from __future__ import annotations

import shlex
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


def install_command(distribution: str, *extras: str, more: Iterable[str] = ()) -> str:
    """Return the command that installs extras of a distribution from where it has been installed from.

    That may be a folder, such as a checkout, a file or a URL (PEP 610): an index need not have it then.

    Args:
        distribution: Name of the distribution.
        extras: Names of its extras.
        more: Other packages, as pip takes them.

    >>> install_command("nowhere", "grpc", "nats", more=["numpy<3"])
    "pip install 'nowhere[grpc,nats]' 'numpy<3'"
    """
    wanted = f"[{','.join(extras)}]" if extras else ""
    place, is_editable = _origin(distribution)
    what = f"{place}{wanted}" if place else f"{distribution}{wanted}"
    if "://" in place:
        what = f"{distribution}{wanted} @ {place}"
    parts = ["-e"] * is_editable + [shlex.quote(what)]
    return " ".join(["pip install", *parts, *map(shlex.quote, more)])


def _origin(distribution: str) -> tuple[str, bool]:
    """Return the path or URL that a distribution comes from, empty for an index, and whether it is editable."""
    import json
    from importlib import metadata
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    try:
        said = json.loads(metadata.distribution(distribution).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return "", False
    url, vcs = str(said.get("url", "")), said.get("vcs_info", {}).get("vcs")
    if url.startswith("file://"):
        path = unquote(urlsplit(url).path)
        return (path, bool(said.get("dir_info", {}).get("editable"))) if Path(path).exists() else ("", False)
    return f"{vcs}+{url}" if vcs else url, False
