"""Fixtures of the transport's tests: servers, transports, a faulty wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from flamecore.abc.transport import TransportContext
from flamecore.errors import MissingDependencyError
from flamecore.runtime.codec.codec import Codec
from flamecore.testing.progress import patience
from flamestream_nats import NatsTransport, Options
from flamestream_nats.testing import NatsServer, program

LIMIT_S = 10.0


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test of the plugin as one that needs its client."""
    item.add_marker("nats")


@pytest.fixture(scope="session", autouse=True)
def _there_is_a_server() -> None:
    try:
        program()
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def server() -> Iterator[NatsServer]:
    """Yield a server that keeps running; tests must not change it."""
    with NatsServer() as made:
        yield made


@pytest.fixture(scope="module")
def storing() -> Iterator[NatsServer]:
    """Yield a server with JetStream that keeps running; tests must not change it."""
    with NatsServer(jetstream=True) as made:
        yield made


class Job:
    """The processes of one job, all in this one, and the losses they report."""

    def __init__(self, stack: AsyncExitStack, url: str, options: dict[str, Any], context: dict[str, Any]) -> None:
        self.lost: asyncio.Queue[tuple[str, Exception]] = asyncio.Queue()
        self.locations: dict[str, str] = {}
        self._stack = stack
        self._url = url
        self._options = options
        self._context = context

    async def join(self, node: str, *, url: str = "", **options: Any) -> NatsTransport:
        """Add a process to the job."""
        context = {
            "job": "test",
            "incarnation": 1,
            "codec": Codec(),
            "token": "t0ken",
            "lost": lambda location, error: self.lost.put_nowait((location, error)),
            **self._context,
        }
        made = Options(**{"servers": (url or self._url,), **self._options, **options})
        transport = NatsTransport(made, TransportContext(node=node, **context))
        self._stack.push_async_callback(transport.aclose)
        self.locations[node] = await transport.start()
        return transport

    async def next_lost(self) -> tuple[str, Exception]:
        """Return the next lost process's location and error."""
        async with patience(LIMIT_S):
            return await self.lost.get()


MakeJob = Callable[..., AbstractAsyncContextManager[Job]]


@pytest.fixture
def job() -> MakeJob:
    """Return `make`: `async with job(url, options, **context fields) as made`.

    Then `await made.join("node")` adds a process.
    """

    @asynccontextmanager
    async def make(url: str, options: dict[str, Any] | None = None, **context: Any) -> AsyncIterator[Job]:
        async with AsyncExitStack() as stack:
            yield Job(stack, url, options or {}, context)

    return make


class Proxy:
    """A wire to the server that can be cut, stalled and slowed."""

    def __init__(self, port: int) -> None:
        self.url = ""
        self.flows = asyncio.Event()
        self.pause_s = 0.0
        """Delay of each piece it carries, in seconds."""
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.flows.set()

    async def __aenter__(self) -> Proxy:
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._listener.wait_closed()

    def cut(self) -> None:
        """End all connections and lose what is on its way."""
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pump(source, target))
            self._tasks.add(task)
            self._writers.add(target)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while piece := await source.read(1000 if self.pause_s else 65536):
                await self.flows.wait()
                if self.pause_s:
                    await asyncio.sleep(self.pause_s)
                target.write(piece)
                await target.drain()
        except OSError:
            pass  # it was cut
        finally:
            target.close()


@pytest.fixture
def proxy() -> type[Proxy]:
    """Return the class: `async with proxy(server.port) as wire: ... wire.url`."""
    return Proxy
