"""The transport, held against the contract: with much room, with hardly any, and in many parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from flamecore.testing.nats_server import NatsServer
from flamecore.testing.transports import TransportTests
from flamecore.transport import Transport, TransportContext
from flamestream_nats import NatsTransport, Options


class _Served(TransportTests):
    """Through one server."""

    server: NatsServer
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed, only replaced
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
    options = {"window_frames": 1}  # noqa: RUF012


class TestFewBytes(_Served):
    most = 1000
    options = {"window_bytes": 2000}  # noqa: RUF012
    token = ""


class TestSmallMessages(_Served):
    """The server takes no message of more than 2 kB."""

    most = 2000

    @pytest.fixture(autouse=True)
    def _serve(self, server: NatsServer) -> Iterator[None]:
        with NatsServer(max_payload=2048) as self.server:
            yield
