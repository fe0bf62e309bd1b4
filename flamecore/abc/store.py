"""The contract of state stores, which keep a job's snapshots.

Paper 000, "Fault tolerance". A store holds *blobs* by name, and each is written once: nothing is ever changed in place.
Everything else follows from that law. A blob is there whole or not at all. A snapshot is a blob that names the blobs it
is made of, so it is there in one step. The run that first creates the blob of an epoch owns that epoch, so of two runs
of one job only one goes on.

A store does not know the meaning of blobs: see `flamecore.runtime.state.format`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from flamecore.errors import StoreError

API: int = 1

MAX_NAME: int = 200
"""Longest name of a blob, in characters: ASCII letters, digits, `-`, `_`, `.` and `/` between them."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_DOTS: Final = frozenset((".", ".."))


def check_name(name: str, store: str) -> None:
    """Raise an error if `name` cannot be the name of a blob.

    Stores call it in `create`, before anything else.

    Args:
        name: Parts with `/` between them; no part is empty, `.` or `..`, so that names can be paths.
        store: The driver's name, for the error.

    Raises:
        StoreError: It is no such name.
    """
    if len(name) > MAX_NAME or not _NAME.fullmatch(name) or not _DOTS.isdisjoint(name.split("/")):
        raise StoreError(
            f"store {store!r}: {name[:MAX_NAME]!r} cannot be the name of a blob",
            hint=f"At most {MAX_NAME} ASCII letters, digits, '-', '_', '.', in parts joined by '/'.",
            store=store,
            blob=name,
        )


@dataclass(frozen=True, slots=True)
class StoreCapabilities:
    """The promises of a store.

    Attributes:
        durable: Blobs survive the death of every process of the job.
        shared: Processes on other hosts reach the same blobs.
        mountable: Processes on hosts that mount its folder reach them too: the folder has the same path everywhere, and
            the store needs no lock that such a folder lacks.
    """

    durable: bool
    shared: bool
    mountable: bool = False


@dataclass(frozen=True, slots=True)
class StoreContext:
    """The surroundings of a store.

    Attributes:
        job: Name of the job; jobs of different names that use one store do not see each other's blobs.
        folder: Folder of the job. Paths in options are whole (`flamecore.abc.paths.FilePath`).
        create: Whether `open` makes a place that is not there. If not, `open` raises: a command that only looks leaves
            nothing behind. Stores may ignore this where looking creates nothing visible.
    """

    job: str
    folder: Path = Path()
    create: bool = True


# No rename, no overwrite, no lock: each backend has its own sense of these, or none. With blobs
# that are written once, create, list and delete are enough for whole snapshots and for one owner.
class Store(ABC):
    """A store driver.

    Every process of a job opens one of its own; all see the same blobs.

    Class attributes: `name`, `api` and `Options` as for every driver. Calls of one object may overlap.
    """

    name: ClassVar[str]
    api: ClassVar[int] = API
    Options: ClassVar[Any] = None

    def __init__(self, options: Any, context: StoreContext) -> None:
        self.options = options
        self.context = context

    @property
    @abstractmethod
    def capabilities(self) -> StoreCapabilities:
        """Return the promises of this store with these options."""

    async def open(self) -> None:
        """Make ready.

        Raises:
            StoreError: It cannot be reached, or is none.
        """
        return

    @abstractmethod
    async def create(self, name: str, data: bytes) -> bool:
        """Write a blob.

        Once this returns it is durable, and every process sees it whole.

        Returns:
            False if there is a blob of that name already, which is left as it is. If several create one name at once,
            exactly one gets True.

        Raises:
            StoreError: It could not be written; nothing of it is seen under its name.
        """

    @abstractmethod
    async def read(self, name: str) -> bytes | None:
        """Return the bytes of a blob; None if there is none of that name.

        Raises:
            StoreError: It cannot be read.
        """

    @abstractmethod
    async def names(self, prefix: str = "") -> list[str]:
        """Return the names of all blobs that begin with `prefix`, sorted.

        Raises:
            StoreError: They cannot be listed.
        """

    @abstractmethod
    async def delete(self, names: Collection[str]) -> None:
        """Delete blobs; names that are not there are ignored.

        Raises:
            StoreError: They cannot be deleted; some may be.
        """

    async def aclose(self) -> None:
        """Release all resources. May be called twice."""
        return
