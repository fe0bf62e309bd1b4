"""A place for files: the contract, and which place a path means.

A file is there whole or not at all, and is read by its name: its path below the place. Nothing is asked of a place but
what folders and object stores both do: there is no rename, no lock, and no folder that is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


class Place(ABC):
    """Files below a path. Every method raises OSError: the disk or the server says no.

    Attributes:
        url: Path of the folder, or the URL.
        patience_s: Seconds between two looks for a file that is still to come, at most.
    """

    url: str
    patience_s: float = 0.05

    @abstractmethod
    def make(self) -> None:
        """Make the folder if there are folders; else see whether the place can be reached."""

    @abstractmethod
    def names(self, folder: str = "", *, below: bool = False) -> list[str]:
        """Return the names of the files in a folder, in no order.

        Args:
            folder: Which one; empty: that of the place.
            below: Whether those in folders below count too, but for hidden ones: by `is_hidden`.
        """

    @abstractmethod
    def folder(self, name: str) -> str:
        """Return the path or URL of a folder below, which is there from now on."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return what is in a file; None: it is not there."""

    @abstractmethod
    def open(self, name: str) -> Any:
        """Open a file for Arrow: to be closed, and read where it is asked for."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Make a file, unless there is one of that name; return whether it was made."""

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Make a file, in place of one that is there."""

    @abstractmethod
    def put(self, name: str, write: Callable[[Path], None]) -> int:
        """Create a file of what `write` writes to a path; return its size in bytes.

        If that fails, nothing is left behind.
        """

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove files, if they are there."""

    @abstractmethod
    def clear(self, folder: str = "") -> None:
        """Remove everything in a folder."""

    @abstractmethod
    def force(self, names: Iterable[str]) -> None:
        """Make files durable; of a folder, the names in it."""

    def at(self, name: str) -> str:
        """Return the path or URL of a file or folder."""
        return f"{self.url}/{name}" if name else self.url


def is_hidden(name: str) -> bool:
    """Return whether Spark ignores a file or folder."""
    return name[0] in "._" and "=" not in name


def local_path(path: str) -> Path:
    """Return the folder that a path means, which is no URL of another place."""
    for prefix in ("file://", "file:"):
        path = path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path
    return Path(path).expanduser()
