"""The in-process transport against its contract: objects, bytes, little room."""

from __future__ import annotations

import pytest

from flamecore.abc.transport import Transport, TransportContext
from flamecore.testing.checks.transports import TransportTests
from flamestream_inproc import InprocTransport, Options


@pytest.mark.variant("inproc")
class TestObjects(TransportTests):
    def make(self, context: TransportContext) -> Transport:
        return InprocTransport(Options(), context)


@pytest.mark.variant("inproc")
class TestBytes(TransportTests):
    def make(self, context: TransportContext) -> Transport:
        return InprocTransport(Options(serialise=True), context)


@pytest.mark.variant("inproc")
class TestLittleRoom(TransportTests):
    most = 100

    def make(self, context: TransportContext) -> Transport:
        return InprocTransport(Options(room=1), context)
