"""In-process transport: any number of addresses in one event loop.

Objects are handed over as they are. With `serialise = true` every message is turned into bytes and back, as it would be
between processes: that finds, in one process, messages that could not leave it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, ClassVar

import msgspec

from flamecore.abc.hooks import hookimpl
from flamecore.abc.transport import Delivery, Endpoint, Transport, TransportCapabilities, TransportContext
from flamecore.errors import PeerGoneError, TransportClosedError, TransportError
from flamecore.toolkit.wait_queue import WaitQueue


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the transport.

    Attributes:
        serialise: Turn messages into bytes and back all the same.
        room: Most messages waiting at one address before senders wait.
    """

    serialise: bool = False
    room: int = 4096


class InprocEndpoint(Endpoint):
    """A queue of deliveries. One task receives; senders are in the same event loop."""

    def __init__(self, address: str, transport: InprocTransport) -> None:
        self.address = address
        self._transport = transport
        self._queue: deque[Delivery] = deque()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        # Not an event: to wait for one takes a coroutine and a queue besides the future, for each message.
        self._receiver: asyncio.Future[None] | None = None
        self._senders: WaitQueue[Delivery] = WaitQueue()

    def _peer(self, to: str) -> InprocEndpoint:
        if self._closed:
            raise TransportClosedError(
                f"{self.address} is closed and cannot send to {to}", address=self.address, peer=to
            )
        peer = self._transport.endpoints.get(to)
        if peer is None:
            raise PeerGoneError(f"no endpoint is bound to {to}", address=self.address, peer=to)
        return peer

    def send_nowait(self, to: str, message: Any) -> bool:
        transport = self._transport
        peer = None if self._closed else transport.endpoints.get(to)
        if peer is None:
            peer = self._peer(to)
        if peer._senders.waiting or len(peer._queue) >= transport.options.room:
            return False
        peer._take(Delivery(self.address, transport.copy(message)))
        return True

    async def send(self, to: str, message: Any) -> None:
        if self.send_nowait(to, message):
            return
        peer = self._peer(to)
        await peer._senders.wait(Delivery(self.address, self._transport.copy(message)))

    def _take(self, delivery: Delivery) -> None:
        self._queue.append(delivery)
        receiver = self._receiver
        if receiver is not None and not receiver.done():
            receiver.set_result(None)

    def receive_nowait(self) -> Delivery | None:
        if self._closed:
            raise TransportClosedError(f"{self.address} is closed", address=self.address, peer="")
        if not self._queue:
            return None
        delivery = self._queue.popleft()
        if self._senders.waiting:
            self._make_room()
        return delivery

    def _make_room(self) -> None:
        self._senders.admit(lambda: len(self._queue) < self._transport.options.room, self._queue.append)

    async def receive(self) -> Delivery:
        while True:
            if self._queue or self._closed:
                delivery = self.receive_nowait()
                assert delivery is not None
                return delivery
            # Not by `create_future` of the running loop: each look-up of that asks the system for the process.
            self._receiver = asyncio.Future(loop=self._loop)
            try:
                await self._receiver
            finally:
                self._receiver = None

    def _wake(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._transport.endpoints.pop(self.address, None)
        self._queue.clear()
        self._wake()
        self._senders.refuse(self._gone)

    def _gone(self, delivery: Delivery) -> PeerGoneError:
        what = f"{self.address} was closed while {delivery.sender} waited"
        return PeerGoneError(what, address=delivery.sender, peer=self.address)


class InprocTransport(Transport):
    """All endpoints of one job in one process."""

    name = "inproc"
    Options = Options
    schemes: ClassVar[tuple[str, ...] | None] = ()  # no process joins from elsewhere

    def __init__(self, options: Any, context: TransportContext) -> None:
        super().__init__(options or Options(), context)
        self.endpoints: dict[str, InprocEndpoint] = {}

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=False, serialises=self.options.serialise)

    def copy(self, message: Any) -> Any:
        """Return the receiver's message: the object itself, or a copy by way of bytes."""
        if not self.options.serialise:
            return message
        codec = self.context.codec
        return codec.decode(codec.encode(message))

    async def bind(self, address: str) -> InprocEndpoint:
        if address in self.endpoints:
            raise TransportError(f"{address} is bound already", address=address, peer="")
        endpoint = self.endpoints[address] = InprocEndpoint(address, self)
        return endpoint

    async def aclose(self) -> None:
        for endpoint in tuple(self.endpoints.values()):
            await endpoint.aclose()


@hookimpl
def flamestream_transport() -> type[Transport]:
    return InprocTransport
