"""The contract of connections, which a transport makes and links use.

A connection carries whole messages in both directions, in order, until it ends. What it loses when it breaks, the link
sends again over the next one.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, NoReturn, Protocol


class BrokenConnectionError(Exception):
    """A connection could not be made, or broke.

    Args:
        why: The reason, in words of the transport.
        hopeless: Whether another attempt would fail the same way.
        late: Whether time was up before the reason was known.
        absent: Whether nothing listens there.
    """

    def __init__(self, why: str, *, hopeless: bool = False, late: bool = False, absent: bool = False) -> None:
        super().__init__(why)
        self.hopeless = hopeless
        self.late = late
        self.absent = absent


class Greeting(NamedTuple):
    """The credentials that a process shows when it connects.

    Attributes:
        token: Token of the job.
        hello: Frame that only the same version, job and incarnation can unwrap.
        location: Location of the process for others.
        instance: Random text that it has drawn when it started.
    """

    token: bytes
    hello: bytes
    location: str
    instance: str


class Role(NamedTuple):
    """A role of a process in a job, by its certificate, and what such a process may send.

    Attributes:
        name: Name of the role; empty: none is known.
        senders: Prefixes of the addresses that it may send from.
        receivers: Addresses that it may send to; empty: all.
    """

    name: str = ""
    senders: tuple[str, ...] = ("",)
    receivers: frozenset[str] = frozenset()

    def allows(self, sender: str, receiver: str) -> bool:
        """Return whether a process of this role may send from one address to another."""
        return sender.startswith(self.senders) and (not self.receivers or receiver in self.receivers)


class Refusal(Enum):
    """Why a process is refused; all but `DAMAGED` and `REPLACED` say that another attempt is of no use."""

    TOKEN = "it does not show the token of the job"
    UNWANTED = "it is another's, was given up, or sends what nobody takes"
    DAMAGED = "its bytes are damaged"
    REPLACED = "the connection is broken, or there is a newer one"


class Connection(Protocol):
    """The end of a connection."""

    async def read(self) -> bytes | None:
        """Return the next message; None: the other side writes no more.

        Raises:
            BrokenConnectionError: The connection has broken. A server's end may return None instead.
        """

    async def write(self, data: bytes) -> None:
        """Write a message; wait while the other side takes none.

        Raises:
            BrokenConnectionError: The connection has broken.
        """


class Dialed(Connection, Protocol):
    """The end of a connection at the process that made it.

    Attributes:
        instance: Instance of the process that has answered.
    """

    instance: str

    async def finish(self) -> None:
        """Tell the other side that nothing more is written.

        Raises:
            BrokenConnectionError: The connection has broken.
        """

    def abort(self) -> None:
        """Break the connection."""

    async def aclose(self) -> None:
        """Break the connection, and free what belongs to it."""


class Call(Connection, Protocol):
    """The end of a connection at the process that listens.

    Attributes:
        greeting: The caller's credentials.
        roles: The roles of the caller; it may do what one of them may.
    """

    greeting: Greeting
    roles: tuple[Role, ...]

    async def accept(self, instance: str) -> None:
        """Tell the caller that it is admitted, and which process this is."""

    async def refuse(self, refusal: Refusal, why: str) -> NoReturn:
        """End the connection, and raise the transport's error that ends the work on it."""
