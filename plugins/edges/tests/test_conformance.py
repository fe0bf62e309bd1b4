"""The sources and sinks against the laws of their contracts, by the public kit."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from flamecore.abc.sink import Sink
from flamecore.abc.source import EdgeContext, Source
from flamecore.testing.checks.edges import SinkTests, SourceTests
from flamecore.testing.checks.sources import check_live
from flamestream_edges.csv import CsvSink, CsvSource
from flamestream_edges.jsonl import JsonlSink, JsonlSource
from flamestream_edges.lines import Lines
from flamestream_edges.memory import MemorySink, MemorySource
from flamestream_edges.sqlite import Sqlite
from flamestream_edges.sqlitesource import SqliteSource
from flamestream_edges.stdio import Stdin, Stdout
from flamestream_edges.wikipedia import Page, Wikipedia


class Count(NamedTuple):
    word: str
    number: int


COUNTS = tuple(
    Count(word, count) for count, word in enumerate(("a", "b c", "три", "", '"q", r', "two\nlines", "\r"), 1)
)


@pytest.mark.variant("memory")
class TestMemorySequence(SourceTests):
    expected = tuple(range(10))

    def make(self, folder: Path) -> Source:
        return MemorySource(None, EdgeContext("numbers", given=list(self.expected)))


@pytest.mark.variant("memory")
class TestMemoryIterator(SourceTests):
    expected = tuple(range(10))

    def make(self, folder: Path) -> Source:
        return MemorySource(None, EdgeContext("numbers", given=iter(self.expected)))


@pytest.mark.variant("memory")
class TestMemoryAsyncIterable(SourceTests):
    expected = tuple(range(3000))  # more than are taken ahead

    def make(self, folder: Path) -> Source:
        async def numbers() -> AsyncIterator[int]:
            for number in self.expected:
                if number % 7 == 0:
                    await asyncio.sleep(0)
                yield number

        return MemorySource(None, EdgeContext("numbers", given=numbers()))


class TestLines(SourceTests):
    expected = ("one", "", "three", "\tfour ", "пять", "six", "seven", "eight", "nine")
    rejected = 1

    def make(self, folder: Path) -> Source:
        (folder / "1.txt").write_bytes("\ufeffone\r\n\nthree\n".encode() + b"bad \xff\n" + "\tfour \nпять\n".encode())
        (folder / "2.txt").write_text("six\nseven\n")
        (folder / "3.txt").write_text("")
        (folder / "4.txt").write_text("eight\nnine")
        return Lines(Lines.Options(path=str(folder)), EdgeContext("lines", str))


class TestJsonl(SourceTests):
    expected = COUNTS
    rejected = 2

    def make(self, folder: Path) -> Source:
        lines = [msgspec.json.encode(count._asdict()) for count in COUNTS]
        lines[2:2] = [b"", b'{"word": "x"}', b"{"]
        (folder / "counts.jsonl").write_bytes(b"\n".join(lines))
        return JsonlSource(JsonlSource.Options(path=str(folder / "counts.jsonl")), EdgeContext("counts", Count))


class TestCsv(SourceTests):
    expected = COUNTS
    rejected = 2

    def make(self, folder: Path) -> Source:
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(("number", "word", "more"))
        writer.writerows((number, word, "") for word, number in COUNTS[:4])
        writer.writerow(("too", "short"))
        writer.writerow(("x", "no number", ""))
        writer.writerows((number, word, "") for word, number in COUNTS[4:])
        (folder / "counts.csv").write_text(text.getvalue(), newline="")
        return CsvSource(CsvSource.Options(path=str(folder / "*.csv")), EdgeContext("counts", Count))


@pytest.mark.variant("wikipedia")
class TestWikipedia(SourceTests):
    expected = (Page(7, "Литва & Co", "Литва\n"), Page(8, "", ""), Page(9, "<9>", "nine"), Page(1, "другая", "one"))
    rejected = 1

    def make(self, folder: Path) -> Source:
        (folder / "1.xml").write_bytes(
            "\ufeff<?xml version='1.0' encoding='utf-8'?>\n<pages>\n"
            '<page id="7" title="Литва &amp; Co">Литва\n</page><!-- a comment -->\n'
            '<page id="8" title=""/>\n'
            '<page title="no id">text</page>\n'
            '<page id="9" title="&lt;9&gt;">ni<b>ne</b></page></pages>\n'.encode()
        )
        (folder / "2.xml").write_text("<pages>\n</pages>")
        (folder / "3.xml").write_bytes(
            "<?xml version='1.0' encoding='cp1251'?><pages><page id='1' title='другая'>one</page></pages>".encode(
                "cp1251"
            )
        )
        return Wikipedia(Wikipedia.Options(path=str(folder)), EdgeContext("pages", Page))


@pytest.mark.variant("wikipedia")
class TestTruncatedWikipedia(SourceTests):
    expected = (Page(7, "seven", "7"), Page(8, "eight", "8"))
    rejected = 1

    def make(self, folder: Path) -> Source:
        text = "<pages><page id='7' title='seven'>7</page>\n<page id='8' title='eight'>8</page>\n"
        (folder / "cut.xml").write_text(text)
        return Wikipedia(Wikipedia.Options(path=str(folder / "cut.xml")), EdgeContext("pages", Page))


@pytest.mark.variant("sqlite rows")
class TestSqliteRows(SourceTests):
    expected = COUNTS
    rejected = 1

    def make(self, folder: Path) -> Source:
        if not (folder / "in.db").exists():
            with contextlib.closing(sqlite3.connect(folder / "in.db")) as database, database:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("CREATE TABLE counts (id INTEGER PRIMARY KEY, number, word TEXT)")
                database.executemany("INSERT INTO counts (number, word) VALUES (?, ?)", [(n, w) for w, n in COUNTS])
                database.execute("INSERT INTO counts (number, word) VALUES ('none', 'bad')")
        return SqliteSource(SqliteSource.Options(path=str(folder / "in.db")), EdgeContext("counts", Count))


@pytest.mark.variant("sqlite rows")
class TestSqliteRowsByColumn(SourceTests):
    expected = tuple((f"word {number}", number) for number in range(20))

    def make(self, folder: Path) -> Source:
        if not (folder / "in.db").exists():
            with contextlib.closing(sqlite3.connect(folder / "in.db")) as database, database:
                database.execute("CREATE TABLE t (day TEXT, word TEXT, number)")
                database.execute("CREATE INDEX t_day ON t (day)")
                rows = [(f"2024-01-{number // 7:02}", *self.expected[number]) for number in range(20)]
                database.executemany("INSERT INTO t VALUES (?, ?, ?)", [*rows[7:], *rows[:7]])
        options = SqliteSource.Options(path=str(folder / "in.db"), table="t", columns=("word", "number"), order="day")
        return SqliteSource(options, EdgeContext("counts", tuple[str, int]))


class TestStdinFile(SourceTests):
    expected = ("one", "two", "три")

    @pytest.fixture(autouse=True)
    def standard_input(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        (tmp_path / "in.txt").write_text("one\ntwo\nтри")
        with open(tmp_path / "in.txt") as self.stream:
            monkeypatch.setattr("sys.stdin", self.stream)
            yield

    def make(self, folder: Path) -> Source:
        os.lseek(self.stream.fileno(), 0, os.SEEK_SET)
        return Stdin(Stdin.Options(), EdgeContext("lines", str))


def test_stdin_delivers_a_line_as_soon_as_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    out, into = os.pipe()

    async def feed(line: str) -> None:
        os.write(into, line.encode()[:1])
        await asyncio.sleep(0)
        os.write(into, line.encode()[1:] + b"\n")

    with os.fdopen(out) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        asyncio.run(check_live(lambda: Stdin(Stdin.Options(), EdgeContext("lines", str)), feed, ["one", "two", "три"]))
    os.close(into)


def test_an_async_iterable_is_delivered_as_it_comes() -> None:
    async def run() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def values() -> AsyncIterator[int]:
            while True:
                yield await queue.get()

        await check_live(lambda: MemorySource(None, EdgeContext("numbers", given=values())), queue.put, [1, 2, 3])

    asyncio.run(run())


class TestMemorySink(SinkTests):
    given: list[Any]

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> Sink:
        self.given = []
        return MemorySink(None, EdgeContext("out", given=self.given))

    def read_back(self, folder: Path) -> Sequence[Any]:
        return self.given


class TestStdout(SinkTests):
    payloads = ("one", "two words", "три", "", "5")
    stream: io.StringIO

    @pytest.fixture(autouse=True)
    def standard_output(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> Sink:
        self.stream = io.StringIO()
        self.patch.setattr("sys.stdout", self.stream)
        return Stdout(Stdout.Options(), EdgeContext("out", str))

    def read_back(self, folder: Path) -> Sequence[Any]:
        return self.stream.getvalue().split("\n")[:-1]


class TestJsonlSink(SinkTests):
    payloads = (*COUNTS, {"a": [1, None]}, "text", 3.5, None)

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> Sink:
        options = JsonlSink.Options(path=str(folder / "out.jsonl"), mode="resume" if resume else "replace")
        return JsonlSink(options, EdgeContext("out", fingerprint=fingerprint))

    def read_back(self, folder: Path) -> Sequence[Any]:
        lines = (folder / "out.jsonl").read_bytes().splitlines()
        found = [msgspec.json.decode(line) for line in lines]
        return [Count(**value) if isinstance(value, dict) and "word" in value else value for value in found]


@pytest.mark.variant("csv sink")
class TestCsvSink(SinkTests):
    payloads = COUNTS
    sync: Any = "close"

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> Sink:
        mode: Any = "resume" if resume else "replace"
        options = CsvSink.Options(path=str(folder / "out.csv"), mode=mode, sync=self.sync)
        return CsvSink(options, EdgeContext("out", Count, fingerprint=fingerprint))

    def read_back(self, folder: Path) -> Sequence[Any]:
        with (folder / "out.csv").open(newline="") as file:
            return [Count(row["word"], int(row["number"])) for row in csv.DictReader(file)]


@pytest.mark.variant("csv sink")
class TestCsvSinkSynced(TestCsvSink):
    payloads = COUNTS[:3]
    sync = "batch"


class TestSqlite(SinkTests):
    payloads = COUNTS

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> Sink:
        options = Sqlite.Options(path=str(folder / "out.db"), mode="resume" if resume else "replace")
        return Sqlite(options, EdgeContext("counts", Count, fingerprint=fingerprint))

    def read_back(self, folder: Path) -> Sequence[Any]:
        with contextlib.closing(sqlite3.connect(folder / "out.db")) as database:
            return [Count(*row) for row in database.execute("SELECT word, number FROM counts ORDER BY seq")]
