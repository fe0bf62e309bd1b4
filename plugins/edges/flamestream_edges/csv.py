"""Source and sink `csv`: comma-separated values (RFC 4180)."""

from __future__ import annotations

import base64
import csv
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from io import StringIO
from typing import Annotated, Any, ClassVar, Final, get_args, get_origin

import msgspec

from flamecore.abc.hooks import hookimpl
from flamecore.abc.sink import Sink
from flamecore.abc.source import EdgeContext, Reader, Source
from flamecore.errors import ConfigError, SourceError
from flamecore.model.failure import shorten_repr
from flamecore.suggest import suggestion
from flamecore.toolkit.records.plain import Unencodable, cell
from flamecore.toolkit.records.shapes import Column, is_named_tuple, record_columns, twin
from flamecore.toolkit.records.tables import Row, Table
from flamestream_edges.csvreader import Convert, CsvLines, CsvReader
from flamestream_edges.files import FileSource, LineOptions, line_encoding, unreadable, wrong_type
from flamestream_edges.outfile import FileSink, FileSinkOptions
from flamestream_edges.reading.linereader import resume_offset

_BARE: Final = frozenset({str, int, float, type(None)})  # csv.writer writes these so that they read back equal

_NUMBER: Final = re.compile(r"\s*([+-]?)0*(?=\.?\d)(\d*)(\.\d*)?([eE][+-]?\d+)?\s*", re.ASCII)
"""A number as people and programs write it: `007`, ` 7`, `+7`, `.5`, `5.`, `1e3`."""

_A_NUMBER: Final = "a number is such as 7, -007, .5 or 1e3, with a point and without separators"

Delimiter = Annotated[str, msgspec.Meta(min_length=1, max_length=1)]


