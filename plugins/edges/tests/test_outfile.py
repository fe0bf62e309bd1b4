"""Files that take batches exactly once: modes, torn tails, kills, failing disks."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError, TimeRegressionError
from flamecore.model.meta import MIN_TIME
from flamecore.testing.bench.disks import file_limit
from flamestream_edges.csv import CsvSink
from flamestream_edges.jsonl import JsonlSink
from flamestream_edges.position import Position, PositionFile
from flamestream_edges.sqlite import Sqlite


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


def side(path: Path) -> list[dict[str, Any]]:
    """Return the lines of the side file, parsed, without checksums."""
    lines = path.with_name(f"{path.name}.position").read_text().splitlines()
    assert {len(line) for line in lines} == {511}
    return [json.loads(line[17:]) for line in lines]


def newest(path: Path) -> dict[str, Any]:
    return max(side(path), key=lambda line: int(line["number"]))


@pytest.mark.parametrize("sync", ["close", "batch"])
def test_the_side_file_describes_the_output(path: Path, sync: str) -> None:
    asyncio.run(deliver(sink(path, sync=sync), [(5, ["a"]), (9, ["b", "c"])]))
    assert path.read_text() == '"a"\n"b"\n"c"\n'
    said = newest(path)
    assert (said["time"], said["length"], said["fingerprint"], said["durable"]) == (9, 12, "f", 12)
    assert len(side(path)) == 4
    assert sorted(path.parent.iterdir()) == [
        path,
        *(path.with_name(f"out.jsonl.{end}") for end in ("checksums", "position")),
    ]


def test_each_mode_treats_earlier_output_its_own_way(path: Path) -> None:
    path.write_text('"old"')
    assert asyncio.run(deliver(sink(path, "append"), [(5, ["a"])])) == MIN_TIME
    assert path.read_text() == '"old"\n"a"\n'
    assert asyncio.run(deliver(sink(path, "resume"), [(6, ["b"])])) == 5
    assert path.read_text() == '"old"\n"a"\n"b"\n'
    assert asyncio.run(deliver(sink(path, "replace"), [])) == MIN_TIME
    assert path.read_text() == ""
    assert asyncio.run(deliver(sink(path, "resume"), [(1, ["c"])])) == MIN_TIME
    assert path.read_text() == '"c"\n'


def test_every_mode_starts_missing_output(path: Path) -> None:
    for mode in ("replace", "append", "resume"):
        assert asyncio.run(deliver(sink(path, mode), [(1, [mode])])) == MIN_TIME
        assert path.read_text() == f'"{mode}"\n'
        path.unlink()
        path.with_name("out.jsonl.position").unlink()


@pytest.mark.parametrize("tail", [b'"torn', b'"whole but not noted"\n', b"\0" * 5000])
def test_a_torn_tail_is_cut(path: Path, tail: bytes) -> None:
    kill(path, [(5, ["a"]), (9, ["b"])])
    with path.open("ab") as file:
        file.write(tail)
    assert asyncio.run(deliver(sink(path, "resume"), [(12, ["c"])])) == 9
    assert path.read_text() == '"a"\n"b"\n"c"\n'


def kept(path: Path) -> JsonlSink:
    """Return a sink that appends, of a job that keeps state."""
    made = sink(path, "append")
    made.continues("state", continued=path.exists())
    return made


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('"a"\n"b"\n"mine"\n', '"a"\n"b"\n"mine"\n'),
        ('"a"\n"long"', '"a"\n"long"\n'),
        ('"a"\n"b"x', '"a"\n"b"x\n'),
        ('"b"\n', '"b"\n'),
        ("", ""),
        (None, ""),
    ],
    ids=["a line more", "longer", "as long", "shorter", "emptied", "deleted"],
)
def test_a_job_with_state_appends_to_its_file_though_others_have_changed_it(
    path: Path, text: str | None, left: str
) -> None:
    asyncio.run(deliver(kept(path), [(5, ["a"]), (9, ["b"])]))
    path.write_text(text) if text is not None else path.unlink()
    again = sink(path, "append")
    again.continues("state", continued=True)
    assert asyncio.run(deliver(again, [(12, ["c"])])) == 9
    assert path.read_text() == f'{left}"c"\n'
    verified = sink(path).verify()
    assert verified is not None
    assert not verified.damages


def crashed(path: Path, batches: Sequence[tuple[int, Sequence[Any]]]) -> Path:
    """Return an output of a job with state as a crash leaves it: the first batch is forced to the disk."""

    async def write() -> Path:
        target = kept(path)
        await target.open()
        for number, (time, payloads) in enumerate(batches):
            await target.write(time, payloads)
            if not number:
                await target.sync(time)
        left = shutil.copytree(path.parent, path.parent / "crashed")
        await target.aclose()
        return Path(left) / path.name

    return asyncio.run(write())


@pytest.mark.parametrize("tail", [b'"torn', b'"whole but not noted"\n'])
def test_an_appending_job_with_state_cuts_a_batch_that_a_crash_has_cut_short(path: Path, tail: bytes) -> None:
    left = crashed(path, [(5, ["a"]), (9, ["b"])])
    left.write_bytes(left.read_bytes() + tail)
    assert asyncio.run(deliver(kept(left), [(12, ["c"])])) == 9
    assert left.read_text() == '"a"\n"b"\n"c"\n'


@pytest.mark.parametrize("text", ['"a and more"\n"b"\n', '"b"\n'])
def test_an_appending_job_with_state_keeps_lines_of_others_after_a_crash(path: Path, text: str) -> None:
    left = crashed(path, [(5, ["a", "b"])])
    left.write_text(text)
    assert asyncio.run(deliver(kept(left), [(12, ["c"])])) == 5
    assert left.read_text() == f'{text}"c"\n'


def test_the_line_before_a_torn_line_of_the_side_file_counts(path: Path) -> None:
    kill(path, [(5, ["a"]), (7, ["b"]), (9, ["c"])])
    lines = path.with_name("out.jsonl.position").read_bytes().splitlines(keepends=True)
    place = max(range(4), key=lambda index: side(path)[index]["number"])
    lines[place] = lines[place].replace(b'"time":9', b'"time":8')
    path.with_name("out.jsonl.position").write_bytes(b"".join(lines))
    assert asyncio.run(deliver(sink(path, "resume"), [(9, ["C"])])) == 7
    assert path.read_text() == '"a"\n"b"\n"C"\n'


def kill(path: Path, batches: Sequence[tuple[int, Sequence[Any]]], sync_after: int = 0) -> None:
    """Write like a process that is killed: nothing is closed."""

    async def run() -> None:
        target = sink(path)
        await target.open()
        for count, (time, payloads) in enumerate(batches, 1):
            await target.write(time, payloads)
            if count == sync_after:
                await target.sync(time)
        target.release()

    asyncio.run(run())


@pytest.mark.parametrize(("synced", "held", "kept"), [(0, MIN_TIME, ""), (1, 5, '"a"\n'), (2, 7, '"a"\n"bb"\n')])
@pytest.mark.parametrize("left", [b"", b"\0" * 9, b'"bX"\n"c"\n'], ids=["short", "zeros", "other"])
def test_bytes_that_were_lost_with_the_machine_are_written_again(
    path: Path, synced: int, held: int, kept: str, left: bytes
) -> None:
    """Bytes never forced to the disk may be missing or changed."""
    kill(path, [(5, ["a"]), (7, ["bb"]), (9, ["c"])], synced)
    path.write_bytes(kept.encode() + left)
    assert asyncio.run(deliver(sink(path, "resume"), [])) == held
    assert path.read_text() == kept


def test_output_that_is_there_counts_though_it_was_not_forced_to_the_disk(path: Path) -> None:
    kill(path, [(5, ["a"]), (7, ["bb"]), (9, ["c"])], 1)
    assert asyncio.run(deliver(sink(path, "resume"), [(12, ["d"])])) == 9
    assert path.read_text() == '"a"\n"bb"\n"c"\n"d"\n'


def test_batches_are_written_while_others_are_forced_to_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not covered by that sync, and count as before for a crash.

    The crash is of a process, or of the machine.
    """
    started, go_on = threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        started.set()
        assert go_on.wait(10)

    async def run() -> None:
        target = sink(path)
        await target.open()
        await target.write(5, ["a"])
        monkeypatch.setattr(os, "fsync", slow)
        forced = asyncio.create_task(target.sync(5))
        await asyncio.to_thread(started.wait, 10)
        await target.write(7, ["b"])
        go_on.set()
        await forced
        assert [line["time"] for line in side(path)[2:]] == [MIN_TIME, 5]
        await target.write(9, ["c"])
        await target.write(11, ["d"])
        target.release()

    asyncio.run(run())
    shutil.copytree(path.parent, path.parent / "machine")
    assert asyncio.run(deliver(sink(path, "resume"), [])) == 11
    assert path.read_text() == '"a"\n"b"\n"c"\n"d"\n'
    lost = path.parent / "machine" / path.name
    lost.write_bytes(lost.read_bytes()[:5])
    assert asyncio.run(deliver(sink(lost, "resume"), [])) == 5
    assert lost.read_text() == '"a"\n'


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda path, side: side.unlink(), "position is missing) cannot be resumed: its writer and its last time"),
        (
            lambda path, side: side.write_text("{"),
            "position is damaged) cannot be resumed: its writer and its last time",
        ),
        (lambda path, side: side.write_bytes(side.read_bytes().replace(b'"number"', b'"bumner"')), "is damaged"),
        (lambda path, side: path.write_text(""), "it is 0 bytes long and has been 4"),
        (lambda path, side: path.unlink(), "it is missing, and has been 4 bytes long"),
        (lambda path, side: path.write_text("x"), "by another flow or from other inputs"),
        (lambda path, side: path.write_text('"a"\n"b"\n'), "have changed it since it was closed, from 4 bytes to 8"),
        (lambda path, side: path.write_text('"aa"\n'), "have changed it since it was closed, from 4 bytes to 5"),
    ],
    ids=["missing", "damaged", "altered", "emptied", "gone", "foreign", "extended", "edited"],
)
def test_output_that_cannot_be_resumed_is_refused_and_left_alone(path: Path, spoil: Any, what: str) -> None:
    asyncio.run(deliver(sink(path), [(5, ["a"])]))
    spoil(path, path.with_name("out.jsonl.position"))
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(SinkError, match=re.escape(what)) as caught:
        asyncio.run(deliver(sink(path, "resume", "g" if "another" in what else "f"), []))
    assert "tart afresh" in caught.value.hint
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_a_time_that_goes_back_is_an_error(path: Path) -> None:
    with pytest.raises(TimeRegressionError):
        asyncio.run(deliver(sink(path), [(5, ["a"]), (4, ["b"])]))
    assert path.read_text() == '"a"\n'


