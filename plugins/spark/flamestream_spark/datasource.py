"""The data source `flamestream` of Spark, both ways.

    df.writeStream.format("flamestream").option("path", SPOOL)      rows go to a running job: source `spark`, `spool`
    df.write.format("flamestream").mode("append").save(SPOOL)       so do those of a DataFrame that ends, as one batch
    spark.readStream.format("flamestream").option("path", FOLDER)   outputs of a job come: sink `spark`
    spark.read.format("flamestream").option("path", FOLDER)         outputs as far as there are any

Spool and folder are places: folders, or URLs of object stores, which are reached by fsspec and not by Spark.
See `flamestream_spark.tables.outputs` for the offsets of outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from flamecore.errors import ConfigError, SourceError
from flamestream_spark.compat import arrow_schema, arrow_stream_writer, register_source
from flamestream_spark.spool.parts import write_parts
from flamestream_spark.spool.spool import Spool
from flamestream_spark.storage.place import Place
from flamestream_spark.storage.places import place_of
from flamestream_spark.tables.columns import check, types_of
from flamestream_spark.tables.outputs import NAME, Offset, Output, output_of

BATCHES: Final = "df.write"
"""The query in the names of batches that no query numbers."""

_BATCH: Final = "streaming.sql.batchId"
_QUERY: Final = "sql.streaming.queryId"
_SPREAD: Final = 8
"""Files between two offsets are read by so many tasks at most."""
_ArrowWriter: Final[Any] = arrow_stream_writer()


class FlamestreamDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def _place(self) -> Place:
        return place_of(self._given(), "path")

    def _given(self) -> str:
        path = self.options.get("path", "")
        if not path:
            raise ConfigError('format "flamestream" needs a path', hint='.option("path", FOLDER)', path="path")
        return str(path)

    def schema(self) -> Any:
        place = self._place()
        if (known := output_of(place).schema()) is not None:
            return known
        raise SourceError(
            f"there is nothing in {place.url} yet, so its columns are unknown",
            hint='Name them: .schema("word string, …"); or start when the job has written something.',
            source=NAME,
            position="",
        )

    def reader(self, schema: Any) -> DataSourceReader:
        return OutputReader(self._place().url, arrow_schema(schema))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return OutputStream(self._place().url, arrow_schema(schema))

    def streamWriter(self, schema: Any, overwrite: bool) -> SpoolWriter:
        spool = self._spool()
        if overwrite:
            raise spool.error(
                'in output mode "complete" each batch holds all rows again, and a job would take them as new ones',
                'Say .outputMode("append"); for an aggregation flamestream_spark.stream(…, output_mode="update").',
            )
        last = spool.last()
        self._expect(spool, 0 if last is None else last[0] + 1, schema)
        return SpoolWriter(spool.place.url)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        spool = self._spool()
        if overwrite:
            raise spool.error(
                "a job may have read what is there, so nothing takes its place",
                'Say .mode("append"); or start afresh, with new folders.',
            )
        last = spool.last()
        number, named = 0 if last is None else last[0] + 1, self._number("batch", spool)
        if last is not None:
            spool.check_query(BATCHES, last[1])
        self._expect(spool, number if named is None else named, schema)
        return BatchWriter(spool.place.url, number, named, self._flag("end", spool))

    def _spool(self) -> Spool:
        return Spool(self._given(), NAME)

    def _expect(self, spool: Spool, number: int, schema: Any) -> None:
        check(schema, NAME)
        spool.open()
        spool.expect(number, types_of(schema))

    def _number(self, name: str, spool: Spool) -> int | None:
        given = self.options.get(name)
        if given is None or (given.isascii() and given.isdigit()):
            return None if given is None else int(given)
        raise spool.error(f"option {name} is {given!r}, and is to be a whole number from 0", f'.option("{name}", 7)')

    def _flag(self, name: str, spool: Spool) -> bool:
        given = str(self.options.get(name, "false")).lower()
        if given in ("true", "false"):
            return given == "true"
        raise spool.error(f"option {name} is {given!r}, and is to be true or false", f'.option("{name}", True)')


def register(spark: Any) -> None:
    """Register the data source in a session.

    A session that is made after the installation finds it by itself.
    """
    register_source(spark, FlamestreamDataSource)


# -- outputs of a job ------------------------------------------------------------------------------------------------


class Files(InputPartition):
    """Some files, in order."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(tuple(paths))


