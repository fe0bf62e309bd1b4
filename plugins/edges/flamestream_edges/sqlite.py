"""Sink `sqlite`: a table in an SQLite file, one row a payload, in order, or one row a key.

A batch and its time are one transaction, which makes it exactly-once; the transaction does nothing unless the stored
time is the one this sink has written last, and this sink opened the table last. Calls go to SQLite directly and not
through a thread: a batch of some thousand small rows takes milliseconds, and the switch to a thread would cost every
small batch more than the write itself.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, ClassVar, Final

import msgspec

from flamecore.abc.hooks import hookimpl
from flamecore.abc.paths import FilePath
from flamecore.abc.sink import Guarantee, Mode, Sink, check_time, goes_on, taken_over, would_replace
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError
from flamecore.model.failure import shorten_repr
from flamecore.model.meta import MIN_TIME
from flamecore.suggest import suggestion
from flamecore.toolkit.places import place_of
from flamecore.toolkit.records.plain import Unencodable
from flamecore.toolkit.records.shapes import scalar_kinds
from flamecore.toolkit.records.tables import Table
from flamestream_edges.durable import force, force_folder
from flamestream_edges.files import output_file, unwritable

_POSITIONS: Final = "flamestream_position"
"""Table with the time up to which each table of a sink goes."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HINTS: Final = {
    "SQLITE_NOTADB": "It is another kind of file; give another path.",
    "SQLITE_CORRUPT": "Look at it with: sqlite3 FILE 'PRAGMA integrity_check'",
    "SQLITE_BUSY": "Another program holds it; end that, or raise busy_timeout_s.",
    "SQLITE_LOCKED": "Another program holds it; end that, or raise busy_timeout_s.",
    "SQLITE_FULL": "Make room on the disk; the rows of earlier batches are safe.",
    "SQLITE_READONLY": "Make the file and its directory writable for this user.",
    "SQLITE_CANTOPEN": "Its directory must be there and be writable: mkdir -p DIRECTORY",
    "SQLITE_CONSTRAINT_NOTNULL": "Leave out payloads that have nothing in a column of key, before the sink.",
    "SQLITE_CONSTRAINT_UNIQUE": "Its writer gave it a key: give the sink the same, or write to another table.",
    "SQLITE_IOERR_SHMSIZE": "Make room on the disk: the index of the write-ahead log has none.",
    "SQLITE_IOERR": "Is the disk well, and is the file still there?",
}


def table_place(path: Path, table: str) -> str:
    """Return the place of a table, for the check that no job reads its own output."""
    return f"{place_of(path)}#{table.lower()}"


class SqliteOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the sink.

    Attributes:
        path: The database file; created if it does not exist.
        table: The table; the sink's name by default. Letters, digits and underscores.
        mode: Treatment of a table that is there: `replace` it (no other table is touched), `append` to it, or `resume`
            the run that wrote it. A job that keeps state resumes its own table, whatever this says.
        key: Columns that tell rows apart: a payload takes the place of the one before it with the same values there.
            By default every payload has a row.
        busy_timeout_s: Maximum wait, in seconds, for another program that has locked the database.
    """

    path: FilePath
    table: str = ""
    mode: Mode = "replace"
    key: tuple[str, ...] = ()
    busy_timeout_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0


class Sqlite(Sink):
    """Rows of an SQLite table: `seq`, the order of delivery, and the payload's cells.

    The payload's columns are as in `flamecore.toolkit.records.tables`.
    """

    name: ClassVar[str] = "sqlite"
    Options: ClassVar[Any] = SqliteOptions

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        self._path = output_file(context, options.path)
        self._name = options.table or context.name
        if not _NAME.fullmatch(self._name) or self._name.lower().startswith(("sqlite_", _POSITIONS)):
            path = f"sink.{context.name}.table"
            raise ConfigError(
                f"{path}: {self._name!r} cannot be the name of a table",
                hint=f'Set table = "…" under [sink.{context.name}]: letters, digits and underscores.',
                path=path,
            )
        self._table = Table.of(context.type)
        self._check_names()
        self._database: sqlite3.Connection | None = None
        self._time = MIN_TIME
        self._owner = token_hex(8)
        self._log = False  # whether there is a write-ahead log, which has to be forced to the disk
        names = ", ".join(_quoted(column.name) for column in self._table.columns)
        places = ", ".join("?" * len(self._table.columns))
        if unknown := [name for name in options.key if name not in [column.name for column in self._table.columns]]:
            path = f"sink.{context.name}.key"
            raise ConfigError(
                f"{path}: the payloads have no column {unknown[0]}",
                hint=suggestion(unknown[0], [column.name for column in self._table.columns]),
                path=path,
            )
        # The row that is replaced goes, and the new one has the greatest number.
        verb = "INSERT OR REPLACE" if options.key else "INSERT"
        self._insert = f"{verb} INTO {_quoted(self._name)} ({names}) VALUES ({places})"

    def _check_names(self) -> None:
        """Refuse columns that a table cannot have together.

        Raises:
            ConfigError: There are two of one name.
        """
        found = {b"seq": "the sink's own, the order of delivery"}
        for column in self._table.columns:
            name = column.name.encode().lower()  # SQLite too ignores the case of ASCII letters, and of no others
            if name in found:
                what = f"column {column.name!r} of the payloads has the name of {found[name]}"
                raise ConfigError(
                    f"sink {self.context.name!r}: {what}",
                    hint="Give the field another name, or map the payloads to records that have one before the sink.",
                    path=f"sink.{self.context.name}",
                )
            found[name] = f"column {column.name!r}, since SQLite ignores case"

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    def writes(self) -> Sequence[str]:
        return (table_place(self._path, self._name),)

    def rehearse(self) -> None:
        if problem := unwritable(self._path):
            raise self._error(*problem)

    async def replaces(self) -> bool:
        if not self._path.is_file():
            return False
        try:
            with closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)) as database:
                database.execute(f"PRAGMA busy_timeout = {int(self.options.busy_timeout_s * 1000)}")
                tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
                if self._name not in tables:
                    return False
                empty = not database.execute(f"SELECT 1 FROM {_quoted(self._name)} LIMIT 1").fetchone()
                query = f"SELECT fingerprint FROM {_POSITIONS} WHERE sink = ?"
                known = database.execute(query, (self._name,)).fetchone() if _POSITIONS in tables else None
        except sqlite3.Error as error:
            raise self._failed("read", error) from error
        return would_replace(self.context, self.options.mode, known[0] if known else None, empty=empty)

    async def open(self) -> int:
        if self._path.is_dir():
            raise self._error("is a folder, and a file is to be written", "Give the path of a file.")
        try:
            # Calls come one after another, but an engine may make them from another thread than this one.
            self._database = database = sqlite3.connect(
                self._path, timeout=self.options.busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            (journal,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
            self._log = journal == "wal"
            # With the log the file is consistent after any crash, and `sync` makes it durable. A file system that can
            # have no such log (a network's) is synchronous, which is slow.
            database.execute(f"PRAGMA synchronous = {'NORMAL' if self._log else 'FULL'}")
            database.execute("BEGIN IMMEDIATE")
            database.execute(
                f"CREATE TABLE IF NOT EXISTS {_POSITIONS}"
                " (sink TEXT PRIMARY KEY, time INTEGER, fingerprint TEXT, owner TEXT)"
            )
            self._time = self._prepare(database)
            position = (self._name, self._time, self.context.fingerprint, self._owner)
            database.execute(f"INSERT OR REPLACE INTO {_POSITIONS} VALUES (?, ?, ?, ?)", position)
            database.execute("COMMIT")
        except sqlite3.Error as error:
            await self.aclose()
            raise self._failed("opened", error) from error
        except BaseException:
            await self.aclose()
            raise
        return self._time

    def _prepare(self, database: sqlite3.Connection) -> int:
        """Prepare the table for its mode; return the time it goes up to."""
        name, table, mode = self._name, _quoted(self._name), self.options.mode
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        query = f"SELECT time, fingerprint FROM {_POSITIONS} WHERE sink = ?"
        time, held = (columns and database.execute(query, (name,)).fetchone()) or (MIN_TIME, None)
        empty = not columns or not database.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()
        on = goes_on(self.context, mode, held, f"{self._path}: table {name}", empty=empty)
        if columns and not on and mode == "replace":
            database.execute(f"DROP TABLE {table}")
            columns = []
        if columns:
            self._check_columns(database, columns)
        else:
            key = self.options.key
            kinds = [
                f"{_quoted(column.name)} {_affinity(column.type)}{' NOT NULL' if column.name in key else ''}"
                for column in self._table.columns
            ]
            database.execute(f"CREATE TABLE {table} (seq INTEGER PRIMARY KEY, {', '.join(kinds)}{self._constraint()}")
        return int(time) if on else MIN_TIME

    def _check_columns(self, database: sqlite3.Connection, columns: Sequence[str]) -> None:
        """Check that the table, which has these columns, is as this sink would create it.

        Raises:
            SinkError: It is not.
        """
        name, key = self._name, self.options.key
        expected = ["seq", *(column.name for column in self._table.columns)]
        if list(columns) != expected:
            raise self._error(
                f"table {name} has the columns {', '.join(columns)}, and {', '.join(expected)} are to be written",
                'Write to another table, or start afresh with mode = "replace".',
            )
        query = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?"
        (sql,) = database.execute(query, (name,)).fetchone() or ("",)
        if key and not sql.endswith(self._constraint()):
            hint = f"Give [sink.{self.context.name}] the key that it had, or write to another table."
            raise self._error(f"table {name} was written not with key {', '.join(key)}", hint)

    def _constraint(self) -> str:
        """Return the end of the table's declaration."""
        return f", UNIQUE ({', '.join(map(_quoted, self.options.key))}))" if self.options.key else ")"

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        database = self._database
        assert database is not None, "write before open"
        check_time(self.context, time, self._time)
        try:
            database.execute("BEGIN IMMEDIATE")
            try:
                self._note(database, time)
                self._insert_rows(database, payloads)
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
        except (Unencodable, OverflowError, UnicodeEncodeError) as error:
            why = self._too_large(payloads) if isinstance(error, OverflowError) else ""
            hint = "A cell takes text, bytes and numbers of 64 bits; map the payload before the sink."
            raise self._error(f"table {self._name}: {why or error}", hint) from error
        except sqlite3.Error as error:
            raise self._failed("written to", error) from error
        self._time = time

    def _too_large(self, payloads: Sequence[Any]) -> str:
        """Return which number does not fit its cell, which the error of Python does not say; "" if all do."""
        for row in self._table.rows(payloads, trusting=False):
            for column, value in zip(self._table.columns, row, strict=True):
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    return f"column {column.name!r} is {shorten_repr(value)}, which does not fit 64 bits"
        return ""

    def _insert_rows(self, database: sqlite3.Connection, payloads: Sequence[Any]) -> None:
        if self._table.exact:
            database.execute("SAVEPOINT batch")
            with suppress(sqlite3.ProgrammingError, sqlite3.InterfaceError):
                database.executemany(self._insert, self._table.rows(payloads))
                return
            # A value is neither of its declared type nor a scalar. It is written as such, at the cost of a second try.
            database.execute("ROLLBACK TO batch")
        database.executemany(self._insert, self._table.rows(payloads, trusting=False))

    def _note(self, database: sqlite3.Connection, time: int) -> None:
        """Store the time, if no other object has written since."""
        noted = database.execute(
            f"UPDATE {_POSITIONS} SET time = ? WHERE sink = ? AND owner = ? AND time = ?",
            (time, self._name, self._owner, self._time),
        )
        if noted.rowcount != 1:
            raise taken_over(self.context, f"{self._path}, table {self._name}")

    async def sync(self, time: int) -> None:
        database = self._database
        assert database is not None, "sync before open"
        time = max(self._time, time)
        try:
            self._note(database, time)
            self._time = time
            if self._log:
                # SQLite keeps no locks on this file, so closing it releases none.
                file = self._path.resolve()
                await asyncio.to_thread(force, file.with_name(f"{file.name}-wal"))
                await asyncio.to_thread(force_folder, file.parent)
        except sqlite3.Error as error:
            raise self._failed("written to", error) from error
        except OSError as error:
            what = f"cannot be forced to the disk: {error.strerror or error}"
            raise self._error(what, _HINTS["SQLITE_IOERR"]) from error

    async def aclose(self) -> None:
        database, self._database = self._database, None
        if database is None:
            return
        try:
            database.close()
        except sqlite3.Error as error:
            raise self._failed("closed", error) from error

    def _error(self, what: str, hint: str) -> SinkError:
        return SinkError(f"sink {self.context.name!r}: {self._path}: {what}", hint=hint, sink=self.context.name)

    def _failed(self, done: str, error: sqlite3.Error) -> SinkError:
        code: str = getattr(error, "sqlite_errorname", "")
        hint = next((hint for name, hint in _HINTS.items() if code.startswith(name)), "Earlier batches are safe.")
        return self._error(f"cannot be {done}: {error} ({code})" if code else f"cannot be {done}: {error}", hint)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _affinity(type_: Any) -> str:
    """Return SQLite's type of a column; values keep their own in one without a type."""
    if type_ in (object, Any):
        return ""
    kinds = scalar_kinds(type_)
    if kinds is None:
        return "TEXT"
    kinds = kinds - {type(None)}
    if kinds <= {int, bool}:
        return "INTEGER"
    if kinds <= {int, float, bool}:
        return "REAL"
    if kinds == {str}:
        return "TEXT"
    return "BLOB" if kinds == {bytes} else ""


@hookimpl
def flamestream_sink() -> type[Sink]:
    return Sqlite
