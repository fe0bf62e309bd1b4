"""The half of a transport that its links have in common: addresses, channels, lost processes."""

from __future__ import annotations

import asyncio
import secrets
from abc import abstractmethod
from collections import Counter
from typing import Any, ClassVar

from flamecore.abc.transport import Transport, TransportCapabilities, TransportContext
from flamecore.errors import FlameError, FrameError, PeerGoneError, TransportClosedError, TransportError
from flamecore.toolkit.closing import to_its_end
from flamecore.toolkit.frames import Framing
from flamecore.toolkit.links.connection import Dialed, Greeting
from flamecore.toolkit.links.endpoint import LinkedEndpoint
from flamecore.toolkit.links.incoming import HELLO
from flamecore.toolkit.links.link import Link
from flamecore.toolkit.links.outgoing import Outgoing
from flamecore.toolkit.links.server import Server


class LinkedTransport(Transport):
    """A transport whose processes connect to each other.

    A driver listens in `start`, sets `location`, and gives each accepted call to `server.serve`; it dials, and stops
    listening.

    Attributes:
        refused: Number of refusals by reason, one word each; `broken` are connections that ended without goodbye,
            `repeated` frames that came again after that.
        location: Location of this process for others, as returned by `start`.
    """

    unreachable_hint: ClassVar[str]
    """The remedy where a process cannot be reached."""

    def __init__(self, options: Any, context: TransportContext) -> None:
        super().__init__(options or self.Options(), context)
        self.framing = Framing(context.job, context.incarnation, max_body_bytes=self.options.max_frame_bytes)
        self.refused: Counter[str] = Counter()
        self.endpoints: dict[str, LinkedEndpoint] = {}
        self.location = ""
        self.instance = secrets.token_hex(16)
        self.server = Server(self, context.token)
        self._links: dict[str, Link] = {}
        self._gone: dict[str, FlameError] = {}
        self._homes: dict[str, Link] = {}  # by receiver, as `locate` has returned
        self._closed = False

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=True, serialises=True)

    # -- for a driver to define --------------------------------------------------------------------------------------

    @abstractmethod
    async def dial(self, location: str, deadline: float) -> Dialed:
        """Connect to a location, show the greeting of this process, and wait for an answer.

        Args:
            location: A location for which `is_location` is true.
            deadline: End of the attempt to connect, in time of the event loop's clock; the other process has
                `connect_timeout_s` after that to answer, for its event loop may be busy with a user's function.

        Raises:
            BrokenConnectionError: It fails.
        """

    @abstractmethod
    def is_location(self, text: str) -> bool:
        """Return whether a process of this transport may listen at a location.

        Locations that peers name must pass, because this process connects to them to see who is gone.
        """

    @abstractmethod
    async def reachable(self, location: str) -> bool:
        """Return whether a process listens at a location, even if too busy to answer."""

    def check_exposed(self, location: str) -> None:
        """Check that messages may go to a location. Raises TransportError."""

    async def stop_listening(self) -> None:
        """Accept no more calls, and end those that are served still; a second call does nothing."""

    # -- for a driver to use -----------------------------------------------------------------------------------------

    @property
    def greeting(self) -> Greeting:
        """Return the greeting of this process."""
        return Greeting(self.context.token.encode(), self.framing.wrap(HELLO), self.location, self.instance)

    # -- for endpoints -----------------------------------------------------------------------------------------------

    async def bind(self, address: str) -> LinkedEndpoint:
        if self._closed:
            raise TransportClosedError("the transport is closed", address=address, peer="")
        if address in self.endpoints:
            raise TransportError(f"{address} is bound already", address=address, peer="")
        endpoint = self.endpoints[address] = LinkedEndpoint(address, self)
        return endpoint

    def encode(self, message: Any) -> bytes:
        data: bytes = self.context.codec.encode(message)
        return data

    def decode(self, body: bytes) -> Any:
        return self.context.codec.decode(body)

    def taker(self, address: str) -> LinkedEndpoint | None:
        return self.endpoints.get(address)

    def outgoing(self, sender: str, receiver: str) -> Outgoing:
        link = self._homes.get(receiver)
        if link is None:
            location = self.context.locate(receiver) if self.context.locate is not None else ""
            if location in ("", self.location) or not self.is_location(location):
                raise PeerGoneError(f"no endpoint is bound to {receiver}", address=sender, peer=receiver)
            if (error := self._gone.get(location)) is not None:
                raise error
            link = self._links.get(location)
            if link is None:
                self.check_exposed(location)
                link = self._links[location] = Link(location, self)
            self._homes[receiver] = link
        return link.channel(sender, receiver)

    def outgoing_of(self, sender: str) -> list[Outgoing]:
        return [
            channel for link in self._links.values() for channel in link.channels.values() if channel.sender == sender
        ]

    # -- for links and the server ------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        return self.context.waits

    def watched(self, location: str) -> bool:
        return self.context.watched(location)

    def count_refused(self, error: FrameError) -> None:
        self.refused[error.reason] += 1

    def link_ended(self, link: Link, error: FlameError, *, lost: bool) -> None:
        self._drop(link)
        if isinstance(error, PeerGoneError) and self.server.instance_at(link.location) in ("", link.instance):
            self._gone[link.location] = error
        if lost:
            self.server.lose(link.instance)
            self._report(link.location, error)

    def peer_came(self, location: str) -> None:
        self._gone.pop(location, None)

    def peer_lost(self, location: str, instance: str, error: FlameError) -> None:
        self._gone[location] = error
        link = self._links.get(location)
        if link is not None and link.instance in ("", instance):
            self._drop(link)
            link.end(error)
        self._report(location, error)

    def _drop(self, link: Link) -> None:
        if self._links.get(link.location) is link:
            del self._links[link.location]
        for receiver in [receiver for receiver, home in self._homes.items() if home is link]:
            del self._homes[receiver]

    def _report(self, location: str, error: FlameError) -> None:
        if self.context.lost is not None and not self._closed:
            self.context.lost(location, error)

    # -- faults for tests --------------------------------------------------------------------------------------------

    def disconnect(self) -> None:
        """Break all connections to others, as a network would; no message may be lost."""
        for link in self._links.values():
            link.disconnect()

    def repeat(self) -> None:
        """Send unconfirmed frames again; the receivers must see none of them twice."""
        for link in self._links.values():
            link.repeat()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close every endpoint and say goodbye; a second call does nothing.

        If it is cancelled, everything is closed all the same, without a goodbye.

        Raises:
            SendTimeout: A connected process has not taken its messages within `send_timeout_s`.
        """
        if self._closed:
            return
        self._closed = True
        try:
            closed = await asyncio.gather(
                *(endpoint.aclose() for endpoint in tuple(self.endpoints.values())), return_exceptions=True
            )
            await asyncio.gather(*(link.aclose() for link in tuple(self._links.values())))
            await self.server.aclose()
        finally:
            await to_its_end(self._break_off())
        for result in closed:
            if isinstance(result, BaseException):
                raise result

    async def _break_off(self) -> None:
        """Break what is still connected, and stop listening."""
        self.endpoints.clear()
        await asyncio.gather(*(link.break_off() for link in tuple(self._links.values())))
        try:
            await self.stop_listening()
        finally:
            await self.server.break_off()
