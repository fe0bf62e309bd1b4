"""Source and sink `memory`: values given by the program, and a list of outputs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from time import perf_counter
from typing import Any, ClassVar, Final

import msgspec

from flamecore.abc.hooks import hookimpl
from flamecore.abc.sink import Guarantee, Sink
from flamecore.abc.source import Batch, EdgeContext, Reader, Rejected, Source, SourceCapabilities
from flamecore.errors import SinkError, SourceError
from flamecore.model.failure import user_frames
from flamecore.model.types import TypeMatcher, classes_of, hint_text

_AHEAD: Final = 1024
"""Most values taken from an async iterable ahead of reads."""
_HURRY_S: Final = 0.001
"""Longest time that values of an iterator are gathered before they are returned."""
_CLOSE_S: Final = 5.0
_TABLES: Final = {"itertuples": 'to_dict("records")', "iter_rows": "to_dicts()"}
"""A method of the tables of a library (pandas, polars), and the call that returns their rows."""


class _Counted(Reader):
    """Readers whose position is the 0-based ordinal of the value.

    Values of other types than declared are malformed.
    """

    def __init__(self, context: EdgeContext) -> None:
        self.source = context.name
        self.next = 0
        self._type = context.type
        self._classes = classes_of(context.type)
        self._fits = TypeMatcher(depth=0).test_of(context.type)
        # For these msgspec accepts nothing but instances, in a third of the time that it takes to list all classes. The
        # list that it makes is dropped: it has plain numbers in the place of those of a subclass.
        self._listed: Any = {id(str): list[str], id(int): list[int]}.get(id(context.type))

    def batch(self, values: Sequence[Any], *, fresh: bool = True) -> Batch:
        positions = range(self.next, self.next + len(values))
        self.next = positions.stop
        if self._type is object or self._are_declared(values) or all(map(self._fits, values)):
            return Batch(values, positions, fresh=fresh)
        kept = [(at, value) for at, value in zip(positions, values, strict=True) if self._fits(value)]
        rejected = [
            Rejected(at, f"it is a {type(value).__qualname__}, and the flow declares {hint_text(self._type)}", value)
            for at, value in zip(positions, values, strict=True)
            if not self._fits(value)
        ]
        return Batch([value for _, value in kept], [at for at, _ in kept], rejected, fresh=True)

    def _are_declared(self, values: Sequence[Any]) -> bool:
        """Return whether all values are of a declared class."""
        if self._listed is not None:
            with suppress(msgspec.ValidationError):
                msgspec.convert(values, self._listed)
                return True
        # Mostly all are of one class: to count it takes two thirds of the time of looking each of them up.
        kinds = list(map(type, values))
        return (kinds.count(kinds[0]) == len(kinds) and kinds[0] in self._classes) or self._classes.issuperset(kinds)

    def describe(self, position: int) -> str:
        return f"value {position + 1} of {self.source}"

    def failed(self, error: Exception) -> SourceError:
        lines = "".join(f"\n    {line}" for line in user_frames(error) if not line.startswith(__file__))
        raised = f"the iterable raised {type(error).__name__}: {error}, after {self.next} values"
        return SourceError(
            f"source {self.source!r}: {raised}{lines}",
            hint="The error is in the program that gave the values.",
            source=self.source,
            position=self.next,
        )


class SequenceReader(_Counted):
    """Slices of a sequence."""

    def __init__(self, context: EdgeContext, values: Sequence[Any], start: int) -> None:
        super().__init__(context)
        self._values = values
        self._fresh = type(values) is list  # a slice of any other sequence may be a view
        self.next = start

    async def read(self, limit: int) -> Batch | None:
        values = self._values[self.next : self.next + limit]
        return self.batch(values, fresh=self._fresh) if len(values) else None


class IteratorReader(_Counted):
    """Values of an iterator.

    An iterator that waits blocks the event loop: values that take time need an async iterable.
    """

    def __init__(self, context: EdgeContext, values: Iterator[Any]) -> None:
        super().__init__(context)
        self._values = values
        self._error: Exception | None = None

    async def read(self, limit: int) -> Batch | None:
        if self._error is not None:
            raise self.failed(self._error) from self._error
        found: list[Any] = []
        until = perf_counter() + _HURRY_S
        try:
            for value in islice(self._values, limit):
                found.append(value)
                if perf_counter() > until:
                    break  # a slow iterator: its values so far must not wait for more
        except Exception as error:  # noqa: BLE001 – raised by the next read, after the values before it
            self._error = error
        if not found and self._error is not None:
            raise self.failed(self._error) from self._error
        return self.batch(found) if found else None


class AsyncReader(_Counted):
    """Values of an async iterator, taken by a task: a cancelled `read` loses nothing."""

    def __init__(self, context: EdgeContext, values: AsyncIterator[Any]) -> None:
        super().__init__(context)
        self._values = values
        self._ready: deque[Any] = deque()
        self._changed = asyncio.Event()  # there are more values, or no more will come
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def _take(self) -> None:
        async for value in self._values:
            self._ready.append(value)
            self._changed.set()
            while len(self._ready) >= _AHEAD:
                self._room.clear()
                await self._room.wait()

    async def read(self, limit: int) -> Batch | None:
        if self._task is None:
            self._task = asyncio.create_task(self._take(), name=f"source {self.source}")
            self._task.add_done_callback(lambda _: self._changed.set())
        while not self._ready and not self._task.done():
            self._changed.clear()
            await self._changed.wait()
        if not self._ready:
            error = asyncio.CancelledError() if self._task.cancelled() else self._task.exception()
            if isinstance(error, Exception):
                raise self.failed(error) from error
            return None
        values = [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
        self._room.set()
        return self.batch(values)

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CLOSE_S)
            if not self._task.done():
                raise SourceError(
                    f"source {self.source!r}: the async iterable does not end; it was cancelled {_CLOSE_S} s ago",
                    hint="It must not catch CancelledError.",
                    source=self.source,
                    position=self.next,
                )
            if not self._task.cancelled():
                self._task.exception()  # either raised by a read, or of a value that was not read
        close = getattr(self._values, "aclose", None)
        if close is not None:
            await close()


class MemorySource(Source):
    """Values of the program: any iterable, or an async one.

    A sequence can be read again, everything else once.
    """

    name: ClassVar[str] = "memory"

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        self._opened = False

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=isinstance(self.context.given, Sequence), bounded=True)

    def partitions(self) -> Sequence[str]:
        if self.context.given is None:
            raise self._nothing()
        return super().partitions()

    async def open(self, partition: str, position: Any = None) -> Reader:
        given, name = self.context.given, self.context.name
        if isinstance(given, str | bytes):
            raise self._error(
                f"a {type(given).__name__} is given, not values", f"Give a list: {{{name!r}: [{given[:20]!r}]}}"
            )
        if isinstance(given, Mapping):
            raise self._error(
                f"a {type(given).__name__} is given, of which only the keys would be read",
                f"Give a list: {{{name!r}: list(given.items())}}, or of its keys or values.",
            )
        for rows, call in _TABLES.items():
            if hasattr(given, "columns") and hasattr(given, rows):
                raise self._error(
                    f"a {type(given).__name__} is given, of which only the names of columns would be read",
                    f"Give its rows: {{{name!r}: given.{call}}}",
                )
        if isinstance(given, Sequence):
            if position is not None and not (isinstance(position, int) and 0 <= position < len(given)):
                raise self._error(
                    f"there is no value {position!r}; {len(given)} are given", "Start from the beginning."
                )
            return SequenceReader(self.context, given, 0 if position is None else position + 1)
        if not isinstance(given, Iterable | AsyncIterable):
            raise self._nothing()
        if position is not None or self._opened:
            raise self._error(f"a {type(given).__name__} can be read once only", "Give a list or another sequence.")
        self._opened = True
        return (
            AsyncReader(self.context, aiter(given))
            if isinstance(given, AsyncIterable)
            else IteratorReader(self.context, iter(given))
        )

    def _nothing(self) -> SourceError:
        given, name = self.context.given, self.context.name
        what = "no values are given" if given is None else f"a {type(given).__name__} is given, which is not iterable"
        return self._error(
            what, f"In a program: flow.run({{{name!r}: [...]}}); on the command line: --source {name}=DRIVER."
        )

    def _error(self, what: str, hint: str) -> SourceError:
        name = self.context.name
        return SourceError(f"source {name!r}: {what}", hint=hint, source=name, position=None)


class MemorySink(Sink):
    """Sink that appends to the program's list; without one to its own.

    Attributes:
        values: The list.
    """

    name: ClassVar[str] = "memory"
    retractions: ClassVar[bool] = True

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        given = context.given
        if given is not None and not isinstance(given, list):
            raise SinkError(
                f"sink {context.name!r}: a {type(given).__name__} is given to take the outputs",
                hint="Give a list, or nothing.",
                sink=context.name,
            )
        self.values: list[Any] = [] if given is None else given

    @property
    def guarantee(self) -> Guarantee:
        return "at_least_once"

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        self.values.extend(payloads)


@hookimpl
def flamestream_source() -> type[Source]:
    return MemorySource


@hookimpl
def flamestream_sink() -> type[Sink]:
    return MemorySink
