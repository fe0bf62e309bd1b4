"""Whole jobs on several processes, through a server: outputs are those of the reference interpreter."""

from __future__ import annotations

import pytest

from flamecore.testing.nats_server import NatsServer
from flamecore.testing.transport_flows import TransportFlowTests
from flamestream_nats import NatsTransport


class TestFlows(TransportFlowTests):
    driver = NatsTransport

    @pytest.fixture(autouse=True)
    def _options(self, server: NatsServer) -> None:
        self.options = {"servers": [server.url]}
