"""The output of a job as the data source hands it on: files or a Delta table.

An offset is a run of the job and the time of its last file, or a Delta table and its version: everything up to there.
Files stay as they are, so what is between two offsets is the same whenever it is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote

import pyarrow.parquet as pq

from flamecore.errors import SourceError
from flamestream_spark.spool.parts import force
from flamestream_spark.tables.delta import LOG, files_of, open_table
from flamestream_spark.tables.folder import PART, Manifest, read_manifest

NAME: Final = "flamestream"
_IDLE: Final = 100
"""Versions in which nothing came are passed over so many at a time."""

Offset = dict[str, Any]


class Output(Protocol):
    """Outputs of a job. Every method raises SourceError: it cannot be read, or is not what was read before."""

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


def output_of(folder: Path) -> Output:
    """Return the outputs in a folder, of which there may be none yet."""
    return TableOutput(folder) if (folder / LOG).is_dir() else FolderOutput(folder)


def _wrong(what: str, hint: str, position: str = "") -> SourceError:
    return SourceError(what, hint=hint, source=NAME, position=position)


def _replaced(folder: Path, offset: Offset) -> SourceError:
    return _wrong(
        f"the output in {folder} has been replaced since it was read",
        "Start the query with a checkpoint of its own, from the beginning.",
        str(offset),
    )


@dataclass(frozen=True, order=True)
class _File:
    """A file of a folder: place of its run, time, name."""

    run: int
    time: int
    name: str


class FolderOutput:
    """Files of sink `spark`, in a folder that says which of them count."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        for path in self.files():
            return from_arrow_schema(pq.read_schema(path))
        return None

    def files(self) -> list[str]:
        return self._paths(self._found(self._manifest()))

    def latest(self, start: Offset, most: int | None) -> Offset:
        if read_manifest(self._folder) is None:
            return start  # the job has not begun
        manifest = self._manifest()
        files = self._behind(start, manifest)
        if not files:
            return start
        # What is told of is to be there still when the power has been off.
        force(str(self._folder))
        last = files[: most or len(files)][-1]
        return {"run": manifest.runs[last.run], "time": last.time}

    def between(self, start: Offset, end: Offset) -> list[str]:
        manifest = self._manifest()
        until = (self._place(end, manifest), end["time"])
        return self._paths([file for file in self._behind(start, manifest) if (file.run, file.time) <= until])

    def _manifest(self) -> Manifest:
        found = read_manifest(self._folder)
        if found is None:
            raise _wrong(
                f"{self._folder} is no output of a job",
                'Give the folder that a sink with use = "spark" writes, or wait until the job has begun.',
            )
        return found

    def _found(self, manifest: Manifest) -> list[_File]:
        if manifest.partitions:
            raise _wrong(
                f"{self._folder} is partitioned by {', '.join(manifest.partitions)}",
                f'Read it as Spark does: spark.read.parquet("{self._folder}").',
            )
        found = []
        for entry in self._folder.iterdir():
            part = PART.fullmatch(entry.name)
            if part is None or part[1] not in manifest.runs:
                continue
            if entry.suffix != ".parquet":
                raise _wrong(f"{entry} is no Parquet file", 'Use format = "parquet" or "delta" in the sink.')
            found.append(_File(manifest.runs.index(part[1]), int(part[2]), entry.name))
        return sorted(found)

    def _behind(self, start: Offset, manifest: Manifest) -> list[_File]:
        files = self._found(manifest)
        if not start["run"]:
            return files
        since = (self._place(start, manifest), start["time"])
        return [file for file in files if (file.run, file.time) > since]

    def _place(self, offset: Offset, manifest: Manifest) -> int:
        if offset["run"] not in manifest.runs:
            raise _replaced(self._folder, offset)
        return manifest.runs.index(offset["run"])

    def _paths(self, files: list[_File]) -> list[str]:
        return [str(self._folder / file.name) for file in files]


class TableOutput:
    """A Delta table; who else writes to it adds to the output."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def schema(self) -> Any:
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self._table().schema().to_json()))

    def files(self) -> list[str]:
        return files_of(self._table(), str(self._folder))

    def latest(self, start: Offset, most: int | None) -> Offset:
        table = self._table()
        version, run = table.version(), table.metadata().id
        if start["run"]:
            version = min(version, start["time"] + (most or version))
            come = version > start["time"] and self.between(start, {"run": run, "time": version})
            if not come and version < start["time"] + _IDLE:
                return start
        force(str(self._folder))
        force(str(self._folder / LOG))
        return {"run": run, "time": version}

    def between(self, start: Offset, end: Offset) -> list[str]:
        if not start["run"]:
            return files_of(self._table(end["time"]), str(self._folder))
        if start["run"] != end["run"]:
            raise _replaced(self._folder, start)
        return [path for version in range(start["time"] + 1, end["time"] + 1) for path in self._added(version, start)]

    def _added(self, version: int, start: Offset) -> list[str]:
        try:
            entry = (self._folder / LOG / f"{version:020d}.json").read_text("utf-8")
        except FileNotFoundError:
            raise _wrong(
                f"version {version} of Delta table {self._folder} is no longer in its log",
                "Start the query with a checkpoint of its own, from the beginning.",
                str(version),
            ) from None
        actions = [json.loads(line) for line in entry.splitlines()]
        if any(action["remove"].get("dataChange", True) for action in actions if "remove" in action):
            raise _replaced(self._folder, start)
        added = [action["add"] for action in actions if "add" in action]
        return [str(self._folder / unquote(add["path"])) for add in added if add["dataChange"]]

    def _table(self, version: int | None = None) -> Any:
        read = {} if version is None else {"versionAsOf": str(version)}
        table = open_table(str(self._folder), read, NAME)
        if parted := table.metadata().partition_columns:
            raise _wrong(
                f"Delta table {self._folder} is partitioned by {', '.join(parted)}",
                'Read it with source `spark` and format = "delta", or with the jars of Delta Lake.',
            )
        return table