class CsvOptions(LineOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the source.

    Attributes:
        delimiter: One character.
        header: Whether the first line of each file names the columns.
        columns: Names of the columns: instead of those in the header, or because there is none. A field is a number if
            its declared type is one, in forms such as `007`, ` 7` and `.5`; else it stays text as it is.
    """

    delimiter: Delimiter = ","
    header: bool = True
    columns: tuple[str, ...] = ()


class CsvSource(FileSource):
    """CSV files: `dict[str, str]` by column, or records of the declared type."""

    name: ClassVar[str] = "csv"
    Options: ClassVar[Any] = CsvOptions
    position_numbers: ClassVar[int] = 3

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        self._encoding = line_encoding(context, options.encoding)
        self._fields = _declared(context)
        self._converters: dict[tuple[str, ...], Convert] = {}
        if not options.header and not options.columns and self._fields is None:
            raise ConfigError(
                f"source {context.name!r}: csv without a header does not know the names of its columns",
                hint=f'Set [source.{context.name}] columns = ["…"], or declare a NamedTuple as payload type.',
                path=f"source.{context.name}.columns",
            )

    async def open_at(self, partition: str, position: Any) -> Reader:
        # A field may be as long as a record; the limit is global to the process, so it is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), self.options.max_line_bytes))
        reader = self._reader(partition, 0, 0)
        try:
            names = self._names(partition, reader)
            if position is not None:
                offset, _, last = resume_offset(self.context.name, partition, position, size=3)
                await reader.aclose()
                header, reader = reader.header, self._reader(partition, offset, last)
                reader.header = header
            if names is not None:
                reader.expect(len(names), self._converter(partition, names))
        except BaseException:
            await reader.aclose()
            raise
        return reader

    def decode_original(self, original: bytes) -> Any:
        text = StringIO(original.decode(self._encoding), newline="")
        try:
            rows = [row for row in csv.reader(text, delimiter=self.options.delimiter, strict=True) if row]
        except csv.Error as error:
            raise ValueError(f"not CSV: {error}") from error
        names = self.options.columns or tuple(column.name for column in self._fields or ())
        if self.options.header and rows:
            header, *rows = rows
            names = self.options.columns or tuple(header)
        if len(rows) != 1:
            raise ValueError(f"{len(rows)} records where one is expected")
        if len(rows[0]) != len(names):
            raise ValueError(f"{len(rows[0])} fields where {len(names)} are expected")
        if names not in self._converters:
            self._converters[names] = self._converter("the original of a record", names)
        return self._converters[names](rows[0])

    def _reader(self, partition: str, offset: int, line: int) -> CsvReader:
        try:
            lines = CsvLines(
                self.context.name,
                partition,
                self._encoding,
                self.options.max_line_bytes,
                offset,
                line,
                holds=self.options.holds(self.context),
            )
        except OSError as error:
            raise unreadable(self.context.name, partition, error) from error
        return CsvReader(self.context.name, partition, lines, self.options.delimiter)

    def _names(self, partition: str, reader: CsvReader) -> tuple[str, ...] | None:
        """Return the column names, and read the header if the file should have one.

        The result is None for an empty file that should have a header.
        """
        options = self.options
        names = options.columns or tuple(column.name for column in self._fields or ())
        if options.header:
            try:
                header = reader.next_row()
            except ValueError as error:
                raise self._error(partition, f"the header is malformed: {error}", "Correct it.") from error
            if header is None:
                return None
            reader.keep_header()
            names = options.columns or tuple(header)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise self._error(partition, f"two columns are named {twice!r}", "Set columns = […] with a name for each.")
        return names

    def _converter(self, partition: str, names: tuple[str, ...]) -> Convert:
        """Return a function that makes records of rows with these columns."""
        type_ = self.context.type
        if self._fields is None:
            if type_ in (object, Any, dict, dict[str, str]):
                return lambda row: dict(zip(names, row, strict=True))
            are_numbers = _is_number(get_args(type_)[-1])

            def convert_all(row: list[str]) -> Any:
                cells = map(_number, row) if are_numbers else row
                return msgspec.convert(dict(zip(names, cells, strict=True)), type_, strict=False)

            return convert_all
        missing = [column.name for column in self._fields if column.name not in names and not column.optional]
        if missing:
            what = f"there is no column {missing[0]!r}, which {type_.__name__} needs"
            raise self._error(partition, what, suggestion(missing[0], names))
        wanted = [column for column in self._fields if column.name in names]
        cells = [(column.name, names.index(column.name), _null_when_empty(column.type)) for column in wanted]
        named = twin(type_) if is_named_tuple(type_) else type_
        numbers = frozenset(column.name for column in wanted if _is_number(column.type))

        def convert(row: list[str]) -> Any:
            found = {name: (None if null and not row[place] else row[place]) for name, place, null in cells}
            try:
                return msgspec.convert(found, named, strict=False)
            except msgspec.ValidationError:
                pass
            # Only now: most numbers are written as JSON has them.
            spelled = {name: _number(text) if text and name in numbers else text for name, text in found.items()}
            try:
                return msgspec.convert(spelled, named, strict=False)
            except msgspec.ValidationError as error:
                raise msgspec.ValidationError(_of_cell(str(error), found, numbers)) from None

        values = msgspec.structs.astuple
        return convert if named is type_ else lambda row: type_(*values(convert(row)))

    def _error(self, partition: str, what: str, hint: str) -> SourceError:
        position = f"{partition} line 1"
        return SourceError(
            f"source {self.context.name!r}: {position}: {what}", hint=hint, source=self.context.name, position=position
        )


def _declared(context: EdgeContext) -> tuple[Column, ...] | None:
    """Return the fields of the declared record type; None if rows are given as dicts."""
    fields = record_columns(context.type)
    if fields is None and context.type not in (object, Any) and (get_origin(context.type) or context.type) is not dict:
        hint = "Declare dict[str, str], a NamedTuple, dataclass, TypedDict or msgspec.Struct, or nothing."
        raise wrong_type(context, "csv", "dict[str, str] or records", hint)
    return fields


def _null_when_empty(type_: Any) -> bool:
    """Return whether an empty field is None: None is allowed, and text is not."""
    kinds = get_args(type_)
    return type(None) in kinds and str not in kinds


def _is_number(type_: Any) -> bool:
    """Return whether a column of a type holds numbers, and no text."""
    kinds = (*get_args(type_), type_)
    return str not in kinds and not {int, float}.isdisjoint(kinds)


def _number(text: str) -> str:
    """Return a number as JSON writes it; other text unchanged."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return text
    sign, whole, fraction, exponent = found.groups(default="")
    return f"{'-' if sign == '-' else ''}{whole or '0'}{'' if fraction == '.' else fraction}{exponent}"


def _of_cell(reason: str, cells: Mapping[str, str | None], numbers: Collection[str]) -> str:
    """Return why a row does not fit, with the cell; `str` is not named as its type."""
    expected, _, place = reason.partition(" - at ")
    name = place.strip("`").removeprefix("$.")
    if name not in cells:
        return reason
    what = f"column {name!r} is {shorten_repr(cells[name])}: {expected.removesuffix(', got `str`')}"
    if not cells[name]:
        return f"{what}; a column that may be empty is declared with | None"
    is_other = name in numbers and _NUMBER.fullmatch(str(cells[name])) is None
    return f"{what}; {_A_NUMBER}" if is_other else what


class CsvSinkOptions(FileSinkOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the sink.

    Attributes:
        delimiter: One character.
        header: Whether an empty file gets a line with the names of the columns.
        columns: Other names for the columns.
    """

    delimiter: Delimiter = ","
    header: bool = True
    columns: tuple[str, ...] = ()


class CsvSink(FileSink):
    """CSV lines that end with LF; columns as in `flamecore.toolkit.records.tables`."""

    name: ClassVar[str] = "csv"
    Options: ClassVar[Any] = CsvSinkOptions

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        self._table = Table.of(context.type)
        self._names = options.columns or tuple(column.name for column in self._table.columns)
        if len(self._names) != len(self._table.columns):
            own = ", ".join(column.name for column in self._table.columns)
            path = f"sink.{context.name}.columns"
            raise ConfigError(
                f"{path} has {len(self._names)} names, and the payloads {len(self._table.columns)} columns: {own}",
                hint="Give a name for each, or leave it out.",
                path=path,
            )
        if twice := next((name for name in self._names if self._names.count(name) > 1), None):
            path = f"sink.{context.name}.columns"
            raise ConfigError(f"{path} has {twice!r} twice", hint="Give each column a name of its own.", path=path)

    def preamble(self) -> bytes:
        return self._lines([self._names]) if self.options.header else b""

    def check_others(self) -> None:
        if not self.options.header or not self._size():
            return
        header = self.preamble()
        with open(self._path, "rb") as file:
            if header.startswith(file.read(len(header) + 1)):  # no row yet, and perhaps not the whole header
                return
        with open(self._path, encoding="utf-8-sig", errors="replace", newline="") as file:
            try:
                first = next(filter(None, csv.reader(file, delimiter=self.options.delimiter)), [])
            except csv.Error:
                first = []
        if tuple(first) != self._names:
            there = f"begins with the row {shorten_repr(first)}" if first else "does not begin with a row of CSV"
            raise self._error(
                f"{self._path} {there}, and rows with the columns {', '.join(self._names)} are to be added",
                "Write to another file; or set columns as they are there, or header = false if it has no header.",
            )

    def may_begin(self, head: bytes) -> bool:
        return not head or self.row_ends(head) == [len(head)]  # the names of the columns are one row

    def encode(self, payloads: Sequence[Any]) -> bytes:
        try:
            return self._lines(self._table.rows(payloads))
        except UnicodeEncodeError as error:
            if len(payloads) > 1:  # which of them?
                for payload in payloads:
                    self.encode([payload])
            raise Unencodable(payloads[0], str(error)) from error

    def row_ends(self, data: bytes) -> list[int]:
        ends, quotes, at = [], 0, 0
        for end in super().row_ends(data):
            quotes += data.count(b'"', at, end)
            at = end
            if not quotes % 2:  # if odd, the newline is in a quoted field
                ends.append(end)
        return ends

    def _lines(self, rows: Iterable[Row]) -> bytes:
        text = StringIO(newline="")
        write = csv.writer(text, delimiter=self.options.delimiter, lineterminator="\n").writerow
        quoted = csv.writer(text, delimiter=self.options.delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL).writerow
        for row in rows:
            if not _BARE.issuperset(map(type, row)):
                row = tuple(map(_csv_cell, row))
            # Unquoted, a CR would end the row for most readers.
            (quoted if any("\r" in field for field in row if type(field) is str) else write)(row)
        return text.getvalue().encode()


def _csv_cell(value: Any) -> Any:
    value = cell(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


@hookimpl
def flamestream_source() -> type[Source]:
    return CsvSource


@hookimpl
def flamestream_sink() -> type[Sink]:
    return CsvSink
