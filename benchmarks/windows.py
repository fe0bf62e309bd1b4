"""Counts in windows of event time, beside the running count of the same records.

Both are measured by CPU time in one process.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Final

from benchmarks.corpora import SEED
from benchmarks.processes import measured
from benchmarks.report import Spread, Table

if TYPE_CHECKING:
    import flamecore as fc

WORKERS: Final = (1, 4)
START: Final = 1_700_000_000_000_000
"""The time of the first record, in microseconds."""

GAP: Final = 50_000
"""Microseconds from one record to the next."""

INTERVAL_S: Final = 0.5
"""The time between two snapshots."""

KEPT_WANTED: Final = 0.8
"""The least ratio of the speed with snapshots to that without."""

Record = tuple[int, int]
"""A time and a key."""


@dataclass(frozen=True, slots=True)
class Job:
    """A flow over records of some keys.

    Attributes:
        keys: Number of keys; of sessions, of those that are not silent.
        items: Number of items that a key has in a window, or in a session, on average.
        emit: When a window gives a pane.
        windows: "fixed"; "sliding", of which each item is in five; or "sessions".
        wanted: Least ratio to the running count; None: none is asked for.
    """

    keys: int
    items: int
    emit: str = "final"
    windows: str = "fixed"
    wanted: float | None = None

    @property
    def size(self) -> int:
        """Size of a window, in microseconds."""
        return self.keys * self.items * GAP


JOBS: Final[dict[str, Job]] = {
    "final, 20 keys, 600 items a window": Job(20, 600, wanted=0.7),
    "final, 1,000 keys, 12 items": Job(1000, 12, wanted=0.7),
    "final, 10,000 keys, 12 items": Job(10_000, 12, wanted=0.7),
    "final, 10,000 keys, 2 items": Job(10_000, 2),
    "final, in 5 sliding windows, 50 keys, 240 items": Job(50, 240, windows="sliding"),
    "updates, 20 keys, 600 items": Job(20, 600, "updates", wanted=0.2),
    "updates, 1,000 keys, 12 items": Job(1000, 12, "updates", wanted=0.2),
    "updates, 10,000 keys, 12 items": Job(10_000, 12, "updates", wanted=0.2),
    "sessions, 50 keys, 100 items a session": Job(50, 100, windows="sessions", wanted=0.2),
    "sessions, 1,000 keys, 100 items": Job(1000, 100, windows="sessions", wanted=0.2),
}


KEPT: Final = "final, 1,000 keys, 12 items"
"""The job that is measured with snapshots, too."""


def records_of(job: Job, count: int) -> list[Record]:
    """Return records in the order of their times, of keys at random.

    Of sessions each key is silent every other time: half of the keys is, while the other half has its items.
    """
    random, keys = Random(SEED), job.keys
    if job.windows == "sessions":
        turns = [number // (keys * job.items) % 2 for number in range(count)]
        return [(START + number * GAP, turn * keys + random.randrange(keys)) for number, turn in enumerate(turns)]
    return [(START + number * GAP, random.randrange(keys)) for number in range(count)]


def _time(record: Record) -> int:
    return record[0]


def _key(record: Record) -> int:
    return record[1]


def _hundredth(update: tuple[int, int]) -> bool:
    return update[0] == 0 and update[1] % 100 == 0


def _is_first(pane: Any) -> bool:
    return bool(pane.key == 0)


def running() -> fc.Flow:
    """Return the flow of the running count.

    Few outputs leave either flow: the counts are measured, not the sink.
    """
    import flamecore as fc

    flow = fc.Flow("running")
    flow.source("records", tuple).key_by(_key).count().filter(_hundredth).sink("counts")
    return flow


def windowed(job: Job) -> fc.Flow:
    """Return the flow of the count in windows."""
    import flamecore as fc
    import flamestream_windows as w

    flow = fc.Flow("windowed")
    # As without state: otherwise windows that are open at the end would wait for more.
    keyed = w.event_time(flow.source("records", tuple), _time, at_end="close").key_by(_key)
    size = timedelta(microseconds=job.size)
    windows: Any = w.fixed(microseconds=job.size)
    if job.windows == "sliding":
        windows = w.sliding(microseconds=job.size, every=size / 5)
    elif job.windows == "sessions":
        windows = w.sessions(microseconds=_gap(job))
    counts = keyed.window(windows, emit=job.emit, panes="accumulating").count()  # type: ignore[arg-type]  # a text
    counts.filter(_is_first).sink("counts")
    return flow


def _gap(job: Job) -> int:
    """Return a gap of a quarter of a session.

    No gap between two items of a session is that long.
    """
    return job.size // 4


def expected(job: Job, records: Sequence[Record]) -> list[int]:
    """Return the counts of key 0, as a plain loop has them."""
    times = [at for at, key in records if key == 0]
    found: list[int] = []
    if job.windows == "sessions":
        last = None
        for at in times:
            if last is None or at >= last + _gap(job):
                found.append(0)
            found[-1] += 1
            last = at
        return found
    period = job.size // 5 if job.windows == "sliding" else job.size
    counts: Counter[int] = Counter()
    for at in times:
        first = at - at % period
        for start in range(first, at - job.size, -period):
            counts[start] += 1
            if job.emit == "updates":
                found.append(counts[start])
    return found or [counts[start] for start in sorted(counts)]


def one_run(job: str, records: int, workers: int, pairs: int) -> dict[str, Any]:
    """Run both flows in turn, several times.

    The time of starting and ending is not in the figures.
    """
    chosen = JOBS[job]
    given = records_of(chosen, records)
    counted = [*range(100, sum(key == 0 for _, key in given) + 1, 100)]
    seconds: dict[str, list[float]] = {"running": [], "windowed": []}
    right = True
    for flow in (running(), windowed(chosen)):
        _run(flow, given[:1000], workers)
    for _ in range(pairs):
        for name, flow in (("running", running()), ("windowed", windowed(chosen))):
            spent = _run(flow, [], workers)[0]
            took, outputs = _run(flow, given, workers)
            seconds[name].append(took - spent)
            values = [pane[1] if name == "running" else pane.value for pane in outputs]
            right = right and values == (counted if name == "running" else expected(chosen, given))
    return {"seconds": seconds, "right": right, "records": records}


def one_kept(job: str, records: int, pairs: int) -> dict[str, Any]:
    """Run the count in windows without and with snapshots in turn, several times, on one worker."""
    chosen = JOBS[job]
    given = records_of(chosen, records)
    wanted = expected(chosen, given)
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    right = True
    for kept in (False, True):
        _run(windowed(chosen), given[:1000], 1, kept=kept)
    for _ in range(pairs):
        for name, kept in (("without", False), ("with", True)):
            took, outputs = _run(windowed(chosen), given, 1, kept=kept)
            seconds[name].append(took)
            right = right and [pane.value for pane in outputs] == wanted
    return {"seconds": seconds, "right": right, "records": records}


def _run(flow: fc.Flow, records: Sequence[Record], workers: int, *, kept: bool = False) -> tuple[float, list[Any]]:
    """Return seconds of the processor's time, and the outputs."""
    with tempfile.TemporaryDirectory() as folder:
        state: dict[str, Any] = {"state": folder, "settings": {"state.interval_s": INTERVAL_S}} if kept else {}
        begun = time.process_time()
        outputs = list(flow.run({"records": records}, workers=workers, **state)["counts"])
        return time.process_time() - begun, outputs


