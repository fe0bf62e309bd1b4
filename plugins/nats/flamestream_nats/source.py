"""Source `nats`: the messages of a stream of JetStream, in order.

A position is the number of a message in its stream, with the stream's creation time: a stream that was deleted and made
again has other messages of the same numbers. The end of a run is
the position of its last message. In streams that keep messages until they are acknowledged, a message is
acknowledged when no snapshot of the job needs it any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar, Final

from nats import errors

from flamecore.abc.hooks import hookimpl
from flamecore.abc.source import EdgeContext, Reader, Source, SourceCapabilities
from flamecore.errors import ConfigError, SourceError
from flamestream_nats.access import connect, needs
from flamestream_nats.explain import reason
from flamestream_nats.jetstream.edge_options import SourceOptions, decoder, placed
from flamestream_nats.jetstream.reader import StreamFacts, StreamReader, missed
from flamestream_nats.jetstream.stream import NO_STREAM, Refused

_POSITIONS: Final = ([int] * 2, [int] * 3)
"""Types of the parts of a position."""


class NatsSource(Source):
    """Messages of one stream."""

    name: ClassVar[str] = "nats"
    Options: ClassVar[Any] = SourceOptions

    def __init__(self, options: Any, context: EdgeContext) -> None:
        options = placed(options, SourceOptions, context, wildcards=True)
        super().__init__(options, context)
        self._decode = decoder(context, options.format)
        if not options.stream and not options.subject:
            path = f"source.{context.name}.stream"
            raise ConfigError(f"{path} is missing", hint='Set stream = "…", or subject = "…".', path=path)

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=True, bounded=self.options.end == "last")

    async def open(self, partition: str, position: Any = None) -> Reader:
        return await self.open_until(partition, position, None)

    async def open_until(self, partition: str, position: Any, end: Any) -> Reader:
        async with self._connected() as (reader, connected):
            stream = await self._stream(reader)
            if stream.retention == "interest":
                what = f"stream {stream.name} keeps messages only for the consumers it has (retention = interest)"
                raise self._failed(what, "Read a stream that keeps them for all (limits), or for one (workqueue).")
            after, last = 0, stream.last
            if end is not None:
                last, made = end
                self._check(stream, made, after)
            if position is not None:
                # Those of older versions have the end of their run, too.
                if not isinstance(position, tuple | list) or [type(part) for part in position] not in _POSITIONS:
                    raise self._failed(f"{position!r} is no position in a stream", "Take it from the reader.")
                after, made = position[:2]
                self._check(stream, made, after)
            await reader.begin(stream, after, last if self.options.end == "last" else None)
            connected.pop_all()
        return reader

    async def find_end(self, partition: str) -> Any:
        if self.options.end != "last":
            return None
        async with self._connected() as (reader, _):
            stream = await self._stream(reader)
            return stream.last, stream.made

    def _check(self, stream: StreamFacts, made: int, after: int) -> None:
        if problem := missed(stream, made, after, self.options.subject):
            raise self._failed(*problem)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[StreamReader, AsyncExitStack]]:
        """Yield a connected reader, and the stack that closes it at the end of the block.

        Raises:
            SourceError: The server does not answer as it should, in the block, too.
        """
        options = self.options
        reader = StreamReader(self.context.name, options, self._decode)
        async with AsyncExitStack() as stack:
            await connect(reader.connection, options, self._failed)
            stack.push_async_callback(reader.aclose)
            try:
                yield reader, stack
            except (Refused, errors.Error, OSError, TimeoutError) as error:
                raise self._failed(f"{options.shown}: {reason(error)}", needs(options)) from error

    async def _stream(self, reader: StreamReader) -> StreamFacts:
        """Return the configured stream, or the only one that has the subject."""
        options, name = self.options, self.options.stream
        if not name:
            found = await reader.requests.ask("STREAM.NAMES", {"subject": options.subject})
            names = found.get("streams") or []
            if len(names) != 1:
                there = ", ".join(names) or "none"
                raise self._failed(
                    f"{options.shown}: subject {options.subject} is in no single stream: {there}",
                    'Set stream = "…", or make one: nats stream add',
                )
            (name,) = names
        try:
            return await StreamFacts.ask(reader.requests, name)
        except Refused as error:
            if error.code != NO_STREAM:
                raise
            names = (await reader.requests.ask("STREAM.NAMES")).get("streams") or []
            there = (
                f"There is {', '.join(sorted(names)[:8])}." if names else "There is none; nats stream add makes one."
            )
            raise self._failed(f"{options.shown}: there is no stream {name}", there) from error

    def _failed(self, what: str, hint: str) -> SourceError:
        name = self.context.name
        return SourceError(f"source {name!r}: {what}", hint=hint, source=name, position=self.options.shown)


@hookimpl
def flamestream_source() -> type[Source]:
    return NatsSource
