"""Spool: a place that executors fill with rows, and a front reads in one order.

The front may read the rows several times.

    _spool.json                      how its rows are ordered, if they may be read before their batch is complete
    batch-00000000000000000004/      parts of a batch: files of Arrow, each there whole or not at all
    batch-00000000000000000004.json  the batch is complete: its parts in order, the number of its first row
    _mode.json                       which rows a batch has: output mode of the query, where that is known
    _columns.json                    names and types of the columns that every batch has
    _taken.json                      what has been taken is below this row; its files are gone
    _reading.json                    what the present run has read
    _end.json                        there is no batch from this one on
    _failed.json                     why no more comes

Rows are numbered from 0 through all batches: that is their position. A complete batch does not change: a writer that
comes later with one of the same number changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Final

import msgspec

from flamecore.errors import SourceError
from flamestream_spark.storage.places import place_of

_READING: Final = "_reading.json"


class Order(msgspec.Struct, frozen=True):
    """The order of the rows of a batch that may be read before it is complete.

    Attributes:
        files: In the order of these files, and of the blocks in them; empty: in the order of partitions.
        of: Fingerprint of the rows' origin.
    """

    files: tuple[str, ...] = ()
    of: str = ""


class Reading(msgspec.Struct, frozen=True):
    """The progress of a run's reader, whichever process it is in.

    Attributes:
        first: Number of the first row that the run has read.
        row: Number of the row behind those of the last part that has been read, since the reader was opened last.
    """

    first: int
    row: int


class Batch(msgspec.Struct, frozen=True):
    """A complete batch.

    Attributes:
        first: Number of its first row.
        parts: Name and number of rows of each part, in order.
        query: Which query wrote it, as far as that is known.
    """

    first: int
    parts: tuple[tuple[str, int], ...]
    query: str = ""

    @property
    def end(self) -> int:
        """Return the number of the first row behind it."""
        return self.first + sum(rows for _, rows in self.parts)


class Taken(msgspec.Struct, frozen=True):
    """The place where reading begins.

    Attributes:
        row: Number of the row.
        batch: Number of its batch.
        part: Number of parts of that batch that come before it.
        expected: The place that follows these, where the batch is not complete.
        file: The file that this place is in the midst of, and the number of its first row.
        seal: Seal of all rows before it, where rows have one each.
    """

    row: int = 0
    batch: int = 0
    part: int = 0
    expected: tuple[int, int] = (0, 0)
    file: tuple[str, int] = ("", 0)
    seal: int = 0


class Failed(msgspec.Struct, frozen=True):
    """Why nothing more comes."""

    what: str
    hint: str
    position: str


class Spool:
    """One such folder.

    Args:
        folder: A folder, made if it is not there; or a URL of an object store.
        source: Name of its source, for errors.
        durable: Whether what is in it outlives a loss of power.
    """

    def __init__(self, folder: Path | str, source: str, *, durable: bool = True) -> None:
        self.place = place_of(folder, f"source.{source}.spool", private=True, durable=durable)
        self.durable = durable
        self._source = source

    # -- filling ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the folder.

        Raises:
            SourceError: It cannot be made.
        """
        try:
            self.place.make()
        except OSError as error:
            raise self.error(
                f"{self.place.url} cannot be made: {error.strerror or error}", "Name another place."
            ) from error

    def clear(self) -> None:
        """Take away everything."""
        self.place.clear()
        self.open()

    def announce(self, order: Order) -> None:
        """Announce that batch 0 may be read while it is written.

        Its rows are in this order, whichever task writes it.
        """
        self._say("_spool.json", order)

    def announced(self) -> Order | None:
        """Return the announced order; None: batches are read when they are complete."""
        found: Order | None = self._read("_spool.json", Order)
        return found

    def batch(self, number: int) -> str:
        """Make and return the folder for the parts of a batch: its path, or URL."""
        return self.place.folder(folder_of(number))

    def complete(self, number: int, parts: Sequence[tuple[str, int]], query: str = "") -> bool:
        """Complete a batch with these parts; files that are no part of it are removed.

        Returns:
            Whether it is; otherwise it was complete before, and stays as it was.

        Raises:
            SourceError: The batches here are of another query.
        """
        held = self.completed(number)
        if held is not None:
            self.check_query(query, held)
        else:
            last = self.last()
            first = 0
            if last is not None:
                self.check_query(query, last[1])
                if number < last[0]:
                    return False  # it has been read, and is forgotten
                first = last[1].end
            if self.durable:
                self.batch(number)
                self.place.force([folder_of(number)])
            made = Batch(first, tuple(parts), query)
            if not self.place.create(_file(number), msgspec.json.encode(made)):
                held = self.completed(number)
        mine = {name for name, _ in parts} if held is None else {name for name, _ in held.parts}
        found = self.place.names(folder_of(number))
        self.place.remove(name for name in found if PurePath(name).name.removeprefix(".") not in mine)
        return held is None

    def check_query(self, query: str, last: Batch) -> None:
        """Make sure that it is the query which wrote what is there.

        Raises:
            SourceError: It is not.
        """
        if query and last.query and query != last.query:
            raise self.error(
                f"{self.place.url} holds batches of another query, whose numbers mean something else",
                "Give the query the checkpoint that it had; or this one another folder.",
            )

    def expect(self, number: int, columns: Mapping[str, str]) -> None:
        """Require the columns of the first batch of all batches.

        Args:
            number: The number of the batch that is about to be written.
            columns: Its columns: types by name.

        Raises:
            SourceError: The batches here have others.
        """
        before: dict[str, str] | None = self._read("_columns.json", dict[str, str])
        if before is None:
            self._say("_columns.json", dict(columns))
        else:
            self.check_columns(number, before, columns)

    def check_columns(self, number: int, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        """Make sure that a batch has the columns of those before it, in any order.

        Raises:
            SourceError: One is missing, new, or of another type.
        """
        for name in [*before, *(name for name in now if name not in before)]:
            was, is_ = before.get(name), now.get(name)
            if was == is_:
                continue
            column = f"batch {number}: column {name!r}"
            if was is None:
                what, hint = f"{column}, of type {is_}, is new", f"Leave it out: df.drop({name!r})."
            elif is_ is None:
                what, hint = (
                    f"{column}, which was of type {was} before, is missing",
                    f"Hand it on as {was}, or as null.",
                )
            else:
                what = f"{column} is of type {is_}, and was of type {was} before"
                hint = f"Cast it back: df.withColumn({name!r}, …cast({was!r}))."
            raise self.error(f"{what}; its rows are not taken", f"{hint} Or start afresh, with new folders.", name)

    def expect_mode(self, mode: str) -> None:
        """Require the output mode of the first batch of the queries of all batches.

        Raises:
            SourceError: Those here are of another.
        """
        before: str | None = self._read("_mode.json", str)
        if before is None:
            self._say("_mode.json", mode)
        elif before != mode:
            raise self.error(
                f"{self.place.url} holds batches of output mode {before!r}, and those of {mode!r} mean something else",
                f'Go on with output_mode="{before}"; or start afresh, with new folders.',
            )

    def completed(self, number: int) -> Batch | None:
        """Return a complete batch; None: it is not complete, or forgotten."""
        found: Batch | None = self._read(_file(number), Batch)
        return found

    def numbers(self) -> list[int]:
        """Numbers of the batches that are complete, in order."""
        names = self.place.names()
        return sorted(int(name[6:-5]) for name in names if name.startswith("batch-") and name.endswith(".json"))

    def last(self) -> tuple[int, Batch] | None:
        """Return the last complete batch, with its number. It is never forgotten."""
        for number in reversed(self.numbers()):
            batch = self.completed(number)
            if batch is not None:
                return number, batch
        return None

    def end(self) -> None:
        """Note that no more batches come."""
        last = self.last()
        self._say("_end.json", 0 if last is None else last[0] + 1)

    def go_on(self) -> None:
        """More batches come, though there was an end or a fault."""
        self.place.remove(("_end.json", "_failed.json"))

    def fail(self, failed: Failed) -> None:
        """Note that no more rows come, because of a fault."""
        self._say("_failed.json", failed)

    # -- reading ---------------------------------------------------------------------------------------------------

    def taken(self) -> Taken:
        """Return the place where reading begins."""
        return self._read("_taken.json", Taken) or Taken()

    def reading(self) -> Reading | None:
        """Return what the run that reads has noted; None: it has not begun."""
        found: Reading | None = self._read(_READING, Reading)
        return found

    def note(self, first: int, row: int) -> None:
        """Note that the run has read up to a row, from `first` on if it has noted nothing before."""
        held = self.reading()
        self._say(_READING, Reading(first if held is None else held.first, row))

    def begin(self) -> None:
        """Forget what an earlier run has noted."""
        self.place.remove((_READING,))

    def over(self, number: int) -> bool:
        """Return whether that batch, and all behind it, do not come.

        Raises:
            SourceError: It does not because of a fault.
        """
        failed = self._read("_failed.json", Failed)
        if failed is not None:
            raise self.error(failed.what, failed.hint, failed.position)
        end = self._read("_end.json", int)
        return end is not None and number >= end

    def forget(self, taken: Taken) -> None:
        """Remove the files before a place, which are not read again."""
        if taken.row <= self.taken().row:
            return
        self._say("_taken.json", taken)
        batch = self.completed(taken.batch)
        if batch is not None:
            self.place.remove(f"{folder_of(taken.batch)}/{name}" for name, _ in batch.parts[: taken.part])
        done = [number for number in self.numbers() if number < taken.batch]
        last = self.last()
        for number in done:
            self.place.clear(folder_of(number))
            if last is None or number != last[0]:
                self.place.remove([_file(number)])

    # -- files -----------------------------------------------------------------------------------------------------

    def _say(self, name: str, value: Any) -> None:
        self.place.replace(name, msgspec.json.encode(value))

    def _read(self, name: str, type_: Any) -> Any:
        try:
            found = self.place.read(name)
            return None if found is None else msgspec.json.decode(found, type=type_)
        except (OSError, ValueError) as error:
            raise self.error(f"{self.place.at(name)} is not as it was written: {error}", "Start afresh.") from error

    def error(self, what: str, hint: str, position: str = "") -> SourceError:
        """Something is wrong with it."""
        return SourceError(f"source {self._source!r}: {what}", hint=hint, source=self._source, position=position)


def folder_of(number: int) -> str:
    """Return the name of the folder for the parts of a batch."""
    return f"batch-{number:020d}"


def _file(number: int) -> str:
    return f"{folder_of(number)}.json"
