"""The half of a transport that its links have in common: whom it finds, and whom it knows to be gone."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, NoReturn

import pytest

from flamecore.abc.transport import TransportContext
from flamecore.errors import (
    ConnectError,
    FlameError,
    PeerGoneError,
    SendTimeout,
    TransportClosedError,
    TransportError,
)
from flamecore.testing.simulation.virtual import run_virtually
from flamecore.toolkit.frames import Frame
from flamecore.toolkit.links.connection import BrokenConnectionError, Dialed, Greeting, Refusal, Role
from flamecore.toolkit.links.incoming import GOODBYE
from flamecore.toolkit.links.options import LinkOptions
from flamecore.toolkit.links.transport import LinkedTransport

HOMES = {"a": "at here", "b": "at there", "c": "at there", "d": "at yonder", "e": "nowhere", "f": "", "g": "at here"}


class Mute:
    """A connection to a process that only says goodbye, when it is told to."""

    def __init__(self, goodbye: bytes, instance: str) -> None:
        self.instance = instance
        self.written: list[bytes] = []
        self._goodbye = goodbye
        self._over: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        if not self._over.done():
            self._over.set_result(self._goodbye)

    async def read(self) -> bytes | None:
        return await asyncio.shield(self._over)

    async def write(self, data: bytes) -> None:
        self.written.append(data)

    async def finish(self) -> None:
        self.close()

    def abort(self) -> None:
        if not self._over.done():
            self._over.set_exception(BrokenConnectionError("it broke"))
            self._over.exception()

    async def aclose(self) -> None: ...


class Caller:
    """A call of a process."""

    roles = (Role(),)

    def __init__(self, greeting: Greeting) -> None:
        self.greeting = greeting

    async def refuse(self, refusal: Refusal, why: str) -> NoReturn:
        raise BrokenConnectionError(why)


class Driver(LinkedTransport):
    """A driver whose process is at "at here", and that may dial all locations that begin alike."""

    Options = LinkOptions
    unreachable_hint: ClassVar[str] = ""

    def __init__(self) -> None:
        self.losses: list[str] = []
        self.exposed: list[str] = []
        self.silent: list[str] = []
        self.lines: list[tuple[str, Mute]] = []
        self.instances = {"at there": "first"}
        context = TransportContext(
            job="job", incarnation=1, codec=self, locate=HOMES.__getitem__, lost=lambda at, _: self.losses.append(at)
        )
        super().__init__(LinkOptions(connect_timeout_s=2.0, reconnect_timeout_s=1.0, send_timeout_s=5.0), context)

    def encode(self, message: bytes) -> bytes:
        return message

    async def start(self) -> str:
        self.location = "at here"
        return self.location

    async def dial(self, location: str, deadline: float) -> Dialed:
        if location in self.silent:
            raise BrokenConnectionError("nothing listens", absent=True)
        line = Mute(self.framing.wrap(GOODBYE), self.instances.get(location, location))
        self.lines.append((location, line))
        return line

    def is_location(self, text: str) -> bool:
        return text.startswith("at ")

    def check_exposed(self, location: str) -> None:
        if location in self.exposed:
            raise TransportError(f"{location} is for anybody to read", address="", peer=location)

    async def reachable(self, location: str) -> bool:
        return False


async def started() -> tuple[Driver, Any]:
    """Return a transport, and an endpoint of it that has sent to an address elsewhere."""
    transport = Driver()
    await transport.start()
    endpoint = await transport.bind("a")
    await endpoint.send("b", b"one")
    await asyncio.sleep(0.01)
    return transport, endpoint


def gone(what: str) -> FlameError:
    return PeerGoneError(what, address="", peer="at there")


def test_addresses_of_one_process_share_a_link() -> None:
    async def main() -> None:
        transport, endpoint = await started()
        for receiver in ("c", "b", "d"):
            await endpoint.send(receiver, b"two")
        await asyncio.sleep(0.01)
        assert [location for location, _ in transport.lines] == ["at there", "at yonder"]
        assert {channel.receiver for channel in transport.outgoing_of("a")} == {"b", "c", "d"}
        assert transport.outgoing_of("b") == []
        sent = [(1, "b", b"one"), (1, "c", b"two"), (2, "b", b"two")]
        frames = [transport.framing.wrap(Frame("a", to, number, body)) for number, to, body in sent]
        assert b"".join(transport.lines[0][1].written) == b"".join(frames)
        await transport._break_off()

    run_virtually(main())


@pytest.mark.parametrize("receiver", ["e", "f", "g"])
def test_nobody_is_looked_for_here_or_where_no_process_can_be(receiver: str) -> None:
    async def main() -> None:
        transport, endpoint = await started()
        with pytest.raises(PeerGoneError, match=f"no endpoint is bound to {receiver}"):
            endpoint.send_nowait(receiver, b"x")
        await transport._break_off()

    run_virtually(main())


def test_nothing_goes_to_a_place_where_others_could_read_it() -> None:
    async def main() -> None:
        transport, endpoint = await started()
        transport.exposed = ["at there", "at yonder"]
        assert endpoint.send_nowait("c", b"two"), "it was looked at before"
        with pytest.raises(TransportError, match="for anybody to read"):
            endpoint.send_nowait("d", b"two")
        await asyncio.sleep(0.01)
        assert len(transport.lines) == 1
        await transport._break_off()

    run_virtually(main())


def test_a_process_that_is_lost_is_not_dialed_until_it_comes_again() -> None:
    async def main() -> None:
        transport, endpoint = await started()
        transport.peer_lost("at there", "first", error := gone("it is lost"))
        transport.peer_lost("at yonder", "other", gone("it is lost, too"))
        assert transport.losses == ["at there", "at yonder"]
        for receiver in ("b", "c"):
            with pytest.raises(PeerGoneError) as caught:
                endpoint.send_nowait(receiver, b"two")
            assert caught.value is error
        await asyncio.sleep(0.01)
        assert len(transport.lines) == 1
        for _ in range(2):
            transport.peer_came("at there")
        await endpoint.send("b", b"three")
        await asyncio.sleep(0.01)
        assert len(transport.lines) == 2
        await transport._break_off()

    run_virtually(main())


def test_a_process_that_could_not_be_reached_is_dialed_again() -> None:
    async def main() -> None:
        transport = Driver()
        await transport.start()
        endpoint = await transport.bind("a")
        transport.silent.append("at there")
        with pytest.raises(ConnectError):
            await endpoint.send("b", b"one")
        transport.silent.clear()
        await endpoint.send("b", b"two")
        assert (len(transport.lines), transport.losses) == (1, [])
        await transport._break_off()

    run_virtually(main())


@pytest.mark.parametrize("later", ["", "second"])
def test_the_end_of_a_link_says_nothing_of_a_process_that_has_called_since(
    later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        transport, endpoint = await started()
        monkeypatch.setattr(transport.server, "instance_at", {"at there": later}.__getitem__)
        transport.lines[0][1].close()
        await asyncio.sleep(1.0)
        if later:
            await endpoint.send("b", b"two")
        else:
            with pytest.raises(PeerGoneError, match="at there has closed"):
                endpoint.send_nowait("b", b"two")
        await transport._break_off()

    run_virtually(main())


def test_a_transport_breaks_and_repeats_for_tests() -> None:
    async def main() -> None:
        transport, _ = await started()
        frame = transport.framing.wrap(Frame("a", "b", 1, b"one"))
        transport.repeat()
        await asyncio.sleep(0.01)
        assert transport.lines[0][1].written == [frame] * 2
        transport.disconnect()
        await asyncio.sleep(0.1)
        assert [line.written for _, line in transport.lines] == [[frame] * 2, [frame]]
        await transport._break_off()

    run_virtually(main())


def test_a_transport_that_closes_says_goodbye_or_that_messages_were_not_taken() -> None:
    async def main() -> None:
        transport, _ = await started()
        with pytest.raises(SendTimeout, match="b has not taken its last 1 messages"):
            await transport.aclose()
        assert transport.lines[0][1].written[-1] == transport.framing.wrap(GOODBYE)

    run_virtually(main())


@pytest.mark.parametrize("instance", ["first", "second"])
def test_the_loss_of_an_earlier_process_ends_no_link_to_its_successor(instance: str) -> None:
    async def main() -> None:
        transport, endpoint = await started()
        channel = transport.outgoing("a", "b")
        transport.peer_lost("at there", instance, gone("it is lost"))
        if instance == "first":
            with pytest.raises(PeerGoneError, match="it is lost"):
                channel.has_room()
        else:
            assert channel.has_room()
            assert endpoint.send_nowait("b", b"two")
        await transport._break_off()

    run_virtually(main())


def test_a_process_that_has_closed_is_gone_but_not_lost() -> None:
    async def main() -> None:
        transport, endpoint = await started()
        (_, line) = transport.lines[0]
        line.close()
        await asyncio.sleep(5.0)
        assert transport.losses == []
        with pytest.raises(PeerGoneError, match="at there has closed"):
            endpoint.send_nowait("c", b"two")
        await transport._break_off()

    run_virtually(main())


def test_another_process_in_the_place_of_one_is_its_loss() -> None:
    async def main() -> None:
        transport, endpoint = await started()
        transport.instances["at there"] = "second"
        transport.disconnect()
        await asyncio.sleep(5.0)
        assert transport.losses == ["at there"]
        with pytest.raises(PeerGoneError, match="is another process now"):
            endpoint.send_nowait("b", b"two")
        caller: Any = Caller(transport.greeting._replace(location="at there", instance="first"))
        with pytest.raises(BrokenConnectionError, match="given up as lost"):
            await transport.server.serve(caller)
        assert transport.refused == {"lost": 1}
        await transport._break_off()

    run_virtually(main())


def test_an_address_is_bound_once_and_none_after_the_end() -> None:
    async def main() -> None:
        transport = Driver()
        await transport.start()
        endpoint = await transport.bind("a")
        assert transport.taker("a") is endpoint
        with pytest.raises(TransportError, match="a is bound already"):
            await transport.bind("a")
        await endpoint.aclose()
        assert transport.taker("a") is None
        again = await transport.bind("a")
        await transport.aclose()
        await transport.aclose()
        assert transport.taker("a") is None
        with pytest.raises(TransportClosedError):
            again.send_nowait("a", b"x")
        with pytest.raises(TransportClosedError, match="the transport is closed"):
            await transport.bind("b")

    run_virtually(main())


def test_nobody_is_told_of_losses_once_the_transport_closes() -> None:
    async def main() -> None:
        transport, _ = await started()
        closing = asyncio.create_task(transport.aclose())
        await asyncio.sleep(0.01)
        transport.peer_lost("at there", "first", gone("it is lost"))
        await closing
        assert transport.losses == []

    run_virtually(main())
