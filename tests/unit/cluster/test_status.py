"""What is told of a job on several processes, over its epochs."""

from __future__ import annotations

from typing import Any

from flamecore.runtime.cluster.membership import Membership
from flamecore.runtime.cluster.status import JobStatus
from flamecore.runtime.tasks.stats import NodeStats


class FakeNode:
    """Counts what it is told."""

    def __init__(self, counts: NodeStats) -> None:
        self.counts = counts

    def stats(self) -> NodeStats:
        return self.counts


def test_counts_of_an_ended_epoch_count_once_and_leave_nothing_in_flight() -> None:
    members = Membership("job")
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
