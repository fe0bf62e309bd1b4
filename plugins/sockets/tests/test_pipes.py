"""One end of a socket: messages in pieces, bounds, and the process behind it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flamecore.testing.progress import patience
from flamecore.toolkit.links.budget import Budget
from flamecore.toolkit.links.connection import BrokenConnectionError
from flamestream_sockets.connections import Watch
from flamestream_sockets.peer import is_stopped
from flamestream_sockets.pipe import Kind, Pipe, packed

LIMIT_S = 10.0
MOST = 2**23


def new_pipe() -> Pipe:
    return Pipe(MOST, Budget(MOST))


async def connected(most: int = MOST) -> tuple[Pipe, socket.socket]:
    """Return a pipe, and the other end of its socket."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    _, pipe = await asyncio.get_running_loop().create_connection(lambda: Pipe(most, Budget(2 * MOST)), sock=ours)
    pipe.admit()
    return pipe, theirs


def within_limit(work: Callable[[], Awaitable[None]]) -> None:
    """Run a test."""

    async def run() -> None:
        async with patience(LIMIT_S):
            await work()

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(10))
def test_messages_arrive_whole_whatever_the_pieces(seed: int) -> None:
    draw = random.Random(seed)
    bodies = [draw.randbytes(draw.choice((0, 1, 5, 200, 70_000))) for _ in range(30)]
    data = b"".join(packed(Kind.DATA, body) for body in bodies)

    async def work() -> None:
        pipe, theirs = await connected()

        async def feed() -> None:
            at = 0
            while at < len(data):
                size = draw.choice((1, 3, 5, 1000, 100_000))
                await asyncio.get_running_loop().sock_sendall(theirs, data[at : at + size])
                at += size
                if draw.random() < 0.1:
                    await asyncio.sleep(0)

        feeding = asyncio.create_task(feed())
        assert [await pipe.read() for _ in bodies] == [(Kind.DATA, body) for body in bodies]
        await feeding
        theirs.close()
        with pytest.raises(BrokenConnectionError):
            await pipe.read()

    within_limit(work)


def test_what_is_not_read_waits_at_the_sender() -> None:
    """Memory is bounded on both sides, and everything arrives in the end."""
    body, count = bytes(100_000), 200

    async def work() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        _, pipe = await loop.create_connection(new_pipe, sock=ours)
        _, other = await loop.create_connection(new_pipe, sock=theirs)
        pipe.admit()
        written = 0

        async def write() -> None:
            nonlocal written
            for _ in range(count):
                await other.write(Kind.DATA, body)
                written += 1

        writing = asyncio.create_task(write())
        await asyncio.sleep(0.2)
        assert 10 <= written < 60
        assert pipe._arrived_bytes < 3 * 2**20
        for _ in range(count):
            assert await pipe.read() == (Kind.DATA, body)
        await writing
        pipe.abort()
        other.abort()

    within_limit(work)


def test_messages_without_bytes_wait_at_the_sender_too() -> None:
    async def work() -> None:
        pipe, theirs = await connected()
        empty, count = packed(Kind.DATA, b""), 2**18
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(theirs, empty * count))
        await asyncio.sleep(0.2)
        assert not sending.done()
        assert len(pipe._arrived) < count // 2
        for _ in range(count):
            assert await pipe.read() == (Kind.DATA, b"")
        await sending
        pipe.abort()
        theirs.close()

    within_limit(work)


def test_a_writer_that_waits_learns_that_the_socket_is_broken() -> None:
    async def work() -> None:
        pipe, theirs = await connected()
        asyncio.get_running_loop().call_later(0.05, theirs.close)

        async def write() -> None:
            while True:
                await pipe.write(Kind.DATA, bytes(500_000))

        with pytest.raises(BrokenConnectionError):
            await write()

    within_limit(work)


def test_a_message_that_is_too_large_breaks_the_connection() -> None:
    async def work() -> None:
        pipe, theirs = await connected(most=100)
        theirs.send(packed(Kind.DATA, bytes(100)) + packed(Kind.DATA, bytes(101))[:-1])
        assert await pipe.read() == (Kind.DATA, bytes(100))
        with pytest.raises(BrokenConnectionError, match="a message of 101 bytes is announced; 100 are the limit"):
            await pipe.read()
        theirs.close()

    within_limit(work)


@pytest.mark.parametrize("bit", range(8 * len(packed(Kind.DATA, b"some bytes"))))
def test_a_message_with_a_flipped_bit_breaks_the_connection(bit: int) -> None:
    """Not even a length that is not too large: the bytes that it asks for may never come."""

    async def work() -> None:
        pipe, theirs = await connected()
        good = packed(Kind.DATA, b"some bytes")
        theirs.send(good + (int.from_bytes(good) ^ 1 << bit).to_bytes(len(good)))
        assert await pipe.read() == (Kind.DATA, b"some bytes")
        with pytest.raises(BrokenConnectionError, match=r"of a message (is|are) damaged"):
            await pipe.read()
        theirs.close()

    within_limit(work)


LISTENER = """
import socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print("listens", flush=True)
    sys.stdin.read()
"""


@asynccontextmanager
async def before_a_process(path: Path) -> AsyncIterator[tuple[Pipe, int]]:
    """Yield a pipe to a process, and the number of that process."""
    command = [sys.executable, "-c", LISTENER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"listens\n"
            _, pipe = await asyncio.get_running_loop().create_unix_connection(new_pipe, str(path))
            yield pipe, process.pid
            pipe.abort()
        finally:
            process.kill()


linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells the state of a process behind"
)


@linux
def test_a_process_that_is_stopped_breaks_its_connection(tmp_path: Path) -> None:
    async def work() -> None:
        async with before_a_process(tmp_path / "listener.sock") as (pipe, pid):
            watch = Watch(pipe, 0.05)
            await asyncio.sleep(0.2)
            assert not is_stopped(pipe.socket)
            assert pipe._broken == ""
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(BrokenConnectionError):
                await pipe.read()
            os.kill(pid, signal.SIGCONT)
            watch.end()

    within_limit(work)


@linux
def test_a_stop_that_is_over_before_the_second_look_breaks_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with before_a_process(tmp_path / "listener.sock") as (pipe, pid):
            watch = Watch(pipe, LIMIT_S)  # the looks are the test's
            for _ in range(3):
                os.kill(pid, signal.SIGSTOP)
                while not is_stopped(pipe.socket):
                    time.sleep(0.001)
                watch._look()
                os.kill(pid, signal.SIGCONT)
                while is_stopped(pipe.socket):
                    time.sleep(0.001)
                watch._look()
            assert pipe._broken == ""
            watch.end()

    within_limit(work)
