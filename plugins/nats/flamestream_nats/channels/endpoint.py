"""A bound address: the queue of arrived messages, and its channels."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from flamecore.abc.transport import Delivery, Endpoint
from flamecore.errors import FrameError, PeerGoneError, SendTimeout, TransportClosedError
from flamecore.toolkit.frames import MAX_BODY_BYTES
from flamecore.toolkit.wait_queue import WaitQueue
from flamestream_nats.channels.envelope import Kind, Letter, refused
from flamestream_nats.channels.incoming import Arrived, Incoming
from flamestream_nats.channels.outgoing import Outgoing
from flamestream_nats.channels.peers import MISSES

if TYPE_CHECKING:
    from flamestream_nats.channels.exchange import Exchange

_MOST_SENDERS = 10_000


class NatsEndpoint(Endpoint):
    """An address of this process.

    Messages to another address of this process are handed over as objects, not encoded.
    """

    def __init__(self, address: str, exchange: Exchange) -> None:
        self.address = address
        self.birth = secrets.randbits(64)
        self.incoming: dict[str, Incoming] = {}
        self.outgoing: dict[str, Outgoing] = {}
        self.subscription: int | None = None
        self._exchange = exchange
        self._queue: deque[Arrived] = deque()
        self._local = 0  # messages of this process in the queue
        self._senders: WaitQueue[Delivery] = WaitQueue()
        self._ready = asyncio.Event()  # set when a message arrives, or none can any more
        self._closed: asyncio.Future[None] | None = None

    # -- sending -----------------------------------------------------------------------------------------------------

    def send_nowait(self, to: str, message: Any) -> bool:
        near = self._near(to)
        if near is not None:
            return near._offer(Delivery(self.address, message))
        channel = self._channel(to)
        body = self._encode(to, message)
        if not channel.has_room():
            return False
        channel.push(body)
        return True

    async def send(self, to: str, message: Any) -> None:
        near = self._near(to)
        if near is not None:
            delivery = Delivery(self.address, message)
            if not near._offer(delivery):
                await near._wait(delivery, self._exchange.options.send_timeout_s)
            return
        channel = self._channel(to)
        body = self._encode(to, message)
        if channel.has_room():
            channel.push(body)
        else:
            await channel.wait(body)

    def _near(self, to: str) -> NatsEndpoint | None:
        """Return the endpoint of `to` if it is in this process, else None.

        Raises:
            TransportClosedError: This endpoint is closed.
            PeerGoneError: The other endpoint is closed.
        """
        if self._closed is not None:
            raise self._is_closed(f"cannot send to {to}", to)
        near = self._exchange.endpoints.get(to)
        if near is not None and near._closed is not None:
            raise PeerGoneError(f"{to} is closed", address=self.address, peer=to)
        return near

    def _channel(self, to: str) -> Outgoing:
        channel = self.outgoing.get(to)
        if channel is None:
            channel = self.outgoing[to] = self._exchange.connect(self, to)
        if channel.error is not None:
            del self.outgoing[to]  # a later send may find a successor
            raise channel.error
        return channel

    def _encode(self, to: str, message: Any) -> bytes:
        body: bytes = self._exchange.context.codec.encode(message)
        if len(body) > MAX_BODY_BYTES:
            raise FrameError(
                f"a message of {len(body)} bytes from {self.address} to {to} is larger than {MAX_BODY_BYTES}",
                hint="Make the payloads smaller.",
                address=self.address,
                peer=to,
                reason="oversized",
            )
        return body

    def _offer(self, delivery: Delivery) -> bool:
        """Queue a message of this process; return whether there was room."""
        if self._senders or self._local >= self._exchange.options.window_frames:
            return False
        self._take(Arrived(delivery, None, 0, 0, False))
        return True

    async def _wait(self, delivery: Delivery, limit_s: float) -> None:
        """Wait until there is room for a message of another endpoint of this process."""
        await self._senders.send(
            delivery,
            limit_s,
            sender=delivery.sender,
            receiver=self.address,
            unread=lambda: f"{self._local} messages are unread",
        )

    # -- receiving ---------------------------------------------------------------------------------------------------

    async def receive(self) -> Delivery:
        while (delivery := self.receive_nowait()) is None:
            self._ready.clear()
            await self._ready.wait()
        return delivery

    def receive_nowait(self) -> Delivery | None:
        if self._closed is not None:
            raise self._is_closed("receives nothing more")
        if not self._queue:
            return None
        arrived = self._queue.popleft()
        if arrived.channel is not None:
            arrived.channel.read(arrived)
        else:
            self._local -= 1
            self._make_room()
        return arrived.delivery

    def _make_room(self) -> None:
        if self._senders:
            most = self._exchange.options.window_frames
            self._senders.admit(
                lambda: self._local < most, lambda delivery: self._take(Arrived(delivery, None, 0, 0, False))
            )

    def _take(self, arrived: Arrived) -> None:
        self._queue.append(arrived)
        self._local += arrived.channel is None
        self._ready.set()

    def letter(self, letter: Letter, reply: str) -> None:
        """Handle a letter that has arrived for this address.

        Raises:
            FrameError: The letter is refused.
        """
        kind, frame = letter.kind, letter.frame
        if frame.receiver != self.address:
            raise refused("address", "a message that went to another address than it names")
        channel = self.incoming.get(frame.sender)
        if channel is None or channel.reply != reply:
            if kind is Kind.BYE:
                return
            channel = self._accept(letter, reply, channel)
        if channel.ended.is_set():
            raise refused("ended", "a message of a channel that has ended")
        self._exchange.heard(channel.location)
        if kind is Kind.DATA:
            # A closing address takes messages and drops them: two that close at once must not wait for each other.
            if (arrived := channel.data(letter)) is not None and self._closed is None:
                self._take(arrived)
        elif kind is Kind.PROBE:
            channel.probe(letter)
        elif kind is Kind.BYE:
            channel.ended.set()
        else:
            raise refused("kind", "a message that is not meant for an address")

    def _accept(self, letter: Letter, reply: str, known: Incoming | None) -> Incoming:
        """Create the channel of a new sender, or its successor from the same process."""
        location, number = self._exchange.origin(reply)
        if known is None:
            if len(self.incoming) >= _MOST_SENDERS:
                raise refused("flood", "a message of one sender too many")
        elif known.location != location:
            if not known.ended.is_set():
                raise refused("taken", "a message of another process in the name of an address that is connected")
        elif known.number > number:
            raise refused("ended", "a message of a channel that has ended")
        else:
            known.ended.set()
        channel = Incoming(self._exchange, self.address, self.birth, letter.frame.sender, reply, location, number)
        self.incoming[letter.frame.sender] = channel
        if self._closed is not None:
            channel.close()
        return channel

    def renew(self) -> None:
        """Find out what was lost while the connection was broken."""
        for outgoing in self.outgoing.values():
            outgoing.renew()
        for incoming in self._connected():
            if self._closed is None:
                incoming.state(ask=True)
            else:
                incoming.close()

    def _connected(self) -> list[Incoming]:
        return [incoming for incoming in self.incoming.values() if not incoming.ended.is_set()]

    # -- closing -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        if self._closed is not None:
            return await asyncio.shield(self._closed)
        self._closed = asyncio.get_running_loop().create_future()
        try:
            self._let_go()
            await self._hand_over()
            await self._part()
        finally:
            self._exchange.forget(self)
            self._closed.set_result(None)

    def _let_go(self) -> None:
        """Release all waiting senders and receivers with an error."""
        self._queue.clear()
        self._local = 0
        self._ready.set()
        self._senders.refuse(self._gone)
        for channel in self.outgoing.values():
            channel.give_up_waiting(self._is_closed("sends nothing more", channel.receiver))
        for incoming in self._connected():
            incoming.close()

    def _gone(self, delivery: Delivery) -> PeerGoneError:
        what = f"{self.address} was closed while {delivery.sender} waited"
        return PeerGoneError(what, address=delivery.sender, peer=self.address)

    async def _hand_over(self) -> None:
        """Wait until the receivers' processes have everything that was sent."""
        channels = [channel for channel in self.outgoing.values() if not channel.settled.is_set()]
        for channel in channels:
            channel.probe()
        limit_s = self._exchange.options.send_timeout_s
        if late := await _at_most(limit_s, {channel.receiver: channel.settled.wait() for channel in channels}):
            raise SendTimeout(
                f"{self.address} closes, and {', '.join(late)} did not take what was sent within {limit_s:g} s",
                hint="Check why the receiver is slow; send_timeout_s limits the wait.",
                address=self.address,
                peer=late[0],
                timeout_s=limit_s,
            )

    async def _part(self) -> None:
        """End every channel; afterwards the address is free for a successor."""
        for outgoing in self.outgoing.values():
            outgoing.bye()
        options = self._exchange.options
        ends = {incoming.sender: incoming.ended.wait() for incoming in self._connected()}
        await _at_most(options.heartbeat_s * MISSES, ends)  # a sender that is gone sends no BYE
        await self._exchange.release(self)

    def _is_closed(self, what: str, peer: str = "") -> TransportClosedError:
        return TransportClosedError(f"{self.address} is closed and {what}", address=self.address, peer=peer)


async def _at_most(limit_s: float, awaited: dict[str, Coroutine[Any, Any, Any]]) -> list[str]:
    """Await all coroutines; return the names of those not done in time, sorted."""
    tasks = {asyncio.ensure_future(wait): name for name, wait in awaited.items()}
    if not tasks:
        return []
    try:
        _, late = await asyncio.wait(tasks, timeout=limit_s)
        return sorted(tasks[task] for task in late)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
