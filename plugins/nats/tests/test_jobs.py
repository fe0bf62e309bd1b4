"""A job from stream to stream that keeps its state; it and its server are killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from flamestream_nats.testing import NatsServer

FLOW = """
import flamecore as fc

flow = fc.Flow("word-count")
flow.source("lines", str).flat_map(str.split).key_by(str).count().sink("counts")
"""
JOB = """
schema = 1
[job]
flow = "word_count.py"
clock = "wall"
guarantee = "exactly_once"
[state]
use = "directory"
path = "state"
interval_s = 0.02
[transport.nats]
servers = ["{url}"]
[source.lines]
use = "nats"
stream = "lines"
end = "last"
[sink.counts]
use = "nats"
"""
LINES = [f"some {number % 7} words {number % 100}" for number in range(6_000)]


async def fill(url: str, lines: Sequence[str] = LINES) -> None:
    connection = await nats.connect(url)
    jetstream = connection.jetstream(publish_async_max_pending=1000)
    await jetstream.add_stream(name="lines", subjects=["lines"])
    for line in lines:
        await jetstream.publish_async("lines", line.encode())
    await jetstream.publish_async_completed()
    await connection.close()


async def outputs(url: str) -> list[bytes]:
    connection = await nats.connect(url)
    jetstream = connection.jetstream()
    found: list[bytes] = []
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    source = await jetstream.pull_subscribe("counts", stream="counts", config=config)
    count = (await source.consumer_info()).num_pending or 0
    while len(found) < count:
        found += [message.data for message in await source.fetch(min(count - len(found), 5000), timeout=5)]
    await connection.close()
    return found


def expected() -> list[bytes]:
    counts: dict[str, int] = {}
    found = []
    for word in " ".join(LINES).split():
        counts[word] = counts.get(word, 0) + 1
        found.append(f'["{word}",{counts[word]}]'.encode())
    return found


DIES = """
import os
import signal
from pathlib import Path

import flamecore as fc


def die_once(line: str) -> str:
    if line == "70" and not Path("dead").exists():
        Path("dead").touch()
        os.killpg(0, signal.SIGKILL)
    return line


flow = fc.Flow("word-count")
flow.source("lines", str).map(die_once).key_by(str).count().sink("counts")
"""


@pytest.mark.parametrize(("workers", "interval_s"), [(1, 0.001), (1, 60), (2, 60)])
def test_an_end_is_kept_after_a_crash_and_taken_anew_after_a_run(
    workers: int, interval_s: float, tmp_path: Path
) -> None:
    """With and without a snapshot before the crash."""
    with NatsServer(jetstream=True) as server:
        (tmp_path / "word_count.py").write_text(DIES)
        job = JOB.replace("interval_s = 0.02", f"interval_s = {interval_s}").replace(
            "[state]", f"workers = {workers}\n[state]"
        )
        (tmp_path / "job.toml").write_text(job.format(url=server.url))
        command = [sys.executable, "-m", "flamecore", "run", "job.toml", "--quiet"]

        def run() -> int:
            return subprocess.run(command, cwd=tmp_path, check=False, start_new_session=True).returncode

        asyncio.run(fill(server.url, [f"{number}" for number in range(100)]))
        assert run() == -signal.SIGKILL
        asyncio.run(fill(server.url, ["more"] * 5))
        found = []
        for _ in range(3):
            assert run() == 0
            found.append(len(asyncio.run(outputs(server.url))))
        assert found == [100, 105, 105]


@pytest.mark.parametrize("killed", ["job", "job and server"])
def test_kills_at_any_moment_do_not_change_the_outputs(killed: str, tmp_path: Path) -> None:
    chance = random.Random(killed)
    with NatsServer(jetstream=True) as server:
        asyncio.run(fill(server.url))
        (tmp_path / "word_count.py").write_text(FLOW)
        (tmp_path / "job.toml").write_text(JOB.format(url=server.url))
        command = [sys.executable, "-m", "flamecore", "run", "job.toml", "--quiet"]
        for _ in range(3):
            with subprocess.Popen(command, cwd=tmp_path) as job:
                try:
                    job.wait(0.3 + chance.random() / 2)
                except subprocess.TimeoutExpired:
                    if killed == "job and server":
                        server.kill()
                        server.start()
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            job.wait(chance.random() / 4)
                    job.kill()
        done = subprocess.run(command, cwd=tmp_path, check=False)
        assert done.returncode == 0
        assert asyncio.run(outputs(server.url)) == expected()
