"""Whole jobs on several processes, over unix sockets and TLS.

Outputs are those of the reference interpreter.
"""

from __future__ import annotations

from typing import Any

import pytest

from flamecore.testing.flows.over_transport import Cell, TransportFlowTests
from flamestream_grpc import GrpcTransport


@pytest.mark.variant("grpc")
class TestUnix(TransportFlowTests):
    driver = GrpcTransport


@pytest.mark.variant("grpc")
class TestTls(TransportFlowTests):
    driver = GrpcTransport
    sample = (Cell("sharded", 2, "own"), Cell("local", 4, "worker"))

    @pytest.fixture(autouse=True)
    def _options(self, certificates: Any) -> None:
        made = certificates.options()
        self.options = {key: getattr(made, key) for key in ("listen", "tls_ca", "tls_certificate", "tls_key")}