def _spread(paths: Sequence[str]) -> list[Files]:
    size = max(-(-len(paths) // _SPREAD), 1)
    return [Files(paths[at : at + size]) for at in range(0, len(paths), size)]


def _output(url: str) -> Output:
    return output_of(place_of(url, "path"))


def _read(partition: InputPartition, schema: Any) -> Iterator[Any]:
    """Yield the rows of files, each with the columns of the schema: files from before a column came have null in it."""
    for folder, paths in groupby(partition.value, key=lambda path: path.rpartition("/")[0]):
        place = place_of(folder, "path")
        for path in paths:
            with place.open(path.rpartition("/")[2]) as opened, pq.ParquetFile(opened) as file:
                yield from (_fitted(batch, schema) for batch in file.iter_batches())


def _fitted(batch: Any, schema: Any) -> Any:
    names = batch.schema.names
    if names == schema.names:
        return batch
    columns = [
        batch.column(field.name) if field.name in names else pa.nulls(len(batch), field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema.names)


class OutputReader(DataSourceReader):
    """A reader of the files that are there."""

    def __init__(self, url: str, schema: Any) -> None:
        self._url, self._schema = url, schema

    def partitions(self) -> Sequence[InputPartition]:
        return _spread(_output(self._url).files())

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition, self._schema)


class OutputStream(DataSourceStreamReader):
    """A reader of the files that are there, and of those to come."""

    def __init__(self, url: str, schema: Any) -> None:
        self._url, self._schema = url, schema

    def initialOffset(self) -> Offset:
        return {"run": "", "time": 0}

    # Before 4.2 Spark asks without arguments, and each offset is the newest one.
    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        return _output(self._url).latest(start or self.initialOffset(), getattr(limit, "maxFiles", None))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return _spread(_output(self._url).between(start, end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition, self._schema)


# -- input of a job --------------------------------------------------------------------------------------------------


class Written(WriterCommitMessage):
    """The parts that a task has written; None: the batch was complete before."""

    def __init__(self, parts: Sequence[tuple[int, str, int]], query: str) -> None:
        self.parts, self.query = tuple(parts), query


class SpoolWriter(_ArrowWriter):
    """Writes batches into a spool, each once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        number, query = int(context.getLocalProperty(_BATCH)), context.getLocalProperty(_QUERY) or ""
        return _written(iterator, Spool(self._folder, NAME), number, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        query = next((message.query for message in messages if isinstance(message, Written)), "")
        _complete(Spool(self._folder, NAME), batchId, messages, query)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: written files are no part of the batch, and go when it is complete."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame into a spool: all of it, or nothing.

    Args:
        folder: The spool.
        number: Number of the next batch.
        named: The number that the program gives the batch; one that is there already stays as it is.
        end: Whether nothing comes behind it.
    """

    def __init__(self, folder: str, number: int, named: int | None, end: bool) -> None:
        self._folder, self._end, self._named = folder, end, named
        self._number = number if named is None else named

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _written(iterator, Spool(self._folder, NAME), self._number, BATCHES)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        spool = Spool(self._folder, NAME)
        if not _complete(spool, self._number, messages, BATCHES) and self._named is None:
            raise spool.error(
                f"another program has written batch {self._number} meanwhile, so nothing of this one is taken",
                "Write again; one program at a time, or each into a spool of its own.",
            )
        if self._end:
            spool.end()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: written files are no part of the batch, and go when it is complete."""


def _written(iterator: Iterator[Any], spool: Spool, number: int, query: str) -> Written:
    """Write the rows of a task, unless their batch is complete."""
    if spool.completed(number) is not None:
        for _ in iterator:
            pass
        return Written((), query)
    told = (row for batch in write_parts(iterator, spool.batch(number)) for row in batch.to_pylist())
    return Written([(row["partition"], row["name"], row["rows"]) for row in told], query)


def _complete(spool: Spool, number: int, messages: Sequence[WriterCommitMessage | None], query: str) -> bool:
    """Complete a batch with the parts that tasks have written, by partition.

    Returns:
        Whether it consists of them.
    """
    spool.open()
    last = spool.last()
    if last is not None:
        spool.check_query(query, last[1])
    if last is None or number > last[0]:  # others change nothing, and least of all the end
        spool.go_on()
    parts = sorted(part for message in messages if isinstance(message, Written) for part in message.parts)
    return spool.complete(number, [(name, rows) for _, name, rows in parts], query)


__all__ = ["NAME", "FlamestreamDataSource", "register"]
