"""A busy event loop: gRPC's thread must not wait for it to read one byte a turn."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from grpc import aio

from flamecore.abc.transport import TransportContext
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.tasks.event_loop import CHOICE, loop_factory
from flamestream_grpc import GrpcTransport, waking
from flamestream_grpc.waking import unclogged

Loops = Callable[[], asyncio.AbstractEventLoop] | None


@pytest.fixture(params=["asyncio", "uvloop"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Loops:
    """Return the factory of an event loop."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop", reason="uvloop is not installed")
    monkeypatch.setenv(CHOICE, request.param)
    return loop_factory()


class PollerCompletionQueue:
    """A queue that takes one byte a turn, as gRPC's does, and handles all events.

    Events called "bad" fail.
    """

    def __init__(self, read_end: socket.socket, events: Sequence[str] = ()) -> None:
        self.read_end = read_end
        self.events = deque(events)
        self.turns = 0

    def handle_events(self, loop: asyncio.AbstractEventLoop) -> None:
        assert loop.is_running()
        self.turns += 1
        assert self.read_end.recv(1)
        while self.events:
            if self.events.popleft() == "bad":
                raise RuntimeError("Event loop is closed")


def test_all_wake_up_bytes_are_read_in_one_turn(loops: Loops) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        read_end, write_end = socket.socketpair()
        with read_end, write_end:
            read_end.setblocking(False)
            queue = PollerCompletionQueue(read_end)
            with unclogged(loop):
                loop.add_reader(read_end, partial(queue.handle_events, loop))
            write_end.send(b"1" * 200)
            for _ in range(5):
                await asyncio.sleep(0)
            assert queue.turns == 1
            write_end.send(b"1")
            await asyncio.sleep(0.01)
            assert queue.turns == 2
            loop.remove_reader(read_end)

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(run())


def test_events_behind_a_failing_one_are_handled(loops: Loops) -> None:
    """The queue of gRPC is one for all loops: events of a closed loop fail in the next."""

    async def run() -> int:
        loop = asyncio.get_running_loop()
        failed = []
        loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
        read_end, write_end = socket.socketpair()
        with read_end, write_end:
            read_end.setblocking(False)
            queue = PollerCompletionQueue(read_end, ("good", "bad", "bad", "good", "good"))
            with unclogged(loop):
                loop.add_reader(read_end, partial(queue.handle_events, loop))
            write_end.send(b"1" * len(queue.events))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not queue.events
            loop.remove_reader(read_end)
        return len(failed)

    with asyncio.Runner(loop_factory=loops) as runner:
        assert runner.run(run()) == 2


def test_other_readers_are_left_alone(loops: Loops) -> None:
    async def run() -> list[object]:
        loop = asyncio.get_running_loop()
        read_end, write_end = socket.socketpair()
        with read_end, write_end:
            read_end.setblocking(False)
            write_end.send(b"123")
            found: list[object] = []
            ready: asyncio.Future[None] = loop.create_future()

            def handle(*arguments: object) -> None:
                found.extend((*arguments, read_end.recv(1)))
                loop.remove_reader(read_end)
                ready.set_result(None)

            with unclogged(loop):
                loop.add_reader(read_end, handle, 7)
            await ready
            return [*found, read_end.recv(3)]

    with asyncio.Runner(loop_factory=loops) as runner:
        assert runner.run(run()) == [7, b"1", b"23"]


def test_grpc_is_found_as_it_is_installed(tmp_path: Path, loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, gRPC wakes the loop in a new way: see whether it still blocks."""
    found: list[socket.socket] = []

    def note(read_end: socket.socket, handle: Callable[[], object]) -> None:
        found.append(read_end)
        handle()

    monkeypatch.setattr(waking, "_read_all", note)

    async def run() -> None:
        context = TransportContext(job="j", codec=Codec(), node="n", token="t" * 32, folder=str(tmp_path))
        transport = GrpcTransport(None, context)
        await transport.start()
        await transport.aclose()

    assert aio.Channel is not None
    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(run())
    assert found
