"""A small file system, which is full for a while."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

DISK_BYTES = 32 * 2**20


class Disk:
    """A file system in memory. Raises OSError if it cannot be mounted here.

    Args:
        folder: Where; it is made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        line = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            folder.rmdir()
            raise OSError(errno.EPERM, f"a small file system cannot be mounted here: {done.stderr.strip()}")

    def fill(self, left: int) -> None:
        """Take all the room but so many bytes."""
        there = os.statvfs(self.folder)
        with (self.folder / "filler").open("wb") as file:
            try:
                file.write(bytes(max(0, there.f_bavail * there.f_frsize - left)))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def clear(self) -> None:
        """Give it back."""
        (self.folder / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it."""
        subprocess.run(["umount", "-l", str(self.folder)], check=True)
