"""Unix sockets in the folder of a job."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Final

from flamecore.errors import TransportError

_PATH_BYTES: Final = 107  # sun_path of Linux, without the final zero


def is_path(text: str) -> bool:
    """Return whether a unix socket may be at a path."""
    return text.startswith("/") and len(text.encode()) <= _PATH_BYTES and "\0" not in text


def path_in(folder: str, node: str, elsewhere: str, shorten: str = "set TMPDIR to a shorter path") -> Path:
    """Return the path of a node's unix socket in a folder.

    Args:
        folder: Folder of the job's sockets.
        node: Name of the process in the job.
        elsewhere: Another way to listen, as the end of an imperative sentence.
        shorten: Remedy where the path is too long, as the beginning of one.

    Raises:
        TransportError: There is no folder, the path is too long, or others can put another folder in its place.
    """
    if not folder:
        raise _cannot(
            "this job has no folder for sockets, as one in a single process has none",
            f"Leave transport.use out, for such a job needs no transport between processes; or {elsewhere}.",
        )
    _check_parents(Path(folder))
    path = Path(folder) / f"{node.replace('/', '-') or 'node'}.sock"
    if len(bytes(path)) > _PATH_BYTES:
        text = f"{path} is too long for a unix socket: {len(bytes(path))} bytes, and {_PATH_BYTES} are the limit"
        raise _cannot(text, f"{shorten[0].upper()}{shorten[1:]}, or {elsewhere}.")
    return path


def check_free(path: Path) -> Path:
    """Return the path of a unix socket; raise TransportError if a process listens there."""
    # Whoever binds the path takes the socket away from the process that listens on it, silently.
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(path)) not in (errno.ENOENT, errno.ECONNREFUSED):
            raise _cannot(
                f"{path} is taken",
                "Another job is there, or another process of this job by the same name. Choose another folder.",
            )
    return path


def own_folder(folder: str, *, make: bool) -> None:
    """Check that this user alone can write a folder for unix sockets.

    Args:
        folder: Its path.
        make: Whether to make it if it is not there.

    Raises:
        TransportError: It is none, it cannot be made, or others can write it, and so put their socket in place of one.
    """
    path = Path(folder)
    try:
        if make:
            path.mkdir(stat.S_IRWXU, exist_ok=True)
        elif not path.exists():
            return
        found = path.stat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError as error:
        raise _cannot(f"{path} cannot be a folder of sockets: {error.strerror}", "Name another folder.") from error
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _cannot(
            f"other users can write {path}, and put their socket in place of the job's",
            f"Name a folder of your own, or take the right to write from others: chmod go-w {path}",
        )


def _check_parents(path: Path) -> None:
    """Check that not everybody can move a folder away, and put another one in its place.

    Raises:
        TransportError: Everybody can write a folder above it, or above the link that leads there, and it has no sticky
            bit.
    """
    for parent in dict.fromkeys((*path.absolute().parents, *path.resolve().parents)):
        try:
            mode = parent.stat().st_mode
        except OSError:  # not there, or not to be looked at: what is made of the path says so
            continue
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise _cannot(
                f"all users can write {parent}, and put another folder in place of {path}",
                f"Choose a folder elsewhere, or let users remove only what is their own: chmod +t {parent}",
            )


def keep_private(path: Path) -> None:
    """Restrict a socket to connections of this user."""
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)


def _cannot(what: str, hint: str) -> TransportError:
    return TransportError(f"cannot listen: {what}", hint=hint, address="", peer="")
