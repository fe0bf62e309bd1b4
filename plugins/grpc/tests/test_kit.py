"""The transport, held against the contract: over unix sockets, TCP and TLS, with bad luck, over bad networks."""

from __future__ import annotations

from flamecore.testing.faults import Faulty, Proxy
from flamecore.testing.transports import TransportTests
from flamecore.transport import Transport, TransportContext
from flamestream_grpc import GrpcTransport, Options


class TestUnix(TransportTests):
    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(), context)


class TestTcp(TransportTests):
    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(listen="127.0.0.1:0"), context)


class TestLittleRoom(TransportTests):
    most = 200

    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(window_frames=1), context)


class TestFewBytes(TransportTests):
    most = 2000

    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(window_bytes=10_000), context)


class TestBadLuck(TransportTests):
    most = 2000

    def make(self, context: TransportContext) -> Transport:
        return Faulty(GrpcTransport(Options(window_frames=64), context), seed=3)


class Proxied(GrpcTransport):
    """Others reach it through a bad network only."""

    proxy: Proxy

    async def start(self) -> str:
        self.proxy = Proxy(await super().start(), seed=3)
        self.location = await self.proxy.start()
        self.trouble()
        return self.location

    def trouble(self) -> None: ...

    async def aclose(self) -> None:
        await super().aclose()
        await self.proxy.aclose()


class Drips(Proxied):
    def trouble(self) -> None:
        self.proxy.drip(5000)


class TestDrips(TransportTests):
    most = 2000

    def make(self, context: TransportContext) -> Transport:
        return Drips(Options(window_frames=64), context)
