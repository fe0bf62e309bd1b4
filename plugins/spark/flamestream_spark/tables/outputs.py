"""Output of a job as the data source hands it on.

It is files or a Delta table, in a folder or an object store.

An offset is a run of the job and the time of its last file; or in an object store the number of its claim, as one that
came to nothing may have had a later time than the one behind it; or a Delta table and its version. It means everything
up to there. Files stay as they are, so what is between two offsets is the same whenever it is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote

import pyarrow.parquet as pq

from flamecore.errors import SourceError
from flamecore.toolkit.places import is_url
from flamestream_spark import register
from flamestream_spark.compat import spark_schema
from flamestream_spark.storage.hadoop import has_file_system
from flamestream_spark.storage.place import Place
from flamestream_spark.storage.places import place_of
from flamestream_spark.tables.claims import CLAIMED_PART, settled
from flamestream_spark.tables.delta import LOG, files_of, open_table
from flamestream_spark.tables.folder import PART, read_manifest

NAME: Final = "flamestream"
_IDLE: Final = 100
"""Versions in which nothing came are passed over so many at a time."""

Offset = dict[str, Any]


class Output(Protocol):
    """Output of a job.

    Every method raises SourceError if it cannot be read, or is not what was read before.
    """

    def schema(self) -> Any:
        """Return the columns as a `StructType`; None: there is nothing yet."""

    def files(self) -> list[str]:
        """Return all files, in order."""

    def latest(self, start: Offset, most: int | None) -> Offset:
        """Return the offset of the newest output, at most `most` files on.

        `start` means that nothing has come.
        """

    def between(self, start: Offset, end: Offset) -> list[str]:
        """Return the files between two offsets, in order."""


def read_output(spark: Any, url: str) -> Any:
    """Return a DataFrame of the files of a job's output.

    Spark reads them where its session has the file system; otherwise the data source does, by fsspec.

    Args:
        spark: The session.
        url: A folder or a URL, with files.

    Raises:
        MissingDependencyError: The data source is needed, and this PySpark has none in Python.
    """
    if has_file_system(spark, url):
        return spark.read.option("mergeSchema", has_grown(place_of(url, "path"))).parquet(url)
    register(spark)
    return spark.read.format(NAME).load(url)


def output_of(place: Place) -> Output:
    """Return the outputs in a place, of which there may be none yet."""
    return TableOutput(place) if place.names(LOG) else FilesOutput(place)


def has_grown(place: Place) -> bool:
    """Return whether files of an output lack columns that came later."""
    if is_url(place.url):
        found = settled(place)
        return found is not None and found[0].added
    manifest = read_manifest(Path(place.url))
    return manifest is not None and manifest.added


def _wrong(what: str, hint: str, position: str = "") -> SourceError:
    return SourceError(what, hint=hint, source=NAME, position=position)


def _replaced(place: Place, offset: Offset) -> SourceError:
    return _wrong(
        f"the output in {place.url} has been replaced since it was read",
        "Start the query with a checkpoint of its own, from the beginning.",
        str(offset),
    )


@dataclass(frozen=True, order=True)
class _File:
    """A file of output: place of its run, its time or number, name."""

    run: int
    time: int
    name: str


class _Told(NamedTuple):
    """The files that count, as the output itself tells.

    Attributes:
        runs: Names of the runs, in order.
        partitions: The columns whose values are folders.
        files: The files, in order.
    """

    runs: Sequence[str]
    partitions: Sequence[str]
    files: Sequence[_File]


class FilesOutput:
    """Files of sink `spark`, in a place that says which of them count."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def schema(self) -> Any:
        for file in self._begun().files[-1:]:  # the last one has all columns: they are only added to
            with self._place.open(file.name) as opened:
                return spark_schema(pq.read_schema(opened))
        return None

    def files(self) -> list[str]:
        return self._paths(self._begun().files)

    def latest(self, start: Offset, most: int | None) -> Offset:
        told = self._told()
        files = [] if told is None else self._behind(start, told)
        if told is None or not files:
            return start
        # Files that are named to others have to survive a loss of power.
        self._place.force([""])
        last = files[: most or len(files)][-1]
        return {"run": told.runs[last.run], "time": last.time}

    def between(self, start: Offset, end: Offset) -> list[str]:
        told = self._begun()
        until = (self._run(end, told), end["time"])
        return self._paths([file for file in self._behind(start, told) if (file.run, file.time) <= until])

    def _begun(self) -> _Told:
        told = self._told()
        if told is None:
            raise _wrong(
                f"{self._place.url} is no output of a job",
                'Give the place that a sink with use = "spark" writes, or wait until the job has begun.',
            )
        return told

    def _told(self) -> _Told | None:
        """Return what the output tells; None: the job has not begun."""
        told = _told_by_claims(self._place) if is_url(self._place.url) else _told_by_manifest(self._place)
        if told is not None and told.partitions:
            raise _wrong(
                f"{self._place.url} is partitioned by {', '.join(told.partitions)}",
                f'Read it as Spark does: spark.read.parquet("{self._place.url}").',
            )
        for file in () if told is None else told.files:
            if not file.name.endswith(".parquet"):
                raise _wrong(
                    f"{self._place.at(file.name)} is no Parquet file",
                    'Use format = "parquet" or "delta" in the sink.',
                )
        return told

    def _behind(self, start: Offset, told: _Told) -> list[_File]:
        if not start["run"]:
            return list(told.files)
        since = (self._run(start, told), start["time"])
        return [file for file in told.files if (file.run, file.time) > since]

    def _run(self, offset: Offset, told: _Told) -> int:
        if offset["run"] not in told.runs:
            raise _replaced(self._place, offset)
        return told.runs.index(offset["run"])

    def _paths(self, files: Sequence[_File]) -> list[str]:
        return [self._place.at(file.name) for file in files]


