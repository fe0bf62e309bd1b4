"""Source `spark`: rows of files, tables or a query of Spark, in a stable order.

Spark reads in parallel, and executors write what they have into a spool, in files that a front takes in their order as
they come. So the front has one order, whatever the number of cores or of files, and no row passes the driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Final

import msgspec
from xxhash import xxh3_64_hexdigest

from flamecore.abc.hooks import hookimpl
from flamecore.abc.paths import FilePath
from flamecore.abc.source import EdgeContext, Reader, Source, SourceCapabilities
from flamecore.errors import ConfigError, FlameError, SourceError
from flamecore.toolkit.places import covers, is_url, within
from flamestream_spark import register
from flamestream_spark.queries import Query
from flamestream_spark.scratch import make_temporary, remove_temporary
from flamestream_spark.session.session import (
    HOST,
    active,
    context_of,
    in_task,
    name_of,
    named_jobs,
    owned_by_thread,
    session,
    session_here,
)
from flamestream_spark.spool.feeding import Feeding, failed
from flamestream_spark.spool.ordering import ORDER_BY, Ordered, in_order, ordering_column
from flamestream_spark.spool.reader import Feeds, RowsReader
from flamestream_spark.spool.rows import check_begin
from flamestream_spark.spool.spool import Spool
from flamestream_spark.storage.hadoop import check_reach
from flamestream_spark.storage.place import local_path
from flamestream_spark.storage.places import place_of
from flamestream_spark.tables.columns import arrow_schema, column_of, fitted, taken
from flamestream_spark.tables.delta import frame_of, open_table, unknown_to
from flamestream_spark.tables.outputs import NAME
from flamestream_spark.tables.payloads import Payloads

_ROWS: Final = "{rows}"
FILE_FORMATS: Final = ("parquet", "json", "csv", "text", "orc", "xml", "binaryFile", "delta")
"""Formats whose rows have a place in a file."""

_FORMAT: Final = "parquet"


def says_what(options: Mapping[str, Any]) -> bool:
    """Return whether options of a source say what Spark reads.

    If they do not, other programs fill the spool. A format that is none of files, such as "kafka" or "jdbc", says it in
    its own options, `read`.
    """
    if any(options.get(key) for key in ("path", "table", "sql")):
        return True
    return options.get("format", _FORMAT) not in FILE_FORMATS


class SparkSourceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the source.

    One of `path`, `table`, `sql` says what is read, or `path` with a query over it; with `spool` none does: other
    programs fill it. A format that is none of files needs none of them: "kafka", "jdbc", "rate" say in `read` what it
    is.

    Attributes:
        format: Format of the files at `path`: "parquet", "json", "csv", "text", "orc", "xml", "delta", or another that
            the session knows.
        path: Files or folders, as Spark takes them.
        table: A table of the session's catalogue.
        sql: A query. With `path` it is over the rows there: they are {rows} in it.
        stream: Whether it is read as a stream: what comes later too, without end.
        spool: A folder, or a URL of an object store, that executors, and the process which reads, both reach: rows are
            kept there until a snapshot covers them. Where Spark runs on this machine a bounded source makes a temporary
            one by default.
        keep: Whether they are kept there for good.
        ends: Whether those who fill the spool end it, where it alone is given.
        schema: Names and types of the columns in files, as "id bigint, text string"; else Spark finds out, and for
            some formats reads everything for it.
        read: Options of the format, as Spark calls them: header = "true".
        columns: The columns to hand on, in order; all by default.
        order_by: Columns that order the rows, "at desc" in descending order. Without them files are read in the order
            of their paths and rows; tables and queries are in no stable order.
        master: Address of Spark, if this program has no session and is not run by spark-submit: "local[4]",
            "spark://host:port", … By default that of Spark's own configuration, else "local[*]".
        config: Configuration of that session.
    """

    format: str = _FORMAT
    path: FilePath | tuple[FilePath, ...] = ()
    table: str = ""
    sql: str = ""
    stream: bool = False
    spool: FilePath = ""
    keep: bool = False
    ends: bool = False
    schema: str = ""
    read: dict[str, str] = {}
    columns: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    master: str = ""
    config: dict[str, str] = {}


