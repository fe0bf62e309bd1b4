"""Whole jobs in one process, with objects, bytes, or little room.

Outputs are those of the reference interpreter.
"""

from __future__ import annotations

from flamecore.testing.flows.over_transport import TransportFlowTests
from flamestream_inproc import InprocTransport


class TestObjects(TransportFlowTests):
    driver = InprocTransport


class TestBytes(TransportFlowTests):
    driver = InprocTransport
    options = {"serialise": True}


class TestLittleRoom(TransportFlowTests):
    driver = InprocTransport
    options = {"serialise": True, "room": 1}
