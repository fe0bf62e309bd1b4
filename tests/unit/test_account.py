"""What is told of a job on several processes, over its epochs."""

from __future__ import annotations

from typing import Any

from flamecore.account import Account
from flamecore.members import Members
from flamecore.stats import NodeStats


class FakeNode:
    """Counts what it is told."""

    def __init__(self, counts: NodeStats) -> None:
        self.counts = counts

    def stats(self) -> NodeStats:
        return self.counts


def test_what_an_epoch_has_counted_counts_once_and_nothing_of_it_stays_under_way() -> None:
    members = Members("job")
    account = Account("words", members)
    own: Any = FakeNode(NodeStats(items_out={"counts": 5}, held_back=2, min_times={0: 7}))
    account.node = own
    members.reports["worker-0"] = NodeStats(items_in=9, in_flight=4, min_times={0: 6})
    before = account.stats(1.0)
    assert (before.items_in, before.items_out, before.in_flight, before.held_back) == (9, {"counts": 5}, 4, 2)
    assert before.min_time == 6

    account.close_epoch()  # the next one has not begun
    after = account.stats(2.0)
    assert (after.items_in, after.items_out, after.in_flight, after.held_back) == (9, {"counts": 5}, 0, 0)

    account.node = own
    members.reports["worker-0"] = NodeStats(items_in=1, in_flight=1)
    account.close_epoch()
    account.close_epoch()  # is none any more
    last = account.stats(3.0)
    assert (last.items_in, last.items_out, last.in_flight) == (10, {"counts": 10}, 0)
