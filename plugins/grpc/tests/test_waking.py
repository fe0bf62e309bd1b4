"""A busy event loop: gRPC's thread must not wait for it to read one byte a turn."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from grpc import aio

from flamecore.abc.transport import TransportContext
from flamecore.runtime.codec.codec import Codec
from flamestream_grpc import GrpcTransport
from flamestream_grpc.waking import unclog


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


def test_all_wake_up_bytes_are_read_in_one_turn() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        read_end, write_end = socket.socketpair()
        with read_end, write_end:
            read_end.setblocking(False)
            queue = PollerCompletionQueue(read_end)
            loop.add_reader(read_end, partial(queue.handle_events, loop))
            assert unclog(loop)
            write_end.send(b"1" * 200)
            for _ in range(5):
                await asyncio.sleep(0)
            assert queue.turns == 1
            write_end.send(b"1")
            await asyncio.sleep(0.01)
            assert queue.turns == 2
            loop.remove_reader(read_end)

    asyncio.run(run())


def test_events_behind_a_failing_one_are_handled() -> None:
    """The queue of gRPC is one for all loops: events of a closed loop fail in the next."""

    async def run() -> int:
        loop = asyncio.get_running_loop()
        failed = []
        loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
        read_end, write_end = socket.socketpair()
        with read_end, write_end:
            read_end.setblocking(False)
            queue = PollerCompletionQueue(read_end, ("good", "bad", "bad", "good", "good"))
            loop.add_reader(read_end, partial(queue.handle_events, loop))
            assert unclog(loop)
            write_end.send(b"1" * len(queue.events))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not queue.events
            loop.remove_reader(read_end)
        return len(failed)

    assert asyncio.run(run()) == 2


def test_a_loop_without_grpc_is_left_alone() -> None:
    async def run() -> bool:
        return unclog(asyncio.get_running_loop())

    assert not asyncio.run(run())


def test_grpc_is_found_as_it_is_installed(tmp_path: Path) -> None:
    """If this fails, gRPC wakes the loop in a new way: see whether it still blocks."""

    async def run() -> list[Any]:
        context = TransportContext(job="j", codec=Codec(), node="n", token="t" * 32, folder=str(tmp_path))
        transport = GrpcTransport(None, context)
        try:
            await transport.start()
            selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
            return [key.data[0]._callback for key in selector.get_map().values() if key.data[0] is not None]
        finally:
            await transport.aclose()

    assert aio.Channel is not None
    callbacks: list[Callable[..., Any]] = asyncio.run(run())
    assert any(isinstance(callback, partial) and callback.func.__name__ == "_read_all" for callback in callbacks)
