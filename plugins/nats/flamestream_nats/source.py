"""Source `nats`: the messages of a stream of JetStream, in order.

A position is the number of a message in its stream, with the stream's creation time: a stream that was deleted and made
again has other messages of the same numbers. In streams that keep messages until they are acknowledged, a message is
acknowledged when no snapshot of the job needs it any more.
"""

from __future__ import annotations

from typing import Any, ClassVar

from nats import errors

from flamecore.abc.hooks import hookimpl
from flamecore.abc.source import EdgeContext, Reader, Source, SourceCapabilities
from flamecore.errors import ConfigError, SourceError
from flamestream_nats.access import connect, needs
from flamestream_nats.explain import reason
from flamestream_nats.jetstream.edge_options import SourceOptions, decoder, placed
from flamestream_nats.jetstream.reader import StreamFacts, StreamReader, missed
from flamestream_nats.jetstream.stream import NO_STREAM, Refused


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
        options = self.options
        reader = StreamReader(self.context.name, options, self._decode)
        await connect(reader.connection, options, self._failed)
        try:
            await self._begin(reader, position)
        except (Refused, errors.Error, OSError, TimeoutError) as error:
            await reader.aclose()
            raise self._failed(f"{options.shown}: {reason(error)}", needs(options)) from error
        except BaseException:
            await reader.aclose()
            raise
        return reader

    async def _begin(self, reader: StreamReader, position: Any) -> None:
        stream = await self._stream(reader)
        if stream.retention == "interest":
            what = f"stream {stream.name} keeps messages only for the consumers it has (retention = interest)"
            raise self._failed(what, "Read a stream that keeps them for all (limits), or for one (workqueue).")
        after, end = 0, stream.last if self.options.end == "last" else 0
        if position is not None:
            if not isinstance(position, tuple | list) or [type(part) for part in position] != [int] * 3:
                raise self._failed(f"{position!r} is no position in a stream", "Take it from the reader.")
            after, made, then = position
            end = then if end and then else end
            if problem := missed(stream, made, after, self.options.subject):
                raise self._failed(*problem)
        await reader.begin(stream, after, end)

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
