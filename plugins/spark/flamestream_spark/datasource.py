"""The data source `flamestream` of Spark, both ways.

    df.writeStream.format("flamestream").option("path", SPOOL)      rows go to a running job: source `spark`, `spool`
    spark.readStream.format("flamestream").option("path", FOLDER)   outputs of a job come: sink `spark`
    spark.read.format("flamestream").option("path", FOLDER)         outputs as far as there are any

What the offsets of outputs are, says `flamestream_spark.tables.outputs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from flamecore.errors import ConfigError, SourceError
from flamestream_spark.spool.parts import write_parts
from flamestream_spark.spool.spool import Spool
from flamestream_spark.tables.columns import check, types_of
from flamestream_spark.tables.outputs import NAME, Offset, output_of

_BATCH: Final = "streaming.sql.batchId"
_SPREAD: Final = 8
"""Files between two offsets are read by so many tasks at most."""


class FlamestreamDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def _path(self) -> Path:
        path = self.options.get("path", "")
        if not path:
            raise ConfigError('format "flamestream" needs a path', hint='.option("path", FOLDER)', path="path")
        return Path(path.removeprefix("file://"))

    def schema(self) -> Any:
        folder = self._path()
        if (known := output_of(folder).schema()) is not None:
            return known
        raise SourceError(
            f"there is nothing in {folder} yet, so nobody knows its columns",
            hint='Name them: .schema("word string, …"); or start when the job has written something.',
            source=NAME,
            position="",
        )

    def reader(self, schema: Any) -> DataSourceReader:
        return FolderReader(self._path())

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return FolderStream(self._path())

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        check(schema, NAME)
        spool = Spool(self._path(), NAME)
        spool.open()
        last = spool.last()
        spool.expect(0 if last is None else last[0] + 1, types_of(schema))
        return SpoolWriter(str(spool.folder))


def register(spark: Any) -> None:
    """Have a session know the data source. One that is made after the installation finds it by itself."""
    spark.dataSource.register(FlamestreamDataSource)


# -- outputs of a job ------------------------------------------------------------------------------------------------


class Files(InputPartition):
    """Some files, in order."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(tuple(paths))


def _spread(paths: Sequence[str]) -> list[Files]:
    size = max(-(-len(paths) // _SPREAD), 1)
    return [Files(paths[at : at + size]) for at in range(0, len(paths), size)]


def _read(partition: InputPartition) -> Iterator[Any]:
    for path in partition.value:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches()


class FolderReader(DataSourceReader):
    """What is there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def partitions(self) -> Sequence[InputPartition]:
        return _spread(output_of(self._folder).files())

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition)


class FolderStream(DataSourceStreamReader):
    """What is there, and what comes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def initialOffset(self) -> Offset:
        return {"run": "", "time": 0}

    def latestOffset(self, start: Offset, limit: Any) -> Offset:
        return output_of(self._folder).latest(start, getattr(limit, "maxFiles", None))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return _spread(output_of(self._folder).between(start, end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition)


# -- input of a job --------------------------------------------------------------------------------------------------


class Written(WriterCommitMessage):
    """The parts that a task has written; None: the batch was complete before."""

    def __init__(self, parts: Sequence[tuple[int, str, int]], query: str) -> None:
        self.parts, self.query = tuple(parts), query


class SpoolWriter(DataSourceStreamArrowWriter):
    """Writes batches into a spool, each once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        spool = Spool(Path(self._folder), NAME)
        number = int(TaskContext.get().getLocalProperty(_BATCH))
        if spool.completed(number) is not None:
            for _ in iterator:
                pass
            return Written((), "")
        parts = []
        query = ""
        for told in write_parts(iterator, str(spool.batch(number))):
            for row in told.to_pylist():
                parts.append((row["partition"], row["name"], row["rows"]))
                query = row["query"]
        return Written(parts, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        spool = Spool(Path(self._folder), NAME)
        spool.open()
        spool.go_on()
        written = [message for message in messages if isinstance(message, Written)]
        parts = sorted(part for message in written for part in message.parts)
        query = next((message.query for message in written if message.query), "")
        spool.complete(batchId, [(name, rows) for _, name, rows in parts], query)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was written is no part of the batch, and goes when that is complete."""


__all__ = ["NAME", "FlamestreamDataSource", "register"]