def _told_by_manifest(place: Place) -> _Told | None:
    manifest = read_manifest(Path(place.url))
    if manifest is None:
        return None
    found = ((PART.fullmatch(name), name) for name in place.names())
    files = [_File(manifest.runs.index(p[1]), int(p[2]), name) for p, name in found if p and p[1] in manifest.runs]
    return _Told(manifest.runs, manifest.partitions, sorted(files))


def _told_by_claims(place: Place) -> _Told | None:
    names = [name for name in place.names() if CLAIMED_PART.fullmatch(PurePath(name).name)]
    found = settled(place)  # read behind the names, so that it says of all of them whether they count
    if found is None:
        return None
    claim, unsettled = found
    parts = ((CLAIMED_PART.fullmatch(name), name) for name in names if name not in unsettled)
    files = [_File(claim.runs.index(p[1]), int(p[3]), name) for p, name in parts if p and p[1] in claim.runs]
    return _Told(claim.runs, claim.partitions, sorted(files))


class TableOutput:
    """A Delta table; who else writes to it adds to the output."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def schema(self) -> Any:
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self._table().schema().to_json()))

    def files(self) -> list[str]:
        return files_of(self._table(), self._place.url)

    def latest(self, start: Offset, most: int | None) -> Offset:
        table = self._table()
        version, run = table.version(), table.metadata().id
        if start["run"]:
            version = min(version, start["time"] + (most or version))
            come = version > start["time"] and self.between(start, {"run": run, "time": version})
            if not come and version < start["time"] + _IDLE:
                return start
        self._place.force(["", LOG])
        return {"run": run, "time": version}

    def between(self, start: Offset, end: Offset) -> list[str]:
        if not start["run"]:
            return files_of(self._table(end["time"]), self._place.url)
        if start["run"] != end["run"]:
            raise _replaced(self._place, start)
        return [path for version in range(start["time"] + 1, end["time"] + 1) for path in self._added(version, start)]

    def _added(self, version: int, start: Offset) -> list[str]:
        entry = self._place.read(f"{LOG}/{version:020d}.json")
        if entry is None:
            raise _wrong(
                f"version {version} of Delta table {self._place.url} is no longer in its log",
                "Start the query with a checkpoint of its own, from the beginning.",
                str(version),
            )
        actions = [json.loads(line) for line in entry.splitlines()]
        if any(action["remove"].get("dataChange", True) for action in actions if "remove" in action):
            raise _replaced(self._place, start)
        added = [action["add"] for action in actions if "add" in action]
        return [self._place.at(unquote(add["path"])) for add in added if add["dataChange"]]

    def _table(self, version: int | None = None) -> Any:
        read = {} if version is None else {"versionAsOf": str(version)}
        table = open_table(self._place.url, read, NAME)
        if parted := table.metadata().partition_columns:
            raise _wrong(
                f"Delta table {self._place.url} is partitioned by {', '.join(parted)}",
                'Read it with source `spark` and format = "delta", or with the jars of Delta Lake.',
            )
        return table
