"""The transport against its contract: unix, TCP, TLS, faults, bad networks."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, ClassVar

import pytest

from flamecore.abc.transport import Transport, TransportContext
from flamecore.testing.checks.transports import TransportTests
from flamecore.testing.faults import Faulty, Proxy
from flamestream_grpc import GrpcTransport, Options


class TestUnix(TransportTests):
    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(), context)


class TestTcp(TransportTests):
    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(listen="127.0.0.1:0"), context)


class TestTls(TransportTests):
    @pytest.fixture(autouse=True)
    def _options(self, certificates: Any) -> None:
        self.options = certificates.options()

    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(self.options, context)


class TestRoomForOne(TransportTests):
    most = 200

    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(window_frames=1), context)


class TestRoomForFewBytes(TransportTests):
    most = 500

    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(window_frames=256, window_bytes=10_000), context)


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
        faulty = Faulty(GrpcTransport(Options(window_frames=64), context), seed=self.seed)
        self.made.append(faulty)
        return faulty

    def test_every_fault_happened(self) -> None:
        for faulty in self.made:
            assert isinstance(faulty.transport, GrpcTransport)
            self.happened.update(faulty.faults)
            self.happened.update(faulty.transport.refused)
        expected = {"delay", "full", "reorder", "disconnect", "repeat", "repeated"}
        assert {fault for fault in expected if not self.happened[fault]} == set()


class Proxied(GrpcTransport):
    """A transport that others reach over a bad network only."""

    proxy: Proxy

    async def start(self) -> str:
        self.proxy = Proxy(await super().start(), seed=1)
        self.location = await self.proxy.start()
        self.trouble()
        return self.location

    def trouble(self) -> None:
        """Cause the network's faults."""
        raise NotImplementedError

    async def aclose(self) -> None:
        await super().aclose()
        await self.proxy.aclose()


class Drips(Proxied):
    """A network that delivers in small pieces."""

    def trouble(self) -> None:
        self.proxy.drip(3000)


class Stalls(Proxied):
    """A network that stalls again and again."""

    _timer: asyncio.TimerHandle

    def trouble(self) -> None:
        def turn(*, stalled: bool) -> None:
            if stalled:
                self.proxy.stall()
            else:
                self.proxy.resume()
            self._timer = asyncio.get_running_loop().call_later(0.02, lambda: turn(stalled=not stalled))

        turn(stalled=False)

    async def aclose(self) -> None:
        await super().aclose()
        self._timer.cancel()


class Cuts(Proxied):
    """A network that breaks connections again and again, but ever more rarely.

    A message crosses in one connection or not at all: at a steady pace of breaks, one of 8 MiB might never cross on a
    machine too busy to transfer it between two breaks.
    """

    _timer: asyncio.TimerHandle

    def trouble(self) -> None:
        def cut(lasts_s: float) -> None:
            self.proxy.cut()
            self._timer = asyncio.get_running_loop().call_later(lasts_s, cut, 1.5 * lasts_s)

        cut(0.1)

    async def aclose(self) -> None:
        self._timer.cancel()
        await super().aclose()


class Flips(Proxied):
    """A network that flips bits. TLS notices, and the connection breaks."""

    def trouble(self) -> None:
        self.proxy.flip(50_000, most=3)


# Not plain, and flipped: a flipped bit of HTTP/2 itself, say of a window's size, can stall it unnoticed.
NETWORKS = [(Drips, "unix"), (Drips, "tls"), (Stalls, "tcp"), (Cuts, "unix"), (Cuts, "tls"), (Flips, "tls")]


@pytest.mark.parametrize(("network", "way"), NETWORKS)
class TestBadNetwork(TransportTests):
    most = 500

    @pytest.fixture(autouse=True)
    def _network(self, network: type[Proxied], way: str, certificates: Any) -> None:
        self.network = network
        # A connection that breaks before a message has crossed does not count: a busy machine must not lose the peer in
        # a test of surviving the network.
        patient: dict[str, Any] = {"window_frames": 64, "reconnect_timeout_s": 5.0}
        self.options = certificates.options(**patient)
        if way != "tls":
            self.options = Options(listen="unix" if way == "unix" else "127.0.0.1", **patient)

    def make(self, context: TransportContext) -> Transport:
        return self.network(self.options, context)
