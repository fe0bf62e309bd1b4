"""Source `spark`: rows that Spark reads: files of its formats, tables, or a query, in a stable order.

Spark reads in parallel, and executors pack rows into pieces of Arrow; these come to the front partition by partition,
in order, with one partition read ahead. So the front has one order, whatever the number of cores or of files.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

import msgspec
from xxhash import xxh3_64_hexdigest

from flamecore.errors import ConfigError, FlameError, SourceError
from flamecore.front import Batch, EdgeContext, Reader, Rejected, Source, SourceCapabilities
from flamecore.names import suggestion
from flamecore.plugin import hookimpl
from flamestream_spark.ordering import Ordered, in_order
from flamestream_spark.packing import SCHEMA, unpack
from flamestream_spark.payloads import Payloads
from flamestream_spark.session import DEFAULT_MASTER, session

FILE_FORMATS: Final = ("parquet", "json", "csv", "text", "orc", "xml", "binaryFile")
"""Formats whose rows have a place in a file."""

_RAW: Final = 1000
_CLOSE_S: Final = 30.0
_END: Final = object()
_FAILED_FILE: Final = re.compile(r"(?:file|path)s?\s*:?\s+((?:file|hdfs|s3a?|gs|abfss?)?:?/[^\s,\]]+)")


class SparkSourceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the source. One of `path`, `table`, `sql` says what is read.

    Attributes:
        format: Of the files at `path`: "parquet", "json", "csv", "text", "orc", "xml", or what else the session knows.
        path: Files or folders, as Spark takes them; relative to the working directory.
        table: A table of the session's catalogue.
        sql: A query.
        schema: Names and types of the columns in files, as "id bigint, text string"; else Spark finds out, and for
            some formats reads everything for it.
        read: Options of the format, as Spark calls them: header = "true".
        columns: The columns to hand on, in order; all by default.
        order_by: Columns that order the rows. Without them files are read in the order of their paths and rows; tables
            and queries are in no stable order.
        master: Where Spark runs, if this program has no session: "local[4]", "spark://host:port", …
        config: Configuration of that session.
    """

    format: str = "parquet"
    path: str | tuple[str, ...] = ()
    table: str = ""
    sql: str = ""
    schema: str = ""
    read: dict[str, str] = {}
    columns: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    master: str = DEFAULT_MASTER
    config: dict[str, str] = {}


class Places(Sequence[tuple[int, str]]):
    """Positions of rows in a batch, made when they are asked for: the row's number, and a seal of what it holds.

    Args:
        first: Number of the batch's first row.
        batch: The rows.
        places: Which of them.
    """

    __slots__ = ("_batch", "_first", "_places")

    def __init__(self, first: int, batch: Any, places: Sequence[int]) -> None:
        self._first, self._batch, self._places = first, batch, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Places(self._first, self._batch, self._places[index])
        place = self._places[index]
        return self._first + place, seal(self._batch, place)


def seal(batch: Any, place: int) -> str:
    """What a row is recognised by."""
    return xxh3_64_hexdigest(repr(batch.slice(place, 1).to_pylist()).encode(errors="surrogatepass"))


