"""The transport against its contract: sockets, little room, faults, bad networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import ClassVar

import pytest

from flamecore.abc.transport import Transport, TransportContext
from flamecore.testing.checks.transports import TransportTests
from flamecore.testing.faults import BAD_NETWORKS, Faulty, Proxy
from flamestream_sockets import Options, SocketTransport


class TestSocket(TransportTests):
    def make(self, context: TransportContext) -> Transport:
        return SocketTransport(None, context)


class TestNamedFolder(TransportTests):
    @pytest.fixture(autouse=True)
    def _folder(self) -> Iterator[None]:
        with TemporaryDirectory(prefix="fs") as folder:
            self.folder = folder
            yield

    def make(self, context: TransportContext) -> Transport:
        return SocketTransport(Options(folder=f"{self.folder}/job"), context)


class TestRoomForOne(TransportTests):
    most = 200

    def make(self, context: TransportContext) -> Transport:
        return SocketTransport(Options(window_frames=1), context)


class TestRoomForFewBytes(TransportTests):
    most = 500

    def make(self, context: TransportContext) -> Transport:
        return SocketTransport(Options(window_frames=256, window_bytes=10_000), context)


@pytest.mark.parametrize("seed", [1, 2])
class TestBadLuck(TransportTests):
    """A faulty transport; every fault must have happened in the course of the checks."""

    most = 1000
    happened: ClassVar[Counter[str]] = Counter()
    made: ClassVar[list[Faulty]] = []

    @pytest.fixture(autouse=True)
    def _seed(self, seed: int) -> None:
        self.seed = seed

    def make(self, context: TransportContext) -> Transport:
        faulty = Faulty(SocketTransport(Options(window_frames=64), context), seed=self.seed)
        self.made.append(faulty)
        return faulty

    def test_every_fault_happened(self) -> None:
        for faulty in self.made:
            assert isinstance(faulty.transport, SocketTransport)
            self.happened.update(faulty.faults)
            self.happened.update(faulty.transport.refused)
        expected = {"delay", "full", "reorder", "disconnect", "repeat", "repeated"}
        assert {fault for fault in expected if not self.happened[fault]} == set()


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
