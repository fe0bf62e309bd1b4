"""Who is in the middle of a write to an SQLite database."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_WRITE_LOCK: Final = 120
"""The byte of the index of the write-ahead log that a writer has locked (sqlite.org/walformat.html, section 2.3.1)."""

_LOCKS: Final = Path("/proc/locks")


def writing(database: Path) -> int | None:
    """The id of the process that has a transaction open in which it writes; None if there is none, or nobody tells.

    Only Linux tells. The file itself is not touched: a process that closes it lets go of its own locks on it.
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
