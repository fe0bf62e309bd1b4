"""The bench of transports: processes (all in this one), and forbidden losses."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import zip_longest
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from flamecore.abc.transport import Endpoint, Transport, TransportContext
from flamecore.errors import FlameError, PeerGoneError
from flamecore.runtime.codec.codec import Codec
from flamecore.testing.laws import LawBroken, within
from flamecore.testing.progress import patience

T = TypeVar("T")

Make = Callable[[TransportContext], Transport]
"""Function that builds the transport under test. Called anew for every process of every check."""

LIMIT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Note:
    """Message of the checks: a number and some text. Declared to the codec."""

    number: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Setup:
    """A transport to check, and the circumstances.

    Attributes:
        make: Builds the transport.
        processes: Number of processes; addresses are dealt out among them in turn. More than one for transports that
            claim `multi_process`. They are separate transports in one process, which know of each other only what a job
            tells them: locations.
        limit_s: How long anything that must happen may take.
        most: Number of messages of 1 KiB that must not find room at a receiver that does not read.
    """

    make: Make
    processes: int = 1
    limit_s: float = LIMIT_S
    most: int = 20_000


def setups(make: Make, *, limit_s: float = LIMIT_S, most: int = 20_000) -> list[Setup]:
    """Return the setups of a transport: one process, and two if it is `multi_process`."""
    several = make(TransportContext()).capabilities.multi_process
    return [Setup(make, processes, limit_s, most) for processes in ((1, 2) if several else (1,))]


class Bench:
    """The transport under test, an async context manager that closes all it opens.

    It is started on every process.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.processes: list[Transport] = []
        self._locations: list[str] = []
        self._homes: dict[str, int] = {}
        self._lost: list[str] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _start(self) -> None:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="flame"))
        for number in range(self.setup.processes):
            context = TransportContext(
                job="kit",
                incarnation=1,
                codec=Codec([Note]),
                node=f"node-{number}",
                token="secret of the kit",
                folder=folder,
                locate=self._locate,
                lost=lambda location, error: self._lost.append(f"{location}: {error!r}"),
            )
            transport = self.setup.make(context)
            self.processes.append(transport)
            self._locations.append(await self.within("address", transport.start(), "start"))
            self._stack.push_async_callback(self._aclose, transport)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        if error is None and self._lost:
            raise LawBroken("close", f"everything was closed in order, and reported as lost: {self._lost}")

    async def _aclose(self, transport: Transport) -> None:
        await self.within("close", transport.aclose(), "Transport.aclose")

    def _locate(self, address: str) -> str:
        if address not in self._homes:
            raise PeerGoneError(f"nobody has bound {address}", address="", peer=address)
        return self._locations[self._homes[address]]

    async def bind(self, address: str) -> Endpoint:
        """Bind an address: at the next process, or where it was before."""
        home = self._homes.setdefault(address, len(self._homes) % len(self.processes))
        return await self.within("address", self.processes[home].bind(address), f"bind {address}")

    async def within(self, law: str, awaitable: Awaitable[T], what: str) -> T:
        """Return the result of a call that must succeed soon; see `testing.laws.within`."""
        try:
            return await within(self.setup.limit_s, law, awaitable, what)
        except LawBroken as broken:
            if self._lost:
                broken.add_note(f"Reported as lost before: {self._lost}")
            raise

    async def refused(self, error: type[FlameError], law: str, what: str, call: Callable[[], Any]) -> None:
        """Check that a call, or the awaitable it returns, ends with an error."""
        wanted = f"{what} must raise {error.__name__}, and"
        try:
            async with patience(self.setup.limit_s):
                result = call()
                if isinstance(result, Awaitable):
                    await result
        except error:
            return
        except TimeoutError:
            raise LawBroken(law, f"{wanted} waits for more than {self.setup.limit_s} s") from None
        except FlameError as other:
            raise LawBroken(law, f"{wanted} raises {other!r}") from other
        raise LawBroken(law, f"{wanted} raises nothing")

    async def take(self, endpoint: Endpoint, count: int, law: str = "loss") -> list[tuple[str, Any]]:
        """Return the next messages, as (sender, message)."""
        return [
            tuple(await self.within(law, endpoint.receive(), f"message {number + 1} of {count} at {endpoint.address}"))
            for number in range(count)
        ]

    async def exchange(self, receiving: Awaitable[T], *sending: Awaitable[None]) -> T:
        """Return the result of receiving while others send, all of which must succeed.

        Raises:
            LawBroken: A sender's error, which comes first: messages do not arrive because of it.
        """
        said, taking = asyncio.gather(*sending), asyncio.ensure_future(receiving)
        try:
            await asyncio.wait((said, taking), return_when=asyncio.FIRST_COMPLETED)
            if said.done():
                await self.within("loss", said, "sending")
            got = await taking
            await self.within("room", said, "sending what has been received")
        finally:
            taking.cancel()
            said.cancel()
            with suppress(TimeoutError):  # a transport may take no notice
                async with patience(self.setup.limit_s):
                    await asyncio.gather(taking, said, return_exceptions=True)
        return got

    async def expect(self, endpoint: Endpoint, sender: str, wanted: Sequence[Any]) -> None:
        """Receive the messages of the only sender; raise the law that is broken, if any."""
        got = await self.take(endpoint, len(wanted))
        while (more := endpoint.receive_nowait()) is not None:
            got.append(tuple(more))
        judge(wanted, [message for _, message in got])
        for name, message in got:
            if name != sender:
                raise LawBroken("content", f"{message!r:.80} of {sender} arrives as a message of {name!r}")


def judge(sent: Sequence[Any], got: Sequence[Any]) -> None:
    """Raise LawBroken with the law broken if a channel got `got` for `sent`."""
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
