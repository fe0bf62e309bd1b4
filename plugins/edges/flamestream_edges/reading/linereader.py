"""Readers of one record a line, over any source of byte chunks."""

from __future__ import annotations

import asyncio
import codecs
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Final

from flamecore.abc.source import Batch, Reader, Rejected, Unfinished
from flamecore.errors import SourceError
from flamecore.toolkit.records.parse import Decode
from flamestream_edges.reading.openfiles import MovedError, PooledFile
from flamestream_edges.reading.packed import refuse_packed
from flamestream_edges.reading.seal import Seals, check_seal, is_read, read_at
from flamestream_edges.reading.splitting import (
    CHUNK_BYTES,
    RAW_BYTES,
    Block,
    LinePosition,
    Positions,
    Splitter,
    TooLong,
)

ORIGINAL_BYTES: Final = 1024 * 1024
"""Longest record that is read once more, for a dead letter."""


class Chunks(ABC):
    """A source of bytes.

    Attributes:
        name: Its name, for errors.
        waits: Whether a read may wait.
    """

    name: str
    waits: bool = True

    @abstractmethod
    async def read(self, size: int) -> bytes:
        """Return at most `size` bytes, as soon as there are any; none at the end.

        Cancelling the wait loses nothing.

        Raises:
            OSError: They cannot be read.
            SourceError: They are not those of the source any more.
        """

    def lines_before(self, end: int, count: int) -> bytes | None:
        """Return the `count` lines before `end`, without the last line end, or None.

        The offset `end` is that of the byte after their end. None: they cannot be read again.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Release all resources; a second call does nothing."""


class FileChunks(Chunks):
    """The bytes of a file. Reads are synchronous: a chunk takes some microseconds.

    The file is open while it is read, and as long as it has a place in the pool of open files.

    Args:
        source: Name of the source, for errors.
        name: The file's path.
        offset: Offset at which reading begins.

    Attributes:
        offset: Offset of the next byte.
        seals: Seals of the file's positions.
    """

    waits = False

    def __init__(self, source: str, name: str, offset: int = 0) -> None:
        self.name = name
        self.offset = offset
        self._source = source
        self._file = PooledFile(name)
        try:
            with self._file.borrowed() as descriptor:
                self.seals = Seals(descriptor, offset)
            if not offset:
                refuse_packed(source, name, self.seals.ahead)
        except (OSError, SourceError):
            self._file.close()
            raise
        self._file.begins_alike = self.seals.begins_alike
        # What was read for the seal is not read again, as far as all files together may be read ahead.
        ahead, self.seals.ahead = self.seals.ahead, b""
        self._ahead = ahead[: self._file.ahead(len(ahead))]

    async def read(self, size: int) -> bytes:
        return self.read_now(size)

    def read_now(self, size: int) -> bytes:
        """Return bytes as `read` does, without a wait."""
        if self._ahead:
            chunk, self._ahead = self._ahead[:size], self._ahead[size:]
        elif self._ends_unchanged():
            chunk = b""
        else:
            chunk = self._file.read(self.offset, size)
            if not chunk:
                self._check_end()
        self.offset += len(chunk)
        if not chunk:
            self._file.end()
        return chunk

    def skip_to(self, offset: int) -> None:
        """Go on reading at another offset."""
        self.offset, self._ahead = offset, b""

    def _ends_unchanged(self) -> bool:
        """Return whether all of the file has been read, and it need not be opened again to know that."""
        if self.offset != self.seals.size:
            return False
        try:
            return self.seals.is_unchanged(os.stat(self.name))  # noqa: PTH116 - for each of many files
        except OSError:
            return False  # it may still be open

    def seal_at(self, offset: int) -> str:
        """Return the seal of any offset in the file.

        Raises:
            OSError: It cannot be read.
        """
        with self._file.borrowed() as descriptor:
            return self.seals.seal_at(descriptor, offset)

    def _check_end(self) -> None:
        """Check that the file is still the one that was opened, now that all of it has been read.

        Raises:
            SourceError: It was shortened or overwritten: its last bytes may be a part of a record.
        """
        reached = self.offset
        with self._file.borrowed() as descriptor:
            size, longest = os.fstat(descriptor).st_size, max(self.seals.size, reached)
            # Files of the kernel (/proc) and of some networks hold more than their size says.
            if size < longest and not read_at(descriptor, size, 1):
                what = f"was shortened while it was read, from {longest} bytes to {size}"
            elif size == reached and not self.seals.begins_alike(descriptor):
                what = f"was overwritten while it was read: the first of its {size} bytes have changed"
            else:
                return
        raise SourceError(
            f"source {self._source!r}: {self.name} {what}",
            hint="Rename a file that a job reads in place of changing it, as logrotate does without copytruncate. "
            "Then put the old file back; or start afresh, without the job's state and output.",
            source=self._source,
            position=self.name,
        )

    def lines_before(self, end: int, count: int) -> bytes | None:
        found, start, wanted = b"", end, count
        try:
            while start > 0 and len(found) <= ORIGINAL_BYTES:
                size = min(start, CHUNK_BYTES)
                start -= size
                with self._file.borrowed() as descriptor:
                    found = read_at(descriptor, start, size) + found
                wanted = count + found.endswith(b"\n")
                if found.count(b"\n") >= wanted:
                    break
        except (OSError, ValueError):
            return None  # the file is gone or closed: the dead letter has no original
        text = found.removesuffix(b"\n")
        lines = text.rsplit(b"\n", count)
        if len(lines) <= count and start > 0:
            return None  # longer than ORIGINAL_BYTES
        if len(lines) <= count:  # it begins with the file
            return text.removeprefix(codecs.BOM_UTF8).removesuffix(b"\r")
        return b"\n".join(lines[1:]).removesuffix(b"\r")

    def close(self) -> None:
        self._file.close()


