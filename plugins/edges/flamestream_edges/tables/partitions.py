"""A table that workers write together, each its own outputs, exactly once.

A batch, its orders and the time of its worker are one transaction. `seq` is the order of a row; so rows of all workers,
sorted by it, are the sequence that one writer would have stored. A table with a key has one row for each key, the one
of the greatest order: whichever worker writes it, and in whatever sequence, the last one stays.

Rows of later orders than the division are cut off, and made again. To undo what they have replaced, a table with a key
has a second one, of all rows that may still be cut off, and of the last one before them.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
import time as clocks
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from flamecore.abc.sink import Division, Guarantee, PartitionedSink, Sink, check_time, goes_on, taken_over
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError
from flamecore.model.meta import MIN_TIME, encode_time
from flamestream_edges.durable import force, force_folder
from flamestream_edges.files import unwritable
from flamestream_edges.sqlite import HINTS, POSITIONS, Sqlite, quoted

_PAUSE_S: Final = (0.0002, 0.002)
_NOBODY: Final = ""
_ROWS: Final = 10_000
"""Rows of a piece of merged output."""

Made = TypeVar("Made")


class _Database:
    """The database file as one object uses it, in threads, one call at a time.

    Args:
        sink: The sink of the whole table, not open.
    """

    def __init__(self, sink: Sqlite) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._log = False

    async def call(self, done: str, work: Callable[[sqlite3.Connection], Made]) -> Made:
        """Return the result of one transaction.

        Args:
            done: Participle of the deed, for errors.
            work: Function that does it.

        Raises:
            SinkError: It fails; nothing has changed then.
        """

        def run() -> Made:
            with self._lock:
                if self._connection is None:
                    self._connection, self._log = self._sink.connect()
                    if self._log:
                        self._connection.execute("PRAGMA busy_timeout = 0")
                with self._transaction(self._connection):
                    return work(self._connection)

        try:
            # Others may hold the database for as long as their transactions take: the event loop does not wait.
            return await asyncio.to_thread(run)
        except sqlite3.Error as error:
            raise self._sink.failed(done, error) from error

    @contextmanager
    def _transaction(self, connection: sqlite3.Connection) -> Iterator[None]:
        # SQLite's own waits grow up to 100 ms, during which other workers write many times.
        until = clocks.monotonic() + self._sink.options.busy_timeout_s
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or clocks.monotonic() >= until:
                    raise
            clocks.sleep(random.uniform(*_PAUSE_S))
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    @property
    def is_open(self) -> bool:
        """Return whether there is a connection."""
        return self._connection is not None

    async def force(self) -> None:
        """Force the transactions to the disk."""
        if not self._log:
            return
        file = self._sink.path.resolve()
        try:
            await asyncio.to_thread(force, file.with_name(f"{file.name}-wal"))
            await asyncio.to_thread(force_folder, file.parent)
        except OSError as error:
            what = f"cannot be forced to the disk: {error.strerror or error}"
            raise self._sink.error(what, HINTS["SQLITE_IOERR"]) from error

    async def close(self) -> None:
        """Close the connection, after a call that is under way."""

        def close() -> None:
            with self._lock:
                connection, self._connection = self._connection, None
                if connection is not None:
                    connection.close()

        try:
            await asyncio.to_thread(close)
        except sqlite3.Error as error:
            raise self._sink.failed("closed", error) from error


class TablePartition(Sink):
    """The rows of one worker.

    Args:
        sink: The sink of the table, not open.
        worker: Number of the worker.
        grant: Owner of the partitions.
    """

    def __init__(self, sink: Sqlite, worker: int, grant: str) -> None:
        super().__init__(sink.options, sink.context)
        self._sink, self._name, self._grant = sink, _position_of(sink, worker), grant
        self._database = _Database(sink)
        self._time = MIN_TIME
        columns = [quoted(column.name) for column in sink.table.columns]
        names, places = ", ".join(("seq", *columns)), ", ".join("?" * (len(columns) + 1))
        table, versions = quoted(sink.name_of_table), quoted(sink.versions)
        self._insert = f"INSERT INTO {table} ({names}) VALUES ({places})"
        self._keep = self._insert_version = ""
        if sink.options.key:
            key = ", ".join(map(quoted, sink.options.key))
            sets = ", ".join(f"{name} = excluded.{name}" for name in ("seq", *columns))
            self._insert += f" ON CONFLICT ({key}) DO UPDATE SET {sets} WHERE excluded.seq > {table}.seq"
            self._insert_version = f"INSERT INTO {versions} ({names}) VALUES ({places})"
            same = " AND ".join(f"{quoted(name)} = ?" for name in sink.options.key)
            self._keep = f"INSERT OR IGNORE INTO {versions} SELECT {names} FROM {table} WHERE {same}"
            places_of = {column.name: place for place, column in enumerate(sink.table.columns)}
            self._key = [places_of[name] for name in sink.options.key]

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    async def open(self) -> int:
        if not self._sink.path.exists():
            what = "there is no such file, and all workers write to one database"
            raise self._sink.error(what, "Run them on one host; on several hosts they cannot share it.")

        def claimed(database: sqlite3.Connection) -> int:
            query = f"SELECT time FROM {POSITIONS} WHERE sink = ? AND owner = ?"
            found = database.execute(query, (self._name, self._grant)).fetchone()
            if found is None:
                raise taken_over(self.context, self._sink.place)
            return int(found[0])

        try:
            self._time = await self._database.call("opened", claimed)
        except BaseException:
            await self._database.close()
            raise
        return self._time

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        raise NotImplementedError("a partition keeps the orders of its outputs")

    async def write_ordered(self, time: int, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        check_time(self.context, time, self._time)

        def stored(database: sqlite3.Connection) -> None:
            self._note(database, time)
            self._store(database, orders, payloads)

        with self._sink.unencodable(payloads):
            await self._database.call("written to", stored)
        self._time = time

    def _note(self, database: sqlite3.Connection, time: int) -> None:
        """Store the time of the partition, if it has the last grant, and no other object has written since."""
        noted = database.execute(
            f"UPDATE {POSITIONS} SET time = ? WHERE sink = ? AND owner = ? AND time = ?",
            (time, self._name, self._grant, self._time),
        )
        if noted.rowcount != 1:
            raise taken_over(self.context, self._sink.place)

    def _store(self, database: sqlite3.Connection, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        table = self._sink.table
        if table.exact:
            database.execute("SAVEPOINT batch")
            with suppress(sqlite3.ProgrammingError, sqlite3.InterfaceError):
                self._insert_rows(database, orders, table.rows(payloads))
                return
            database.execute("ROLLBACK TO batch")  # see `Sqlite`
        self._insert_rows(database, orders, table.rows(payloads, trusting=False))

    def _insert_rows(
        self, database: sqlite3.Connection, orders: Sequence[bytes], payloads: Sequence[Sequence[object]]
    ) -> None:
        rows = [(order, *row) for order, row in zip(orders, payloads, strict=True)]
        if self._keep:
            keys = dict.fromkeys(tuple([row[place] for place in self._key]) for row in payloads)
            database.executemany(self._keep, keys)
            database.executemany(self._insert_version, rows)
        database.executemany(self._insert, rows)

    async def sync(self, time: int) -> None:
        await self._database.call("written to", lambda database: self._note(database, self._time))
        await self._database.force()

    async def aclose(self) -> None:
        await self._database.close()


class PartitionedTable(PartitionedSink):
    """The whole table.

    Args:
        options: Options of the sink.
        context: Context of the sink.
    """

    name: ClassVar[str] = "sqlite"

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        if options.mode == "append":
            path = f"sink.{context.name}.mode"
            raise ConfigError(
                f'{path} is "append", and a table in partitions holds the outputs of one job alone',
                hint='Use "replace" or "resume", or another table.',
                path=path,
            )
        self._sink = Sqlite(options, context)
        self._database = _Database(self._sink)
        self._owner = token_hex(8)
        self._time = MIN_TIME  # below which the output is complete

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    def continues(self, identity: str, *, continued: bool) -> None:
        super().continues(identity, continued=continued)
        self._sink.continues(identity, continued=continued)

    def writes(self) -> Sequence[str]:
        return self._sink.writes()

    def rehearse(self) -> None:
        if problem := unwritable(self._sink.path):
            raise self._sink.error(*problem)

    async def open(self) -> int:
        try:
            self._time = await self._database.call("opened", self._begin)
        except BaseException:
            await self._database.close()
            raise
        return self._time

    def _begin(self, database: sqlite3.Connection) -> int:
        """Prepare the table for its mode, and own it; return the time below which no partition lacks an output."""
        sink, name = self._sink, self._sink.name_of_table
        sink.make_positions(database)
        columns, time, held, empty = sink.found(database)
        resumed = goes_on(self.context, self.options.mode, held, sink.place, empty=empty)
        if resumed:
            sink.check_columns(database, columns, partitioned=True)
        else:
            time = MIN_TIME
            sink.drop(database)
            sink.create(database, partitioned=True)
        position = (name, time, self.context.fingerprint, self._owner)
        database.execute(f"INSERT OR REPLACE INTO {POSITIONS} VALUES (?, ?, ?, ?)", position)
        return self._reached(database, time)

    def _reached(self, database: sqlite3.Connection, floor: int) -> int:
        """Return the time below which no partition lacks an output.

        Args:
            database: The database.
            floor: Time that the whole has been told of: partitions without outputs since do not know it.

        Raises:
            SinkError: The position of a partition is missing.
        """
        query = f"SELECT sink, time FROM {POSITIONS} WHERE sink >= ? AND sink < ?"
        found = dict(database.execute(query, _range_of(self._sink)).fetchall())
        if missing := [name for worker in range(len(found)) if (name := _position_of(self._sink, worker)) not in found]:
            what = f"table {POSITIONS} has no row {missing[0]}, and that worker has written outputs"
            raise self._sink.error(what, "Put it back; or start afresh, without the output and the job's state.")
        return min((max(time, floor) for time in found.values()), default=floor)

    def _noted(self, database: sqlite3.Connection) -> int:
        """Return the time that the whole has been told of.

        Raises:
            SinkError: Another object has taken over.
        """
        query = f"SELECT time FROM {POSITIONS} WHERE sink = ? AND owner = ?"
        found = database.execute(query, (self._sink.name_of_table, self._owner)).fetchone()
        if found is None:
            raise taken_over(self.context, self._sink.place)
        return int(found[0])

    def _note(self, database: sqlite3.Connection, time: int) -> int:
        time = max(self._noted(database), time)
        database.execute(f"UPDATE {POSITIONS} SET time = ? WHERE sink = ?", (time, self._sink.name_of_table))
        return time

    async def divide(self, workers: int) -> Division:
        grant = token_hex(8)

        def divided(database: sqlite3.Connection) -> int:
            time = self._reached(database, self._noted(database))
            self._cut(database, time)
            self._give(database, time, workers, grant)
            return self._note(database, time)

        self._time = await self._database.call("divided", divided)
        return Division(self._time, grant)

    def _give(self, database: sqlite3.Connection, time: int, workers: int, owner: str) -> None:
        """Make an owner the only one that writes rows."""
        database.execute(f"DELETE FROM {POSITIONS} WHERE sink >= ? AND sink < ?", _range_of(self._sink))
        positions = [
            (_position_of(self._sink, worker), time, self.context.fingerprint, owner) for worker in range(workers)
        ]
        database.executemany(f"INSERT INTO {POSITIONS} VALUES (?, ?, ?, ?)", positions)

    def _cut(self, database: sqlite3.Connection, time: int) -> None:
        """Remove the rows of a time and later, and restore those that they have replaced."""
        table, versions, limit = quoted(self._sink.name_of_table), quoted(self._sink.versions), encode_time(time)
        database.execute(f"DELETE FROM {table} WHERE seq >= ?", (limit,))
        if self.options.key:
            database.execute(f"DELETE FROM {versions} WHERE seq >= ?", (limit,))
            # The newest first: older ones find their key taken.
            database.execute(f"INSERT OR IGNORE INTO {table} SELECT * FROM {versions} ORDER BY seq DESC")
            self._trim(database, time)

    def _trim(self, database: sqlite3.Connection, time: int) -> None:
        """Forget versions that no cut can restore: none is below this time."""
        table, versions, limit = quoted(self._sink.name_of_table), quoted(self._sink.versions), encode_time(time)
        same = " AND ".join(f"other.{quoted(name)} = {versions}.{quoted(name)}" for name in self.options.key)
        later = f"EXISTS (SELECT 1 FROM {versions} AS other WHERE {same} AND other.seq > {versions}.seq"
        later += " AND other.seq < :limit)"
        final = f"EXISTS (SELECT 1 FROM {table} AS other WHERE {same} AND other.seq < :limit)"
        database.execute(f"DELETE FROM {versions} WHERE seq < :limit AND ({later} OR {final})", {"limit": limit})

    def partition(self, worker: int, grant: str) -> Sink:
        return TablePartition(self._sink, worker, grant)

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        self._time = await self._database.call("written to", lambda database: self._note(database, time))

    async def sync(self, time: int) -> None:
        def noted(database: sqlite3.Connection) -> int:
            until = self._note(database, time)
            if self.options.key:
                self._trim(database, until)
            return until

        self._time = await self._database.call("written to", noted)
        await self._database.force()

    async def aclose(self) -> None:
        owner, self._owner = self._owner, _NOBODY
        if owner == _NOBODY:
            return

        def closed(database: sqlite3.Connection) -> None:
            query = f"UPDATE {POSITIONS} SET owner = ? WHERE sink = ? AND owner = ?"
            if not database.execute(query, (_NOBODY, self._sink.name_of_table, owner)).rowcount:
                return  # another run has taken over
            # What is above was not complete; the next run would make it again.
            self._cut(database, self._time)
            query = f"SELECT count(*) FROM {POSITIONS} WHERE sink >= ? AND sink < ?"
            (workers,) = database.execute(query, _range_of(self._sink)).fetchone()
            self._give(database, self._time, workers, _NOBODY)

        try:
            if self._database.is_open:
                await self._database.call("closed", closed)
                await self._database.force()
        finally:
            await self._database.close()

    def stored(self) -> Mapping[str, Sink]:
        with self._reading():
            return {self._sink.name_of_table: self._sink}

    def merged(self) -> Iterator[bytes]:
        with self._reading() as database:
            name, names = self._sink.name_of_table, [column.name for column in self._sink.table.columns]
            query = f"SELECT time FROM {POSITIONS} WHERE sink = ?"
            (time,) = database.execute(query, (name,)).fetchone() or (MIN_TIME,)
            columns = ", ".join(map(quoted, names))
            rows = f"SELECT {columns} FROM {quoted(name)} WHERE seq < :limit ORDER BY seq, rowid"
            if key := ", ".join(map(quoted, self.options.key)):
                # Bare columns beside max() are those of its row.
                both = f"SELECT * FROM {quoted(name)} UNION SELECT * FROM {quoted(self._sink.versions)}"
                last = f"SELECT max(seq) AS seq, {columns} FROM ({both}) WHERE seq < :limit GROUP BY {key}"
                rows = f"SELECT {columns} FROM ({last}) ORDER BY seq"
            found = database.execute(rows, {"limit": encode_time(time)})
            while some := found.fetchmany(_ROWS):
                yield msgspec.json.Encoder().encode_lines([dict(zip(names, row, strict=True)) for row in some])

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Read the table as it is now.

        Raises:
            SinkError: It cannot be read, or is not there.
        """
        database = None
        try:
            place = f"{self._sink.path.resolve().as_uri()}?mode=ro"
            database = sqlite3.connect(place, uri=True, timeout=self.options.busy_timeout_s, isolation_level=None)
            database.execute("BEGIN")
            columns, *_ = self._sink.found(database)
            if not columns:
                raise self._sink.error(f"there is no table {self._sink.name_of_table}", "A job makes it when it runs.")
            self._sink.check_columns(database, columns, partitioned=True)
            yield database
        except sqlite3.Error as error:
            raise self._sink.failed("read", error) from error
        finally:
            if database is not None:
                database.close()


def _position_of(sink: Sqlite, worker: int) -> str:
    """Return the name of the position of a worker's partition; no table has such a name."""
    return f"{sink.name_of_table}/{worker}"


def _range_of(sink: Sqlite) -> tuple[str, str]:
    """Return the ends of the names of all partitions."""
    return f"{sink.name_of_table}/", f"{sink.name_of_table}0"  # 0 is next to the slash
