"""Reader of CSV (RFC 4180), a record at a time, with its bytes and lines.

A record spans several lines if a field in it is quoted; it ends with a line end that is in no quoted field. Input that
is not CSV costs all lines of its record: nothing is returned that may be the inside of a quoted field.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from flamecore.abc.source import Batch, Reader, Rejected, Unfinished
from flamestream_edges.reading.linereader import FileChunks, held_back, read_error, readable, reason, rejected
from flamestream_edges.reading.splitting import Block, Splitter, TooLong

Convert = Callable[[list[str]], Any]
"""Function that makes a record of a row. Raises ValueError."""


class _TooLongError(ValueError):
    pass


class CsvLines(Iterator[str]):
    """Lines of a file for `csv.reader`, recorded for the record that is being read.

    Args:
        source, name, encoding, max_line_bytes, offset, line: As for `CsvReader` and its file.
        holds: Whether a last record without its end is held back.

    Attributes:
        holds: As the argument.
        ended: Whether there are no more lines.
    """

    def __init__(
        self, source: str, name: str, encoding: str, max_line_bytes: int, offset: int, line: int, *, holds: bool
    ) -> None:
        self.holds = holds
        self.ended = False
        self._file = FileChunks(source, name, offset)
        self._encoding = encoding
        self._splitter = Splitter(max_line_bytes, offset, line, keep_returns=True, seals=self._file.seals)
        self._found = self._read()
        self._take(self._splitter.nothing())
        self.offset = offset
        self.line = line
        self.begin()

    def begin(self) -> None:
        """Begin a new record with the next line."""
        self.raw: list[bytes] = []
        self.length = 0
        self.problem = ""
        self.start = self.offset

    @property
    def rest(self) -> tuple[int, int]:
        """Return the offset of the record that has no end, and its length up to the end of the file."""
        rest = self._splitter.rest
        return self.start, rest.offset + rest.length - self.start

    def _take(self, block: Block) -> None:
        self.block, self._at = block, 0

    def _read(self) -> Iterator[TooLong | Block]:
        while chunk := self._file.read_now(self._splitter.chunk_bytes):
            yield from filter(None, self._splitter.push(chunk))
        self.ended = True
        if not self.holds:
            yield from filter(None, self._splitter.finish())

    def __next__(self) -> str:
        while self._at == len(self.block.lines):
            found = next(self._found)
            if isinstance(found, TooLong):
                self.offset, self.line = found.position[:2]
                self._take(found.nothing)
                self.raw.append(found.head)
                raise _TooLongError(rejected(found, self._splitter.max_line_bytes).reason)
            self._take(found)
        raw = self.block.lines[self._at]
        self.offset, self.line = self.block.end_of(self._at), self.block.first + self._at
        self._at += 1
        self.raw.append(raw)
        self.length += len(raw)
        if self.length > self._splitter.max_line_bytes:
            raise _TooLongError(f"longer than max_line_bytes, {self._splitter.max_line_bytes:,}: a quote is not closed")
        try:
            return raw.decode(self._encoding) + "\n"
        except UnicodeDecodeError as error:
            # The line may be inside a field that goes on in the next, so the record is read to its end.
            self.problem = self.problem or reason(error)
            return raw.decode(self._encoding, "replace") + "\n"

    def lines_before(self, end: int, count: int) -> bytes | None:
        """Return lines once more; see `flamestream_edges.reading.linereader.Chunks`."""
        return self._file.lines_before(end, count)

    def close(self) -> None:
        self._file.close()


class RowPositions(Sequence[tuple[int, int, int, str]]):
    """Positions of rows, sealed on access."""

    def __init__(self, rows: list[tuple[int, int, int, Block]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> tuple[int, int, int, str]: ...
    @overload
    def __getitem__(self, index: slice) -> RowPositions: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int, int, str] | RowPositions:
        if isinstance(index, slice):
            return RowPositions(self._rows[index])
        *numbers, block = self._rows[index]
        offset, first, last = numbers
        return offset, first, last, block.seal(offset)


class CsvReader(Reader):
    """Rows of one file.

    A position is (offset of the byte after the record, its first line, its last line, seal).

    Attributes:
        header: The bytes of the first record, if it names the columns: part of every original.
    """

    header: bytes | None = None

    waits = False

    def __init__(self, source: str, name: str, lines: CsvLines, delimiter: str) -> None:
        self._source = source
        self._name = name
        self._lines = lines
        self._delimiter = delimiter
        self._width = 0
        self._convert: Convert = list
        self._ended = False

    def expect(self, width: int, convert: Convert) -> None:
        """Set the width of the following rows, and the function that converts them."""
        self._width = width
        self._convert = convert

    def keep_header(self) -> None:
        """Keep the record read last as the header."""
        self.header = b"\n".join(line.removesuffix(b"\r") for line in self._lines.raw)

    def next_row(self) -> list[str] | None:
        """Return the next row that is not blank; None at the end.

        Raises:
            ValueError: The record that was read is malformed.
            SourceError: The file cannot be read.
        """
        return self._next_row(self._parser())

    # One for each batch, and none between: each holds a buffer of 16 KiB, of which many files would have one each.
    def _parser(self) -> Iterator[list[str]]:
        return csv.reader(self._lines, delimiter=self._delimiter, strict=True)

    def _next_row(self, rows: Iterator[list[str]]) -> list[str] | None:
        lines = self._lines
        try:
            while not self._ended:
                lines.begin()
                row = next(rows, None)
                if row is None:
                    self._ended = True
                elif lines.problem:
                    raise ValueError(lines.problem)
                elif row:
                    return row
        except csv.Error as error:
            # A quoted field is open at the end of the file: with the lines that are still to come it may be CSV.
            if not (lines.ended and lines.holds):
                raise ValueError(f"not CSV: {error}") from error
            self._ended = True
        except OSError as error:
            raise read_error(self._source, self._name, error) from error
        return None

    async def read(self, limit: int) -> Batch | None:
        values: list[Any] = []
        rows: list[tuple[int, int, int, Block]] = []
        bad: list[Rejected] = []
        lines, width, convert, parser = self._lines, self._width, self._convert, self._parser()
        for _ in range(limit):
            try:
                row = self._next_row(parser)
                if row is None:
                    break
                if len(row) != width:
                    raise ValueError(f"{len(row)} fields where {width} are expected")
                values.append(convert(row))
            except ValueError as error:
                bad.append(Rejected(RowPositions([self._row()])[0], str(error), readable(b"\n".join(lines.raw))))
            else:
                rows.append(self._row())
        return Batch(values, RowPositions(rows), bad, fresh=True) if values or bad else None

    def _row(self) -> tuple[int, int, int, Block]:
        lines = self._lines
        return lines.offset, lines.line - max(len(lines.raw) - 1, 0), lines.line, lines.block

    def describe(self, position: tuple[int, int, int, str]) -> str:
        return f"{self._name} line {position[1]}"

    def original(self, position: tuple[int, int, int, str]) -> bytes | None:
        offset, first, last, _ = position
        row = self._lines.lines_before(offset, last - first + 1)
        return row if row is None or self.header is None else b"\n".join((self.header, row))

    def unfinished(self) -> Unfinished | None:
        offset, length = self._lines.rest
        if not (self._ended and self._lines.holds and length):
            return None
        return held_back(self._source, self._name, offset, length, "end of a record")

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    async def aclose(self) -> None:
        self.close()
