"""The public kit for transports: `await check_transport(make)`, or for pytest `class TestMine(TransportTests)`.

Nothing here needs a test runner. The checks hold a transport against the laws of `flamecore.transport`, by the names
that `LawBroken.law` gives:

* `order`: a channel never reorders, `send` and `send_nowait` taken together;
* `loss`, `twice`, `content`: everything that was sent arrives, once, as it was sent, with the name of its sender;
* `room`: a sender waits while the receiver does not read, and goes on when it does;
* `cancel`: a cancelled wait loses nothing;
* `close`: what was sent is handed over first, twice is once, a closed endpoint refuses and wakes who waits at it;
* `gone`: sending to nobody is an error, also for those who wait;
* `address`: one endpoint an address; once closed it is free, and its successor inherits nothing;
* `flags`: the capabilities are what they say.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, TypeVar

from flamecore.codec import Codec
from flamecore.errors import CodecError, FlameError, PeerGoneError, TransportClosedError, TransportError
from flamecore.testing.laws import LawBroken
from flamecore.transport import Endpoint, Transport, TransportContext

__all__ = ["LawBroken", "Make", "TransportTests", "check_transport"]

Make = Callable[[TransportContext], Transport | Sequence[Transport]]
"""What the kit is given: builds the transport under test.

For a transport whose addresses may live in several processes it can build several that reach each other, as the
processes of a job would; addresses are then dealt out among them in turn.
"""

T = TypeVar("T")

LIMIT_S: Final = 10.0
"""How long anything that must happen may take."""

_STALL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Note:
    """What the checks send: a number and some text. Declared to the codec."""

    number: int
    text: str = ""


class Bench:
    """The transport under test, and everything opened on it.

    Args:
        make: Builds it.
        limit_s: How long anything that must happen may take.
    """

    def __init__(self, make: Make, limit_s: float = LIMIT_S) -> None:
        made = make(TransportContext(job="kit", epoch=1, codec=Codec([Note])))
        self.sides = [made] if isinstance(made, Transport) else list(made)
        self.limit_s = limit_s
        self._bound = 0

    async def bind(self, address: str) -> Endpoint:
        """Bind an address on the next side."""
        side = self.sides[self._bound % len(self.sides)]
        self._bound += 1
        return await self.within("address", side.bind(address), f"bind {address}")

    async def within(self, law: str, awaitable: Awaitable[T], what: str) -> T:
        """The result of something that must happen soon, and without an error."""
        try:
            async with asyncio.timeout(self.limit_s):
                return await awaitable
        except TimeoutError:
            raise LawBroken(law, f"{what}: nothing happened for {self.limit_s} s") from None
        except FlameError as error:
            raise LawBroken(law, f"{what} raises {error!r}") from error

    async def refused(self, error: type[FlameError], law: str, what: str, call: Callable[[], Any]) -> None:
        """Hold a call, or what it returns to await, against the error it must end with."""
        wanted = f"{what} must raise {error.__name__}, and"
        try:
            async with asyncio.timeout(self.limit_s):
                result = call()
                if isinstance(result, Awaitable):
                    await result
        except error:
            return
        except TimeoutError:
            raise LawBroken(law, f"{wanted} waits for more than {self.limit_s} s") from None
        except FlameError as other:
            raise LawBroken(law, f"{wanted} raises {other!r}") from other
        raise LawBroken(law, f"{wanted} raises nothing")

    async def take(self, endpoint: Endpoint, count: int, law: str = "loss") -> list[tuple[str, Any]]:
        """The next messages, as (sender, message)."""
        return [
            tuple(await self.within(law, endpoint.receive(), f"message {number + 1} of {count} at {endpoint.address}"))
            for number in range(count)
        ]

    async def expect(self, endpoint: Endpoint, sender: str, wanted: Sequence[Any], *, last: bool = True) -> None:
        """Receive what one sender sent, and say which law is broken if it is not that.

        Args:
            endpoint: The receiver.
            sender: Address of the only one that sends to it.
            wanted: What was sent, in order.
            last: Whether nothing else may be there then.
        """
        got = await self.take(endpoint, len(wanted))
        while last and (more := endpoint.receive_nowait()) is not None:
            got.append(tuple(more))
        judge(wanted, [message for _, message in got])
        for name, message in got:
            if name != sender:
                raise LawBroken("content", f"{message!r:.80} of {sender} arrives as a message of {name!r}")

    async def aclose(self) -> None:
        """Close all sides."""
        for side in self.sides:
            await self.within("close", side.aclose(), "Transport.aclose")


def judge(sent: Sequence[Any], got: Sequence[Any]) -> None:
    """Name the law that is broken when one channel was given `sent` and delivered `got`."""
    if list(sent) == list(got):
        return
    pairs = [*zip_longest(sent, got)]
    at = next((at for at, (wanted, found) in enumerate(pairs) if wanted != found), len(pairs) - 1)
    where = "message {}: {:.80} was sent, {:.80} arrives".format(at, *map(repr, pairs[at]))
    before, after = Counter(map(repr, sent)), Counter(map(repr, got))
    if any(after[text] > count for text, count in before.items()):
        raise LawBroken("twice", where)
    if after - before:
        raise LawBroken("content", where)
    raise LawBroken("loss" if before - after else "order", where)


@asynccontextmanager
async def bench_of(make: Make, limit_s: float) -> AsyncIterator[Bench]:
    """A bench, closed in the end."""
    bench = Bench(make, limit_s)
    try:
        yield bench
    finally:
        await bench.aclose()


async def check_channels(make: Make, limit_s: float = LIMIT_S) -> None:
    """Two that talk to each other at once, and then several that talk to one.

    Raises:
        LawBroken: `order`, `loss`, `twice` or `content`.
    """
    notes = [Note(number, "x" * (number % 7)) for number in range(300)]
    async with bench_of(make, limit_s) as bench:
        left, right = await bench.bind("worker/0"), await bench.bind("worker/1")

        async def talk(endpoint: Endpoint, peer: str) -> None:
            for note in notes:
                if note.number % 3 or not endpoint.send_nowait(peer, note):
                    await endpoint.send(peer, note)
                if not note.number % 10:
                    await asyncio.sleep(0)

        both = asyncio.gather(talk(left, "worker/1"), talk(right, "worker/0"))
        await asyncio.gather(bench.expect(right, "worker/0", notes), bench.expect(left, "worker/1", notes))
        await bench.within("room", both, "sending what has been received")
    async with bench_of(make, limit_s) as bench:
        rear = await bench.bind("rear/out")
        workers = [await bench.bind(f"worker/{index}") for index in range(4)]
        all_said = asyncio.gather(*(talk(worker, "rear/out") for worker in workers))
        got = await bench.take(rear, len(notes) * len(workers))
        await bench.within("room", all_said, "sending what has been received")
        for worker in workers:
            judge(notes, [message for sender, message in got if sender == worker.address])


async def check_large(make: Make, limit_s: float = LIMIT_S) -> None:
    """One message of 8 MiB among small ones.

    Raises:
        LawBroken: `order`, `loss`, `twice` or `content`.
    """
    notes = [Note(0), Note(1, "ß" * 2**22), Note(2)]
    async with bench_of(make, limit_s) as bench:
        worker, rear = await bench.bind("worker/0"), await bench.bind("rear/out")

        async def talk() -> None:
            for note in notes:
                await worker.send("rear/out", note)

        said = asyncio.create_task(talk())
        await bench.expect(rear, "worker/0", notes)
        await bench.within("room", said, "sending what has been received")


async def check_room(make: Make, limit_s: float = LIMIT_S, most: int = 20_000) -> None:
    """A sender waits for one that does not read, takes its turn after those who wait already, and goes on.

    Args:
        make: Builds the transport.
        limit_s: How long anything that must happen may take.
        most: So many messages of 1 KiB must not find room; give the transport less.

    Raises:
        LawBroken: `room`, `order`, `loss` or `twice`.
    """
    notes = [Note(number, "x" * 1024) for number in range(most)]
    async with bench_of(make, limit_s) as bench:
        worker, rear = await bench.bind("worker/0"), await bench.bind("rear/out")
        count = 0

        async def talk() -> None:
            nonlocal count
            for note in notes:
                await worker.send("rear/out", note)
                count += 1

        said = asyncio.create_task(talk())
        seen = -1
        while seen < count and not said.done():
            seen = count
            await asyncio.wait((said,), timeout=_STALL_S)
        if said.done():
            said.result()
            raise LawBroken("room", f"{most} messages were sent to one that does not read, and the sender never waited")
        # `said` waits with message `count`: what is sent now comes after it, wherever room appears.
        late = [Note(-1), Note(-2)]
        if worker.send_nowait("rear/out", late[0]):
            raise LawBroken("order", "send_nowait found room while another send to that address waits for it")
        got = await bench.take(rear, 1)
        waits = asyncio.create_task(worker.send("rear/out", late[1]))
        got += await bench.take(rear, most)
        await bench.within("room", asyncio.gather(said, waits), "sending what has been received")
        numbers = [message.number for _, message in got]
        judge([*range(most)], [number for number in numbers if number >= 0])
        judge([-2], [number for number in numbers if number < 0])


async def check_cancel(make: Make, limit_s: float = LIMIT_S) -> None:
    """Cancelled waits: a receiver that comes back later, a message that arrives in that very moment.

    Raises:
        LawBroken: `cancel`.
    """
    async with bench_of(make, limit_s) as bench:
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


async def check_close(make: Make, limit_s: float = LIMIT_S) -> None:
    """What a closed endpoint does: first hand over, then refuse, and never leave anybody waiting.

    Raises:
        LawBroken: `close`.
    """
    async with bench_of(make, limit_s) as bench:
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
        for side in bench.sides * 2:
            await bench.within("close", side.aclose(), "Transport.aclose")
        await bench.refused(TransportClosedError, "close", "receive after Transport.aclose", last.receive)


async def check_gone(make: Make, limit_s: float = LIMIT_S, most: int = 20_000) -> None:
    """Nobody is there, or somebody leaves. A transport may find out late, but not never.

    Raises:
        LawBroken: `gone`.
    """
    async with bench_of(make, limit_s) as bench:
        worker, rear = await bench.bind("worker/0"), await bench.bind("rear/out")

        async def talk(peer: str) -> None:
            for number in range(most):
                await worker.send(peer, Note(number, "x" * 1024))

        await bench.refused(PeerGoneError, "gone", "sending to an address nobody bound", lambda: talk("worker/9"))
        said = asyncio.create_task(talk("rear/out"))
        await bench.take(rear, 10)
        await asyncio.wait((said,), timeout=_STALL_S)  # until it waits for room
        await bench.within("close", rear.aclose(), "aclose of a receiver that others send to")
        await bench.refused(PeerGoneError, "gone", "sending to one that has closed", lambda: said)
        await bench.refused(PeerGoneError, "gone", "sending to one that was closed", lambda: talk("rear/out"))


async def check_addresses(make: Make, limit_s: float = LIMIT_S) -> None:
    """One endpoint an address, at any one time.

    Raises:
        LawBroken: `address`.
    """
    async with bench_of(make, limit_s) as bench:
        side = bench.sides[0]
        worker, rear = await side.bind("worker/0"), await side.bind("rear/out")
        if (worker.address, rear.address) != ("worker/0", "rear/out"):
            raise LawBroken("address", f"the endpoints say {worker.address!r} and {rear.address!r}")
        await bench.refused(TransportError, "address", "binding an address twice", lambda: side.bind("rear/out"))
        await worker.send("rear/out", Note(0))
        await bench.within("close", rear.aclose(), "aclose")
        heir = await bench.within("address", side.bind("rear/out"), "binding an address that is free again")
        await worker.send("rear/out", Note(1))
        got = [message.number for _, message in await bench.take(heir, 1, "address")]
        if got != [1]:
            raise LawBroken("address", f"the next endpoint of an address receives {got}, not only what was sent to it")


async def check_flags(make: Make, limit_s: float = LIMIT_S) -> None:
    """`serialises` is true of what arrives, and what cannot be encoded is refused where it is sent.

    Raises:
        LawBroken: `flags` or `content`.
    """
    async with bench_of(make, limit_s) as bench:
        worker, rear = await bench.bind("worker/0"), await bench.bind("rear/out")
        flags = bench.sides[0].capabilities
        if flags.multi_process and not flags.serialises:
            raise LawBroken("flags", "multi_process without serialises: objects cannot leave their process")
        sent = {"note": Note(1, "text"), "kinds": (None, True, -1.5, b"\0", [1, (2,)], {3}, frozenset({4}), 2**70)}
        await worker.send("rear/out", sent)
        ((_, got),) = await bench.take(rear, 1)
        if repr(got) != repr(sent) or got != sent:
            raise LawBroken("content", f"{got!r} arrives where {sent!r} was sent")
        if (got is not sent) != flags.serialises:
            raise LawBroken(
                "flags",
                f"serialises = {flags.serialises}, but {'another' if got is not sent else 'the same'} object arrives",
            )
        if flags.serialises:
            no_bytes = "sending what has no bytes"
            await bench.refused(CodecError, "flags", no_bytes, lambda: worker.send("rear/out", object()))
            await bench.refused(CodecError, "flags", no_bytes, lambda: worker.send_nowait("rear/out", object()))
            await worker.send("rear/out", Note(2))
            await bench.expect(rear, "worker/0", [Note(2)])


async def check_transport(make: Make, *, limit_s: float = LIMIT_S, most: int = 20_000) -> None:
    """Hold a transport against every law of its contract.

    Args:
        make: Builds the transport for a context; called anew for every check.
        limit_s: How long anything that must happen may take.
        most: As for `check_room`.

    Raises:
        LawBroken: Says which law, and what happened.
    """
    await check_channels(make, limit_s)
    await check_large(make, limit_s)
    await check_room(make, limit_s, most)
    await check_cancel(make, limit_s)
    await check_close(make, limit_s)
    await check_gone(make, limit_s, most)
    await check_addresses(make, limit_s)
    await check_flags(make, limit_s)


class TransportTests:
    """The checks as a class for pytest; needs no plugin of pytest. Must be given: `make`.

    Example:
        class TestMine(TransportTests):
            def make(self, context: TransportContext) -> Transport:
                return Mine(Mine.Options(room=100), context)
    """

    limit_s: float = LIMIT_S
    most: int = 20_000

    def make(self, context: TransportContext) -> Transport | Sequence[Transport]:
        """Build the transport under test."""
        raise NotImplementedError("give `make(self, context)` in your class")

    def test_channels(self) -> None:
        asyncio.run(check_channels(self.make, self.limit_s))

    def test_large(self) -> None:
        asyncio.run(check_large(self.make, self.limit_s))

    def test_room(self) -> None:
        asyncio.run(check_room(self.make, self.limit_s, self.most))

    def test_cancel(self) -> None:
        asyncio.run(check_cancel(self.make, self.limit_s))

    def test_close(self) -> None:
        asyncio.run(check_close(self.make, self.limit_s))

    def test_gone(self) -> None:
        asyncio.run(check_gone(self.make, self.limit_s, self.most))

    def test_addresses(self) -> None:
        asyncio.run(check_addresses(self.make, self.limit_s))

    def test_flags(self) -> None:
        asyncio.run(check_flags(self.make, self.limit_s))
