"""The transport against its contract: sockets, little room, faults, bad networks."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryDirectory

import pytest

from flamecore.abc.transport import Transport, TransportContext
from flamecore.testing.checks.transports import FaultyTransportTests, TransportTests
from flamecore.testing.faults import BAD_NETWORKS, Proxy
from flamestream_sockets import Options, SocketTransport


@pytest.mark.variant("socket")
class TestSocket(TransportTests):
    def make(self, context: TransportContext) -> Transport:
        return SocketTransport(None, context)


@pytest.mark.variant("socket")
class TestNamedFolder(TransportTests):
    @pytest.fixture(autouse=True)
    def _folder(self) -> Iterator[None]:
        with TemporaryDirectory(prefix="fs") as folder:
            self.folder = folder
            yield

    def make(self, context: TransportContext) -> Transport:
        return SocketTransport(Options(folder=f"{self.folder}/job"), context)


@pytest.mark.variant("socket")
class TestRoomForOne(TransportTests):
    most = 200

    def make(self, context: TransportContext) -> Transport:
        return SocketTransport(Options(window_frames=1), context)


@pytest.mark.variant("socket")
class TestRoomForFewBytes(TransportTests):
    most = 500

    def make(self, context: TransportContext) -> Transport:
        return SocketTransport(Options(window_frames=256, window_bytes=10_000), context)


@pytest.mark.variant("socket")
class TestBadLuck(FaultyTransportTests):
    faults = ("delay", "full", "reorder", "disconnect", "repeat", "repeated")

    def make(self, context: TransportContext) -> Transport:
        return SocketTransport(Options(window_frames=64), context)


class Proxied(SocketTransport):
    """A transport that others reach over a bad way only."""

    network: str
    proxy: Proxy

    async def start(self) -> str:
        self.proxy = Proxy(await super().start(), seed=1)
        self.location = await self.proxy.start()
        BAD_NETWORKS[self.network](self.proxy)
        return self.location

    async def aclose(self) -> None:
        await super().aclose()
        await self.proxy.aclose()


@pytest.mark.variant("socket")
@pytest.mark.parametrize("network", BAD_NETWORKS)
class TestBadNetwork(TransportTests):
    """A way that delivers in small pieces, stalls, breaks ever more rarely, or flips bits."""

    most = 500

    @pytest.fixture(autouse=True)
    def _network(self, network: str) -> None:
        self.network = network

    def make(self, context: TransportContext) -> Transport:
        # A connection that breaks before a message has crossed does not count: a busy machine must not lose the peer in
        # a test of surviving the network.
        transport = Proxied(Options(window_frames=64, reconnect_timeout_s=5.0), context)
        transport.network = self.network
        return transport
