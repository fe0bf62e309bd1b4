"""Cases as data, played as records of a flow on three workers: what each says comes out, in its order.

Watermarks are said by records of their own. So is the clock, by how many records there are: the wall clock stands
still, and each record comes a microsecond after the one before. A tick of a case is as many records as a case may have.

A case that is wrong on purpose is wrong in a flow, too. A trigger that is switched by hand cannot be said, as triggers
see records, watermark and clock; nor can a look at a window for no other reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.model.clock import WALL_CLOCK
from flamestream_windows import watermarks
from flamestream_windows.engine.values import Firing
from flamestream_windows.testing.cases import Case, Switch, matches, multiset, strategy_of, window_of

Record = tuple[str, Any, int, Any]
"""("element", key, time, value), or ("mark", None, 0, watermark)."""

NONE: tuple[Any, ...] = ()
TICK = 64
UNSAID = {
    "manual": "triggers see records, watermark and clock, and nobody switches one by hand",
    "poke": "a trigger is looked at when a record, the watermark or the clock makes a difference to it",
}


def why_not(case: Case) -> str:
    """Return why a flow cannot say a case; empty if it can."""
    if "align_to" in json.dumps(case["windowing"]):
        return (
            "its elements come at the very moment to which times are rounded up, and each record has a time of its own"
        )
    return next((UNSAID[event["op"]] for event in events_of(case) if event["op"] in UNSAID), "")


def events_of(case: Case) -> Sequence[Case]:
    """Return the events of a case in which triggers are looked at after each element."""
    events: Sequence[Case] = case.get("per_element_events", case.get("spec_events", case["events"]))
    return events


def records_of(case: Case) -> tuple[list[Record], bool]:
    """Return the records of a case, and whether its input ends."""
    records: list[Record] = []
    ends, clock, said = False, 0, 0
    for event in events_of(case):
        if event["op"] == "clock":
            clock = event["to"] if "to" in event else clock + event["advance_by"]
            records += [("nothing", None, 0, None)] * (clock * TICK + said - len(records))
        elif event["op"] == "elements":
            records += [("element", each.get("key", ""), each["ts"], each["value"]) for each in event["bundle"]]
        elif event["op"] == "finish" or (event["op"] == "watermark" and event["ts"] == "+inf"):
            ends = True
        elif event["op"] == "watermark":
            records.append(("mark", None, 0, event["ts"]))
        # Each time of a record is above those before within its tick, and so are the times for which it has panes wait.
        said = len(records) - clock * TICK + 1
        assert said < TICK
    return records, ends


def in_ticks(spec: Any) -> Any:
    """Return the words of a case with its processing times in records."""
    if isinstance(spec, list):
        return [in_ticks(each) for each in spec]
    if not isinstance(spec, dict):
        return spec
    return {
        name: value * TICK if name in ("delay", "align_to") and value is not None else in_ticks(value)
        for name, value in spec.items()
    }


def played(case: Case, workers: int) -> tuple[list[tuple[int, Any]], list[w.Dropped[Any]]]:
    """Return the panes of a case with their times, and what was dropped, as a flow gives them."""
    records, ends = records_of(case)
    spec = in_ticks(case["windowing"])
    flow = fc.Flow("case")
    said = watermarks.from_records(lambda record: record[3] if record[0] == "mark" else None)
    timed = w.event_time(
        flow.source("records", tuple),
        lambda record: record[2],
        unit="us",
        watermark=said,
        step=timedelta(microseconds=1),
        at_end="close" if ends else "keep",
    )
    elements = timed.filter(lambda record: record[0] == "element").key_by(lambda record: record[1])
    windowed = w.Windowed(elements, strategy_of(spec, Switch()))
    panes = windowed.fold(NONE, lambda values, record: (*values, record[3]), merge=lambda one, other: one + other)
    panes._bare().sink("panes")  # with their times
    panes.dropped.sink("dropped")
    stands_still = WALL_CLOCK.set(lambda: 0)
    try:
        made = flow.run({"records": records}, workers=workers, settings={"job.clock": "wall"})
    finally:
        WALL_CLOCK.reset(stands_still)
    return [(at, pane) for _, at, pane in made["panes"]], list(made["dropped"])


def hold_against(case: Case, panes: list[tuple[int, Any]], dropped: list[w.Dropped[Any]]) -> None:
    """Hold what came out against the expectations of a case."""
    left = [
        (pane.key, Firing(pane.value, pane.window, at, pane.timing, pane.index, -2, pane.last, pane.retraction))
        for at, pane in panes
    ]
    for event in events_of(case):
        if event["op"] == "expect":
            chunk, left = left[: len(event["panes"])], left[len(event["panes"]) :]
            for each in event["panes"]:
                wanted = {name: value for name, value in each.items() if name != "nonspeculative_index"}
                if wanted.get("key", "") is None:
                    wanted["key"] = ""
                found = next((pane for pane in chunk if matches(wanted, *pane)), None)
                assert found is not None, f"{wanted} is not among {chunk}"
                chunk.remove(found)
            assert not chunk
        elif event["op"] == "expect_total":
            total: dict[Any, list[list[str]]] = {}
            for key, firing in left:
                total.setdefault((key, firing.window), []).append(multiset(firing.value))
            assert total == {
                (each.get("key") or "", window_of(each["window"])): [multiset(values) for values in each["panes"]]
                for each in event["panes_by_window"]
            }
            left = []
    assert not left
    last = {event["reason"]: event["total"] for event in events_of(case) if event["op"] == "expect_dropped"}
    counts = Counter({"dropped_lateness": 0, "dropped_closed_window": 0, "dropped_no_window": 0})
    counts.update(each.reason.replace(" ", "_") for each in dropped)
    for reason, total_dropped in last.items():
        assert counts[reason] == total_dropped


def play(case: Case) -> None:
    """Play a case on three workers, and on one."""
    panes, dropped = played(case, 3)
    assert played(case, 1) == (panes, dropped)
    if "must_fail_with" in case:
        with pytest.raises(AssertionError):
            hold_against(case, panes, dropped)
    else:
        hold_against(case, panes, dropped)


def test_a_case_of_the_plugin_holds_in_a_flow(own_case: dict[str, Any]) -> None:
    if why := why_not(own_case):
        pytest.skip(why)
    play(own_case)


def test_a_shared_case_holds_in_a_flow(shared_case: dict[str, Any]) -> None:
    if why := why_not(shared_case):
        pytest.skip(why)
    play(shared_case)


def test_flows_can_say_most_cases(own_cases: list[dict[str, Any]]) -> None:
    assert sum(not why_not(case) for case in own_cases) == len(own_cases) - 2