class SparkSource(Source):
    """Rows as `dict` by column, or as records, tuples or values of the declared type."""

    name: ClassVar[str] = "spark"
    Options: ClassVar[Any] = SparkSourceOptions
    options: SparkSourceOptions

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        said = [key for key in ("path", "table", "sql") if getattr(options, key)]
        where = f"source.{context.name}"
        known = says_what(msgspec.structs.asdict(options))
        if (len(said) > 1 and said != ["path", "sql"]) or not (known or options.spool):
            raise ConfigError(
                f"{where}: " + (f"{' and '.join(said)} are given" if said else "no input is given"),
                hint='Give one of path = "…", table = "…", sql = "…"; or spool = "…" to read what others put there.',
                path=where,
            )
        if options.sql and (_ROWS in options.sql) != bool(options.path):
            raise ConfigError(
                f"{where}.sql: "
                + ("it does not say" if options.path else "no path is given, and it says")
                + f" {_ROWS}",
                hint=f'In a query over the rows at a path they are {_ROWS}: path = "A", sql = "SELECT … FROM {_ROWS}".',
                path=f"{where}.sql",
            )
        for what, hint in _unfit(options) if known and options.stream else ():
            raise ConfigError(f"{where}: {what}", hint=hint, path=where)
        if options.spool:
            place_of(options.spool, f"{where}.spool")  # which refuses a place that is of no use
        self._fed_elsewhere = not known
        self._run = ""
        self.reader: RowsReader | None = None
        """The last one that was opened."""

    @property
    def capabilities(self) -> SourceCapabilities:
        options = self.options
        if self._fed_elsewhere:  # what a query of another program writes is read without Spark
            return SourceCapabilities(replayable=True, bounded=options.ends)
        if options.stream:
            return SourceCapabilities(replayable=True, bounded=False, host=HOST)
        of_files = bool(options.path) and not options.sql and options.format in FILE_FORMATS
        stable = bool(options.order_by) or of_files
        return SourceCapabilities(replayable=stable, bounded=True, remedy="" if stable else ORDER_BY, host=HOST)

    def reads(self, place: str) -> bool:
        return any(covers(path, place, below=True) for path in self._paths())

    def fingerprint(self) -> str:
        """Return a digest of the options, and of the files that this machine sees.

        It covers names and sizes of files.
        """
        options = msgspec.structs.asdict(self.options)
        for name in ("master", "config", "spool", "keep", "ends"):
            del options[name]
        folder, path = self.context.folder, options["path"]
        options["path"] = within(folder, path) if isinstance(path, str) else [within(folder, one) for one in path]
        found = [[file.name, file.stat().st_size] for path in self._paths() for file in _files(Path(path))]
        return xxh3_64_hexdigest(msgspec.json.encode([options, sorted(found)]))

    def _paths(self) -> tuple[str, ...]:
        path = self.options.path
        return path if isinstance(path, tuple) else (path,) if path else ()

    async def find_end(self, partition: str) -> Any:
        """Return a name for what Spark reads in this run, and the spool keeps; another run reads it anew."""
        bounded = self.capabilities.bounded and not self._fed_elsewhere
        return token_hex(8) if bounded and self.options.spool else None

    async def open_until(self, partition: str, position: Any, end: Any) -> Reader:
        self._run = str(end)
        return await self.open(partition, position)

    async def open(self, partition: str, position: Any = None) -> Reader:
        if position is not None and not self.capabilities.replayable:
            raise self._error("its rows have no stable order, so it cannot be gone on with", ORDER_BY)
        with owned_by_thread(None if self._fed_elsewhere else session_here()):
            self.reader = await asyncio.to_thread(self._open, position)
        return self.reader

    def _open(self, position: Any) -> RowsReader:
        after = None if position is None else self._checked(position)
        name, options = self.context.name, self.options
        if self._fed_elsewhere or in_task():  # of a job on Spark: the driver fills it
            if not options.spool:
                raise self._error("a worker on Spark has no session to read with", 'Say where rows pass: spool = "…".')
            spool = Spool(options.spool, name)
            spool.open()
            _check_begin(spool, after)
            job = self.context.job if options.ends and not in_task() else None  # what a task logs, nobody reads
            notes = self._fed_elsewhere
            return RowsReader(name, spool, self._payloads, after, keep=options.keep, notes=notes, job=job)
        if (held := self._held_already(after)) is not None:
            return RowsReader(name, held, self._payloads, after, keep=options.keep, once=True)
        if options.stream:
            return self._open_stream(after)
        with ExitStack() as stack:
            spark = stack.enter_context(session(options.master, options.config))
            spool, passing = self._spool(spark, stack)
            feeding = self._feeding(spark, spool)
            return RowsReader(
                name,
                spool,
                self._payloads,
                after,
                feeding=feeding,
                keep=options.keep,
                passing=passing,
                once=True,
                held=stack.pop_all(),
            )

    def _open_stream(self, after: tuple[int, str] | None) -> RowsReader:
        options, name = self.options, self.context.name
        with ExitStack() as stack:
            spark = stack.enter_context(session(options.master, options.config))
            spool = Spool(_absolute(options.spool), name)
            _check_begin(spool, after)
            query = self._query(spark, spool)
            return RowsReader(
                name, spool, self._payloads, after, feeding=query, keep=options.keep, held=stack.pop_all()
            )

    def feed(self, failed: Callable[[FlameError], None]) -> Feeds:
        """Fill the spool for readers in other processes. Needs a session that is active.

        Args:
            failed: Told, in another thread, if that fails later.

        Raises:
            SourceError: It cannot be read.
        """
        spool = Spool(_absolute(self.options.spool), self.context.name)
        spark = active()
        if self.options.stream:
            return self._query(spark, spool, failed)
        return self._feeding(spark, spool, failed)

    def _feeding(self, spark: Any, spool: Spool, failed: Callable[[FlameError], None] | None = None) -> Feeding:
        with named_jobs(spark, name_of(self.context.job, f"look at {self.context.name}")):
            ordered = self._ordered(self.frame(spark))
        spool.clear()
        feeding = Feeding(spool, ordered, self.context.name, self._origin(), failed, self.context.job)
        feeding.start()
        return feeding

    def _origin(self) -> str:
        """Return a text that identifies the input, and the run that has it read."""
        return f"{self.fingerprint()} {self._run}"

    def _query(self, spark: Any, spool: Spool, failed: Callable[[FlameError], None] | None = None) -> Query:
        frame = fitted(self.frame(spark), self.context.name)
        if self.options.columns:
            frame = self._chosen(frame, self.options.columns)
        self._check_schema(frame)
        checkpoint = spool.place.at("_query")
        check_reach(spark, checkpoint, self.context.name)
        query = Query(frame, spool, self.context.name, checkpoint, failed=failed, job=self.context.job)
        query.start()
        return query

    def _held_already(self, after: tuple[int, str] | None) -> Spool | None:
        """Return the spool, if it has everything that this run has left to read, or None."""
        if not self.options.spool or after is None:
            return None
        spool = Spool(self.options.spool, self.context.name)
        order = spool.announced()
        if order is None or order.of != self._origin() or spool.completed(0) is None:
            return None
        return spool if spool.taken().row <= after[0] + 1 else None

    def _spool(self, spark: Any, stack: ExitStack) -> tuple[Spool, bool]:
        """Return the spool, and whether rows only pass through it."""
        if self.options.spool:
            return Spool(self.options.spool, self.context.name), False
        master = spark.conf.get("spark.master", "")
        if not master.startswith("local"):
            raise self._error(
                f"Spark runs at {master or 'another place'}, whose executors do not see the temporary files here",
                'Name a folder that both reach: spool = "/mnt/shared/spool".',
            )
        folder = make_temporary()
        stack.callback(remove_temporary, folder)
        return Spool(folder, self.context.name, durable=False), True

    def _ordered(self, frame: Any) -> Ordered:
        """Return the rows to read, in their order, checked against the declared type."""
        if frame.isStreaming:
            raise self._error("a streaming DataFrame is given", "Give a batch one: spark.read, not spark.readStream.")
        frame = fitted(frame, self.context.name)
        relied_on = self.capabilities.replayable and not self._fed_elsewhere
        ordered = in_order(frame, self.options.order_by, self.context.name, stable=relied_on)
        if self.options.columns:
            frame = self._chosen(frame, self.options.columns)
            ordered = ordered._replace(frame=self._chosen(ordered.frame, self.options.columns, ordered.extra))
        self._check_schema(frame)
        return ordered

    def frame(self, spark: Any) -> Any:
        """Return the DataFrame to read."""
        options = self.options
        try:
            if options.sql and not options.path:
                return spark.sql(options.sql)
            source = spark.readStream if options.stream else spark.read
            if options.table:
                return source.table(options.table)
            reader = source.format(options.format).options(**options.read)
            if options.schema:
                reader = reader.schema(options.schema)
            paths = [_local(path) for path in self._paths()]
            for path in paths if options.format in FILE_FORMATS else ():
                check_reach(spark, path, self.context.name)
            if options.format == "delta":
                frame = self._delta(spark, reader, paths)
            elif not paths:
                return reader.load()
            else:
                frame = reader.load(paths[0] if options.stream else paths)
            return _queried(spark, frame, options.sql) if options.sql else frame
        except FlameError:
            raise
        except Exception as error:
            raise failed(self.context.name, error) from error

    def _delta(self, spark: Any, reader: Any, paths: Sequence[str]) -> Any:
        if len(paths) != 1:
            raise self._error("a Delta table has one path", "Give each table a source of its own.")
        try:
            frame = reader.load(paths[0])
            frame.schema  # noqa: B018 - over Spark Connect it is not known before whether it can be read
        except Exception as error:
            if not unknown_to(error):
                raise
            if not self.options.stream:
                return frame_of(spark, paths[0], self.options.read, self.context.name)
            open_table(paths[0], self.options.read, self.context.name)
            register(spark)
            return spark.readStream.format(NAME).load(paths[0])
        return frame

    def _chosen(self, frame: Any, columns: Sequence[str], extra: Sequence[str] = ()) -> Any:
        found = [(column_of(frame, name, self.context.name), name) for name in columns]
        return taken(frame, [*found, *((name, name) for name in extra)])

    def _check_schema(self, frame: Any) -> None:
        """Find out before the first row what would be wrong with all of them."""
        self._payloads(arrow_schema(frame))

    def _payloads(self, schema: Any) -> Payloads:
        spare = [ordering_column(said, schema.names)[0] for said in self.options.order_by]
        return Payloads(schema, self.context.type, self.context.name, spare)

    def _checked(self, position: Any) -> tuple[int, str]:
        match position:
            case (int(row), str(text)) | [int(row), str(text)] if row >= 0:
                return row, text
        raise self._error(
            f"{position!r} is no position", "A position is a row's number and a seal; take it from the reader."
        )

    def _error(self, what: str, hint: str) -> SourceError:
        name = self.context.name
        return SourceError(f"source {name!r}: {what}", hint=hint, source=name, position="")


