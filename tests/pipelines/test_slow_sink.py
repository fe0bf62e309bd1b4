"""A sink that is a hundred times slower than the source: memory stays where it was, and a look at the job says why.

Fronts admit records within their credit (`max_in_flight`) and get it back when the sink has stored all that came of
them. So what the whole job holds is bounded by the credit, not by the length of the stream or the speed of the source.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from ephemeral_port_reserve import reserve
from words import where_joined

from flamecore.testing.progress import Patience

RATE = 500
"""Records a second that the sink takes. A file of such lines brings more than a hundred times as many."""

SECONDS = 6
"""How long it is looked at, unless FLAMESTREAM_SLOW_SINK_S says otherwise."""

STATUSES = 9
"""Number of looks at the job's status meanwhile."""

LOOKS = 12
"""Least number of looks at its memory: a machine may be too busy for as many as there is time for."""

RECORD_BYTES = 2_000
CREDIT = 2_048

COPIES = 8
"""In how many places a record in flight may be at a time: with its front, in a message out and in one in, in the
history of the state, in the barrier, in a release on its way, with the collector, and with the sink."""

BOUND_MB = 48
"""Growth allowed after the first measurement: CREDIT × COPIES × RECORD_BYTES is 33 MB if every place were full at once;
the rest is for the allocator. Without credit the source alone would bring 100 MB a second."""

APP = f"""
    import asyncio
    from collections.abc import Sequence
    from typing import Any

    import flamecore as fc
    from flamecore.abc.sink import Guarantee, Sink
    from flamecore.testing import override


    class Slow(Sink):
        name = "slow"

        @property
        def guarantee(self) -> Guarantee:
            return "at_least_once"

        async def write(self, time: int, payloads: Sequence[Any]) -> None:
            await asyncio.sleep(len(payloads) / {RATE})


    installed = override("sink", "slow", Slow)
    installed.__enter__()  # in every process that imports this

    flow = fc.Flow("slow-sink")
    lines = flow.source("lines", str).rebalance().map(str.upper)
    lines.key_by(lambda line: line[:2]).stateful_map(0, lambda n, line: (n + 1, [line])).sink("out")
"""


BUSY = """
    import time
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    import flamecore as fc
    from flamecore.abc.sink import Guarantee, Sink
    from flamecore.model.meta import MIN_TIME
    from flamecore.testing import override


    class Busy(Sink):
        name = "busy"

        @property
        def guarantee(self) -> Guarantee:
            return "at_least_once"

        async def open(self) -> int:
            time.sleep(4)  # and the event loop of the supervisor with it
            Path("out.txt").write_text("")
            return MIN_TIME

        async def write(self, time: int, payloads: Sequence[Any]) -> None:
            with Path("out.txt").open("a") as file:
                file.writelines(f"{key} {count}\\n" for key, count in payloads)


    installed = override("sink", "busy", Busy)
    installed.__enter__()

    flow = fc.Flow("busy-sink")
    flow.source("lines", str).rebalance().map(str.upper).key_by(lambda line: line[0]).count().sink("out")
"""


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory_mb(pids: list[int]) -> float:
    return sum(map(resident_mb, pids))


@contextmanager
def started(folder: Path, over: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], str, dict[str, str]]]:
    """Start a job of two workers over a file too long for it.

    Yields the address for `status`, too.
    """
    (folder / "app.py").write_text(dedent(APP))
    with (folder / "lines.txt").open("w") as file:
        for number in range(100_000):
            file.write(f"{number:06}".ljust(RECORD_BYTES - 1, "x")[::-1] + "\n")
    environment = {**os.environ, "FLAMESTREAM_TOKEN": "not a secret"}
    if "transport.use=grpc" in over:
        here = f"127.0.0.1:{reserve()}"
        over, address = [*over, f"transport.grpc.listen={here}"], f"grpc://{here}"
    else:
        address = where_joined(over)
    settings = [*over, "source.lines.path=lines.txt", f"job.max_in_flight={CREDIT}"]
    command = [sys.executable, "-m", "flamecore", "run", "app.py", "-w", "2", "-q", "--source", "lines=lines"]
    command += ["--sink", "out=slow", *(f"--set={setting}" for setting in settings)]
    with (folder / "errors.txt").open("w") as errors:
        job = subprocess.Popen(command, cwd=folder, env=environment, stderr=errors)
    try:
        yield job, address, environment
    finally:
        job.kill()
        job.wait()


