"""Sinks of jobs that keep state: resumed or refused, taken over, and killed."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flamecore.abc.sink import Sink
from flamecore.abc.source import EdgeContext
from flamecore.errors import SinkError
from flamecore.model.meta import MIN_TIME
from flamestream_edges.csv import CsvSink
from flamestream_edges.jsonl import JsonlSink
from flamestream_edges.sqlite import Sqlite

DRIVERS: list[Any] = [JsonlSink, CsvSink, Sqlite]
MODES = ["replace", "append", "resume"]

drivers = pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)


def make(driver: Any, path: Path, mode: str = "replace", *, kept: str = "", continued: bool = False) -> Sink:
    """Return a sink; with `kept`, of a job that keeps that state."""
    sink: Sink = driver(driver.Options(path=str(path), mode=mode), EdgeContext("out", int, fingerprint="f"))
    if kept:
        sink.continues(kept, continued=continued)
    return sink


def written(driver: Any, path: Path) -> list[int]:
    """Return the numbers in the output, read without the sink."""
    if driver is Sqlite:
        with contextlib.closing(sqlite3.connect(path)) as database:
            return [row[0] for row in database.execute("SELECT value FROM out ORDER BY seq")]
    if driver is CsvSink:
        return [int(row["value"]) for row in csv.DictReader(io.StringIO(path.read_text()))]
    return [json.loads(line) for line in path.read_text().splitlines()]


async def deliver(sink: Sink, *batches: tuple[int, Sequence[int]]) -> int:
    try:
        held = await sink.open()
        for time, payloads in batches:
            await sink.write(time, payloads)
        await sink.sync(held)
    finally:
        await sink.aclose()
    return held


@drivers
@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_job_resumes_its_own_output_in_any_mode(driver: Any, mode: str, continued: bool, tmp_path: Path) -> None:
    path = tmp_path / "out"
    assert asyncio.run(deliver(make(driver, path, mode, kept="a"), (5, [1, 2]), (7, [3]))) == MIN_TIME
    again = make(driver, path, mode, kept="a", continued=continued)
    assert asyncio.run(deliver(again, (9, [4]))) == 7
    assert written(driver, path) == [1, 2, 3, 4]


@drivers
@pytest.mark.parametrize("mode", MODES)
def test_a_job_that_has_delivered_takes_nothing_but_its_own(driver: Any, mode: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    asyncio.run(deliver(make(driver, path, kept="a"), (5, [1])))
    with pytest.raises(SinkError, match="cannot be resumed: it was written by another job") as caught:
        asyncio.run(deliver(make(driver, path, mode, kept="b", continued=True)))
    assert "Put back what the job had written" in caught.value.hint
    assert written(driver, path) == [1]


@drivers
@pytest.mark.parametrize(("mode", "expected"), [("replace", [2]), ("append", [1, 2])])
def test_a_job_that_has_not_delivered_does_what_the_mode_says(
    driver: Any, mode: str, expected: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "out"
    asyncio.run(deliver(make(driver, path), (5, [1])))
    assert asyncio.run(deliver(make(driver, path, mode, kept="a"), (5, [2]))) == MIN_TIME
    assert written(driver, path) == expected


@drivers
@pytest.mark.parametrize("mode", MODES)
def test_a_start_that_died_before_it_owned_the_state_leaves_nothing_in_the_way(
    driver: Any, mode: str, tmp_path: Path
) -> None:
    """The next start cannot know the state's name that the dead one would have used."""
    path = tmp_path / "out"
    dead = make(driver, path, mode, kept="one")
    asyncio.run(dead.open())
    asyncio.run(deliver(make(driver, path, mode, kept="another"), (5, [1, 2])))
    assert written(driver, path) == [1, 2]
    asyncio.run(dead.aclose())


@drivers
@pytest.mark.parametrize("mode", MODES)
def test_missing_output_is_started(driver: Any, mode: str, tmp_path: Path) -> None:
    """The job may have been killed before it created the output."""
    path = tmp_path / "out"
    assert asyncio.run(deliver(make(driver, path, mode, kept="a", continued=True), (5, [1]))) == MIN_TIME
    assert written(driver, path) == [1]


@drivers
def test_without_state_the_mode_decides_though_the_output_is_its_own(driver: Any, tmp_path: Path) -> None:
    path = tmp_path / "out"
    for _ in range(2):
        assert asyncio.run(deliver(make(driver, path), (5, [1]))) == MIN_TIME
    assert written(driver, path) == [1]


@drivers
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kept", ["", "a"])
def test_the_newest_run_writes_and_older_ones_are_told(driver: Any, mode: str, kept: str, tmp_path: Path) -> None:
    path = tmp_path / "out"

    async def run() -> None:
        older, newer = make(driver, path, kept=kept), make(driver, path, mode, kept=kept)
        await older.open()
        await older.write(5, [1])
        held = await newer.open()
        assert held == (5 if kept or mode == "resume" else MIN_TIME)
        for _ in range(2):
            with pytest.raises(SinkError, match="another run has taken over") as caught:
                await older.write(7, [2])
            assert caught.value.fenced
        await newer.write(7, [3])
        with pytest.raises(SinkError, match="another run has taken over"):
            await older.write(9, [4])
        await older.aclose()
        await newer.write(9, [5])
        await newer.aclose()

    asyncio.run(run())
    assert written(driver, path) == ([3, 5] if not kept and mode == "replace" else [1, 3, 5])


