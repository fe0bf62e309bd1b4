"""Unix sockets in the folder of a job."""

from __future__ import annotations

import errno
import socket
import stat
from pathlib import Path
from typing import Final

from flamecore.errors import TransportError

_PATH_BYTES: Final = 107  # sun_path of Linux, without the final zero


def is_path(text: str) -> bool:
    """Return whether a unix socket may be at a path."""
    return text.startswith("/") and len(text.encode()) <= _PATH_BYTES and "\0" not in text


def socket_path(folder: str, node: str, elsewhere: str) -> Path:
    """Return the path for a node's unix socket.

    Args:
        folder: Folder of the job's sockets.
        node: Name of the process in the job.
        elsewhere: Another way to listen, as the end of an imperative sentence.

    Raises:
        TransportError: The path cannot be used, or a process listens there.
    """
    if not folder:
        raise _cannot("this job has no folder for sockets", f"{elsewhere[0].upper()}{elsewhere[1:]}.")
    path = Path(folder) / f"{node.replace('/', '-') or 'node'}.sock"
    if len(bytes(path)) > _PATH_BYTES:
        text = f"{path} is too long for a unix socket: {len(bytes(path))} bytes, and {_PATH_BYTES} are the limit"
        raise _cannot(text, f"Set TMPDIR to a shorter path, or {elsewhere}.")
    # Whoever binds the path takes the socket away from the process that listens on it, silently.
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(path)) not in (errno.ENOENT, errno.ECONNREFUSED):
            raise _cannot(f"{path} is taken", "Does another process of this job have the same name?")
    return path


def keep_private(path: Path) -> None:
    """Restrict a socket to connections of this user."""
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)


def _cannot(what: str, hint: str) -> TransportError:
    return TransportError(f"cannot listen: {what}", hint=hint, address="", peer="")
