"""Source `ticker`: whole numbers at a pace."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Annotated, Any, ClassVar

import msgspec

from flamecore.abc.hooks import hookimpl
from flamecore.abc.source import Batch, Reader, Source, SourceCapabilities
from flamecore.errors import SourceError


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the ticker.

    Attributes:
        start: The first number.
        stop: It ends before this one.
        interval_ms: Milliseconds from one number to the next; 0: as fast as they are taken.
    """

    start: int = 0
    stop: int = 10
    interval_ms: Annotated[float, msgspec.Meta(ge=0)] = 0


class Ticks(Reader):
    """The numbers from `start` on. The position of a number is the number."""

    def __init__(self, start: int, options: Options) -> None:
        self._next = start
        self._stop = options.stop
        self._interval_s = options.interval_ms / 1000
        self._begun = monotonic() - start * self._interval_s

    async def read(self, limit: int) -> Batch | None:
        if self._next >= self._stop:
            return None
        ripe = self._stop
        if self._interval_s:
            # Nothing is taken before the wait is over, so a wait that is cancelled loses nothing.
            await asyncio.sleep(self._begun + self._next * self._interval_s - monotonic())
            ripe = int((monotonic() - self._begun) / self._interval_s) + 1
        first = self._next
        self._next = max(min(first + limit, ripe, self._stop), first + 1)
        numbers = range(first, self._next)
        return Batch(numbers, numbers)

    def describe(self, position: Any) -> str:
        return f"tick {position}"


class Ticker(Source):
    """Whole numbers at a pace."""

    name: ClassVar[str] = "ticker"
    Options: ClassVar[Any] = Options

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=True, bounded=True)

    def fingerprint(self) -> str:
        return f"{self.options.start} to {self.options.stop}"

    async def open(self, partition: str, position: Any = None) -> Reader:
        options = self.options
        if position is None:
            return Ticks(options.start, options)
        if not (isinstance(position, int) and options.start <= position < options.stop):
            raise SourceError(
                f"source {self.context.name!r} has no tick {position!r}: {options.start} to {options.stop - 1}",
                hint="Go on with the options of the run that was there.",
                source=self.context.name,
                position=position,
            )
        return Ticks(position + 1, options)


@hookimpl
def flamestream_source() -> type[Source]:
    return Ticker