@drivers
def test_times_without_output_count_when_a_snapshot_relies_on_them(driver: Any, tmp_path: Path) -> None:
    path = tmp_path / "out"

    async def run(*times: int) -> int:
        sink = make(driver, path, kept="a")
        held = await sink.open()
        for time in times:
            await sink.sync(time)
        await sink.aclose()
        return held

    assert [asyncio.run(run(5)), asyncio.run(run(9, 12)), asyncio.run(run()), asyncio.run(run(3))] == [
        MIN_TIME,
        5,
        12,
        12,
    ]
    assert asyncio.run(deliver(make(driver, path, kept="a"), (13, [1]))) == 12
    assert written(driver, path) == [1]


@drivers
def test_a_time_that_another_hand_has_changed_is_noticed(driver: Any, tmp_path: Path) -> None:
    path = tmp_path / "out"

    async def run() -> None:
        sink = make(driver, path)
        await sink.open()
        await sink.write(5, [1])
        if driver is Sqlite:
            with contextlib.closing(sqlite3.connect(path)) as database, database:
                database.execute("UPDATE flamestream_position SET time = 6")
        else:
            side = path.with_name("out.position")
            side.write_bytes(side.read_bytes().replace(b'"time":5', b'"time":6'))
        with pytest.raises(SinkError, match="another run has taken over"):
            await sink.write(7, [2])
        await sink.aclose()

    asyncio.run(run())
    assert written(driver, path) == [1]


WRITER = """
import asyncio, sys
from flamecore.abc.source import EdgeContext
from flamestream_edges.{module} import {kind}

async def main(path, continued, least, most, size, paced):
    sink = {kind}({kind}.Options(path=path), EdgeContext("out", int, fingerprint="f"))
    sink.continues("kept", continued=continued == "True")
    held = max(await sink.open(), 0)
    assert held >= least, (held, least)
    for time in range(held + 1, most + 1):
        if paced:
            sys.stdin.readline()
        await sink.write(time, range(time * size - size, time * size))
        if time % 20 == 0:
            await sink.sync(time)
        print(time, flush=True)
    await sink.aclose()

asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
"""


@contextlib.contextmanager
def writer(driver: Any, path: Path, continued: bool, least: int, most: int, size: int, paced: int = 0) -> Iterator[Any]:
    """Run a process that writes batches of `size` numbers up to time `most`.

    It prints each time it has written. If paced, it waits for a line before each batch.
    """
    code = WRITER.format(module=driver.__module__.rpartition(".")[2], kind=driver.__name__)
    arguments = [sys.executable, "-c", code, str(path), *map(str, (continued, least, most, size, paced))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe, errors = subprocess.PIPE, subprocess.PIPE if paced else None
    with subprocess.Popen(arguments, env=environment, stdin=pipe, stdout=pipe, stderr=errors) as process:
        try:
            yield process
        finally:
            process.kill()


def kill_often(driver: Any, path: Path, kills: int, size: int, steps: Sequence[int]) -> None:
    """Write numbers with a process that is killed repeatedly; check the output."""
    chance = random.Random(kills * size)
    held = 0
    for kill in range(kills):
        with writer(driver, path, kill > 0, held, 1_000_000, size) as process:
            for _ in range(chance.choice(steps)):
                held = int(process.stdout.readline())
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.random() / 100)  # it is writing on
            process.kill()
            held = max([held, *map(int, process.stdout.read().split()[:-1])])  # the last line may be half a line
    most = held + 2
    with writer(driver, path, True, held, most, size) as process:
        process.communicate()
        assert process.returncode == 0
    assert written(driver, path) == [*range(most * size)]


@drivers
def test_killed_at_any_moment_it_ends_with_what_it_would_have_without(driver: Any, tmp_path: Path) -> None:
    kill_often(driver, tmp_path / "out", 8, 3, (0, 1, 5, 30))


@pytest.mark.parametrize("driver", [JsonlSink, CsvSink], ids=lambda driver: driver.name)
def test_batches_that_are_torn_by_a_kill_are_cut(driver: Any, tmp_path: Path) -> None:
    """Batches are large enough for a kill to come in the midst of one."""
    kill_often(driver, tmp_path / "out", 4, 40_000, (0, 1, 2))


@drivers
def test_a_process_that_hangs_is_taken_over_and_refused_when_it_comes_back(driver: Any, tmp_path: Path) -> None:
    path = tmp_path / "out"
    with writer(driver, path, False, 0, 3, 3, paced=1) as process:
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"1\n"
        os.kill(process.pid, signal.SIGSTOP)
        sink = make(driver, path, kept="kept", continued=True)

        async def run() -> None:
            assert await sink.open() == 1
            os.kill(process.pid, signal.SIGCONT)
            _, said = await asyncio.to_thread(process.communicate, b"\n\n", 30)
            assert process.returncode == 1
            assert b"another run has taken over" in said
            await sink.write(2, range(3, 6))
            await sink.aclose()

        asyncio.run(run())
    assert written(driver, path) == [*range(6)]
