"""Sink `nats`: messages of a stream of JetStream, each output once and in order.

A message is stored only if the one before it is the last of the stream (by its number, or by its id while that is still
on its way), so the stream always holds a prefix of the sink's output. Each message carries a *mark*: job, run, number
of outputs so far, and number of outputs of its batch still to come. This is all a successor needs to go on, in the
midst of a batch too: outputs come in the same order again, and those stored already are skipped.

Times without outputs, and the owner that may write, are in the last message of a separate subject, `….position`. A run
that opens the stream stores one there; every older run then fails to store.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final

from flamecore.abc.hooks import hookimpl
from flamecore.abc.sink import Guarantee, Sink, check_time, goes_on, taken_over, would_replace
from flamecore.abc.source import EdgeContext
from flamecore.errors import SinkError
from flamecore.model.meta import MIN_TIME
from flamecore.toolkit.records.plain import Unencodable
from flamestream_nats.access import Access, needs
from flamestream_nats.client import Heard
from flamestream_nats.jetstream.edge_options import SinkOptions, encoder, placed
from flamestream_nats.jetstream.outstream import Last, Letter, Mark, OutStream
from flamestream_nats.jetstream.stream import Changed, OtherStream, Refused, checked

_WINDOW_MESSAGES: Final = 1024
_WINDOW_BYTES: Final = 2**20
_ANSWER_S: Final = 5.0
_TRIES: Final = 20


class NatsSink(Sink):
    """Outputs as messages of one subject."""

    name: ClassVar[str] = "nats"
    Options: ClassVar[Any] = SinkOptions

    def __init__(self, options: Any, context: EdgeContext) -> None:
        options = placed(options, SinkOptions, context, wildcards=False)
        super().__init__(options, context)
        self._encode = encoder(context, options.format)
        name = options.stream or context.name
        self._access = Access(
            options,
            f"sink {context.name}",
            options.request_timeout_s,
            who=options.shown,
            keeps="outputs",
            up=self._renew,
            broken=self._give_up,
        )
        self._connection = self._access.connection
        self._stream = OutStream(self._connection, name, options.subject or name, options.request_timeout_s)
        self._owner = secrets.token_hex(8)
        self._inbox = f"_INBOX.{secrets.token_hex(12)}"
        self._mark = Mark("", "", "", 0, MIN_TIME, MIN_TIME, 0, 0, 0)
        self._last = 0  # number of the stream's last message
        self._skip = 0  # next outputs that are stored already
        self._turn = asyncio.Lock()
        self._answer: asyncio.Future[bytes | None] | None = None
        self._asked = 0
        self._broken: SinkError | None = None

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    async def replaces(self) -> bool:
        if self.options.mode != "replace":
            return False
        look = NatsSink(self.options, self.context)  # a connection is opened once, and this one is closed again
        await look._access.open(self._failed)
        try:
            with look._answers(needs(self.options)):
                last = await look._stream.last_if_any()
        finally:
            await look.aclose()
        return would_replace(self.context, self.options.mode, last.mark and last.mark.of, empty=last.empty)

    async def open(self) -> int:
        await self._access.open(self._failed)
        try:
            with self._answers(needs(self.options)):
                await self._connection.subscribe(f"{self._inbox}.*", self._heard)
                await self._stream.make(self.options.replicas)
                await self._claim()
        except OtherStream as error:
            await self.aclose()
            raise self._failed(str(error), "Give another stream, or change that one.") from error
        except BaseException:
            await self.aclose()
            raise
        return self._mark.held

    async def _claim(self) -> None:
        """Find the end of the stream, and make this object the stream's only writer."""
        for _ in range(_TRIES):
            last = await self._stream.last()
            self._last = last.number
            if last.mark is not None and last.mark.by == self._owner:
                break  # the answer was lost
            self._mark = self._first_mark(last)
            try:
                await self._stream.store(Letter(self._mark), last.number)
            except Changed:
                continue
            self._last += 1
            break
        else:
            raise self._busy()
        self._skip = self._mark.done
        await self._stream.forget_before(self._mark.first)

    def _first_mark(self, last: Last) -> Mark:
        """Return the mark this object begins with; it says where to go on."""
        place = f"stream {self._stream.name} of {self.options.shown}"
        mark, mine = last.mark, self.context.fingerprint
        on = goes_on(self.context, self.options.mode, mark and mark.of, place, empty=last.empty)
        if on and mark is not None:
            skip = mark.done if mark.left else 0
            return Mark(mine, self._owner, mark.series, mark.number, mark.held, mark.held, skip, skip, mark.first)
        first = last.number + 1 if self.options.mode != "append" else 0
        return Mark(mine, self._owner, secrets.token_hex(6), 0, MIN_TIME, MIN_TIME, 0, 0, first)

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        async with self._turn:
            check_time(self.context, time, self._mark.time)
            there, skip = min(self._skip, len(payloads)), max(self._skip - len(payloads), 0)
            # If all of it is stored, a part of the batch that followed may be, too.
            letters = self._letters(time, payloads, there) or [self._position(time, skip)]
            await self._store_all(letters)
            self._skip = skip

    def _letters(self, time: int, payloads: Sequence[Any], there: int) -> list[Letter]:
        """Return the messages of a batch, without the `there` that are stored already."""
        mark, many = self._mark, len(payloads)
        try:
            bodies = [self._encode(payload) for payload in payloads[there:]]
        except Unencodable as error:
            hint = "Map it to text, numbers, tuples, dicts, NamedTuples or dataclasses before the sink; or set format."
            raise self._failed(str(error), hint) from error
        room = self._connection.max_payload - self._stream.headers_bytes
        if (largest := max(map(len, bodies), default=0)) > room:
            what = f"a payload has {largest:,} bytes, and {self.options.shown} takes no more than {room:,}"
            raise self._failed(what, "Raise max_payload of the server, or send less in one payload.")
        first = mark._replace(number=mark.number - there, time=time, before=mark.held)
        return [
            Letter(first._replace(number=first.number + done, done=done, left=many - done), body, True)
            for done, body in enumerate(bodies, there + 1)
        ]

    def _position(self, time: int, skip: int) -> Letter:
        """Return a mark alone: outputs up to `time` are stored, and `skip` after it."""
        return Letter(self._mark._replace(time=time, before=time, done=skip, left=skip))

    async def sync(self, time: int) -> None:
        async with self._turn:
            if time > self._mark.time:
                await self._store_all([self._position(time, self._skip)])

    async def _store_all(self, letters: Sequence[Letter]) -> None:
        """Store messages, in order; return once the server has confirmed the last."""
        if self._broken is not None:
            raise self._broken
        try:
            start = 0
            with self._answers():
                while start < len(letters):
                    window = self._window(letters, start)
                    if await self._is_stored(window):
                        self._last += len(window)
                    else:
                        await self._store_slowly(window)
                    start += len(window)
                    self._mark = window[-1].mark
        except SinkError as error:
            self._broken = error  # how much is stored is unknown until the stream is opened again
            raise

    @staticmethod
    def _window(letters: Sequence[Letter], start: int) -> Sequence[Letter]:
        end, size = start, 0
        while end < len(letters) and end - start < _WINDOW_MESSAGES and size < _WINDOW_BYTES:
            size += len(letters[end].data)
            end += 1
        return letters[start:end]

    async def _is_stored(self, window: Sequence[Letter]) -> bool:
        """Send a window at once; return whether all of it is known to be stored.

        The last message can be stored only if all are.
        """
        stream, after = self._stream, self._last
        self._asked += 1
        way_back = f"{self._inbox}.{self._asked}"
        self._answer = asyncio.get_running_loop().create_future()
        self._connection.publish(stream.sent(window, after, way_back))
        try:
            async with asyncio.timeout(min(_ANSWER_S, self.options.request_timeout_s)):
                answer = await self._answer
        except TimeoutError:
            return False
        finally:
            self._answer = None
        try:
            return answer is not None and checked(answer)["seq"] == after + len(window)
        except Refused:
            return False

    async def _store_slowly(self, window: Sequence[Letter]) -> None:
        """Find out what is stored after an error, and store the rest one by one."""
        for _ in range(_TRIES):
            last = await self._stream.last()
            if last.mark is None or last.mark.by != self._owner:
                raise self._not_mine(last)
            if last.mark.number < self._mark.number:
                what = f"stream {self._stream.name} has lost {self._mark.number - last.mark.number} messages"
                raise self._failed(what, "Has its server lost its disk, or somebody deleted them? Start the job again.")
            self._last = last.number
            done = next((place for place, letter in enumerate(window, 1) if letter.mark == last.mark), 0)
            try:
                for letter in window[done:]:
                    await self._stream.store(letter, self._last)
                    self._last += 1
            except Changed:
                continue
            return
        raise self._busy()

    def _busy(self) -> SinkError:
        return self._failed(f"stream {self._stream.name} changes all the time", "End what else writes to it.")

    def _not_mine(self, last: Last) -> SinkError:
        if last.mark is not None:
            return taken_over(self.context, f"stream {self._stream.name} of {self.options.shown}")
        what = f"message {last.number} of stream {self._stream.name} is another writer's"
        return self._failed(what, f"Nobody else may publish to {self._stream.subject}: give the sink one of its own.")

    async def aclose(self) -> None:
        await self._access.aclose()

    # -- answers of the server ----------------------------------------------------------------------------------------

    def _heard(self, heard: Heard) -> None:
        if heard.subject == f"{self._inbox}.{self._asked}":
            self._resolve(None if heard.nobody else heard.data)

    def _renew(self) -> None:
        """Resolve the pending requests: after a reconnection they get no answer."""
        self._resolve(None)
        self._stream.renew()

    def _give_up(self) -> None:
        self._resolve(None)
        self._stream.give_up()

    def _resolve(self, answer: bytes | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def _answers(self, hint: str = "Look into the server's log.") -> AbstractContextManager[None]:
        """Raise every error of a request as SinkError."""
        return self._access.answers(self._failed, hint, f"stream {self._stream.name} of {self.options.shown}")

    def _failed(self, what: str, hint: str) -> SinkError:
        return SinkError(f"sink {self.context.name!r}: {what}", hint=hint, sink=self.context.name)


@hookimpl
def flamestream_sink() -> type[Sink]:
    return NatsSink