def pipe(folder: Path) -> Path:
    path = folder / "pipe"
    if not path.exists():
        os.mkfifo(path)
    return path


@pytest.mark.parametrize("text", ["", ".", "./", "/", "new/", "new/."])
@pytest.mark.parametrize("driver", [JsonlSink, CsvSink, Sqlite])
def test_a_path_that_no_file_can_have_is_refused_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: Any, text: str
) -> None:
    monkeypatch.chdir(tmp_path)

    def call(name: str) -> None:
        made = getattr(driver(driver.Options(path=text), EdgeContext("out")), name)()
        asyncio.run(made)

    for name in ("rehearse", "open", "verify"):
        with pytest.raises(ConfigError) as caught:
            call(name)
        assert "sink.out.path" in caught.value.what
        assert caught.value.path == "sink.out.path"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", [".", "./", "new/"])
def test_a_path_of_partitions_is_that_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    sink = JsonlSink(JsonlSink.Options(path=text), EdgeContext("out")).partitioned()
    sink.rehearse()
    assert asyncio.run(sink.open()) == MIN_TIME
    asyncio.run(sink.aclose())


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda folder: folder / "nowhere" / "out.jsonl", "mkdir -p"),
        (lambda folder: folder, 'order = "partitioned"'),
        (lambda folder: pipe(folder), "To write to a pipe"),
        (lambda folder: folder / ("x" * 300), "another path"),
    ],
)
def test_a_place_that_cannot_be_opened_is_refused(tmp_path: Path, make: Any, hint: str) -> None:
    for mode in ("replace", "append", "resume"):
        with pytest.raises(SinkError) as caught:
            asyncio.run(deliver(sink(make(tmp_path), mode), []))
        assert str(make(tmp_path)) in caught.value.what
        assert hint in caught.value.hint


