"""Having what was written survive the end of the machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def force(path: Path) -> None:
    """Force a file to the disk, whoever wrote it.

    Raises:
        OSError: It is not there, or the disk is not well.
    """
    _fsync(path, os.O_RDWR)


def force_folder(folder: Path) -> None:
    """Force the names in a folder to the disk.

    Raises:
        OSError: As `force`.
    """
    if sys.platform != "win32":  # its folders cannot be opened
        _fsync(folder, os.O_RDONLY)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
