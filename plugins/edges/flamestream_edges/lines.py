"""Source `lines`: text files, one `str` a line, without the line end.

Empty lines are records too.
"""

from __future__ import annotations

from typing import Any, ClassVar

from flamecore.abc.hooks import hookimpl
from flamecore.abc.source import EdgeContext, Reader, Source
from flamecore.toolkit.records.parse import Decode
from flamestream_edges.files import FileSource, LineOptions, line_encoding, unreadable, wrong_type
from flamestream_edges.reading.linereader import FileChunks, LineReader, resume_offset
from flamestream_edges.reading.splitting import Splitter


class LineSource(FileSource):
    """Base of sources of one record a line: opens a file at its start or a position."""

    skip_blank: ClassVar[bool] = False
    Options: ClassVar[Any] = LineOptions
    decode: Decode

    async def open_at(self, partition: str, position: Any) -> Reader:
        offset, line = (0, 0) if position is None else resume_offset(self.context.name, partition, position)
        try:
            chunks = FileChunks(self.context.name, partition, offset)
        except OSError as error:
            raise unreadable(self.context.name, partition, error) from error
        splitter = Splitter(self.options.max_line_bytes, offset, line, seals=chunks.seals)
        holds = self.options.holds(self.context)
        return LineReader(self.context.name, chunks, splitter, self.decode, skip_blank=self.skip_blank, holds=holds)

    def decode_original(self, original: bytes) -> Any:
        return self.decode(original)


class Lines(LineSource):
    """Text files, line by line."""

    name: ClassVar[str] = "lines"

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        self.decode = text_decoder(context, "lines", line_encoding(context, options.encoding))


def text_decoder(context: EdgeContext, driver: str, encoding: str) -> Decode:
    """Return a function that makes a `str` of a line.

    Raises:
        ConfigError: The flow declares another type.
    """
    if context.type not in (object, Any, str):
        hint = "Declare str and convert in a map, or use a source that reads records: jsonl, csv."
        if driver == "stdin":
            hint = f"For records, one a line: --set source.{context.name}.format=jsonl; or declare str."
        raise wrong_type(context, driver, "str", hint)
    return bytes.decode if encoding == "utf-8" else lambda line: line.decode(encoding)


@hookimpl
def flamestream_source() -> type[Source]:
    return Lines
