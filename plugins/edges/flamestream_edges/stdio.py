"""Source `stdin` and sink `stdout`: the standard streams, however connected."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from io import UnsupportedOperation
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from flamecore.abc.hooks import hookimpl
from flamecore.abc.sink import Encode, Guarantee, Sink
from flamecore.abc.source import EdgeContext, Reader, Source, SourceCapabilities
from flamecore.errors import SinkError, SourceError
from flamecore.model.batch import Lines, Rows
from flamecore.toolkit.records.plain import Unencodable, encode, encode_lines
from flamestream_edges.files import line_encoding
from flamestream_edges.jsonl import json_line_decoder
from flamestream_edges.lines import text_decoder
from flamestream_edges.reading.linereader import Chunks, LineReader
from flamestream_edges.reading.splitting import Splitter


class StdinOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the source.

    Attributes:
        encoding: Any encoding that ends a line with the one byte 0A. A UTF-8 byte order mark is dropped.
        format: `lines`: a line is a `str`. `jsonl`: it is a record as JSON, and blank lines are skipped.
        max_line_bytes: A longer line is malformed; it is never held in memory.
    """

    format: Literal["lines", "jsonl"] = "lines"
    encoding: str = "utf-8"
    max_line_bytes: Annotated[int, msgspec.Meta(ge=1)] = 16 * 1024 * 1024


class StreamChunks(Chunks):
    """Bytes of a descriptor as they arrive; the event loop waits for them.

    The descriptor stays as it is, so a terminal that is shared with others is not switched to non-blocking.
    """

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self._descriptor = descriptor

    async def read(self, size: int) -> bytes:
        await self._readable()
        return os.read(self._descriptor, size)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        # Other loops than asyncio's, such as uvloop's, switch what they wait for.
        blocking = not isinstance(loop, asyncio.BaseEventLoop) and os.get_blocking(self._descriptor)
        try:
            loop.add_reader(self._descriptor, _resolve, ready)
            if blocking:
                os.set_blocking(self._descriptor, True)
        except PermissionError:
            return  # a plain file, which is always readable and which epoll will not watch
        except NotImplementedError as error:
            raise OSError("this event loop cannot wait for it (on Windows: use asyncio's selector loop)") from error
        try:
            await ready
        finally:
            loop.remove_reader(self._descriptor)

    def close(self) -> None:
        """Leave the descriptor open: it belongs to the process."""


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class Stdin(Source):
    """Lines of standard input, text or JSON, each returned as soon as it arrives."""

    name: ClassVar[str] = "stdin"
    Options: ClassVar[Any] = StdinOptions

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        encoding = line_encoding(context, options.encoding)
        if options.format == "jsonl":
            self._decode = json_line_decoder(context, encoding)
        else:
            self._decode = text_decoder(context, "stdin", encoding)

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=False, bounded=True)

    @property
    def reads_stdin(self) -> bool:
        return True

    async def open(self, partition: str, position: Any = None) -> Reader:
        if position is not None:
            raise self._error(
                "what has been read is gone; it cannot go on from a position", "Read a file: source lines."
            )
        try:
            descriptor = sys.stdin.fileno()
        except (UnsupportedOperation, AttributeError, ValueError) as error:
            hint = "Start with input: flamestream run … < FILE; in a program: flow.run({NAME: [...]})."
            raise self._error("this process has none", hint) from error
        splitter = Splitter(self.options.max_line_bytes)
        return LineReader(
            self.context.name,
            StreamChunks("stdin", descriptor),
            splitter,
            self._decode,
            skip_blank=self.options.format == "jsonl",
        )

    def _error(self, what: str, hint: str) -> SourceError:
        name = self.context.name
        return SourceError(f"source {name!r}: standard input: {what}", hint=hint, source=name, position="stdin")


class StdoutOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the sink.

    Attributes:
        format: `auto`: text as it is, a tuple with spaces between, records as JSON. `jsonl`: everything as JSON.
    """

    format: Literal["auto", "jsonl"] = "auto"


class Stdout(Sink):
    """One output a line, flushed after every batch; a slow reader blocks the process."""

    name: ClassVar[str] = "stdout"
    Options: ClassVar[Any] = StdoutOptions

    @property
    def guarantee(self) -> Guarantee:
        return "at_least_once"

    @property
    def writes_to_stdout(self) -> bool:
        return True

    def encoder(self) -> Encode | None:
        return _lines if self.options.format == "auto" else None

    async def write_encoded(self, time: int, encoded: Sequence[Any]) -> None:
        await self._write(lambda: _joined(encoded))

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        if self.options.format == "jsonl":
            await self._write(lambda: encode_lines(payloads).decode())
        else:
            await self._write(lambda: _joined(_lines(payloads)))

    async def _write(self, make: Callable[[], str]) -> None:
        name = self.context.name
        if sys.stdout is None:  # it was closed when the process was started
            hint = "Start the job with one, such as > FILE; or choose another sink."
            raise SinkError(f"sink {name!r}: this process has no standard output", hint=hint, sink=name)
        try:
            text = make()
            sys.stdout.write(text)
            sys.stdout.flush()
        except Unencodable as error:
            hint = "Map it to text, numbers, tuples, dicts, NamedTuples or dataclasses before the sink."
            raise SinkError(f"sink {name!r}: {error}", hint=hint, sink=name) from error
        except UnicodeEncodeError as error:
            hint = "Set PYTHONIOENCODING=utf-8 (or backslashreplace), or write to a file: sink jsonl."
            raise SinkError(f"sink {name!r}: stdout takes no such text: {error}", hint=hint, sink=name) from error
        except BrokenPipeError as error:
            _mute_stdout()
            what = f"sink {name!r}: the reader of stdout is gone; nothing more is written"
            raise SinkError(what, sink=name, reader_gone=True) from error
        except (OSError, ValueError) as error:
            hint = "Is the disk full that it is redirected to, or is it closed?"
            raise SinkError(f"sink {name!r}: stdout cannot be written: {error}", hint=hint, sink=name) from error


_SHOW: dict[type, Callable[[Any], str]] = {str: str, int: str, float: str}
_PLAIN = frozenset(_SHOW)


def _lines(payloads: Sequence[Any]) -> Sequence[Any]:
    """Return a line for each payload; a payload without a text form stays as it is."""
    columns = _columns(payloads)
    if columns and all(_PLAIN.issuperset(set(map(type, column))) for column in columns):
        # Columns of like values are checked one by one, and formatted by a single call of C.
        cells: list[Any] = [None] * (len(columns) * len(payloads))
        for place, column in enumerate(columns):
            cells[place :: len(columns)] = column
        template = " ".join(["%s"] * len(columns)) + "\n"
        lines = Lines(template * len(payloads) % tuple(cells))
        if len(lines) == len(payloads):  # no cell contains a newline
            return lines
    try:
        return [_line(payload) for payload in payloads]
    except Unencodable:
        return [_line_if_any(payload) for payload in payloads]


def _columns(payloads: Sequence[Any]) -> Sequence[Sequence[Any]]:
    """Return the columns of the payloads; none if they are not all of one width."""
    if type(payloads) is Rows:
        return payloads.columns
    kinds = set(map(type, payloads))
    if kinds != {tuple}:
        return () if tuple in kinds else (payloads,)
    return tuple(zip(*payloads, strict=True)) if len(set(map(len, payloads))) == 1 else ()


def _line_if_any(payload: Any) -> Any:
    try:
        return _line(payload)
    except Unencodable:
        return payload


def _joined(lines: Sequence[Any]) -> str:
    """Return the lines as one text. Raises Unencodable for a payload without a line."""
    if type(lines) is Lines:
        return lines.text
    try:
        return "".join(lines)
    except TypeError:
        return "".join([line if type(line) is str else _line(line) for line in lines])


def _line(payload: Any) -> str:
    if type(payload) is tuple:
        return " ".join(map(_word, payload)) + "\n"
    return _word(payload) + "\n"


def _word(value: Any) -> str:
    show = _SHOW.get(type(value))
    if show is not None:
        return show(value)
    # A float of another class, such as numpy's, has a line like that of an equal float, also where JSON has none.
    return str(float(value)) if isinstance(value, float) else encode(value).decode()


def _mute_stdout() -> None:
    """Redirect the descriptor to nothing: Python must not report the pipe at exit."""
    try:
        descriptor = sys.stdout.fileno()
    except (UnsupportedOperation, AttributeError, ValueError):
        return  # stdout is no stream of the system
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)


@hookimpl
def flamestream_source() -> type[Source]:
    return Stdin


@hookimpl
def flamestream_sink() -> type[Sink]:
    return Stdout
