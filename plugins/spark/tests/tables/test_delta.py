"""Delta tables: what others do to them, what is refused, and commits that fail half way."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake import DeltaTable as Table
from deltalake.exceptions import CommitFailedError

from flamecore.abc.sink import Mode
from flamecore.abc.source import EdgeContext
from flamecore.errors import MissingDependencyError, SinkError, SourceError
from flamecore.testing.progress import patiently
from flamestream_spark.sink import SparkSink
from flamestream_spark.source import SparkSource
from flamestream_spark.storage.places import place_of
from flamestream_spark.tables.delta_table import DeltaTable
from flamestream_spark.tables.outputs import output_of


class Count(NamedTuple):
    word: str
    number: int


def make(folder: Path, mode: Mode = "replace", fingerprint: str = "mine", type_: Any = str, **more: Any) -> SparkSink:
    options = SparkSink.Options(path=str(folder), format="delta", mode=mode, **more)
    return SparkSink(options, EdgeContext("counts", type_, None, fingerprint))


def values(folder: Path) -> list[Any]:
    return sorted(pa.table(Table(folder).to_pyarrow_dataset().to_table())["value"].to_pylist())


async def deliver(sink: SparkSink, *batches: tuple[int, list[Any]]) -> int:
    held = await sink.open()
    for time, payloads in batches:
        await sink.write(time, payloads)
    await sink.sync(batches[-1][0] if batches else held)
    await sink.aclose()
    return held


def test_others_may_write_to_the_table_and_vacuum_it_meanwhile(tmp_path: Path) -> None:
    """Their commits come between, are kept, and take nothing of ours."""

    async def run() -> None:
        sink = make(tmp_path / "out")
        await sink.open()
        for number in range(6):
            await sink.write(number, [f"ours {number}"])
            write_deltalake(tmp_path / "out", pa.table({"value": [f"theirs {number}"]}), mode="append")
            if number == 3:
                Table(tmp_path / "out").optimize.compact()
        await sink.aclose()

    asyncio.run(run())
    Table(tmp_path / "out").optimize.compact()
    assert asyncio.run(deliver(make(tmp_path / "out", "resume"), (7, ["ours 7"]))) == 5
    expected = [f"{who} {number}" for who in ("ours", "theirs") for number in range(6)]
    assert values(tmp_path / "out") == sorted([*expected, "ours 7"])


def test_a_table_of_others_is_added_to_and_never_replaced(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "out", pa.table({"value": ["theirs"]}))
    with pytest.raises(SinkError, match=r"holds rows that no such sink has written"):
        asyncio.run(make(tmp_path / "out").open())
    asyncio.run(deliver(make(tmp_path / "out", "append"), (1, ["mine"])))
    assert values(tmp_path / "out") == ["mine", "theirs"]
    with pytest.raises(SinkError, match=r"holds rows that no such sink has written"):
        asyncio.run(make(tmp_path / "out").open())
    assert values(tmp_path / "out") == ["mine", "theirs"]


def test_no_other_files_are_added_to_a_table(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "out", pa.table({"value": ["theirs"]}))
    parquet = SparkSink(SparkSink.Options(path=str(tmp_path / "out"), mode="append"), EdgeContext("counts", str))
    with pytest.raises(SinkError, match=r"out is a Delta table\n  Say format = \"delta\""):
        asyncio.run(parquet.open())


def test_replaced_rows_stay_in_an_earlier_version(tmp_path: Path) -> None:
    asyncio.run(deliver(make(tmp_path / "out"), (1, ["old"])))
    before = Table(tmp_path / "out").version()
    asyncio.run(deliver(make(tmp_path / "out", type_=Count), (1, [Count("new", 1)])))
    rows = pa.table(Table(tmp_path / "out").to_pyarrow_dataset().to_table()).to_pylist()
    assert rows == [{"word": "new", "number": 1}]
    assert [file["num_records"] for file in files_of(tmp_path / "out", before)] == [1]


def files_of(folder: Path, version: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(Table(folder, version=version).get_add_actions(flatten=True)).to_pylist()
    return found


@pytest.mark.parametrize(
    ("columns", "more", "words"),
    [
        ({"value": [1]}, {}, r"other columns than the output: 'value' is .*long.*, and .*string"),
        ({"word": ["a"]}, {}, r"'value' is not there, and .*string"),
        ({"value": ["a"], "more": [1]}, {}, r"'more' is .*long.*, and not in the output"),
        ({"value": ["a"], "day": ["b"]}, {"partition_by": ["day"]}, r"is partitioned by day"),
    ],
)
def test_a_table_with_other_columns_is_refused(
    columns: dict[str, Any], more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_deltalake(tmp_path / "out", pa.table(columns), **more)
    with pytest.raises(SinkError, match=words):
        asyncio.run(make(tmp_path / "out", "append").open())


def test_a_table_with_conditions_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "out", pa.table({"value": ["a"]}))
    Table(tmp_path / "out").alter.add_constraint({"short": "value < 'b'"})
    with pytest.raises(SinkError, match=r"has features that a writer must keep"):
        asyncio.run(make(tmp_path / "out", "append").open())


def test_a_folder_of_other_files_and_a_damaged_log_are_errors(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("theirs")
    with pytest.raises(SinkError, match=r"is no Delta table, and holds files: notes.txt"):
        asyncio.run(make(tmp_path / "out").open())
    asyncio.run(deliver(make(tmp_path / "table"), (1, ["a"])))
    for entry in (tmp_path / "table" / "_delta_log").glob("*.json"):
        entry.write_text("{")
    with pytest.raises(SinkError, match=r"Delta table .*table: Kernel error.*\n  Is it whole") as caught:
        asyncio.run(make(tmp_path / "table").open())
    assert "0:" not in str(caught.value), "the stack of somebody else's program"


def names(paths: list[str]) -> list[int]:
    """Return the times in the names of files of the sink; of other files 0."""
    return [int(Path(path).name.split("-")[2]) if Path(path).name.count("-") == 3 else 0 for path in paths]


def test_outputs_of_a_table_come_once_through_any_vacuum(tmp_path: Path) -> None:
    path = tmp_path / "out"
    none: dict[str, Any] = {"run": "", "time": 0}
    assert output_of(place_of(path, "path")).latest(none, None) == none
    path.mkdir()
    assert output_of(place_of(path, "path")).latest(none, None) == none

    async def run() -> None:
        sink = make(path)
        await sink.open()
        await sink.write(1, ["a"])
        await sink.write(2, ["b"])
        output = output_of(place_of(path, "path"))
        first = output.latest(none, None)
        assert names(output.between(none, first)) == [1, 2]
        assert output.latest(first, None) == first
        await sink.sync(5)
        assert output.latest(first, None) == first, "nothing has come"
        await sink.write(6, ["c"])
        await sink.write(7, ["d"])
        Table(path).optimize.compact()
        write_deltalake(path, pa.table({"value": ["e"]}), mode="append")
        second = output.latest(first, None)
        assert names(output.between(first, second)) == [6, 7, 0]
        assert len(output.between(none, second)) == len(output.files()) == 2, "as one who comes now sees them"
        assert names(output.between(first, output.latest(first, 2))) == [6]
        for number in range(8, 112):
            await sink.sync(number)
        later = output.latest(second, None)
        assert later["time"] == second["time"] + 104
        assert output.between(second, later) == []

    asyncio.run(run())
    output = output_of(place_of(path, "path"))
    before = output.latest(none, None)
    asyncio.run(deliver(make(path), (1, ["new"])))
    with pytest.raises(SourceError, match=r"has been replaced since it was read"):
        output.latest(before, None)
    now = output.latest(none, None)
    assert names(output.between(none, now)) == [1]
    asyncio.run(deliver(make(path, "resume"), (2, ["more"])))
    for entry in sorted((path / "_delta_log").glob("0*.json"))[:-1]:
        entry.rename(entry.with_suffix(".gone"))
    with pytest.raises(SourceError, match=r"is no longer in its log|cannot be read"):
        output.latest(now, None)


def test_outputs_in_partitions_are_for_others_to_read(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "out", pa.table({"value": ["a"], "day": ["b"]}), partition_by=["day"])
    with pytest.raises(SourceError, match=r"is partitioned by day"):
        output_of(place_of(tmp_path / "out", "path")).files()


@pytest.mark.usefixtures("data_source")
def test_a_table_is_read_as_a_stream(spark: Any, tmp_path: Path) -> None:
    """By a session that knows nothing of Delta Lake."""

    async def run() -> list[str]:
        write_deltalake(tmp_path / "in", pa.table({"value": ["a", "b"]}))
        options = SparkSource.Options(
            path=str(tmp_path / "in"), format="delta", stream=True, spool=str(tmp_path / "spool")
        )
        reader = await SparkSource(options, EdgeContext("lines", str)).open("")
        values: list[str] = []
        try:
            for expected, more in ((2, "c"), (3, "d"), (4, None)):
                while len(values) < expected:
                    batch = await reader.read(10)
                    assert batch is not None
                    values += batch.values
                if more is not None:
                    write_deltalake(tmp_path / "in", pa.table({"value": [more]}), mode="append")
        finally:
            await reader.aclose()
        return values

    assert asyncio.run(patiently(run(), 100)) == ["a", "b", "c", "d"]
    options = SparkSource.Options(path=str(tmp_path / "no"), format="delta", stream=True, spool=str(tmp_path / "other"))
    with pytest.raises(SourceError, match=r"source 'lines': Delta table .*no cannot be read"):
        asyncio.run(SparkSource(options, EdgeContext("lines", str)).open(""))
    write_deltalake(tmp_path / "days", pa.table({"value": ["a"], "day": ["b"]}), partition_by=["day"])
    options = msgspec.structs.replace(options, path=str(tmp_path / "days"))
    with pytest.raises(SourceError, match=r"source 'lines': .*is partitioned by day\n  Read it"):
        asyncio.run(SparkSource(options, EdgeContext("lines", str)).open(""))


class Half:
    """Breaks the next commit of a sink before or after it is done."""

    def __init__(self, sink: SparkSink, error: Exception, *, done: bool) -> None:
        assert isinstance(sink._folder, DeltaTable)
        self._inner, self._error, self._done = sink._folder._table, error, done
        sink._folder._table = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_write_transaction(self, *arguments: Any, **named: Any) -> None:
        error, self._error = self._error, None  # type: ignore[assignment]
        if error is None or self._done:
            self._inner.create_write_transaction(*arguments, **named)
        if error is not None:
            raise error


@pytest.mark.parametrize("done", [False, True])
def test_a_file_whose_commit_fails_is_there_once_or_not_at_all(done: bool, tmp_path: Path) -> None:
    async def run() -> None:
        sink = make(tmp_path / "out")
        await sink.open()
        await sink.write(1, ["a"])
        Half(sink, OSError(5, "the disk is gone"), done=done)
        with pytest.raises(SinkError, match=r"the disk is gone"):
            await sink.write(2, ["b"])
        again = make(tmp_path / "out", "resume")
        assert await again.open() == (2 if done else 1)
        assert len(list((tmp_path / "out").glob("part-*"))) == (2 if done else 1), "what no version has is taken away"
        if not done:
            await again.write(2, ["b"])
        await again.write(3, ["c"])

    asyncio.run(run())
    assert values(tmp_path / "out") == ["a", "b", "c"]


@pytest.mark.parametrize("done", [False, True])
def test_a_commit_reported_as_refused_is_not_made_twice(done: bool, tmp_path: Path) -> None:
    async def run() -> None:
        sink = make(tmp_path / "out")
        await sink.open()
        Half(sink, CommitFailedError("refused"), done=done)
        await sink.write(1, ["a"])
        Half(sink, CommitFailedError("refused"), done=done)
        await sink.sync(5)
        await sink.write(6, ["b"])

    asyncio.run(run())
    assert values(tmp_path / "out") == ["a", "b"]
    assert asyncio.run(make(tmp_path / "out", "resume").open()) == 6


def test_a_run_that_comes_back_is_refused_by_the_log(tmp_path: Path) -> None:
    """Though it does not look again: another one has come between its last look and its commit."""

    async def run() -> None:
        older = make(tmp_path / "out", "resume")
        await older.open()
        await older.write(1, ["a"])
        ghost = older._folder
        assert isinstance(ghost, DeltaTable)
        newer = make(tmp_path / "out", "resume")
        assert await newer.open() == 1
        done = CommitProperties(app_transactions=[Transaction("another", 1)])
        with pytest.raises(CommitFailedError, match=r"(?i)metadata changed"):
            ghost._table.create_write_transaction([], "append", ghost._schema, commit_properties=done)
        with pytest.raises(SinkError, match=r"another run has taken over Delta table") as caught:
            await older.write(2, ["ghost"])
        assert caught.value.fenced
        await newer.write(2, ["b"])

    asyncio.run(run())
    assert values(tmp_path / "out") == ["a", "b"]


def test_the_extra_is_named_where_the_module_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingDependencyError, match=r"'deltalake'.*\n.*pip install .*\[spark,delta\]'"):
        make(tmp_path / "out").rehearse()
