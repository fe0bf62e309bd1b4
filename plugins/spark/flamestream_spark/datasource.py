"""The data source `flamestream` of Spark, both ways.

    df.writeStream.format("flamestream").option("path", SPOOL)      rows go to a running job: source `spark`, `spool`
    spark.readStream.format("flamestream").option("path", FOLDER)   outputs of a job come: sink `spark`
    spark.read.format("flamestream").option("path", FOLDER)         outputs as far as there are any

An offset is a run of the job and the time of its last file: everything up to there. Files stay as they are, so what is
between two offsets is the same whenever it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from flamestream_spark.folder import PART, Manifest, read_manifest
from flamestream_spark.parts import force, write_parts
from flamestream_spark.spool import Spool

NAME: Final = "flamestream"
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
        from pyspark.sql.pandas.types import from_arrow_schema

        folder = self._path()
        for file in files_of(folder, manifest_of(folder)):
            return from_arrow_schema(pq.read_schema(folder / file.name))
        raise SourceError(
            f"there is nothing in {folder} yet, so nobody knows its columns",
            hint='Name them: .schema("word string, …"); or start when the job has written something.',
            source=NAME,
            position="",
        )

    def reader(self, schema: Any) -> DataSourceReader:
        return FolderReader(self._path())

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - as Spark has it
        return FolderStream(self._path())

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return SpoolWriter(str(self._path()))


def register(spark: Any) -> None:
    """Have a session know the data source. One that is made after the installation finds it by itself."""
    spark.dataSource.register(FlamestreamDataSource)


# -- outputs of a job ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class File:
    """A file of a job's output: place of its run, time, name."""

    run: int
    time: int
    name: str


class Files(InputPartition):
    """Some files, in order."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(tuple(paths))


def manifest_of(folder: Path) -> Manifest:
    """What a folder says of itself.

    Raises:
        SourceError: It is no output of sink `spark`.
    """
    found = read_manifest(folder)
    if found is None:
        raise SourceError(
            f"{folder} is no output of a job",
            hint='Give the folder that a sink with use = "spark" writes, or wait until the job has begun.',
            source=NAME,
            position="",
        )
    return found


def files_of(folder: Path, manifest: Manifest) -> list[File]:
    """The files that count, in order."""
    found = []
    for entry in folder.iterdir():
        part = PART.fullmatch(entry.name)
        if part is None or part[1] not in manifest.runs:
            continue
        if entry.suffix != ".parquet":
            raise SourceError(
                f"{entry} is no Parquet file", hint='Use format = "parquet" in the sink.', source=NAME, position=""
            )
        found.append(File(manifest.runs.index(part[1]), int(part[2]), entry.name))
    return sorted(found)


def _spread(folder: Path, files: Sequence[File]) -> list[Files]:
    size = max(-(-len(files) // _SPREAD), 1)
    paths = [str(folder / file.name) for file in files]
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
        return _spread(self._folder, files_of(self._folder, manifest_of(self._folder)))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition)


class FolderStream(DataSourceStreamReader):
    """What is there, and what comes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"run": "", "time": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        if read_manifest(self._folder) is None:
            return start  # the job has not begun
        manifest = manifest_of(self._folder)
        files = self._behind(start, manifest)
        if not files:
            return start
        most = getattr(limit, "maxFiles", None) or len(files)
        # What is told of is to be there still when the power has been off.
        force(str(self._folder))
        last = files[:most][-1]
        return {"run": manifest.runs[last.run], "time": last.time}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        manifest = manifest_of(self._folder)
        until = (self._place(end, manifest), end["time"])
        return _spread(self._folder, [file for file in self._behind(start, manifest) if (file.run, file.time) <= until])

    def _behind(self, start: dict[str, Any], manifest: Manifest) -> list[File]:
        files = files_of(self._folder, manifest)
        if not start["run"]:
            return files
        since = (self._place(start, manifest), start["time"])
        return [file for file in files if (file.run, file.time) > since]

    def _place(self, offset: dict[str, Any], manifest: Manifest) -> int:
        if offset["run"] not in manifest.runs:
            raise SourceError(
                f"the output in {self._folder} has been replaced since it was read",
                hint="Start the query with a checkpoint of its own, from the beginning.",
                source=NAME,
                position=str(offset),
            )
        return manifest.runs.index(offset["run"])

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

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        spool = Spool(Path(self._folder), NAME)
        spool.open()
        spool.go_on()
        written = [message for message in messages if isinstance(message, Written)]
        parts = sorted(part for message in written for part in message.parts)
        query = next((message.query for message in written if message.query), "")
        spool.complete(batchId, [(name, rows) for _, name, rows in parts], query)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was written is no part of the batch, and goes when that is complete."""


__all__ = ["NAME", "FlamestreamDataSource", "register"]
