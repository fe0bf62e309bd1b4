"""The pool of open files: readers hold none open, and notice if a file is another one when it is opened again."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from flamecore.abc.source import EdgeContext, Reader
from flamecore.errors import SourceError
from flamestream_edges.csv import CsvSource
from flamestream_edges.jsonl import JsonlSource
from flamestream_edges.lines import Lines
from flamestream_edges.reading.openfiles import AHEAD_BYTES, LEAST_BYTES, OPEN_FILES, MovedError, OpenFiles, PooledFile
from flamestream_edges.reading.seal import read_at
from flamestream_edges.reading.splitting import CHUNK_BYTES
from flamestream_edges.wikipedia import Wikipedia

PIECE = 4
MOST = 2


def made(folder: Path, count: int, text: str = "0123456789") -> list[Path]:
    files = [folder / f"{number}.txt" for number in range(count)]
    for file in files:
        file.write_text(text, "utf-8")
    return files


def open_count(files: list[PooledFile]) -> int:
    return sum(file.opened is not None for file in files)


@pytest.fixture
def pool() -> OpenFiles:
    return OpenFiles(lambda: MOST)


def test_files_that_are_read_in_turn_share_the_places_of_the_pool(pool: OpenFiles, tmp_path: Path) -> None:
    files = [PooledFile(str(path), pool) for path in made(tmp_path, 5)]
    for offset in (0, PIECE, 2 * PIECE):
        for file in files:
            assert file.read(offset, PIECE) == b"0123456789"[offset : offset + PIECE]
            assert open_count(files) <= MOST
    assert [file.opened is not None for file in files] == [False, False, False, True, True]
    for file in files:
        file.close()
    assert open_count(files) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows renames no file that is open")
def test_a_file_that_fits_in_stays_open(pool: OpenFiles, tmp_path: Path) -> None:
    """So it may be renamed, as a log is, and costs no more than without the pool."""
    (path,) = made(tmp_path, 1)
    file = PooledFile(str(path), pool)
    assert file.read(0, PIECE) == b"0123"
    path.rename(tmp_path / "old")
    path.write_text("another")
    assert file.read(PIECE, PIECE) == b"4567"
    file.close()


@pytest.mark.parametrize("change", ["removed", "renamed", "replaced", "no folder", "rewritten", "grown", "touched"])
def test_a_file_that_is_opened_again_is_the_same_one(pool: OpenFiles, tmp_path: Path, change: str) -> None:
    (tmp_path / "in").mkdir()
    path, *others = made(tmp_path / "in", 1 + MOST)
    file, *rest = (PooledFile(str(each), pool) for each in (path, *others))
    file.begins_alike = lambda descriptor: read_at(descriptor, 0, PIECE) == b"0123"
    for each in (file, *rest):
        each.read(0, PIECE)
    assert file.opened is None
    if change == "removed":
        path.unlink()
    elif change == "renamed":
        path.rename(tmp_path / "old")
        path.write_text("0123456789")
    elif change == "replaced":
        other = tmp_path / "other"
        other.write_text("0123456789")
        other.replace(path)
    elif change == "no folder":
        path.parent.rename(tmp_path / "elsewhere")
        path.parent.touch()
    elif change == "rewritten":  # as a new file that has got the inode of the old one
        path.write_text("9876543210")
        os.utime(path, ns=(1, 1))
    elif change == "grown":
        with path.open("a") as end:
            end.write("abcd")
    else:
        os.utime(path, ns=(1, 1))
    if change in ("grown", "touched"):
        assert file.read(PIECE, 10) == b"456789abcd"[: 10 if change == "grown" else 6]
    else:
        with pytest.raises(MovedError, match="removed, renamed or replaced"):
            file.read(PIECE, PIECE)
    for each in (file, *rest):
        each.close()


def test_a_closed_file_is_not_opened_again(pool: OpenFiles, tmp_path: Path) -> None:
    file = PooledFile(str(made(tmp_path, 1)[0]), pool)
    with file.borrowed():
        file.close()  # as a reader that is closed while another thread reads
    assert file.opened is None
    file.close()
    with pytest.raises(ValueError, match="has been closed"):
        file.read(0, PIECE)


def test_a_file_that_is_read_again_after_its_end_is_opened_again(pool: OpenFiles, tmp_path: Path) -> None:
    """For the original of a record that fails."""
    file = PooledFile(str(made(tmp_path, 1)[0]), pool)
    assert file.read(0, 10) == b"0123456789"
    file.end()
    assert file.opened is None
    with file.borrowed() as descriptor:
        assert read_at(descriptor, 1, 1) == b"1"
    file.close()


@pytest.mark.parametrize("count", [1, 600, AHEAD_BYTES // LEAST_BYTES + 100])
def test_all_files_together_are_read_ahead_a_bounded_number_of_bytes(pool: OpenFiles, count: int) -> None:
    files = [PooledFile("nowhere", pool) for _ in range(count)]
    bound = AHEAD_BYTES + count * LEAST_BYTES
    for _ in range(3):
        pieces = [pool.ahead(file.ref, CHUNK_BYTES) for file in files]
        assert sum(pieces) <= bound
        assert min(pieces) >= LEAST_BYTES
    assert max(pieces) == max(min(AHEAD_BYTES // count, CHUNK_BYTES), LEAST_BYTES)
    for file in files[1:]:
        file.end()
    assert pool.ahead(files[0].ref, CHUNK_BYTES) == CHUNK_BYTES


def test_files_that_nobody_knows_any_more_do_not_count(pool: OpenFiles) -> None:
    lost = [PooledFile("nowhere", pool) for _ in range(AHEAD_BYTES // LEAST_BYTES)]
    for file in lost:
        pool.ahead(file.ref, CHUNK_BYTES)
    del file, lost
    gc.collect()
    assert pool.ahead(PooledFile("nowhere", pool).ref, CHUNK_BYTES) == CHUNK_BYTES


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit that could be lowered")
def test_the_pool_gives_way_when_the_process_has_other_files_open(tmp_path: Path) -> None:
    """In a process of its own, whose limit is then the pool's own bound."""
    script = """
        import errno, resource, sys
        from flamestream_edges.reading.openfiles import OpenFiles, PooledFile
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        pool = OpenFiles(lambda: 1000)
        files = [PooledFile(name, pool) for name in sys.argv[1:]]
        for offset in (0, 4):
            assert {file.read(offset, 4) for file in files} == {b"0123456789"[offset : offset + 4]}
        assert 0 < sum(file.opened is not None for file in files) < 40
        for file in files:
            file.close()
        taken = []
        try:
            while True:
                taken.append(open(sys.argv[1]))
        except OSError:
            pass
        try:
            PooledFile(sys.argv[1], pool).read(0, 4)
        except OSError as error:
            assert error.errno == errno.EMFILE
        else:
            raise AssertionError("there is nothing to close")
        for file in taken:
            file.close()
    """
    names = [str(path) for path in made(tmp_path, 100)]
    done = subprocess.run(
        [sys.executable, "-c", dedent(script), *names], capture_output=True, encoding="utf-8", check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


DRIVERS: dict[str, tuple[Any, str, list[Any]]] = {
    "lines": (Lines, "a\nb\nc\n", ["a", "b", "c"]),
    "jsonl": (JsonlSource, "1\n2\n3\n", [1, 2, 3]),
    "csv": (CsvSource, "x\n1\n2\n", [{"x": "1"}, {"x": "2"}]),
    "wikipedia": (
        Wikipedia,
        '<pages><page id="1" title="a">x</page><page id="2" title="b">y</page></pages>',
        [(1, "a", "x"), (2, "b", "y")],
    ),
}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pool of the process keep two files open."""
    monkeypatch.setattr(OPEN_FILES, "_most", lambda: MOST)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", DRIVERS)
def test_readers_of_files_hold_none_open(name: str, tmp_path: Path) -> None:
    """All positions that they give are those of a reader that is alone; and each can be gone on from."""
    driver, text, values = DRIVERS[name]
    paths = made(tmp_path, 5, text)
    source = driver(driver.Options(path=str(tmp_path)), EdgeContext("in"))

    async def read(readers: list[Reader]) -> list[list[tuple[Any, Any]]]:
        found: list[list[tuple[Any, Any]]] = [[] for _ in readers]
        left = list(enumerate(readers))
        while left:
            for index, reader in tuple(left):
                batch = await reader.read(1)
                if batch is None:
                    left.remove((index, reader))
                else:
                    found[index] += zip(batch.values, batch.positions, strict=True)
                assert len(OPEN_FILES._idle) <= MOST
        return found

    async def main() -> None:
        async with AsyncExitStack() as stack:

            async def opened(path: Path, position: Any = None) -> Reader:
                reader: Reader = await source.open(str(path), position)
                stack.push_async_callback(reader.aclose)
                return reader

            (alone,) = await read([await opened(paths[0])])
            assert [value for value, _ in alone] == values
            assert await read([await opened(path) for path in paths]) == [alone] * len(paths)
            for count, (_, position) in enumerate(alone, 1):
                rest = await read([await opened(path, position) for path in paths])
                assert rest == [alone[count:]] * len(paths)
        assert not OPEN_FILES._idle

    asyncio.run(main())


@pytest.mark.usefixtures("few")
def test_a_file_that_is_replaced_while_others_are_read_is_an_error_of_the_source(tmp_path: Path) -> None:
    paths = made(tmp_path, 3, "a\nb\n")
    source = Lines(Lines.Options(path=str(tmp_path)), EdgeContext("in"))

    async def main() -> None:
        readers = [await source.open(str(path)) for path in paths]
        try:
            batches = [await reader.read(2) for reader in readers]
            assert batches[0] is not None
            assert batches[0].values == ["a", "b"]
            paths[0].rename(tmp_path / "old")
            paths[0].write_text("a\nb\n")
            assert readers[0].original(batches[0].positions[0]) is None
            await readers[0].read(1)
        finally:
            for reader in readers:
                await reader.aclose()

    with pytest.raises(SourceError, match=r"0\.txt cannot be read: it was removed, renamed or replaced") as caught:
        asyncio.run(main())
    assert "more files than may be open at once" in caught.value.hint
