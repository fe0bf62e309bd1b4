"""Whole jobs on several processes: outputs are those of the reference interpreter."""

from __future__ import annotations

import pytest

from flamecore.testing.flows.over_transport import TransportFlowTests
from flamestream_nats import NatsTransport
from flamestream_nats.testing import NatsServer


class TestFlows(TransportFlowTests):
    driver = NatsTransport

    @pytest.fixture(autouse=True)
    def _options(self, server: NatsServer) -> None:
        self.options = {"servers": [server.url]}
