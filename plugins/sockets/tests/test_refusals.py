"""Callers that do not belong to a job are refused and counted; it goes on."""

from __future__ import annotations

import asyncio
import gc
import socket
import stat
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from flamecore.abc.transport import Endpoint, TransportContext
from flamecore.errors import ConfigError, ConnectError, PeerGoneError, TransportError
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.tasks.event_loop import run
from flamecore.testing.progress import patience
from flamecore.toolkit.frames import Frame, Framing
from flamecore.toolkit.links.budget import Budget
from flamecore.toolkit.links.connection import BrokenConnectionError
from flamestream_sockets import Options, SocketTransport
from flamestream_sockets.connections import Reception, SocketCall
from flamestream_sockets.pipe import Kind, Pipe, packed

LIMIT_S = 10.0
SECRET = "secret of the tests"
MOST = 2**20


def new_pipe(made: Callable[[Pipe], None]) -> Pipe:
    return Pipe(MOST, Budget(MOST), made)


def wrapped(body: bytes = b"", *, sequence: int = 1, job: str = "tests") -> bytes:
    """Return a frame to b/0."""
    return Framing(job, 1).wrap(Frame("x/0", "b/0", sequence, body or Codec().encode("a message")))


def greeting(
    token: str = SECRET, hello: bytes | None = None, location: str = "unix:/nowhere", instance: str = "x"
) -> bytes:
    """Return a greeting, correct in everything that is not given otherwise."""
    shown = (token.encode(), wrapped(sequence=0) if hello is None else hello, location, instance)
    return packed(Kind.GREETING, msgspec.msgpack.encode(shown))


async def flood(sender: Endpoint) -> None:
    """Send until it fails."""
    while True:
        await sender.send("b/0", "anybody there?")


