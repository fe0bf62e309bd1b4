"""Files that take batches exactly once: modes, torn tails, side files, killed processes, disks that fail."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flamecore.errors import SinkError, TimeRegressionError
from flamecore.front import EdgeContext
from flamecore.meta import MIN_TIME
from flamestream_edges.jsonl import JsonlSink


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def sink(path: Path, mode: Any = "replace", fingerprint: str = "f", sync: Any = "close") -> JsonlSink:
    return JsonlSink(
        JsonlSink.Options(path=str(path), mode=mode, sync=sync), EdgeContext("out", fingerprint=fingerprint)
    )


async def deliver(target: JsonlSink, batches: Sequence[tuple[int, Sequence[Any]]]) -> int:
    held = await target.open()
    try:
        for time, payloads in batches:
            await target.write(time, payloads)
    finally:
        await target.aclose()
    return held


def side(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.with_name("out.jsonl.position").read_text()))


@pytest.mark.parametrize("sync", ["close", "batch"])
def test_the_side_file_says_what_is_there(path: Path, sync: str) -> None:
    asyncio.run(deliver(sink(path, sync=sync), [(5, ["a"]), (9, ["b", "c"])]))
    assert path.read_text() == '"a"\n"b"\n"c"\n'
    assert side(path) == {"time": 9, "length": 12, "fingerprint": "f"}
    assert sorted(path.parent.iterdir()) == [path, path.with_name("out.jsonl.position")]


def test_modes(path: Path) -> None:
    path.write_text('"old"')
    assert asyncio.run(deliver(sink(path, "append"), [(5, ["a"])])) == MIN_TIME
    assert path.read_text() == '"old"\n"a"\n'
    assert asyncio.run(deliver(sink(path, "resume"), [(6, ["b"])])) == 5
    assert path.read_text() == '"old"\n"a"\n"b"\n'
    assert asyncio.run(deliver(sink(path, "replace"), [])) == MIN_TIME
    assert path.read_text() == ""
    assert asyncio.run(deliver(sink(path, "resume"), [(1, ["c"])])) == MIN_TIME
    assert path.read_text() == '"c"\n'


def test_what_is_not_there_is_started_by_every_mode(path: Path) -> None:
    for mode in ("replace", "append", "resume"):
        assert asyncio.run(deliver(sink(path, mode), [(1, [mode])])) == MIN_TIME
        assert path.read_text() == f'"{mode}"\n'
        path.unlink()
        path.with_name("out.jsonl.position").unlink()


@pytest.mark.parametrize("tail", [b'"torn', b'"whole but not noted"\n', b"\0" * 5000])
def test_a_torn_tail_is_cut(path: Path, tail: bytes) -> None:
    asyncio.run(deliver(sink(path), [(5, ["a"]), (9, ["b"])]))
    with path.open("ab") as file:
        file.write(tail)
    assert asyncio.run(deliver(sink(path, "resume"), [(12, ["c"])])) == 9
    assert path.read_text() == '"a"\n"b"\n"c"\n'


def test_a_side_file_that_was_about_to_be_replaced_counts_as_it_is(path: Path) -> None:
    asyncio.run(deliver(sink(path), [(5, ["a"])]))
    path.with_name("out.jsonl.position.new").write_text('{"time": 9, "le')
    assert asyncio.run(deliver(sink(path, "resume"), [])) == 5


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda path, side: side.unlink(), "which says what it holds, is missing"),
        (lambda path, side: side.write_text("{"), "is damaged"),
        (lambda path, side: side.write_text('{"time": "x", "length": 1, "fingerprint": "f"}'), "is damaged"),
        (lambda path, side: path.write_text(""), "it is 0 bytes long and has been 4"),
        (lambda path, side: path.unlink(), "it is 0 bytes long and has been 4"),
        (lambda path, side: side.write_text('{"time": 5, "length": 4, "fingerprint": "g"}'), "written by another flow"),
    ],
)
def test_what_cannot_be_resumed_is_said_and_left_alone(path: Path, spoil: Any, what: str) -> None:
    asyncio.run(deliver(sink(path), [(5, ["a"])]))
    spoil(path, path.with_name("out.jsonl.position"))
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(SinkError, match=what) as caught:
        asyncio.run(deliver(sink(path, "resume"), []))
    assert 'mode = "replace"' in caught.value.hint
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_a_time_that_goes_back_is_an_error(path: Path) -> None:
    with pytest.raises(TimeRegressionError):
        asyncio.run(deliver(sink(path), [(5, ["a"]), (4, ["b"])]))
    assert path.read_text() == '"a"\n'


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda folder: folder / "nowhere" / "out.jsonl", "mkdir -p"),
        (lambda folder: folder, "To write to a pipe"),
        (lambda folder: folder / ("x" * 300), "another path"),
    ],
)
def test_what_cannot_be_opened(tmp_path: Path, make: Any, hint: str) -> None:
    for mode in ("replace", "append", "resume"):
        with pytest.raises(SinkError) as caught:
            asyncio.run(deliver(sink(make(tmp_path), mode), []))
        assert str(make(tmp_path)) in caught.value.what
        assert hint in caught.value.hint


def test_a_disk_that_is_full_leaves_nothing_of_the_batch(path: Path) -> None:
    """A limit on the size of files stands for the disk."""

    async def run() -> None:
        target = sink(path)
        await target.open()
        await target.write(1, ["a"])
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            with pytest.raises(SinkError, match="cannot be written to: File too large") as caught:
                await target.write(2, ["x" * 700, "y" * 700])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert "bytes are free" in caught.value.hint
        assert path.read_text() == '"a"\n'
        await target.write(2, ["b"])
        await target.aclose()

    asyncio.run(run())
    assert path.read_text() == '"a"\n"b"\n'
    assert side(path)["time"] == 2


def test_a_side_file_that_cannot_be_written_leaves_nothing_of_the_batch(path: Path) -> None:
    async def run() -> None:
        target = sink(path)
        await target.open()
        await target.write(1, ["a"])
        blocker = path.with_name("out.jsonl.position.new")
        blocker.mkdir()
        with pytest.raises(SinkError, match="Is a directory"):
            await target.write(2, ["b"])
        assert path.read_text() == '"a"\n'
        blocker.rmdir()
        await target.write(2, ["c"])
        await target.aclose()

    asyncio.run(run())
    assert path.read_text() == '"a"\n"c"\n'


WRITER = """
import asyncio, sys
from flamecore.front import EdgeContext
from flamestream_edges.{module} import {kind}

