"""The transport against its contract: sockets, little room, faults, bad networks."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, ClassVar

import pytest

from flamecore.abc.transport import Transport, TransportContext
from flamecore.testing.checks.transports import TransportTests
from flamecore.testing.faults import Faulty, Proxy
from flamestream_sockets import Options, SocketTransport


class TestSocket(TransportTests):
    def make(self, context: TransportContext) -> Transport:
        return SocketTransport(None, context)


class TestRoomForOne(TransportTests):
    most = 200

    def make(self, context: TransportContext) -> Transport:
        return SocketTransport(Options(window_frames=1), context)


class TestRoomForFewBytes(TransportTests):
    most = 500

    def make(self, context: TransportContext) -> Transport:
        return SocketTransport(Options(window_frames=256, window_bytes=10_000), context)


@pytest.mark.parametrize("seed", [1, 2])
class TestBadLuck(TransportTests):
    """A faulty transport; every fault must have happened in the course of the checks."""

    most = 1000
    happened: ClassVar[Counter[str]] = Counter()
    made: ClassVar[list[Faulty]] = []

    @pytest.fixture(autouse=True)
    def _seed(self, seed: int) -> None:
        self.seed = seed

    def make(self, context: TransportContext) -> Transport:
        faulty = Faulty(SocketTransport(Options(window_frames=64), context), seed=self.seed)
        self.made.append(faulty)
        return faulty

    def test_every_fault_happened(self) -> None:
        for faulty in self.made:
            assert isinstance(faulty.transport, SocketTransport)
            self.happened.update(faulty.faults)
            self.happened.update(faulty.transport.refused)
        expected = {"delay", "full", "reorder", "disconnect", "repeat", "repeated"}
        assert {fault for fault in expected if not self.happened[fault]} == set()


@pytest.mark.parametrize("trouble", ["drips", "stalls", "cuts", "flips"])
class TestBadNetwork(TransportTests):
    """A way that delivers in small pieces, stalls, breaks ever more rarely, or flips bits."""

    most = 500

    @pytest.fixture(autouse=True)
    def _trouble(self, trouble: str) -> None:
        self.trouble = trouble

    def make(self, context: TransportContext) -> Transport:
        # A connection that breaks before a message has crossed does not count: a busy machine must not lose the peer in
        # a test of surviving the network.
        return Proxied(Options(window_frames=64, reconnect_timeout_s=5.0), context, self.trouble)


class Proxied(SocketTransport):
    """A transport that others reach over a bad way only."""

    def __init__(self, options: Any, context: TransportContext, trouble: str) -> None:
        super().__init__(options, context)
        self._trouble = trouble
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> str:
        self.proxy = Proxy(await super().start(), seed=1)
        self.location = await self.proxy.start()
        if self._trouble == "drips":
            self.proxy.drip(3000)
        elif self._trouble == "flips":
            self.proxy.flip(50_000, most=3)
        elif self._trouble == "stalls":
            self._turn(stalled=False)
        else:
            self._cut(0.1)
        return self.location

    def _turn(self, *, stalled: bool) -> None:
        if stalled:
            self.proxy.stall()
        else:
            self.proxy.resume()
        self._timer = asyncio.get_running_loop().call_later(0.02, lambda: self._turn(stalled=not stalled))

    def _cut(self, lasts_s: float) -> None:
        self.proxy.cut()
        self._timer = asyncio.get_running_loop().call_later(lasts_s, self._cut, 1.5 * lasts_s)

    async def aclose(self) -> None:
        await super().aclose()
        if self._timer is not None:
            self._timer.cancel()
        await self.proxy.aclose()
