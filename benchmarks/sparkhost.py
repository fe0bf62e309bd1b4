"""Workers that are tasks of Spark: when the first output comes, how late outputs are, how long the end takes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.away import arrivals, expect
from benchmarks.deployed import Run
from benchmarks.deployed import missing as transport_missing
from benchmarks.processes import LIMIT_S, ROOT, say
from benchmarks.report import Spread, Table

RATE: Final = 1000
"""Lines a second."""
MASTER: Final = "local[4]"
_STREAM: Final = "LINES"
_SUBJECT: Final = "lines"


def missing() -> str:
    """Why nothing of this can be measured here; empty if it can."""
    return "pyspark is not installed" if find_spec("pyspark") is None else transport_missing("nats")


def _percentiles(took: list[float]) -> dict[str, float]:
    took.sort()
    return {"p50_ms": took[len(took) // 2], "p99_ms": took[len(took) * 99 // 100], "max_ms": took[-1]}


def _hosted(lines: int) -> dict[str, float]:
    """Run a job on Spark over lines of a stream of NATS, and tell it to stop."""
    from flamecore.testing.nats_server import NatsServer

    with tempfile.TemporaryDirectory() as folder, NatsServer(jetstream=True) as server:
        stamps = Path(folder, "stamps.json")
        asyncio.run(_begin(server.url))
        settings = [
            "deploy.on=spark",
            f"spark.master={MASTER}",
            f'source.lines.servers=["{server.url}"]',
            f"source.lines.stream={_STREAM}",
        ]
        options = [part for setting in settings for part in ("--set", setting)]
        began = time.monotonic()
        run = Run(
            "numbered_words",
            ["--source", "lines=nats", "--sink", "counts=stdout", "-w", "2", *options],
            stdout=subprocess.PIPE,
        )
        feeder = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.natsfeeder", str(RATE), str(lines), str(stamps), server.url, _SUBJECT],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            text=True,
        )
        try:
            expect(run, b"begin 1 -1\n")
            first = time.monotonic() - began
            time.sleep(1.0)  # what is left of the start is over
            assert feeder.stdin is not None
            feeder.stdin.write("go\n")
            feeder.stdin.close()
            arrived = arrivals(run, lines)
            feeder.wait(timeout=LIMIT_S)
            stopping = time.monotonic()
            run.process.send_signal(signal.SIGINT)
            run.finish()
            stop = time.monotonic() - stopping
        finally:
            feeder.kill()
            run.process.kill()
        handed = json.loads(stamps.read_text())
    took = [(arrived[number] - at) / 1e6 for number, at in enumerate(handed)]
    return {**_percentiles(took), "command_s": first, "stop_s": stop}


async def _begin(server: str) -> None:
    """Make the stream, with a first line in it."""
    import nats

    client = await nats.connect(server)
    jetstream = client.jetstream()
    await jetstream.add_stream(name=_STREAM, subjects=[_SUBJECT])
    await jetstream.publish(_SUBJECT, b"-1 begin")
    await client.close()


def compare(*, lines: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Several rounds."""
    table = Table(f"On Spark, {MASTER}: latency in ms at {RATE:,} lines/s; start and end in s", ("what", "figure"))
    if why := missing():
        table.note(f"left out: {why}")
        return table, {}
    runs = []
    for _ in range(rounds):
        say("workers on Spark")
        runs.append(_hosted(lines))
    rows: dict[str, tuple[str, float | None]] = {
        "flamestream, lines from NATS: p50 in ms": ("p50_ms", 10.0),
        "flamestream, lines from NATS: p99 in ms": ("p99_ms", None),
        "command to first output": ("command_s", None),
        "Ctrl-C, to the end of the command": ("stop_s", None),
    }
    for name, (key, most) in rows.items():
        spread = Spread.of([run[key] for run in runs])
        table.add(name, spread)
        if most is not None:
            table.target(name, name, spread, most, at_most=True)
    return table, {"lines": lines, "rate": RATE, "runs": runs, "targets": table.targets}
