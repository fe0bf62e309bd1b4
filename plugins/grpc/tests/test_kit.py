"""The transport against its contract: unix, TCP, TLS, faults, bad networks."""

from __future__ import annotations

from typing import Any

import pytest

from flamecore.abc.transport import Transport, TransportContext
from flamecore.testing.checks.transports import FaultyTransportTests, TransportTests
from flamecore.testing.faults import BAD_NETWORKS, Proxy
from flamestream_grpc import GrpcTransport, Options


@pytest.mark.variant("grpc")
class TestUnix(TransportTests):
    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(), context)


@pytest.mark.variant("grpc")
class TestTcp(TransportTests):
    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(listen="127.0.0.1:0"), context)


@pytest.mark.variant("grpc")
class TestTls(TransportTests):
    @pytest.fixture(autouse=True)
    def _options(self, certificates: Any) -> None:
        self.options = certificates.options()

    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(self.options, context)


@pytest.mark.variant("grpc")
class TestRoomForOne(TransportTests):
    most = 200

    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(window_frames=1), context)


@pytest.mark.variant("grpc")
class TestRoomForFewBytes(TransportTests):
    most = 500

    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(window_frames=256, window_bytes=10_000), context)


@pytest.mark.variant("grpc")
class TestBadLuck(FaultyTransportTests):
    faults = ("delay", "full", "reorder", "disconnect", "repeat", "repeated")

    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(window_frames=64), context)


class Proxied(GrpcTransport):
    """A transport that others reach over a bad network only."""

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


# Not plain, and flipped: a flipped bit of HTTP/2 itself, say of a window's size, can stall it unnoticed. TLS notices,
# and the connection breaks.
NETWORKS = [("drips", "unix"), ("drips", "tls"), ("stalls", "tcp"), ("cuts", "unix"), ("cuts", "tls"), ("flips", "tls")]


@pytest.mark.variant("grpc")
@pytest.mark.parametrize(("network", "way"), NETWORKS)
class TestBadNetwork(TransportTests):
    most = 500

    @pytest.fixture(autouse=True)
    def _network(self, network: str, way: str, certificates: Any) -> None:
        self.network = network
        # A connection that breaks before a message has crossed does not count: a busy machine must not lose the peer in
        # a test of surviving the network. One that a flipped bit stalls is found to be dead within twice the interval
        # of the probes, which must be less than the limit of a check.
        patient: dict[str, Any] = {"window_frames": 64, "reconnect_timeout_s": 5.0, "keepalive_s": 1.0}
        self.options = certificates.options(**patient)
        if way != "tls":
            self.options = Options(listen="unix" if way == "unix" else "127.0.0.1", **patient)

    def make(self, context: TransportContext) -> Transport:
        transport = Proxied(self.options, context)
        transport.network = self.network
        return transport
