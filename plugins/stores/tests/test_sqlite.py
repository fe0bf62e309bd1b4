"""Store `sqlite`: its file, durability, large blobs, and refusals of the database."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flamecore.abc.store import StoreContext
from flamecore.errors import CorruptError, StoreError
from flamecore.testing.bench.disks import file_limit
from flamecore.testing.bench.stores import refusal, using
from flamestream_stores.sqlite import PIECE_BYTES, Sqlite


def store(folder: Path, path: str = "state", job: str = "job", **options: Any) -> Sqlite:
    return Sqlite(Sqlite.Options(path=f"{folder}/{path}", **options), StoreContext(job))


# -- where -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "job", "file"),
    [
        ("state", "job", "state/job.db"),
        ("state/", "my job", "state/my job.db"),
        ("a/b", "a/b", "a/b/a%2Fb.db"),
        ("state", "..", "state/%2E..db"),
        ("state", ".hidden", "state/%2Ehidden.db"),
        ("state", "", "state/%.db"),
        ("state", "%", "state/%25.db"),
        ("state", "ж", "state/%D0%B6.db"),
        ("state.db", "job", "state.db"),
        ("a/state.sqlite", "job", "a/state.sqlite"),
        ("state.sqlite3", "job", "state.sqlite3"),
        ("state.dbs", "job", "state.dbs/job.db"),
    ],
)
def test_the_file_is_named_after_path_and_job(tmp_path: Path, path: str, job: str, file: str) -> None:
    assert using(store(tmp_path, path, job), Sqlite.names) == []
    assert [found.relative_to(tmp_path) for found in tmp_path.rglob("*") if found.is_file()] == [Path(file)]


def test_jobs_of_long_names_have_files_of_their_own(tmp_path: Path) -> None:
    for tail in "ab":
        using(store(tmp_path, job="j" * 1000 + tail), lambda made: made.create("x", b""))
    assert len(list((tmp_path / "state").iterdir())) == 2


def test_the_path_may_be_absolute_or_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (str(tmp_path / "one.db"), "~/two.db"):
        using(Sqlite(Sqlite.Options(path=path), StoreContext("job")), Sqlite.names)
    assert {found.name for found in tmp_path.iterdir()} == {"one.db", "two.db"}


# -- durability -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("survives", "synchronous", "full"), [("power_loss", 2, 1), ("process_death", 1, 0)])
def test_transactions_are_forced_to_the_disk_as_survives_says(
    tmp_path: Path, survives: Any, synchronous: int, full: int
) -> None:
    """In WAL mode FULL (2) forces every transaction to the disk, NORMAL (1) does not."""

    async def asked(made: Sqlite) -> list[Any]:
        database = made._database
        assert database is not None
        pragmas = ("journal_mode", "synchronous", "fullfsync")
        return [
            await made._call(lambda name=name: database.execute(f"PRAGMA {name}").fetchone()[0]) for name in pragmas
        ]

    assert using(store(tmp_path, survives=survives), asked) == ["wal", synchronous, full]


@pytest.mark.parametrize("size", [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 3 * PIECE_BYTES + 5])
def test_large_blobs_are_stored_in_pieces(tmp_path: Path, size: int) -> None:
    data = bytes(range(251)) * (size // 251) + bytes(size % 251)

    async def do(made: Sqlite) -> None:
        assert await made.create("large", data)
        assert not await made.create("large", data[::-1])
        assert await made.read("large") == data
        assert await made.names() == ["large"]

    using(store(tmp_path), do)
    with contextlib.closing(sqlite3.connect(tmp_path / "state" / "job.db")) as database:
        (pieces,) = database.execute("SELECT count(*) FROM blobs").fetchone()
    assert pieces == -(-size // PIECE_BYTES)


def test_the_log_does_not_stay_large(tmp_path: Path) -> None:
    async def do(made: Sqlite) -> int:
        for number in range(3):
            await made.create(f"large/{number}", bytes(40 * 2**20))
            await made.delete([f"large/{number}"])
        await made.create("small", b"")
        return (tmp_path / "state" / "job.db-wal").stat().st_size

    assert using(store(tmp_path, survives="process_death"), do) <= 64 * 2**20
    assert (tmp_path / "state" / "job.db").stat().st_size < 100 * 2**20


# -- refusals of the database -----------------------------------------------------------------------------------------


def test_another_writer_is_waited_for(tmp_path: Path) -> None:
    async def do(made: Sqlite) -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "state" / "job.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = [asyncio.create_task(made.create(name, b"data")) for name in ("a", "b")]
            for _ in range(20):  # the loop turns meanwhile
                await asyncio.sleep(0.001)
            assert not any(task.done() for task in waiting)
            other.execute("ROLLBACK")
            assert await asyncio.gather(*waiting) == [True, True]

    using(store(tmp_path), do)


def test_a_writer_that_never_ends_is_an_error(tmp_path: Path) -> None:
    async def do(made: Sqlite) -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "state" / "job.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for call in (made.create("a", b"data"), made.create("b", bytes(PIECE_BYTES + 1)), made.delete(["c"])):
                with pytest.raises(StoreError, match=r"database is locked \(SQLITE_BUSY\)\n.*busy_timeout_s"):
                    await call
            assert await made.names() == []
            other.execute("ROLLBACK")
        assert await made.create("a", b"data")

    using(store(tmp_path, busy_timeout_s=0.05), do)


HOLDER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("it is mine", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="there is no /proc/locks to say who holds it")
def test_a_writer_that_never_ends_is_named(tmp_path: Path) -> None:
    using(store(tmp_path), Sqlite.names)
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "state" / "job.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "it is mine\n"
        try:
            assert f"Another process ({other.pid}) holds it" in refusal(store(tmp_path, busy_timeout_s=0.05)).hint
        finally:
            other.communicate()


def test_an_exclusive_lock_of_another_process_is_an_error(tmp_path: Path) -> None:
    using(store(tmp_path), Sqlite.names)
    with contextlib.closing(sqlite3.connect(tmp_path / "state" / "job.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("PRAGMA user_version = 1")
        assert "Another process holds it" in refusal(store(tmp_path, busy_timeout_s=0.05)).hint


def test_many_stores_open_the_file_at_once(tmp_path: Path) -> None:
    """There may be no file yet, or the last store may have just closed."""

    async def run() -> None:
        for turn in range(5):
            stores = [store(tmp_path) for _ in range(8)]
            await asyncio.gather(*(made.open() for made in stores))
            created = await asyncio.gather(*(made.create(f"{turn}", b"") for made in stores))
            assert sum(created) == 1
            await asyncio.gather(*(made.aclose() for made in stores))

    asyncio.run(run())


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"something else " * 1000)
    assert "another kind of file" in refusal(store(tmp_path, "state.db")).hint


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as other:
        other.execute("CREATE TABLE mine (x)")
    assert "of another program" in refusal(store(tmp_path, "state.db")).what
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as other:
        assert other.execute("SELECT name FROM sqlite_schema").fetchall() == [("mine",)]


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    using(store(tmp_path, "state.db"), Sqlite.names)
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as other:
        other.execute("PRAGMA user_version = 7")
    assert isinstance(error := refusal(store(tmp_path, "state.db")), CorruptError)
    assert "format 7" in error.what


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    using(store(tmp_path, "state.db"), lambda made: made.create("a", bytes(100_000)))
    with (tmp_path / "state.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)
    assert "integrity_check" in refusal(store(tmp_path, "state.db")).hint


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert "part of the path is a file" in refusal(store(tmp_path, "file/state")).hint


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()
    assert "SQLITE_CANTOPEN" in refusal(store(tmp_path, "state.db")).what


def test_a_read_only_disk_is_refused(fixed_disk: Path) -> None:
    error = refusal(store(fixed_disk))
    assert "Read-only file system" in error.what
    assert "writable" in error.hint
    assert "writable" in refusal(store(fixed_disk, "state.db")).hint


def test_a_file_deleted_or_replaced_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def deleted(made: Sqlite) -> None:
        path.unlink()
        await made.create("a", b"")

    async def replaced(made: Sqlite) -> None:
        path.rename(tmp_path / "old.db")
        path.write_bytes((tmp_path / "old.db").read_bytes())
        await made.create("a", b"")

    assert "deleted" in refusal(store(tmp_path, path.name), deleted).hint
    assert "replaced" in refusal(store(tmp_path, path.name), replaced).hint


def test_a_store_that_is_not_open_refuses_calls(tmp_path: Path) -> None:
    made = store(tmp_path)
    using(made, Sqlite.names)
    for call in (made.create("a", b""), made.read("a"), made.names(), made.delete(["a"])):
        with pytest.raises(StoreError, match="not open"):
            asyncio.run(call)
    asyncio.run(made.aclose())


# -- full disks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, 100_000, 3_000_000])
def test_a_full_disk_leaves_whole_blobs_only(small_disk: Path, size: int, fill: Any, holds: Any) -> None:
    (small_disk / "else").write_bytes(bytes(300_000))

    async def do(made: Sqlite) -> None:
        held, error = await fill(made, size)
        assert "SQLITE_FULL" in error.what
        assert "bytes are free" in error.hint
        assert await made.read(error.blob) is None
        await holds(made, held)
        (small_disk / "else").unlink()
        assert await made.create("later", b"later")
        await holds(made, held | {"later": b"later"})

    using(store(small_disk), do)
    using(store(small_disk), lambda made: made.read("later"))


def test_a_disk_full_from_the_start_is_an_error(small_disk: Path) -> None:
    (small_disk / "else").write_bytes(bytes(4 * 2**20 - 24 * 2**10))
    with pytest.raises(StoreError) as caught:
        using(store(small_disk), Sqlite.names)
    assert "Make room on the disk (" in caught.value.hint
    (small_disk / "else").unlink()
    assert using(store(small_disk), Sqlite.names) == []


def test_a_large_blob_that_does_not_fit_leaves_nothing(small_disk: Path, holds: Any) -> None:
    async def do(made: Sqlite) -> None:
        assert await made.create("before", b"before")
        with pytest.raises(StoreError, match="SQLITE_FULL"):
            await made.create("large", bytes(2 * PIECE_BYTES))
        assert await made.read("large") is None
        assert await made.create("large", b"small")
        await holds(made, {"before": b"before", "large": b"small"})

    using(store(small_disk), do)


def test_a_file_at_its_limit_leaves_whole_blobs_only(tmp_path: Path, fill: Any, holds: Any) -> None:
    async def do(made: Sqlite) -> None:
        with file_limit(2**20):
            held, error = await fill(made, 100_000)
            assert "full" in f"{error.what} {error.hint}"
            await holds(made, held)
        assert await made.create("later", b"later")
        await holds(made, held | {"later": b"later"})

    using(store(tmp_path), do)
