"""Sink `ndjson_gz`: JSON lines, compressed."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar

import msgspec

from flamecore.abc.hooks import hookimpl
from flamecore.abc.paths import FilePath
from flamecore.abc.sink import Guarantee, Sink
from flamecore.abc.source import EdgeContext
from flamecore.errors import SinkError
from flamecore.model.meta import MIN_TIME


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the sink.

    Attributes:
        path: The file; replaced if it is there.
        level: Level of compression: 1 is fast, 9 is small.
    """

    path: FilePath
    level: Annotated[int, msgspec.Meta(ge=1, le=9)] = 6


class NdjsonGz(Sink):
    """Gzip file of JSON lines.

    Each batch is a member of its own: the file is whole after every batch.
    """

    name: ClassVar[str] = "ndjson_gz"
    Options: ClassVar[Any] = Options

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        self._path = Path(options.path)
        self._file: BinaryIO | None = None

    @property
    def guarantee(self) -> Guarantee:
        return "at_least_once"

    async def replaces(self) -> bool:
        return self._path.is_file() and self._path.stat().st_size > 0

    async def open(self) -> int:
        try:
            self._file = self._path.open("wb", buffering=0)
        except OSError as error:
            raise self._error(error, "Give another path.") from error
        return MIN_TIME

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        assert self._file is not None, "write before open"
        try:
            lines = b"".join(msgspec.json.encode(payload) + b"\n" for payload in payloads)
        except (TypeError, ValueError) as error:
            raise self._error(error, "Map it to plain values before the sink.") from error
        before = self._file.tell()
        data = memoryview(gzip.compress(lines, self.options.level, mtime=0))
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            self._file.truncate(before)
            raise self._error(error, "Make room, or give another path.") from error

    async def aclose(self) -> None:
        if self._file is not None:
            self._file.close()

    def _error(self, error: Exception, hint: str) -> SinkError:
        name = self.context.name
        return SinkError(f"sink {name!r}: {self._path} cannot be written: {error}", hint=hint, sink=name)


@hookimpl
def flamestream_sink() -> type[Sink]:
    return NdjsonGz
