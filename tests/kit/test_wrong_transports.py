"""The kit for transports is tested: each wrong transport fails in the checks meant for it, and only there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from wrong_drivers import WrongDrivers

from flamecore.abc.transport import Delivery, Outlook, TransportCapabilities, TransportContext
from flamecore.errors import PeerGoneError
from flamecore.testing.bench.transports import Note
from flamecore.testing.checks import transports as kit
from flamecore.testing.laws import LawBroken
from flamecore.testing.simulation.virtual import run_virtually
from flamecore.toolkit.wait_queue import WaitQueue
from flamestream_inproc import InprocEndpoint, InprocTransport, Options

LIMIT_S: Final = 0.5


class Wrong(InprocTransport):
    """The good transport, with endpoints of another class."""

    endpoint: type[InprocEndpoint] = InprocEndpoint
    serialise = False

    def __init__(self, context: TransportContext) -> None:
        super().__init__(Options(serialise=self.serialise), context)
        self.count = 0

    async def bind(self, address: str) -> InprocEndpoint:
        await super().bind(address)
        endpoint = self.endpoints[address] = self.endpoint(address, self)
        return endpoint


class Faulty(InprocEndpoint):
    """Does every 150th hand-over of the transport by `fault`."""

    _transport: Wrong

    def _take(self, delivery: Delivery) -> None:
        self._transport.count += 1
        if self._transport.count % 150 == 0:
            self.fault(delivery)
        else:
            super()._take(delivery)

    def fault(self, delivery: Delivery) -> None:
        raise NotImplementedError


class Reorders(Wrong):
    class endpoint(Faulty):
        def fault(self, delivery: Delivery) -> None:
            super(Faulty, self)._take(delivery)
            if len(self._queue) > 1 and self._queue[-2].sender == delivery.sender:
                self._queue[-1], self._queue[-2] = self._queue[-2], self._queue[-1]


class Duplicates(Wrong):
    class endpoint(Faulty):
        def fault(self, delivery: Delivery) -> None:
            super(Faulty, self)._take(delivery)
            super(Faulty, self)._take(delivery)


class Drops(Wrong):
    class endpoint(Faulty):
        def fault(self, delivery: Delivery) -> None:
            pass


class Cuts(Wrong):
    """Carries no more than 64 KiB of text."""

    def copy(self, message: Any) -> Any:
        if isinstance(message, Note) and len(message.text) > 2**16:
            return Note(message.number, message.text[: 2**16])
        return message


class MixesSenders(Wrong):
    class endpoint(InprocEndpoint):
        def _take(self, delivery: Delivery) -> None:
            super()._take(delivery._replace(sender=self.address))


class NeverWaits(Wrong):
    """Has room without end; so nobody who sends to one that leaves is ever waiting for room."""

    class endpoint(InprocEndpoint):
        def send_nowait(self, to: str, message: Any) -> bool:
            self._peer(to)._take(Delivery(self.address, message))
            return True


class Overtakes(Wrong):
    """Sends past those who wait."""

    class endpoint(InprocEndpoint):
        def send_nowait(self, to: str, message: Any) -> bool:
            peer = self._peer(to)
            if not peer._senders:
                return super().send_nowait(to, message)
            peer._take(Delivery(self.address, message))
            return True


class NeverGoesOn(Wrong):
    """Forgets those who wait."""

    class endpoint(InprocEndpoint):
        def _make_room(self) -> None:
            pass


class LosesCancelled(Wrong):
    """Takes a message out before it knows that anybody still wants it."""

    class endpoint(InprocEndpoint):
        async def receive(self) -> Delivery:
            delivery = await super().receive()
            await asyncio.sleep(0)
            return delivery


class Stopped(WaitQueue[Delivery]):
    """Waits for ever behind a sender that was cancelled."""

    async def wait(self, thing: Delivery, limit_s: float | None = None) -> None:
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append((turn, thing))
        await turn

    def admit(self, fits: Callable[[], bool], take: Callable[[Delivery], None]) -> None:
        if self.waiting and not self.waiting[0][0].done():
            super().admit(fits, take)


class Bereft(WaitQueue[Delivery]):
    """Loses the message behind that of a sender that is cancelled."""

    async def wait(self, thing: Delivery, limit_s: float | None = None) -> None:
        try:
            await super().wait(thing, limit_s)
        except asyncio.CancelledError:
            if self.waiting:
                self.waiting.popleft()[0].set_result(None)
            raise


class StopsBehindCancelled(Wrong):
    class endpoint(InprocEndpoint):
        def __init__(self, address: str, transport: Wrong) -> None:
            super().__init__(address, transport)
            self._senders = Stopped()


class LosesBehindCancelled(Wrong):
    class endpoint(InprocEndpoint):
        def __init__(self, address: str, transport: Wrong) -> None:
            super().__init__(address, transport)
            self._senders = Bereft()


class ForgetsAtClose(Wrong):
    """Takes back what nobody has received yet when the sender closes."""

    class endpoint(InprocEndpoint):
        async def aclose(self) -> None:
            for peer in self._transport.endpoints.values():
                for delivery in [delivery for delivery in peer._queue if delivery.sender == self.address]:
                    peer._queue.remove(delivery)
            await super().aclose()


class ClosesOnce(Wrong):
    """Fails when it is closed again."""

    class endpoint(InprocEndpoint):
        async def aclose(self) -> None:
            if self._closed:
                raise PeerGoneError("closed already", address=self.address, peer="")
            await super().aclose()


class WorksOn(Wrong):
    """Swallows what is sent from a closed endpoint."""

    class endpoint(InprocEndpoint):
        def send_nowait(self, to: str, message: Any) -> bool:
            return self._closed or super().send_nowait(to, message)


class LeavesWaiting(Wrong):
    """Does not wake who waits to receive at an endpoint that closes."""

    class endpoint(InprocEndpoint):
        async def aclose(self) -> None:
            self._receiver = None
            await super().aclose()


left_open: list[socket.socket] = []


class LeavesOpen(Wrong):
    """Closes what it has open unless it is cancelled before."""

    async def start(self) -> str:
        location = await super().start()
        self._server: socket.socket | None = socket.create_server(("127.0.0.1", 0))
        return location

    async def aclose(self) -> None:
        await super().aclose()
        server, self._server = self._server, None
        if server is not None:
            left_open.append(server)  # the collector would close it here
            await asyncio.sleep(0)
            server.close()


class SendsToNobody(Wrong):
    """Swallows what is sent to nobody."""

    class endpoint(InprocEndpoint):
        def send_nowait(self, to: str, message: Any) -> bool:
            return (not self._closed and to not in self._transport.endpoints) or super().send_nowait(to, message)


class LeavesSendersWaiting(Wrong):
    """Does not wake who waits to send to an endpoint that closes."""

    class endpoint(InprocEndpoint):
        async def aclose(self) -> None:
            self._senders = WaitQueue()
            await super().aclose()


class BindsTwice(Wrong):
    async def bind(self, address: str) -> InprocEndpoint:
        endpoint = self.endpoints[address] = InprocEndpoint(address, self)
        return endpoint


class Inherits(Wrong):
    """Leaves to the next of an address what the last has not received."""

    class endpoint(InprocEndpoint):
        def __init__(self, address: str, transport: Wrong) -> None:
            super().__init__(address, transport)
            self._queue.extend(getattr(transport, "left", {}).pop(address, ()))

        async def aclose(self) -> None:
            if not hasattr(self._transport, "left"):
                self._transport.left = {}  # type: ignore[attr-defined]
            self._transport.left[self.address] = list(self._queue)  # type: ignore[attr-defined]
            await super().aclose()


class SharesObjects(Wrong):
    """Says that it serialises, and does not."""

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=False, serialises=True)


class OneProcess(Wrong):
    """Says that objects can leave their process."""

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=True, serialises=False)


class JoinsElsewhere(Wrong):
    """Sends others to an address with a scheme that is not its own."""

    def outlook(self) -> Outlook:
        return Outlook("here", join="elsewhere://here")


class TakesNoAddress(Wrong):
    """Makes nothing of the address that it gives to others."""

    schemes = ("here",)

    def outlook(self) -> Outlook:
        return Outlook("here", join="here://")


class ForgetsTypes(Wrong):
    """Encodes what it can, and makes lists of tuples."""

    serialise = True

    def copy(self, message: Any) -> Any:
        if isinstance(message, dict):
            return {key: list(value) if isinstance(value, tuple) else value for key, value in message.items()}
        return super().copy(message)


class RefusesLate(Wrong):
    """Takes what has no bytes, and drops it on the way."""

    serialise = True

    class endpoint(InprocEndpoint):
        def send_nowait(self, to: str, message: Any) -> bool:
            return type(message) is object or super().send_nowait(to, message)


WRONG: Final[Mapping[type[Wrong], Mapping[str, str]]] = {
    Reorders: {"channels": "order", "room": "order", "cancelled_senders": "cancel"},
    Duplicates: {"channels": "twice", "room": "twice", "cancelled_senders": "cancel"},
    Drops: {"channels": "loss", "room": "loss", "cancelled_senders": "cancel"},
    Cuts: {"large": "content"},
    MixesSenders: {"channels": "content", "large": "content"},
    NeverWaits: {"room": "room", "gone": "gone", "cancelled_senders": "room"},
    Overtakes: {"room": "order"},
    NeverGoesOn: {"room": "loss", "cancelled_senders": "cancel"},
    LosesCancelled: {"cancel": "cancel"},
    StopsBehindCancelled: {"cancelled_senders": "cancel"},
    LosesBehindCancelled: {"cancelled_senders": "cancel"},
    ForgetsAtClose: {"close": "close"},
    ClosesOnce: {"close": "close"},
    WorksOn: {"close": "close"},
    LeavesWaiting: {"close": "close"},
    LeavesOpen: {"cancelled_close": "close"},
    SendsToNobody: {"gone": "gone"},
    LeavesSendersWaiting: {"gone": "gone"},
    BindsTwice: {"addresses": "address"},
    Inherits: {"addresses": "address"},
    SharesObjects: {"flags": "flags"},
    OneProcess: {"flags": "flags"},
    JoinsElsewhere: {"flags": "flags"},
    TakesNoAddress: {"flags": "flags"},
    ForgetsTypes: {"flags": "content"},
    RefusesLate: {"flags": "flags"},
}
"""For each wrong transport the checks that see it, and the law that they find broken."""


class TestWrongTransports(WrongDrivers):
    checks = kit.CHECKS
    tests = kit.TransportTests
    right = Wrong
    wrong = WRONG
    run = staticmethod(run_virtually)

    @pytest.fixture(autouse=True)
    def _tidy(self) -> Iterator[None]:
        yield
        while left_open:
            left_open.pop().close()

    def subject(self, driver: type[Wrong], folder: Path) -> kit.Setup:
        return kit.Setup(driver, limit_s=LIMIT_S)


class ConnectsLate(Wrong):
    """Is right, and takes its time for the first message of an endpoint."""

    class endpoint(InprocEndpoint):
        def __init__(self, address: str, transport: Wrong) -> None:
            super().__init__(address, transport)
            self._turn = asyncio.Lock()
            self._connected = False
            self._senders_in_turn = 0

        def send_nowait(self, to: str, message: Any) -> bool:
            return not self._senders_in_turn and super().send_nowait(to, message)

        async def send(self, to: str, message: Any) -> None:
            self._senders_in_turn += 1
            try:
                async with self._turn:
                    if not self._connected:
                        await asyncio.sleep(1.5 * kit._STALL_S)
                        self._connected = True
                    if not super().send_nowait(to, message):
                        await self._peer(to)._senders.wait(Delivery(self.address, message))
            finally:
                self._senders_in_turn -= 1


@pytest.mark.parametrize("check", kit.CHECKS, ids=lambda check: check.__name__)
def test_a_transport_that_connects_late_passes(check: Callable[[kit.Setup], Awaitable[None]]) -> None:
    # Its first message takes longer than the checks wait for one that finds no room, and the next ones do not.
    async def run() -> None:
        await check(kit.Setup(ConnectsLate, limit_s=5))

    run_virtually(run())


def test_a_class_without_make_says_so() -> None:
    with pytest.raises(NotImplementedError, match="make"):
        kit.TransportTests().test_channels()


class TwoProcesses(InprocTransport):
    """A transport between two processes of the kit, with a dict for a network.

    It has locations, and bytes on the way.
    """

    network: ClassVar[dict[str, TwoProcesses]] = {}

    def __init__(self, context: TransportContext) -> None:
        super().__init__(Options(serialise=True), context)
        self.location = ""

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=True, serialises=True)

    async def start(self) -> str:
        self.location = f"{self.context.folder}/{self.context.node}"
        self.network[self.location] = self
        return self.location

    async def bind(self, address: str) -> InprocEndpoint:
        await super().bind(address)
        endpoint = self.endpoints[address] = Remote(address, self)
        return endpoint


class Remote(InprocEndpoint):
    _transport: TwoProcesses

    def _peer(self, to: str) -> InprocEndpoint:
        if self._closed or to in self._transport.endpoints:
            return super()._peer(to)
        locate = self._transport.context.locate
        assert locate is not None
        far = self._transport.network[locate(to)].endpoints.get(to)
        if far is None:
            raise PeerGoneError(f"no endpoint is bound to {to} any more", address=self.address, peer=to)
        return far


class TestTwoProcesses(kit.TransportTests):
    def make(self, context: TransportContext) -> InprocTransport:
        return TwoProcesses(context)


class CallsItLost(TwoProcesses):
    async def aclose(self) -> None:
        if self.context.lost is not None:
            self.context.lost(self.location, EOFError("the connection was cut"))
        await super().aclose()


def test_a_transport_that_reports_a_closed_peer_as_lost_is_caught() -> None:
    with pytest.raises(LawBroken, match="lost") as caught:
        asyncio.run(kit.check_transport(CallsItLost))
    assert caught.value.law == "close"


def test_addresses_are_spread_over_processes() -> None:
    assert [setup.processes for setup in kit.setups(TwoProcesses)] == [1, 2]
    assert [setup.processes for setup in kit.setups(Wrong)] == [1]
