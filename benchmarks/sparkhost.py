"""Workers that are tasks of Spark: time to first output, latency, and time to end.

Beside it Structured Streaming passes the same lines on, without any state, in micro-batches as fast as it can.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.away import LINES, arrivals, expect
from benchmarks.corpora import zipf_lines
from benchmarks.deployed import Run
from benchmarks.deployed import missing as transport_missing
from benchmarks.processes import LIMIT_S, ROOT, measured, say
from benchmarks.report import Spread, Table

RATE: Final = 1000
"""Lines a second."""
MASTER: Final = "local[4]"
_STREAM: Final = "LINES"
_SUBJECT: Final = "lines"
_WARM: Final = 500
"""Lines that Structured Streaming may warm up with."""


def missing() -> str:
    """Return why nothing of this can be measured here; empty if it can."""
    return "pyspark is not installed" if find_spec("pyspark") is None else transport_missing("nats")


def _percentiles(took: list[float]) -> dict[str, float]:
    took.sort()
    return {"p50_ms": took[len(took) // 2], "p99_ms": took[len(took) * 99 // 100], "max_ms": took[-1]}


def _hosted(lines: int) -> dict[str, float]:
    """Run a job on Spark over lines of a stream of NATS, and tell it to stop."""
    from flamestream_nats.testing import NatsServer

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
            arrived = arrivals(run, LINES.updates(lines))
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


def one_run(lines: int) -> dict[str, Any]:
    """Time a session and a job on it in this process, then Structured Streaming.

    The job is timed to its first output, and to its end.
    """
    from flamestream_spark.session.session import session

    began = time.monotonic()
    with session(MASTER, {"spark.sql.shuffle.partitions": "2"}) as spark:
        made = time.monotonic() - began
        return {"session_s": made, **_first_output(), **_streaming(spark, lines)}


def _first_output() -> dict[str, float]:
    """Time a job on the session of this process.

    The times are those to its first output, and from there to its end.
    """
    from benchmarks.flows.numbered_words import flow
    from flamecore.runtime.config.layers import from_program
    from flamecore.runtime.config.read import make_config
    from flamecore.runtime.config.resolve import resolve
    from flamecore.runtime.launch import job_of

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "lines").write_text("0 to be or not to be\n" * 50_000)
        source = {"source.lines.use": "lines", "source.lines.path": f"{folder}/lines"}
        settings = {"deploy.on": "spark", "job.workers": 2, "sink.counts.use": "memory", **source}
        spec = resolve(make_config(from_program(settings)), flow)
        job = job_of(spec)
        outputs: list[Any] = spec.sinks["counts"].values  # type: ignore[attr-defined]  # memory

        async def run() -> tuple[float, float]:
            began = time.monotonic()
            running = asyncio.create_task(job.run())
            while not outputs and not running.done():
                await asyncio.wait((running,), timeout=0.01)
            first = time.monotonic()
            job.drain()
            await running
            return first - began, time.monotonic() - first

        first, stop = asyncio.run(run())
    return {"first_s": first, "drain_s": stop}


def _streaming(spark: Any, lines: int) -> dict[str, float]:
    """Pass lines from a socket through Structured Streaming to a function per batch."""
    handed: dict[int, int] = {}
    arrived: dict[int, int] = {}
    warm, done = threading.Event(), threading.Event()

    def note(batch: Any, _: int) -> None:
        numbers = [int(row.value.partition(" ")[0]) for row in batch.collect()]
        arrived.update(dict.fromkeys(numbers, time.monotonic_ns()))
        if len(arrived) >= _WARM:
            warm.set()
        if len(arrived) >= _WARM + lines:
            done.set()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        texts = zipf_lines((_WARM + lines) * 10)
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            start = time.monotonic()
            for number, text in enumerate(texts):
                if number == _WARM:
                    warm.wait(60)
                    start = time.monotonic() - number / RATE
                time.sleep(max(start + number / RATE - time.monotonic(), 0))
                handed[number] = time.monotonic_ns()
                connection.sendall(f"{number} {text}\n".encode())
            done.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        port = listener.getsockname()[1]
        reader = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", port)
        query = reader.load().writeStream.foreachBatch(note).option("checkpointLocation", folder).start()
        assert done.wait(LIMIT_S)
        query.stop()
    took = [(arrived[number] - at) / 1e6 for number, at in handed.items() if number >= _WARM]
    return {f"streaming_{key}": value for key, value in _percentiles(took).items()}


def compare(*, lines: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Both, several rounds."""
    table = Table(f"On Spark, {MASTER}: latency in ms at {RATE:,} lines/s; start and end in s", ("what", "figure"))
    if why := missing():
        table.note(f"left out: {why}")
        return table, {}
    runs = []
    for _ in range(rounds):
        say("workers on Spark")
        runs.append(
            _hosted(lines) | measured("sparkhost", {"lines": lines}, what="a session, and Structured Streaming")
        )
    rows: dict[str, tuple[str, float | None]] = {
        "flamestream, lines from NATS: p50 in ms": ("p50_ms", 10.0),
        "flamestream, lines from NATS: p99 in ms": ("p99_ms", None),
        "Structured Streaming, lines from a socket: p50 in ms": ("streaming_p50_ms", None),
        "Structured Streaming, lines from a socket: p99 in ms": ("streaming_p99_ms", None),
        "session of Spark": ("session_s", None),
        "session to first output": ("first_s", 8.0),
        "command to first output": ("command_s", None),
        "told to stop, to the end of the job": ("drain_s", 2.0),
        "Ctrl-C, to the end of the command": ("stop_s", None),
    }
    for name, (key, most) in rows.items():
        spread = Spread.of([run[key] for run in runs])
        table.add(name, spread)
        if most is not None:
            table.target(name, name, spread, most, at_most=True)
    return table, {"lines": lines, "rate": RATE, "runs": runs, "targets": table.targets}