def compare(*, records: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Measure every job on 1 and on 4 workers."""
    ns = [f"ns an item, {workers}w" for workers in WORKERS]
    ratios = [f"of the running count, {workers}w" for workers in WORKERS]
    table = Table("Counts in windows of event time, by CPU time", ("job", *ns, *ratios, "outputs"))
    facts: dict[str, Any] = {}
    for name, job in JOBS.items():
        cells: list[Any] = []
        shares: list[Any] = []
        facts[name] = {}
        wrong = False
        for workers in WORKERS:
            arguments = {"job": name, "records": records, "workers": workers, "pairs": rounds}
            run = measured("windows", arguments, what=f"windows: {name}, {workers} workers")
            facts[name][workers] = run
            wrong = wrong or not run["right"]
            taken = run["seconds"]
            cells.append(Spread.of([seconds / records * 1e9 for seconds in taken["windowed"]]))
            share = Spread.of([base / ours for base, ours in zip(taken["running"], taken["windowed"], strict=True)])
            shares.append(share)
            if job.wanted is not None:
                table.target(name, f"{name}, {workers} workers: of the running count", share, job.wanted)
        if wrong:
            table.fail(name, "counts of a key")
            continue
        table.add(name, *cells, *shares, "equal")
    _compare_kept(table, facts, 5 * records, rounds)
    return table, {"windows": facts, "targets": table.targets}


def _compare_kept(table: Table, facts: dict[str, Any], records: int, rounds: int) -> None:
    """Measure a job with and without snapshots; of more records, so that there are several snapshots."""
    arguments = {"job": KEPT, "records": records, "pairs": rounds}
    run = facts["kept"] = measured("windows_kept", arguments, what=f"windows: {KEPT}, with snapshots")
    if not run["right"]:
        table.fail(KEPT, "counts of a key with snapshots")
        return
    pairs = zip(run["seconds"]["without"], run["seconds"]["with"], strict=True)
    share = Spread.of([without / kept for without, kept in pairs])
    table.target(KEPT, f"{KEPT}: with a snapshot every 500 ms, of that without", share, KEPT_WANTED)
