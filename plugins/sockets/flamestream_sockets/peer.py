"""The process at the other end of a unix socket, as the system knows it."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
_STOPPED: Final = ("T", "t")


def is_stopped(connected: socket.socket) -> bool:
    """Return whether the process at the other end is stopped, by a signal or a debugger.

    It neither answers nor ends then, and its socket goes on accepting connections. False where the system does not tell
    (only Linux does).
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None or connected.fileno() < 0:
        return False
    pid, _, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    if pid <= 0:  # it is in another namespace
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in _STOPPED
