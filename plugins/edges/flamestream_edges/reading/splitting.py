"""Splitting of a byte stream into lines, with positions made only on access.

Nothing here reads or waits: chunks are pushed in, blocks of whole lines come out. A line ends with LF or CRLF; the last
one may end with the stream. A line longer than the limit is never held: its head is kept, its length counted.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple, overload

from flamestream_edges.reading.seal import TAIL_BYTES, Seals

CHUNK_BYTES: Final = 64 * 1024
"""Size of a read: large enough that its cost vanishes, small enough for the cache."""

RAW_BYTES: Final = 64 * 1024
"""Most bytes of a malformed record that are kept to be shown or sent to a dead-letter sink."""

LinePosition = tuple[int, int] | tuple[int, int, str]
"""(offset of the byte after the line's end, 1-based number of the line), and a seal if the file can be reread."""


class Block:
    """Some consecutive whole lines.

    Attributes:
        lines: Their bytes, without line end.
        first: 1-based number of the first of them.
        end: Offset of the byte after the last of them.
    """

    __slots__ = ("_before", "_body", "_ends", "_raw", "_seals", "_start", "end", "first", "lines")

    def __init__(
        self, raw: list[bytes], start: int, first: int, body: bytes, before: bytes = b"", seals: Seals | None = None
    ) -> None:
        self._raw = raw
        self._start = start
        self._body = body
        self._before = before
        self._seals = seals
        self._ends: list[int] = []
        self.first = first
        self.end = start + len(body)
        self.lines = raw

    def strip(self, *, returns: bool) -> None:
        """Remove the byte order mark of line 1 and, if `returns`, the CR of all lines.

        Offsets stay as they are.
        """
        if returns:
            self.lines = [line[:-1] if line.endswith(b"\r") else line for line in self._raw]
        if self.first == 1 and self.lines[0].startswith(codecs.BOM_UTF8):
            self.lines = [self.lines[0][len(codecs.BOM_UTF8) :], *self.lines[1:]]

    def position(self, index: int) -> LinePosition:
        """Return the position of a line, by its 0-based index in the block."""
        end, line = self.end_of(index), self.first + index
        return (end, line) if self._seals is None else (end, line, self.seal(end))

    def end_of(self, index: int) -> int:
        """Return the offset of the byte after a line and its end."""
        if not self._ends:
            self._ends = list(accumulate(map(len, self._raw), initial=self._start))[1:]
        # One byte of line end each; the last line of the stream may have none.
        return min(self._ends[index] + index + 1, self.end)

    def seal(self, end: int) -> str:
        """Return the seal of a position in the block, by its offset."""
        assert self._seals is not None
        place = end - self._start
        if place >= TAIL_BYTES:
            return self._seals.seal(self._body[place - TAIL_BYTES : place])
        return self._seals.seal((self._before + self._body[:place])[-TAIL_BYTES:])


class TooLong(NamedTuple):
    """A line beyond the limit.

    Attributes:
        position: Its position.
        length: Its length in bytes.
        head: Its first `RAW_BYTES`.
        nothing: An empty block after it.
    """

    position: LinePosition
    length: int
    head: bytes
    nothing: Block


class Rest(NamedTuple):
    """The bytes behind the last line end.

    Attributes:
        offset: Offset of the first of them.
        length: Their number.
        is_blank: Whether there is only white space among them.
    """

    offset: int
    length: int
    is_blank: bool


class Positions(Sequence[LinePosition]):
    """Positions of a run of lines in a block, made one by one on access."""

    __slots__ = ("_block", "_range")

    def __init__(self, block: Block, indexes: range) -> None:
        self._block = block
        self._range = indexes

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, index: int) -> LinePosition: ...
    @overload
    def __getitem__(self, index: slice) -> Positions: ...
    def __getitem__(self, index: int | slice) -> LinePosition | Positions:
        if isinstance(index, slice):
            return Positions(self._block, self._range[index])
        return self._block.position(self._range[index])