def status(address: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "flamecore", "status", address, "--job", "slow-sink", "--json"]
    looked = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert looked.returncode == 0, looked.stderr
    facts: dict[str, Any] = json.loads(looked.stdout)
    return facts


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory of processes is read from /proc")
def test_memory_is_bounded_and_the_source_is_held_back(tmp_path: Path, joinable: list[str]) -> None:
    seconds = float(os.environ.get("FLAMESTREAM_SLOW_SINK_S", SECONDS))
    with started(tmp_path, joinable) as (job, address, environment):
        limit = Patience(60)
        while len(children(job.pid)) < 2:
            assert job.poll() is None, (tmp_path / "errors.txt").read_text()
            assert not limit.passed(), "it has not started in time"
            time.sleep(0.05)
        pids = [job.pid, *children(job.pid)]
        first = memory_mb(pids)
        while status(address, environment)["items_out"].get("out", 0) < RATE:  # it delivers, as slowly as it can
            assert not limit.passed(), "it has not delivered in time"
        looks, statuses = [memory_mb(pids)], []
        start = time.monotonic()
        while (since := time.monotonic() - start) < seconds or len(looks) < LOOKS:
            time.sleep(0.1)
            looks.append(memory_mb(pids))
            if since * STATUSES >= len(statuses) * seconds:
                statuses.append(status(address, environment))
        assert job.poll() is None, (tmp_path / "errors.txt").read_text()
    print(f"{first:.0f} MB at the start, then {min(looks):.0f} to {max(looks):.0f}")
    assert max(looks) < min(looks) + BOUND_MB, looks
    early, late = looks[: len(looks) // 3], looks[-len(looks) // 3 :]
    assert max(late) < max(early) + BOUND_MB / 4, "it does not grow with time"
    for facts in statuses:
        assert facts["in_flight"] <= CREDIT
        assert facts["items_in"] <= facts["items_out"]["out"] + CREDIT + RATE, (
            "what was read is what the sink asked for"
        )
    # A part of the looks may fall into the moments in which the front reads what the sink has made room for.
    waiting = [facts for facts in statuses if facts["held_back"] == 1 and facts["in_flight"] > CREDIT // 2]
    assert len(waiting) > len(statuses) / 2, "the front stands still, and all that it may admit waits for the sink"


def test_a_job_whose_sink_is_busy_as_it_opens_is_waited_for(tmp_path: Path, joinable: list[str]) -> None:
    """Nothing else moves in the process of the control meanwhile, for four times as long as a host may be silent."""
    (tmp_path / "app.py").write_text(dedent(BUSY))
    (tmp_path / "lines.txt").write_text("".join(f"{'abc'[number % 3]}{number}\n" for number in range(3_000)))
    settings = [*joinable, "source.lines.path=lines.txt", "state.path=state", "deploy.silence_timeout_s=1"]
    command = [sys.executable, "-m", "flamecore", "run", "app.py", "-w", "2", "--source", "lines=lines"]
    command += ["--sink", "out=busy", *(f"--set={setting}" for setting in settings)]
    with (tmp_path / "errors.txt").open("w") as errors:
        job = subprocess.Popen(command, cwd=tmp_path, stderr=errors)
    try:
        limit = Patience(60)
        while job.poll() is None:
            assert not limit.passed(), "it has not ended in time"
            time.sleep(0.05)
    finally:
        job.kill()
        job.wait()
    said = (tmp_path / "errors.txt").read_text()
    assert job.returncode == 0, said
    assert "job.faulted" not in said
    found = (tmp_path / "out.txt").read_text().splitlines()
    assert found == [f"{'ABC'[number % 3]} {number // 3 + 1}" for number in range(3_000)]
