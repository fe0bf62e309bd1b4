"""Drawn flows with windows: in rows, behind loops, behind states that repair, of one to three fronts.

`python tests/soak/draws.py` plays it with other seeds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.model.meta import GLOBAL_TIME_BYTES, decode_time, encode_time
from flamecore.model.ordered import KEPT, Now
from flamecore.runtime.config.defaults import ACKERS
from flamecore.runtime.operators import marks
from flamecore.runtime.operators.ordered import OrderedBuffer, OrderedOperator
from flamecore.runtime.operators.reorder import ReorderBuffer
from flamecore.runtime.parts.front import Front
from flamecore.testing import assert_deterministic, assert_exactly_once
from flamecore.testing.simulation.trouble import Trouble
from flamestream_windows import aggregates as agg
from flamestream_windows import triggers as t
from flamestream_windows import watermarks
from flamestream_windows.engine import grouping as engine
from flamestream_windows.flows.work import GroupingWork, TimedWork
from flamestream_windows.model.times import MIN

PARTS = 4
TICK = timedelta(microseconds=1)
Record = tuple[int, int, int | None]
"""(event time, value, watermark behind it)."""
Seeds = Callable[..., range]


def draw_records(rng: random.Random, count: int) -> list[Record]:
    """Return records out of order, of which some say a watermark."""
    records: list[Record] = []
    said = -10
    for place in range(count):
        said = max(said, place - rng.randrange(12) + rng.choice((0, 0, 0, 3, 8, 30)))
        at = max(-5, place + rng.randrange(-14, 6))
        records.append((at, rng.randrange(100), said if rng.random() < 0.4 else None))
    return records


def draw_timed(rng: random.Random, flow: fc.Flow, name: str, at_end: Literal["close", "keep"]) -> w.Timed[Record]:
    strategy = rng.choice([watermarks.bounded_disorder(microseconds=5), watermarks.from_records(lambda r: r[2])])
    timed: w.Timed[Record] = w.event_time(
        flow.source(name, tuple),
        lambda record: record[0],
        unit="us",
        watermark=strategy,
        step=rng.choice((1, 1, 4)) * TICK,
        at_end=at_end,
        name=f"{name}-times",
    )
    return draw_way(rng, timed)


def draw_way(rng: random.Random, timed: w.Timed[Record]) -> w.Timed[Record]:
    """Return what comes of a stream on its way to a window."""
    way = rng.choice(("straight", "mapped", "twice", "loop", "repaired", "repaired"))
    if way == "straight":
        return timed
    spread = timed.rebalance()
    if way == "mapped":
        return spread.map(lambda r: (r[0], r[1] + 1, r[2])).filter(lambda r: r[1] % 7 != 0)
    if way == "twice":
        return spread.flat_map(lambda r: [r, (r[0], r[1] // 2, r[2])][: r[1] % 3])
    if way == "loop":
        return spread.loop(lambda inside: (inside.filter(more).map(less), inside))
    # Behind a state items have no times; here they keep them, so that there is a state that repairs before a window.
    stamped = spread.map(lambda r: r)
    states = stamped._bare().key_by(lambda stamp: stamp[2][1] % 3).stateful_map(0, add)
    return stamped._next(states)


def more(record: Record) -> bool:
    return record[1] > 60


def less(record: Record) -> Record:
    return (record[0], record[1] // 2, record[2])


def add(total: int, stamp: tuple[int, int, Record]) -> tuple[int, list[tuple[int, int, Record]]]:
    kind, at, (_, value, mark) = stamp
    total = (total + value) % 100
    return total, [(kind, at, (at, total, mark))][: 1 + value % 2]


def draw_window(rng: random.Random) -> tuple[w.WindowFn, dict[str, Any]]:
    """Return windows, and the other words of `window`."""
    windows = rng.choice(
        [
            w.fixed(microseconds=10),
            w.fixed(microseconds=7, offset=3 * TICK),
            w.sliding(microseconds=12, every=4 * TICK),
            w.sessions(microseconds=4),
        ]
    )
    emit = rng.choice(
        [
            "final",
            "final",
            "updates",
            t.at_watermark(late=t.count(1)),
            t.at_watermark(early=t.count(3), late=t.count(2)),
            (t.count(2) >> t.count(4)).repeat(),
        ]
    )
    words = {
        "lateness": rng.choice((0, 0, 5, 20)) * TICK,
        "emit": emit,
        "panes": rng.choice(("accumulating", "discarding", "retracting")),
        "time": rng.choice(("end", "earliest", "latest")),
    }
    return windows, words


def value_of(record: Record) -> int:
    return record[1]


def count_of(pane: w.Pane[Any, dict[str, int]]) -> int:
    return pane.value["n"]


def draw_flow(seed: int, at_end: Literal["close", "keep"]) -> tuple[fc.Flow, dict[str, list[Record]]]:
    """Return a flow and records of its sources."""
    rng = random.Random(f"windows {seed}")
    flow = fc.Flow("drawn")
    names = "abc"[: rng.choice((1, 1, 2, 3))]
    streams = [draw_timed(rng, flow, name, at_end) for name in names]
    merged = streams[0].merge(*streams[1:]) if len(streams) > 1 else streams[0]
    windows, words = draw_window(rng)
    keys = rng.randint(1, 5)
    panes = (
        merged.key_by(lambda record: record[1] % keys)
        .window(windows, **words)
        .aggregate(n=agg.count(), sum=agg.sum(value_of))
    )
    retracts = words["panes"] == "retracting"
    panes.sink("first")
    panes.late.map(value_of).sink("late")
    panes.dropped.map(lambda dropped: (dropped.timestamp, dropped.reason)).sink("dropped")
    behind = rng.choice(("nothing", "window", "by window", "state", "function"))
    if behind == "window":
        windows, words = draw_window(rng)
        again = panes.key_by(lambda pane: pane.key % 2).window(windows, **words)
        again.sum(count_of, name="again").sink("second")
    elif behind == "by window":
        panes.per_window().count(name="again").sink("second")
    elif behind == "state":
        panes.key_by(lambda pane: pane.key % 3).count(name="again").sink("second")
    elif behind == "function":
        keyed = merged.key_by(lambda record: record[1] % 4)
        told = keyed.distinct(within=9 * TICK) if rng.random() < 0.5 else keyed.inactive(after=9 * TICK)
        told.sink("second")
    # With chance of its own: the same seeds otherwise draw the same flows as without it.
    beside(random.Random(f"beside {seed}"), merged, None if retracts else panes)
    return flow, {name: draw_records(rng, rng.randint(5, 40)) for name in names}


def beside(rng: random.Random, timed: w.Timed[Record], panes: fc.Stream[Any] | None) -> None:
    """Have outputs of an ordered operation meet direct copies of its items, before operations that depend on order."""
    kind = rng.choice(("none", "panes", "distinct", "as of"))
    if kind == "none" or (kind == "panes" and panes is None):
        return
    keyed = timed.key_by(lambda record: record[1] % 4)
    late: fc.Stream[int]
    if panes is not None and kind == "panes":
        late = panes.map(count_of)
    elif kind == "distinct":
        late = keyed.distinct(within=9 * TICK).map(value_of)
    else:
        other = timed.key_by(lambda record: record[1] % 4)
        late = keyed.as_of(other, keep=3 * TICK).map(lambda pair: sum(map(value_of, filter(None, pair))))
    stream = late.merge(timed.map(value_of))
    for _ in range(rng.randint(1, 2)):
        behind = rng.choice(("state", "loop", "group", "calls"))
        if behind == "state":
            stream = stream.key_by(lambda value: value % 3).stateful_map(0, lambda n, value: (n + 1, [value + n]))
        elif behind == "loop":
            stream = stream.key_by(lambda value: value % 2).loop(halve)
        elif behind == "group":
            stream = stream.key_by(lambda value: value % 3).group(2).map(sum)
        else:
            stream = stream.key_by(lambda value: value % 5).reduce(lambda one, other: (one * 7 + other) % 101).map(max)
    stream.sink("beside")


def halve(inside: fc.KeyedStream[int, int]) -> tuple[fc.Stream[int], fc.Stream[int]]:
    numbered = inside.stateful_map(0, lambda n, value: (n + 1, [value - 8 + 2 * (n % 2)]))
    again, done = numbered.branch(lambda value: value > 60)
    return again, done


@pytest.mark.parametrize("part", range(PARTS))
def test_any_flow_gives_what_one_item_at_a_time_gives(part: int, seeds: Seeds) -> None:
    panes = 0
    for seed in seeds(8, part):
        flow, inputs = draw_flow(seed, "close")
        try:
            found = assert_deterministic(flow, inputs, workers=(1, 2, 3, 5), seeds=range(seed % 3, seed % 3 + 2))
        except AssertionError as error:
            raise AssertionError(f"flow {seed}: {error}") from error
        panes += len(found["first"])
    assert panes > 0


def test_any_flow_gives_each_output_once(seeds: Seeds) -> None:
    counts: Counter[str] = Counter()
    drawn = seeds(16)
    for seed in range(drawn.start, drawn.start + 200):
        if seed >= drawn.stop and counts["kill"] > 0:  # a few stories may be without one
            break
        flow, inputs = draw_flow(seed, "close" if seed % 2 else "keep")
        try:
            counts += assert_exactly_once(flow, inputs, seeds=[seed], ackers=[ACKERS[seed % 3]])
        except AssertionError as error:
            raise AssertionError(f"flow {seed}: {error}") from error
    assert counts["kill"] > 0, counts


def test_where_a_run_ends_does_not_show_in_windows_of_windows() -> None:
    """The end of a run once had the first windows say a watermark, and what came then was late in the second."""
    flow, inputs = draw_flow(100098, "keep")
    for trouble in (Trouble(faults=0), Trouble(kinds={"kill": 1, "turn": 1})):
        assert_exactly_once(flow, inputs, seeds=(2, 4, 5, 13, 16), trouble=trouble)


@pytest.mark.parametrize("seed", [200497, 300343])
def test_an_end_that_a_snapshot_holds_is_where_the_first_run_had_it(seed: int) -> None:
    """All was read, and windows closed, before the job was stopped or given up; the next run says the ends again."""
    flow, inputs = draw_flow(seed, "close")
    assert_exactly_once(flow, inputs, seeds=[seed], ackers=[ACKERS[seed % 3]])


# Mistakes in the way of marks, timers and snapshots: each must show in some run.


def draw_ticking(seed: int) -> tuple[fc.Flow, dict[str, list[Record]]]:
    """Return a flow whose early panes come by the wall clock."""
    rng = random.Random(f"ticking {seed}")
    flow = fc.Flow("ticking")
    timed = draw_timed(rng, flow, "a", "keep").key_by(lambda record: record[1] % 4)
    early = t.every(microseconds=rng.choice((50, 500)))
    panes = timed.window(w.fixed(microseconds=10), emit=t.at_watermark(early=early), panes="accumulating")
    panes.count().sink("first")
    return flow, {"a": draw_records(rng, 30)}


def shows_in_order(seed: int) -> None:
    flow, inputs = draw_flow(seed, "close")
    assert_deterministic(flow, inputs, workers=(1, 3), seeds=[seed])


def shows_in_stories(seed: int) -> None:
    flow, inputs = draw_flow(seed, "keep")
    assert_exactly_once(flow, inputs, seeds=[seed])


def shows_at_the_end(seed: int) -> None:
    flow, inputs = draw_flow(seed, "close")
    assert_exactly_once(flow, inputs, seeds=[seed])


def shows_by_the_clock(seed: int) -> None:
    flow, inputs = draw_ticking(seed)
    assert_exactly_once(flow, inputs, seeds=[seed])


def marks_overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "behind_record", lambda order: order[:GLOBAL_TIME_BYTES])


def panes_look_at_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    made, made_step = GroupingWork.__init__, engine._Step.__init__
    lowest: list[int] = []  # of the partition at work

    def begin(self: Any, *arguments: Any) -> None:
        made(self, *arguments)
        self.holds, self.lowest = {}, MIN

    def counted(self: Any, method: Any, key: Any, state: Any, given: Any, now: Now) -> Any:
        held = [hold for hold in self.holds.values() if hold is not None]
        self.lowest = max(self.lowest, min([now.before, *held]))
        lowest.append(self.lowest)
        try:
            outcome = method(self, key, state, given, now)
        finally:
            lowest.pop()
        if outcome.timers is not KEPT:
            self.holds[key] = outcome.hold
        return outcome

    def begin_step(self: Any, *arguments: Any) -> None:
        made_step(self, *arguments)
        self.output = lowest[-1]

    monkeypatch.setattr(GroupingWork, "__init__", begin)
    monkeypatch.setattr(engine._Step, "__init__", begin_step)
    for name in ("process", "on_time"):
        method = getattr(TimedWork, name)
        monkeypatch.setattr(GroupingWork, name, lambda self, *given, method=method: counted(self, method, *given))


def timers_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def lowest(self: OrderedBuffer) -> bytes | None:
        waits, own = ReorderBuffer.lowest.fget(self), self._ordered.watermark.marks  # type: ignore[attr-defined]
        places = [place for place in (waits, own[0][0] if own else None) if place is not None]
        return min(places, default=None)

    monkeypatch.setattr(OrderedBuffer, "lowest", property(lowest))


def state_is_cut_an_item_late(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = OrderedOperator.cut
    monkeypatch.setattr(OrderedOperator, "cut", lambda self, before: cut(self, encode_time(decode_time(before) + 1)))


def ends_are_not_journaled(monkeypatch: pytest.MonkeyPatch) -> None:
    def stamp_end(self: Front) -> int:
        time = self.promise()
        self.next_time = time + 1
        self.latest.time = max(self.latest.time, self.next_time)
        return time

    monkeypatch.setattr(Front, "stamp_end", stamp_end)


MISTAKES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[int], None], int]] = {
    "a mark overtakes its record": (marks_overtake, shows_in_order, 0),
    "panes look at the holds of a partition": (panes_look_at_the_partition, shows_in_order, 17),
    "a timer is not held in flight": (timers_are_not_held, shows_by_the_clock, 0),
    "state is cut an item late": (state_is_cut_an_item_late, shows_in_stories, 0),
    "the end of a front is not journaled": (ends_are_not_journaled, shows_at_the_end, 94),
}
"""Each mistake, the runs that show it, and the seed to look from: the first that shows it, where that is a late one."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows_in_some_run(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shows, first = MISTAKES[mistake]
    for seed in range(10):
        shows(seed)  # without it nothing is wrong
    make(monkeypatch)
    told = r"differs from the reference|the minimum time had passed it|the state is older than the output"
    with pytest.raises(AssertionError, match=told):  # noqa: PT012
        for seed in range(first, first + 200):
            shows(seed)
