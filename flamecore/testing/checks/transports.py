"""The public kit for transports: `check_transport(make)`, or `TransportTests`, and `FaultyTransportTests`.

The classes are for pytest: `class TestMine(TransportTests)`. Nothing here needs a test runner. The checks test a
transport against the laws of `flamecore.abc.transport`, by the names that `LawBroken.law` gives:

* `order`: a channel never reorders, `send` and `send_nowait` taken together;
* `loss`, `twice`, `content`: every message arrives, once, as it was sent, with the name of its sender;
* `room`: a sender waits while the receiver does not read, and goes on when it does;
* `cancel`: a cancelled wait loses nothing, of a receiver and of a sender;
* `close`: messages sent are delivered first, a second close does nothing, a closed endpoint refuses calls and wakes
  those that wait at it; a transport whose closing is cancelled has closed all that it had open, too;
* `gone`: sending to an unbound address is an error, also for senders that wait;
* `address`: one endpoint an address; once closed it is free, and its successor inherits nothing;
* `flags`: the capabilities are true, and an address for others to join at is one that they can use.

A transport that claims `multi_process` is checked twice: all addresses in one process, and spread over two.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final
from unittest import SkipTest

from flamecore.abc.transport import Endpoint, JobAddress, Transport, TransportContext
from flamecore.errors import CodecError, PeerGoneError, TransportClosedError, TransportError
from flamecore.runtime.config.schemes import has_scheme, schemes_of
from flamecore.runtime.tasks import event_loop
from flamecore.runtime.tasks.leftovers import Leftovers
from flamecore.testing.bench.transports import LIMIT_S, Bench, Make, Note, Setup, judge, setups
from flamecore.testing.faults import Disconnects, Faulty
from flamecore.testing.laws import LawBroken

__all__ = [
    "CHECKS",
    "FaultyTransportTests",
    "LawBroken",
    "Make",
    "Setup",
    "TransportTests",
    "check_transport",
    "setups",
]

_STALL_S: Final = 0.05
_CLOSING_TURNS: Final = 8
"""Turns of the event loop in which a closing does something, about."""
_BUSY_TURNS: Final = 8
"""Turns of the event loop in which a connection is mended, about; a process is busy after each of them."""


async def check_channels(setup: Setup) -> None:
    """Check two endpoints that send to each other, and several that send to one.

    Raises:
        LawBroken: `order`, `loss`, `twice` or `content`.
    """
    notes = [Note(number, "x" * (number % 7)) for number in range(300)]

    async def talk(endpoint: Endpoint, peer: str) -> None:
        for note in notes:
            if note.number % 3 or not endpoint.send_nowait(peer, note):
                await endpoint.send(peer, note)
            if not note.number % 10:
                await asyncio.sleep(0)

    async with Bench(setup) as bench:
        left, right = await bench.bind("worker/0"), await bench.bind("worker/1")
        heard = asyncio.gather(bench.expect(right, "worker/0", notes), bench.expect(left, "worker/1", notes))
        await bench.exchange(heard, talk(left, "worker/1"), talk(right, "worker/0"))
    async with Bench(setup) as bench:
        rear = await bench.bind("rear/out")
        workers = [await bench.bind(f"worker/{index}") for index in range(4)]
        taking = bench.take(rear, len(notes) * len(workers))
        got = await bench.exchange(taking, *(talk(worker, "rear/out") for worker in workers))
        for worker in workers:
            judge(notes, [message for sender, message in got if sender == worker.address])


async def check_busy(setup: Setup, busy_s: float) -> None:
    """Check that a process may have no time while it mends its connections: the other one is not lost for that.

    Args:
        setup: The setup, of a transport whose connections can be broken on purpose.
        busy_s: Seconds without time, as in a long function of a user.

    Raises:
        LawBroken: `loss`, or `close`.
    """
    async with Bench(setup) as bench:
        worker, rear = await bench.bind("worker/0"), await bench.bind("rear/out")
        await bench.exchange(bench.expect(rear, "worker/0", [Note(0)]), worker.send("rear/out", Note(0)))
        for turns in range(_BUSY_TURNS):
            for process in bench.processes:
                assert isinstance(process, Disconnects)
                process.disconnect()
            for _ in range(turns):
                await asyncio.sleep(0)
            time.sleep(busy_s)
            note = Note(turns)
            await bench.exchange(bench.expect(rear, "worker/0", [note]), worker.send("rear/out", note))


async def check_large(setup: Setup) -> None:
    """Check a message of 8 MiB among small ones.

    Raises:
        LawBroken: `order`, `loss`, `twice` or `content`.
    """
    notes = [Note(0), Note(1, "ß" * 2**22), Note(2)]
    async with Bench(setup) as bench:
        worker, rear = await bench.bind("worker/0"), await bench.bind("rear/out")

        async def talk() -> None:
            for note in notes:
                await worker.send("rear/out", note)

        await bench.exchange(bench.expect(rear, "worker/0", notes), talk())


async def check_room(setup: Setup) -> None:
    """Check that senders wait for a receiver that does not read, in turn.

    They go on when it reads.

    Raises:
        LawBroken: `room`, `order`, `loss` or `twice`.
    """
    notes = [Note(number, "x" * 1024) for number in range(setup.most)]
    async with Bench(setup) as bench:
        worker, rear = await bench.bind("worker/0"), await bench.bind("rear/out")
        sender = _Sender(worker, notes)
        first = await sender.wait_until_it_waits()
        # Messages sent from here on come after the one that waits, `first`.
        extra = [Note(-1)] if worker.send_nowait("rear/out", Note(-1)) else []
        got = await bench.take(rear, 1)
        waits = asyncio.create_task(worker.send("rear/out", Note(-2)))
        got += await bench.take(rear, setup.most + len(extra))
        await bench.within("room", asyncio.gather(sender.task, waits), "sending what has been received")
        messages = [message for _, message in got]
        judge(notes, [message for message in messages if message.number >= 0])
        judge([*extra, Note(-2)], [message for message in messages if message.number < 0])
        if any(messages.index(late) < messages.index(notes[first]) for late in extra):
            raise LawBroken("order", f"send_nowait has overtaken message {first}, which waited for room")


class _Sender:
    """A sender of notes to a receiver that does not read.

    Attributes:
        sending: Number of the note that it sends now.
        task: The task in which it sends.
    """

    def __init__(self, worker: Endpoint, notes: Sequence[Note]) -> None:
        self._worker = worker
        self._notes = notes
        self.sending = 0
        self.task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        for note in self._notes:
            self.sending = note.number
            await self._worker.send("rear/out", note)

    # How long a transport may take for a message is not known: on a busy machine, a sender may also go on after this.
    # No check may count on it.
    async def wait_until_it_waits(self) -> int:
        """Wait until the sender seems to wait for room.

        Returns:
            The number of the note that it sends then.

        Raises:
            LawBroken: `room`: it never waits.
        """
        seen = -1
        while seen < self.sending and not self.task.done():
            seen = self.sending
            await asyncio.wait((self.task,), timeout=_STALL_S)
        if self.task.done():
            self.task.result()
            raise LawBroken("room", f"{len(self._notes)} messages find room where nobody reads: the sender never waits")
        return seen


async def check_cancel(setup: Setup) -> None:
    """Check that cancelled waits of a receiver lose nothing.

    A message may arrive at that very moment.

    Raises:
        LawBroken: `cancel`.
    """
    async with Bench(setup) as bench:
        worker, rear = await bench.bind("worker/0"), await bench.bind("rear/out")
        got = []
        for number in range(50):
            waits = asyncio.create_task(rear.receive())
            for _ in range(number % 4):
                await asyncio.sleep(0)
            await worker.send("rear/out", Note(number))
            for _ in range(number // 4 % 4):
                await asyncio.sleep(0)
            waits.cancel()
            await asyncio.wait((waits,))
            if not waits.cancelled():
                got.append(waits.result().message.number)
        while len(got) < 50:
            got.append((await bench.take(rear, 1, "cancel"))[0][1].number)
        if got != [*range(50)]:
            raise LawBroken("cancel", f"between cancelled waits {got} was received, not 0 to 49")


async def check_cancelled_senders(setup: Setup) -> None:
    """Check that a message of a sender that is cancelled while it waits for room is handed over or not.

    No other message is lost, or comes twice, or out of order.

    Raises:
        LawBroken: `cancel`, or `room`.
    """
    notes = [Note(number, "x" * 1024) for number in range(setup.most)]
    async with Bench(setup) as bench:
        worker, rear = await bench.bind("worker/0"), await bench.bind("rear/out")
        sender = _Sender(worker, notes)
        first = await sender.wait_until_it_waits()
        later = [Note(-1 - place, "y") for place in range(5)]
        waiting = [asyncio.create_task(worker.send("rear/out", note)) for note in later]
        await asyncio.wait(waiting, timeout=_STALL_S)
        cancelled = [sender.task, waiting[1], waiting[2], waiting[4]]
        last = sender.sending
        # In two rounds, so that one of them may be about to go on.
        for some in (cancelled[:2], cancelled[2:]):
            for task in some:
                task.cancel()
            await asyncio.sleep(0)
        await bench.within("cancel", asyncio.wait(cancelled), "cancelling senders that wait")
        end = Note(-6, "z")
        ends = asyncio.create_task(worker.send("rear/out", end))
        got: list[int] = []
        while end.number not in got:
            got += [message.number for _, message in await bench.take(rear, 1, "cancel")]
        await bench.within("cancel", asyncio.gather(waiting[0], waiting[3], ends), "sending beside cancelled senders")
        left_out = {last, *(later[place].number for place in (1, 2, 4))}.difference(got)
        wanted = ([*range(last + 1)], [-1, -2, -3, -4, -5, -6])
        found = ([number for number in got if number >= 0], [number for number in got if number < 0])
        lacks = found != tuple([number for number in part if number not in left_out] for part in wanted)
        if lacks or (first in got and got.index(first) > got.index(-1)):
            raise LawBroken(
                "cancel",
                f"senders of {sorted(left_out, reverse=True)} were cancelled, after 0 to {last - 1} and beside"
                f" -1 to -6, and {got[max(first - 5, 0) :]} arrives from place {max(first - 5, 0)} on",
            )


async def check_close(setup: Setup) -> None:
    """Check that a closed endpoint delivers, then refuses, and wakes all that wait.

    Raises:
        LawBroken: `close`.
    """
    async with Bench(setup) as bench:
        worker, rear = await bench.bind("worker/0"), await bench.bind("rear/out")
        sent = 0
        while sent < 20 and worker.send_nowait("rear/out", Note(sent)):
            sent += 1
        await bench.within("close", worker.aclose(), "aclose")
        await bench.within("close", worker.aclose(), "a second aclose")
        got = [message.number for _, message in await bench.take(rear, sent, "close")]
        if got != [*range(sent)]:
            raise LawBroken("close", f"{sent} messages were sent before the sender closed, and {got} arrive")
        with_closed: list[tuple[str, Callable[[], Any]]] = [
            ("send", lambda: worker.send("rear/out", Note(20))),
            ("send_nowait", lambda: worker.send_nowait("rear/out", Note(20))),
            ("receive", worker.receive),
            ("receive_nowait", worker.receive_nowait),
        ]
        for name, call in with_closed:
            await bench.refused(TransportClosedError, "close", f"{name} after aclose", call)
        waits = asyncio.create_task(rear.receive())
        await asyncio.sleep(0)
        await bench.within("close", rear.aclose(), "aclose while receive waits")
        await bench.refused(TransportClosedError, "close", "receive, when its endpoint is closed", lambda: waits)
        last = await bench.bind("worker/2")
        for process in bench.processes * 2:
            await bench.within("close", process.aclose(), "Transport.aclose")
        await bench.refused(TransportClosedError, "close", "receive after Transport.aclose", last.receive)


async def check_cancelled_close(setup: Setup) -> None:
    """Check that a transport whose closing is cancelled, at whatever moment, leaves nothing open.

    Raises:
        LawBroken: `close`.
    """
    for turns in range(_CLOSING_TURNS):
        leftovers = Leftovers(shown=True)
        async with Bench(setup) as bench:
            worker, rear = await bench.bind("worker/0"), await bench.bind("rear/out")
            await bench.within("loss", worker.send("rear/out", Note(0)), "send")
            await bench.take(rear, 1)
            worker.send_nowait("rear/out", Note(1))  # for a closing that hands over
            closing = [asyncio.create_task(process.aclose()) for process in bench.processes]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in closing:
                task.cancel()
            await bench.within("close", asyncio.wait(closing), "a Transport.aclose that is cancelled")
            for task in closing:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise LawBroken("close", f"aclose was cancelled, and raises {error!r}") from error
        await leftovers.look(())
        if leftovers.named:
            left = ", ".join(leftovers.named)
            raise LawBroken("close", f"aclose was cancelled in its turn {turns} of the event loop, and leaves {left}")


async def check_gone(setup: Setup) -> None:
    """Check sending to an unbound address, and to one that closes.

    A transport may find out late, but not never.

    Raises:
        LawBroken: `gone`.
    """
    async with Bench(setup) as bench:
        worker, rear = await bench.bind("worker/0"), await bench.bind("rear/out")

        async def talk(peer: str) -> None:
            for number in range(setup.most):
                await worker.send(peer, Note(number, "x" * 1024))

        await bench.refused(PeerGoneError, "gone", "sending to an address nobody bound", lambda: talk("worker/9"))
        said = asyncio.create_task(talk("rear/out"))
        await bench.take(rear, 10)
        await asyncio.wait((said,), timeout=_STALL_S)  # until it waits for room
        await bench.within("close", rear.aclose(), "aclose of a receiver that others send to")
        await bench.refused(PeerGoneError, "gone", "sending to one that closes", lambda: said)
        await bench.refused(PeerGoneError, "gone", "sending to one that has closed", lambda: talk("rear/out"))


async def check_addresses(setup: Setup) -> None:
    """Check that an address has one endpoint at a time.

    Raises:
        LawBroken: `address`.
    """
    async with Bench(setup) as bench:
        worker, rear = await bench.bind("worker/0"), await bench.bind("rear/out")
        if (worker.address, rear.address) != ("worker/0", "rear/out"):
            raise LawBroken("address", f"the endpoints say {worker.address!r} and {rear.address!r}")
        home = bench.processes[-1]
        await bench.refused(TransportError, "address", "binding an address twice", lambda: home.bind("rear/out"))
        if setup.processes == 1:  # between processes it may still be on its way when the address is bound again
            await worker.send("rear/out", Note(0))
        await bench.within("close", rear.aclose(), "aclose")
        heir = await bench.bind("rear/out")
        await worker.send("rear/out", Note(1))
        got = [message.number for _, message in await bench.take(heir, 1, "address")]
        if got != [1]:
            raise LawBroken("address", f"the next endpoint of an address receives {got}, not only what was sent to it")


async def check_flags(setup: Setup) -> None:
    """Check `serialises`, and that messages that cannot be encoded are refused.

    Within one process, a transport with `multi_process` too may hand over objects.

    Raises:
        LawBroken: `flags` or `content`.
    """
    async with Bench(setup) as bench:
        worker, rear = await bench.bind("worker/0"), await bench.bind("rear/out")
        flags = bench.processes[0].capabilities
        if flags.multi_process and not flags.serialises:
            raise LawBroken("flags", "multi_process without serialises: objects cannot leave their process")
        _check_join(bench.processes[0])
        sent = {"note": Note(1, "text"), "kinds": (None, True, -1.5, b"\0", [1, (2,)], {3}, frozenset({4}), 2**70)}
        await worker.send("rear/out", sent)
        ((_, got),) = await bench.take(rear, 1)
        if repr(got) != repr(sent) or got != sent:
            raise LawBroken("content", f"{got!r} arrives where {sent!r} was sent")
        if flags.multi_process and setup.processes == 1:
            return
        if (got is not sent) != flags.serialises:
            object_ = "the same" if got is sent else "another"
            raise LawBroken("flags", f"serialises = {flags.serialises}, but {object_} object arrives")
        if flags.serialises:
            no_bytes = "sending what has no bytes"
            await bench.refused(CodecError, "flags", no_bytes, lambda: worker.send("rear/out", object()))
            await bench.refused(CodecError, "flags", no_bytes, lambda: _send_now(worker, "rear/out", object()))
            await worker.send("rear/out", Note(2))
            await bench.expect(rear, "worker/0", [Note(2)])


def _check_join(transport: Transport) -> None:
    """Check the address that a transport gives to those who join."""
    join = transport.outlook().join
    if join and not has_scheme(type(transport), join):
        schemes = ", ".join(schemes_of(type(transport))) or "none"
        raise LawBroken("flags", f"others are to join at {join}, and its schemes are: {schemes}")
    if join and transport.address_of(join) == JobAddress():
        raise LawBroken("flags", f"others are to join at {join}, and address_of makes nothing of it")


async def _send_now(endpoint: Endpoint, to: str, message: Any) -> None:
    """Call `send_nowait` until there is room."""
    while not endpoint.send_nowait(to, message):
        await asyncio.sleep(0.001)


CHECKS: Final[tuple[Callable[[Setup], Awaitable[None]], ...]] = (
    check_channels,
    check_large,
    check_room,
    check_cancel,
    check_cancelled_senders,
    check_close,
    check_cancelled_close,
    check_gone,
    check_addresses,
    check_flags,
)


async def check_transport(make: Make, *, limit_s: float = LIMIT_S, most: int = 20_000) -> None:
    """Check a transport against every law of its contract.

    Args:
        make: Builds the transport for a context.
        limit_s, most: As for `Setup`.

    Raises:
        LawBroken: With the law, and the event.
    """
    for setup in setups(make, limit_s=limit_s, most=most):
        for check in CHECKS:
            await check(setup)


class TransportTests:
    """The checks as a class for pytest, without any plugin. Must be given: `make`.

    Example:
        class TestMine(TransportTests):
            def make(self, context: TransportContext) -> Transport:
                return Mine(Mine.Options(room=100), context)
    """

    limit_s: float = LIMIT_S
    most: int = 20_000

    def make(self, context: TransportContext) -> Transport:
        """Build the transport under test."""
        raise NotImplementedError("give `make(self, context)` in your class")

    def hold(self, check: Callable[[Setup], Awaitable[None]]) -> None:
        """Run one check in all setups of the transport."""

        async def run(setup: Setup) -> None:
            await check(setup)

        for setup in setups(self.make, limit_s=self.limit_s, most=self.most):
            event_loop.run(run(setup))

    def test_channels(self) -> None:
        self.hold(check_channels)

    def test_large(self) -> None:
        self.hold(check_large)

    def test_room(self) -> None:
        self.hold(check_room)

    def test_cancel(self) -> None:
        self.hold(check_cancel)

    def test_cancelled_senders(self) -> None:
        self.hold(check_cancelled_senders)

    def test_close(self) -> None:
        self.hold(check_close)

    def test_cancelled_close(self) -> None:
        self.hold(check_cancelled_close)

    def test_gone(self) -> None:
        self.hold(check_gone)

    def test_addresses(self) -> None:
        self.hold(check_addresses)

    def test_flags(self) -> None:
        self.hold(check_flags)


class FaultyTransportTests(TransportTests):
    """The checks with faults all the time, see `flamecore.testing.faults.Faulty`. Must be given: `make`.

    Every fault has to happen in the course of the checks, or they would show nothing.

    Attributes:
        busy_s: Time for which processes are busy while they mend connections: longer than the transport waits for one.
        seeds: Seeds of the faults; each check is run with each of them.
        faults: Names of the faults that have to happen: those of `Faulty.faults`, and of `refused` if the transport
            counts there what it has refused.
    """

    most: int = 1000
    busy_s: float = 0.6
    seeds: Sequence[int] = (1, 2)
    faults: Collection[str] = ("delay", "full", "reorder")
    _happened: Counter[str]

    def __init_subclass__(cls) -> None:
        cls._happened = Counter()

    def hold(self, check: Callable[[Setup], Awaitable[None]]) -> None:
        """Run one check in all setups of the transport, with the faults of each seed."""
        for seed in self.seeds:
            self._hold(check, seed)

    def _hold(self, check: Callable[[Setup], Awaitable[None]], seed: int) -> None:
        made: list[Faulty] = []

        def make(context: TransportContext) -> Transport:
            made.append(Faulty(self.make(context), seed=seed))
            return made[-1]

        async def run(setup: Setup) -> None:
            await check(setup)

        for setup in setups(make, limit_s=self.limit_s, most=self.most):
            event_loop.run(run(setup))
        for faulty in made:
            self._happened.update(faulty.faults)
            self._happened.update(getattr(faulty.transport, "refused", {}))

    def test_busy(self) -> None:
        *_, most_processes = setups(self.make, limit_s=self.limit_s)
        if not isinstance(self.make(TransportContext()), Disconnects):
            raise SkipTest("connections of this transport cannot be broken on purpose: it has no `disconnect`")
        event_loop.run(check_busy(most_processes, self.busy_s))

    def test_every_fault_happened(self) -> None:
        # The other tests may have run before, or not at all.
        for check in CHECKS:
            if self._missing():
                self.hold(check)
        assert self._missing() == set()

    def _missing(self) -> set[str]:
        return {fault for fault in self.faults if not self._happened[fault]}
