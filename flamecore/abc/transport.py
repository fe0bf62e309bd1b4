"""The contract of transports: hand-over between addresses.

Addresses are names: `worker/3`, `acker/0`, `rear/counts`. There is one channel for each (sender, receiver). The laws:

* FIFO: a channel never reorders, never duplicates, never drops; a lost message is an error, not a gap;
* no order is promised *between* channels;
* `send` waits while the receiver has no room, `aclose` first hands over all messages that were sent;
* a transport knows nothing of progress, operations or the meaning of its messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

API: int = 1

SUPERVISOR: Final = "supervisor"
"""The name of the process that controls a job, and that others look for."""


class Delivery(NamedTuple):
    """One message as it arrives, and its sender."""

    sender: str
    message: Any


@dataclass(frozen=True, slots=True)
class TransportCapabilities:
    """The abilities of a transport.

    Attributes:
        multi_process: Addresses may live in different processes; the flow must then be importable there.
        serialises: A received message is a copy made of bytes, not the object that was sent.
    """

    multi_process: bool
    serialises: bool


@dataclass(frozen=True, slots=True)
class Outlook:
    """The places and protection of a transport, known before it starts.

    Attributes:
        place: Place where other processes would reach this one, in words for people; empty: none can.
        join: The address that `flamestream worker --join` takes to find this process, with one of the transport's
            schemes; empty: it is not known before it starts.
        known_by: The option, with a value as in a job file, by which that address would be known, such as
            `listen = "127.0.0.1:7070"`; empty: there is none, or it is known.
        tls: Whether messages that leave the process are encrypted; None: they do not leave this machine.
        missing: Protection that is missing on the way to other machines, and that the options allow to be missing.
    """

    place: str = ""
    join: str = ""
    known_by: str = ""
    tls: bool | None = None
    missing: tuple[str, ...] = ()


class JobAddress(NamedTuple):
    """An address of a job, in the words of a transport.

    Attributes:
        control: Location of the job's control: there `Transport.start` has returned it. Empty where none is needed.
        options: Options of the transport that the address stands for. Configured ones go before them.
    """

    control: str = ""
    options: Mapping[str, Any] = {}


def _watched_by_nobody(location: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class TransportContext:
    """The facts of a job that a transport is given.

    Attributes:
        job: Identifies the job; a frame of another job is refused.
        incarnation: Number of this start of the job; a frame of an earlier one is a ghost and is refused.
        codec: Encodes and decodes messages (`flamecore.runtime.codec.codec.Codec`), for transports that carry bytes.
        node: Name of this process in the job; `SUPERVISOR` for the one that controls it.
        token: Shared secret of the job; a peer that does not show it is refused. Empty: none is asked for.
        folder: Folder for sockets of this job; only its user has access. Empty: none.
        locate: Returns the location (the result of `Transport.start` there) of the process that an address lives in;
            raises PeerGoneError if it was never bound.
        lost: Called when a connected process is gone without having closed: (its location, why). The location is empty
            when a server that all talk through is gone for good: no process can be reached any more.
        waits: Whether to wait for a peer that is not there yet, as within a job, where not all start at once. A command
            that only asks does not wait: a peer that does not listen is an error at once.
        watched: Returns whether somebody else says when the process at a location is gone, as the job does of its
            nodes. A driver waits for such a process without a limit, for it may be busy with a call of a user's
            function, or be stopped: for an answer to a greeting, for room, and for a new connection, as long as the
            system does not say that nothing listens there.
    """

    job: str = ""
    incarnation: int = 0
    codec: Any = None
    node: str = ""
    token: str = ""
    folder: str = ""
    locate: Callable[[str], str] | None = None
    lost: Callable[[str, Exception], None] | None = None
    waits: bool = True
    watched: Callable[[str], bool] = _watched_by_nobody


# `send_nowait` beside `send`, since most messages find room: an await for each would cost more than
# the hand-over.
class Endpoint(ABC):
    """One bound address.

    `receive` is used by one task; `send` may be used by several.
    """

    address: str

    @abstractmethod
    def send_nowait(self, to: str, message: Any) -> bool:
        """Hand over if there is room; return False if there is none.

        Then nothing was sent.

        Raises:
            TransportClosedError: This endpoint is closed.
            PeerGoneError: `to` is not bound, or no longer.
            CodecError: The message cannot be encoded.
        """

    @abstractmethod
    async def send(self, to: str, message: Any) -> None:
        """Hand over; wait while there is no room at the receiver.

        Raises as `send_nowait`, and `SendTimeout`.

        Order: messages to one address arrive in the order of these calls. Messages must not be changed afterwards.

        Cancelling the wait loses nothing: the message was handed over or was not, and no other one is touched.
        """

    @abstractmethod
    async def receive(self) -> Delivery:
        """Return the next message; wait for one.

        Cancelling the wait loses nothing.

        Raises:
            TransportClosedError: This endpoint is closed, also while waiting.
        """

    @abstractmethod
    def receive_nowait(self) -> Delivery | None:
        """Return the next message if one is there, otherwise None."""

    @abstractmethod
    async def aclose(self) -> None:
        """Hand over all messages that were sent, then unbind the address.

        Messages not yet received are discarded. A second call does nothing.
        """


# Nothing about progress, segments or acks: any transport carries any acker, and each can be tested
# alone.
class Transport(ABC):
    """A transport driver: makes endpoints that can reach each other."""

    name: ClassVar[str]
    api: ClassVar[int] = API
    Options: ClassVar[Any] = None
    schemes: ClassVar[tuple[str, ...] | None] = None
    """Schemes of the addresses by which a job is joined over it, such as `("tcp",)`; None: its name is the only one."""

    def __init__(self, options: Any, context: TransportContext) -> None:
        self.options = options
        self.context = context

    @classmethod
    def address_of(cls, url: str) -> JobAddress:
        """Return the parts of an address by which a job is joined.

        By default all that follows `://` is the control's location.

        Args:
            url: The address, `SCHEME://…`, with one of `schemes`; as in `Outlook.join`, or as a user has written it.

        Raises:
            ConfigError: It cannot be used.
        """
        return JobAddress(url.partition("://")[2])

    @property
    @abstractmethod
    def capabilities(self) -> TransportCapabilities:
        """Return the abilities of this transport with these options."""

    def outlook(self) -> Outlook:
        """Return the effects that `start` would have, without listening or connecting.

        For `flamestream check`.

        Raises:
            ConfigError, TransportError: `start` would refuse, as far as that can be known beforehand.
        """
        return Outlook()

    async def start(self) -> str:
        """Begin to listen; called once, before `bind`.

        Returns:
            The location by which other processes reach this one; empty where addresses are enough.

        Raises:
            TransportError: It cannot listen, or may not: other than on this machine only with TLS and a token.
        """
        return ""

    @abstractmethod
    async def bind(self, address: str) -> Endpoint:
        """Open an address for sending and receiving.

        Raises:
            TransportError: The address is taken, or cannot be opened.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close every endpoint. A second call does nothing.

        If it is cancelled, as by a limit of time, messages that were sent may be lost, but all that it has open
        (servers, connections, tasks) is closed when the call returns: nobody has a way to it any more.
        `flamecore.toolkit.closing.to_its_end` awaits what must not be cut short.
        """
