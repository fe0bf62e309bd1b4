"""Counters are declared once: sums, what is past, and what progress and the log show follow."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

import flamecore as fc
from flamecore import events
from flamecore.cli.progress import Lines, Screen, summary
from flamecore.model.meta import MAX_TIME, MIN_TIME
from flamecore.runtime.parts.counters import Counters, JobStats, NodeStats, meanings, merged, summed

BY_NUMBER = ("min_times", "latency", "busy_s", "cpu_s", "up_s", "read_s", "read", "key_groups", "group_s", "taken")
TEXTS = ("held_by", "held_for", "released_by")
NAMES = [each.name for each in fields(NodeStats)]


def value(name: str, count: int) -> Any:
    """Return a value of a counter that is not empty."""
    if name == "first_failed":
        return {count: f"record {count}"}
    if name in TEXTS:
        return {"a": f"front {count}"}
    if name == "hot_keys":
        return {count: f"key {count}"}
    if name == "unfinished":
        return {7: f"half {count}"}
    return {count: count} if name in BY_NUMBER else {"a": count} if meanings(NodeStats)[name].key else count


@pytest.mark.parametrize("name", NAMES)
def test_every_counter_of_a_part_is_one_of_its_node_and_survives_the_wire(name: str) -> None:
    parts = [NodeStats(**{name: value(name, 3)}), NodeStats(), NodeStats(**{name: value(name, 4)})]
    whole = getattr(merged(parts), name)
    if name == "first_failed":
        assert whole == {3: "record 3"}
    elif name == "hot_keys":
        assert whole == {3: "key 3", 4: "key 4"}
    elif name == "unfinished":
        assert whole == {7: "half 4"}, "the last one that was said"
    elif name in BY_NUMBER:
        assert whole == {3: 3, 4: 4}
    elif name in ("watermarks", "marks"):
        assert whole == {"a": 3}, "the least"
    elif name in TEXTS:
        assert whole == {"a": "front 4"}
    else:
        assert whole == ({"a": 7} if meanings(NodeStats)[name].key else 7)
    sent = msgspec.to_builtins(parts[0])
    assert getattr(msgspec.convert(sent, NodeStats, strict=False), name) == value(name, 3)


@pytest.mark.parametrize("name", [each.name for each in fields(Counters)])
def test_every_counter_of_nodes_is_one_of_the_job_and_in_its_log(name: str) -> None:
    stats = summed([NodeStats(**{name: value(name, 1)})] * 2, 1.0)
    assert dict(stats.rows())[name]
    with capture_logs() as lines:
        Lines("job", 1.0).end(events.JOB_ENDED, stats)
    assert any(key.partition(".")[0] == name for key in lines[0])
    if meanings(JobStats)[name].shown:
        at = " at a" if meanings(JobStats)[name].key else ""
        assert f"2 {name.replace('_', ' ')}{at}" in summary(stats)


def test_what_is_under_way_ends_with_its_parts() -> None:
    full = NodeStats(**{name: value(name, 2) for name in NAMES})
    past = full.past()
    ended = {name for name in NAMES if getattr(past, name) != getattr(full, name)}
    present = {"in_flight", "held_back", "waiting", "min_times", "watermarks", "marks", "pending", "held", "hot_keys"}
    assert ended == {*present, *TEXTS}
    assert not any(getattr(past, name) for name in ended)


def test_where_marks_stand_is_told_at_the_end_of_the_job() -> None:
    full = NodeStats(**{name: value(name, 2) for name in NAMES})
    last = full.at_end()
    ended = {name for name in NAMES if getattr(last, name) != getattr(full, name)}
    assert ended == {"in_flight", "held_back", "waiting", "min_times", "hot_keys"}


def test_a_job_of_no_node_has_counted_nothing() -> None:
    assert summed([], 2.0) == JobStats(elapsed_s=2.0)


def test_sinks_without_outputs_are_left_out() -> None:
    flow = fc.Flow("none")
    flow.source("numbers", int).filter(lambda n: n > 5).sink("out")
    assert flow.run({"numbers": [1, 2]}).stats.items_out == {}


def test_what_a_later_epoch_has_finished_is_no_longer_said() -> None:
    earlier, later = NodeStats(unfinished={1: "half", 2: "another"}).past(), NodeStats(unfinished={1: ""})
    assert summed([earlier, later], 1.0).unfinished == {2: "another"}


def test_rows_have_times_as_text() -> None:
    """Neither microseconds, nor the number that stands for the end."""
    at = 1_700_000_000_000_000
    stats = JobStats(
        watermarks={"a": at, "b": MAX_TIME}, marks={"a": MIN_TIME + 1}, min_time=at, first_failed={at: "x"}
    )
    rows = dict(stats.rows())
    assert rows["watermarks"] == {"a": "2023-11-14T22:13:20+00:00", "b": "end"}
    assert rows["marks"] == {"a": "beginning"}
    assert rows["min_time"] == "2023-11-14T22:13:20+00:00"
    assert rows["first_failed"] == {"2023-11-14T22:13:20+00:00": "x"}
    assert dict(JobStats(min_time=7).rows())["min_time"] == 7, "a count of records stays one"


def test_the_live_table_has_watermarks_as_text() -> None:
    table = Screen("job")._table(JobStats(watermarks={"a": 1_700_000_000_000_000, "b": MAX_TIME}))
    cells = [str(cell) for column in table.columns for cell in column.cells]
    assert "2023-11-14T22:13:20+00:00" in cells
    assert "end" in cells
