"""Whole jobs in one process, with objects, bytes, or little room.

Outputs are those of the reference interpreter.
"""

from __future__ import annotations

import pytest

from flamecore.testing.flows.over_transport import TransportFlowTests
from flamestream_inproc import InprocTransport


@pytest.mark.variant("inproc")
class TestObjects(TransportFlowTests):
    driver = InprocTransport


@pytest.mark.variant("inproc")
class TestBytes(TransportFlowTests):
    driver = InprocTransport
    options = {"serialise": True}


@pytest.mark.variant("inproc")
class TestLittleRoom(TransportFlowTests):
    driver = InprocTransport
    options = {"serialise": True, "room": 1}
