"""Bounds of the memory that other processes have this one hold: unknown ones, by refused frames, and in sum."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from flamecore.abc.transport import TransportContext
from flamecore.errors import CodecError, FrameError, TransportError
from flamecore.runtime.codec.codec import Codec
from flamecore.testing.progress import patience
from flamecore.toolkit.frames import Frame, Framing
from flamecore.toolkit.links.budget import Budget
from flamecore.toolkit.links.connection import BrokenConnectionError
from flamestream_sockets import Options, SocketTransport
from flamestream_sockets.pipe import GREETING_BYTES, Kind, Pipe, packed

LIMIT_S = 10.0
LARGE = 2**21


def frame(body: bytes, sequence: int = 1, job: str = "tests") -> bytes:
    return Framing(job, 1).wrap(Frame("x/0", "b/0", sequence, body))


@asynccontextmanager
async def listening(**options: Any) -> AsyncIterator[SocketTransport]:
    """Yield a transport that has an address b/0, and asks for the token `secret`."""
    with TemporaryDirectory(prefix="flame") as folder:
        context = TransportContext(job="tests", incarnation=1, codec=Codec(), node="b", token="secret", folder=folder)
        transport = SocketTransport(Options(**options), context)
        await transport.start()
        await transport.bind("b/0")
        try:
            yield transport
        finally:
            await transport.aclose()


async def speak(transport: SocketTransport, first: bytes, *parts: bytes) -> None:
    """Send bytes as any process may, all but the first once there is an answer, until the connection ends."""
    reader, writer = await asyncio.open_unix_connection(transport.location.removeprefix("unix:"))
    try:
        writer.write(first)
        async with patience(LIMIT_S):
            await reader.read(1)
            writer.write(b"".join(parts))
            await reader.read()
    except ConnectionResetError:
        return
    finally:
        writer.close()


async def until_served(transport: SocketTransport) -> None:
    async with patience(LIMIT_S):
        while transport._reception._tasks:
            await asyncio.sleep(0.001)


HELLO = packed(Kind.GREETING, msgspec.msgpack.encode((b"secret", frame(b"", 0), "unix:/nowhere", "x")))


@pytest.mark.parametrize(
    "message",
    [
        frame(bytes(1000))[:-1] + b"x",
        frame(bytes(1000))[:-1],
        frame(b"\xc1" * 1000),
        frame(bytes(1000), job="another"),
        frame(bytes(1000), 3),
        b"no frame" * 100,
    ],
    ids=["damaged", "short", "no message", "another job", "gap", "no frame"],
)
def test_a_refused_frame_is_not_kept(message: bytes) -> None:
    """Its memory is free at once: a job runs the garbage collector rarely."""

    async def run() -> None:
        async with listening() as transport:
            gc.collect()
            gc.disable()
            try:
                await speak(transport, HELLO, packed(Kind.DATA, message))
                await until_served(transport)
                assert sum(transport.refused.values()) == 1
                kept = [error for error in gc.get_objects() if isinstance(error, FrameError | CodecError)]
                assert not [error for error in kept if error.__traceback__ or error.__context__]
            finally:
                gc.enable()

    asyncio.run(run())


@pytest.mark.parametrize("kind", [Kind.GREETING, Kind.DATA, Kind.END])
def test_nobody_sends_more_than_a_greeting_before_its_token_is_known(kind: Kind) -> None:
    """Its head is enough to refuse it."""

    async def run() -> None:
        async with listening() as transport:
            await speak(transport, packed(kind, bytes(GREETING_BYTES + 1))[:20])
            await until_served(transport)
            assert transport.refused == {"broken": 1}

    asyncio.run(run())


def test_whoever_was_let_in_sends_large_messages() -> None:
    async def run() -> None:
        async with listening() as transport:
            body = Codec().encode("x" * LARGE)
            speaking = asyncio.create_task(speak(transport, HELLO, packed(Kind.DATA, frame(body))))
            async with patience(LIMIT_S):
                delivery = await transport.endpoints["b/0"].receive()
            assert delivery.message == "x" * LARGE
            speaking.cancel()
            await asyncio.wait((speaking,))

    asyncio.run(run())


async def connected(budget: Budget) -> tuple[Pipe, socket.socket]:
    """Return a pipe that was admitted, and the other end of its socket."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    _, pipe = await asyncio.get_running_loop().create_connection(lambda: Pipe(4 * LARGE, budget), sock=ours)
    pipe.admit()
    return pipe, theirs


