"""Whole jobs on several processes, over sockets; outputs are those of the reference interpreter."""

from __future__ import annotations

from flamecore.testing.flows.over_transport import TransportFlowTests
from flamestream_sockets import SocketTransport


class TestSocket(TransportFlowTests):
    driver = SocketTransport
