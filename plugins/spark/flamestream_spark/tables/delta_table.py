"""A table of Delta Lake that takes batches exactly once.

The property `flamestream` of a table names its origin: its fingerprint, its run, its writer. A batch is one
commit that adds its file, and says in the same step, as application transaction of the run, below which time all is
there. A run that opens a table changes the property: the log refuses a commit by anyone who has not seen that change.
"""

from __future__ import annotations

import re
import threading
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePath
from secrets import token_hex
from typing import Any, Final

import msgspec
import pyarrow as pa

from flamecore.abc.sink import Mode, check_time, goes_on, taken_over, would_replace
from flamecore.abc.source import EdgeContext
from flamecore.errors import SinkError
from flamecore.model.meta import MIN_TIME
from flamestream_spark.storage.folder import FolderPlace
from flamestream_spark.tables.delta import LOG, delta_rs, gist_of, unfit
from flamestream_spark.tables.delta_objects import DeltaObjects
from flamestream_spark.tables.partitions import LONGEST_BYTES, Piece, last_of, pieces_of
from flamestream_spark.tables.schemas import OtherColumnsError, Schema, grown

_PROPERTY: Final = "flamestream"
_PART: Final = re.compile(r"part-([0-9a-f]{8})-(-?\d{19,20})-[0-9a-f]{16}(?:-\d+)?\.parquet")
_TRIES: Final = 10
"""Maximum attempts of a commit that conflicts with other writers of the table."""


class Owner(msgspec.Struct, frozen=True):
    """The origin and the writer of a table, stored in its properties.

    Attributes:
        fingerprint: Fingerprint of the flow and inputs that it is the output of.
        owner: The run that opened it last, the only one of this project that writes.
        run: Its transactions are those of the output.
        whole: Whether nothing but output of such sinks was in it when the first of them came.
    """

    fingerprint: str
    owner: str
    run: str
    whole: bool


