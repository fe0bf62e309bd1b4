"""Sink `spark`: a Delta table, or a folder of Parquet, JSON or CSV files.

Spark, or any other reader, reads such a folder as one table.

It is written without Spark: neither Java nor a session is needed, but for the name of a table in a catalogue.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import quote

import msgspec
import pyarrow.parquet as pq

from flamecore.abc.hooks import hookimpl
from flamecore.abc.paths import FilePath
from flamecore.abc.sink import Guarantee, Mode, Sink
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError
from flamecore.toolkit.places import is_url, scheme_of
from flamecore.toolkit.places import place_of as place_of_output
from flamecore.toolkit.records.plain import Unencodable
from flamestream_spark.session.session import HOST, session
from flamestream_spark.storage.folder import FolderPlace
from flamestream_spark.storage.objects import written
from flamestream_spark.storage.place import local_path
from flamestream_spark.storage.places import place_of
from flamestream_spark.tables.arrow import Form, remedy, text, warn_untyped
from flamestream_spark.tables.catalogue import Listing
from flamestream_spark.tables.claims import ClaimedFolder
from flamestream_spark.tables.delta import LOG, delta_rs, gist_of
from flamestream_spark.tables.delta_objects import SCHEMES, DeltaObjects
from flamestream_spark.tables.delta_table import DeltaTable
from flamestream_spark.tables.folder import Folder
from flamestream_spark.tables.partitions import check_columns
from flamestream_spark.tables.schemas import Schema, columns_of


class SparkSinkOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the sink.

    Attributes:
        path: The folder; made if it is not there. Local, or mounted; or a URL of an object store.
        format: Format of the files: "parquet", "json" (a value a line) or "csv" (with a header); or "delta", a table of
            Delta Lake, for which `deltalake` must be installed.
        mode: Fate of output that is there: it is replaced, added to, or resumed if this job wrote it. A job that keeps
            state resumes its own, whatever this says.
        partition_by: Columns whose values are folders, as Spark has them: `letter=a`. Texts, whole numbers or dates.
        key: Columns of a Delta table that holds one row for each of their values, the one that came last.
        schema: Fate of columns that the output which is there does not have: "keep" refuses them; "add" adds them, and
            rows that are there have null in them.
        times: Whether each row says its global time, in columns `_time`, `_front` and `_place`, which order the rows.
        types: Spark's types of columns whose hints leave them open: of a `datetime` "timestamp" (the default, with a
            zone) or "timestamp_ntz", of a `Decimal` "decimal(P,S)" ("decimal(38,18)").
        table: A table of a catalogue that is to be over the folder; made if it is not there.
        master: Address of Spark, if `table` is given and this program has no session.
        config: Configuration of that session.
        storage_options: Options of fsspec for an object store, such as credentials or an endpoint, or for a Delta
            table of delta-rs; both know the variables of the environment too.
    """

    path: FilePath = ""
    format: Literal["parquet", "json", "csv", "delta"] = "parquet"
    mode: Mode = "replace"
    partition_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    schema: Schema = "keep"
    times: bool = False
    types: dict[str, str] = {}
    table: str = ""
    master: str = ""
    config: dict[str, str] = {}
    storage_options: dict[str, Any] = {}

    def __repr__(self) -> str:
        hidden = {"storage_options": dict.fromkeys(self.storage_options, "***")}
        shown = ", ".join(f"{name}={value!r}" for name, value in (msgspec.structs.asdict(self) | hidden).items())
        return f"SparkSinkOptions({shown})"