class FrameReader(Reader):
    """Rows of a DataFrame. A position is the row's number and its seal.

    Args:
        source: Name of the source.
        ordered: The DataFrame.
        payloads: Makes payloads of rows, once their schema is known.
        after: Go on behind the row at this position.
        held: What is to be let go when it is closed.
    """

    def __init__(
        self,
        source: str,
        ordered: Ordered,
        payloads: Callable[[Any], Payloads],
        after: tuple[int, str] | None,
        held: ExitStack,
    ) -> None:
        self._source = source
        self._ordered = ordered
        self._make = payloads
        self._payloads: Payloads | None = None
        self._held = held
        self._after = after
        self._next = 0
        self._batch: Any = None
        self._at = 0
        self._files: list[tuple[int, str]] = []
        self._pieces: Iterator[Any] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"source {source}")
        self._waiting: asyncio.Future[Any] | None = None
        self._ended = False
        self._tag = f"flamestream-{token_hex(8)}"

    async def read(self, limit: int) -> Batch | None:
        while self._batch is None or self._at >= self._batch.num_rows:
            if self._ended:
                return None
            if self._waiting is None:
                self._waiting = self._ask()
            found = await asyncio.shield(self._waiting)
            self._waiting = None
            if found is _END:
                self._ended = True
                self._check_reached()
                return None
            self._waiting = self._ask()  # one ahead
            self._take(found)
        at = self._at
        batch = self._batch.slice(at, limit)
        self._at += batch.num_rows
        first = self._next - self._batch.num_rows + at
        assert self._payloads is not None
        values, places, bad = self._payloads.make(batch)
        positions = Places(first, batch, places)
        rejected = [
            Rejected((first + place, seal(batch, place)), reason, repr(batch.slice(place, 1).to_pylist()[0])[:_RAW])
            for place, reason in bad
        ]
        return Batch(values, positions, rejected)

    def _ask(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._thread, self._pull)

    def _pull(self) -> Any:
        """The next batch, from Spark; on a thread of its own."""
        try:
            if self._pieces is None:
                self._tagging()[0](self._tag)  # for what is started on this thread
                self._pieces = _batches(self._ordered)
            return next(self._pieces, _END)
        except FlameError:
            raise
        except Exception as error:
            raise failed(self._source, error) from error

    def _take(self, batch: Any) -> None:
        """Make a batch the one that is read from: behind what is to be skipped, and without what is no data."""
        first, self._next = self._next, self._next + batch.num_rows
        if self._ordered.file is not None:
            column = batch.column(self._ordered.file)
            names = column.dictionary.to_pylist()
            last = None
            for place, code in enumerate(column.indices.to_pylist()):
                if code != last:
                    last = code
                    if not self._files or self._files[-1][1] != names[code]:
                        self._files.append((first + place, names[code]))
            batch = batch.drop_columns([self._ordered.file])
        if self._payloads is None:
            self._payloads = self._make(batch.schema)
        self._batch, self._at = batch, 0
        if self._after is None:
            return
        row, expected = self._after
        if row >= self._next:
            self._at = batch.num_rows
        elif row >= first:
            if seal(batch, row - first) != expected:
                raise self._changed(f"row {row + 1} is another one than when it was read")
            self._at, self._after = row - first + 1, None

    def _check_reached(self) -> None:
        if self._after is not None:
            raise self._changed(f"there are {self._next} rows, and {self._after[0] + 1} have been read")

    def _changed(self, what: str) -> SourceError:
        return SourceError(
            f"source {self._source!r}: {what}",
            hint="Put the old data back; or start afresh, without the job's state and output. It may only grow.",
            source=self._source,
            position=self._after,
        )

    def describe(self, position: Any) -> str:
        row = position[0]
        at = bisect_right(self._files, row, key=lambda entry: entry[0]) - 1
        if at < 0:
            return f"row {row + 1}"
        first, file = self._files[at]
        return f"{shown(file)} row {row - first + 1}"

    def _tagging(self) -> tuple[Callable[[str], Any], Callable[[str], Any]]:
        """What gives a tag to all that this thread starts, and what ends all that has it."""
        spark = self._ordered.frame.sparkSession
        if hasattr(spark, "sparkContext"):
            return spark.sparkContext.addJobTag, spark.sparkContext.cancelJobsWithTag
        return spark.addTag, spark.interruptTag

    async def aclose(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            if not waiting.done():
                await asyncio.to_thread(self._tagging()[1], self._tag)
                await asyncio.wait([waiting], timeout=_CLOSE_S)
            if not waiting.done():
                raise SourceError(
                    f"source {self._source!r}: Spark does not end what it does; it was told to {_CLOSE_S} s ago",
                    hint="Look at its UI, or end the program.",
                    source=self._source,
                    position="",
                )
            if not waiting.cancelled():
                waiting.exception()  # nobody asked for it
        pieces, self._pieces = self._pieces, None
        if pieces is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, pieces.close)  # type: ignore[attr-defined]
        self._ended = True
        self._thread.shutdown(wait=False)
        self._held.close()


def _batches(ordered: Ordered) -> Iterator[Any]:
    """The rows as batches of Arrow, in order. Executors pack, one partition ahead of the one that is read."""
    from functools import partial

    from pyspark.cloudpickle import register_pickle_by_value

    from flamestream_spark import packing

    drop = [name for name in ordered.extra if name != ordered.file]
    register_pickle_by_value(packing)  # so that executors need not have it
    packed = ordered.frame.mapInArrow(partial(packing.pack, file=ordered.file, drop=drop), SCHEMA)
    for (piece,) in packed.toLocalIterator(prefetchPartitions=True):
        for batch in unpack(bytes(piece)):
            if batch.num_rows:
                yield batch


def shown(file: str) -> str:
    """A file as people write it.

    >>> shown("file:///tmp/a%20b.csv"), shown("hdfs://host/x")
    ('/tmp/a b.csv', 'hdfs://host/x')
    """
    parts = urlsplit(file)
    return unquote(parts.path) if parts.scheme == "file" else file


