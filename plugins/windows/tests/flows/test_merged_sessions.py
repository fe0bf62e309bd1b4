"""The order of items in sessions that a late item merges: the sessions in the order of their times, then the item."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.model.ordered import Ordered
from flamecore.runtime.operators.ordered import OrderedOperator
from flamecore.runtime.operators.table import OPERATORS
from flamestream_windows import triggers as t
from flamestream_windows import watermarks

Seeds = Callable[..., range]
TICK = timedelta(microseconds=1)
GAP = 5
Record = tuple[int, str, int | None]
"""(time, name, the watermark behind it)."""

EMITS: dict[str, Any] = {
    "final": "final",
    "updates": "updates",
    "two by two": t.at_watermark(early=t.count(2), late=t.count(1)),
}


@dataclass
class Session:
    """A session of the oracle."""

    start: int
    end: int
    items: list[str] = field(default_factory=list)
    emitted: bool = False


def wanted(records: list[Record], emit: str, lateness: int) -> list[list[str]]:
    """Return the panes of one key by plain lists, for `final` and `updates`."""
    sessions: list[Session] = []
    panes: list[list[str]] = []
    now = -(10**9)
    for at, name, mark in records:
        if at + GAP - 1 + lateness >= now:
            near = [session for session in sessions if session.start < at + GAP and at < session.end]
            near.sort(key=lambda session: (not session.emitted, session.start))
            joined = Session(min([at, *(one.start for one in near)]), max([at + GAP, *(one.end for one in near)]))
            for session in near:
                joined.items += session.items
                sessions.remove(session)
            joined.items.append(name)
            sessions.append(joined)
            if emit == "updates":
                panes.append([*joined.items])
                joined.emitted = True
        now = max(now, now if mark is None else mark)
        over = [session for session in sessions if session.end + lateness <= now]
        for session in sorted(over, key=lambda session: session.end):
            sessions.remove(session)
            panes += [session.items] * (emit == "final")
    rest = sorted(sessions, key=lambda session: session.end)
    return panes + [session.items for session in rest] * (emit == "final")


def found(records: list[Record], emit: str, lateness: int, workers: int, in_flight: int) -> list[list[str]]:
    flow = fc.Flow("sessions")
    timed = w.event_time(
        flow.source("s", tuple),
        lambda record: record[0],
        unit="us",
        watermark=watermarks.from_records(lambda record: record[2]),
        step=TICK,
    )
    keyed = timed.map(lambda record: record[1]).key_by(lambda name: 0)
    panes = keyed.window(
        w.sessions(microseconds=GAP), lateness=lateness * TICK, emit=EMITS[emit], panes="accumulating"
    ).collect()
    panes.values().sink("out")
    return flow.run({"s": records}, workers=workers, settings={"job.max_in_flight": in_flight})["out"]


@pytest.fixture(params=["items", "columns"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have items worked on one by one, or together where they can be."""
    if request.param == "items":
        monkeypatch.setitem(OPERATORS, Ordered, OrderedOperator)
    return str(request.param)


GIVEN: list[Record] = [(0, "a", None), (8, "b", None), (1, "c", None), (9, "d", None), (4, "e", None)]


@pytest.mark.parametrize("in_flight", [1, 2, 5000])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("emit", EMITS)
def test_merged_sessions_have_their_items_by_session_and_then_the_item_between(
    form: str, emit: str, workers: int, in_flight: int
) -> None:
    assert found(GIVEN, emit, 0, workers, in_flight)[-1] == ["a", "c", "b", "d", "e"]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_session_with_a_pane_comes_before_one_without(form: str, workers: int) -> None:
    records: list[Record] = [(0, "a", None), (8, "b", None), (9, "c", None), (4, "d", None)]
    panes = found(records, "two by two", 0, workers, 5000)
    assert panes[:2] == [["b", "c"], ["b", "c", "a", "d"]]


@pytest.mark.parametrize("workers", [1, 3])
def test_sessions_merged_within_the_lateness_have_their_items_in_the_same_order(form: str, workers: int) -> None:
    records: list[Record] = [(8, "b", None), (0, "a", 13), (4, "late", None), (9, "c", 40)]
    assert found(records, "final", 20, workers, 5000) == [["a", "b", "late", "c"]]


@pytest.mark.parametrize("emit", ["final", "updates"])
def test_drawn_sessions_have_their_items_in_the_order_of_plain_lists(form: str, emit: str, seeds: Seeds) -> None:
    merged = 0
    for seed in seeds(15):
        rng = random.Random(f"sessions {seed}")
        lateness, mark, records = rng.choice((0, 0, 7, 30)), 0, list[Record]()
        for place in range(rng.randint(5, 40)):
            mark = max(mark, place - rng.randrange(25))
            records.append((place + rng.randrange(-20, 20), f"{place}", mark if rng.random() < 0.3 else None))
        panes = wanted(records, emit, lateness)
        merged += any(pane != sorted(pane, key=int) for pane in panes)
        for workers, in_flight in ((1, 5000), (1, 1), (3, rng.randint(2, 20))):
            assert found(records, emit, lateness, workers, in_flight) == panes, f"seed {seed}"
    assert merged
