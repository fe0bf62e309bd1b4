"""Files in partitions: cut at one time, merged in order, taken over, verified."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from flamecore.abc.sink import PartitionedSink, Sink, Verified
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError
from flamecore.model.batch import DerivedOrders
from flamecore.model.meta import MIN_TIME, GlobalTime, encode_time
from flamecore.testing.checks.partitions import PartitionedSinkTests
from flamestream_edges import checksums, outfile
from flamestream_edges.checksums import Recorded
from flamestream_edges.csv import CsvSink, CsvSinkOptions
from flamestream_edges.jsonl import JsonlSink
from flamestream_edges.outfile import FileSink, FileSinkOptions
from flamestream_edges.partitions import PartitionedFile
from flamestream_edges.position import Position, PositionFile

MADE: list[Sink] = []
"""Sinks of the test, which are released at its end: those of processes that were killed stay open until then."""


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Release the sinks of a test."""
    yield
    for sink in MADE:
        if isinstance(sink, PartitionedFile):
            sink.release()
        else:
            asyncio.run(sink.aclose())
    MADE.clear()


class Row(NamedTuple):
    """A row of a table."""

    number: int
    text: str


class TestJsonl(PartitionedSinkTests):
    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> PartitionedSink:
        options = FileSinkOptions(path=str(folder / "out"), mode="resume" if resume else "replace")
        return JsonlSink(options, EdgeContext("out", fingerprint=fingerprint)).partitioned()

    def sequence(self, payloads: Sequence[Any]) -> bytes:
        return JsonlSink(FileSinkOptions(path="unused"), EdgeContext("out")).encode(payloads)


class TestCsv(PartitionedSinkTests):
    payloads = tuple(Row(number, f'{number} "quoted", \n\n of {number}\r') for number in range(12))

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> PartitionedSink:
        options = CsvSinkOptions(path=str(folder / "out"), mode="resume" if resume else "replace")
        return CsvSink(options, EdgeContext("out", Row, fingerprint=fingerprint)).partitioned()

    def sequence(self, payloads: Sequence[Any]) -> bytes:
        sink = CsvSink(CsvSinkOptions(path="unused"), EdgeContext("out", Row))
        return sink.preamble() + sink.encode(payloads)


def parts(folder: Path, **options: Any) -> PartitionedFile:
    """Return a sink of lines in a folder, which resumes."""
    chosen = FileSinkOptions(path=str(folder), **{"mode": "resume", **options})
    sink = JsonlSink(chosen, EdgeContext("out", fingerprint="test")).partitioned()
    assert isinstance(sink, PartitionedFile)
    MADE.append(sink)
    return sink


async def opened(sink: PartitionedSink, workers: int) -> list[Sink]:
    """Open a sink, divide it, and return its open partitions."""
    await sink.open()
    _, grant = await sink.divide(workers)
    found = [sink.partition(worker, grant) for worker in range(workers)]
    for partition in found:
        await partition.open()
        MADE.append(partition)
    return found


def orders_at(*times: int) -> list[bytes]:
    return [GlobalTime(time, 1).encode() for time in times]


def test_a_batch_is_cut_between_the_children_of_one_record(tmp_path: Path) -> None:
    """Orders are stored as they come, derived from those of records."""

    async def run() -> None:
        first, second = await opened(parts(tmp_path / "out"), 2)
        await first.write_ordered(4, DerivedOrders(orders_at(1, 2, 3), [2, 2, 2]), list(range(6)))
        await second.write_ordered(3, DerivedOrders(orders_at(2), [1], 2), ["between"])
        again = parts(tmp_path / "out")
        assert await again.open() == 3
        assert (await again.divide(2)).time == 3
        assert (tmp_path / "out" / "part-00000.jsonl").read_text() == "0\n1\n2\n3\n"
        assert b"".join(again.merged()) == b'0\n1\n2\n3\n"between"\n'
        await again.aclose()

    asyncio.run(run())