class LineReader(Reader):
    """Records of one line each.

    The overhead is some 0.1 µs a line beyond `decode`: lines are cut a chunk at a time and positions are made on
    access.

    Args:
        source: Name of the source, for errors.
        chunks: The bytes.
        splitter: A splitter made for the offset and the line at which `chunks` starts.
        decode: Function that makes a record of a line.
        skip_blank: Whether a line of white space is no record at all.
        holds: Whether a last line without line end is held back.
    """

    def __init__(
        self,
        source: str,
        chunks: Chunks,
        splitter: Splitter,
        decode: Decode,
        *,
        skip_blank: bool = False,
        holds: bool = False,
    ) -> None:
        self.waits = chunks.waits
        self._source = source
        self._chunks = chunks
        self._splitter = splitter
        self._decode = decode
        self._skip_blank = skip_blank
        self._holds = holds
        self._block: Block | None = None
        self._at = 0
        self._rejected: list[Rejected] = []
        self._ended = False

    async def read(self, limit: int) -> Batch | None:
        while True:
            if self._rejected:
                batch = Batch((), (), self._rejected)
                self._rejected = []
                return batch
            while self._block is not None:
                batch = self._take(self._block, limit)
                if batch.values or batch.rejected:
                    return batch
            if self._ended:
                return None
            await self._fill()

    async def _fill(self) -> None:
        try:
            chunk = await self._chunks.read(self._splitter.chunk_bytes)
        except OSError as error:
            raise read_error(self._source, self._chunks.name, error) from error
        self._at = 0
        self._ended = not chunk
        if self._ended and self._holds:
            return
        too_long, self._block = self._splitter.push(chunk) if chunk else self._splitter.finish()
        if too_long is not None:
            self._rejected.append(rejected(too_long, self._splitter.max_line_bytes))
        elif self._block is None and chunk:
            await asyncio.sleep(0)  # a line of many chunks must not hold the event loop from its first to its last

    def _take(self, block: Block, limit: int) -> Batch:
        indexes = range(self._at, min(self._at + limit, len(block.lines)))
        self._at = indexes.stop
        if self._at == len(block.lines):
            self._block = None
        lines = block.lines if len(indexes) == len(block.lines) else block.lines[indexes.start : indexes.stop]
        try:
            return Batch(list(map(self._decode, lines)), Positions(block, indexes), fresh=True)
        except (ValueError, RecursionError):
            return self._sort_out(block, indexes)

    def _sort_out(self, block: Block, indexes: range) -> Batch:
        """Decode lines one by one, as `_take` does at once: some are malformed or blank."""
        values: list[Any] = []
        positions: list[LinePosition] = []
        bad: list[Rejected] = []
        for index in indexes:
            line = block.lines[index]
            try:
                value = self._decode(line)
            except (ValueError, RecursionError) as error:
                if self._skip_blank and not line.strip():
                    continue
                bad.append(Rejected(block.position(index), reason(error), readable(line)))
            else:
                values.append(value)
                positions.append(block.position(index))
        return Batch(values, positions, bad, fresh=True)

    def describe(self, position: LinePosition) -> str:
        return f"{self._chunks.name} line {position[1]}"

    def original(self, position: LinePosition) -> bytes | None:
        return self._chunks.lines_before(position[0], 1)

    def unfinished(self) -> Unfinished | None:
        rest = self._splitter.rest
        if not (self._ended and self._holds and rest.length) or (self._skip_blank and rest.is_blank):
            return None
        return held_back(self._source, self._chunks.name, rest.offset, rest.length)

    async def aclose(self) -> None:
        self._chunks.close()


