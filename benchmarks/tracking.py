"""The cost of tracking: the experiment of paper 002.

Many operators stand in line, with a repartition before each.

A record passes `operators` maps, and before each of them goes to a worker of its own, so nearly every step is a
hand-over that is reported twice. Counted are service messages: reports to the tracker and its news to the workers.
Beside the ackers stands the other way to know that nothing is on its way: punctuations, which every operator passes on
along all its channels once it has one from each (`punctuations` below).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from statistics import median
from typing import Any, Final

from benchmarks.noting import NOTING, noting
from benchmarks.processes import measured
from benchmarks.report import Spread, Table

OPERATORS: Final = (10, 30)
WORKERS: Final = (4, 8)
RATES: Final = {10: 1000, 30: 500}
"""Records a second by operators, where messages and latencies are looked at: some 10,000 steps a second."""
FEWER: Final = 3.0
KEPT: Final = 0.75
NOTIFIED_MS: Final = 5.0
ALIKE: Final = 2.0


def one_run(operators: int, workers: int, acker: str, records: int, rate: int) -> dict[str, Any]:
    """Run the job in this process.

    Args:
        operators: Maps in line.
        workers: Number of workers, all in this process.
        acker: The job's strategy; "off": nothing is tracked.
        records: Number of records.
        rate: Records a second; 0: as many as go through.

    Returns:
        Seconds by the wall and of the processor, messages by kind, and the median time in ms from the end of a record's
        last map to its release.
    """
    import flamecore as fc
    from flamecore.errors import PluginContractError
    from flamecore.testing import override

    done: dict[int, float] = {}
    waited: list[float] = []
    count = 0

    class Enough(Exception):
        """Everything is there."""

    def take(_: int, payloads: Sequence[Any]) -> None:
        nonlocal count
        now = time.perf_counter()
        waited.extend([now - done.pop(number) for number in payloads if number in done])
        count += len(payloads)
        if count == records and acker == "off":
            raise Enough

    def note(number: int) -> None:
        done[number] = time.perf_counter()

    async def numbers() -> AsyncIterator[int]:
        start = time.perf_counter()
        for number in range(records):
            due = start + number / rate
            while (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            yield number

    flow = fc.Flow("tracking")
    stream = flow.source("numbers", int)
    for operator in range(operators):
        stream = stream.key_by(_mixed(operator)).map(_same)
    (stream.inspect(note) if rate else stream).sink("out")
    settings: dict[str, Any] = {"sink.out.use": NOTING}
    if acker == "off":
        settings |= {"job.barrier": False, "job.max_in_flight": 4 * records}
    inputs: dict[str, Any] = {"numbers": numbers() if rate else list(range(records))}
    messages: dict[str, int] = {}
    start, start_cpu = time.perf_counter(), time.process_time()
    with noting(take), override("acker", "off", _off()):
        try:
            outputs = flow.run(inputs, workers=workers, acker=acker, settings=settings)
            messages = dict(outputs.stats.messages)
        except PluginContractError as error:
            if not isinstance(error.cause, Enough):
                raise
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    assert count == records
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "messages": messages,
        "notified_ms": median(waited) * 1e3 if waited else None,
    }


def _mixed(operator: int) -> Any:
    """Return a key function that sends a record to another worker than before.

    It does so in turn with the records around it.
    """
    return lambda number: number * 31 + operator * 7


def _same(number: int) -> int:
    return number


def _off() -> type[Any]:
    """Return an acker that tracks nothing, for the messages of a job without one."""
    from flamecore.abc.acker import Acker, Listener, Reporter, SingleListener, Tracker
    from flamecore.model.messages import MinTimes, Report

    class Mute(Reporter):
        def ack(self, segment: int, time: int, xor: int) -> None:
            """Not told."""

        def heartbeat(self, front: int, time: int) -> None:
            """Not told."""

        def unregister(self, front: int) -> None:
            """Not told."""

        def flush(self, now: float) -> Sequence[tuple[int, Report]]:
            return ()

    class Deaf(Tracker):
        def receive(self, report: Report) -> Sequence[MinTimes]:
            return ()

        def register(self, front: int, time: int | None = None) -> int:
            return time or 0

        def current(self) -> MinTimes:
            return MinTimes(())

    class Off(Acker):
        name = "off"

        def tracker(self, index: int) -> Tracker:
            return Deaf()

        def reporter(self, worker: int) -> Reporter:
            return Mute()

        def listener(self) -> Listener:
            return SingleListener(len(self.plan.segments), self.plan.start)

    return Off


def punctuations(operators: int, workers: int, times: int) -> int:
    """Return the number of service messages of a job with punctuations.

    There is one after every one of so many times; messages are counted one by one.

    Every worker runs an instance of every operator. A source sends a punctuation to all instances of the first
    operator; an instance that has one of a time from each of those before it sends one to each of those behind it, and
    those of the last operator to the sink. Messages that stay on their worker are not counted.
    """
    queue: deque[tuple[int, int, int]] = deque()  # (operator, worker, time) that a punctuation has come to
    heard: dict[tuple[int, int, int], int] = {}
    sent = 0
    for time_ in range(times):
        for worker in range(workers):
            sent += worker != 0  # the source is on the first
            queue.append((0, worker, time_))
        while queue:
            operator, worker, at = place = queue.popleft()
            heard[place] = heard.get(place, 0) + 1
            if heard[place] < (1 if operator == 0 else workers):
                continue
            del heard[place]
            if operator + 1 == operators:
                sent += 1  # to the sink, which is nobody's
                continue
            for other in range(workers):
                sent += other != worker
                queue.append((operator + 1, other, at))
    assert not heard
    return sent


def compare(*, records: int, bulk: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Messages and latencies at a fixed rate, throughput with tracking on and off."""
    columns = (
        "operators, workers",
        "centralized, messages a record",
        "local",
        "x fewer",
        "punctuations",
        "x fewer than these",
        "centralized, notified in ms",
        "local",
        "throughput on/off",
        "by CPU time",
    )
    table = Table("Tracking: a repartition before each operator, 1,000 records/s (30 operators: 500)", columns)
    runs: dict[str, list[dict[str, Any]]] = {}
    cells = [(operators, workers) for workers in WORKERS for operators in OPERATORS]
    for _ in range(rounds):
        for operators, workers in cells:
            for acker in ("centralized", "local"):
                kind = f"{operators}, {workers}, {acker}"
                runs.setdefault(kind, []).append(_measure(kind, operators, workers, acker, records, RATES[operators]))
            for acker in ("centralized", "local", "off"):
                kind = f"{operators}, {workers}, {acker}, bulk"
                runs.setdefault(kind, []).append(_measure(kind, operators, workers, acker, bulk, 0))
    for operators, workers in cells:
        _judge(table, runs, operators, workers, records)
    for acker in ("centralized", "local"):
        for workers in WORKERS:
            few, many = (runs[f"{operators}, {workers}, {acker}"] for operators in OPERATORS)
            grown = Spread.of([b["notified_ms"] / a["notified_ms"] for a, b in zip(few, many, strict=True)])
            what = f"{acker}, {workers} workers: notification with {OPERATORS[1]} operators against {OPERATORS[0]}"
            table.target(acker, what, grown, ALIKE, at_most=True)
    return table, {"runs": runs, "targets": table.targets}