class DeltaTable:
    """One such table, to be written.

    Args:
        place: Its place; created if it does not exist.
        context: The sink's.
        mode: Fate of output that is there.
        schema: Schema of its rows; a `pyarrow.Schema`.
        partitions: Columns by whose values its files are cut.
        key: Columns of which each row has values of its own: one that comes takes the place of the former. Without it
            all rows stay.
        options: Options of delta-rs for an object store.
        new: Fate of columns that are new to the table.
    """

    def __init__(
        self,
        place: FolderPlace | DeltaObjects,
        context: EdgeContext,
        mode: Mode,
        schema: Any,
        partitions: Sequence[str] = (),
        key: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        new: Schema = "keep",
    ) -> None:
        self._new: Schema = new
        self._place, self._options = place, dict(options or {}) or None
        self._partitions = list(partitions)
        self._key = tuple(key)
        self._context = context
        self._mode = mode
        self._schema = schema
        self._rs = delta_rs("sink")
        self._mine: Owner | None = None
        self._time = MIN_TIME
        self._forced = -1
        self._lock = threading.Lock()
        self._table: Any = None
        """As this object has seen it last; what it writes holds on to that."""

    def replaces(self) -> bool:
        """Return whether `open` would destroy output of another run.

        Raises:
            SinkError: The table cannot be read.
            OSError: The disk says no.
        """
        with self._lock, self._said():
            if not self._rs.DeltaTable.is_deltatable(self._place.url, self._options):
                return False
            self._table = self._rs.DeltaTable(self._place.url, storage_options=self._options)
            held, empty = self._owner(), not self._table.file_uris()
            # Rows of others are not replaced; `open` refuses them at once.
            whole = held is not None and held.whole
            return whole and would_replace(self._context, self._mode, held.fingerprint if held else None, empty=empty)

    def open(self) -> int:
        """Make ready, and return the time up to which output is held.

        Raises:
            SinkError: It cannot be, or what is there is not the sink's own.
            OSError: The disk says no.
        """
        with self._lock, self._said():
            if not self._rs.DeltaTable.is_deltatable(self._place.url, self._options):
                self._begin()
            self._taken()
            assert self._mine is not None
            held = self._table.transaction_version(self._mine.run)
            self._time = MIN_TIME if held is None else held
            parts = ((name, _PART.fullmatch(PurePath(name).name)) for name in self._place.names(below=True))
            self._place.remove(  # what was written, and never committed
                name for name, part in parts if part and part[1] == self._mine.run and int(part[2]) > self._time
            )
            return self._time

    def _begin(self) -> None:
        """Make an empty table without an owner."""
        self._place.make()
        strangers = sorted(name for name in self._place.names(below=True) if name[0] not in "._")
        if strangers:
            raise self.error(
                f"{self._place.url} is no Delta table, and holds files: {', '.join(strangers[:3])}",
                "Write to a folder of its own.",
            )
        self._rs.DeltaTable.create(
            self._place.url,
            self._schema,
            mode="ignore",
            partition_by=self._partitions,
            storage_options=self._options,
        )

    def _taken(self) -> None:
        """Record in the table who writes it from now on."""
        for attempt in range(_TRIES):
            self._table = self._rs.DeltaTable(self._place.url, storage_options=self._options)
            self._forced = max(self._table.version() - 2, -1)
            try:
                self._take()
            except self._rs.exceptions.CommitFailedError:  # somebody has written meanwhile
                if attempt == _TRIES - 1:
                    raise
            else:
                return

    def _take(self) -> None:
        held = self._owner()
        empty = not self._table.file_uris()
        resumed = goes_on(
            self._context, self._mode, held.fingerprint if held else None, f"Delta table {self._place.url}", empty=empty
        )
        whole = empty if held is None else held.whole
        why = self._unfit()
        replaced = not resumed and self._mode != "append" and not (empty and not why)
        if replaced and not whole:
            raise self.error(
                f"Delta table {self._place.url} holds rows that no such sink has written",
                'Write to a table of its own; or add to them with mode = "append".',
            )
        if why and not replaced:
            raise self.error(f"Delta table {self._place.url} {why}", "Write to a table of its own.")
        if not replaced:
            self._add_columns()
        run = held.run if resumed and held is not None else token_hex(4)
        self._mine = Owner(self._context.fingerprint, token_hex(8), run, whole)
        if not replaced:
            self._table.alter.set_table_properties(_told(self._mine), raise_if_not_exists=False)
        else:
            self._replace(held or self._mine)
        self._refresh()
        self._still_mine()

    def _replace(self, held: Owner) -> None:
        """Empty the table in two steps.

        After the first one no other writer of this project adds rows that the second removes.
        """
        assert self._mine is not None
        taking = msgspec.structs.replace(held, owner=self._mine.owner)
        self._table.alter.set_table_properties(_told(taking), raise_if_not_exists=False)
        self._rs.DeltaTable.create(
            self._place.url,
            self._schema,
            mode="overwrite",
            partition_by=self._partitions,
            storage_options=self._options,
            configuration=_told(self._mine),
            raise_if_key_not_exists=False,
        )

    def _unfit(self) -> str:
        """Return why the table does not allow a plain append; empty: it does, perhaps with more columns."""
        try:
            self._grown()
        except OtherColumnsError as error:
            return unfit(self._table, self._partitions) or str(error)
        return unfit(self._table, self._partitions)

    def _grown(self) -> dict[str, str]:
        there = {field.name: str(field.type) for field in self._table.schema().fields}
        here = {field.name: str(field.type) for field in self._rs.Schema.from_arrow(self._schema).fields}
        return grown(there, here, self._new)

    def _add_columns(self) -> None:
        """Add columns that are new to the table, and write in its order of columns from now on."""
        there = {field.name for field in self._table.schema().fields}
        if new := [field for field in self._rs.Schema.from_arrow(self._schema).fields if field.name not in there]:
            self._table.alter.add_columns(new)
            self._table.update_incremental()
        names = [field.name for field in self._table.schema().fields]
        self._schema = pa.schema([self._schema.field(name) for name in names], self._schema.metadata)

    def put(self, time: int, table: Any, write: Callable[[Any, Path], None]) -> None:
        """Add the rows of a batch, or put them in the place of those of the same keys.

        Args:
            time: Time of the batch.
            table: Its rows.
            write: Writes rows to a file of Parquet.

        Raises:
            TimeRegressionError: `time` is below an earlier one.
            SinkError: Another run has taken over, or the log refuses it.
            OSError: The disk says no.
        """
        assert self._mine is not None, "write before open"
        check_time(self._context, time, self._time)
        table = table.select(self._schema.names)
        if self._key:
            for name in self._key:
                lacking = {None, ""} if name in self._partitions else {None}
                if not lacking.isdisjoint(table.column(name).to_pylist()):
                    raise self.error(
                        f"column {name!r} is part of the key, and empty", "Map the payload before the sink."
                    )
            with self._lock:
                self._commit(time, partial(self._merge, last_of(table, self._key)))
            return
        longest_bytes = LONGEST_BYTES if isinstance(self._place, FolderPlace) else None
        cut = pieces_of(table, self._partitions, longest_bytes)
        # With numbers of their own, since a file system that does not distinguish case takes two folders for one. The
        # log has the values.
        stem = f"part-{self._mine.run}-{time:020d}-{self._mine.owner}"
        names = [f"{stem}-{number}.parquet" if self._partitions else f"{stem}.parquet" for number in range(len(cut))]
        pieces = [(f"{piece.folder}/{name}".lstrip("/"), piece) for name, piece in zip(names, cut, strict=True)]
        put: list[str] = []
        actions = []
        try:
            for path, piece in pieces:
                size = self._place.put(path, partial(write, piece.table))
                put.append(path)
                actions.append(self._added(piece, path, size))
        except BaseException:
            self._place.remove(put)
            raise
        # If the process dies here they are part of no version, and go when the table is opened again.
        with self._lock:
            self._commit(time, partial(self._add, actions))

    def _added(self, piece: Piece, path: str, size: int) -> Any:
        return self._rs.transaction.AddAction(
            path=path,
            size=size,
            partition_values=dict(piece.values),
            modification_time=int(clock.time() * 1000),
            data_change=True,
            stats=msgspec.json.encode({"numRecords": piece.table.num_rows}).decode(),
        )

    def _add(self, actions: Sequence[Any], done: Any) -> None:
        """Make a version with more files."""
        self._table.create_write_transaction(
            list(actions), "append", self._schema, partition_by=self._partitions, commit_properties=done
        )

    def _merge(self, table: Any, done: Any) -> None:
        """Make a version in which rows have taken the place of those of the same keys."""
        before = set(self._table.file_uris())
        same = " AND ".join(f'old."{name}" = new."{name}"' for name in self._key)
        merge = self._table.merge(table, same, source_alias="new", target_alias="old", commit_properties=done)
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        new = set(self._table.file_uris()) - before
        self._place.force(path.removeprefix("file://").removeprefix(f"{self._place.url}/") for path in sorted(new))

    def sync(self, time: int) -> None:
        """Make durable what is there, and that it is complete below `time`.

        It raises what `put` raises.
        """
        assert self._mine is not None, "sync before open"
        with self._lock:
            if time > self._time:
                self._commit(time, partial(self._add, ()))
            else:
                with self._said():
                    self._refresh()
                    self._still_mine()
            self._place.force(("", LOG))

    def _commit(self, time: int, change: Callable[[Any], None]) -> None:
        """Make a version by `change`.

        `change` is given the properties of the commit, which say that all below `time` is there.
        """
        assert self._mine is not None
        run = self._mine.run
        done = self._rs.CommitProperties(app_transactions=[self._rs.Transaction(run, time)])
        with self._said():
            for attempt in range(_TRIES):
                self._still_mine()
                try:
                    change(done)
                except self._rs.exceptions.CommitFailedError:
                    self._refresh()
                    if time > self._time and self._table.transaction_version(run) == time:
                        break  # it was done nevertheless
                    if attempt == _TRIES - 1:
                        raise
                    if why := self._unfit():
                        raise self.error(
                            f"Delta table {self._place.url} {why}", "Write to a table of its own."
                        ) from None
                else:
                    self._refresh()
                    break
            self._time = time

    def _refresh(self) -> None:
        """See what is there now, and force it to the disk."""
        self._table.update_incremental()
        version = self._table.version()
        self._place.force(f"{LOG}/{number:020d}.json" for number in range(self._forced + 1, version + 1))
        self._forced = version

    def _owner(self) -> Owner | None:
        said = self._table.metadata().configuration.get(_PROPERTY)
        try:
            return None if said is None else msgspec.json.decode(said, type=Owner)
        except ValueError as error:
            raise self.error(
                f"property {_PROPERTY!r} of Delta table {self._place.url} is not as it was written: {error}",
                "Put it back from an earlier version of the table; or write to a table of its own.",
            ) from error

    def _still_mine(self) -> None:
        """Raise an error if another run has opened the table since.

        The check is of the version seen last: a commit is refused if it is not the newest.
        """
        held = self._owner()
        assert self._mine is not None
        if held is None or held.owner != self._mine.owner:
            raise taken_over(self._context, f"Delta table {self._place.url}")

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except self._rs.exceptions.DeltaError as error:
            raise self.error(
                f"Delta table {self._place.url}: {gist_of(error)}", "Is it whole, and may this user write there?"
            ) from error

    def error(self, what: str, hint: str) -> SinkError:
        """Something is wrong with the table."""
        return SinkError(f"sink {self._context.name!r}: {what}", hint=hint, sink=self._context.name)


def _told(owner: Owner) -> dict[str, str]:
    return {_PROPERTY: msgspec.json.encode(owner).decode()}
