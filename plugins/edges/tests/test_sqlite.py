"""Sink `sqlite`: columns and cells, modes, and refusals of the database."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import enum
import math
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest

from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError, TimeRegressionError
from flamecore.model.meta import MAX_TIME, MIN_TIME
from flamecore.testing.bench.disks import file_limit
from flamestream_edges.sqlite import Sqlite


class Change(NamedTuple):
    change: Literal["add", "remove"]
    page: int
    weight: float | None
    positions: tuple[int, ...]


@dataclasses.dataclass
class Data:
    name: str
    raw: bytes


class Struct(msgspec.Struct, rename="camel"):
    two_words: int


class Typed(TypedDict):
    order: int
    select: str


class Measure(float):
    """A float of another class, as those of numpy are."""


class Lone(msgspec.Struct):
    x: Any


class Colour(enum.Enum):
    RED = "red"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.db"


def sink(path: Path, type_: Any = object, *, name: str = "out", fingerprint: str = "f", **options: Any) -> Sqlite:
    return Sqlite(Sqlite.Options(path=str(path), **options), EdgeContext(name, type_, fingerprint=fingerprint))


async def deliver(target: Sqlite, batches: Sequence[tuple[int, Sequence[Any]]] = ()) -> int:
    held = await target.open()
    try:
        for time, payloads in batches:
            await target.write(time, payloads)
    finally:
        await target.aclose()
    return held


def write(target: Sqlite, *payloads: Any) -> None:
    asyncio.run(deliver(target, [(1, payloads)]))


def query(path: Path, sql: str = "SELECT * FROM out ORDER BY seq") -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute(sql).fetchall()


def columns(path: Path) -> list[tuple[str, str]]:
    return [(row[1], row[2]) for row in query(path, "PRAGMA table_info(out)")]


@pytest.mark.parametrize(
    ("type_", "payload", "expected", "row"),
    [
        (
            Change,
            Change("add", 7, None, (1, 2)),
            [("change", "TEXT"), ("page", "INTEGER"), ("weight", "REAL"), ("positions", "TEXT")],
            ("add", 7, None, "[1,2]"),
        ),
        (Data, Data("x", b"\0"), [("name", "TEXT"), ("raw", "BLOB")], ("x", b"\0")),
        (Struct, Struct(1), [("twoWords", "INTEGER")], (1,)),
        (Typed, {"order": 1, "select": "*"}, [("order", "INTEGER"), ("select", "TEXT")], (1, "*")),
        (tuple[str, int], ("a", 1), [("key", "TEXT"), ("value", "INTEGER")], ("a", 1)),
        (tuple[str, int, bool], ("a", 1, True), [("c0", "TEXT"), ("c1", "INTEGER"), ("c2", "INTEGER")], ("a", 1, 1)),
        (int, 5, [("value", "INTEGER")], (5,)),
        (str, "5", [("value", "TEXT")], ("5",)),
        (str | int, "5", [("value", "")], ("5",)),
        (tuple[int, ...], (1, 2), [("value", "TEXT")], ("[1,2]",)),
        (Change | Data, Data("x", b"a"), [("value", "TEXT")], ('{"name":"x","raw":"YQ=="}',)),
        (object, {"a": {2, 1}}, [("value", "")], ('{"a":[1,2]}',)),
        (object, "text", [("value", "")], ("text",)),
        (object, math.inf, [("value", "")], (math.inf,)),
        (object, Measure("inf"), [("value", "")], (math.inf,)),
        (float, Measure("-inf"), [("value", "REAL")], (-math.inf,)),
        (object, math.nan, [("value", "")], (None,)),
        (object, Measure("nan"), [("value", "")], (None,)),
        (float, Measure("nan"), [("value", "REAL")], (None,)),
        (datetime.date, datetime.date(2024, 1, 2), [("value", "TEXT")], ("2024-01-02",)),
        (Lone, Lone(Colour.RED), [("x", "")], ("red",)),
        (tuple[str, int], ("a", [1]), [("key", "TEXT"), ("value", "INTEGER")], ("a", "[1]")),
    ],
)
def test_payloads_become_columns_and_cells(path: Path, type_: Any, payload: Any, expected: Any, row: Any) -> None:
    write(sink(path, type_), payload, payload)
    assert columns(path) == [("seq", "INTEGER"), *expected]
    assert query(path) == [(1, *row), (2, *row)]


def test_the_time_is_stored_with_the_rows(path: Path) -> None:
    asyncio.run(deliver(sink(path, int), [(5, [1]), (MAX_TIME, [2, 3])]))
    assert query(path, "SELECT sink, time, fingerprint FROM flamestream_position") == [("out", MAX_TIME, "f")]


def test_modes_touch_no_other_table(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE mine (x)")
    asyncio.run(deliver(sink(path, int, name="other"), [(3, [30])]))
    assert asyncio.run(deliver(sink(path, int), [(5, [1])])) == MIN_TIME
    assert asyncio.run(deliver(sink(path, int, mode="append"), [(2, [2])])) == MIN_TIME
    assert asyncio.run(deliver(sink(path, int, mode="resume"), [(6, [3])])) == 2
    assert [row[1] for row in query(path)] == [1, 2, 3]
    assert asyncio.run(deliver(sink(path, int), [(1, [4])])) == MIN_TIME
    assert query(path) == [(1, 4)]
    assert query(path, "SELECT value FROM other") == [(30,)]
    assert asyncio.run(deliver(sink(path, int, name="other", mode="resume"))) == 3
    assert query(path, "SELECT count(*) FROM mine") == [(0,)]


def test_a_table_that_cannot_be_resumed_is_refused_and_left_alone(path: Path) -> None:
    asyncio.run(deliver(sink(path, int), [(5, [1])]))
    with pytest.raises(SinkError, match="it was written by another flow or from other inputs"):
        asyncio.run(deliver(sink(path, int, mode="resume", fingerprint="g")))
    for mode in ("append", "resume"):
        with pytest.raises(SinkError, match="has the columns seq, value, and seq, key, value are to be written"):
            asyncio.run(deliver(sink(path, tuple[str, int], mode=mode)))
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM flamestream_position")
    with pytest.raises(SinkError, match="its writer and its last time are not recorded"):
        asyncio.run(deliver(sink(path, int, mode="resume")))
    assert query(path) == [(1, 1)]


@pytest.mark.parametrize(
    ("type_", "payload", "what"),
    [
        (int, 2**63, "table out: column 'value' is 9223372036854775808, which does not fit 64 bits"),
        (object, -(2**63) - 1, "table out: column 'value' is -9223372036854775809, which does not fit 64 bits"),
        (int, 10**1000, r"column 'value' is 10+… \(1001 characters\), which"),
        (object, object(), "a payload of type object cannot be written"),
        (str, "\ud800", "surrogates"),
        (tuple[str, int], ("a",), "it has 1 places, and the flow declares 2"),
        (tuple[str, str], "ab", "a payload of type str cannot be written: the flow declares tuple for it"),
        (Change, None, "a payload of type NoneType cannot be written: the flow declares Change for it"),
        (Change, Change("add", 2**70, 0.0, ()), "column 'page' is 1180591620717411303424, which"),
    ],
)
def test_a_payload_that_cannot_be_stored_leaves_nothing_of_its_batch(
    path: Path, type_: Any, payload: Any, what: str
) -> None:
    good: Any = {int: 1, str: "x", object: 1, Change: Change("add", 1, 0.0, ())}.get(type_, ("x", "1"))

    async def run() -> None:
        target = sink(path, type_)
        await target.open()
        await target.write(1, [good])
        with pytest.raises(SinkError, match=what) as caught:
            await target.write(2, [good, payload, good])
        assert str(path) in caught.value.what
        await target.write(3, [good])
        await target.aclose()

    asyncio.run(run())
    assert [row[0] for row in query(path)] == [1, 2]


def test_a_time_that_goes_back_is_an_error(path: Path) -> None:
    with pytest.raises(TimeRegressionError):
        asyncio.run(deliver(sink(path), [(5, ["a"]), (4, ["b"])]))
    assert len(query(path)) == 1


@pytest.mark.parametrize("name", ["a-b", "1a", 'x"; DROP TABLE y', "sqlite_master", "flamestream_position", "слова"])
def test_a_name_that_is_no_table_is_refused_at_once(path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sink(path, name=name)
    error: Any = caught.value
    assert error.path == f"sink.{name}.table"
    write(sink(path, name=name, table="Select"), 1)
    assert query(path, 'SELECT * FROM "Select"') == [(1, 1)]


def payload_of(*names: str) -> Any:
    return msgspec.defstruct("Payload", [(name, int) for name in names])


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (("a", "seq"), "column 'seq' of the payloads has the name of the sink's own, the order of delivery"),
        (("SEQ",), "column 'SEQ' of the payloads has the name of the sink's own"),
        (("a", "b", "A"), "column 'A' of the payloads has the name of column 'a', since SQLite ignores case"),
    ],
)
def test_columns_of_one_name_are_refused_at_once(path: Path, names: Sequence[str], what: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(what)) as caught:
        sink(path, payload_of(*names))
    assert "another name" in caught.value.hint
    assert caught.value.path == "sink.out"


def test_columns_whose_names_differ_for_sqlite_are_written(path: Path) -> None:
    type_ = payload_of("ä", "Ä", "sequence")
    write(sink(path, type_), type_(1, 2, 3))
    assert query(path) == [(1, 1, 2, 3)]


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_text("plain text, and long enough to be looked at" * 100)
    with pytest.raises(SinkError, match="file is not a database") as caught:
        asyncio.run(deliver(sink(path)))
    assert "another kind of file" in caught.value.hint


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="unable to open database file") as caught:
        asyncio.run(deliver(sink(tmp_path / "nowhere" / "out.db")))
    assert "mkdir -p" in caught.value.hint


def test_a_folder_is_refused(tmp_path: Path) -> None:
    for call in (lambda: sink(tmp_path).rehearse(), lambda: asyncio.run(deliver(sink(tmp_path)))):
        with pytest.raises(SinkError, match="is a folder, and a file is to be written") as caught:
            call()
        assert str(tmp_path) in caught.value.what
        assert caught.value.hint == "Give the path of a file."


def test_a_database_locked_by_another_process_is_an_error(path: Path) -> None:
    asyncio.run(deliver(sink(path)))

    async def run() -> None:
        target = sink(path, busy_timeout_s=0.05)
        await target.open()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(SinkError, match="database is locked") as caught:
                await target.write(1, ["x"])
            assert "busy_timeout_s" in caught.value.hint
            other.execute("ROLLBACK")
        await target.write(1, ["y"])
        await target.aclose()

    asyncio.run(run())
    assert query(path) == [(1, "y")]


def test_a_disk_that_is_full_leaves_nothing_of_the_batch(path: Path) -> None:
    """A limit on the size of files stands in for the full disk."""

    async def run() -> None:
        target = sink(path, str)
        await target.open()
        await target.write(1, ["a"])
        with file_limit(200_000), pytest.raises(SinkError, match="cannot be written to") as caught:
            await target.write(2, ["x" * 1000] * 1000)
        assert caught.value.hint
        await target.write(2, ["b"])
        await target.aclose()

    asyncio.run(run())
    assert [row[1] for row in query(path)] == ["a", "b"]


class Row(NamedTuple):
    name: str | None
    number: int


def last(rows: Sequence[Row]) -> list[Row]:
    """Return the last row of each name, in order."""
    found: dict[str | None, Row] = {}
    for row in rows:
        found.pop(row.name, None)
        found[row.name] = row
    return list(found.values())


def test_a_table_with_a_key_has_its_last_rows(path: Path) -> None:
    rows = [Row(f"{number % 4}", number) for number in range(30)]
    asyncio.run(deliver(sink(path, Row, key=("name",)), [(9, rows[:8]), (31, rows[8:])]))
    assert query(path, "SELECT name, number FROM out ORDER BY seq") == last(rows)


def test_a_row_without_a_key_is_refused_and_nothing_of_its_batch_stays(path: Path) -> None:
    async def run() -> None:
        target = sink(path, Row, key=("name",))
        await target.open()
        with pytest.raises(SinkError, match=r"NOT NULL constraint failed: out\.name") as caught:
            await target.write(3, [Row("one", 1), Row(None, 2)])
        assert "Leave out payloads" in caught.value.hint
        await target.write(2, [Row("one", 1)])
        await target.aclose()

    asyncio.run(run())
    assert query(path) == [(1, "one", 1)]


def test_a_key_that_a_table_cannot_have_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sink\.out\.key: the payloads have no column nam") as unknown:
        sink(path, Row, key=("nam",))
    assert "name" in unknown.value.hint
    asyncio.run(deliver(sink(path, Row), [(1, [Row("one", 1)])]))
    with pytest.raises(SinkError, match="table out was written not with key name"):
        asyncio.run(deliver(sink(path, Row, mode="resume", key=("name",))))
    asyncio.run(deliver(sink(path, Row, key=("name",)), [(1, [Row("one", 1)])]))
    with pytest.raises(SinkError, match=r"UNIQUE constraint failed: out\.name") as keyed:
        asyncio.run(deliver(sink(path, Row, mode="append"), [(2, [Row("one", 2)])]))
    assert "Its writer gave it a key" in keyed.value.hint
