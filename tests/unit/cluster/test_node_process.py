"""The process of a node ends its parts on every way, and ends as the control has told it to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from flamecore.abc.transport import Endpoint, TransportContext
from flamecore.errors import SinkError
from flamecore.model.messages import CONTROL, Halt, Halted, Join, Stop
from flamecore.runtime.cluster.node_process import NodeProcess
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.tasks.event_loop import run
from flamecore.testing.progress import patience
from flamestream_sockets import SocketTransport

LIMIT_S = 10.0


class Parts:
    """Parts that take until they are let go to end.

    Args:
        error: The error with which they end.
    """

    silence_s = 30.0

    def __init__(self, error: Exception | None = None) -> None:
        self.ending, self.go = asyncio.Event(), asyncio.Event()
        self.ended = False
        self._error = error

    def stats(self, *, ended: bool = False) -> dict[str, object]:
        return {}

    async def leave(self, *, orderly: bool) -> None:
        self.ending.set()
        await self.go.wait()
        self.ended = True
        if self._error is not None:
            raise self._error


class Scene:
    """A node that has joined, with parts, and its control."""

    def __init__(self, parts: Parts, transport: SocketTransport, endpoint: Endpoint, address: str) -> None:
        self.parts, self.transport, self.endpoint, self.address = parts, transport, endpoint, address

    async def told(self, kind: type) -> None:
        """Wait for a message of a kind from the node."""
        while not isinstance((await self.endpoint.receive()).message, kind):
            pass


def play(act: Callable[[Scene, asyncio.Task[None]], Awaitable[None]], error: Exception | None = None) -> None:
    """Play a scene, in which nothing may be left open."""

    async def main() -> None:
        with TemporaryDirectory(prefix="fs") as folder:
            places: dict[str, str] = {}
            context = TransportContext(
                job="words", codec=Codec(), node="supervisor", token="secret", folder=folder, locate=places.__getitem__
            )
            transport = SocketTransport(None, context)
            bootstrap: dict[str, Any] = {"control": await transport.start(), "node": "w0", "role": "worker"}
            bootstrap |= {
                "transport": "socket",
                "options": {},
                "job": "words",
                "job_name": "words",
                "token": "secret",
                "folder": folder,
            }
            process = NodeProcess(bootstrap | {"incarnation": context.incarnation})
            endpoint = await transport.bind(CONTROL)
            running = asyncio.create_task(process.run())
            try:
                async with patience(LIMIT_S):
                    address, join = await endpoint.receive()
                    assert isinstance(join, Join)
                    places[address] = join.location
                    parts = Parts(error)
                    process._node_epoch = parts  # type: ignore[assignment]
                    await act(Scene(parts, transport, endpoint, address), running)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await transport.aclose()

    run(main())


def test_a_node_whose_job_ends_while_it_ends_its_parts_ends_well() -> None:
    """It has been told to, although the control has gone before it could read that."""

    async def act(scene: Scene, running: asyncio.Task[None]) -> None:
        await scene.endpoint.send(scene.address, Halt())
        await scene.parts.ending.wait()
        await scene.endpoint.send(scene.address, Stop(False))
        await scene.transport.aclose()
        scene.parts.go.set()
        await running
        assert scene.parts.ended

    play(act)


def test_a_node_that_cannot_end_its_parts_ends() -> None:
    async def act(scene: Scene, running: asyncio.Task[None]) -> None:
        await scene.endpoint.send(scene.address, Halt())
        scene.parts.go.set()
        with pytest.raises(SinkError, match="full"):
            await running

    play(act, SinkError("the disk is full", sink="out"))


def test_a_node_says_when_its_parts_have_ended() -> None:
    async def act(scene: Scene, running: asyncio.Task[None]) -> None:
        await scene.endpoint.send(scene.address, Halt())
        await scene.parts.ending.wait()
        scene.parts.go.set()
        await scene.told(Halted)
        assert scene.parts.ended
        await scene.endpoint.send(scene.address, Stop(False))
        await running

    play(act)


@pytest.mark.parametrize("halts", [False, True])
@pytest.mark.parametrize("cancels", [1, 2, 3])
def test_a_node_that_is_told_to_end_by_signals_has_ended_its_parts(halts: bool, cancels: int) -> None:
    """Also one that was about to end them, and one whose user has no patience."""

    async def act(scene: Scene, running: asyncio.Task[None]) -> None:
        if halts:
            await scene.endpoint.send(scene.address, Halt())
            await scene.parts.ending.wait()
        for _ in range(cancels):
            running.cancel()
            await asyncio.sleep(0.01)
        await scene.parts.ending.wait()
        assert not running.done()
        scene.parts.go.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert scene.parts.ended

    play(act)
