"""Windows in running flows: what the sequential engine gives, item for item, with any number of workers."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.runtime.config.defaults import ACKERS
from flamestream_windows import aggregates as agg
from flamestream_windows import triggers as t
from flamestream_windows import watermarks
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.values import Drop, Element, Firing, Late
from flamestream_windows.model.aggregates import Aggregate
from flamestream_windows.model.strategy import strategy
from flamestream_windows.model.times import MAX
from flamestream_windows.testing.keyed import Keys

TICK = timedelta(microseconds=1)


def ticks(count: int) -> timedelta:
    return count * TICK


Record = tuple[str, int, int, int | None]
"""(key, value, event time, watermark behind it)."""


def timed(flow: fc.Flow, name: str = "records", **settings: Any) -> w.Timed[Record]:
    said = watermarks.from_records(lambda record: record[3])
    return w.event_time(
        flow.source(name, tuple), lambda record: record[2], unit="us", watermark=said, step=TICK, **settings
    )


def drawn(seed: int, count: int = 60) -> list[Record]:
    """Return records out of order, of which some say a watermark."""
    rng = random.Random(seed)
    records: list[Record] = []
    said = -10
    for place in range(count):
        jump = rng.choice((0, 0, 0, 3, 8, 30))
        said = max(said, place - rng.randrange(12) + jump)
        watermark = said if rng.random() < 0.4 else None
        records.append((rng.choice("abcd"), rng.randrange(9), max(-5, place + rng.randrange(-14, 6)), watermark))
    return records


def draw_settings(seed: int) -> dict[str, Any]:
    """Return the words of a window."""
    rng = random.Random(seed)
    windows = rng.choice(
        [
            w.fixed(microseconds=10),
            w.fixed(microseconds=7, offset=3 * TICK),
            w.sliding(microseconds=12, every=4 * TICK),
            w.sliding(microseconds=4, every=6 * TICK),
            w.sessions(microseconds=4),
            w.whole(),
        ]
    )
    emit = rng.choice(
        [
            "final",
            "updates",
            t.at_watermark(late=t.count(1)),
            t.at_watermark(early=t.count(3), late=t.count(2)),
            t.count(2).repeat(),
            (t.count(3) | t.at_watermark(late=t.count(1))).repeat(),
            (t.count(2) >> t.count(4)).repeat(),
        ]
    )
    return {
        "windows": windows,
        "lateness": ticks(rng.choice((0, 0, 5, 20))),
        "emit": emit,
        "panes": rng.choice(("accumulating", "discarding", "retracting")),
        "time": rng.choice(("end", "earliest", "latest")),
    }


def in_sequence(records: Iterable[Record], settings: Mapping[str, Any], aggregate: Aggregate) -> dict[str, list[Any]]:
    """Return the panes, late and dropped items of the engine alone, one input after another."""
    grouping = Grouping(strategy(**settings), aggregate)
    keys: Keys[Any] = Keys(grouping, clock=0)
    found: dict[str, list[Any]] = {"panes": [], "late": [], "dropped": []}

    def take(outputs: Iterable[tuple[Hashable, Any]]) -> None:
        for key, output in outputs:
            if isinstance(output, Firing):
                value, window, _, timing, number, _, last, retraction, _ = output
                found["panes"].append(w.Pane(key, value, window, w.Timing(timing), number, last, retraction))
            elif isinstance(output, Late):
                found["late"].append(output.value)
            else:
                assert isinstance(output, Drop)
                found["dropped"].append(w.Dropped(*output))

    def turn(pair: tuple[Hashable, Any]) -> tuple[int, int]:
        key, output = pair
        end, start = output.place
        return next((dues[key, cell], start) for key_, cell in dues if key_ == key and cell.window == (start, end))

    for key, value, at, watermark in [*records, ("", 0, 0, MAX)]:
        if watermark != MAX:
            take(keys.element(key, Element((key, value, at, watermark), at)))
        if watermark is not None and watermark > keys.watermark:
            cells = [(key, cell) for key, record in keys.records.items() for cell in record.open]
            dues = {(key, cell): grouping.due_of(cell, keys.moment) for key, cell in cells}
            take(sorted(keys.advance(watermark), key=turn))
    assert not keys.records
    return found


def in_flow(settings: Mapping[str, Any], **more: Any) -> fc.Flow:
    flow = fc.Flow("windows")
    words = dict(settings)
    keyed = timed(flow, at_end="close", **more).key_by(lambda record: record[0])
    panes = keyed.window(words.pop("windows"), **words).aggregate(n=agg.count(), all=agg.collect())
    panes.sink("panes")
    panes.late.sink("late")
    panes.dropped.sink("dropped")
    return flow


AGGREGATES = agg.named({"n": agg.count(), "all": agg.collect()})


@pytest.mark.parametrize("clock", ["sequence", "wall"])
@pytest.mark.parametrize("part", range(4))
def test_a_flow_gives_what_the_engine_gives_with_any_number_of_workers(
    part: int, clock: str, seeds: Callable[..., range]
) -> None:
    seen, runs = 0, seeds(6, part)
    for seed in runs:
        settings, records = draw_settings(seed), drawn(seed)
        wanted = in_sequence(records, settings, AGGREGATES)
        for workers in (1, 2, 3, 5):
            flow, acker = in_flow(settings), ACKERS[seed % len(ACKERS)]
            made = flow.run({"records": records}, workers=workers, acker=acker, settings={"job.clock": clock})
            found = {name: list(made[name]) for name in wanted}
            assert found == wanted, f"seed {seed}, {workers} workers, {strategy(**settings)}"
        seen += len(wanted["panes"])
    assert seen > len(runs)


@pytest.mark.parametrize("workers", [1, 3])
def test_labels_tie_values_together_without_times(workers: int) -> None:
    records: list[Record] = [("a", 3, 10, None), ("b", 0, 5, 7), ("a", 2, 20, None)]
    flow = fc.Flow("labels")
    values = w.event_time(flow.source("records", tuple), lambda record: record[2], unit="us").map(
        lambda record: record[:2]
    )
    parts = values.label("record").flat_map(lambda pair: [pair[0]] * pair[1])
    parts.gather("record").sink("parts")
    parts.key_by(lambda key: key, label="record").count().sink("counts")
    found = flow.run({"records": records}, workers=workers)
    assert found["parts"] == [(record[:2], (record[0],) * record[1]) for record in records]
    assert found["counts"] == [("a", 1), ("a", 2), ("a", 3), ("a", 1), ("a", 2)]


def test_labels_that_lead_nowhere_are_refused_in_streams_with_times() -> None:
    flow = fc.Flow("labels")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[2])
    with pytest.raises(fc.GraphError, match="there is no label 'record'"):
        timed.gather("record")
    with pytest.raises(fc.GraphError, match="there is no label 'record'"):
        timed.key_by(lambda record: record[0], label="record")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_windows_stay_where_their_records_are_placed(workers: int) -> None:
    records = [(f"page {n % 5}", n % 3, 10 * n, None) for n in range(60)]
    flow = fc.Flow("placed")
    parts = timed(flow, at_end="close").place_by(lambda record: record[0]).flat_map(lambda r: [(r[0], r[1]), (r[0], 9)])
    keyed = parts.key_by(lambda part: part, place=lambda key: key[0])
    panes = keyed.window(w.fixed(microseconds=100)).count()
    panes.map(lambda pane: (pane.key, pane.window.start, pane.value)).sink("out")
    counts: dict[Any, int] = {}
    for page, number, at, _ in records:
        for key in ((page, number), (page, 9)):
            counts[key, at // 100 * 100] = counts.get((key, at // 100 * 100), 0) + 1
    found = flow.run({"records": records}, workers=workers)["out"]
    assert sorted(found) == sorted((key, start, count) for (key, start), count in counts.items())
    graph = flow.graph()
    (count,) = [vertex for vertex in graph.vertices if vertex.ordered]
    assert graph.placing_of(count) is not None, "its items are sent nowhere"


def test_the_core_loads_nothing_of_the_plugin() -> None:
    code = "import sys, flamecore.testing; print([each for each in sys.modules if each.startswith('flamestream')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_a_job_file_runs_it_and_prints_the_same_with_one_worker_and_three(tmp_path: Path) -> None:
    (tmp_path / "minutes.py").write_text(
        "from datetime import datetime\n"
        "from typing import NamedTuple\n"
        "import flamecore as fc\n"
        "import flamestream_windows as w\n"
        "class Reading(NamedTuple):\n"
        "    at: datetime\n"
        "    sensor: str\n"
        "    value: int\n"
        "flow = fc.Flow('minutes')\n"
        "timed = w.event_time(flow.source('readings', Reading), lambda reading: reading.at)\n"
        "minutes = timed.key_by(lambda reading: reading.sensor).window(w.fixed(minutes=1))\n"
        "minutes.collect().sink('minutes')\n"
    )
    lines = [f'{{"at": "2024-03-01T09:0{n // 7}:00Z", "sensor": "{"abc"[n % 3]}", "value": {n}}}' for n in range(30)]
    (tmp_path / "readings.jsonl").write_text("\n".join(lines))
    (tmp_path / "job.toml").write_text(
        'schema = 1\n[job]\nflow = "minutes.py"\n[source.readings]\nuse = "jsonl"\npath = "readings.jsonl"\n'
        '[sink.minutes]\nuse = "stdout"\n'
    )
    found = []
    for workers in ("1", "3"):
        command = [sys.executable, "-m", "flamecore", "run", "job.toml", "--quiet", "-w", workers]
        found.append(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert found[0] == found[1]
    panes = [json.loads(line) for line in found[0].splitlines()]
    assert sum(len(pane["value"]) for pane in panes) == 30
    assert len(panes) == 14
