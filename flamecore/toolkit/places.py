"""Places that a job writes, and paths, folders and globs that cover them."""

from __future__ import annotations

import glob
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def is_url(path: str) -> bool:
    """Return whether a path leads outside of this machine's file system.

    A host may be missing, as in Hadoop's `hdfs:/data`. One letter and a colon are a drive.

    >>> is_url("s3://bucket/in"), is_url("dbfs:/in"), is_url("file:/in"), is_url("in"), is_url("C:/in")
    (True, True, False, False, False)
    """
    return "://" in path.removeprefix("file://") or (_URL.match(path) is not None and not path.startswith("file:/"))


def scheme_of(url: str) -> str:
    """Return the scheme of a URL.

    >>> scheme_of("s3://bucket/in"), scheme_of("dbfs:/in")
    ('s3', 'dbfs')
    """
    return url.partition(":")[0]


def place_of(path: str | Path, *, folder: bool = False) -> str:
    """Return the place that a path or URL means.

    It is absolute, without links, and ends with `/` if it is a folder.

    Args:
        path: The path; relative to the working directory. It need not be there.
        folder: Whether it is a folder, in which files are written.
    """
    text = _local(str(path))
    # Links are resolved, since a folder may be read by another path than the one by which it is
    # written.
    found = text if is_url(text) else os.path.realpath(Path(text).expanduser())
    return found.rstrip("/") + "/" if folder else found


def within(folder: Path, path: str) -> str:
    """Return a path relative to a folder, if it begins there; else as it is.

    >>> within(Path("/jobs/words"), "/jobs/words/in/a.txt"), within(Path("/jobs/words"), "/data/a.txt")
    ('in/a.txt', '/data/a.txt')
    """
    return path.removeprefix(os.path.join(folder, "")) if folder.is_absolute() else path  # noqa: PTH118 - a slash at its end


def pattern_of(path: str) -> str:
    """Return a pattern in which the folders that are there are no patterns themselves.

    A folder may have brackets in its name, such as the one that a whole path begins with.
    """
    parts, there = Path(path).parts, Path()
    for number, part in enumerate(parts):
        if not (there / part).is_dir():
            return os.path.join(glob.escape(str(there)), *parts[number:]) if number else path  # noqa: PTH118
        there /= part
    return path


def covers(pattern: str, place: str, *, below: bool = False) -> bool:
    """Return whether reading a path reads the data that is written to a place.

    Args:
        pattern: A file, a folder or a glob.
        place: The place, as `place_of` returns it.
        below: Whether a folder is read with the folders in it.
    """
    pattern = _local(pattern)
    if is_url(pattern) or is_url(place):
        return _url_covers(pattern.rstrip("/"), place)
    path = str(Path(pattern).expanduser())
    read, written = os.path.realpath(path), place.rstrip("/")
    # A file may have brackets in its name: a path that exists is no pattern.
    if not glob.has_magic(path) or Path(path).exists():
        # Hard links, and file systems that ignore case: equal files with different paths.
        if read == written or _same_file(read, written) or (place.endswith("/") and read.startswith(place)):
            return True
        return written.startswith(f"{read}/") if below else _in(read, written)
    folder, name = os.path.split(pattern_of(path))
    folders = [os.path.realpath(one) for one in _found(path if name == "**" else folder)]
    if place.endswith("/") and any(f"{one}/".startswith(place) for one in folders):
        return True
    return any(_in(one, written) and (name == "**" or fnmatchcase(Path(written).name, name)) for one in folders)


def _found(pattern: str) -> list[str]:
    """Return the paths of a glob, or a path without magic as it is.

    Such a path may be made later.
    """
    if not glob.has_magic(pattern):
        return [pattern or "."]
    return glob.glob(pattern, recursive=True)  # noqa: PTH207 - may be absolute


def _local(path: str) -> str:
    """Return the path that a URL of a file means; others stay as they are."""
    return path.removeprefix("file://") if path.startswith("file:///") else path


def _in(folder: str, written: str) -> bool:
    """Return whether a place lies in a folder, and is not hidden there."""
    parent, name = os.path.split(written)
    # Sources skip hidden files of a folder, so such a place is not read.
    return parent == folder and not name.startswith(".")


def _same_file(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return False  # one of them is not there


def _url_covers(pattern: str, place: str) -> bool:
    written = place.rstrip("/")
    inside = place.startswith(f"{pattern}/") or (place.endswith("/") and pattern.startswith(place))
    return written == pattern or inside or (glob.has_magic(pattern) and fnmatchcase(written, pattern))
