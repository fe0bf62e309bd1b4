"""Windows in flows through interleavings, crashes and rescales: what one item at a time gives."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.testing import assert_deterministic, assert_exactly_once
from flamecore.testing.draws import seeds
from flamecore.testing.simulation.trouble import Trouble
from flamestream_windows import aggregates as agg
from flamestream_windows import triggers as t
from flamestream_windows import watermarks

Record = tuple[int, int]
NONE: tuple[int, ...] = ()
TICK = timedelta(microseconds=1)


def records(seed: int, count: int = 40) -> list[Record]:
    """Return pairs of event time and value, out of order."""
    rng = random.Random(seed)
    return [(max(0, place + rng.randrange(-14, 6)), rng.randrange(100)) for place in range(count)]


def timed(flow: fc.Flow, name: str, at_end: Any) -> w.Timed[Record]:
    disorder = watermarks.bounded_disorder(microseconds=4)
    return w.event_time(
        flow.source(name, tuple),
        lambda record: record[0],
        unit="us",
        watermark=disorder,
        at_end=at_end,
        name=f"{name}-times",
    )


def by_value(count: int) -> Any:
    return lambda record: record[1] % count


def number_of(pane: w.Pane[int, dict[str, int]]) -> int:
    return pane.value["n"]


def in_a_row(at_end: Any = None) -> fc.Flow:
    """Early and late panes of one grouping, behind a state, go to another one; and so do final ones, by window."""
    flow = fc.Flow("in-a-row")
    events = timed(flow, "left", at_end).rebalance().map(lambda record: (record[0], record[1] + 1))
    windowed = events.key_by(by_value(5)).window(
        w.fixed(microseconds=10),
        lateness=6 * TICK,
        emit=t.at_watermark(early=t.count(2), late=t.count(1)),
        panes="discarding",
    )
    counts = windowed.aggregate(n=agg.count(), sum=agg.sum(lambda record: record[1]))
    counts.sink("first")
    counts.dropped.sink("dropped")
    again = counts.key_by(lambda pane: pane.key % 2)
    again.window(w.fixed(microseconds=20), lateness=6 * TICK).sum(lambda pane: pane.value["n"], name="again").sink(
        "second"
    )
    final = events.key_by(by_value(7)).window(w.sliding(microseconds=12, every=4 * TICK), lateness=3 * TICK)
    final.count(name="sliding").per_window().top(2, by=lambda pane: pane.value).sink("top")
    return flow


def of_two_sources(at_end: Any = None) -> fc.Flow:
    """Sessions of two sources, of which one is behind a loop and the other behind a state that repairs."""
    flow = fc.Flow("two-sources")
    left, right = timed(flow, "left", at_end), timed(flow, "right", at_end)

    def body(inside: w.Timed[Record]) -> tuple[w.Timed[Record], w.Timed[Record]]:
        return inside.filter(lambda r: r[1] > 70).map(lambda r: (r[0], r[1] // 2)), inside

    both = left.rebalance().loop(body).merge(right.filter(lambda record: record[1] % 3))
    sessions = both.key_by(by_value(4)).window(w.sessions(microseconds=3), lateness=5 * TICK)
    sessions.fold(NONE, lambda values, record: (*values, record[1]), merge=lambda one, other: one + other).sink(
        "visits"
    )
    updates = both.key_by(by_value(3)).window(w.fixed(microseconds=8), emit="updates", panes="retracting")
    changes = updates.count()
    changes.sink("updates")
    changes.per_window().count(name="of-all").sink("of-all")
    return flow


def by_the_clock(at_end: Any = None) -> fc.Flow:
    flow = fc.Flow("by-the-clock")
    windowed = (
        timed(flow, "left", at_end)
        .key_by(by_value(4))
        .window(
            w.fixed(microseconds=10),
            emit=t.at_watermark(early=t.every(microseconds=500)),
            panes="accumulating",
        )
    )
    windowed.count().sink("counts")
    return flow


INPUTS = {"left": records(1), "right": records(2, 25)}
FLOWS = {"in a row": in_a_row, "of two sources": of_two_sources}


def inputs(name: str) -> dict[str, list[Record]]:
    return INPUTS if name == "of two sources" else {"left": INPUTS["left"]}


@pytest.mark.parametrize("name", FLOWS)
def test_no_interleaving_shows(name: str) -> None:
    assert_deterministic(FLOWS[name](), inputs(name), seeds=seeds(8), workers=(1, 2, 3, 5))


@pytest.mark.parametrize("name", FLOWS)
def test_no_crash_and_no_rescale_shows(name: str) -> None:
    assert_exactly_once(FLOWS[name](), inputs(name), seeds=seeds(10), kinds=["kill", "turn"])


def test_the_end_of_the_input_ends_all_windows_once() -> None:
    # Of one source: when the first of two ends among the records of the other, the reference cannot know.
    assert_exactly_once(in_a_row("close"), {"left": INPUTS["left"]}, seeds=seeds(8), trouble=Trouble(grows=False))


@pytest.mark.parametrize("clock", ["sequence", "wall"])
@pytest.mark.parametrize("workers", [1, 2])
def test_what_comes_after_an_end_that_sinks_hold_is_left_for_the_next_run(
    tmp_path: Path, clock: str, workers: int
) -> None:
    """The job fails after it has delivered the end of one source, which grows before the next start."""

    def flow(fails: bool) -> fc.Flow:
        def checked(record: Record) -> Record:
            if fails and record[1] == 1:
                raise ValueError
            return record

        flow = fc.Flow("ends")
        left = flow.source("left", tuple)
        timed = w.event_time(left, lambda record: record[0], unit="us", at_end="close", name="times")
        counts = timed.key_by(lambda record: record[1]).window(w.fixed(microseconds=1_000)).count()
        counts.map(lambda pane: [pane.key, pane.value]).merge(left.map(list)).sink("all")
        flow.source("right", tuple).map(checked).sink("checked")
        return flow

    records: dict[str, list[Record]] = {"left": [(1, 0), (2, 1), (3, 0)], "right": [*[(1, 0)] * 20_000, (2, 1)]}
    settings: dict[str, Any] = {"job.clock": clock, "sink.all.use": "jsonl", "sink.all.path": str(tmp_path / "all")}
    for name, some in records.items():
        (tmp_path / name).write_text("".join(f"{json.dumps(record)}\n" for record in some))
        settings |= {f"source.{name}.use": "jsonl", f"source.{name}.path": str(tmp_path / name)}

    def run(fails: bool = False) -> list[str]:
        flow(fails).run(workers=workers, state=tmp_path / "state", settings=settings)
        return (tmp_path / "all").read_text().splitlines()

    with pytest.raises(fc.OperationError):
        run(fails=True)
    with (tmp_path / "left").open("a") as file:
        file.write("[5000,2]\n")
    before = sorted(["[1,0]", "[2,1]", "[3,0]", "[0,2]", "[1,1]"])
    assert sorted(run()) == before
    assert sorted(run()) == sorted([*before, "[5000,2]"])
    assert sorted(run()) == sorted([*before, "[5000,2]"])


def test_panes_by_the_clock_come_once() -> None:
    assert_exactly_once(by_the_clock("keep"), {"left": INPUTS["left"]}, seeds=seeds(20))


def test_windows_that_are_open_go_on_with_what_is_appended(tmp_path: Path) -> None:
    first, rest = INPUTS["left"][:25], INPUTS["left"][25:]
    outputs: dict[str, list[Any]] = {}
    for part, workers in ((first, 2), (rest, 3)):
        with (tmp_path / "left.jsonl").open("a") as file:
            file.writelines(f"{json.dumps(record)}\n" for record in part)
        more = {"source.left.use": "jsonl", "source.left.path": str(tmp_path / "left.jsonl")}
        made = in_a_row().run(workers=workers, state=tmp_path / "state", settings=more)
        for name, found in made.items():
            outputs.setdefault(name, []).extend(found)
    more = {"source.left.use": "jsonl", "source.left.path": str(tmp_path / "left.jsonl")}
    whole = in_a_row().run(state=tmp_path / "other", settings=more)
    assert outputs == {name: list(found) for name, found in whole.items()}
    assert len(in_a_row().run(settings=more)["first"]) > len(whole["first"])  # without state all windows end


# The seeds that are always there have a process that finds an end again before it has read a record.
@pytest.mark.parametrize("empty", ["left", "right"])
def test_of_two_sources_that_close_at_their_ends_one_has_no_record(empty: str) -> None:
    flow = fc.Flow("ends")
    left, right = (
        w.event_time(flow.source(name, tuple), lambda record: float(record[0]), at_end="close")
        for name in ("left", "right")
    )
    panes = left.merge(right).key_by(lambda record: 0).window(w.fixed(seconds=3)).count()
    panes.map(lambda pane: (pane.window.start, pane.value)).sink("panes")
    panes.dropped.map(lambda dropped: dropped.value).sink("dropped")
    records = {"left": [(at,) for at in (30, 12, 31, 5, 40, 50, 7)], "right": [(at,) for at in (8, 40, 3)], empty: []}
    assert_exactly_once(flow, records, seeds=[0, 17, *seeds(60)])
