"""Sink `postgres`: its laws by the kit, columns, modes, locks, and servers that end in the midst of a commit."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import uuid
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from flamestream_postgres.server import Server
from flamestream_postgres.sink import Options, Postgres

import flamecore as fc
from flamecore.abc.sink import Sink
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError, TimeRegressionError
from flamecore.model.meta import MAX_TIME, MIN_TIME
from flamecore.testing.checks.edges import SinkTests
from flamecore.testing.progress import patiently


class Count(NamedTuple):
    word: str
    number: int


COUNTS = tuple(Count(word, len(word)) for word in ("a", "b c", "три", "", 'a\tb\\n"', "two\nlines", "7"))


@dataclasses.dataclass
class Everything:
    flag: bool
    part: float | None
    raw: bytes
    day: datetime.date
    moment: datetime.datetime
    price: Decimal
    id: uuid.UUID
    rest: dict[str, Any]


def query(server: Server, text: str) -> list[Any]:
    with psycopg.connect(server.dsn) as connection:
        return connection.execute(text).fetchall()


def sink(server: Server, type_: Any = int, *, kept: str = "", continued: bool = False, **options: Any) -> Postgres:
    made = Postgres(Options(**{"dsn": server.dsn, **options}), EdgeContext("out", type_, fingerprint="f"))
    if kept:
        made.continues(kept, continued=continued)
    return made


async def deliver(made: Sink, *batches: tuple[int, Sequence[Any]]) -> int:
    held = await made.open()
    try:
        for time, payloads in batches:
            await made.write(time, payloads)
    finally:
        await made.aclose()
    return held


class TestPostgres(SinkTests):
    payloads = COUNTS
    dsn: str

    @pytest.fixture(autouse=True)
    def server_dsn(self, server: Server) -> None:
        self.dsn = server.dsn

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> Sink:
        options = Options(dsn=self.dsn, table=folder.name, mode="resume" if resume else "replace")
        return Postgres(options, EdgeContext("counts", Count, fingerprint=fingerprint))

    def read_back(self, folder: Path) -> Sequence[Any]:
        with psycopg.connect(self.dsn) as connection:
            rows = connection.execute(f"SELECT word, number FROM {folder.name} ORDER BY seq")
            return [Count(*row) for row in rows.fetchall()]


@pytest.mark.parametrize(
    ("type_", "payload", "columns", "row"),
    [
        (int, 5, {"value": "bigint"}, (5,)),
        (tuple[str, int | None], ("a", None), {"key": "text", "value": "bigint"}, ("a", None)),
        (int | float, 5, {"value": "double precision"}, (5.0,)),
        (object, {"a": [1, None]}, {"value": "jsonb"}, ({"a": [1, None]},)),
        (str | int, "5", {"value": "jsonb"}, ("5",)),
        (list[int], [1, 2], {"value": "jsonb"}, ([1, 2],)),
        (
            Everything,
            Everything(
                True,
                None,
                b"\xff\x00",
                datetime.date(2024, 2, 29),
                datetime.datetime(2024, 1, 2, 3, 4, 5, 6, datetime.UTC),
                Decimal("1.50"),
                uuid.UUID(int=7),
                {"a": {2, 1}},
            ),
            {
                "flag": "boolean",
                "part": "double precision",
                "raw": "bytea",
                "day": "date",
                "moment": "timestamp with time zone",
                "price": "numeric",
                "id": "uuid",
                "rest": "jsonb",
            },
            (
                True,
                None,
                b"\xff\x00",
                datetime.date(2024, 2, 29),
                datetime.datetime(2024, 1, 2, 3, 4, 5, 6, datetime.UTC),
                Decimal("1.50"),
                uuid.UUID(int=7),
                {"a": [1, 2]},
            ),
        ),
    ],
)
def test_payloads_become_columns_and_cells(
    server: Server, type_: Any, payload: Any, columns: dict[str, str], row: Any
) -> None:
    asyncio.run(deliver(sink(server, type_), (1, [payload, payload])))
    said = query(
        server,
        "SELECT column_name, data_type FROM information_schema.columns"
        " WHERE table_name = 'out' ORDER BY ordinal_position",
    )
    assert dict(said) == {"seq": "bigint", **columns}
    assert query(server, "SELECT * FROM out ORDER BY seq") == [(1, *row), (2, *row)]


def test_values_of_numpy_are_cells_like_those_of_python(server: Server) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    moment = datetime.datetime(2024, 1, 2, 3, 4, 5, 6, datetime.UTC)
    rest = {"n": numpy.int32(7), "day": numpy.datetime64("2024-02-29")}
    payload = Everything(
        numpy.bool_(True),
        numpy.float32(0.5),
        numpy.bytes_(b"x"),
        numpy.datetime64("2024-02-29"),
        numpy.datetime64("2024-01-02T03:04:05.000006"),
        Decimal("1.50"),
        uuid.UUID(int=7),
        rest,
    )
    asyncio.run(deliver(sink(server, Everything), (1, [payload])))
    found = (True, 0.5, b"x", datetime.date(2024, 2, 29), moment, Decimal("1.50"), uuid.UUID(int=7))
    assert query(server, "SELECT * FROM out") == [(1, *found, {"n": 7, "day": "2024-02-29"})]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (int, 1.5),
        (datetime.date, datetime.datetime(2024, 2, 29, 12)),
        (datetime.time, datetime.datetime(2024, 2, 29, 12)),
        (datetime.date, 1),
    ],
)
def test_a_value_that_would_become_another_one_is_refused(server: Server, type_: Any, value: Any) -> None:
    with pytest.raises(SinkError):
        asyncio.run(deliver(sink(server, type_), (1, [None, value])))
    assert query(server, "SELECT count(*) FROM out") == [(0,)]


def test_modes_touch_no_other_table_and_keep_what_depends_on_theirs(server: Server) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE mine (x int)")
    asyncio.run(deliver(sink(server, int, table="other"), (3, [30])))
    assert asyncio.run(deliver(sink(server, int, table="modes"), (5, [1]))) == MIN_TIME
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE VIEW sums AS SELECT sum(value) FROM modes")
    assert asyncio.run(deliver(sink(server, int, table="modes", mode="append"), (2, [2]))) == MIN_TIME
    assert asyncio.run(deliver(sink(server, int, table="modes", mode="resume"), (6, [3]))) == 2
    assert query(server, "SELECT value FROM modes ORDER BY seq") == [(1,), (2,), (3,)]
    assert asyncio.run(deliver(sink(server, int, table="modes"), (MAX_TIME, [4]))) == MIN_TIME
    assert query(server, "SELECT seq, value FROM modes") == [(1, 4)]
    assert [int(row[0]) for row in query(server, "SELECT * FROM sums")] == [4]
    assert asyncio.run(deliver(sink(server, int, table="other", mode="resume"))) == 3
    with pytest.raises(SinkError, match="other objects depend on it") as caught:
        asyncio.run(deliver(sink(server, str, table="modes", mode="replace"), (1, ["a"])))
    assert "something depends on it" in caught.value.hint


def test_a_table_may_have_its_own_schema(server: Server) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA apart")
    asyncio.run(deliver(sink(server, int, schema="apart", table="select"), (1, [1])))
    assert query(server, 'SELECT value FROM apart."select"') == [(1,)]
    assert query(server, "SELECT sink, time FROM apart.flamestream_position") == [("select", 1)]


def test_a_table_that_cannot_be_resumed_is_refused_and_left_alone(server: Server) -> None:
    asyncio.run(deliver(sink(server, int, table="theirs", kept="a"), (5, [1])))
    with pytest.raises(SinkError, match="it was written by another job"):
        asyncio.run(deliver(sink(server, int, table="theirs", kept="b", continued=True)))
    with pytest.raises(SinkError, match="has the columns seq, value, and seq, key, value are to be written"):
        asyncio.run(deliver(sink(server, tuple[str, int], table="theirs", mode="append")))
    query(server, "DELETE FROM flamestream_position WHERE sink = 'theirs' RETURNING 1")
    with pytest.raises(SinkError, match="its writer and its last time are not recorded"):
        asyncio.run(deliver(sink(server, int, table="theirs", mode="resume")))
    assert query(server, "SELECT value FROM theirs") == [(1,)]


@pytest.mark.parametrize(
    ("type_", "good", "bad", "what"),
    [
        (int, 1, 2**63, "out of range"),
        (str, "a", "a\0b", "NUL"),
        (str, "a", "\ud800", "surrogates"),
        (int, 1, "x", "invalid input syntax for type bigint"),
        (object, 1, object(), "a payload of type object cannot be written"),
        (Count, Count("a", 1), ("a", 1), "the flow declares Count for it"),
    ],
)
def test_a_payload_that_cannot_be_stored_leaves_nothing_of_its_batch(
    server: Server, type_: Any, good: Any, bad: Any, what: str
) -> None:
    async def run() -> None:
        made = sink(server, type_, table="wrong")
        await made.open()
        await made.write(1, [good])
        with pytest.raises(SinkError, match=what):
            await made.write(2, [good, bad, good])
        await made.write(3, [good])
        with pytest.raises(TimeRegressionError):
            await made.write(2, [good])
        await made.aclose()

    asyncio.run(run())
    assert len(query(server, "SELECT * FROM wrong")) == 2


def test_many_sinks_open_at_once_and_one_writes(server: Server) -> None:
    async def run() -> None:
        made = [sink(server, int, table="race", kept="a") for _ in range(4)]
        await asyncio.gather(*(one.open() for one in made))
        said = await asyncio.gather(*(one.write(10, [1, 2]) for one in made), return_exceptions=True)
        assert [type(answer) for answer in said if answer] == [SinkError] * 3
        for one in made:
            await one.aclose()

    asyncio.run(run())
    assert query(server, "SELECT value FROM race ORDER BY seq") == [(1,), (2,)]


def test_a_locked_table_is_refused(server: Server) -> None:
    async def run() -> None:
        made = sink(server, int, table="locked", lock_timeout_s=0.05)
        await made.open()
        with psycopg.connect(server.dsn) as other:
            other.execute("LOCK TABLE locked")
            with pytest.raises(SinkError, match="lock timeout") as caught:
                await made.write(1, [1])
            assert "lock_timeout_s" in caught.value.hint
        await made.write(1, [2])
        await made.aclose()

    asyncio.run(run())
    assert query(server, "SELECT value FROM locked") == [(2,)]


@pytest.mark.parametrize("end", [Server.crash, Server.stop])
def test_the_server_ends_and_comes_back_while_it_is_written_to(end: Any, server: Server) -> None:
    async def run(own: Server) -> None:
        made = sink(own, int)
        await made.open()
        reached = asyncio.Event()

        async def write() -> None:
            for number in range(400):
                await made.write(number + 1, range(3 * number, 3 * number + 3))
                if number % 100 == 50:
                    reached.set()

        writing = asyncio.create_task(write())
        for _ in range(3):
            await reached.wait()
            reached.clear()
            await asyncio.to_thread(end, own)
            await asyncio.to_thread(own.start)
        await writing
        await made.sync(1000)
        await made.aclose()

    with Server() as own:
        asyncio.run(run(own))
        assert query(own, "SELECT value FROM out ORDER BY seq") == [(number,) for number in range(1200)]
        assert query(own, "SELECT time FROM flamestream_position") == [(1000,)]


def test_a_commit_whose_answer_is_lost_is_not_made_twice(server: Server) -> None:
    async def run() -> None:
        made = sink(server, int, table="lost")
        await made.open()
        await made.write(1, [1])
        connection = made._connection
        assert connection is not None
        pid = connection.info.backend_pid

        async def insert(cursor: psycopg.AsyncCursor[Any]) -> None:
            await made._insert(cursor, [(2,)])
            # As if the server had committed and gone away before it could say so.
            await cursor.execute("COMMIT")
            query(server, f"SELECT pg_terminate_backend({pid})")

        await made._commit(2, insert)
        await made.write(3, [3])
        await made.aclose()

    asyncio.run(run())
    assert query(server, "SELECT value FROM lost ORDER BY seq") == [(1,), (2,), (3,)]


@pytest.mark.parametrize(("type_", "payloads"), [(int, (1, 2)), (Count, COUNTS), (object, ("a", "b"))])
def test_a_batch_that_is_cut_short_is_written_again_whole(server: Server, type_: Any, payloads: Sequence[Any]) -> None:
    """The server ends the connection when it has all of the rows, and is yet to commit them."""

    async def run() -> None:
        made = sink(server, type_, table="short")
        await made.open()
        insert, cuts = made._insert, 0

        async def cut_short(cursor: psycopg.AsyncCursor[Any], rows: Any) -> None:
            nonlocal cuts
            await insert(cursor, rows)
            if cuts < 2:
                cuts += 1
                query(server, f"SELECT pg_terminate_backend({cursor.connection.info.backend_pid}, 10000)")

        made._insert = cut_short  # type: ignore[method-assign]  # broken off on purpose
        await made.write(1, payloads)
        await made.aclose()
        assert cuts == 2

    asyncio.run(run())
    assert len(query(server, "SELECT * FROM short")) == len(payloads)


def test_a_commit_that_is_still_under_way_when_the_sink_is_back_is_waited_for(server: Server) -> None:
    async def run() -> None:
        made = sink(server, int, table="late")
        await made.open()
        await made.write(1, [1])
        insert = made._insert

        async def leave_it_to(cursor: psycopg.AsyncCursor[Any], rows: Any) -> None:
            made._insert = insert  # type: ignore[method-assign]  # broken off on purpose
            query(server, f"SELECT pg_terminate_backend({cursor.connection.info.backend_pid}, 10000)")
            # What the server would do if only the way to it were broken.
            await late.execute("UPDATE flamestream_position SET time = 2 WHERE sink = 'late'")
            await late.execute("INSERT INTO late (value) VALUES (2)")

        made._insert = leave_it_to  # type: ignore[method-assign]  # broken off on purpose
        async with await psycopg.AsyncConnection.connect(server.dsn) as late:
            writing = asyncio.create_task(made.write(2, [2]))
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while not writing.done() and not await asyncio.to_thread(query, server, waiting):
                await asyncio.sleep(0.01)
            await late.commit()
            await writing
        await made.write(3, [3])
        await made.aclose()

    asyncio.run(patiently(run(), 60))
    assert query(server, "SELECT value FROM late ORDER BY seq") == [(1,), (2,), (3,)]


def test_a_connection_breaks_while_another_run_takes_over(server: Server) -> None:
    async def run() -> None:
        older = sink(server, int, table="broken", kept="a")
        await older.open()
        assert older._connection is not None
        query(server, f"SELECT pg_terminate_backend({older._connection.info.backend_pid})")
        newer = sink(server, int, table="broken", kept="a")
        await newer.open()
        with pytest.raises(SinkError, match="another run has taken over"):
            await older.write(1, [1])
        await newer.write(1, [2])
        await older.aclose()
        await newer.aclose()

    asyncio.run(run())
    assert query(server, "SELECT value FROM broken") == [(2,)]


def test_a_missing_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="cannot be opened") as caught:
        asyncio.run(Postgres(Options(dsn=f"host={tmp_path}"), EdgeContext("out", int)).open())
    assert "Is the server running" in caught.value.hint


@pytest.mark.parametrize(("options", "key"), [({"table": "a b"}, "table"), ({"schema": 'x"y'}, "schema")])
def test_impossible_names_are_refused(options: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Postgres(Options(**options), EdgeContext("out", int))
    assert caught.value.path == f"sink.out.{key}"


class Numbered(NamedTuple):
    seq: int
    text: str


def test_a_column_with_the_name_of_the_sinks_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="column 'seq' of the payloads"):
        Postgres(Options(), EdgeContext("out", Numbered))


def test_a_job_finds_the_sink_and_resumes_with_it(server: Server, tmp_path: Path) -> None:
    flow = fc.Flow("squares")
    flow.source("numbers", int).map(lambda number: number * number).sink("squares")
    settings = {
        "job.guarantee": "exactly_once",
        "state.use": "sqlite",
        "state.path": str(tmp_path / "state"),
        "sink.squares.use": "postgres",
        "sink.squares.dsn": server.dsn,
    }
    flow.run({"numbers": [1, 2, 3]}, settings=settings)
    flow.run({"numbers": [1, 2, 3, 4]}, settings=settings)
    assert query(server, "SELECT value FROM squares ORDER BY seq") == [(1,), (4,), (9,), (16,)]
