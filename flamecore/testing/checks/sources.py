"""Checks of sources; used through `flamecore.testing.checks.edges`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from operator import is_
from typing import Any, Final, NamedTuple

from flamecore.abc.source import Batch, Reader, Rejected, Source
from flamecore.errors import SourceError
from flamecore.runtime.codec.codec import Codec
from flamecore.testing.laws import LawBroken

WAIT_S: Final = 20.0
"""Longest wait for one record; a driver that takes longer hangs."""
_TURNS: Final = 6
_NO_PARTITION: Final = "no partition of this source"

MakeSource = Callable[[], Source]
"""Function that makes the source under test, anew, over the same input."""


class EdgeBroken(LawBroken):
    """Broken law of the contract of sources or sinks."""


def expect_same(law: str, what: str, found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Compare two sequences.

    Raises:
        EdgeBroken: They differ; with the law, and the first difference.
    """
    if list(found) == list(expected):
        return
    pairs = enumerate(zip(found, expected, strict=False))
    at = next((index for index, (a, b) in pairs if a != b), min(len(found), len(expected)))
    raise EdgeBroken(
        law, f"{what}: {len(found)} records for {len(expected)}, different from the {at + 1}th: "
        f"{found[at : at + 2]!r} for {expected[at : at + 2]!r}"
    )  # fmt: skip


class Record(NamedTuple):
    """A record as it was read: position and value (a `Rejected` if malformed)."""

    position: Any
    value: Any


async def _read(reader: Reader, limit: int) -> Batch | None:
    try:
        batch = await asyncio.wait_for(reader.read(limit), WAIT_S)
    except TimeoutError:
        raise EdgeBroken("complete", f"read({limit}) has not returned within {WAIT_S} s") from None
    if batch is None:
        return None
    count = len(batch.values) + len(batch.rejected)
    if not 1 <= count <= limit:
        raise EdgeBroken("limit", f"read({limit}) returned {count} records")
    if len(batch.positions) != len(batch.values):
        raise EdgeBroken("positions", f"{len(batch.positions)} positions for {len(batch.values)} values")
    if batch.fresh and type(batch.values) is not list:
        raise EdgeBroken("fresh", f"values that are given away are a list, not a {type(batch.values).__name__}")
    return batch


async def _drain(reader: Reader, limit: int, most: int) -> list[Record]:
    """Return all records up to the end, or a few more than `most`.

    Values of a batch come before its malformed records.
    """
    found: list[Record] = []
    given: Batch | None = None
    copy: list[Any] = []
    while len(found) <= most:
        batch = await _read(reader, limit)
        if given is not None and not _is_kept(given, copy, batch):
            raise EdgeBroken("fresh", f"the list of an earlier batch was used again: {given.values!r} for {copy!r}")
        if batch is None:
            break
        given, copy = batch if batch.fresh else None, list(batch.values)
        found += map(Record, batch.positions, batch.values)
        # The raw text of a malformed record may be cut, and not the same every time.
        found += (Record(bad.position, bad._replace(raw=None)) for bad in batch.rejected)
    return found


def _is_kept(given: Batch, copy: list[Any], batch: Batch | None) -> bool:
    """Return whether the list of a fresh batch is as it was, and not in the next."""
    same = len(given.values) == len(copy) and all(map(is_, given.values, copy))
    return same and (batch is None or batch.values is not given.values)


async def _read_partition(
    source: Source, partition: str, position: Any, limit: int, most: int, end: Any = None
) -> list[Record]:
    if end is None:
        reader = await source.open(partition, position)
    else:
        reader = await source.open_until(partition, position, end)
    try:
        return await _drain(reader, limit, most)
    finally:
        await reader.aclose()


def _values(records: Sequence[Record]) -> list[Any]:
    return [record.value for record in records if not isinstance(record.value, Rejected)]


async def _end_of(source: Source, partition: str) -> Any:
    """Return the end that a run would keep, as it comes back from the state."""
    end = await source.find_end(partition)
    if end is None:
        return None
    if not _is_plain(end):
        raise EdgeBroken("ends", f"the end {end!r} is no int, str or tuple of these")
    codec = Codec()
    return codec.decode(codec.encode(end))


def _is_plain(position: Any) -> bool:
    if type(position) is tuple:
        return all(map(_is_plain, position))
    return type(position) in (int, str)