def _measure(kind: str, operators: int, workers: int, acker: str, records: int, rate: int) -> dict[str, Any]:
    arguments = {"operators": operators, "workers": workers, "acker": acker, "records": records, "rate": rate}
    return measured("tracking", arguments, what=f"tracking: {kind}")


def _judge(table: Table, runs: dict[str, list[dict[str, Any]]], operators: int, workers: int, records: int) -> None:
    name = f"{operators}, {workers}"
    service = {
        acker: [
            (run["messages"].get("Report", 0) + run["messages"].get("MinTimes", 0)) / records
            for run in runs[f"{name}, {acker}"]
        ]
        for acker in ("centralized", "local")
    }
    fewer = Spread.of([a / b for a, b in zip(service["centralized"], service["local"], strict=True)])
    marks = punctuations(operators, workers, times=100) / 100
    than_marks = Spread.of([marks / count for count in service["local"]])
    notified = {
        acker: Spread.of([run["notified_ms"] for run in runs[f"{name}, {acker}"]]) for acker in ("centralized", "local")
    }
    off = runs[f"{name}, off, bulk"]
    kept = {
        key: Spread.of([b[key] / a[key] for a, b in zip(runs[f"{name}, local, bulk"], off, strict=True)])
        for key in ("seconds", "cpu_seconds")
    }
    table.add(
        name,
        Spread.of(service["centralized"]),
        Spread.of(service["local"]),
        fewer,
        f"{marks:.3g}",
        than_marks,
        notified["centralized"],
        notified["local"],
        kept["seconds"],
        kept["cpu_seconds"],
    )
    table.target("local", f"{name}: times fewer service messages with local ackers", fewer, FEWER)
    table.target("local", f"{name}: throughput with tracking, of that without", kept["seconds"], KEPT)
    table.target("local", f"{name}: the same by CPU time", kept["cpu_seconds"], KEPT)
    for acker, spread in notified.items():
        table.target(acker, f"{name}: {acker} notifies in ms", spread, NOTIFIED_MS, at_most=True)