async def main():
    sink = {kind}({kind}.Options(path=sys.argv[1], mode="resume"), EdgeContext("numbers", int, fingerprint="f"))
    held = max(await sink.open(), 0)
    for time in range(held, held + 100_000):  # the batch of time t + 1 holds the numbers 3t, 3t + 1, 3t + 2
        await sink.write(time + 1, [3 * time, 3 * time + 1, 3 * time + 2])
        print(time, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(("module", "kind"), [("jsonl", "JsonlSink"), ("csv", "CsvSink"), ("sqlite", "Sqlite")])
def test_killed_at_any_moment_nothing_is_lost_and_nothing_comes_twice(tmp_path: Path, module: str, kind: str) -> None:
    out = tmp_path / "out"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = WRITER.format(module=module, kind=kind)
    acknowledged = 0
    for batches in (1, 7, 40, 150):
        arguments = [sys.executable, "-c", code, str(out)]
        with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout
            for _ in range(batches):
                acknowledged = int(process.stdout.readline()) + 1
            process.kill()  # it is writing on
            rest = process.stdout.read().split()
        acknowledged = int(rest[-1]) + 1 if rest and process.returncode else acknowledged
    numbers, held = _held(out, module)
    assert held >= acknowledged > 190
    assert numbers == list(range(3 * held))


def _held(out: Path, module: str) -> tuple[list[int], int]:
    """The numbers that are there, and the time up to which, read without the sink: what is torn does not count."""
    if module == "sqlite":
        import contextlib
        import sqlite3

        with contextlib.closing(sqlite3.connect(out)) as database:
            rows = database.execute("SELECT value FROM numbers ORDER BY seq").fetchall()
            return [row[0] for row in rows], database.execute("SELECT time FROM flamestream_position").fetchone()[0]
    position = json.loads(out.with_name("out.position").read_text())
    lines = out.read_bytes()[: position["length"]].split(b"\n")[:-1]
    return [int(line) for line in lines if line != b"value"], position["time"]