def test_a_partition_that_was_idle_has_the_others_repeat_what_is_not_durable(tmp_path: Path) -> None:
    async def run() -> None:
        sink = parts(tmp_path / "out")
        first, _ = await opened(sink, 2)
        await first.write_ordered(6, orders_at(5), ["a"])
        await first.sync(6)
        await sink.write(6, [1])
        assert b"".join(sink.merged()) == b'"a"\n'
        again = parts(tmp_path / "out")
        assert await again.open() == MIN_TIME
        await again.divide(2)
        assert b"".join(again.merged()) == b""
        last = parts(tmp_path / "out")
        first, _ = await opened(last, 2)
        await first.write_ordered(6, orders_at(5), ["a"])
        await first.sync(6)
        await last.sync(6)
        assert await parts(tmp_path / "out").open() == 6

    asyncio.run(run())


def test_a_machine_crash_loses_what_was_not_forced_to_the_disk(tmp_path: Path) -> None:
    async def run() -> None:
        sink = parts(tmp_path / "out")
        (first,) = await opened(sink, 1)
        await first.write_ordered(6, orders_at(5), ["a"])
        await first.sync(6)
        await sink.sync(6)
        await first.write_ordered(9, orders_at(7, 8), ["b", "c"])
        beside = tmp_path / "out" / "part-00000.jsonl.orders"
        beside.write_bytes(beside.read_bytes()[:-3])
        again = parts(tmp_path / "out")
        assert await again.open() == 6
        await again.divide(1)
        assert b"".join(again.merged()) == b'"a"\n'

    asyncio.run(run())


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_file_that_is_missing_is_not_taken_for_an_empty_one(tmp_path: Path, workers: int) -> None:
    async def run() -> None:
        sink = parts(tmp_path / "out")
        first, second = await opened(sink, 2)
        await first.write_ordered(6, orders_at(5), ["a"])
        await second.write_ordered(7, orders_at(6), ["b"])
        await sink.sync(7)
        (tmp_path / "out" / "part-00001.jsonl").unlink()
        with pytest.raises(SinkError, match=r"part-00001.jsonl is missing"):
            await parts(tmp_path / "out").open()

    asyncio.run(run())


def test_a_shortened_file_is_refused_without_an_impossible_hint(tmp_path: Path) -> None:
    async def run() -> None:
        sink = parts(tmp_path / "out")
        first, second = await opened(sink, 2)
        await first.write_ordered(6, orders_at(5), ["a"])
        await second.write_ordered(7, orders_at(6), ["b"])
        for each in (first, second, sink):
            await each.sync(7)
            await each.aclose()
        path = tmp_path / "out" / "part-00001.jsonl"
        path.write_bytes(path.read_bytes()[:-2])
        with pytest.raises(SinkError, match=r"part-00001.jsonl cannot be resumed: it is 2 bytes long") as caught:
            await opened(parts(tmp_path / "out"), 2)
        assert "Put it back as it was" in caught.value.hint
        assert "append" not in caught.value.hint, "which partitions cannot"

    asyncio.run(run())


def test_damage_is_found_in_rows_and_in_orders(tmp_path: Path) -> None:
    async def run() -> None:
        sink = parts(tmp_path / "out")
        first, second = await opened(sink, 2)
        await first.write_ordered(6, orders_at(4, 5), ["a", "b"])
        await second.write_ordered(7, orders_at(6), ["c"])
        await sink.write(7, [3])
        await sink.aclose()

    asyncio.run(run())
    sink = parts(tmp_path / "out")
    assert [verified.damages for each in sink.stored().values() if (verified := each.verify())] == [[], []]
    beside = tmp_path / "out" / "part-00000.jsonl.orders"
    data = bytearray(beside.read_bytes())
    data[-1] ^= 1
    beside.write_bytes(data)
    damaged, whole = (each.verify() for each in sink.stored().values())
    assert damaged is not None
    assert whole is not None
    assert "has the orders" in damaged.damages[0].what
    assert not whole.damages


def verified(sink: PartitionedFile) -> list[Verified]:
    return [found for each in sink.stored().values() if (found := each.verify()) is not None]


def tables(folder: Path) -> PartitionedFile:
    """Return a sink of tables in a folder, which resumes."""
    options = CsvSinkOptions(path=str(folder), mode="resume")
    sink = CsvSink(options, EdgeContext("out", Row, fingerprint="test")).partitioned()
    assert isinstance(sink, PartitionedFile)
    MADE.append(sink)
    return sink


