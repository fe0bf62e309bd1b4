"""Source and sink `jsonl`: one JSON value a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from flamecore.abc.hooks import hookimpl
from flamecore.abc.sink import Encode, Sink
from flamecore.abc.source import EdgeContext, Source
from flamecore.model.batch import Lines
from flamecore.toolkit.records.parse import Decode, json_decoder
from flamecore.toolkit.records.plain import Unencodable, encode, encode_lines
from flamestream_edges.files import line_encoding
from flamestream_edges.lines import LineSource
from flamestream_edges.outfile import FileSink


class JsonlSource(LineSource):
    """JSON lines, decoded into the flow's payload type; blank lines are skipped."""

    name: ClassVar[str] = "jsonl"
    skip_blank: ClassVar[bool] = True

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        self.decode = json_line_decoder(context, line_encoding(context, options.encoding))


def json_line_decoder(context: EdgeContext, encoding: str) -> Decode:
    """Return a function that makes a payload of a line of JSON."""
    decode = json_decoder(context)
    return decode if encoding == "utf-8" else lambda line: decode(line.decode(encoding).encode())


class JsonlSink(FileSink):
    """JSON lines; payloads are written as by `flamecore.toolkit.records.plain`."""

    name: ClassVar[str] = "jsonl"

    def encode(self, payloads: Sequence[Any]) -> bytes:
        return encode_lines(payloads)

    def encoder(self) -> Encode | None:
        return _lines

    async def write_encoded(self, time: int, encoded: Sequence[Any]) -> None:
        await self._store(time, lambda: _joined(encoded), None)


def _lines(payloads: Sequence[Any]) -> Sequence[Any]:
    """Return a line for each payload; a payload that cannot be written stays as it is."""
    try:
        text = encode_lines(payloads).decode()
    except (Unencodable, UnicodeDecodeError):
        return [_line_if_any(payload) for payload in payloads]
    # A value of `msgspec.Raw` is copied as it is, with the newlines that it contains.
    if text.count("\n") != len(payloads):
        return [_line_if_any(payload) for payload in payloads]
    return Lines(text, len(payloads))


def _line_if_any(payload: Any) -> Any:
    try:
        return (encode(payload) + b"\n").decode()
    except (Unencodable, UnicodeDecodeError):
        return payload


def _joined(lines: Sequence[Any]) -> bytes:
    """Return the bytes of lines.

    Raises:
        Unencodable: There is a payload among them that cannot be written.
    """
    if type(lines) is Lines:
        return lines.text.encode()
    try:
        return "".join(lines).encode()
    except (TypeError, UnicodeEncodeError):
        return b"".join([_bytes_of(line) for line in lines])


def _bytes_of(line: Any) -> bytes:
    # A text is a line unless UTF-8 cannot write it: such a payload has no line, and any other text has one.
    try:
        return line.encode() if type(line) is str else encode(line) + b"\n"
    except UnicodeEncodeError:
        return encode(line) + b"\n"


@hookimpl
def flamestream_source() -> type[Source]:
    return JsonlSource


@hookimpl
def flamestream_sink() -> type[Sink]:
    return JsonlSink