class FinishedReader(Reader):
    """A reader of a file that was read to its end before, which is opened once it is longer or has changed.

    Args:
        name: The file's path.
        position: The position at its end.
        length: Number of integers in a position.
        open_it: Function that opens it at that position.
    """

    waits = False

    __slots__ = ("_ended", "_length", "_name", "_open", "_position", "_reader")

    def __init__(self, name: str, position: Any, length: int, open_it: Callable[[str, Any], Awaitable[Reader]]) -> None:
        self._name, self._position, self._length, self._open = name, position, length, open_it
        self._reader: Reader | None = None
        self._ended = False

    async def read(self, limit: int) -> Batch | None:
        if self._reader is None:
            self._ended = self._ended or is_read(self._name, self._position, self._length)
            if self._ended:
                return None
            self._reader = await self._open(self._name, self._position)
        return await self._reader.read(limit)

    def describe(self, position: Any) -> str:
        return f"{self._name} line {position[1]}" if self._reader is None else self._reader.describe(position)

    def original(self, position: Any) -> bytes | None:
        return None if self._reader is None else self._reader.original(position)

    def unfinished(self) -> Unfinished | None:
        return None if self._reader is None else self._reader.unfinished()

    async def aclose(self) -> None:
        self._ended = True
        if self._reader is not None:
            await self._reader.aclose()


def held_back(source: str, name: str, offset: int, length: int, lacking: str = "line end") -> Unfinished:
    """Return the record at the end of a file that is held back, as it has no end yet."""
    held = f"{length:,} byte{'s' * (length > 1)} from offset {offset} held back: no {lacking} yet"
    return Unfinished(name, f'{held} (source.{source}.partial = "record" reads them as they are)')


def rejected(found: TooLong, max_line_bytes: int) -> Rejected:
    """Return the rejected record of a line beyond the limit."""
    why = f"the line is {found.length:,} bytes long, and max_line_bytes is {max_line_bytes:,}"
    return Rejected(found.position, why, readable(found.head))


def readable(raw: bytes) -> str | bytes:
    """Return a malformed record as text if it is UTF-8, else its bytes.

    It is cut to `RAW_BYTES`.
    """
    raw = raw[:RAW_BYTES]
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def reason(error: Exception) -> str:
    """Return why a record is malformed, in a line."""
    if isinstance(error, UnicodeDecodeError):
        bad = error.object[error.start : error.end].hex(" ")
        return f"not {error.encoding}: byte {error.start + 1} of the record is {bad} ({error.reason})"
    return f"nested too deep: {error}" if isinstance(error, RecursionError) else str(error)


def read_error(source: str, name: str, error: OSError) -> SourceError:
    """Return the error of a file or stream that fails while it is read."""
    hint = "Check that the file is there, is yours to read, and that its device is well."
    if isinstance(error, MovedError):
        hint = (
            "Leave each file in place until the job has ended: it reads more files than may be open at once (ulimit "
            "-Hn). Put the old file back; or start afresh, without the job's state and output."
        )
    return SourceError(
        f"source {source!r}: {name} cannot be read: {error.strerror or error}",
        hint=hint,
        source=source,
        position=name,
    )


def resume_offset(source: str, name: str, position: Any, size: int = 2) -> tuple[int, ...]:
    """Check a position of `size` numbers, the first of them an offset, and a seal.

    Returns:
        The numbers. The offset is beyond the line's end, also if that was appended since.

    Raises:
        SourceError: It is no such position, or the file has become another one.
    """
    check_seal(source, name, position, size)
    offset: int = position[0]
    try:
        with open(name, "rb") as file:
            file.seek(max(offset - 1, 0))
            around = file.read(3) if offset else b"\n"
    except OSError as error:
        raise read_error(source, name, error) from error
    after = around[1:]
    if around[:1] == b"\n" or not after:
        end = 0
    elif after.startswith((b"\n", b"\r\n")):
        end = after.index(b"\n") + 1
    else:
        raise SourceError(
            f"source {source!r}: the last line of {name} was read up to {offset}, without a line end, and now goes on",
            hint="It was read as a whole, as the last of the file. Start afresh, without the job's state and output; "
            f'source.{source}.partial = "hold", the default of jobs that keep state, holds such lines back.',
            source=source,
            position=f"{name} line {position[1]}",
        )
    return (offset + end, *position[1:size])
