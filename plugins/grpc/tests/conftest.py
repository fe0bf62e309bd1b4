"""Fixtures of the tests: processes of a job, here or real, and certificates."""

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
    """Processes that reach each other: address `a/...` is at process a, and so on."""

    folder: str
    stack: AsyncExitStack
    job: str = "tests"
    token: str = "secret of the tests"
    locations: dict[str, str] = field(default_factory=dict)
    lost: dict[str, list[tuple[str, Exception]]] = field(default_factory=dict)
    loss: asyncio.Event = field(default_factory=asyncio.Event)

    def locate(self, address: str) -> str:
        """Return the location of an address."""
        home = address.partition("/")[0]
        if home not in self.locations:
            raise PeerGoneError(f"nobody has bound {address}", address="", peer=address)
        return self.locations[home]

    def context(self, node: str, **changes: Any) -> TransportContext:
        """Return the context of a process."""

        def lost(location: str, error: Exception) -> None:
            self.lost.setdefault(node, []).append((location, error))
            self.loss.set()

        told: dict[str, Any] = {
            "job": self.job,
            "incarnation": 1,
            "codec": Codec(),
            "node": node,
            "token": self.token,
            "folder": self.folder,
            "locate": self.locate,
            "lost": lost,
        }
        return TransportContext(**(told | changes))

    async def add(self, node: str, options: Options | None = None, **changes: Any) -> GrpcTransport:
        """Start a process, which is closed at the end of the test."""
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
    """Return the function that makes a mesh, in a folder with a short path."""
    return _mesh


# -- real processes ----------------------------------------------------------------------------------------------------


class Wire:
    """The test's end of a child: sends requests, reads answers."""

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
        """End the child, and wait until it has ended; a second call does nothing."""
        if self._socket.fileno() == -1:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self.process.kill()
        self.process.wait()

    def now(self, name: str, *arguments: Any) -> Any:
        """Return the result of a request that needs no waiting."""
        number = self._tell(name, *arguments)
        while number not in self._answers:
            self._hear()
        return self._result(number)

    async def later(self, name: str, *arguments: Any) -> Any:
        """Return the result of a request that may have to wait."""
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
        if select.select([self._socket], [], [], 0)[0]:  # `now` may have read it meanwhile
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
    """A transport in a separate process."""

    name = "remote"
    wire: Wire

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=True, serialises=True)

    async def start(self) -> str:
        self.wire = Wire()
        told = {key: getattr(self.context, key) for key in ("job", "incarnation", "node", "token", "folder")}
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
    """An address of a separate process; receiving polls it."""

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
        self._wire.codec.encode(message)  # else its error would come from the request to the child
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
    """Return a function that makes one process here and one separate process."""
    return _pair


@pytest.fixture
def remote() -> type[Remote]:
    """Return the transport that runs in a separate process."""
    return Remote


# -- TLS ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certificates:
    """PEM files: an authority's certificate, and a certificate with its key."""

    authority: Path
    certificate: Path
    key: Path

    def files(self) -> dict[str, str]:
        """Return the options that name the files."""
        return {
            "tls_ca": str(self.authority),
            "tls_certificate": str(self.certificate),
            "tls_key": str(self.key),
        }

    def options(self, **others: Any) -> Options:
        """Return the transport's options with these files."""
        return Options(**({"listen": "127.0.0.1"} | self.files() | others))


class Authority:
    """An authority that issues certificates into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority = trustme.CA()

    def issue(self, name: str = "own", *hosts: str, **how: Any) -> Certificates:
        """Issue a certificate for hosts, by default this machine; `how`: see trustme."""
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
    """Return the authority that processes trust."""
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def certificates(authority: Authority) -> Certificates:
    """Return a certificate of the trusted authority for this machine."""
    return authority.issue()


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Return the certificate of an authority that is not trusted."""
    return Authority(tmp_path_factory.mktemp("strangers")).issue()


@pytest.fixture
def authorities(tmp_path: Path) -> Callable[[str], Authority]:
    """Return a function that makes more authorities."""

    def make(name: str) -> Authority:
        (tmp_path / name).mkdir()
        return Authority(tmp_path / name)

    return make