class SparkSink(Sink):
    """A file for each batch; in a Delta table also a version."""

    name: ClassVar[str] = "spark"
    Options: ClassVar[Any] = SparkSinkOptions
    wants_orders = True

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        path, where = str(options.path), f"sink.{context.name}"
        if not path:
            raise _without_path(where, options.table)
        self._far = is_url(path)
        if self._far and options.format == "delta" and scheme_of(path) not in SCHEMES:
            raise ConfigError(
                f"{where}.path: {path}: no Delta table is written there exactly once",
                hint=f"Give a folder that is mounted, or a URL of {', '.join(SCHEMES)}.",
                path=f"{where}.path",
            )
        if self._far and options.format == "delta" and scheme_of(path) == "hdfs" and quote(path, safe="/:@") != path:
            raise ConfigError(
                f"{where}.path: {path}: in HDFS delta-rs reads no table of such a name, but writes to another one",
                hint="Choose a path of ASCII letters, digits and /.-_~ alone.",
                path=f"{where}.path",
            )
        if self._far and options.table:
            raise ConfigError(
                f"{where}.table: only a folder is entered into a catalogue, and {path} is none",
                hint=f"Say it yourself: CREATE TABLE {options.table} USING {options.format} LOCATION '{path}'.",
                path=f"{where}.table",
            )
        self._path = local_path(path)
        self._url = path if self._far else str(self._path)
        self._form = Form.of(
            context.type,
            times=options.times,
            types=options.types,
            intervals=options.format != "delta",
            where=f"sink.{context.name}.types",
        )
        self._folder: Folder | ClaimedFolder | DeltaTable | None = None
        if self._far and options.format != "delta":
            place_of(path, f"{where}.path", options.storage_options)  # which refuses a place that is of no use
        check_columns(options.partition_by, self._form.schema, f"{where}.partition_by")
        check_columns(options.key, self._form.schema, f"{where}.key")
        if options.key and options.format != "delta":
            raise ConfigError(
                f"{where}.key: files of format {options.format!r} are added to, and never changed",
                hint='Use format = "delta" for a table that holds the last row of each key.',
                path=f"{where}.key",
            )
        if options.schema == "add" and options.format == "csv":
            raise ConfigError(
                f"{where}.schema: files of format 'csv' have no columns but by their places, so none can be added",
                hint='Use format = "parquet", "json" or "delta"; or write to another place.',
                path=f"{where}.schema",
            )
        if options.table and options.partition_by and options.format != "delta":
            raise ConfigError(
                f"{where}: a table of a catalogue over folders of partitions would have to be told of each new one",
                hint='Use format = "delta", which knows its partitions itself; or leave out table, or partition_by.',
                path=f"{where}.table",
            )
        self._session = ExitStack()
        self._listing: Listing | None = None

    @property
    def host(self) -> str:
        return HOST

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    def writes(self) -> Sequence[str]:
        return (place_of_output(self._url, folder=True),)

    def rehearse(self) -> None:
        if self.options.format == "delta":
            delta_rs("sink")
        if self._far:
            return
        if self.options.format != "delta" and (self._path / LOG).is_dir():
            raise self._error(f"{self._path} is a Delta table", 'Say format = "delta", or give another folder.')
        if self._path.exists() and not self._path.is_dir():
            raise self._error(f"{self._path} is a file", "Give the path of a folder.")
        if not self._path.absolute().parent.is_dir():
            raise self._error(f"there is no folder {self._path.parent}", f"Make it: mkdir -p {self._path.parent}")

    async def replaces(self) -> bool:
        try:
            return await asyncio.to_thread(self._made().replaces)
        except OSError as error:
            raise self._failed("read", error) from error

    async def open(self) -> int:
        self.rehearse()
        warn_untyped({self.context.name: self.context.type})
        return await asyncio.to_thread(self._open)

    def _open(self) -> int:
        with ExitStack() as stack:
            listing = self._listed(stack) if self.options.table else None
            self._folder = self._made()
            try:
                held = self._folder.open()
            except OSError as error:
                raise self._failed("opened", error) from error
            if listing is not None:
                listing.enter()
            self._listing, self._session = listing, stack.pop_all()
        return held

    def _made(self) -> Folder | ClaimedFolder | DeltaTable:
        mode, format = self.options.mode, self.options.format
        if format == "delta":
            by, key = self.options.partition_by, self.options.key
            told = self.options.storage_options
            place = DeltaObjects(self._url, told) if self._far else FolderPlace(self._path)
            return DeltaTable(place, self.context, mode, self._form.schema, by, key, told, self.options.schema)
        if self._far:
            return self._claimed()
        by, columns = self.options.partition_by, columns_of(self._form.schema)
        return Folder(self._path, self.context, mode, format, by, columns, self.options.schema)

    def _claimed(self) -> ClaimedFolder:
        options, write = self.options, self._write
        rows = self._form.schema.empty_table().drop_columns(list(options.partition_by))
        place = place_of(self._url, f"sink.{self.context.name}.path", options.storage_options)
        empty = written(lambda path: write(rows, path))
        by, columns = options.partition_by, columns_of(self._form.schema)
        return ClaimedFolder(place, self.context, options.mode, options.format, empty, by, columns, options.schema)

    def _listed(self, stack: ExitStack) -> Listing:
        """Return the entry of the table, checked before anything in the folder changes."""
        options = self.options
        spark = stack.enter_context(session(options.master, options.config))
        schema, name = self._form.schema, self.context.name
        listing = Listing(spark, options.table, self._path, options.format, schema, name)
        listing.check()
        return listing

    async def aclose(self) -> None:
        await asyncio.to_thread(self._leave)

    def _leave(self) -> None:
        with self._session:
            if self._listing is not None:
                with contextlib.suppress(Exception):  # the files are there; a session that has ended sees them anew
                    self._listing.refresh()

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        await self.write_ordered(time, (), payloads)

    async def write_ordered(self, time: int, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        assert self._folder is not None, "write before open"
        try:
            await asyncio.to_thread(self._put, time, self._form.make(payloads, orders))
        except Unencodable as error:
            raise self._error(str(error), remedy(error)) from error
        except OSError as error:
            raise self._failed("written to", error) from error

    def _put(self, time: int, table: Any) -> None:
        assert self._folder is not None
        self._folder.put(time, table, self._write)

    @property
    def _write(self) -> Callable[[Any, Path], None]:
        writers: dict[str, Callable[[Any, Path], None]] = {"json": _write_json, "csv": _write_csv}
        return writers.get(self.options.format, _write_parquet)

    async def sync(self, time: int) -> None:
        assert self._folder is not None, "sync before open"
        try:
            await asyncio.to_thread(self._folder.sync, time)
        except OSError as error:
            raise self._failed("forced to the disk", error) from error

    def _failed(self, done: str, error: OSError) -> SinkError:
        return self._error(
            f"{self._url} cannot be {done}: {error.strerror or gist_of(error)}",
            "Is there room, and may this user write there?",
        )

    def _error(self, what: str, hint: str) -> SinkError:
        return SinkError(f"sink {self.context.name!r}: {what}", hint=hint, sink=self.context.name)


def _without_path(where: str, table: str) -> ConfigError:
    if not table:
        return ConfigError(
            f"{where}: no destination of the output is given",
            hint='Give a folder, or a URL of an object store: path = "…".',
            path=f"{where}.path",
        )
    return ConfigError(
        f"{where}: table {table} has no path, so it would be a managed one, whose files are its catalogue's alone: "
        "none is written there exactly once",
        hint='Give it the folder that it is to be over: path = "…"; or have Spark write the outputs of a program: '
        f'flamestream_spark.run(…).write.saveAsTable("{table}").',
        path=f"{where}.path",
    )


def _write_parquet(table: Any, path: Path) -> None:
    pq.write_table(table, path)


def _write_json(table: Any, path: Path) -> None:
    path.write_bytes(msgspec.json.Encoder().encode_lines(table.to_pylist(maps_as_pydicts="lossy")))


def _write_csv(table: Any, path: Path) -> None:
    columns = [column.to_pylist(maps_as_pydicts="lossy") for column in table.columns]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.schema.names)
        writer.writerows(map(text, row) for row in zip(*columns, strict=True))


@hookimpl
def flamestream_sink() -> type[Sink]:
    return SparkSink
