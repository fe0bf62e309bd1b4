"""A private folder in the temporary directory, for sockets and what a process is told as it starts.

It goes when its owner ends. An owner that is killed cannot see to that, so whoever makes one first removes those that
killed ones have left behind. Which they are is told by a lock that an owner holds on a file in its folder for as long
as it lives: the kernel gives it up in any case, and no process number is taken for another's.
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
"""The file that is locked. It names the host: on a disk that hosts share, locks may be of each host alone."""


@contextmanager
def private_folder() -> Iterator[str]:
    """Make a folder that only this user can enter, for as long as the context lasts. Removes those of the dead.

    Raises:
        OSError: There is no temporary directory to make it in.
    """
    place = tempfile.gettempdir()
    remove_left(place)
    folder, lock = _made(place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only this user can read, unless it is there already.

    Raises:
        OSError: It cannot be written.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)


def remove_left(place: str) -> None:
    """Remove the private folders there whose owners are gone.

    Nothing is touched that is in use, of another user or of another host, or is no such folder, and no link is
    followed. What cannot be removed stays.
    """
    if sys.platform == "win32":
        return
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    _remove_if_left(entry.path)


def _made(place: str) -> tuple[str, int | None]:
    """A new folder, and the descriptor that holds its lock; None where there are no locks."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=place)
        if sys.platform == "win32":
            return folder, None
        path = Path(folder, _OWNER)
        lock = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(lock, socket.gethostname().encode())  # from here on it can be taken for a left one
            return folder, lock
        except BlockingIOError:  # somebody is just looking whether it is one
            shutil.rmtree(folder)
        except OSError:  # there are no locks on this disk: without the file nobody takes it for one
            path.unlink()
            os.close(lock)
            return folder, None
        os.close(lock)


def _remove_if_left(folder: str) -> None:
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
    """Whether it is this user's, and nobody else's business."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077
