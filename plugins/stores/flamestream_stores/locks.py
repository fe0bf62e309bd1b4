"""Detection of the process that is writing to an SQLite database."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_WRITE_LOCK: Final = 120
"""Byte of the write-ahead log's index that a writer locks (sqlite.org/walformat.html, section 2.3.1)."""

_LOCKS: Final = Path("/proc/locks")


def writing(database: Path) -> int | None:
    """Return the id of the process with an open write transaction, if known.

    The result is None if there is none, or the system does not tell; only Linux does. The file itself is not opened:
    closing it would release this process's own locks on it.
    """
    try:
        inode = database.with_name(f"{database.name}-shm").stat().st_ino
        held = _LOCKS.read_text()
    except OSError:
        return None
    for line in held.splitlines():
        # 1: POSIX  ADVISORY  WRITE 4711 08:01:123456 120 120
        kind, *_, pid, where, first, last = line.split()[1:]
        if kind != "POSIX" or where.rpartition(":")[2] != str(inode) or not last.isdecimal():
            continue
        if int(first) <= _WRITE_LOCK <= int(last):
            return int(pid) if int(pid) > 0 else None  # 0 or less: it is in another container
    return None
