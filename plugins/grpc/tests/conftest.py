"""What the tests share: processes of a job, all of them here or one of them a real one, and certificates."""

from __future__ import annotations

import asyncio
import select
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trustme

from flamecore import errors
from flamecore.abc.transport import Delivery, Endpoint, Transport, TransportCapabilities, TransportContext
from flamecore.errors import FlameError, PeerGoneError
from flamecore.runtime.codec.codec import Codec
from flamecore.testing.bench.transports import Note
from flamestream_grpc import GrpcTransport, Options

CHILD = Path(__file__).with_name("child.py")
LIMIT_S = 10.0


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test of the plugin as one that needs its client."""
    item.add_marker("grpc")


@dataclass
class Mesh:
    """Processes that reach each other: `a/...` lives at process a, and so on."""

    folder: str
    stack: AsyncExitStack
    job: str = "tests"
    token: str = "secret of the tests"
    locations: dict[str, str] = field(default_factory=dict)
    lost: dict[str, list[tuple[str, Exception]]] = field(default_factory=dict)
    loss: asyncio.Event = field(default_factory=asyncio.Event)

    def locate(self, address: str) -> str:
        """Where an address is."""
        home = address.partition("/")[0]
        if home not in self.locations:
            raise PeerGoneError(f"nobody has bound {address}", address="", peer=address)
        return self.locations[home]

    def context(self, node: str, **changes: Any) -> TransportContext:
        """What a process is told."""

        def lost(location: str, error: Exception) -> None:
            self.lost.setdefault(node, []).append((location, error))
            self.loss.set()

        told: dict[str, Any] = {
            "job": self.job,
            "epoch": 1,
            "codec": Codec(),
            "node": node,
            "token": self.token,
            "folder": self.folder,
            "locate": self.locate,
            "lost": lost,
        }
        return TransportContext(**(told | changes))

    async def add(self, node: str, options: Options | None = None, **changes: Any) -> GrpcTransport:
        """Start a process; it is closed in the end."""
        transport = GrpcTransport(options or Options(), self.context(node, **changes))
        self.locations[node] = await transport.start()
        self.stack.push_async_callback(transport.aclose)
        return transport


MakeMesh = Callable[[], AbstractAsyncContextManager[Mesh]]


@asynccontextmanager
async def _mesh() -> AsyncIterator[Mesh]:
    async with AsyncExitStack() as stack:
        yield Mesh(stack.enter_context(TemporaryDirectory(prefix="flame")), stack)


@pytest.fixture
def mesh() -> MakeMesh:
    """Makes processes of a job, all of them here, in a folder whose path is short."""
    return _mesh


# -- real processes ----------------------------------------------------------------------------------------------------


class Wire:
    """Tells a child what to do, and hears what it says."""

    def __init__(self) -> None:
        self.lost: list[tuple[str, str]] = []
        self.loss = asyncio.Event()
        self.codec = Codec([Note])
        self._socket, theirs = socket.socketpair()
        self.process = subprocess.Popen([sys.executable, str(CHILD), str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        self._socket.settimeout(LIMIT_S)
        self._numbers = iter(range(1, sys.maxsize))
        self._answers: dict[int, tuple[str, Any]] = {}
        self._futures: dict[int, asyncio.Future[None]] = {}
        asyncio.get_running_loop().add_reader(self._socket, self._hear_ready)

    def close(self) -> None:
        """End the child, and wait for that. Twice is once."""
        if self._socket.fileno() == -1:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self.process.kill()
        self.process.wait()

    def now(self, name: str, *arguments: Any) -> Any:
        """The result of what needs no waiting."""
        number = self._tell(name, *arguments)
        while number not in self._answers:
            self._hear()
        return self._result(number)

    async def later(self, name: str, *arguments: Any) -> Any:
        """The result of what may have to wait."""
        number = self._tell(name, *arguments)
        future = self._futures[number] = asyncio.get_running_loop().create_future()
        await future
        return self._result(number)

    def _tell(self, name: str, *arguments: Any) -> int:
        number = next(self._numbers)
        data = self.codec.encode((number, name, *arguments))
        self._socket.sendall(len(data).to_bytes(4, "big") + data)
        return number

    def _hear_ready(self) -> None:
        if select.select([self._socket], [], [], 0)[0]:  # `now` may have heard it meanwhile
            self._hear()

    def _hear(self) -> None:
        size = int.from_bytes(self._read(4), "big")
        number, status, result = self.codec.decode(self._read(size))
        if number == 0:
            self.lost.append(result)
            self.loss.set()
            return
        self._answers[number] = (status, result)
        if number in self._futures:
            future = self._futures.pop(number)
            if not future.done():
                future.set_result(None)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                asyncio.get_running_loop().remove_reader(self._socket)
                raise EOFError("the child has ended")
            data += more
        return data

    def _result(self, number: int) -> Any:
        status, result = self._answers.pop(number)
        if status != "ok":
            kind: type[FlameError] = getattr(errors, status)
            raise kind(result)
        return result


class Remote(Transport):
    """A transport that lives in a process of its own."""

    name = "remote"
    wire: Wire

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=True, serialises=True)

    async def start(self) -> str:
        self.wire = Wire()
        told = {key: getattr(self.context, key) for key in ("job", "epoch", "node", "token", "folder")}
        location: str = await self.wire.later("start", self.options, told)
        return location

    async def bind(self, address: str) -> RemoteEndpoint:
        return RemoteEndpoint(address, await self.wire.later("bind", address), self)

    async def aclose(self) -> None:
        if self.wire.process.returncode is None:
            await self.wire.later("aclose")
            self.wire.close()
            for location, error in self.wire.lost:
                assert self.context.lost is not None
                self.context.lost(location, RuntimeError(error))


class RemoteEndpoint(Endpoint):
    """An address there. Waiting to receive is asking again and again."""

    def __init__(self, address: str, at: int, transport: Remote) -> None:
        self.address = address
        self._at = at
        self._transport = transport
        self._wire = transport.wire

    def _home(self, to: str) -> str:
        assert self._transport.context.locate is not None
        return self._transport.context.locate(to)

    def _ended(self) -> bool:
        return self._wire.process.returncode is not None

    def send_nowait(self, to: str, message: Any) -> bool:
        self._wire.codec.encode(message)  # or its error would come of what is said to the child
        return bool(self._wire.now("send_nowait", self._at, to, self._home(to), message))

    async def send(self, to: str, message: Any) -> None:
        await self._wire.later("send", self._at, to, self._home(to), message)

    def receive_nowait(self) -> Delivery | None:
        if self._ended():
            raise errors.TransportClosedError("closed")
        delivery = self._wire.now("receive_nowait", self._at)
        return None if delivery is None else Delivery(*delivery)

    async def receive(self) -> Delivery:
        while (delivery := self.receive_nowait()) is None:
            await asyncio.sleep(0.001)
        return delivery

    async def aclose(self) -> None:
        await self._wire.later("close", self._at)


@asynccontextmanager
async def _pair(options: dict[str, Any]) -> AsyncIterator[tuple[Mesh, GrpcTransport, Remote]]:
    async with _mesh() as made:
        here = await made.add("here", Options(**options))
        there = Remote(options, made.context("there"))
        made.locations["there"] = await there.start()
        try:
            yield made, here, there
        finally:
            there.wire.close()


@pytest.fixture
def pair() -> Callable[[dict[str, Any]], AbstractAsyncContextManager[tuple[Mesh, GrpcTransport, Remote]]]:
    """Makes a process here, with some options, and one of its own there."""
    return _pair


@pytest.fixture
def remote() -> type[Remote]:
    """A transport that lives in a process of its own."""
    return Remote


# -- TLS ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certificates:
    """PEM files: of an authority, and of one that it has issued."""

    authority: Path
    certificate: Path
    key: Path

    def files(self) -> dict[str, str]:
        """Options that name them."""
        return {
            "tls_ca": str(self.authority),
            "tls_certificate": str(self.certificate),
            "tls_key": str(self.key),
        }

    def options(self, **others: Any) -> Options:
        """Options that use them."""
        return Options(**({"listen": "127.0.0.1"} | self.files() | others))


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority = trustme.CA()

    def issue(self, name: str = "own", *hosts: str, **how: Any) -> Certificates:
        """A certificate, for this machine unless hosts are given; `how`: as trustme has it."""
        issued = self._authority.issue_cert(*(hosts or ("127.0.0.1", "localhost")), **how)
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        made = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
        self._authority.cert_pem.write_to_path(made.authority)
        made.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(made.key)
        return made


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that processes trust."""
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def certificates(authority: Authority) -> Certificates:
    """What it has issued for this machine."""
    return authority.issue()


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Another authority, and what that one has issued."""
    return Authority(tmp_path_factory.mktemp("strangers")).issue()


@pytest.fixture
def authorities(tmp_path: Path) -> Callable[[str], Authority]:
    """Makes more of them."""

    def make(name: str) -> Authority:
        (tmp_path / name).mkdir()
        return Authority(tmp_path / name)

    return make
