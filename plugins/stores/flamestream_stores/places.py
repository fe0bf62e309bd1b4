"""Common parts of stores on a local disk: durable folders, file names, hints."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from flamecore.errors import StoreError

Survives = Literal["power_loss", "process_death"]
"""Event that blobs outlast: a loss of power, or only the death of all processes of the job."""

_LONGEST = 150


def file_name(job: str) -> str:
    """Return a readable file name for a job of any name; different for each."""
    name = quote(job, safe=" ")
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}%{hashlib.sha256(job.encode()).hexdigest()[:16]}"
    # quote() keeps dots, and a name must not begin with one: hidden, or no file at all.
    return f"%2E{name[1:]}" if name.startswith(".") else name or "%"


def make_folder(folder: Path, *, sync: bool) -> None:
    """Make a folder and its missing parents, for this user alone.

    Args:
        folder: The folder.
        sync: Whether it must outlast a loss of power.

    Raises:
        OSError: It cannot be made.
    """
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for made in reversed(missing):
        made.mkdir(mode=0o700, exist_ok=True)
        if sync:
            sync_folder(made.parent)


def sync_folder(folder: str | Path) -> None:
    """Force the entries of a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def failed(store: str, what: str, error: OSError, *, folder: Path, blob: str = "") -> StoreError:
    """Return the error of a failed system call.

    Args:
        store: Name of the driver.
        what: The failed action, with the path.
        error: The system's error.
        folder: The folder of the action.
        blob: Name of the blob, if there is one.
    """
    return store_error(store, f"{what}: {error.strerror or error}", hint_of(error, folder), blob)


def store_error(store: str, what: str, hint: str, blob: str = "") -> StoreError:
    """Return an error that names the driver."""
    return StoreError(f"store {store!r}: {what}", hint=hint, store=store, blob=blob)


def no_state(store: str, place: Path, job: str) -> StoreError:
    """Return the error of a store to be read that does not exist."""
    what = f"there is no state of job {job!r}: {place} does not exist"
    return store_error(store, what, "Are the path under [state] and the job's name those that it ran with?")


def hint_of(error: OSError, folder: Path) -> str:
    """Return a hint for a system error."""
    if error.errno == errno.EFBIG:
        return "Raise the limit of this process for the size of a file (ulimit -f), or use a disk for larger ones."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return room(folder)
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"Make {folder} writable for this user, or give another path under [state]."
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return "A part of the path is a file; give another path under [state]."
    if error.errno == errno.ENOENT:
        return "Was it deleted while the job ran? Otherwise make the folder, or give another path under [state]."
    return "See what is wrong with its device, or give another path under [state]."


def room(folder: Path) -> str:
    """Return a hint for a full disk, with the bytes that are free."""
    free = ""
    with contextlib.suppress(OSError, AttributeError):  # only a hint
        disk: Any = os.statvfs(folder)
        free = f" ({disk.f_bavail * disk.f_frsize:,} bytes are free)"
    return f"Make room on the disk{free}; what is stored already is whole."
