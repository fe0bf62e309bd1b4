"""Writes that survive the end of the machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def force(path: Path) -> None:
    """Force a file to the disk, whichever process wrote it.

    Raises:
        OSError: The file does not exist, or the disk fails.
    """
    _fsync(path, os.O_RDWR)


def force_folder(folder: Path) -> None:
    """Force the names in a folder to the disk.

    Raises:
        OSError: As `force`.
    """
    if sys.platform != "win32":  # Windows cannot open folders
        _fsync(folder, os.O_RDONLY)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