def failed(source: str, error: Exception) -> SourceError:
    """What Spark or an executor says, in short, with the file if it names one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if re.search(r"\[[A-Z_.]+\]", line)), lines[0] if lines else repr(error))
    said = re.sub(r"^.*?(\[[A-Z_.]+\])", r"\1", said)
    file = _FAILED_FILE.search(str(error))
    cause = next((line for line in reversed(lines) if line.startswith("Caused by:")), "")
    if "No module named" in str(error):
        module = re.search(r"No module named '?([\w.]+)", str(error))
        what = f"an executor has no module {module[1] if module else '?'}"
        hint = "Install pyarrow where the executors run, or set PYSPARK_PYTHON to a Python that has it."
        return SourceError(f"source {source!r}: {what}", hint=hint, source=source, position="")
    what = f"Spark cannot read it: {said[:500]}" + (f" ({cause[11:].strip()[:300]})" if cause else "")
    where = file[1].rstrip(".") if file else ""
    hint = f"Look at {shown(where)}: is it whole, and of that format?" if where else "Spark's own words are its cause."
    return SourceError(f"source {source!r}: {what}", hint=hint, source=source, position=where)


class SparkSource(Source):
    """Rows as `dict` by column, or as records, tuples or single values of the declared type."""

    name: ClassVar[str] = "spark"
    Options: ClassVar[Any] = SparkSourceOptions
    options: SparkSourceOptions

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        said = [key for key in ("path", "table", "sql") if getattr(options, key)]
        if len(said) != 1:
            path = f"source.{context.name}"
            raise ConfigError(
                f"{path}: " + (f"{' and '.join(said)} are given" if said else "nothing says what to read"),
                hint='Give one of path = "…", table = "…", sql = "…".',
                path=path,
            )

    @property
    def capabilities(self) -> SourceCapabilities:
        options = self.options
        stable = bool(options.order_by) or (bool(options.path) and options.format in FILE_FORMATS)
        return SourceCapabilities(replayable=stable, bounded=True)

    def fingerprint(self) -> str:
        """Of the options, and of files that this machine sees the names and sizes."""
        options = msgspec.structs.asdict(self.options)
        for name in ("master", "config"):
            del options[name]
        found = [[file.name, file.stat().st_size] for path in self._paths() for file in _files(Path(path))]
        return xxh3_64_hexdigest(msgspec.json.encode([options, sorted(found)]))

    def _paths(self) -> tuple[str, ...]:
        return (self.options.path,) if isinstance(self.options.path, str) else self.options.path

    async def open(self, partition: str, position: Any = None) -> Reader:
        if position is not None and not self.capabilities.replayable:
            raise self._error(
                "its rows have no stable order, so it cannot be gone on with", 'Say: order_by = ["COLUMN"].'
            )
        return await asyncio.to_thread(self._open, position)

    def _open(self, position: Any) -> Reader:
        after = None if position is None else self._checked(position)
        with ExitStack() as held:
            frame = self.frame(held.enter_context(session(self.options.master, self.options.config)))
            if frame.isStreaming:
                raise self._error(
                    "a streaming DataFrame is given", "Give a batch one: spark.read, not spark.readStream."
                )
            ordered = in_order(frame, self.options.order_by, self.context.name)
            if self.options.columns:
                frame = self._chosen(frame, self.options.columns)
                ordered = ordered._replace(frame=self._chosen(ordered.frame, (*self.options.columns, *ordered.extra)))
            self._check_schema(frame)
            return FrameReader(self.context.name, ordered, self._payloads, after, held.pop_all())

    def frame(self, spark: Any) -> Any:
        """The DataFrame that is read."""
        options = self.options
        try:
            if options.sql:
                return spark.sql(options.sql)
            if options.table:
                return spark.table(options.table)
            reader = spark.read.format(options.format).options(**options.read)
            if options.schema:
                reader = reader.schema(options.schema)
            return reader.load([_local(path) for path in self._paths()])
        except Exception as error:
            raise failed(self.context.name, error) from error

    def _chosen(self, frame: Any, columns: Sequence[str]) -> Any:
        for name in columns:
            if name not in frame.columns:
                raise self._error(f"there is no column {name!r}", suggestion(name, frame.columns))
        return frame.select(*(f"`{name}`" for name in columns))

    def _check_schema(self, frame: Any) -> None:
        """Find out before the first row what would be wrong with all of them."""
        from pyspark.sql.pandas.types import to_arrow_schema

        self._payloads(to_arrow_schema(frame.schema))

    def _payloads(self, schema: Any) -> Payloads:
        return Payloads(schema, self.context.type, self.context.name, self.options.order_by)

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


def _local(path: str) -> str:
    """A path as it is, unless it begins at the home of the user."""
    return path if "://" in path else str(Path(path).expanduser())


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
