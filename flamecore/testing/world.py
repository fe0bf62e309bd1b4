"""A small made-up world for jobs: processes that die at any moment, a network, a disk and a wall clock (seeded).

Everything that a process does to the outside takes made-up time, and is a *moment* at which something may go wrong:
`World.moment` is called for each of them, and whoever plays fate there may kill the process. What a dead process still
waits for never comes. What it had on its way may arrive or be lost, as fate will have it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from contextvars import ContextVar, copy_context
from random import Random
from typing import Any, ClassVar, Final, TypeVar

from flamecore.errors import PeerGoneError, StoreError, TransportClosedError
from flamecore.store import Store, StoreCapabilities, StoreContext, check_name
from flamecore.transport import Delivery, Endpoint, Transport, TransportCapabilities, TransportContext

T = TypeVar("T")

PROCESS: Final[ContextVar[Process | None]] = ContextVar("process", default=None)
"""The process that is at work."""


class World:
    """What processes share.

    Args:
        random: Decides everything that is left to chance.
        moment: Fate: called with the process whenever it does something to the outside.
        delay_s: How long things usually take.
        tears: Whether a part or manifest that is being stored when its process dies may be there in part. No store may
            do that; but disks do.
        copy: Applied to every message between processes, as a codec would.
    """

    def __init__(
        self,
        random: Random,
        moment: Callable[[Process], None],
        *,
        delay_s: float = 0.001,
        tears: bool = False,
        copy: Callable[[Any], Any] | None = None,
    ) -> None:
        self.random = random
        self.moment = moment
        self.delay_s = delay_s
        self.tears = tears
        self.copy = copy
        self.disk: dict[str, bytes] = {}
        self.wall_us = 1_700_000_000_000_000
        self.store_fails: str = ""  # "before" or "after" it has done what it is asked for: the next call does

    def now_us(self) -> int:
        """The wall clock. It may be put back or forward by changing `wall_us`."""
        return self.wall_us + round(asyncio.get_running_loop().time() * 1e6)

    def delay(self) -> float:
        """How long the next thing takes: seldom very long."""
        random = self.random.random()
        return self.delay_s * (random if random < 0.95 else 200 * (random - 0.95) * 20)


class Process:
    """A process: what runs in it reaches the outside only while it lives."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self._tasks: set[asyncio.Task[Any]] = set()
        self._limbo: list[asyncio.Future[Any]] = []

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something in this process."""
        context = copy_context()
        context.run(PROCESS.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def began(self, task: asyncio.Task[Any]) -> None:
        """A task was made here."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if not self.alive:
            asyncio.get_running_loop().call_soon(task.cancel)

    def kill(self) -> None:
        """End it, in the midst of whatever it does."""
        if self.alive:
            self.alive = False
            asyncio.get_running_loop().call_soon(self._sweep)

    def _sweep(self) -> None:
        for task in sorted(self._tasks, key=lambda task: task.get_name()):
            task.cancel()

    async def wait(self) -> None:
        """Something takes a while."""
        await self.check()
        await asyncio.sleep(self.world.delay())
        await self.check()

    async def check(self) -> None:
        """A moment. Never returns in a dead process."""
        if self.alive:
            self.world.moment(self)
        if not self.alive:
            await self.never()

    async def never(self) -> None:
        """Wait for what will not be."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._limbo.append(future)
        await future

    async def reach(self, do: Callable[[], T], late: Callable[[], None] = lambda: None) -> T:
        """Do something outside, which takes a while to get there, and a while to hear of.

        Args:
            do: What is done, if this process lives when it gets there, or if fate lets it get there all the same.
            late: Done instead, if it does not.
        """
        loop, world = asyncio.get_running_loop(), self.world
        await self.check()
        answer: asyncio.Future[T] = loop.create_future()
        self._limbo.append(answer)

        def arrive() -> None:
            if self.alive:
                world.moment(self)
            if not self.alive and world.random.random() < 0.5:
                return late()
            try:
                result = do()
            except Exception as error:  # noqa: BLE001 - the answer
                loop.call_later(world.delay(), hear, None, error)
            else:
                loop.call_later(world.delay(), hear, result, None)
            return None

        def hear(result: Any, error: Exception | None) -> None:
            if self.alive:
                world.moment(self)
            if self.alive and not answer.done():
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(result)

        loop.call_later(world.delay(), arrive)
        try:
            return await answer
        finally:
            self._limbo.remove(answer)


def follow_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let every process of this loop know its tasks."""

    def factory(loop: asyncio.AbstractEventLoop, work: Any, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.began(task)
        return task

    loop.set_task_factory(factory)


# -- the network -------------------------------------------------------------------------------------------------------


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
        """Let messages for an address come to it."""
        self._known.add(endpoint.address)
        self.endpoints[endpoint.address] = endpoint

    def carry(self, sender: SimulatedEndpoint, to: str, message: Any) -> None:
        """Bring a message on its way: later than what went before it on that channel, and else whenever it likes."""
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
        """A message has come."""
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


# -- the disk ----------------------------------------------------------------------------------------------------------


class SimulatedStore(Store):
    """The disk of the world, as one process sees it: calls take time, fail, are lost, or are done and not heard of."""

    name: ClassVar[str] = "simulated"

    def __init__(self, process: Process) -> None:
        super().__init__(None, StoreContext("job"))
        self._process, self._world = process, process.world

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(durable=True, shared=True)

    async def _call(self, do: Callable[[], T], late: Callable[[], None] = lambda: None) -> T:
        world = self._world

        def done() -> T:
            fails, world.store_fails = world.store_fails, ""
            if fails == "before":
                raise self._failed()
            result = do()
            if fails == "after":
                raise self._failed()
            return result

        return await self._process.reach(done, late)

    def _failed(self) -> StoreError:
        return StoreError("the simulated store fails", store=self.name, blob="", injected=True)

    async def create(self, name: str, data: bytes) -> bool:
        check_name(name, self.name)
        disk, world = self._world.disk, self._world

        def write() -> bool:
            return disk.setdefault(name, data) is data

        def tear() -> None:
            if world.tears and name.startswith(("part/", "commit/")) and world.random.random() < 0.5:
                disk.setdefault(name, data[: world.random.randrange(len(data))])

        return await self._call(write, tear)

    async def read(self, name: str) -> bytes | None:
        return await self._call(lambda: self._world.disk.get(name))

    async def names(self, prefix: str = "") -> list[str]:
        return await self._call(lambda: sorted(name for name in self._world.disk if name.startswith(prefix)))

    async def delete(self, names: Collection[str]) -> None:
        def forget() -> None:
            for name in names:
                self._world.disk.pop(name, None)

        await self._call(forget)
