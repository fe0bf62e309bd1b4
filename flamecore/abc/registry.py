"""Where it is written who runs a job and where its parts are: the contract of registries (ZooKeeper in the papers).

A registry holds small entries by key. Each has a *revision*, which grows with every change of that entry, and who
changes an entry names the revision he has seen: of several who change it at once one succeeds, and the others learn
that what they have seen is old. This is all the agreement between supervisors that there is. What is written, and how
long somebody has the right to a job, is built upon it (`flamecore.runtime.cluster.lease`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

API: int = 1

MAX_KEY: Final = 200
"""Longest key, in characters: letters, digits, `-`, `_`, `=`, and `/` between them."""

MAX_VALUE: Final = 512 * 2**10
"""Largest value, in bytes."""


class Entry(NamedTuple):
    """What is under a key, and the revision that who changes it has to name."""

    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class RegistryCapabilities:
    """What a registry promises.

    Attributes:
        durable: Entries survive the death of every process of the job.
        shared: Other processes, also on other hosts, reach the same entries.
    """

    durable: bool
    shared: bool


@dataclass(frozen=True, slots=True)
class RegistryContext:
    """What a registry is told.

    Attributes:
        node: Name of this process, for the lists of a server.
        waits: Whether a server that is not there yet is waited for; see `flamecore.abc.transport.TransportContext`.
    """

    node: str = ""
    waits: bool = True


class JobRegistry(ABC):
    """A registry driver. Calls of one object may overlap; every call ends, with an error if need be, in limited time.

    Class attributes: `name`, `api` and `Options` as for every driver.

    Raises:
        RegistryError: From every method but `aclose`: it cannot be reached, or refuses. A change may have happened or
            not; who needs to know reads the entry.
    """

    name: ClassVar[str]
    api: ClassVar[int] = API
    Options: ClassVar[Any] = None
    schemes: ClassVar[tuple[str, ...] | None] = None
    """Schemes of the addresses by which other processes look a job up in it; None: its name is the only one."""

    def __init__(self, options: Any, context: RegistryContext) -> None:
        self.options = options
        self.context = context

    @classmethod
    def address_of(cls, url: str) -> Mapping[str, Any]:
        """Return the options that an address stands for, by name; configured ones go before them. By default none.

        Args:
            url: The address, `SCHEME://…`, with one of `schemes`.

        Raises:
            ConfigError: It cannot be used.
        """
        return {}

    @property
    @abstractmethod
    def capabilities(self) -> RegistryCapabilities:
        """What this registry, with these options, promises."""

    async def open(self) -> None:
        """Make ready. Called once, before everything else."""
        return

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """The entry, with every change that had returned to anybody before this was called; None if there is none."""

    @abstractmethod
    async def create(self, key: str, value: bytes) -> int | None:
        """Make an entry that is not there.

        Returns:
            Its revision, higher than all that an earlier entry of this key had. None if there is an entry, which is
            left as it is.
        """

    @abstractmethod
    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        """Change an entry whose revision is still the given one.

        Returns:
            Its new revision, which is higher. None if it has another revision, or is not there: nothing has changed.
        """

    @abstractmethod
    async def delete(self, key: str, revision: int) -> bool:
        """Forget an entry whose revision is still the given one. False as `update` returns None."""

    @abstractmethod
    async def keys(self, prefix: str = "") -> list[str]:
        """Keys of all entries that begin with `prefix`, sorted."""

    async def aclose(self) -> None:
        """Release what is held; entries stay. May be called twice."""
        return
