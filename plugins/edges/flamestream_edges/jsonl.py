"""Source and sink `jsonl`: one JSON value a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from flamecore.errors import ConfigError
from flamecore.front import EdgeContext, Source
from flamecore.plugin import hookimpl
from flamecore.rear import Sink
from flamestream_edges.files import line_encoding
from flamestream_edges.linereader import Decode
from flamestream_edges.lines import LineSource
from flamestream_edges.outfile import FileSink
from flamestream_edges.plain import encode_lines
from flamestream_edges.shapes import is_named_tuple, twin


class JsonlSource(LineSource):
    """JSON lines, decoded into the payload type the flow declares; blank lines are skipped."""

    name: ClassVar[str] = "jsonl"
    skip_blank: ClassVar[bool] = True

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        encoding = line_encoding(context, options.encoding)
        decode = json_decoder(context)
        self.decode = decode if encoding == "utf-8" else lambda line: decode(line.decode(encoding).encode())


def json_decoder(context: EdgeContext) -> Decode:
    """Decodes into the declared type: plain values for `object`; a NamedTuple from an object or an array.

    Raises:
        ConfigError: Nothing can be decoded into that type.
    """
    wanted = Any if context.type is object else context.type
    try:
        if not is_named_tuple(wanted):
            decoder = msgspec.json.Decoder(wanted)
            kind = msgspec.inspect.type_info(wanted)
            if isinstance(kind, msgspec.inspect.CustomType):
                raise TypeError(f"nothing is known of how to make a {wanted.__name__}")
            return decoder.decode
        return _named_tuple_decoder(wanted)
    except (TypeError, NameError) as error:
        raise ConfigError(
            f"source {context.name!r}: JSON cannot be decoded into {context.type!r}: {error}",
            hint="Declare a NamedTuple, dataclass, TypedDict or msgspec.Struct, or nothing, and convert in a map.",
            path=f"source.{context.name}.use",
        ) from error


def _named_tuple_decoder(type_: Any) -> Decode:
    named = twin(type_)
    decode = msgspec.json.Decoder(type_ | named).decode
    values = msgspec.structs.astuple

    def decode_named_tuple(line: bytes) -> Any:
        found = decode(line)
        return type_(*values(found)) if type(found) is named else found

    return decode_named_tuple


class JsonlSink(FileSink):
    """JSON lines; see `flamestream_edges.plain` for how payloads are written."""

    name: ClassVar[str] = "jsonl"

    def encode(self, payloads: Sequence[Any]) -> bytes:
        return encode_lines(payloads)


@hookimpl
def flamestream_source() -> type[Source]:
    return JsonlSource


@hookimpl
def flamestream_sink() -> type[Sink]:
    return JsonlSink