def test_large_messages_of_all_peers_wait_for_each_other() -> None:
    """A small one does not wait, a peer that goes away in the midst frees its part, and all arrive in the end."""

    async def run() -> None:
        loop, budget = asyncio.get_running_loop(), Budget(LARGE)
        message = packed(Kind.DATA, bytes(LARGE))
        lines = [await connected(budget) for _ in range(4)]
        sending = [asyncio.create_task(loop.sock_sendall(theirs, message)) for _, theirs in lines[1:]]
        await loop.sock_sendall(lines[0][1], packed(Kind.DATA, b"small"))
        async with patience(LIMIT_S):
            assert (await lines[0][0].read()).body == b"small"
            await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
            first = next(pipe for pipe, _ in lines[1:] if pipe._granted or pipe._arrived)
            waiting = [pair for pair in lines[1:] if pair[0] is not first]
            while not all(pipe._paused for pipe, _ in waiting):
                await asyncio.sleep(0)
            assert sum(len(pipe._rest) for pipe, _ in waiting) < LARGE
            gone, _ = waiting.pop()
            gone.abort()
            assert len((await first.read()).body) == LARGE
            more = asyncio.create_task(first.read())  # it has done with the message
            assert len((await waiting[0][0].read()).body) == LARGE
            more.cancel()
            await asyncio.wait(sending)
            with pytest.raises(BrokenConnectionError):
                await gone.read()
        for task in sending:
            task.exception()
        for pipe, theirs in lines:
            theirs.close()
            await pipe.aclose()
        assert budget.grant(LARGE, lambda: None), "all is free again"

    asyncio.run(run())


def test_nothing_is_read_while_too_much_is_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the sum over all peers; everything arrives once it is read."""
    monkeypatch.setattr("flamecore.toolkit.links.server.UNREAD_BYTES", 2 * LARGE)
    bodies = [Codec().encode("x" * LARGE) for _ in range(5)]

    async def run() -> None:
        async with listening() as transport:
            speaking = []
            for peer, body in enumerate(bodies):
                shown = (b"secret", frame(b"", 0), f"unix:/nowhere/{peer}", f"{peer}")
                data = packed(Kind.GREETING, msgspec.msgpack.encode(shown)), packed(Kind.DATA, frame(body))
                speaking.append(asyncio.create_task(speak(transport, *data)))
            endpoint = transport.endpoints["b/0"]
            async with patience(LIMIT_S):
                while transport.server._unread._held < 2 * LARGE:
                    await asyncio.sleep(0.001)
                while len(transport.server._unread._waiting) < len(bodies) - 2:
                    await asyncio.sleep(0.001)
                assert len(endpoint._arrived) == 2
                assert [len((await endpoint.receive()).message) for _ in bodies] == [LARGE] * len(bodies)
            assert transport.server._unread._held == 0
            for task in speaking:
                task.cancel()
            await asyncio.wait(speaking)

    asyncio.run(run())


@pytest.mark.parametrize("way", ["configured", "by a link", "of the job"])
def test_a_folder_that_all_users_can_replace_is_refused(tmp_path: Path, way: str) -> None:
    """A sticky bit on the folder above is enough."""
    above = tmp_path / "above"
    above.mkdir()
    folder = above / "job"
    if way == "by a link":
        (tmp_path / "target").mkdir(0o700)
        folder.symlink_to(tmp_path / "target")
    elif way == "of the job":
        folder.mkdir(0o700)
    context = TransportContext(node="b", folder=str(folder) if way == "of the job" else "")
    options = Options() if way == "of the job" else Options(folder=str(folder))

    async def start() -> None:
        transport = SocketTransport(options, context)
        await transport.start()
        await transport.aclose()

    above.chmod(0o777)
    with pytest.raises(TransportError, match=f"all users can write {above}, and put another folder in place") as caught:
        asyncio.run(start())
    assert f"chmod +t {above}" in caught.value.hint
    assert folder.exists() == (way != "configured")
    if way != "of the job":
        with pytest.raises(TransportError, match="all users can write"):
            SocketTransport(options, context).outlook()
    above.chmod(0o1777)
    asyncio.run(start())