async def check_reads_all(make: MakeSource, expected: Sequence[Any], *, rejected: int = 0) -> None:
    """Check that every record comes once and in order, then nothing, for any limit.

    Every record must have a position.

    Raises:
        EdgeBroken: `complete`, `limit`, `positions`, `fresh`, `ends`, `described`.
    """
    for limit in (1, 3, 4096):
        source = make()
        found: list[Record] = []
        for partition in source.partitions():
            reader = await source.open(partition)
            found += await _drain(reader, limit, len(expected) + rejected)
            if source.capabilities.bounded:
                for _ in range(2):
                    if (more := await _read(reader, limit)) is not None:
                        raise EdgeBroken("ends", f"after the end there is {more!r}")
            for position, _ in found:
                if not _is_plain(position):
                    raise EdgeBroken("positions", f"{position!r} is no int, str or tuple of these")
                if not isinstance(text := reader.describe(position), str) or not text:
                    raise EdgeBroken("described", f"position {position!r} in words is {text!r}")
            await reader.aclose()
            await reader.aclose()
        expect_same("complete", f"read({limit})", _values(found), expected)
        if (bad := len(found) - len(expected)) != rejected:
            raise EdgeBroken("complete", f"{bad} malformed records, not {rejected}")


async def check_replays(make: MakeSource, expected: Sequence[Any]) -> None:
    """Check that a replayable source repeats its records, from any position.

    Another source must refuse to open at a position.

    Raises:
        EdgeBroken: `replayable`, `reopens`, `refuses`.
    """
    source, codec = make(), Codec()
    most = len(expected) * 2 + 1000
    if not source.capabilities.replayable:
        for partition in source.partitions():
            try:
                await (await source.open(partition, 0)).aclose()
            except SourceError:
                continue
            raise EdgeBroken("refuses", "it does not say it is replayable, and opens at a position all the same")
        return
    for partition in source.partitions():
        # One by one: a batch does not tell the places of its malformed records among its values.
        first = await _read_partition(source, partition, None, 1, most)
        again = await _read_partition(source, partition, None, 4096, most)
        expect_same("replayable", "opened once more", _values(again), _values(first))
        for index in _some(first):
            position = first[index].position
            rest = await _read_partition(make(), partition, position, 1, most)
            expect_same("reopens", f"opened after the record at {position!r}", rest, first[index + 1 :])
            # A position is kept in snapshots, and comes back from them.
            stored = codec.decode(codec.encode(position))
            rest = await _read_partition(make(), partition, stored, 4096, most)
            expect_same("reopens", f"opened after the record at {stored!r}", _values(rest), _values(first[index + 1 :]))
        # Jobs go on from the positions of large batches.
        good = [record for record in again if not isinstance(record.value, Rejected)]
        for index in _some(good):
            position = good[index].position
            rest = await _read_partition(make(), partition, position, 4096, most)
            said = f"opened after the record at {position!r}, the position that read(4096) gives record {index}"
            expect_same("reopens", said, _values(rest), _values(good[index + 1 :]))


