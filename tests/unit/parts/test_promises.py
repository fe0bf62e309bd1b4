"""Promises of fronts: held back until their times are stored, and their records have run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from flamecore.abc.acker import Reporter
from flamecore.model.messages import Report
from flamecore.model.meta import FrontId
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.front_merge import FrontMerge
from flamecore.runtime.parts.promises import Promises
from flamecore.runtime.state.journal import GivenTimes


class Log(Reporter):
    """Writes down what is promised."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def ack(self, segment: int, time: int, xor: int) -> None:
        raise AssertionError("promises ack nothing")

    def heartbeat(self, front: int, time: int) -> None:
        self.calls.append(("heartbeat", front, time))

    def unregister(self, front: int) -> None:
        self.calls.append(("end", front, 0))

    def flush(self, now: float) -> Sequence[tuple[int, Report]]:
        return []


class Bench:
    """The promises of fronts 1 and 2, whose records wait for each other if they are merged."""

    def __init__(self, *, merged: bool = False) -> None:
        self.log = Log()
        self.fronts = {number: Front(FrontId("in", number - 1), number) for number in (1, 2)}
        merge_of: Mapping[int, FrontMerge] = {}
        if merged:
            merge_of = dict.fromkeys(self.fronts, FrontMerge(self.fronts))
        self.merge_of = merge_of
        self.promises = Promises(self.log, merge_of)

    def read(self, number: int, *values: object) -> int:
        """Give records of a front their times; return the next one."""
        front = self.fronts[number]
        self.merge_of[number].add(number, front.stamp(range(len(values)), 0.0), list(values))
        return front.next_time


def test_an_end_waits_for_all_given_times() -> None:
    bench = Bench()
    bench.promises.give(GivenTimes(1, 0, 3), 3)
    bench.promises.give(GivenTimes(1, 3, 2), 5)
    bench.promises.end(1, None)
    assert bench.promises.take_given_times() == [GivenTimes(1, 0, 3), GivenTimes(1, 3, 2)]
    assert bench.promises.given_times == []
    assert bench.log.calls == []
    bench.promises.confirm(1, 3)
    assert bench.log.calls == [("heartbeat", 1, 3)]
    assert bench.promises.is_unstored(1)
    bench.promises.confirm(1, 5)
    assert bench.log.calls[1:] == [("heartbeat", 1, 5), ("end", 1, 0)]
    assert not bench.promises.is_unstored(1)


@pytest.mark.parametrize("last", [None, 4])
def test_an_end_waits_for_records_that_wait_for_another_front(last: int | None) -> None:
    bench = Bench(merged=True)
    bench.promises.make(1, bench.read(1, "a", "b"))
    bench.promises.end(1, last)
    bench.promises.tell()
    assert bench.log.calls == [("heartbeat", 1, 0)], "its first record waits for front 2"
    bench.promises.make(2, bench.read(2, "c", "d", "e"))
    merge = bench.merge_of[1]
    assert sum(len(records.values) for records in merge.take(10)) == 4
    bench.promises.tell()
    ends = [("heartbeat", 1, 2), *([] if last is None else [("heartbeat", 1, last)]), ("end", 1, 0)]
    assert [call for call in bench.log.calls if call[1] == 1][1:] == ends
    bench.promises.tell()
    assert [call for call in bench.log.calls if call[1] == 1][1:] == ends, "once"


def test_a_promise_that_is_raised_while_its_records_wait_is_made_once() -> None:
    bench = Bench(merged=True)
    bench.promises.make(1, bench.read(1, "a"))
    bench.promises.make(1, bench.read(1, "b"))
    bench.promises.tell()
    bench.promises.make(2, bench.read(2, *"cde"))
    bench.merge_of[1].take(10)
    bench.promises.tell()
    assert [time for _, number, time in bench.log.calls if number == 1] == [0, 2]


def test_a_batch_that_runs_before_the_worker_reports_is_one_promise() -> None:
    bench = Bench(merged=True)
    for number in (1, 2):
        bench.promises.make(number, bench.read(number, *"abc"))
    bench.merge_of[1].take(10)
    bench.promises.tell()
    assert sorted(bench.log.calls) == [("heartbeat", 1, 3), ("heartbeat", 2, 3)]
