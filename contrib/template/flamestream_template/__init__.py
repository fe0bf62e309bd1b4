"""Source `template`: the values that its options name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from flamecore.abc.hooks import hookimpl
from flamecore.abc.source import Batch, Reader, Source, SourceCapabilities
from flamecore.errors import SourceError


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the source.

    Attributes:
        values: The records, in this order.
    """

    values: tuple[str, ...]


class TemplateReader(Reader):
    """Reads from `start` on. A position is the number of a value, from 0."""

    def __init__(self, values: Sequence[str], start: int) -> None:
        self._values = values
        self._next = start

    async def read(self, limit: int) -> Batch | None:
        first, self._next = self._next, min(self._next + limit, len(self._values))
        if first == self._next:
            return None
        return Batch(self._values[first : self._next], range(first, self._next))

    def describe(self, position: Any) -> str:
        return f"value {position}"


class TemplateSource(Source):
    """The values that its options name."""

    name: ClassVar[str] = "template"
    Options: ClassVar[Any] = Options

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=True, bounded=True)

    async def open(self, partition: str, position: Any = None) -> Reader:
        values = self.options.values
        if position is None:
            return TemplateReader(values, 0)
        if not (isinstance(position, int) and 0 <= position < len(values)):
            raise SourceError(
                f"source {self.context.name!r}: there is no value {position!r}; {len(values)} are given",
                hint="Start from the beginning.",
                source=self.context.name,
                position=position,
            )
        return TemplateReader(values, position + 1)


@hookimpl
def flamestream_source() -> type[Source]:
    return TemplateSource
