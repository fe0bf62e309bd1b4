"""The rows of a spool in their order, as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from flamestream_spark.spool.parts import ABOUT, SUFFIX
from flamestream_spark.spool.spool import Batch, Order, Spool, Taken, folder_of

_WAIT_S: Final = 0.002


class Rows(NamedTuple):
    """Consecutive rows.

    Attributes:
        first: Number of the first.
        batch: A `pyarrow.RecordBatch`.
        file: The file they are from, and the number of its first row; ("", 0): that is not known.
        number: The number of the batch of the spool that they are of.
    """

    first: int
    batch: Any
    file: tuple[str, int]
    number: int


def rows_of(
    spool: Spool, after: int, stop: threading.Event, read: Callable[[Taken], None] | None = None
) -> Generator[Rows]:
    """Yield the rows in order, as they come, to the end if there is one.

    Args:
        spool: The spool.
        after: Number of the first row that is wanted. More may come before it: all that are there, if batches are
            read before they are complete, since a reader knows those again that Spark has read again.
        stop: Ends the waiting for more.
        read: Told when a part has been read: where the next one begins.

    Raises:
        SourceError: A part cannot be read, is no longer there, or nothing more comes because of a fault.
    """
    at = check_begin(spool, after)
    order = spool.announced()
    wait_s = _WAIT_S
    early: dict[tuple[int, int], str] = {}
    looked: set[str] = set()
    batch: Batch | None = None
    while not stop.is_set():
        if batch is None:
            batch = spool.completed(at.batch)
        if batch is not None and at.part >= len(batch.parts):
            at, batch = Taken(at.row, at.batch + 1, file=at.file), None
            continue
        name, count = "", None
        if batch is not None:
            name, count = batch.parts[at.part]
        elif order is not None and at.batch == 0:
            _look(spool, at.batch, order, early, looked)
            name = early.get(at.expected, "")
        if not name:
            if batch is None and _skipped(spool, at) is not None:
                at = Taken(at.row, _skipped(spool, at) or 0, file=at.file)
            elif spool.over(at.batch):
                return
            else:
                stop.wait(wait_s)
                order = order or spool.announced()  # who fills it may begin later than who reads it
                wait_s = min(wait_s * 1.5, spool.place.patience_s)
            continue
        wait_s = _WAIT_S
        following = yield from _part(spool, at, name, count, order, after)
        if read is not None:
            read(following)
        at = following


def check_begin(spool: Spool, after: int) -> Taken:
    """Return the place where reading begins, which must not be behind a row.

    Raises:
        SourceError: It is: rows from this one on have been taken away.
    """
    at = spool.taken()
    if after < at.row:
        raise spool.error(
            f"rows from {after} on are wanted, and those below {at.row} have been taken away",
            "They go when a snapshot of the job has them: bring its state back, or start afresh, with new folders.",
        )
    return at


def _part(
    spool: Spool, at: Taken, name: str, count: int | None, order: Order | None, after: int
) -> Generator[Rows, None, Taken]:
    if count is not None and at.row + count <= after and order is None:
        return msgspec.structs.replace(at, row=at.row + count, part=at.part + 1)
    path = f"{folder_of(at.batch)}/{name}"
    row = at.row
    try:
        with spool.place.open(path) as mapped, pa.ipc.open_file(mapped) as reader:
            about = _about(reader.schema)
            file = about.get("file", "")
            since = (file, at.file[1] if at.file[0] == file else row) if file else ("", 0)
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                if order is not None or row + batch.num_rows > after:
                    yield Rows(row, batch, since, at.batch)
                row += batch.num_rows
    except (OSError, pa.ArrowException) as error:
        raise spool.error(
            f"{spool.place.at(path)} cannot be read: {error}", "Was it taken away, or damaged?"
        ) from error
    return Taken(row, at.batch, at.part + 1, _behind(about, order), since)


def _look(spool: Spool, number: int, order: Order, early: dict[tuple[int, int], str], looked: set[str]) -> None:
    """Find parts that have come since."""
    for path in spool.place.names(folder_of(number)):
        name = PurePath(path).name
        if name in looked or name[0] == "." or not name.endswith(SUFFIX):
            continue
        looked.add(name)
        with spool.place.open(path) as mapped, pa.ipc.open_file(mapped) as reader:
            place = _place(_about(reader.schema), order)
        if place is not None:
            early.setdefault(place, name)


def _skipped(spool: Spool, at: Taken) -> int | None:
    """Return the number of the next batch where `at.batch` does not come, or None."""
    return next((number for number in spool.numbers() if number > at.batch), None)


def _about(schema: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode((schema.metadata or {})[ABOUT])
    return found


def _place(about: dict[str, Any], order: Order) -> tuple[int, int] | None:
    """Return the place of a part; None: it is of a file that was not announced."""
    if not order.files:
        return about["partition"], 0
    return (order.files.index(about["file"]), about["start"]) if about["file"] in order.files else None


def _behind(about: dict[str, Any], order: Order | None) -> tuple[int, int]:
    """Return the place of the part behind it, if no block between them is empty."""
    place = None if order is None else _place(about, order)
    if order is None or place is None:
        return -1, 0
    number, _ = place
    if not order.files or about["until"] >= about["size"]:
        return number + 1, 0
    return number, about["until"]
