"""Sink `postgres`: a table, one row an output, in order.

A batch and its time are one transaction, which does nothing unless the time that is there is the one this sink has
written last, and this sink the one that opened the table last. When the server goes away in the midst of a commit, what
it holds when it is back says whether the batch is there.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec
import psycopg
from psycopg import errors, sql

from flamecore.abc.hooks import hookimpl
from flamecore.abc.sink import Guarantee, Mode, Sink, goes_on, taken_over, would_replace
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError, TimeRegressionError
from flamecore.model.clock import global_time
from flamecore.model.meta import MIN_TIME
from flamecore.toolkit.records.plain import Unencodable
from flamestream_postgres.columns import Column, Rows

POSITIONS: Final = "flamestream_position"
"""The table that says, for each table written by a sink, up to which time it goes. It is in the same schema."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_PAUSE_S: Final = 0.1
_OPENING: Final = 7_305_808_868  # an advisory lock: one sink at a time makes tables


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the sink.

    Attributes:
        dsn: Address of the database, as libpq has it: `postgresql://USER@HOST/DATABASE` or `host=… dbname=…`. Missing
            parts are taken from PGHOST, PGUSER and so on.
        password: Apart, so that it is never shown. `${NAME}` takes it from the environment.
        schema: The schema of the table; the first of the user's search path by default.
        table: The table; the sink's name by default. Letters, digits and underscores.
        mode: Fate of a table that is there: `replace` its rows (no other table is touched), `append` to them,
            or `resume` the run that wrote them. A job that keeps state resumes its own table, whatever this says.
        connect_timeout_s: How long the first connection may take.
        lock_timeout_s: How long to wait, in seconds, for others that have locked the table.
        reconnect_timeout_s: How long the server may be away, once the table is open.
    """

    dsn: str = ""
    password: str = ""
    schema: str = ""
    table: str = ""
    mode: Mode = "replace"
    connect_timeout_s: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 5
    lock_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0
    reconnect_timeout_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 30.0


class Postgres(Sink):
    """Rows of a table, with a column `seq` for the order of delivery.

    The other columns are those of `flamestream_postgres.columns`.
    """

    name: ClassVar[str] = "postgres"
    Options: ClassVar[Any] = Options
    options: Options

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options or Options(), context)
        self._name = self.options.table or context.name
        for key, name in (("table", self._name), ("schema", self.options.schema or "public")):
            if not _NAME.fullmatch(name) or name == POSITIONS:
                path = f"sink.{context.name}.{key}"
                hint = f'Set {key} = "…" under [sink.{context.name}]: letters, digits and underscores, at most 63.'
                raise ConfigError(f"{path}: {name!r} cannot be the name of a {key}", hint=hint, path=path)
        self._rows = Rows(context.type)
        if any(name == "seq" for name, _ in self._rows.columns):
            raise ConfigError(
                f"sink {context.name!r}: column 'seq' of the payloads has the name of the sink's own",
                hint="Give the field another name, or map the payloads to records that have one before the sink: "
                "seq is the order of delivery.",
                path=f"sink.{context.name}",
            )
        self._table = self._identifier(self._name)
        self._positions = self._identifier(POSITIONS)
        columns = sql.SQL(", ").join(sql.Identifier(name) for name, _ in self._rows.columns)
        self._copy = sql.SQL("COPY {} ({}) FROM STDIN").format(self._table, columns)
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._owner = secrets.token_hex(8)
        self._time = MIN_TIME
        self._turn = asyncio.Lock()

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    async def replaces(self) -> bool:
        if self.options.mode != "replace":
            return False
        try:
            async with await self._connect() as connection, connection.transaction():
                columns = await self._columns(connection)
                if not columns or await self._is_empty(connection):
                    return False
                # A table without a position is somebody else's, and there may be no table of positions.
                place = self._positions.as_string(connection)
                (there,) = await self._one(connection, sql.SQL("SELECT to_regclass(%s)"), place)
                query = sql.SQL("SELECT fingerprint FROM {} WHERE sink = %s").format(self._positions)
                held = await self._one(connection, query, self._name) if there else None
        except psycopg.Error as error:
            raise self._failed("opened", error) from error
        return would_replace(self.context, self.options.mode, held[0] if held else None, empty=False)

    async def open(self) -> int:
        try:
            connection = self._connection = await self._connect()
            async with connection.transaction():
                self._time = await self._prepare(connection)
        except psycopg.Error as error:
            await self.aclose()
            raise self._failed("opened", error) from error
        except BaseException:
            await self.aclose()
            raise
        return self._time

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        options = self.options
        password = {"password": options.password} if options.password else {}
        connection = await psycopg.AsyncConnection.connect(
            options.dsn,
            autocommit=True,
            connect_timeout=options.connect_timeout_s,
            application_name=f"flamestream sink {self.context.name}"[:63],
            **password,
        )
        await connection.execute(f"SET lock_timeout = {int(options.lock_timeout_s * 1000)}")
        await connection.execute("SET synchronous_commit = on")
        await connection.execute("SET TIME ZONE 'UTC'")
        return connection

    async def _prepare(self, connection: psycopg.AsyncConnection[Any]) -> int:
        """Prepare the table, make this object its owner; return the time it goes up to."""
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_OPENING,))
        await connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {}"
                " (sink text PRIMARY KEY, time bigint NOT NULL, fingerprint text NOT NULL, owner text NOT NULL)"
            ).format(self._positions)
        )
        columns = await self._columns(connection)
        empty = not columns or await self._is_empty(connection)
        query = sql.SQL("SELECT time, fingerprint FROM {} WHERE sink = %s FOR UPDATE").format(self._positions)
        time, held = (columns and await self._one(connection, query, self._name)) or (MIN_TIME, None)
        on = goes_on(self.context, self.options.mode, held, f"table {self._name}", empty=empty)
        await self._shape(connection, columns, afresh=not on and self.options.mode == "replace")
        reached = int(time) if on else MIN_TIME
        await connection.execute(
            sql.SQL(
                "INSERT INTO {} VALUES (%s, %s, %s, %s) ON CONFLICT (sink) DO UPDATE"
                " SET time = excluded.time, fingerprint = excluded.fingerprint, owner = excluded.owner"
            ).format(self._positions),
            (self._name, reached, self.context.fingerprint, self._owner),
        )
        return reached

    async def _shape(self, connection: psycopg.AsyncConnection[Any], columns: list[Column], *, afresh: bool) -> None:
        """Create or check the table, and empty it if it is begun afresh."""
        expected = [("seq", "bigint"), *self._rows.columns]
        if columns and not afresh:
            there, wanted = ([name for name, _ in listed] for listed in (columns, expected))
            if there != wanted:
                raise self._error(
                    f"table {self._name} has the columns {', '.join(there)}, and {', '.join(wanted)} are to be written",
                    'Write to another table, or start afresh with mode = "replace".',
                )
            return
        if columns == expected:
            await connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(self._table))
            return
        if columns:
            await connection.execute(sql.SQL("DROP TABLE {}").format(self._table))
        kinds = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in self._rows.columns]
        await connection.execute(
            sql.SQL("CREATE TABLE {} (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {})").format(
                self._table, sql.SQL(", ").join(kinds)
            )
        )

    async def _columns(self, connection: psycopg.AsyncConnection[Any]) -> list[Column]:
        found = await connection.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (self._table.as_string(connection),),
        )
        return list(await found.fetchall())

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        async with self._turn:
            if time < self._time:
                raise TimeRegressionError(
                    f"sink {self.context.name!r}: a batch of time {global_time(time)} "
                    f"after one of time {global_time(self._time)}",
                    time=time,
                    limit=self._time,
                )
            try:
                rows = self._rows.of(payloads)
                await self._commit(time, lambda cursor: self._insert(cursor, rows))
            except (Unencodable, psycopg.DataError, UnicodeEncodeError) as error:
                hint = "Map the payload to what the column takes before the sink; see its type with \\d in psql."
                raise self._error(f"table {self._name}: {_first_line(error)}", hint) from error

    async def _insert(self, cursor: psycopg.AsyncCursor[Any], rows: Any) -> None:
        async with cursor.copy(self._copy) as copy:
            for row in rows:
                await copy.write_row(row)

    async def sync(self, time: int) -> None:
        async with self._turn:
            if time > self._time:
                await self._commit(time, None)

    async def _commit(self, time: int, insert: Callable[[psycopg.AsyncCursor[Any]], Awaitable[None]] | None) -> None:
        """Store a time, and what belongs to it, in one transaction.

        Try again if the server goes away meanwhile.
        """
        assert self._connection is not None, "write before open"
        until = asyncio.get_running_loop().time() + self.options.reconnect_timeout_s
        while True:
            try:
                if self._connection.broken:
                    self._connection = await self._connect()
                    if await self._stored_time() == time and time != self._time:
                        break  # it went away after it had committed
                async with self._connection.transaction(), self._connection.cursor() as cursor:
                    await self._note(cursor, time)
                    if insert is not None:
                        await insert(cursor)
                break
            except psycopg.OperationalError as error:
                lost = self._connection.broken or self._connection.closed
                if not lost or asyncio.get_running_loop().time() > until:
                    raise self._failed("written to", error) from error
                await asyncio.sleep(_PAUSE_S)
            except psycopg.DataError:
                raise
            except psycopg.Error as error:
                raise self._failed("written to", error) from error
        self._time = time

    async def _note(self, cursor: psycopg.AsyncCursor[Any], time: int) -> None:
        """Store the time with the batch, unless another run has written since."""
        update = sql.SQL("UPDATE {} SET time = %s WHERE sink = %s AND owner = %s AND time = %s").format(self._positions)
        await cursor.execute(update, (time, self._name, self._owner, self._time))
        if cursor.rowcount != 1:
            raise taken_over(self.context, f"table {self._name}")

    async def _stored_time(self) -> int:
        """Up to which time the table goes; `taken_over` is raised if it is another's.

        The server may be about to commit what was sent over a connection that is broken: that is waited for.
        """
        assert self._connection is not None
        query = sql.SQL("SELECT time FROM {} WHERE sink = %s AND owner = %s FOR UPDATE").format(self._positions)
        found = await self._one(self._connection, query, self._name, self._owner)
        if found is None:
            raise taken_over(self.context, f"table {self._name}")
        return int(found[0])

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _is_empty(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        return not await self._one(connection, sql.SQL("SELECT 1 FROM {} LIMIT 1").format(self._table))

    @staticmethod
    async def _one(connection: psycopg.AsyncConnection[Any], query: sql.Composable, *arguments: Any) -> Any:
        return await (await connection.execute(query, arguments)).fetchone()

    def _identifier(self, name: str) -> sql.Identifier:
        return sql.Identifier(self.options.schema, name) if self.options.schema else sql.Identifier(name)

    def _error(self, what: str, hint: str) -> SinkError:
        return SinkError(f"sink {self.context.name!r}: {what}", hint=hint, sink=self.context.name)

    def _failed(self, done: str, error: psycopg.Error) -> SinkError:
        return self._error(f"table {self._name} cannot be {done}: {_first_line(error)}", _hint(error))


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _hint(error: psycopg.Error) -> str:
    if isinstance(error, errors.LockNotAvailable):
        return "Somebody holds a lock on it: see pg_stat_activity, end that, or raise lock_timeout_s."
    if isinstance(error, errors.InsufficientPrivilege):
        return "Let this user write to it, and create tables in its schema (GRANT CREATE ON SCHEMA …)."
    if isinstance(error, errors.DependentObjectsStillExist):
        return "It has other columns now, and something depends on it: drop that, or write to another table."
    if isinstance(error, errors.DiskFull):
        return "Make room on the server's disk; the rows of earlier batches are safe."
    if isinstance(error, psycopg.OperationalError):
        return "Is the server running, and are dsn and password right? What was written before is safe."
    return "What was written before is safe."


@hookimpl
def flamestream_sink() -> type[Sink]:
    return Postgres
