"""Writers on executors: they put rows from Spark into files of Arrow in one place.

Each file is there whole or not at all.

Nothing but pyarrow is imported, and fsspec for an object store. The module travels with the function: executors need
not have this package.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

SEAL: Final = "__flamestream_seal"
"""Column of rows that Spark may have to read again: a number that depends on all that a row holds."""

FILE: Final = "__flamestream_file"
START: Final = "__flamestream_start"
LENGTH: Final = "__flamestream_length"
SIZE: Final = "__flamestream_size"
PLACE: Final = (FILE, START, LENGTH, SIZE)
"""Columns that say where in which file a row is from: the file, the first byte of the block, its length, the file's."""

ABOUT: Final = b"flamestream.part"
"""Key of the schema's metadata that says what part it is."""

FOLDED: Final = b"flamestream.folded"
"""Key of the schema's metadata, there if names of columns are one to Spark that differ by case alone."""

SUFFIX: Final = ".arrow"
SCHEMA: Final = "name string, rows bigint, partition int, file string, start bigint, query string"
"""The result as a schema of Spark: a row for each part that was written."""

_RESULT: Final = pa.schema(
    [
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("partition", pa.int32()),
        ("file", pa.string()),
        ("start", pa.int64()),
        ("query", pa.string()),
    ]
)
_QUERY: Final = "sql.streaming.queryId"


def write_parts(
    batches: Iterable[Any],
    folder: str,
    *,
    names: Iterable[str] = (),
    by_file: bool = False,
    drop: Iterable[str] = (),
    force: bool = True,
    folded: bool = False,
) -> Iterator[Any]:
    """Write the rows of one task.

    Args:
        batches: `pyarrow.RecordBatch`es.
        folder: Where: one that is there, and seen by this machine; or a URL, by the credentials of this machine.
        names: Names that the columns get; none: they keep theirs.
        by_file: Whether each block of a file becomes a part of its own, as the columns `PLACE` say; otherwise the task
            gives one part.
        drop: Names of columns that are of no more use.
        force: Whether parts are forced to the disk.
        folded: Whether names of columns are one to Spark that differ by case alone.

    Yields:
        `pyarrow.RecordBatch`es as `SCHEMA` says.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    number = context.partitionId() if context is not None else 0
    query = (context.getLocalProperty(_QUERY) if context is not None else None) or ""
    called, left = list(names), list(drop)
    part: Part | None = None
    try:
        for batch in batches:
            if called:
                batch = batch.rename_columns(called)
            for place, rows in _blocks(batch) if by_file else (({}, batch),):
                about = {"partition": number, **place}
                if part is not None and part.about != about:
                    yield part.close(query)
                    part = None
                part = part or Part(folder, about, force, folded)
                part.add(rows.drop_columns(left) if left else rows)
        if part is None and not by_file:
            part = Part(folder, {"partition": number}, force, folded)  # it says that nothing is missing
        if part is not None:
            yield part.close(query)
    except BaseException:
        if part is not None:
            part.discard()
        raise


def tell_query(batches: Iterable[Any]) -> Iterator[Any]:
    """Say which query a task is of, in one row; an empty text: of none."""
    from pyspark import TaskContext

    for _ in batches:
        pass
    context = TaskContext.get()
    query = (context.getLocalProperty(_QUERY) if context is not None else None) or ""
    yield pa.RecordBatch.from_pydict({"query": [query]})


def _blocks(batch: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the rows of each block of each file, which lie together."""
    ends = {batch.num_rows}
    for name in (FILE, START):
        ends.update(pc.run_end_encode(batch.column(name)).run_ends.to_pylist())
    at = 0
    for end in sorted(ends):
        if end > at:
            file, start, length, size = (batch.column(name)[at].as_py() for name in PLACE)
            yield {"file": file, "start": start, "until": start + length, "size": size}, batch.slice(at, end - at)
        at = end


class Part:
    """One file, while it is written.

    Args:
        folder: The folder of the file.
        about: Description of the rows that it holds.
        force: Whether it is forced to the disk.
        folded: As for `write_parts`.
    """

    def __init__(self, folder: str, about: dict[str, Any], force: bool, folded: bool = False) -> None:
        self.about = about
        self._folded = {FOLDED: b""} if folded else {}
        self.name = f"part-{about['partition']:06d}-{uuid.uuid4().hex}{SUFFIX}"
        self._path = f"{folder}/{self.name}"
        self._far = "://" in folder
        self._aside = f"{tempfile.gettempdir() if self._far else folder}/.{self.name}"
        os.close(os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # Arrow has no word for the mode
        self._file = pa.OSFile(self._aside, "wb")
        self._writer: Any = None
        self._force = force
        self._rows = 0

    def add(self, rows: Any) -> None:
        rows = _in_utc(rows)
        if self._writer is None:
            self._open(rows.schema)
        if rows.num_rows:
            self._writer.write_batch(rows)
            self._rows += rows.num_rows

    def _open(self, schema: Any) -> None:
        metadata = {**(schema.metadata or {}), **self._folded, ABOUT: json.dumps(self.about)}
        self._writer = pa.ipc.new_file(self._file, schema.with_metadata(metadata))

    def close(self, query: str) -> Any:
        """Make it be there; returns what is said of it."""
        if self._writer is None:
            self._open(pa.schema([]))
        self._writer.close()
        self._file.close()
        if self._far:
            self._upload()
        else:
            if self._force:
                force(self._aside)
            os.rename(self._aside, self._path)
        about = self.about
        row = (self.name, self._rows, about["partition"], about.get("file"), about.get("start"), query)
        return pa.RecordBatch.from_arrays(
            [pa.array([value], field.type) for value, field in zip(row, _RESULT, strict=True)], schema=_RESULT
        )

    def _upload(self) -> None:
        import fsspec

        scheme, _, path = self._path.partition("://")
        # The name is in no other file, and nobody reads it before the task has told of it: it is written in place.
        host = {"host": path.partition("/")[0]} if scheme == "hdfs" else {}
        fsspec.filesystem(scheme, skip_instance_cache=True, **host).put_file(self._aside, self._path)
        os.unlink(self._aside)

    def discard(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        if os.path.exists(self._aside):
            os.unlink(self._aside)


def _in_utc(rows: Any) -> Any:
    """Return the rows with times in UTC.

    Spark writes them in the zone of the session, which may change.
    """
    fields = [(field, _utc(field.type)) for field in rows.schema]
    if all(kind is field.type or kind == field.type for field, kind in fields):
        return rows
    columns = [
        column if kind == field.type else column.cast(kind)
        for column, (field, kind) in zip(rows.columns, fields, strict=True)
    ]
    schema = pa.schema([field.with_type(kind) for field, kind in fields], rows.schema.metadata)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _utc(kind: Any) -> Any:
    """Return the type with times in UTC.

    Values within it may be null: Arrow 26 checks that where values are null.
    """
    types = pa.types
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if types.is_struct(kind):
        parts = [(field, _utc(field.type)) for field in kind]
        if any(part != field.type for field, part in parts):
            return pa.struct([field.with_type(part).with_nullable(True) for field, part in parts])
    elif types.is_list(kind):
        if (part := _utc(kind.value_type)) != kind.value_type:
            return pa.list_(kind.value_field.with_type(part).with_nullable(True))
    elif types.is_map(kind):
        key, item = _utc(kind.key_type), _utc(kind.item_type)
        if (key, item) != (kind.key_type, kind.item_type):
            return pa.map_(kind.key_field.with_type(key), kind.item_field.with_type(item).with_nullable(True))
    return kind


def force(path: str) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
