"""A private folder in the temporary directory, for sockets and start files.

It is removed when its owner ends. A killed owner cannot clean up, so each new owner first removes stale folders. An
owner locks a file in its folder for as long as it lives; a folder is stale if no process holds its lock. The kernel
releases the lock in any case, and no process number is mistaken for another's.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

if sys.platform != "win32":
    import fcntl

_PREFIX: Final = "flamestream-"
_OWNER: Final = ".owner"
"""The locked file. It names the host: on a disk shared by hosts, locks may hold on each host only."""


@contextmanager
def private_folder() -> Iterator[str]:
    """Make a folder that only this user can enter, removed after the block.

    Removes stale folders first.

    Raises:
        OSError: There is no temporary directory.
    """
    place = tempfile.gettempdir()
    remove_left(place)
    folder, lock = _made(place)
    try:
        yield folder
    finally:
        # Before the lock is released: until then no other process takes the folder for a stale one.
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def folder_like_private() -> str:
    """Return a path like that of a private folder, which is not made.

    Raises:
        OSError: There is no temporary directory.
    """
    return str(Path(tempfile.gettempdir(), f"{_PREFIX}{'0' * 8}"))


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only this user can read, in place of an existing one.

    Raises:
        OSError: It cannot be written.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)


def remove_left(place: str) -> None:
    """Remove the stale private folders in a directory.

    Leaves folders in use, of other users or other hosts, and other folders; follows no link. A folder that cannot be
    removed stays.
    """
    if sys.platform == "win32":
        return
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    _remove_if_left(entry.path)


def _made(place: str) -> tuple[str, int | None]:
    """Make a folder; return it, and the descriptor of its lock or None without locks."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=place)
        if sys.platform == "win32":
            return folder, None
        path = Path(folder, _OWNER)
        lock = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(lock, socket.gethostname().encode())  # from here on it counts as stale once unlocked
            return folder, lock
        except BlockingIOError:  # another process is just checking whether it is stale
            shutil.rmtree(folder)
        except OSError:  # no locks on this disk: without the file it never counts as stale
            path.unlink()
            os.close(lock)
            return folder, None
        os.close(lock)


def _remove_if_left(folder: str) -> None:
    # By descriptors, following no link: in a directory that others can write to, a path may change
    # between two calls.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not _is_own(os.fstat(descriptor)):
            return
        owner = os.open(_OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
        try:
            told = os.fstat(owner)
            if not (_is_own(told) and stat.S_ISREG(told.st_mode)):
                return
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = os.fstat(owner).st_nlink  # nobody else was faster
            if there and os.read(owner, 1024) == socket.gethostname().encode():
                shutil.rmtree(folder)
        finally:
            os.close(owner)
    finally:
        os.close(descriptor)


def _is_own(status: os.stat_result) -> bool:
    """Return whether a file belongs to this user, without access for others."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077