@pytest.mark.parametrize("make", [parts, tables])
@pytest.mark.parametrize("seed", range(5))
def test_kills_and_other_numbers_of_workers_leave_no_byte_uncovered(tmp_path: Path, make: Any, seed: int) -> None:
    chance = Random(seed)

    async def epoch(sink: PartitionedFile) -> None:
        workers = chance.randint(1, 4)
        start, grant = await sink.divide(workers)
        assert [(one.covered, one.damages) for one in verified(sink)] == [(one.size, []) for one in verified(sink)]
        for worker in range(workers):
            partition = sink.partition(worker, grant)
            MADE.append(partition)
            time = max(await partition.open(), 1)
            assert time == max(start, 1)
            for _ in range(chance.randint(1, 4)):
                times = range(time, time + chance.randint(1, 4))
                time = times[-1] + 1
                await partition.write_ordered(time, orders_at(*times), [Row(each, f"{worker}") for each in times])
                if chance.random() < 0.5:
                    await partition.sync(time)

    async def run() -> None:
        for _ in range(4):
            sink = make(tmp_path / "out")  # the process of the one before was killed
            await sink.open()
            for _ in range(chance.randint(1, 2)):
                await epoch(sink)
        await sink.divide(2)
        await sink.aclose()
        assert all(one.covered == one.size and not one.damages for one in verified(make(tmp_path / "out")))

    asyncio.run(run())


@pytest.mark.parametrize("changed", [0, 6])
def test_a_cut_does_not_make_damage_good(tmp_path: Path, changed: int) -> None:
    path = tmp_path / "out" / "part-00000.jsonl"

    async def run() -> None:
        first, second = await opened(parts(tmp_path / "out"), 2)
        await first.write_ordered(4, orders_at(1, 2, 3), ["a", "b", "c"])
        await first.sync(4)
        await second.write_ordered(3, orders_at(2), ["d"])
        data = bytearray(path.read_bytes())
        data[changed] ^= 1
        path.write_bytes(data)
        assert (await (again := parts(tmp_path / "out")).open(), (await again.divide(2)).time) == (3, 3)

    asyncio.run(run())
    damaged, whole = verified(parts(tmp_path / "out"))
    assert [(damage.start, damage.end) for damage in damaged.damages] == [(0, path.stat().st_size)]
    assert not whole.damages


def test_a_crash_within_a_cut_leaves_no_byte_uncovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: PositionFile, position: Position) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def run() -> None:
        first, second = await opened(parts(tmp_path / "out"), 2)
        await first.write_ordered(4, orders_at(1, 2, 3), ["a", "b", "c"])
        await first.sync(4)
        await second.write_ordered(3, orders_at(2), ["d"])
        file = (again := parts(tmp_path / "out"))._file(0, "owner")
        await again.open()
        await file.open()
        with monkeypatch.context() as broken:
            broken.setattr(PositionFile, "begin", crash)
            with pytest.raises(SinkError, match="cannot be cut"):
                await file.cut(3)
        file.release()

    asyncio.run(run())
    assert [(one.covered, one.damages) for one in verified(parts(tmp_path / "out"))] == [(12, []), (4, [])]


@pytest.mark.parametrize("changed", [False, True])
def test_a_cut_while_a_file_is_verified_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    async def run() -> FileSink:
        first, second = await opened(parts(tmp_path / "out"), 2)
        await first.write_ordered(4, orders_at(1, 2, 3), ["a", "b", "c"])
        await first.sync(4)
        await second.write_ordered(3, orders_at(2), ["d"])
        file = parts(tmp_path / "out")._file(0, "owner")
        await file.open()
        return file

    def recorded(path: Path) -> Recorded | None:
        if not cuts:
            cuts.append(path)
            asyncio.run(file.cut(3))
        return checksums.recorded(path)

    file, cuts = asyncio.run(run()), list[Path]()
    monkeypatch.setattr(outfile, "recorded", recorded)
    if changed:
        path = tmp_path / "out" / "part-00000.jsonl"
        path.write_bytes(path.read_bytes().replace(b"a", b"A"))
    one, _ = verified(parts(tmp_path / "out"))
    assert (one.size, one.covered, [damage[:2] for damage in one.damages]) == (8, 8, [(0, 8)] if changed else [])
    assert cuts
    file.release()


