"""The items that an input holds back at its end: their number, the input, and the option that releases them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.cli.progress import held
from flamestream_windows import triggers as t

TICK = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
Record = tuple[int, str]
AtEnd = Any

FAST: list[Record] = [(place, "abc"[place % 3]) for place in range(200)]
SLOW: list[Record] = [(place * 10, "abc"[place % 3]) for place in range(7)]  # up to 60


def inputs(flow: fc.Flow, slow: AtEnd, fast: AtEnd = "keep") -> tuple[Any, Any]:
    ends = {"fast": fast, "slow": slow}
    timed = [
        w.event_time(flow.source(name, tuple), at, unit="us", step=TICK, at_end=end, name=f"times of {name}")
        for name, end in ends.items()
    ]
    return timed[0], timed[1]


def at(record: Record) -> int:
    return record[0]


def key(record: Record) -> str:
    return record[1]


def by_as_of(fast: Any, slow: Any) -> Any:
    return fast.key_by(key).as_of(slow.key_by(key), keep=SECOND, name="verb")


def by_join(fast: Any, slow: Any) -> Any:
    return fast.key_by(key).join(slow.key_by(key), before=2 * TICK, after=2 * TICK, how="left", name="verb")


def by_outer_join(fast: Any, slow: Any) -> Any:
    return slow.key_by(key).join(fast.key_by(key), before=0 * TICK, after=0 * TICK, how="outer", name="verb")


def by_window(fast: Any, slow: Any) -> Any:
    panes = fast.merge(slow).key_by(key).window(w.fixed(microseconds=10)).collect(name="verb")
    return panes.flat_map(lambda pane: pane.value)


def by_session(fast: Any, slow: Any) -> Any:
    panes = slow.merge(fast).key_by(lambda record: record[0] // 8).window(w.sessions(microseconds=4))
    return panes.collect(name="verb").flat_map(lambda pane: pane.value)


def by_trigger(fast: Any, slow: Any) -> Any:
    windows = (
        fast.merge(slow)
        .key_by(key)
        .window(w.fixed(microseconds=10), emit=t.at_watermark(early=t.count(2)), panes="discarding")
    )
    return windows.collect(name="verb").flat_map(lambda pane: pane.value)


class Later(w.StatefulFn[str, Record, Record]):
    """Gives each item out when the watermark is there."""

    items = w.OrderedList()
    due = w.Timer("event")

    def on_element(self, key: str, value: Record, at: Any) -> Any:
        self.items.add(at, value)
        self.due.set(at, tag=str(value))
        return ()

    def on_due(self, key: str, at: Any) -> Any:
        for _, value in self.items.remove(at, at + TICK):
            yield value


def by_function(fast: Any, slow: Any) -> Any:
    return fast.merge(slow).key_by(lambda record: record).process(Later, name="verb")


class InTurn(w.StatefulFn[str, Record, Record]):
    """Takes items in the order of their times."""

    ordered = True

    def on_element(self, key: str, value: Record, at: Any) -> Any:
        yield value


def by_order(fast: Any, slow: Any) -> Any:
    return fast.merge(slow).key_by(key).process(InTurn, name="verb")


def by_side(fast: Any, slow: Any) -> Any:
    side = slow.key_by(key).window(w.fixed(microseconds=10)).count(name="side")
    return fast.key_by(key).with_side(side, form="dict", name="verb")


VERBS: list[Callable[[Any, Any], Any]] = [
    by_as_of,
    by_join,
    by_window,
    by_session,
    by_trigger,
    by_function,
    by_order,
    by_side,
]


def run(verb: Callable[[Any, Any], Any], folder: Path, workers: int, slow: AtEnd, fast: AtEnd = "keep") -> Any:
    flow = fc.Flow("held")
    verb(*inputs(flow, slow, fast)).sink("out")
    settings = {"state.use": "directory", "state.path": str(folder / f"{slow}-{fast}")}
    return flow.run({"fast": FAST, "slow": SLOW}, workers=workers, settings=settings)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_the_count_is_that_of_the_items_which_the_option_releases(
    verb: Callable[[Any, Any], Any], workers: int, tmp_path: Path
) -> None:
    kept, closed = run(verb, tmp_path, workers, None), run(verb, tmp_path, workers, "close")
    whole = run(verb, tmp_path, workers, "close", "close")
    count = len(whole["out"]) - len(kept["out"])
    assert kept.stats.held["verb"] == count > 25
    assert kept.stats.held_for["verb"] == "slow/0"
    assert kept.stats.released_by["verb"] == "at_end=\"close\" of 'times of slow'"
    assert f"{count} items held at verb for slow/0" in "; ".join(held(kept.stats))
    # Then the other input, which is ahead, holds back the little that is left.
    left = len(whole["out"]) - len(closed["out"])
    assert closed.stats.held.get("verb", 0) == left < 30
    assert set(closed.stats.held_for.values()) <= {"fast/0"}
    assert not whole.stats.held
    assert not [*held(whole.stats)]


def test_both_sides_of_an_outer_join_count(tmp_path: Path) -> None:
    kept, whole = run(by_outer_join, tmp_path, 1, None), run(by_outer_join, tmp_path, 1, "close", "close")
    assert kept.stats.held["verb"] == len(whole["out"]) - len(kept["out"]) > 100


def test_an_operation_behind_another_waits_for_the_input_of_that(tmp_path: Path) -> None:
    flow = fc.Flow("chain")
    fast, slow = inputs(flow, None)
    panes = fast.merge(slow).key_by(key).window(w.fixed(microseconds=10)).count(name="first")
    panes.key_by(lambda pane: 0).window(w.fixed(microseconds=50)).count(name="second").sink("out")
    settings = {"state.use": "directory", "state.path": str(tmp_path / "state")}
    stats = flow.run({"fast": FAST, "slow": SLOW}, workers=3, settings=settings).stats
    assert stats.held_by["second"] == "first"
    assert stats.held_for == {"first": "slow/0", "second": "slow/0"}
    assert stats.held["second"] == 3 * len({place // 10 for place in range(50, 60)})


def test_an_operation_that_keeps_items_for_itself_alone_holds_nothing(tmp_path: Path) -> None:
    flow = fc.Flow("alone")
    fast, slow = inputs(flow, None)
    merged = fast.merge(slow)
    merged.key_by(at).distinct(within=5 * TICK, name="distinct").sink("distinct")
    merged.key_by(key).window(w.fixed(microseconds=10), emit="updates", panes="accumulating").count().sink("updates")
    fast.key_by(key).join(slow.key_by(key), before=TICK, after=TICK, name="inner").sink("inner")
    settings = {"state.use": "directory", "state.path": str(tmp_path / "state")}
    stats = flow.run({"fast": FAST, "slow": SLOW}, settings=settings).stats
    assert not stats.held
    assert stats.pending


def test_an_input_without_records_is_named(tmp_path: Path) -> None:
    flow = fc.Flow("empty")
    by_as_of(*inputs(flow, None)).sink("out")
    settings = {"state.use": "directory", "state.path": str(tmp_path / "state")}
    outputs = flow.run({"fast": FAST, "slow": []}, settings=settings)
    assert len(outputs["out"]) + outputs.stats.held.get("verb", 0) == len(FAST)
    assert set(outputs.stats.held_for.values()) <= {"fast/0"}  # the other has had nothing new, and awaits nothing


@pytest.mark.parametrize("first", ["left", "right"])
def test_of_inputs_that_hold_back_alike_the_first_by_name_is_named(first: str) -> None:
    flow = fc.Flow("alike")
    names = ("left", "right") if first == "left" else ("right", "left")
    timed = [w.event_time(flow.source(name, tuple), at, unit="us", at_end="keep", name=f"at {name}") for name in names]
    timed[0].merge(timed[1]).key_by(key).window(w.fixed(microseconds=10)).count(name="count").sink("out")
    stats = flow.run({"left": SLOW, "right": SLOW}).stats
    assert (stats.held_by["count"], stats.held_for["count"]) == ("left/0", "left/0")
