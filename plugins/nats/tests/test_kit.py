"""The transport against its contract: windows, message sizes, faults, networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from msgspec import structs

from flamecore.abc.transport import Transport, TransportContext
from flamecore.testing.checks.transports import TransportTests
from flamecore.testing.faults import BAD_NETWORKS, Faulty, Proxy
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


class TestMuchRoom(_Served):
    pass


class TestLittleRoom(_Served):
    most = 100
    options = {"window_frames": 1}


class TestFewBytes(_Served):
    most = 1000
    options = {"window_bytes": 2000}
    token = ""


class TestSmallMessages(_Served):
    """A server that takes no message of more than 2 kB."""

    most = 2000

    @pytest.fixture(autouse=True)
    def _serve(self, server: NatsServer) -> Iterator[None]:
        with NatsServer(max_payload=2048) as self.server:
            yield


@pytest.mark.parametrize("seed", [1, 2])
class TestBadLuck(_Served):
    """A faulty transport; every fault must have happened in the course of the checks."""

    most = 1000
    options = {"window_frames": 64}
    happened: ClassVar[Counter[str]] = Counter()
    made: ClassVar[list[Faulty]] = []

    @pytest.fixture(autouse=True)
    def _seed(self, seed: int) -> None:
        self.seed = seed

    def make(self, context: TransportContext) -> Transport:
        faulty = Faulty(super().make(context), seed=self.seed)
        self.made.append(faulty)
        return faulty

    def test_every_fault_happened(self) -> None:
        for faulty in self.made:
            assert isinstance(faulty.transport, NatsTransport)
            self.happened.update(faulty.faults)
            self.happened.update(faulty.transport.refused)
        expected = {"delay", "full", "reorder", "disconnect", "repeat", "duplicate"}
        assert {fault for fault in expected if not self.happened[fault]} == set()


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