class Pair:
    """Two processes of a job, a and b, and a sender and a receiver."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.locations: dict[str, str] = {}
        self.lost: list[tuple[str, Exception]] = []

    def context(self, node: str, **changes: Any) -> TransportContext:
        """Return the context of a process."""
        told: dict[str, Any] = {
            "job": "tests",
            "incarnation": 1,
            "codec": Codec(),
            "node": node,
            "token": SECRET,
            "folder": self.folder,
            "locate": lambda address: self.locations[address.partition("/")[0]],
            "lost": lambda location, error: self.lost.append((location, error)),
        }
        return TransportContext(**(told | changes))


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[tuple[Pair, Any, Any, SocketTransport]]:
    """Yield a pair, a's sender, b's receiver, and b."""
    with TemporaryDirectory(prefix="flame") as folder:
        made = Pair(folder)
        a, b = (SocketTransport(Options(**options), made.context(node)) for node in "ab")
        made.locations = {"a": await a.start(), "b": await b.start()}
        sender, receiver = await a.bind("a/0"), await b.bind("b/0")
        try:
            yield made, sender, receiver, b
        finally:
            await a.aclose()
            await b.aclose()


async def speak(location: str, *parts: bytes, finish: bool = False) -> bytes:
    """Send bytes as any process may, and return what comes until the connection ends."""
    reader, writer = await asyncio.open_unix_connection(location.removeprefix("unix:"))
    try:
        writer.write(b"".join(parts))
        if finish:
            writer.write_eof()
        async with patience(LIMIT_S):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


STRANGERS = {
    "no greeting": ((packed(Kind.DATA, b"anything"),), "broken"),
    "no kind": ((packed(200, b""),), "broken"),
    "no msgpack": ((packed(Kind.GREETING, b"\xc1"),), "broken"),
    "no text": ((packed(Kind.GREETING, msgspec.msgpack.encode((b"", b"", "?", "")).replace(b"?", b"\xff")),), "broken"),
    "another shape": ((packed(Kind.GREETING, msgspec.msgpack.encode([1, 2])),), "broken"),
    "half a message": ((greeting()[:-3],), "broken"),
    "too large": ((struct.pack(">IBHQ", 2**31, Kind.GREETING, 0x8100, 0),), "broken"),
    "token": ((greeting(token="a guess"),), "token"),
    "no instance": ((greeting(instance=""),), "unnamed"),
    "no place": ((greeting(location="127.0.0.1:80"),), "unnamed"),
    "relative": ((greeting(location="unix:near"),), "unnamed"),
    "another job": ((greeting(hello=wrapped(sequence=0, job="another")),), "job"),
    "damaged frame": ((greeting(), packed(Kind.DATA, wrapped()[:-1])), "length"),
    "no codec": ((greeting(), packed(Kind.DATA, wrapped(b"\xc1"))), "codec"),
    "vanishes": ((greeting(),), "broken"),
}


@pytest.mark.parametrize(("parts", "reason"), STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_refused_and_the_good_peer_goes_on(parts: tuple[bytes, ...], reason: str) -> None:
    async def run() -> None:
        async with pair() as (made, sender, receiver, b):
            await sender.send("b/0", "before")
            await speak(made.locations["b"], *parts, finish=reason == "broken")
            await sender.send("b/0", "after")
            async with patience(LIMIT_S):
                assert [(await receiver.receive()).message for _ in range(2)] == ["before", "after"]
            assert b.refused == {reason: 1}
            assert receiver.receive_nowait() is None
            assert made.lost == []

    asyncio.run(run())


def test_a_caller_that_says_nothing_is_cut_off() -> None:
    async def run() -> None:
        async with pair(connect_timeout_s=0.2) as (made, sender, receiver, b):
            assert await speak(made.locations["b"]) == b""
            assert b.refused == {"broken": 1}
            await sender.send("b/0", "after")
            assert (await receiver.receive()).message == "after"

    asyncio.run(run())


def test_a_refused_caller_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamecore.toolkit.links.server._LAST_WORD_S", 0.2)
    monkeypatch.setattr("flamestream_sockets.connections._LAST_WORDS_S", 0.2)

    async def run() -> None:
        async with pair() as (made, _, _, b):
            _, writer = await asyncio.open_unix_connection(made.locations["b"].removeprefix("unix:"))
            writer.write(greeting())

            async def chatter() -> None:
                while True:
                    writer.write(packed(Kind.DATA, b"nonsense" * 1000))
                    await writer.drain()

            async with patience(LIMIT_S):
                with pytest.raises(ConnectionError):
                    await chatter()
            writer.close()
            assert b.refused == {"magic": 1}

    asyncio.run(run())


def test_a_connection_that_breaks_while_it_is_let_in_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(call: SocketCall) -> None:
        raise BrokenConnectionError("it has gone")

    async def run() -> None:
        ours, theirs = socket.socketpair()
        theirs.send(greeting())
        reception = Reception(serve, limit_s=LIMIT_S, watch_s=LIMIT_S, broken=lambda: None, most=1)
        await asyncio.get_running_loop().create_connection(lambda: new_pipe(reception.receive), sock=ours)
        while reception._tasks:
            await asyncio.sleep(0.001)
        theirs.close()
        await reception.aclose()

    asyncio.run(run())
    gc.collect()
    assert caplog.text == ""


@pytest.mark.parametrize(("change", "reason"), [({"token": "a guess"}, "token"), ({"job": "another"}, "job")])
def test_a_process_of_another_job_learns_why_it_is_refused(change: dict[str, Any], reason: str) -> None:
    async def run() -> None:
        async with pair() as (made, _, _, b):
            stranger = SocketTransport(None, made.context("stranger", **change))
            await stranger.start()
            endpoint = await stranger.bind("stranger/0")
            with pytest.raises(ConnectError, match="does not let this process in") as caught:
                await endpoint.send("b/0", "hello")
            assert f"This process is one of job {stranger.context.job!r}" in caught.value.hint
            assert set(b.refused) == {reason}
            await stranger.aclose()

    asyncio.run(run())


def test_nothing_listens_where_a_process_was_killed() -> None:
    async def run() -> None:
        async with pair() as (made, _, _, _):
            made.locations["b"] = f"unix:{made.folder}/none.sock"
            asking = SocketTransport(None, made.context("c", waits=False))
            await asking.start()
            endpoint = await asking.bind("c/0")
            with pytest.raises(ConnectError, match="nothing listens at"):
                await endpoint.send("b/0", "hello")
            await asking.aclose()

    asyncio.run(run())


def test_a_process_too_busy_to_accept_is_reachable_and_one_that_has_ended_is_not() -> None:
    async def run() -> None:
        with (
            TemporaryDirectory(prefix="flame") as folder,
            socket.socket(socket.AF_UNIX) as busy,
            ExitStack() as callers,
        ):
            path = f"{folder}/busy.sock"
            busy.bind(path)
            busy.listen(0)
            transport = SocketTransport(None, Pair(folder).context("a"))
            while True:  # until nobody else has room to wait
                caller = callers.enter_context(socket.socket(socket.AF_UNIX))
                caller.setblocking(False)
                if caller.connect_ex(path):
                    break
            assert await transport.reachable(f"unix:{path}")
            busy.close()
            assert not await transport.reachable(f"unix:{path}")

    asyncio.run(run())


@pytest.mark.parametrize("speaks", ["not at all", "in part", "as a stranger", "as a peer that reads nothing"])
def test_a_caller_of_a_process_that_closes_is_let_go(speaks: str) -> None:
    """Whatever it is about to say or to hear: its connection is closed with the transport, and not by the collector."""
    words = {
        "not at all": b"",
        "in part": greeting()[:-1],
        "as a stranger": greeting(token="another"),
        "as a peer that reads nothing": greeting() + b"".join(data(number) for number in range(1, 20)),
    }

    async def work() -> None:
        async with pair() as (made, _, _, b):
            with socket.socket(socket.AF_UNIX) as caller:
                caller.setblocking(False)
                caller.connect(made.locations["b"].removeprefix("unix:"))
                caller.send(words[speaks])
                if speaks == "not at all":
                    await asyncio.sleep(0)  # it is being accepted
                else:
                    while not b._reception._tasks:
                        await asyncio.sleep(0)
                await b.aclose()
                assert not b._reception._tasks
                assert await until_closed(caller)

    run(work())


async def until_closed(caller: socket.socket) -> bool:
    """Return whether the other side has closed a connection; read all it has said."""
    async with patience(LIMIT_S):
        with suppress(ConnectionResetError):
            while await asyncio.get_running_loop().sock_recv(caller, 2**16):
                pass
    return True


def data(number: int) -> bytes:
    """Return a message with a frame to b/0."""
    return packed(Kind.DATA, wrapped(sequence=number))


def test_a_connection_that_comes_to_a_closed_reception_is_closed() -> None:
    async def work() -> None:
        ours, theirs = socket.socketpair()
        reception = Reception(serve_nobody, limit_s=LIMIT_S, watch_s=LIMIT_S, broken=lambda: None, most=1)
        await reception.aclose()
        await asyncio.get_running_loop().create_connection(lambda: new_pipe(reception.receive), sock=ours)
        theirs.setblocking(False)
        assert await until_closed(theirs)
        assert not reception._tasks
        theirs.close()

    asyncio.run(work())


async def serve_nobody(call: SocketCall) -> None:
    raise AssertionError("it is closed")


def test_last_words_that_nobody_reads_do_not_keep_a_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamestream_sockets.connections._LAST_WORDS_S", 0.01)
    ended: list[asyncio.Task[Any]] = []

    async def talk(call: SocketCall) -> None:
        assert call._pipe._transport is not None
        call._pipe._transport.write(bytes(2**21))

    async def work() -> None:
        ours, theirs = socket.socketpair()
        reception = Reception(talk, limit_s=LIMIT_S, watch_s=LIMIT_S, broken=lambda: None, most=1)
        _, pipe = await asyncio.get_running_loop().create_connection(lambda: new_pipe(reception.receive), sock=ours)
        theirs.send(greeting())
        ended.extend(reception._tasks)
        async with patience(LIMIT_S):
            await asyncio.wait(ended)
        assert pipe._lost.is_set()
        theirs.close()

    asyncio.run(work())


def test_the_socket_belongs_to_its_user_and_goes_with_the_process() -> None:
    async def run() -> None:
        async with pair() as (made, _, _, b):
            path = Path(made.locations["b"].removeprefix("unix:"))
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with pytest.raises(TransportError, match="is taken"):
                await SocketTransport(None, made.context("b")).start()
            await b.aclose()
            assert not path.exists()

    asyncio.run(run())


def test_a_socket_that_a_killed_process_has_left_is_replaced() -> None:
    async def run() -> None:
        async with pair() as (made, _, _, b):
            path = Path(made.locations["b"].removeprefix("unix:"))
            await b.aclose()
            listener = await asyncio.start_unix_server(lambda _, writer: writer.close(), path)
            listener.close()
            path.touch()  # as from Python 3.13 on the end of a server removes it
            successor = SocketTransport(None, made.context("b"))
            assert await successor.start() == f"unix:{path}"
            await successor.aclose()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("folder", "text"), [("", "has no folder for sockets"), ("/" + "x" * 200, "is too long for a unix socket")]
)
def test_a_place_that_can_hold_no_socket_is_refused(folder: str, text: str) -> None:
    async def run() -> None:
        with pytest.raises(TransportError, match=text) as caught:
            await SocketTransport(None, Pair(folder).context("a")).start()
        assert 'use another transport, such as grpc with listen = "127.0.0.1"' in caught.value.hint.lower()

    asyncio.run(run())


def test_a_folder_that_is_named_holds_the_sockets_of_the_job(tmp_path: Path) -> None:
    async def run() -> None:
        with TemporaryDirectory(prefix="fs") as place:
            options = Options(folder=f"{place}/job")
            made = SocketTransport(options, Pair(place).context("supervisor"))
            assert made.outlook().join == f"socket://{place}/job/supervisor.sock"
            assert not Path(f"{place}/job").exists(), "nothing has started"
            assert await made.start() == f"unix:{place}/job/supervisor.sock"
            assert made.address_of(made.outlook().join).control == made.location
            assert stat.S_IMODE(Path(f"{place}/job").stat().st_mode) == 0o700
            with pytest.raises(TransportError, match="is taken"):
                await SocketTransport(options, Pair(place).context("supervisor")).start()
            await asyncio.sleep(0.05)  # which has connected, and is accepted
            workers = [SocketTransport(options, Pair(place).context("w1")) for _ in range(2)]
            assert not workers[0].outlook().join
            both = {await worker.start() for worker in workers}
            assert len(both) == 2, "one that comes in place of another has a location of its own"
            assert all(location.startswith(f"unix:{place}/job/w1-") for location in both)
            for each in (made, *workers):
                await each.aclose()
            assert not [*Path(f"{place}/job").iterdir()]

    asyncio.run(run())


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        tmp_path.chmod(0o777)
        with pytest.raises(TransportError, match=f"other users can write {tmp_path}") as caught:
            await SocketTransport(Options(folder=str(tmp_path)), Pair("").context("a")).start()
        assert f"chmod go-w {tmp_path}" in caught.value.hint
        tmp_path.chmod(0o700)
        (tmp_path / "file").touch()
        for name in ("file", "file/below", "none/below"):
            with pytest.raises(TransportError, match="cannot be a folder of sockets: "):
                await SocketTransport(Options(folder=str(tmp_path / name)), Pair("").context("a")).start()
        with pytest.raises(TransportError, match="cannot be a folder of sockets: "):
            SocketTransport(Options(folder=str(tmp_path / "file")), Pair("").context("a")).outlook()
        (long := tmp_path / ("x" * 100)).mkdir(0o700)
        made = SocketTransport(Options(folder=str(long)), Pair("").context("a"))
        with pytest.raises(TransportError, match="is too long for a unix socket"):
            made.outlook()
        with pytest.raises(TransportError, match="is too long for a unix socket") as caught:
            await made.start()
        assert "Name a folder with a shorter path under [transport.socket]" in caught.value.hint

    asyncio.run(run())


def test_another_process_at_the_same_place_is_another_peer() -> None:
    async def run() -> None:
        async with pair(reconnect_timeout_s=LIMIT_S) as (made, sender, receiver, b):
            await sender.send("b/0", "hello")
            assert (await receiver.receive()).message == "hello"
            listener, b._listener = b._listener, None
            path = Path(made.locations["b"].removeprefix("unix:"))
            assert listener is not None
            listener.close()
            path.unlink(missing_ok=True)
            successor = SocketTransport(None, made.context("b"))
            await successor.start()
            sender._transport.disconnect()
            with pytest.raises(PeerGoneError, match="is another process now"):
                await flood(sender)
            await successor.aclose()

    asyncio.run(run())


def test_an_address_is_a_whole_path_or_that_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no address of a job over sockets") as caught:
        SocketTransport.address_of("socket://folder/supervisor.sock")
    assert f"socket://{Path.cwd()}/folder/supervisor.sock" in str(caught.value)
    assert SocketTransport.address_of(f"socket://{tmp_path}").control == f"unix:{tmp_path}/supervisor.sock"
    assert SocketTransport.address_of(f"socket://{tmp_path}/x.sock").control == f"unix:{tmp_path}/x.sock"
