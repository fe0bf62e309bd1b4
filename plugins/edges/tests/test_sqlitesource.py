"""Source `sqlite`: tables, views, order, types, new rows, and errors."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flamecore.abc.source import EdgeContext, Source
from flamecore.errors import ConfigError, SourceError
from flamecore.testing.checks.sources import check_live
from flamestream_edges.sqlite import Sqlite
from flamestream_edges.sqlitesource import SqliteSource


class Pair(NamedTuple):
    word: str
    number: int


@dataclasses.dataclass
class Day:
    word: str
    day: datetime.date
    more: bytes | None = None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "in.db"
    run(
        file,
        "CREATE TABLE t (word TEXT, number, day TEXT)",
        "INSERT INTO t VALUES ('a', 1, '2024-01-01'), ('b', 2, '2024-01-01'), ('c', 3, '2024-01-02')",
    )
    return file


def run(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def source(path: Path, type_: Any = object, **options: Any) -> SqliteSource:
    return SqliteSource(SqliteSource.Options(path=str(path), **{"table": "t", **options}), EdgeContext("rows", type_))


def read(source: Source, position: Any = None) -> tuple[list[Any], list[Any], list[str]]:
    async def run() -> tuple[list[Any], list[Any], list[str]]:
        values: list[Any] = []
        positions: list[Any] = []
        bad: list[str] = []
        reader = await source.open("", position)
        try:
            while (batch := await reader.read(2)) is not None:
                values += batch.values
                positions += batch.positions
                bad += (f"{reader.describe(record.position)}: {record.reason}" for record in batch.rejected)
        finally:
            await reader.aclose()
        return values, positions, bad

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("type_", "columns", "expected"),
    [
        (object, ("number", "word"), {"number": 1, "word": "a"}),
        (dict[str, Any], (), {"word": "a", "number": 1, "day": "2024-01-01"}),
        (Pair, (), Pair("a", 1)),
        (Day, (), Day("a", datetime.date(2024, 1, 1))),
        (tuple[int, str], ("number", "word"), (1, "a")),
        (int, ("number",), 1),
        (datetime.date, ("day",), datetime.date(2024, 1, 1)),
    ],
)
def test_rows_become_what_the_flow_declares(path: Path, type_: Any, columns: Sequence[str], expected: Any) -> None:
    values, positions, bad = read(source(path, type_, columns=columns))
    assert (values[0], len(values)) == (expected, 3)
    assert positions == [(1,), (2,), (3,)]
    assert not bad


def test_rows_that_do_not_fit_are_told_apart(path: Path) -> None:
    run(path, "INSERT INTO t VALUES ('d', 'four', ''), (NULL, 5, ''), ('f', 6, '')")
    values, _, bad = read(source(path, Pair))
    assert values[-1] == Pair("f", 6)
    assert [line.partition(":")[0] for line in bad] == [f"{path} table t rowid 4", f"{path} table t rowid 5"]
    assert "Expected `int`, got `str` - at `$.number`" in bad[0]


@pytest.mark.parametrize("order", ["day", "number"])
def test_rows_of_equal_order_are_told_apart(path: Path, order: str) -> None:
    run(path, f"CREATE INDEX i ON t ({order})", "INSERT INTO t VALUES ('d', 2, '2024-01-01')")
    values, positions, _ = read(source(path, str, columns=("word",), order=order))
    assert values == ["a", "b", "d", "c"]
    assert len(set(positions)) == 4
    for place, position in enumerate(positions):
        assert read(source(path, str, columns=("word",), order=order), position)[0] == values[place + 1 :]


def test_views_and_tables_without_numbers_are_ordered_by_a_column(path: Path) -> None:
    run(
        path,
        "CREATE UNIQUE INDEX i ON t (number)",
        "CREATE VIEW v AS SELECT number, upper(word) AS word FROM t",
        "CREATE TABLE w (number INTEGER PRIMARY KEY, word) WITHOUT ROWID",
        "INSERT INTO w SELECT number, upper(word) FROM t",
    )
    for table in ("v", "w"):
        values, positions, _ = read(source(path, Pair, table=table, order="number"))
        assert values == [Pair("A", 1), Pair("B", 2), Pair("C", 3)]
        assert positions == [(1,), (2,), (3,)]
        with pytest.raises(SourceError, match=f"the rows of {table} have no number of their own"):
            read(source(path, Pair, table=table))


def test_a_table_that_a_sink_wrote_can_be_read(tmp_path: Path) -> None:
    async def write() -> None:
        sink = Sqlite(Sqlite.Options(path=str(tmp_path / "out.db")), EdgeContext("t", tuple[str, int]))
        await sink.open()
        await sink.write(1, [("a", 1), ("b", 2)])
        assert read_aside(tmp_path / "out.db") == [("a", 1), ("b", 2)]
        await sink.aclose()

    def read_aside(path: Path) -> list[Any]:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            return database.execute("SELECT key, value FROM t").fetchall()

    asyncio.run(write())
    assert read(source(tmp_path / "out.db", tuple[str, int], columns=("key", "value")))[0] == [("a", 1), ("b", 2)]


def test_rows_are_delivered_as_they_come(path: Path) -> None:
    run(path, "DELETE FROM t")

    async def feed(number: int) -> None:
        run(path, f"INSERT INTO t (number) VALUES ({number})")

    live = source(path, int, columns=("number",), poll_s=0.001)
    assert not live.capabilities.bounded
    asyncio.run(check_live(lambda: source(path, int, columns=("number",), poll_s=0.001), feed, [1, 2, 3]))


def test_a_table_that_grew_is_read_on_and_one_that_shrank_is_refused(path: Path) -> None:
    _, positions, _ = read(source(path))
    run(path, "INSERT INTO t (number) VALUES (4)", "DELETE FROM t WHERE number = 3")
    assert [row["number"] for row in read(source(path), positions[-1])[0]] == [4]
    for statement, held in (("DELETE FROM t WHERE number > 1", "ends at rowid 1"), ("DELETE FROM t", "is empty")):
        run(path, statement)
        with pytest.raises(SourceError, match=f"{held}, and has been read up to 3"):
            read(source(path), positions[-1])
    for position in (3, "x", (), (1, 2), (None,), [b"x"]):
        with pytest.raises(SourceError, match="is no position in table t"):
            read(source(path), position)


def test_the_fingerprint_sees_rows_come_and_go(path: Path) -> None:
    seen = {source(path).fingerprint()}
    for statement in ("INSERT INTO t (number) VALUES (4)", "DELETE FROM t WHERE number = 2"):
        assert source(path).fingerprint() in seen
        run(path, statement)
        seen.add(source(path).fingerprint())
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        ({"table": "tt"}, "there is no table tt", "Did you mean 't'?"),
        ({"columns": ("word", "numbre")}, "table t has no column numbre", "Did you mean 'number'?"),
        ({"order": "dax"}, "table t has no column dax", "Did you mean 'day'?"),
        ({"order": "day"}, "table t has no index on day", 'CREATE INDEX t_day ON "t" ("day")'),
    ],
)
def test_the_error_of_a_missing_table_or_column_suggests_those_there_are(
    path: Path, options: Any, what: str, hint: str
) -> None:
    with pytest.raises(SourceError) as caught:
        read(source(path, **options))
    assert what in caught.value.what
    assert hint.replace("t_day", "t_order") in caught.value.hint


def test_rows_are_ordered_by_a_column_of_any_numbers(path: Path) -> None:
    run(path, "CREATE TABLE r (at REAL, word)", "CREATE INDEX i ON r (at)")
    run(path, "INSERT INTO r VALUES (0.5, 'b'), (-1e300, 'a'), (2, 'd'), (0.5, 'c'), (9e999, 'e')")
    made = source(path, str, table="r", columns=("word",), order="at")
    values, positions, _ = read(made)
    assert values == ["a", "b", "c", "d", "e"]
    for place, position in enumerate(positions):
        assert read(made, position)[0] == values[place + 1 :]


def test_a_text_that_is_not_utf_8_is_told_with_its_row(path: Path) -> None:
    run(path, "INSERT INTO t VALUES (CAST(x'd0' AS TEXT), 4, ''), ('e', 5, '')")
    values, _, bad = read(source(path, Pair))
    assert [value.word for value in values] == ["a", "b", "c", "e"]
    assert bad == [rf"{path} table t rowid 4: not utf-8: column word is b'\xd0'"]


def test_a_text_that_is_not_utf_8_orders_no_row(path: Path) -> None:
    run(path, "CREATE INDEX i ON t (word)", "INSERT INTO t VALUES (CAST(x'd0' AS TEXT), 4, '')")
    with pytest.raises(SourceError, match=r"column word is b'\\xd0' in a row"):
        read(source(path, Pair, order="word"))


def test_a_null_in_the_order_column_is_refused(path: Path) -> None:
    run(path, "CREATE INDEX i ON t (number)", "INSERT INTO t VALUES ('x', NULL, '')")
    with pytest.raises(SourceError, match="column number is None in a row"):
        read(source(path, order="number"))


def test_a_type_that_no_row_can_become_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="the flow declares Path, and sqlite gives rows"):
        source(path, Path)


def test_files_that_are_no_databases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no such file"):
        source(tmp_path / "none.db").partitions()
    (tmp_path / "text").write_text("plain text, and long enough to be looked at" * 100)
    with pytest.raises(SourceError, match="file is not a database"):
        read(source(tmp_path / "text"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["text"]


def test_reading_changes_nothing(path: Path) -> None:
    before = path.read_bytes()
    read(source(path))
    assert path.read_bytes() == before
    assert sorted(file.name for file in path.parent.iterdir()) == ["in.db"]