# Not the parameters of Spark's own `sql`: braces, of which regular expressions are full, would have to be doubled.
def _queried(spark: Any, frame: Any, query: str) -> Any:
    """Return what a query gives of rows."""
    view = f"flamestream_{token_hex(8)}"
    frame.createTempView(view)
    found = spark.sql(query.replace(_ROWS, view))
    if context_of(spark) is not None:  # a session of Spark Connect may look the view up later
        spark.catalog.dropTempView(view)
    return found


def _unfit(options: SparkSourceOptions) -> Iterator[tuple[str, str]]:
    """Yield each fault of the options of a stream, with a remedy."""
    if options.sql:
        yield "a query is no stream", 'Give path = "…" or table = "…".'
    if options.order_by:
        yield "a stream cannot be ordered by columns", "Leave order_by out: it is in the order of arrival."
    if len(options.path) > 1 and not isinstance(options.path, str):
        yield "a stream reads one path", "Give their common folder, or a pattern."
    if not options.spool:
        yield "a stream needs a place for what has come", 'Say: spool = "FOLDER".'


def _check_begin(spool: Spool, after: tuple[int, str] | None) -> None:
    """Make sure that a spool still has the row behind a position, while nothing else is open."""
    check_begin(spool, 0 if after is None else after[0] + 1)


def _absolute(spool: str) -> str:
    return spool if is_url(spool) else str(local_path(spool).absolute())


def _local(path: str) -> str:
    """Return a path as it is, unless it begins at the home of the user."""
    return path if is_url(path) else str(Path(path).expanduser())


def _files(path: Path) -> Iterator[Path]:
    try:
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from (file for file in path.rglob("*") if file.is_file() and file.name[0] not in "._")
    except OSError:  # of a file system that is Spark's alone
        return


@hookimpl
def flamestream_source() -> type[Source]:
    return SparkSource
