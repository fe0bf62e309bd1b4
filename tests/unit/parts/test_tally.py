"""The rear of a sink in partitions says how far the output is complete."""

from __future__ import annotations

from flamecore.model.failure import Cause, Failure
from flamecore.model.messages import Released
from flamecore.model.meta import GlobalTime
from flamecore.runtime.parts.collector import Complete
from flamecore.runtime.parts.tally import PartitionTally


def stored(worker: int, time: int, last: int | None = None, count: int = 1) -> Released:
    """Return the word of a worker that has stored outputs, the last of a given time."""
    orders = [] if last is None else [GlobalTime(last, 1).encode() + b"\x05"]
    return Released(worker, time, orders, [count] if orders else [], [])


def test_outputs_are_complete_below_what_all_workers_have_stored() -> None:
    tally = PartitionTally("out", 2)
    assert tally.receive(stored(0, 10, last=7, count=3)) is None
    complete = tally.receive(stored(1, 5))
    assert complete == Complete(5, [3], None, None, 5), "worker 1 may still store outputs of 5 and 6"
    assert tally.receive(stored(1, 12)) == Complete(10, [0], None, None, 8), "not beyond the last output"
    assert tally.receive(stored(0, 12)) == Complete(12, ()), "there is nothing to tell the sink"


def test_an_output_counts_once_it_is_reached() -> None:
    tally = PartitionTally("out", 2, delivered_up_to=20)
    tally.receive(stored(0, 30, last=25, count=4))
    assert tally.receive(stored(1, 10)) == Complete(10, ()), "all workers repeat what the sink holds below 20"
    assert tally.receive(stored(1, 30, last=22, count=2)) == Complete(30, [6], None, None, 26)


def test_a_failed_record_ends_the_output_exactly_there() -> None:
    tally = PartitionTally("out", 2)
    tally.receive(stored(0, 10, last=9, count=5))
    failed = Failure(None, "map", "record", None, Cause("no"), at=GlobalTime(6, 1))
    complete = tally.receive(Released(1, 10, [], [], [(failed.at.encode(), failed)]))
    assert complete == Complete(6, [5], failed, None, 6), "outputs above are there, and do not count"
