"""A bound address: the queue of messages from this process and from others."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple, Protocol

from flamecore.abc.transport import Delivery, Endpoint
from flamecore.errors import PeerGoneError, SendTimeout, TransportClosedError
from flamecore.toolkit.links.incoming import Incoming
from flamecore.toolkit.links.options import LinkOptions
from flamecore.toolkit.links.outgoing import Outgoing
from flamecore.toolkit.wait_queue import WaitQueue


class Rooms(Protocol):
    """The transport, as its endpoints see it."""

    options: LinkOptions
    endpoints: dict[str, LinkedEndpoint]

    def encode(self, message: Any) -> bytes:
        """Return the bytes of a message. Raises CodecError."""

    def outgoing(self, sender: str, receiver: str) -> Outgoing:
        """Return the channel to an address in another process. Raises TransportError."""

    def outgoing_of(self, sender: str) -> list[Outgoing]:
        """Return all channels of one sender."""


class Arrived(NamedTuple):
    """A message that waits to be read.

    Attributes:
        delivery: The message.
        channel: Its channel, which is told when it has been read; None if it comes from this process.
        size: Its size in bytes, as it arrived.
    """

    delivery: Delivery
    channel: Incoming | None = None
    size: int = 0


class LinkedEndpoint(Endpoint):
    """One address. Addresses of one process exchange objects as they are."""

    def __init__(self, address: str, transport: Rooms) -> None:
        self.address = address
        self._transport = transport
        self._closed = False
        self._arrived: deque[Arrived] = deque()
        self._ready = asyncio.Event()  # set when a message arrives, or none can any more
        self._waiting: WaitQueue[Delivery] = WaitQueue()  # senders of this process

    # -- sending -----------------------------------------------------------------------------------------------------

    def send_nowait(self, to: str, message: Any) -> bool:
        self._check_open(f"send to {to}")
        local = self._transport.endpoints.get(to)
        if local is not None:
            return local.offer(Delivery(self.address, message))
        channel = self._transport.outgoing(self.address, to)
        if not channel.has_room():
            return False
        channel.push(self._transport.encode(message))
        return True

    async def send(self, to: str, message: Any) -> None:
        if self.send_nowait(to, message):
            return
        local = self._transport.endpoints.get(to)
        if local is not None:
            await local.wait(Delivery(self.address, message))
        else:
            await self._transport.outgoing(self.address, to).wait(self._transport.encode(message))

    # -- from this process -------------------------------------------------------------------------------------------

    def offer(self, delivery: Delivery) -> bool:
        """Take a message if there is room and no sender waits; return whether taken."""
        if self._waiting or len(self._arrived) >= self._transport.options.window_frames:
            return False
        self._put(Arrived(delivery))
        return True

    async def wait(self, delivery: Delivery) -> None:
        """Take a message when its turn comes.

        Raises:
            SendTimeout: There is no room within `send_timeout_s`.
            PeerGoneError: This endpoint was closed.
        """
        limit_s = self._transport.options.send_timeout_s
        await self._waiting.send(
            delivery,
            limit_s,
            sender=delivery.sender,
            receiver=self.address,
            unread=lambda: f"{len(self._arrived)} messages are unread",
        )

    def withdraw(self, sender: str, error: TransportClosedError) -> None:
        """Fail the messages of a closing sender that wait for room."""
        self._waiting.refuse(lambda delivery: error if delivery.sender == sender else None)

    # -- receiving ---------------------------------------------------------------------------------------------------

    def arrive(self, channel: Incoming, message: Any, size: int) -> None:
        """Take a message of another process; its channel has checked that there is room."""
        self._put(Arrived(Delivery(channel.sender, message), channel, size))

    def _put(self, arrived: Arrived) -> None:
        self._arrived.append(arrived)
        self._ready.set()

    def receive_nowait(self) -> Delivery | None:
        self._check_open("receive")
        if not self._arrived:
            return None
        delivery, channel, size = self._arrived.popleft()
        if channel is not None:
            channel.consume(size)
        if self._waiting:
            most = self._transport.options.window_frames
            self._waiting.admit(
                lambda: len(self._arrived) < most, lambda waiting: self._arrived.append(Arrived(waiting))
            )
        return delivery

    async def receive(self) -> Delivery:
        while (delivery := self.receive_nowait()) is None:
            self._ready.clear()
            await self._ready.wait()
        return delivery

    # -- closing -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Deliver what was sent, then unbind the address; discard unread messages.

        A second call does nothing.

        Raises:
            SendTimeout: A connected process has not taken its messages within `send_timeout_s`.
        """
        if self._closed:
            return
        self._closed = True
        self._transport.endpoints.pop(self.address, None)
        self._ready.set()
        while self._arrived:
            arrived = self._arrived.popleft()
            if arrived.channel is not None:
                arrived.channel.consume(arrived.size)
        gone = PeerGoneError(f"{self.address} was closed", address="", peer=self.address)
        self._waiting.refuse(lambda _: gone)
        closed = self._closed_error("send")
        for endpoint in self._transport.endpoints.values():
            endpoint.withdraw(self.address, closed)
        channels = self._transport.outgoing_of(self.address)
        for channel in channels:
            channel.abandon(closed)
        await self._handed_over(channels)

    async def _handed_over(self, channels: list[Outgoing]) -> None:
        limit_s = self._transport.options.send_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                for channel in channels:
                    await channel.settled.wait()
        except TimeoutError:
            late = next(channel for channel in channels if channel.kept)
            raise SendTimeout(
                f"{self.address} closes, and {late.receiver} has not taken its last {len(late.kept)} messages "
                f"within {limit_s:g} s",
                address=self.address,
                peer=late.receiver,
                timeout_s=limit_s,
            ) from None

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise self._closed_error(what)

    def _closed_error(self, what: str) -> TransportClosedError:
        return TransportClosedError(f"{self.address} is closed and cannot {what}", address=self.address, peer="")
