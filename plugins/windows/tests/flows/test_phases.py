"""Windows through backfill and live: a history is read to its end, what comes live goes on, as in one run."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamestream_windows import triggers as t
from flamestream_windows import watermarks

SINKS = ("sums", "dropped", "visits", "once")
NONE: tuple[int, ...] = ()


def draw_records(count: int) -> list[tuple[float, str, int]]:
    """Return records out of order, of which some are late."""
    rng = random.Random(5)
    return [
        (round(place * 0.5 - rng.random() * rng.choice((1, 8, 30)), 3), rng.choice("abcd"), place)
        for place in range(100, 100 + count)
    ]


def flow() -> fc.Flow:
    flow = fc.Flow("phases")
    timed: w.Timed[Any] = w.event_time(
        flow.source("records", list), lambda record: record[0], watermark=watermarks.bounded_disorder(seconds=5)
    )
    keyed = timed.rebalance().filter(lambda record: record[2] % 7 != 0).key_by(lambda record: record[1])
    sums = keyed.window(
        w.fixed(seconds=10),
        lateness=timedelta(seconds=10),
        emit=t.at_watermark(early=t.count(4), late=t.count(1)),
        panes="accumulating",
    ).sum(lambda record: record[2])
    sums.sink("sums")
    sums.dropped.map(lambda dropped: dropped.value).sink("dropped")
    visits = keyed.window(w.sessions(seconds=2))
    visits.fold(NONE, lambda seen, record: (*seen, record[2]), merge=lambda one, other: one + other).sink("visits")
    keyed.distinct(within=timedelta(seconds=3)).sink("once")
    return flow


def run(folder: Path, records: list[Any], phase: int, workers: int, clock: str) -> dict[str, list[Any]]:
    """Run a phase, and return what the sinks hold behind it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"records-{phase}.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    settings = {
        "job.clock": clock,
        "job.guarantee": "exactly_once",
        "state.interval_s": 0.01,
        "source.records.use": "jsonl",
        "source.records.path": str(path),
        **({"source.records.phase": phase} if phase > 1 else {}),
        **{f"sink.{name}.use": "jsonl" for name in SINKS},
        **{f"sink.{name}.path": str(folder / f"{name}.jsonl") for name in SINKS},
    }
    flow().run(workers=workers, state=folder / "state", settings=settings)
    return {name: [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()] for name in SINKS}


@pytest.mark.parametrize("clock", ["sequence", "wall"])
def test_backfill_then_live_gives_the_outputs_of_one_run(clock: str, tmp_path: Path) -> None:
    records = draw_records(400)
    wanted = run(tmp_path / "whole", records, 1, 1, clock)
    assert all(wanted.values())
    for cut in (1, 137, 399):
        folder = tmp_path / f"cut-{cut}"
        before = run(folder, records[:cut], 1, 2, clock)
        assert all(before[name] == wanted[name][: len(before[name])] for name in SINKS)
        assert run(folder, records[cut:], 2, 3, clock) == wanted