def _some(records: Sequence[Record]) -> list[int]:
    """Return the indices of some records: the first and the last ones, and one between."""
    count = len(records)
    return sorted({0, 1, count // 2, count - 2, count - 1} & set(range(count)))


async def check_acknowledged(make: MakeSource, expected: Sequence[Any]) -> None:
    """Check that acknowledging records changes nothing of those after them.

    Raises:
        EdgeBroken: `acknowledged`.
    """
    source = make()
    if not source.capabilities.replayable:
        return
    found: list[Record] = []
    for partition in source.partitions():
        reader = await source.open(partition)
        mine: list[Record] = []
        while (batch := await _read(reader, 2)) is not None and len(found) + len(mine) <= len(expected):
            mine += map(Record, batch.positions, batch.values)
            if mine:
                await reader.acknowledge(mine[-1].position)
        await reader.aclose()
        found += mine
        if mine:
            # Acknowledged records may be gone; those after them are there.
            rest = await _read_partition(make(), partition, mine[-1].position, 4096, len(expected))
            expect_same("acknowledged", f"opened after {mine[-1].position!r}", _values(rest), [])
    expect_same("acknowledged", "acknowledged as they were read", _values(found), expected)


async def check_grown(make: MakeSource, grow: Callable[[], None], more: Sequence[Any]) -> None:
    """Check that a source that has grown goes on after the records read before.

    A source that finds ends keeps to that of a run until this has finished, and the next run reads what has come since.

    Args:
        make: Makes the source. Bounded, with one partition.
        grow: Adds records to its input.
        more: The values of these records.

    Raises:
        EdgeBroken: `grown`, `ends`.
    """
    (partition,) = make().partitions()
    end = await _end_of(make(), partition)
    first = await _read_partition(make(), partition, None, 1, 100_000, end)
    grow()
    new_end = await _end_of(make(), partition)
    for index in sorted({0, len(first) // 2, len(first) - 1}):
        position, following = first[index].position, _values(first[index + 1 :])
        said = f"opened after the record at {position!r}"
        for until in dict.fromkeys((None, new_end)):
            rest = await _read_partition(make(), partition, position, 4096, 100_000, until)
            found = said if until is None else f"{said}, until {until!r}"
            expect_same("grown", found, _values(rest), [*following, *more])
        if end is not None:  # as after a crash
            rest = await _read_partition(make(), partition, position, 4096, 100_000, end)
            expect_same("ends", f"{said}, until the earlier end {end!r}", _values(rest), following)
    if end is not None:
        again = await _read_partition(make(), partition, None, 4096, 100_000, end)
        expect_same("ends", f"opened at the start, until the earlier end {end!r}", _values(again), _values(first))


async def check_changed(make: MakeSource, change: Callable[[], None]) -> None:
    """Check that a source refuses a position once its input was replaced.

    Args:
        make: Makes the source. Bounded, with one partition.
        change: Replaces the input that was read by another.

    Raises:
        EdgeBroken: `changed`.
    """
    (partition,) = make().partitions()
    first = await _read_partition(make(), partition, None, 1, 100_000)
    change()
    position = first[-1].position
    try:
        rest = await _read_partition(make(), partition, position, 4096, 100_000)
    except SourceError:
        return
    raise EdgeBroken("changed", f"in other input it goes on after {position!r}, with {rest[:2]!r}")


async def check_fingerprint(make: MakeSource) -> None:
    """Check that fingerprint and partitions of one input are the same every time, and keep their names.

    Raises:
        EdgeBroken: `fingerprint` or `partition-of`.
    """
    for what in (Source.fingerprint, Source.partitions):
        first, second = (getattr(make(), what.__name__)() for _ in range(2))
        if first != second:
            raise EdgeBroken("fingerprint", f"{what.__name__}() of one input is {first!r} and {second!r}")
    source = make()
    names = source.partitions()
    for name in (*names, _NO_PARTITION):
        found = source.partition_of(name)
        if found != name and (name in names or found not in names):
            raise EdgeBroken("partition-of", f"partition_of({name!r}) is {found!r}, and the partitions are {names!r}")


async def check_cancelled(make: MakeSource, expected: Sequence[Any]) -> None:
    """Check that reads cancelled while they wait lose nothing.

    Raises:
        EdgeBroken: `cancelled`.
    """
    source = make()
    found: list[Any] = []
    for partition in source.partitions():
        reader = await source.open(partition)
        for turn in count():
            reading = asyncio.ensure_future(reader.read(1))
            for _ in range(turn % _TURNS):  # cancelled sooner or later: before it starts, or somewhere in the midst
                await asyncio.sleep(0)
            if turn % _TURNS < _TURNS - 1:
                reading.cancel()
            done, _ = await asyncio.wait([reading], timeout=WAIT_S)
            if not done:
                reading.cancel()
                raise EdgeBroken("cancelled", f"after cancelled reads, one has not returned within {WAIT_S} s")
            if not reading.cancelled():
                batch = reading.result()
                if batch is None or len(found) > len(expected):
                    break
                found += batch.values
        await reader.aclose()
    expect_same("cancelled", "after cancelled reads", found, expected)


async def check_live(make: MakeSource, feed: Callable[[Any], Awaitable[None]], values: Sequence[Any]) -> None:
    """Check that a record is read as soon as it is there, alone.

    It must be so after a cancelled wait, too.

    Args:
        make: Makes the source.
        feed: Makes one record available, no more.
        values: The records to feed, and to expect.

    Raises:
        EdgeBroken: `prompt`, `cancelled`.
    """
    source = make()
    (partition,) = source.partitions()
    reader = await source.open(partition)
    for value in values:
        waiting = asyncio.ensure_future(reader.read(100))
        await asyncio.wait([waiting], timeout=0.01)
        if waiting.done():
            raise EdgeBroken("prompt", f"before {value!r} was there, read returned {waiting.result()!r}")
        waiting.cancel()
        await asyncio.wait([waiting])
        reading = asyncio.ensure_future(reader.read(100))
        await feed(value)
        done, _ = await asyncio.wait([reading], timeout=WAIT_S)
        if not done:
            reading.cancel()
            await asyncio.wait([reading])
            raise EdgeBroken("prompt", f"{value!r} is there, and read still waits after {WAIT_S} s")
        batch = reading.result()
        expect_same("cancelled", f"after a cancelled wait, {value!r}", batch.values if batch else (), [value])
    await reader.aclose()


async def check_source(make: MakeSource, expected: Sequence[Any], *, rejected: int = 0) -> None:
    """Check a source against every law of its contract that needs no feeding.

    Args:
        make: Makes the source, anew, over the same input.
        expected: All its values: partition by partition, in order.
        rejected: How many of its records are malformed.

    Raises:
        EdgeBroken: With the law, and the event.
    """
    await check_reads_all(make, expected, rejected=rejected)
    await check_replays(make, expected)
    await check_acknowledged(make, expected)
    await check_fingerprint(make)
    await check_cancelled(make, expected)
