"""Functions with cells and timers, and joins, in running flows: what the engine alone gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.errors import GraphError
from flamecore.testing import assert_deterministic, assert_exactly_once
from flamecore.testing.draws import seeds
from flamestream_windows import watermarks
from flamestream_windows.engine import joins
from flamestream_windows.engine.functions import Function
from flamestream_windows.engine.values import Element, Emit
from flamestream_windows.model.aggregates import LEFT, RIGHT
from flamestream_windows.model.times import MAX
from flamestream_windows.testing.keyed import Keys

TICK = timedelta(microseconds=1)
Record = tuple[int, str, int, int | None]
"""(side, key, event time, watermark behind it)."""


def drawn(seed: int, count: int = 70) -> list[Record]:
    rng = random.Random(seed)
    records: list[Record] = []
    said = -10
    for place in range(count):
        said = max(said, place - rng.randrange(12))
        at = max(0, place + rng.randrange(-10, 6))
        records.append((rng.choice((LEFT, RIGHT)), rng.choice("abc"), at, said if rng.random() < 0.4 else None))
    return records


class Silent(w.StatefulFn[str, Any, Any]):
    """Tells of a key that has been silent, with how many items there were, and begins anew."""

    count = w.Value(int)
    last = w.Timer("event")

    def on_element(self, key: str, value: Any, at: datetime) -> Iterable[Any]:
        self.count.set(self.count.get(0) + 1)
        self.last.after(timedelta(microseconds=6))
        return ()

    def on_last(self, key: str, at: datetime) -> Iterable[Any]:
        yield (key, self.count.get())
        self.count.clear()


Keyed = w.TimedKeyed[str, Any]
ALONE: dict[str, tuple[type[Any], Callable[[Keyed], w.Timed[Any]]]] = {
    "process": (Silent, lambda keyed: keyed.process(Silent)),
    "distinct": (joins.distinct(5), lambda keyed: keyed.distinct(within=5 * TICK)),
    "inactive": (joins.inactive(4), lambda keyed: keyed.inactive(after=4 * TICK)),
}
BOTH: dict[str, tuple[type[Any], Callable[[Keyed, Keyed], w.Timed[Any]]]] = {
    "as of": (joins.as_of(8), lambda left, right: left.as_of(right, keep=8 * TICK)),
    "inner": (joins.interval_join(3, 5), lambda left, right: left.join(right, before=3 * TICK, after=5 * TICK)),
    "left": (
        joins.interval_join(0, 4, "left"),
        lambda left, right: left.join(right, before=0 * TICK, after=4 * TICK, how="left"),
    ),
    "outer": (
        joins.interval_join(2, 0, "outer"),
        lambda left, right: left.join(right, before=2 * TICK, after=0 * TICK, how="outer"),
    ),
}


def value_of(record: Record) -> tuple[str, int]:
    return record[1], record[2]


def timed(flow: fc.Flow, at_end: Any) -> w.Timed[Record]:
    said = watermarks.from_records(lambda record: record[3])
    source = flow.source("records", tuple)
    return w.event_time(source, lambda record: record[2], unit="us", watermark=said, step=TICK, at_end=at_end)


def in_flow(name: str, at_end: Any = "close") -> fc.Flow:
    flow = fc.Flow("verbs")
    events = timed(flow, at_end)
    if name in ALONE:
        made = ALONE[name][1](events.map(value_of).key_by(lambda value: value[0]))
    else:
        left, right = events.branch(lambda record: record[0] == LEFT)
        made = BOTH[name][1](
            left.map(value_of).key_by(lambda value: value[0]), right.map(value_of).key_by(lambda value: value[0])
        )
    made.sink("out")
    return flow


def in_sequence(name: str, records: Iterable[Record]) -> list[Any]:
    function = Function((ALONE.get(name) or BOTH[name])[0])
    keys: Keys[Any] = Keys(function, clock=0)
    found: list[Any] = []

    def take(outputs: Iterable[Any]) -> None:
        found.extend(output.value for _, output in outputs if isinstance(output, Emit))

    for side, key, at, watermark in [*records, (0, "", 0, MAX)]:
        if watermark != MAX:
            take(keys.element(key, Element((key, at) if name in ALONE else (side, (key, at)), at)))
        if watermark is not None:
            take(keys.advance(watermark))
    return found


@pytest.mark.parametrize("name", [*ALONE, *BOTH])
def test_a_verb_gives_what_the_engine_gives_with_any_number_of_workers(name: str) -> None:
    for seed in range(4):
        records = drawn(seed)
        wanted = in_sequence(name, records)
        assert len(wanted) > 5
        for workers in (1, 2, 3, 5):
            found = list(in_flow(name).run({"records": records}, workers=workers)["out"])
            assert found == wanted, f"seed {seed}, {workers} workers"


@pytest.mark.parametrize("name", ["process", "outer"])
def test_no_interleaving_and_no_crash_shows(name: str) -> None:
    records = {"records": drawn(7, 30)}
    assert_deterministic(in_flow(name), records, seeds=seeds(4))
    assert_exactly_once(in_flow(name, None), records, seeds=seeds(8))


def test_windows_of_two_streams_are_joined() -> None:
    flow = fc.Flow("both")
    left, right = (
        w.event_time(flow.source(name, tuple), lambda record: record[0]).key_by(lambda record: record[1])
        for name in ("left", "right")
    )
    minutes = [side.window(w.fixed(minutes=1)) for side in (left, right)]
    minutes[0].join(minutes[1], how="outer").values().sink("pairs")
    minutes[0].cogroup(minutes[1]).values().sink("lists")
    inputs = {"left": [(1.0, "a"), (2.0, "b"), (70.0, "a")], "right": [(3.0, "a"), (4.0, "a"), (75.0, "c")]}
    made = flow.run(inputs, workers=3)
    pairs = [pair for pane in made["pairs"] for pair in pane]
    assert sorted(pairs, key=repr) == [
        ((1.0, "a"), (3.0, "a")),
        ((1.0, "a"), (4.0, "a")),
        ((2.0, "b"), None),
        ((70.0, "a"), None),
        (None, (75.0, "c")),
    ]
    assert min(made["lists"], key=repr) == ([(1.0, "a")], [(3.0, "a"), (4.0, "a")])


def test_other_windows_cannot_be_joined() -> None:
    keyed = w.event_time(fc.Flow("x").source("r", tuple), lambda record: record[0]).key_by(lambda record: record[1])
    with pytest.raises(GraphError, match=r"takes a stream in the windows fixed\(minutes=1\)"):
        keyed.window(w.fixed(minutes=1)).join(keyed.window(w.fixed(minutes=2)))
    with pytest.raises(GraphError, match="how='right' is no join"):
        keyed.join(keyed, before=TICK, after=TICK, how="right")  # type: ignore[call-overload]
    with pytest.raises(GraphError, match="within has to be a positive time"):
        keyed.distinct(within=0 * TICK)
    with pytest.raises(GraphError, match="takes a class with on_element"):
        keyed.process(len)  # type: ignore[arg-type]
