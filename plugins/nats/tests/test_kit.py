"""The transport against its contract: windows, message sizes, faults, networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from flamecore.abc.transport import Transport, TransportContext
from flamecore.testing.checks.transports import FaultyTransportTests, TransportTests
from flamecore.testing.faults import BAD_NETWORKS, Proxy
from flamestream_nats import NatsTransport, Options
from flamestream_nats.channels.exchange import Exchange
from flamestream_nats.testing import NatsServer


class _Served(TransportTests):
    """Transports through one server."""

    server: NatsServer
    options: dict[str, Any] = {}
    token = "t0ken"

    @pytest.fixture(autouse=True)
    def _serve(self, server: NatsServer) -> None:
        self.server = server

    def make(self, context: TransportContext) -> Transport:
        return NatsTransport(Options(servers=(self.server.url,), **self.options), replace(context, token=self.token))


@pytest.mark.variant("nats")
class TestMuchRoom(_Served):
    pass


@pytest.mark.variant("nats")
class TestLittleRoom(_Served):
    most = 100
    options = {"window_frames": 1}


@pytest.mark.variant("nats")
class TestFewBytes(_Served):
    most = 1000
    options = {"window_bytes": 2000}
    token = ""


@pytest.mark.variant("nats")
class TestSmallMessages(_Served):
    """A server that takes no message of more than 2 kB."""

    most = 2000

    @pytest.fixture(autouse=True)
    def _serve(self, server: NatsServer) -> Iterator[None]:
        with NatsServer(max_payload=2048) as self.server:
            yield


@pytest.mark.variant("nats")
class TestBadLuck(FaultyTransportTests, _Served):
    options = {"window_frames": 64}
    faults = ("delay", "full", "reorder", "disconnect", "repeat", "duplicate")


class Proxied(NatsTransport):
    """A transport over a bad network to the server."""

    network: str
    proxy: Proxy | None = None

    async def _started(self) -> Exchange:
        if self.proxy is None:
            self.proxy = Proxy(self.options.servers[0].removeprefix("nats://"), seed=1)
            self.options = structs.replace(self.options, servers=(f"nats://{await self.proxy.start()}",))
            BAD_NETWORKS[self.network](self.proxy)
        return await super()._started()

    async def aclose(self) -> None:
        await super().aclose()
        if self.proxy is not None:
            await self.proxy.aclose()


# Between two cuts there is time to miss a peer often. Flipped bits are not among them: without TLS none is noticed.
@pytest.mark.variant("nats")
@pytest.mark.parametrize(("network", "heartbeat_s"), [("drips", 0.25), ("stalls", 0.25), ("cuts", 0.01)])
class TestBadNetwork(_Served):
    most = 500
    options = {"window_frames": 64}

    @pytest.fixture(autouse=True)
    def _network(self, network: str, heartbeat_s: float) -> None:
        self.network, self.heartbeat_s = network, heartbeat_s

    def make(self, context: TransportContext) -> Transport:
        options = Options(servers=(self.server.url,), heartbeat_s=self.heartbeat_s, **self.options)
        transport = Proxied(options, replace(context, token=self.token))
        transport.network = self.network
        return transport
