"""Source `sqlite`: rows of a table in an SQLite file, ordered by a growing column.

Rows are fetched some at a time, each time those after the last one, so that no transaction is held open in between and
reading can go on after any row.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import msgspec

from flamecore.abc.hooks import hookimpl
from flamecore.abc.paths import FilePath
from flamecore.abc.source import Batch, EdgeContext, Reader, Rejected, Source, SourceCapabilities
from flamecore.errors import SourceError
from flamecore.suggest import suggestion
from flamecore.toolkit.records.parse import Convert, can_be_made, row_converter
from flamestream_edges.files import empty_path, wrong_type
from flamestream_edges.reading.splitting import RAW_BYTES
from flamestream_edges.sqlite import table_place

Key = tuple[int | float | str, ...]
Row = tuple[Any, ...]

_ROWID: Final = "rowid"
_ORDERED: Final = frozenset((int, float, str))
_MOST: Final = 1024
_HINTS: Final = {
    "SQLITE_NOTADB": "It is another kind of file; give another path.",
    "SQLITE_CORRUPT": "Look at it with: sqlite3 FILE 'PRAGMA integrity_check'",
    "SQLITE_BUSY": "Another program holds it; end that, or raise busy_timeout_s.",
    "SQLITE_CANTOPEN": "Give this user permission to read the file, and to read and write its directory.",
}


class SqliteSourceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the source.

    Attributes:
        path: The database file.
        table: The table or view; the source's name by default.
        columns: The columns to read, in order; all of them by default.
        order: A column that is greater in every new row, or equal; numbers or text. It needs an index. By default the
            number that SQLite itself gives to rows.
        poll_s: Interval of the queries for new rows, in seconds; 0: end after the last row.
        busy_timeout_s: Maximum wait, in seconds, for another program that has locked the database.
    """

    path: FilePath
    table: str = ""
    columns: tuple[str, ...] = ()
    order: str = _ROWID
    poll_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    busy_timeout_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0


class _Undecoded(bytes):
    """A text of the database that is not UTF-8."""


def _text(raw: bytes) -> str | _Undecoded:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _Undecoded(raw)


def _reason(row: Row, names: Sequence[str]) -> str:
    """Return the reason why a row is malformed that has an undecoded text, or "" if it has none."""
    for name, value in zip(names, row, strict=True):
        if type(value) is _Undecoded:
            return f"not utf-8: column {name} is {bytes(value)[:RAW_BYTES]!r}"
    return ""


class Query:
    """Queries for rows after a key, in order.

    The key is the `order` column; if that is not the row's own number, the number too, which tells rows of equal
    `order` apart.

    Args:
        table: The table.
        order: The column.
        numbered: Whether rows have a number of their own.
        columns: The columns to read.
    """

    def __init__(self, table: str, order: str, numbered: bool, columns: Iterable[str]) -> None:
        keys = [order] if order == _ROWID or not numbered else [order, _ROWID]
        self.size = len(keys)
        self.columns = tuple(columns)
        key = ", ".join(_ROWID if name == _ROWID else _quoted(name) for name in keys)
        what = f"SELECT {', '.join((key, *map(_quoted, self.columns)))} FROM {_quoted(table)}"
        self.first = f"{what} ORDER BY {key} LIMIT ?"
        self.rest = f"{what} WHERE ({key}) > ({', '.join('?' * len(keys))}) ORDER BY {key} LIMIT ?"
        descending = ", ".join(f"{name} DESC" for name in key.split(", "))
        self.last = f"SELECT {key} FROM {_quoted(table)} ORDER BY {descending} LIMIT 1"


class RowReader(Reader):
    """Rows of one table. A position is the key of a row."""

    def __init__(
        self, source: SqliteSource, database: sqlite3.Connection, query: Query, convert: Convert, after: Key | None
    ) -> None:
        self._source = source
        self._database = database
        self._query = query
        self._convert = convert
        self._after = after
        self._has_undecoded = False

    async def read(self, limit: int) -> Batch | None:
        while not (rows := self._fetch(min(limit, _MOST))):
            if not self._source.options.poll_s:
                return None
            await asyncio.sleep(self._source.options.poll_s)
        size = self._query.size
        values: list[Any] = []
        positions: list[Key] = []
        bad: list[Rejected] = []
        for row in rows:
            key, fields = row[:size], row[size:]
            try:
                if self._has_undecoded and (reason := _reason(fields, self._query.columns)):
                    raise ValueError(reason)
                values.append(self._convert(fields))
            except ValueError as error:
                bad.append(Rejected(key, str(error), repr(fields)[:RAW_BYTES]))
            else:
                positions.append(key)
        self._after = rows[-1][:size]
        return Batch(values, positions, bad, fresh=True)

    def _fetch(self, limit: int) -> list[Row]:
        try:
            rows = self._decoded_rows_after(limit)
        except sqlite3.Error as error:
            raise self._source.failed("read", error) from error
        if rows and not _ORDERED.issuperset(type(row[0]) for row in rows):
            wrong = next(row[0] for row in rows if type(row[0]) not in _ORDERED)
            order = self._source.options.order
            raise self._source.error(
                f"column {order} is {wrong!r} in a row", "Order by a column of numbers or UTF-8 text that has no NULL."
            )
        return rows

    def _decoded_rows_after(self, limit: int) -> list[Row]:
        self._has_undecoded = False
        try:
            return self._rows_after(limit)
        except sqlite3.OperationalError as error:
            if "UTF-8" not in str(error):
                raise
        # Only now: a function for each text would cost all rows of all databases what few of a few ask for.
        self._has_undecoded, self._database.text_factory = True, _text
        try:
            return self._rows_after(limit)
        finally:
            self._database.text_factory = str

    def _rows_after(self, limit: int) -> list[Row]:
        if self._after is None:
            return self._database.execute(self._query.first, (limit,)).fetchall()
        return self._database.execute(self._query.rest, (*self._after, limit)).fetchall()

    def describe(self, position: Key) -> str:
        options = self._source.options
        return f"{options.path} table {self._source.table} {options.order} {position[0]}"

    async def aclose(self) -> None:
        self._database.close()


