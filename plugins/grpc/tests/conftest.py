"""What the tests share: processes of a job (all in this one), certificates, and one that speaks to a transport raw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trustme

from flamecore.codec import Codec
from flamecore.errors import PeerGoneError
from flamecore.transport import TransportContext
from flamestream_grpc import GrpcTransport, Options


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


@dataclass(frozen=True)
class Certificates:
    """PEM files: of an authority, and of one that it has issued for 127.0.0.1."""

    authority: Path
    certificate: Path
    key: Path

    def options(self, **others: Any) -> Options:
        """Options that use them."""
        given: dict[str, Any] = {
            "listen": "127.0.0.1",
            "tls_ca": str(self.authority),
            "tls_certificate": str(self.certificate),
            "tls_key": str(self.key),
        }
        return Options(**(given | others))


def issue(folder: Path) -> Certificates:
    """A new authority, and a certificate for this machine."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    made = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    authority.cert_pem.write_to_path(made.authority)
    made.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(made.key)
    return made


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority and what it has issued."""
    return issue(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Another authority and what that one has issued."""
    return issue(tmp_path_factory.mktemp("strangers"))
