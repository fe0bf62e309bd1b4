"""The transport, held against the contract."""

from __future__ import annotations

from flamecore.testing.transports import TransportTests
from flamecore.transport import Transport, TransportContext
from flamestream_grpc import GrpcTransport, Options


class TestUnix(TransportTests):
    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(), context)


class TestTcp(TransportTests):
    def make(self, context: TransportContext) -> Transport:
        return GrpcTransport(Options(listen="127.0.0.1"), context)