class SqliteSource(Source):
    """Rows as `dict` by column, records, tuples or values of the declared type."""

    name: ClassVar[str] = "sqlite"
    Options: ClassVar[Any] = SqliteSourceOptions
    options: SqliteSourceOptions

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        self.table = options.table or context.name
        if not options.path:
            raise empty_path(f"source.{context.name}.path")
        self._path = Path(options.path).expanduser()
        if not can_be_made(context.type):
            hint = "Declare a dict, tuple, NamedTuple, dataclass, TypedDict or msgspec.Struct, or nothing."
            raise wrong_type(context, "sqlite", "rows", hint)

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=True, bounded=not self.options.poll_s)

    def partitions(self) -> tuple[str, ...]:
        self._connect().close()
        return ("",)

    def reads(self, place: str) -> bool:
        return place == table_place(self._path, self.table)

    def fingerprint(self) -> str:
        database = self._connect()
        try:
            query, _ = self._query(database)
            return msgspec.json.encode(
                [self._path.name, self.table, self.options.order, _count(database, self.table), _last(database, query)]
            ).decode()
        except sqlite3.Error as error:
            raise self.failed("read", error) from error
        finally:
            database.close()

    async def open(self, partition: str, position: Any = None) -> Reader:
        database = self._connect()
        try:
            query, columns = self._query(database)
            after = None if position is None else self._checked(position, query, _last(database, query))
            plan = " ".join(row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {query.first}", (1,)))
            if "TEMP B-TREE" in plan:
                raise self.error(
                    f"table {self.table} has no index on {self.options.order}, and would be sorted again and again",
                    f"Make one: CREATE INDEX {self.table}_order ON {_quoted(self.table)} "
                    f"({_quoted(self.options.order)})",
                )
            return RowReader(self, database, query, row_converter(self.context.type, columns), after)
        except sqlite3.Error as error:
            database.close()
            raise self.failed("read", error) from error
        except BaseException:
            database.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        if not self._path.is_file():
            raise self.error("there is no such file", "Give the path of a database; this source makes none.")
        try:
            return sqlite3.connect(
                f"{self._path.resolve().as_uri()}?mode=ro",
                uri=True,
                timeout=self.options.busy_timeout_s,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise self.failed("opened", error) from error

    def _query(self, database: sqlite3.Connection) -> tuple[Query, tuple[str, ...]]:
        """Return the query, and the names of its columns."""
        known = [row[1] for row in database.execute(f"PRAGMA table_info({_quoted(self.table)})")]
        if not known:
            names = [
                row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            ]
            raise self.error(f"there is no table {self.table}", suggestion(self.table, names))
        for name in (*self.options.columns, self.options.order):
            if name not in known and name != _ROWID:
                raise self.error(f"table {self.table} has no column {name}", suggestion(name, known))
        columns = self.options.columns or tuple(known)
        try:
            (row,) = database.execute(
                "SELECT type, sql FROM sqlite_master WHERE name = ? COLLATE NOCASE", (self.table,)
            ).fetchall()
            database.execute(f"SELECT {_ROWID} FROM {_quoted(self.table)} LIMIT 0")
            numbered = row[0] == "table"
        except sqlite3.OperationalError:
            numbered = False
        if not numbered and self.options.order == _ROWID:
            raise self.error(
                f"the rows of {self.table} have no number of their own", 'Say what they are ordered by: order = "…".'
            )
        return Query(self.table, self.options.order, numbered, columns), columns

    def _checked(self, position: Any, query: Query, last: Key | None) -> Key:
        """Check that the table can be read on from a position; return its key."""
        key = tuple(position) if isinstance(position, tuple | list) else ()
        if len(key) != query.size or not _ORDERED.issuperset(map(type, key)):
            raise self.error(f"{position!r} is no position in table {self.table}", "Take it from the reader.")
        if last is None or (isinstance(last[0], str) is isinstance(key[0], str) and last < key):
            held = f"ends at {self.options.order} {last[0]}" if last else "is empty"
            raise self.error(
                f"table {self.table} {held}, and has been read up to {key[0]}",
                "Put the old table back; or start afresh, without the job's state and output. A table may only grow.",
            )
        return key

    def error(self, what: str, hint: str) -> SourceError:
        """Return the error of the database or its table."""
        name = self.context.name
        return SourceError(f"source {name!r}: {self._path}: {what}", hint=hint, source=name, position=str(self._path))

    def failed(self, done: str, error: sqlite3.Error) -> SourceError:
        """Return the error of a failed SQLite call."""
        code: str = getattr(error, "sqlite_errorname", "")
        hint = next((hint for name, hint in _HINTS.items() if code.startswith(name)), "Is the file well?")
        return self.error(f"cannot be {done}: {error} ({code})" if code else f"cannot be {done}: {error}", hint)


def _count(database: sqlite3.Connection, table: str) -> int:
    return int(database.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0])


def _last(database: sqlite3.Connection, query: Query) -> Key | None:
    last: Key | None = database.execute(query.last).fetchone()
    return last


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@hookimpl
def flamestream_source() -> type[Source]:
    return SqliteSource
