"""The network of the simulated world, and its transport.

See `flamecore.testing.simulation.world`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, ClassVar

from flamecore.abc.transport import Delivery, Endpoint, Transport, TransportCapabilities, TransportContext
from flamecore.errors import PeerGoneError, TransportClosedError
from flamecore.testing.simulation.world import Process, World


class Network:
    """Channels between the processes of one start of a job."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.endpoints: dict[str, SimulatedEndpoint] = {}
        self.cut: set[frozenset[Process]] = set()
        self._known: set[str] = set()
        self._last: dict[tuple[str, str], float] = {}
        self._broken: set[tuple[str, str]] = set()

    def bind(self, endpoint: SimulatedEndpoint) -> None:
        """Deliver messages for an address to an endpoint."""
        self._known.add(endpoint.address)
        self.endpoints[endpoint.address] = endpoint

    def carry(self, sender: SimulatedEndpoint, to: str, message: Any) -> None:
        """Schedule a message: later than those before it on its channel, else by chance."""
        world = self.world
        if not sender.process.alive:
            return
        world.moment(sender.process)
        target = self.endpoints.get(to)
        if target is None and to not in self._known:
            raise PeerGoneError(f"nobody was ever bound to {to}", address=sender.address, peer=to)
        if world.copy is not None and target is not None and target.process is not sender.process:
            message = world.copy(message)
        channel = (sender.address, to)
        loop = asyncio.get_running_loop()
        at = self._last[channel] = max(self._last.get(channel, 0.0) + 1e-7, loop.time() + world.delay())
        loop.call_at(at, self._arrive, sender, to, message)

    def _arrive(self, sender: SimulatedEndpoint, to: str, message: Any) -> None:
        channel = (sender.address, to)
        target = self.endpoints.get(to)
        if target is None or not target.process.alive:
            return
        self.world.moment(target.process)
        if not target.process.alive or frozenset((sender.process, target.process)) in self.cut:
            return
        if not sender.process.alive and (channel in self._broken or self.world.random.random() < 0.5):
            self._broken.add(channel)
            return
        target.take(Delivery(sender.address, message))


class SimulatedEndpoint(Endpoint):
    """An address in a process."""

    def __init__(self, address: str, process: Process, network: Network) -> None:
        self.address = address
        self.process = process
        self._network = network
        self._queue: deque[Delivery] = deque()
        self._receiver: asyncio.Future[None] | None = None
        self._closed = False

    def take(self, delivery: Delivery) -> None:
        """Queue a message that has arrived."""
        self._queue.append(delivery)
        self._wake()

    def _wake(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    def send_nowait(self, to: str, message: Any) -> bool:
        self._check()
        if self._network.world.random.random() < 0.01:
            return False
        self._network.carry(self, to, message)
        return True

    async def send(self, to: str, message: Any) -> None:
        self._check()
        await self.process.wait()
        self._network.carry(self, to, message)

    def _check(self) -> None:
        if self._closed:
            raise TransportClosedError(f"{self.address} is closed", address=self.address, peer="")

    def receive_nowait(self) -> Delivery | None:
        self._check()
        return self._queue.popleft() if self._queue and self.process.alive else None

    async def receive(self) -> Delivery:
        while (delivery := self.receive_nowait()) is None:
            self._receiver = asyncio.get_running_loop().create_future()
            await self._receiver
        return delivery

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            if self._network.endpoints.get(self.address) is self:
                del self._network.endpoints[self.address]
            self._wake()


class SimulatedTransport(Transport):
    """The network, as one process sees it."""

    name: ClassVar[str] = "simulated"

    def __init__(self, process: Process, network: Network, context: TransportContext | None = None) -> None:
        super().__init__(None, context or TransportContext())
        self._process, self._network = process, network

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=False, serialises=False)

    async def bind(self, address: str) -> Endpoint:
        endpoint = SimulatedEndpoint(address, self._process, self._network)
        self._network.bind(endpoint)
        return endpoint

    async def aclose(self) -> None:
        for endpoint in tuple(self._network.endpoints.values()):
            if endpoint.process is self._process:
                await endpoint.aclose()