@pytest.mark.parametrize("spoil", ["orders", "orders of none", "position", "rows"])
def test_a_lost_file_is_named_by_all_who_read_it(tmp_path: Path, spoil: str) -> None:
    folder = tmp_path / "out"

    async def run() -> None:
        for workers, time in ((3, 4), (2, 8)):  # the third file belongs to the output, and nobody writes it
            sink = parts(folder)
            for worker, each in enumerate(await opened(sink, workers)):
                if spoil != "orders of none" or worker < 2:
                    await each.write_ordered(time + worker + 1, orders_at(time + worker), [f"{time}, {worker}"])
                await each.sync(time + 3)
            await sink.sync(time + 3)
            await sink.aclose()

    asyncio.run(run())
    lost = folder / "part-00002.jsonl"
    if spoil != "rows":
        lost = lost.with_name(lost.name + f".{spoil.split()[0]}")
    lost.unlink()
    found = parts(folder).stored()["part-00002.jsonl"].verify()
    assert found is not None
    assert [damage.what for damage in found.damages] == [f"{lost.name} is missing"]
    if spoil == "orders of none":
        assert b"".join(parts(folder).merged()), "no row lacks its order"
        return
    with pytest.raises(SinkError, match=f"{lost.name} is missing"):
        b"".join(parts(folder).merged())
    with pytest.raises(SinkError, match=f"{lost.name}.* is missing"):
        asyncio.run(opened(parts(folder), 2))
    assert not lost.exists()


@pytest.mark.parametrize("lost", ["", ".orders", ".position"])
def test_an_output_with_a_lost_file_is_replaced(tmp_path: Path, lost: str) -> None:
    folder = tmp_path / "out"

    async def run(mode: str, text: str) -> None:
        sink = parts(folder, mode=mode)
        _, second = await opened(sink, 2)
        await second.write_ordered(2, orders_at(1), [text])
        await sink.write(2, [1])
        await sink.aclose()

    asyncio.run(run("resume", "long ago"))
    (folder / f"part-00001.jsonl{lost}").unlink()
    asyncio.run(run("replace", "new"))
    assert b"".join(parts(folder).merged()) == b'"new"\n'
    assert not any(one.damages for one in verified(parts(folder)))


def test_a_folder_that_is_not_there_has_nothing_to_verify(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="there is no folder"):
        parts(tmp_path / "out").stored()
    asyncio.run(opened(parts(tmp_path / "out"), 1))
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    with pytest.raises(SinkError, match="has no files"):
        parts(tmp_path / "out").stored()


@pytest.mark.parametrize("left", [b"", b"{", b'{"partitions":["x"]}'])
def test_a_damaged_manifest_is_an_error(tmp_path: Path, left: bytes) -> None:
    asyncio.run(opened(parts(tmp_path / "out"), 1))
    (tmp_path / "out" / "manifest.json").write_bytes(left)
    with pytest.raises(SinkError, match=r"manifest\.json is damaged"):
        parts(tmp_path / "out").stored()


def test_rows_end_at_newlines_that_are_not_quoted() -> None:
    sink = CsvSink(CsvSinkOptions(path="unused"), EdgeContext("out", Row))
    rows = [sink.encode([Row(number, text)]) for number, text in enumerate(["a", "two\nlines", '"', '"\n"', ""])]
    ends = sink.row_ends(b"".join(rows))
    assert ends == [len(b"".join(rows[:end])) for end in range(1, 6)]


def test_options_that_make_no_sense_in_partitions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='mode is "append"'):
        parts(tmp_path / "out", mode="append")
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="not a folder"):
        parts(tmp_path / "file").rehearse()
    with pytest.raises(SinkError, match="there is no folder"):
        parts(tmp_path / "none" / "out").rehearse()


def test_one_sequence_is_not_written_to_a_folder_of_partitions(tmp_path: Path) -> None:
    asyncio.run(opened(parts(tmp_path / "out"), 1))
    sink = JsonlSink(FileSinkOptions(path=str(tmp_path / "out")), EdgeContext("out"))
    for refused in (sink.rehearse, lambda: asyncio.run(sink.open())):
        with pytest.raises(SinkError, match="is a folder of partitions") as caught:
            refused()
        assert 'order = "partitioned"' in caught.value.hint
        assert "another path" in caught.value.hint


def test_a_process_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    elsewhere = parts(tmp_path / "elsewhere").partition(1, "grant")
    with pytest.raises(SinkError, match="not where this process looks for it") as caught:
        asyncio.run(elsewhere.open())
    assert "one folder" in str(caught.value)
    assert encode_time(MIN_TIME) == bytes(8)
