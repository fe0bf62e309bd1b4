"""Rows of a spool as payloads, in order.

A position is the number of a row, and a seal. Where Spark reads again what a run goes on with, the seal is of all rows
up to that one, as each of them may have changed since. Elsewhere rows stay as they came, and it is of that row alone.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import Any, Final, Protocol

import msgspec
from xxhash import xxh3_64_hexdigest

from flamecore import events
from flamecore.abc.source import Batch, Reader, Rejected
from flamecore.errors import SourceError
from flamecore.logs import logger
from flamestream_spark.spool.feeding import shown
from flamestream_spark.spool.parts import FILE, SEAL
from flamestream_spark.spool.rows import Rows, rows_of
from flamestream_spark.spool.spool import Spool, Taken
from flamestream_spark.tables.payloads import Payloads, type_words

TELL_S: Final = 30.0
"""Seconds without a row after which a job says that it waits for the end of a spool that others mark."""

_RAW: Final = 1000
_END: Final = object()


class Places(Sequence[tuple[int, str]]):
    """Positions of rows in a batch, made on demand.

    Args:
        first: Number of the batch's first row.
        seal: Returns the seal of a row of the batch.
        places: Which of them.
    """

    __slots__ = ("_first", "_places", "_seal")

    def __init__(self, first: int, seal: Callable[[int], str], places: Sequence[int]) -> None:
        self._first, self._seal, self._places = first, seal, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Places(self._first, self._seal, self._places[index])
        place = self._places[index]
        return self._first + place, self._seal(place)


def seals_of(column: Any, first: int, before: int) -> Any:
    """Return the seal of all rows up to each one of a batch, which depends on their order.

    Args:
        column: The column `SEAL` of the batch.
        first: Number of the batch's first row.
        before: The seal of all rows before it.

    Returns:
        An array of numpy, of unsigned integers of 64 bits.
    """
    numpy = import_module("numpy")
    seals = column.to_numpy(zero_copy_only=False).view(numpy.uint64)
    # An odd number for each place: no two rows can be exchanged. Sums and products are modulo 2**64.
    odd = numpy.arange(first, first + len(seals), dtype=numpy.uint64) * numpy.uint64(2) + numpy.uint64(1)
    return numpy.cumsum(seals * odd, dtype=numpy.uint64) + numpy.uint64(before)


def row_seal(batch: Any, place: int) -> str:
    """Return a text by which a row is recognised."""
    row = batch.slice(place, 1)
    try:
        return xxh3_64_hexdigest(repr(row.to_pylist()).encode(errors="surrogatepass"))
    except (ValueError, OverflowError):  # it holds a value that Python has none for
        return xxh3_64_hexdigest(row.take([0]).serialize())


def _row_text(batch: Any, place: int) -> str:
    row = batch.slice(place, 1)
    try:
        return repr(row.to_pylist()[0])
    except (ValueError, OverflowError):
        columns = zip(row.schema.names, row.columns, strict=True)
        return ", ".join(f"{name}: {' '.join(column.to_string(indent=0).split())}" for name, column in columns)


class Feeds(Protocol):
    """Fills a spool."""

    error: SourceError | None
    """Why it has failed."""

    def stop(self) -> None:
        """End it, done or not."""


class RowsReader(Reader):
    """Rows of a spool.

    Args:
        source: Name of the source.
        spool: The spool, which may still be filled.
        payloads: Makes payloads of rows, once their schema is known.
        after: Go on behind the row at this position.
        feeding: The job that fills the spool, if it runs here.
        keep: Whether parts stay that a snapshot covers.
        passing: Whether parts are removed as soon as they have been read: they are not read again.
        once: Whether everything goes when all has been read.
        held: Resources to release when it is closed.
        notes: Whether it notes in the spool what it has read, for whom waits for that in another process.
        job: Name of the job that waits for others to mark the end of the spool; None: it does not.
    """

    def __init__(
        self,
        source: str,
        spool: Spool,
        payloads: Callable[[Any], Payloads],
        after: tuple[int, str] | None,
        *,
        feeding: Feeds | None = None,
        keep: bool = False,
        passing: bool = False,
        once: bool = False,
        held: ExitStack | None = None,
        notes: bool = False,
        job: str | None = None,
    ) -> None:
        self._source = source
        self.spool = spool
        self._make = payloads
        self._payloads: Payloads | None = None
        self._schema: Any = None
        self._feeding = feeding
        self._keep = keep
        self._passing = passing
        self._once = once
        self._notes = notes
        self._held = held or ExitStack()
        self._after = after
        self._next = 0
        self._batch: Any = None
        self._seals: Any = None
        self._sealed = 0
        self._at = 0
        self._files: list[tuple[int, str]] = []
        self._rows: Generator[Rows] | None = None
        self._done: list[Taken] = []
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"source {source}")
        self._waiting: asyncio.Future[Any] | None = None
        self._ended = False
        self._job = job
        self.first = 0
        """Number of the first row that it hands out."""

    async def read(self, limit: int) -> Batch | None:
        while self._batch is None or self._at >= self._batch.num_rows:
            if self._ended:
                return None
            if self._waiting is None:
                self._waiting = self._ask()
            found, seals = await self._given(self._waiting)
            self._waiting = None
            if found is _END:
                self._ended = True
                self._check_reached()
                return None
            self._waiting = self._ask()  # one ahead
            self._take(found, seals)
        at = self._at
        batch = self._batch.slice(at, limit)
        self._at += batch.num_rows
        first = self._next - self._batch.num_rows + at
        assert self._payloads is not None
        values, places, bad = self._payloads.make(batch)
        seal = partial(self._seal, self._batch, self._seals, at)
        positions = Places(first, seal, places)
        rejected = [
            Rejected((first + place, seal(place)), reason, _row_text(batch, place)[:_RAW]) for place, reason in bad
        ]
        return Batch(values, positions, rejected)

    @staticmethod
    def _seal(rows: Any, seals: Any, at: int, place: int) -> str:
        """Return the seal of a row.

        Args:
            rows: A batch.
            seals: Those of all rows up to each one of it; None: there are none.
            at: Place in the batch from which `place` counts.
            place: The row.
        """
        return row_seal(rows, at + place) if seals is None else f"{int(seals[at + place]):016x}"

    async def _given(self, waiting: asyncio.Future[Any]) -> Any:
        """Return what comes, and say once if that takes long, as the end may never be marked."""
        if self._job is not None:
            done, _ = await asyncio.wait([waiting], timeout=TELL_S)
            if not done:
                hint = 'Mark the last batch: df.write.format("flamestream").option("end", True).mode("append").save(…).'
                facts = {"job": self._job, "source": self._source, "waited_s": TELL_S, "hint": hint}
                logger().warning(events.END_AWAITED, **facts)
                self._job = None
        return await asyncio.shield(waiting)

    def _ask(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._thread, self._pull)

    def _pull(self) -> tuple[Any, Any]:
        """Return the next rows, and their seals; runs on a thread of its own."""
        if self._rows is None:
            after = 0 if self._after is None else self._after[0]
            taken = self.spool.taken()
            self._sealed = taken.seal
            if self._after is not None and after + 1 == taken.row:
                after, self._after = after + 1, None  # all up to there has been taken away
            self.first = after if self._after is None else after + 1
            self._note(self.first)
            self._rows = rows_of(self.spool, after, self._stop, self._part_read)
        try:
            rows = next(self._rows, _END)
            if not isinstance(rows, Rows) or SEAL not in rows.batch.schema.names:
                return rows, None
            seals = seals_of(rows.batch.column(SEAL), rows.first, self._sealed)
            self._sealed = int(seals[-1]) if len(seals) else self._sealed
            return rows._replace(batch=rows.batch.drop_columns([SEAL])), seals
        except SourceError as error:
            if self._feeding is not None and self._feeding.error is not None:
                raise self._feeding.error from self._feeding.error.__cause__
            raise error

    def _note(self, row: int) -> None:
        if self._notes:
            self.spool.note(self.first, row)

    def _part_read(self, taken: Taken) -> None:
        self._note(taken.row)
        taken = msgspec.structs.replace(taken, seal=self._sealed)
        if self._passing:
            self.spool.forget(taken)
        else:
            self._done.append(taken)

    def _take(self, rows: Rows, seals: Any) -> None:
        """Make these the rows to read from.

        Rows that were read before are skipped; the column of file names is left out.
        """
        first, batch, (file, since), number = rows
        self._next = first + batch.num_rows
        if file:
            self._from(since, file)
        elif FILE in batch.schema.names:
            column = batch.column(FILE).dictionary_encode()
            names = column.dictionary.to_pylist()
            last = None
            for place, code in enumerate(column.indices.to_pylist()):
                if code != last:
                    last = code
                    self._from(first + place, names[code])
            batch = batch.drop_columns([FILE])
        if self._payloads is None:
            self._payloads, self._schema = self._make(batch.schema), batch.schema
        elif batch.schema != self._schema:
            self.spool.check_columns(number, type_words(self._schema), type_words(batch.schema))
            self._schema = batch.schema
        self._batch, self._seals, self._at = batch, seals, 0
        if self._after is None:
            return
        row, expected = self._after
        if row >= self._next:
            self._at = batch.num_rows
        elif row >= first:
            if self._seal(batch, seals, 0, row - first) != expected:
                one = f"row {row + 1} is another one than when it was read"
                raise self._changed(one if seals is None else f"rows 1 to {row + 1} are not those that were read")
            self._at, self._after = row - first + 1, None

    def _from(self, row: int, file: str) -> None:
        """Note that the rows from this one on are of that file."""
        if not self._files or self._files[-1][1] != file:
            self._files.append((row, file))

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

    async def acknowledge(self, position: Any) -> None:
        if self._keep or self._passing:
            return
        last = None
        while self._done and self._done[0].row <= position[0] + 1:
            last = self._done.pop(0)
        if last is not None:
            await asyncio.to_thread(self.spool.forget, last)

    async def aclose(self) -> None:
        self._stop.set()
        waiting, self._waiting = self._waiting, None
        try:
            if self._feeding is not None:
                await asyncio.to_thread(self._feeding.stop)
        finally:
            if waiting is not None:
                await asyncio.wait([waiting])
                if not waiting.cancelled():
                    waiting.exception()  # nobody asked for it
            rows, self._rows = self._rows, None
            if rows is not None:
                await asyncio.get_running_loop().run_in_executor(self._thread, rows.close)
            if self._ended and self._once and not self._keep:
                await asyncio.to_thread(self.spool.clear)
            self._ended = True
            self._thread.shutdown(wait=False)
            self._held.close()