class Splitter:
    """Splitter of chunks into blocks of lines.

    Args:
        max_line_bytes: Longest line that is kept, line end not counted. Chunks must not be larger, so that only a line
            that began in an earlier chunk can be too long.
        offset: Offset in bytes at which the stream starts.
        line: Number of the line before the first.
        keep_returns: Leave the CR of a line that ends with CRLF.
        seals: Seals of the file's positions; None: positions have no seal.
    """

    def __init__(
        self,
        max_line_bytes: int,
        offset: int = 0,
        line: int = 0,
        *,
        keep_returns: bool = False,
        seals: Seals | None = None,
    ) -> None:
        self.max_line_bytes = max_line_bytes
        self.chunk_bytes = min(CHUNK_BYTES, max_line_bytes)
        self._offset = offset
        self._next = line + 1
        self._keep_returns = keep_returns
        self._seals = seals
        self._before = seals.before if seals else b""
        self._parts: list[bytes] = []  # of the line whose end has not come yet
        self._length = 0
        self._recent = b""  # the last of a line that is too long

    def nothing(self) -> Block:
        """Return an empty block at the place of the next line."""
        return Block([], self._offset, self._next, b"", self._before, self._seals)

    def push(self, chunk: bytes) -> tuple[TooLong | None, Block | None]:
        """Take the next chunk, which must not be empty.

        Returns:
            A line that is too long, if the chunk completes one, and the block of lines after it. Both None if it
            completes no line.
        """
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            self._hold(chunk)
            return None, None
        body, rest = chunk[:cut], chunk[cut:]
        too_long = None
        if self._parts:
            first = body.index(b"\n") + 1
            if self._length + first - 1 > self.max_line_bytes:
                self._hold(body[: first - 1])
                too_long = self._give_up(1)
                body = body[first:]
            else:
                body = b"".join((*self._parts, body))
                self._parts.clear()
                self._length = 0
        block = None
        if body:
            raw = body[:-1].split(b"\n")
            block = Block(raw, self._offset, self._next, body, self._before, self._seals)
            self._before = (self._before + body)[-TAIL_BYTES:] if len(body) < TAIL_BYTES else body[-TAIL_BYTES:]
            block.strip(returns=not self._keep_returns and b"\r" in body)
            self._offset += len(body)
            self._next += len(raw)
        if rest:
            self._hold(rest)
        return too_long, block

    @property
    def rest(self) -> Rest:
        """Return what there is of the line whose end has not come yet."""
        length = 0 if self._is_marked_only else self._length
        return Rest(self._offset, length, not b"".join(self._parts).strip())

    @property
    def _is_marked_only(self) -> bool:
        """Return whether a byte order mark is all there is: some programs write one into a file without lines."""
        return self._next == 1 and self._parts == [codecs.BOM_UTF8]

    def finish(self) -> tuple[TooLong | None, Block | None]:
        """End the stream; return its last line if that had no end."""
        if not self._parts or self._is_marked_only:
            return None, None
        if self._length > self.max_line_bytes:
            return self._give_up(0), None
        body = b"".join(self._parts)
        block = Block([body], self._offset, self._next, body, self._before, self._seals)
        block.strip(returns=False)
        self._parts.clear()
        return None, block

    def _hold(self, part: bytes) -> None:
        self._length += len(part)
        if self._length <= self.max_line_bytes:
            self._parts.append(part)
        else:  # too long by now: only its ends are kept
            whole = b"".join((*self._parts, part))
            self._recent = (self._recent + part if self._recent else whole)[-TAIL_BYTES:]
            self._parts = [whole[:RAW_BYTES]]

    def _give_up(self, line_end: int) -> TooLong:
        end = self._offset + self._length + line_end
        self._before = (self._before + self._recent + b"\n" * line_end)[-TAIL_BYTES:]
        self._offset = end
        nothing = self.nothing()
        position: LinePosition = (end, self._next)
        if self._seals is not None:
            position = (end, self._next, nothing.seal(end))
        found = TooLong(position, self._length, b"".join(self._parts)[:RAW_BYTES], nothing)
        self._next += 1
        self._parts = []
        self._recent = b""
        self._length = 0
        return found
