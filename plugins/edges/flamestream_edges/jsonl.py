"""Source and sink `jsonl`: one JSON value a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from flamecore.abc.hooks import hookimpl
from flamecore.abc.sink import Sink
from flamecore.abc.source import EdgeContext, Source
from flamecore.toolkit.records.parse import json_decoder
from flamecore.toolkit.records.plain import encode_lines
from flamestream_edges.files import line_encoding
from flamestream_edges.lines import LineSource
from flamestream_edges.outfile import FileSink


class JsonlSource(LineSource):
    """JSON lines, decoded into the flow's payload type; blank lines are skipped."""

    name: ClassVar[str] = "jsonl"
    skip_blank: ClassVar[bool] = True

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        encoding = line_encoding(context, options.encoding)
        decode = json_decoder(context)
        self.decode = decode if encoding == "utf-8" else lambda line: decode(line.decode(encoding).encode())


class JsonlSink(FileSink):
    """JSON lines; payloads are written as by `flamecore.toolkit.records.plain`."""

    name: ClassVar[str] = "jsonl"

    def encode(self, payloads: Sequence[Any]) -> bytes:
        return encode_lines(payloads)


@hookimpl
def flamestream_source() -> type[Source]:
    return JsonlSource


@hookimpl
def flamestream_sink() -> type[Sink]:
    return JsonlSink