def test_a_disk_that_is_full_leaves_nothing_of_the_batch(path: Path) -> None:
    """A limit on the size of files stands in for the full disk."""

    async def run() -> None:
        target = sink(path)
        await target.open()
        await target.write(1, ["a"])
        with file_limit(1000), pytest.raises(SinkError, match="cannot be written to: File too large") as caught:
            await target.write(2, ["x" * 700, "y" * 700])
        assert "ulimit -f" in caught.value.hint
        assert path.read_text() == '"a"\n'
        await target.write(2, ["b"])
        await target.aclose()

    asyncio.run(run())
    assert path.read_text() == '"a"\n"b"\n'
    assert newest(path)["time"] == 2


def test_a_side_file_that_cannot_be_written_leaves_nothing_of_the_batch(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: PositionFile, position: Position) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def run() -> None:
        target = sink(path)
        await target.open()
        await target.write(1, ["a"])
        with monkeypatch.context() as broken:
            broken.setattr(PositionFile, "note", refuse)
            with pytest.raises(SinkError, match="Input/output error"):
                await target.write(2, ["b"])
        assert path.read_text() == '"a"\n'
        await target.write(2, ["c"])
        target.release()

    asyncio.run(run())
    assert asyncio.run(deliver(sink(path, "resume"), [(3, ["d"])])) == 2
    assert path.read_text() == '"a"\n"c"\n"d"\n'


WRITER = """
import asyncio, sys
from flamecore.abc.source import EdgeContext
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
    """Return the numbers in the output and its time, read without the sink.

    A torn tail does not count.
    """
    if module == "sqlite":
        import contextlib
        import sqlite3

        with contextlib.closing(sqlite3.connect(out)) as database:
            rows = database.execute("SELECT value FROM numbers ORDER BY seq").fetchall()
            return [row[0] for row in rows], database.execute("SELECT time FROM flamestream_position").fetchone()[0]
    position = max(side(out), key=lambda line: int(line["time"]))
    lines = out.read_bytes()[: position["length"]].split(b"\n")[:-1]
    return [int(line) for line in lines if line != b"value"], position["time"]
