"""The status of a job on several processes, over its epochs."""

from __future__ import annotations

from typing import Any

import flamecore as fc
from flamecore.model.meta import FrontId
from flamecore.model.plan import Plan
from flamecore.model.settings import JobSettings
from flamecore.runtime.cluster.membership import Membership
from flamecore.runtime.cluster.status import JobStatus, homes_of
from flamecore.runtime.parts.counters import NodeStats

NAMES = ("first", "second", "third", "fourth")


class FakeNode:
    """Counts what it is told."""

    def __init__(self, counts: NodeStats) -> None:
        self.counts = counts

    def stats(self) -> NodeStats:
        return self.counts


def test_counts_of_an_ended_epoch_count_once_and_leave_nothing_in_flight() -> None:
    members = Membership()
    status = JobStatus("words", members)
    own: Any = FakeNode(NodeStats(items_out={"counts": 5}, held_back=2, min_times={0: 7}))
    status.node = own
    members.reports["worker-0"] = NodeStats(items_in=9, in_flight=4, min_times={0: 6})
    before = status.stats(1.0)
    assert (before.items_in, before.items_out, before.in_flight, before.held_back) == (9, {"counts": 5}, 4, 2)
    assert before.min_time == 6

    status.close_epoch()  # the next one has not begun
    after = status.stats(2.0)
    assert (after.items_in, after.items_out, after.in_flight, after.held_back) == (9, {"counts": 5}, 0, 0)

    status.node = own
    members.reports["worker-0"] = NodeStats(items_in=1, in_flight=1)
    status.close_epoch()
    status.close_epoch()  # is none any more
    last = status.stats(3.0)
    assert (last.items_in, last.items_out, last.in_flight) == (10, {"counts": 10}, 0)


def test_the_homes_of_cycles_are_told_by_worker() -> None:
    def body(stream: fc.Stream[int]) -> tuple[fc.Stream[int], ...]:
        return stream.key_by(lambda n: n).count().map(lambda pair: pair[0] - 1).branch(lambda n: n > 0)

    flow = fc.Flow("cycles")
    numbers = flow.source("numbers", int)
    for name in NAMES:
        numbers.loop(body, name=name).sink(name)  # type: ignore[arg-type]
    numbers.key_by(lambda n: n).fold(0, lambda total, n: total + n).sink("totals")
    homes = homes_of(Plan(flow.graph(), (FrontId("numbers", 0),), JobSettings(workers=3)))
    assert sorted(name for cycles in homes.values() for name in cycles) == sorted(NAMES)
    assert len(homes) > 1
    assert homes_of(Plan(flow.graph(), (FrontId("numbers", 0),))) == {"worker/0": NAMES}
