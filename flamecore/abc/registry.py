"""The contract of registries (ZooKeeper in the papers).

A registry holds who runs a job, and where its parts are, as small entries by key. Each entry has a *revision*, which
grows with every change, and a change names the revision that its author has seen: of several changes at once one
succeeds, and the others learn that their revision is old. This is all the agreement between supervisors that there is.
The contents, and how long a supervisor has the right to a job, are built upon it (`flamecore.runtime.cluster.lease`).
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
    """The value under a key, and its revision, which a change has to name."""

    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class RegistryCapabilities:
    """The promises of a registry.

    Attributes:
        shared: Other processes, also on other hosts, reach the same entries.
    """

    shared: bool


@dataclass(frozen=True, slots=True)
class RegistryContext:
    """The surroundings of a registry.

    Attributes:
        node: Name of this process, for the lists of a server.
        waits: Whether a server that is not there yet is waited for; see `flamecore.abc.transport.TransportContext`.
    """

    node: str = ""
    waits: bool = True


# Compare and set, and nothing more: locks, leases and watches differ from server to server. The
# lease is built upon this once, and is the same on all of them.
class JobRegistry(ABC):
    """A registry driver.

    Calls of one object may overlap. Every call ends in limited time, with an error if need be.

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
        """Return the options that an address stands for, by name.

        Configured ones go before them. By default there are none.

        Args:
            url: The address, `SCHEME://…`, with one of `schemes`.

        Raises:
            ConfigError: It cannot be used.
        """
        return {}

    @property
    @abstractmethod
    def capabilities(self) -> RegistryCapabilities:
        """Return the promises of this registry with these options."""

    async def open(self) -> None:
        """Make ready. Called once, before everything else."""
        return

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """Return the entry, or None if there is none.

        It includes every change that had returned to any caller before this was called.
        """

    @abstractmethod
    async def create(self, key: str, value: bytes) -> int | None:
        """Create an entry that does not exist.

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
        """Delete an entry whose revision is still the given one.

        Returns:
            False where `update` returns None.
        """

    @abstractmethod
    async def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of all entries that begin with `prefix`, sorted."""

    async def aclose(self) -> None:
        """Release what is held; entries stay. May be called twice."""
        return
