"""Side inputs in running flows: by plain loops, by the reference, and after crashes the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.errors import GraphError, OperationError
from flamecore.testing import assert_deterministic, assert_exactly_once
from flamecore.testing.draws import seeds
from flamestream_windows import triggers as t
from flamestream_windows import watermarks

Record = tuple[int, int]
"""(time, value)."""

TICK = timedelta(microseconds=1)
DISORDER = 9


def timed(flow: fc.Flow, name: str) -> w.TimedKeyed[int, Record]:
    """Return a source by key, whose records keep it open."""
    disorder = watermarks.bounded_disorder(microseconds=DISORDER)
    stream: fc.Stream[Record] = flow.source(name, tuple)
    events = w.event_time(stream, lambda r: r[0], unit="us", watermark=disorder, step=TICK, name=f"{name}-times")
    return events.key_by(lambda r: r[1] % 5)


def looked_up(form: Any, *, size: int = 10, **settings: Any) -> fc.Flow:
    """Give each item of one source the sums by key of another."""
    flow = fc.Flow("sides")
    side = timed(flow, "side").window(w.fixed(microseconds=size), **settings).sum(lambda r: r[1])
    found = timed(flow, "main").with_side(side, form=form)
    found.sink("found")
    found.late.sink("late")
    found.dropped.sink("dropped")
    found.key_by(lambda pair: pair[0][1] % 2).window(w.fixed(microseconds=5)).count().sink("counts")
    return flow


def drawn(seed: int, count: int = 40) -> dict[str, list[Record]]:
    rng = random.Random(seed)
    return {
        name: [(max(0, place + rng.randrange(-6, 4)), rng.randrange(100)) for place in range(count)]
        for name in ("main", "side")
    }


def sums(records: list[Record], size: int) -> dict[int, dict[int, int]]:
    """Return the sums of each window by key."""
    found: dict[int, dict[int, int]] = {}
    for at, value in records:
        window = found.setdefault(at // size, {})
        window[value % 5] = window.get(value % 5, 0) + value
    return found


EARLY: dict[str, Any] = {"emit": t.at_watermark(early=t.count(2), late=t.count(1)), "lateness": 4 * TICK}
FLOWS: dict[str, Callable[[], fc.Flow]] = {
    "dict": lambda: looked_up("dict"),
    "list of late ones": lambda: looked_up("list", lateness=5 * TICK),
    "early dict": lambda: looked_up("dict", **EARLY, panes="accumulating"),
    "early list": lambda: looked_up("list", **EARLY, panes="discarding"),
    "retracting dict": lambda: looked_up("dict", **EARLY, panes="retracting"),
    "updates": lambda: looked_up("list", emit="updates", panes="accumulating"),
}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_item_comes_with_its_window_of_the_side(seed: int, workers: int) -> None:
    records = drawn(seed)
    made = looked_up("dict").run(records, workers=workers)
    wanted = sums(records["side"], 10)
    assert not made["dropped"]
    assert sorted(made["found"]) == sorted((item, wanted.get(item[0] // 10, {})) for item in records["main"])
    assert {tuple(sorted(values)) for _, values in looked_up("list").run(records, workers=workers)["found"]} == {
        tuple(sorted(window.values())) for window in wanted.values()
    }


@pytest.mark.parametrize("name", FLOWS)
def test_no_interleaving_of_a_side_shows(name: str) -> None:
    assert_deterministic(FLOWS[name](), drawn(3, 30), seeds=range(3), workers=(1, 2, 3))


@pytest.mark.parametrize("name", FLOWS)
def test_no_crash_and_no_rescale_of_a_side_shows(name: str) -> None:
    assert_exactly_once(FLOWS[name](), drawn(4, 30), seeds=seeds(4), kinds=["kill"])


def test_items_that_wait_are_there_when_a_job_goes_on(tmp_path: Path) -> None:
    records, outputs = drawn(5, 80), list[Any]()
    parts = {name: [some[:40], some[40:]] for name, some in records.items()}
    more = {f"source.{name}.use": "jsonl" for name in records}
    more |= {f"source.{name}.path": str(tmp_path / name) for name in records}
    for part, workers in ((0, 2), (1, 3)):
        for name in records:
            with (tmp_path / name).open("a") as file:
                file.writelines(f"{json.dumps(record)}\n" for record in parts[name][part])
        found = looked_up("dict").run(workers=workers, state=tmp_path / "state", settings=more)["found"]
        assert found
        outputs += found
    wanted = sums(records["side"], 10)
    complete = [(item, wanted.get(item[0] // 10, {})) for item in records["main"]]
    assert all(pair in complete for pair in outputs)
    assert len(outputs) >= 50


@pytest.mark.parametrize("workers", [1, 3])
def test_a_single_value_of_all_is_what_it_was_when_the_item_came(workers: int) -> None:
    flow = fc.Flow("rate")
    rates = w.event_time(flow.source("rates", tuple), lambda r: r[0], unit="us", name="rates-times")
    whole = rates.key_by(lambda r: None).window(w.whole(), emit="updates", panes="accumulating")
    rate = whole.reduce(lambda one, other: other)
    trades = w.event_time(flow.source("trades", tuple), lambda r: r[0], unit="us").key_by(lambda r: r[1])
    priced = trades.with_side(rate, default=(0, 0)).map(lambda both: (both[0][1], both[1][1]))
    priced.sink("priced")
    # Of two records of one time that of the first source comes first.
    made = flow.run(
        {"rates": [(1, 5), (2, 6), (3, 7)], "trades": [(1, "a"), (2, "b"), (3, "c"), (4, "d")]}, workers=workers
    )
    assert list(made["priced"]) == [("a", 5), ("b", 6), ("c", 7), ("d", 7)]


def test_a_window_without_panes_has_the_default() -> None:
    flow = fc.Flow("default")
    side = timed(flow, "side").window(w.fixed(microseconds=10)).count()
    timed(flow, "main").with_side(side, default=-1).sink("found")
    made = flow.run({"main": [(5, 1), (15, 1), (40, 1)], "side": [(3, 1), (40, 1)]})
    assert sorted(made["found"]) == [((5, 1), 1), ((15, 1), -1), ((40, 1), 1)]


def test_a_single_value_of_several_keys_is_an_error_of_the_item() -> None:
    flow = fc.Flow("several")
    side = timed(flow, "side").window(w.fixed(microseconds=10), emit="updates", panes="accumulating").count()
    timed(flow, "main").with_side(side).sink("found")
    with pytest.raises(OperationError, match=r"2 keys in .*(?s:.)*as a dict"):
        flow.run({"side": [(1, 1), (2, 2)], "main": [(20, 0), (20, 0), (3, 1)]})


def test_an_item_behind_the_lateness_of_the_side_is_dropped() -> None:
    records = {"main": [(1, 1), (50, 1), (30, 1), (2, 1)], "side": [(1, 1), (50, 1), (60, 1), (70, 1)]}
    made = looked_up("dict", lateness=10 * TICK).run(records, workers=2)
    assert [(each.value, each.reason) for each in made["dropped"]] == [((2, 1), "lateness")]
    assert list(made["late"]) == [(30, 1)]


def side_of(keyed: w.TimedKeyed[Any, Any], **settings: Any) -> w.Panes[Any, Any, Any]:
    return keyed.window(w.fixed(microseconds=10), **settings).count()


REFUSED: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "a stream": (lambda keyed: keyed.with_side(keyed._timed), "with_side after 'main-times' takes panes", "as it is"),
    "a form": (lambda keyed: keyed.with_side(side_of(keyed), form="set"), "form='set' is none", "'dict'"),
    "a default": (lambda keyed: keyed.with_side(side_of(keyed), form="list", default=1), "a list of nothing", "Leave"),
    "sessions": (
        lambda keyed: keyed.with_side(keyed.window(w.sessions(microseconds=3)).count()),
        "in sessions(microseconds=3) nothing says which window",
        "fixed",
    ),
    "windows again": (
        lambda keyed: keyed.with_side(side_of(keyed).per_window().count()),
        "nothing says which",
        "fixed",
    ),
    "retractions": (
        lambda keyed: (
            side_of(keyed, emit="updates", panes="retracting").key_by(lambda pane: 0).with_side(side_of(keyed))
        ),
        "with_side after 'count.panes': retractions come to it",
        "panes='accumulating'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_side_that_cannot_be_is_refused_when_it_is_drawn(name: str) -> None:
    draw, what, hint = REFUSED[name]
    with pytest.raises(GraphError) as caught:
        draw(timed(fc.Flow("refused"), "main"))
    assert what in caught.value.what
    assert hint in str(caught.value)
