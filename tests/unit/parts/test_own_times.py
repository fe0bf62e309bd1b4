"""The times that a worker knows by itself: of which vertices, how far, and what rears make of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.acker import Reporter, SingleListener
from flamecore.abc.source import Batch
from flamecore.model.failure import Cause, Failure
from flamecore.model.hashing import KEY_GROUPS, key_group, owners, stable_hash
from flamecore.model.messages import Items, MinTimes, Released, Report
from flamecore.model.meta import MIN_TIME, FrontId, GlobalTime, Meta
from flamecore.model.plan import Placement, Plan
from flamecore.model.settings import JobSettings
from flamecore.runtime.parts.collector import Collector
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.own_times import OwnTimes, closed_in
from flamecore.runtime.parts.promises import NO_MORE, Promises
from flamecore.runtime.parts.worker import Worker


class Deaf(Reporter):
    """Takes reports, and says nothing."""

    def ack(self, segment: int, time: int, xor: int) -> None: ...

    def heartbeat(self, front: int, time: int) -> None: ...

    def unregister(self, front: int) -> None: ...

    def flush(self, now: float) -> Sequence[tuple[int, Report]]:
        return ()


def at(time: int) -> bytes:
    return Meta(GlobalTime(time, 1)).order


def failure(time: int) -> Failure:
    return Failure(source=None, vertex="fold", record="r", key=None, cause=Cause("no"), at=GlobalTime(time, 1))


def plan_of(flow: fc.Flow, *sources: str, workers: int = 2, **settings: Any) -> Plan:
    """Return a plan with a front for each name, the first on the first worker, and all workers as owners."""
    names = tuple(FrontId(name, sources[:number].count(name)) for number, name in enumerate(sources))
    return Plan(flow.graph(), names, JobSettings(**{"workers": workers, "owners": workers, **settings}))


def plain() -> fc.Flow:
    flow = fc.Flow("plain")
    flow.source("a", int).map(abs, name="abs").sink("out")
    return flow


def keyed() -> fc.Flow:
    flow = fc.Flow("keyed")
    flow.source("a", int).key_by(lambda n: n).count(name="count").sink("out")
    return flow


def twice() -> fc.Flow:
    flow = fc.Flow("twice")
    once = flow.source("a", int).key_by(lambda n: n).count(name="once")
    once.key_by(lambda pair: pair[1]).count(name="twice").sink("out")
    return flow


def dealt() -> fc.Flow:
    flow = fc.Flow("dealt")
    flow.source("a", int).rebalance().map(abs, name="abs").sink("out")
    return flow


def round_and_round() -> fc.Flow:
    flow = fc.Flow("round")

    def body(numbers: fc.Stream[int]) -> tuple[fc.Stream[int], fc.Stream[int]]:
        less = numbers.map(lambda n: n - 1, name="less")
        return less.filter(lambda n: n > 0, name="again"), less.filter(lambda n: n <= 0, name="done")

    flow.source("a", int).loop(body).sink("out")
    return flow


def of_two() -> fc.Flow:
    flow = fc.Flow("of two")
    flow.source("a", int).merge(flow.source("b", int)).key_by(lambda n: n).count(name="count").sink("out")
    return flow


@pytest.mark.parametrize(
    ("made", "sources", "workers", "closed"),
    [
        (plain, "a", 2, {"a", "abs", "out"}),
        (plain, "aa", 2, {"a", "abs", "out"}),
        (keyed, "a", 2, {"a", "count", "out"}),
        (keyed, "a", 4, {"a", "count", "out"}),
        (keyed, "aa", 2, {"a"}),
        (twice, "a", 2, {"a", "once"}),
        (dealt, "a", 2, {"a", "abs", "out"}),
        (dealt, "aa", 2, {"a"}),
        (round_and_round, "a", 2, {"a"}),
        (of_two, "ab", 2, {"a", "b"}),
        (of_two, "ab", 1, {"a", "b", "count", "out"}),
    ],
)
def test_a_vertex_is_closed_if_its_items_come_from_one_worker(
    made: Callable[[], fc.Flow], sources: str, workers: int, closed: set[str]
) -> None:
    found = {vertex.name for vertex in closed_in(plan_of(made(), *sources, workers=workers)).senders}
    assert {name for name in found if not name.startswith(("merge", "rebalance"))} == closed


def test_the_worker_that_hosts_the_fronts_sends_the_items_of_a_key() -> None:
    senders = closed_in(plan_of(keyed(), "a")).senders
    assert {vertex.name: sender for vertex, sender in senders.items()} == {"a": None, "count": 0, "out": None}


def test_without_the_barrier_nothing_is_closed() -> None:
    assert closed_in(plan_of(plain(), "a", barrier=False)).senders == {}


def test_a_sink_is_known_as_far_as_the_slowest_front_has_promised() -> None:
    promises = Promises(Deaf(), {})
    own = OwnTimes(0, plan_of(plain(), "a", "a", "a"), promises)  # fronts 1 and 3 are here
    assert own.at_sink("out") == MIN_TIME
    promises.make(1, 5)
    assert not own.update(), "the other has promised nothing yet"
    promises.make(3, 3)
    assert own.update()
    assert own.at_sink("out") == 3
    promises.end(3, None)
    assert own.update()
    assert own.at_sink("out") == 5
    assert promises.made == {1: 5, 3: NO_MORE}
    promises.end(1, None)
    own.update()
    assert own.at_sink("out") == MIN_TIME, "the ackers say how far the job is when all have ended"


@pytest.mark.parametrize("settings", [{"barrier": False}, {"on_error": "skip"}, {"on_error": "dead_letter"}])
def test_a_sink_that_failures_may_pass_waits_for_the_ackers(settings: dict[str, Any]) -> None:
    promises = Promises(Deaf(), {})
    own = OwnTimes(0, plan_of(plain(), "a", **settings), promises)
    promises.make(1, 5)
    own.update()
    assert own.at_sink("out") == MIN_TIME
    assert not own.suffice


def test_a_worker_without_fronts_is_told_by_the_one_that_sends_it_all_items() -> None:
    plan = plan_of(keyed(), "a", workers=3)
    teller, told = (OwnTimes(worker, plan, Promises(Deaf(), {})) for worker in (0, 2))
    assert (teller.others, told.others) == ({1, 2}, set())
    assert OwnTimes(0, plan_of(keyed(), "a", workers=3, owners=1), Promises(Deaf(), {})).others == {1, 2}
    told.note("worker/0", 7)
    assert told.update()
    assert told.at_sink("out") == 7
    told.note("worker/0", 5)
    assert not told.update(), "it never goes back"
    told.note("worker/1", 9)
    told.note("client/9", 9)
    assert not told.update(), "one sends it nothing, and the other does not exist"
    assert told.suffice
    told.note("worker/0", NO_MORE)
    told.update()
    assert not told.suffice, "all of that has ended, and the ackers say how far the job is"


def test_the_times_suffice_while_all_that_opens_may_still_grow_by_them() -> None:
    promises = Promises(Deaf(), {})
    own = OwnTimes(0, plan_of(plain(), "a"), promises)
    assert not own.suffice
    promises.make(1, 5)
    own.update()
    assert own.suffice
    promises.end(1, None)
    own.update()
    assert not own.suffice, "it has ended, and the ackers say how far the job is"


def test_the_times_do_not_suffice_for_a_sink_without_fronts_here() -> None:
    flow = plain()
    flow.source("b", int).sink("other")
    promises = Promises(Deaf(), {})
    own = OwnTimes(0, plan_of(flow, "a", "b"), promises)  # the second front is on the other worker
    promises.make(1, 5)
    own.update()
    assert (own.at_sink("out"), own.at_sink("other"), own.suffice) == (5, MIN_TIME, False)


def test_a_sink_can_be_left_out() -> None:
    promises = Promises(Deaf(), {})
    own = OwnTimes(0, plan_of(plain(), "a"), promises)
    own.leave_out("out")
    promises.make(1, 5)
    own.update()
    assert (own.at_sink("out"), own.suffice) == (MIN_TIME, False)


class Host:
    """The worker that hosts the only front, of two."""

    def __init__(self, flow: fc.Flow) -> None:
        self.plan = plan_of(flow, "a")
        segments = len(self.plan.segments.inbound)
        front = Front(self.plan.fronts[0], 1, describe=lambda at: f"line {at}")
        self.worker = Worker(
            0, self.plan, reporter=Deaf(), listener=SingleListener(segments, 0), random=Random(1), fronts=[front]
        )

    def admit(self, *values: Any) -> list[Any]:
        self.worker.admit(1, Batch(values, range(len(values))), 0.0)
        return self.flush()

    def min_time(self, time: int) -> list[Any]:
        self.worker.receive("acker/0", MinTimes((time,) * len(self.plan.segments.inbound)))
        return self.flush()

    def flush(self) -> list[Any]:
        return [message for to, message in self.worker.flush(0.0) if to == "rear/out"]


def mine(count: int) -> list[int]:
    return [n for n in range(1000) if owners(2)[key_group(stable_hash(n))] == 0][:count]


def test_outputs_leave_with_the_records_they_are_of() -> None:
    host = Host(keyed())
    one, other = mine(2)
    (word,) = host.admit(one, other)
    assert [payload for _, payload in word.items] == [(one, 1), (other, 1)]
    assert (word.time, word.heard) == (2, 0)
    assert host.min_time(2) == [], "nothing has failed, so no rear waits for it"
    assert host.worker.min_time == 2


def test_with_the_items_the_others_are_told_how_far_they_are_complete() -> None:
    host = Host(keyed())
    theirs = [n for n in range(100) if owners(2)[key_group(stable_hash(n))] == 1]
    host.worker.admit(1, Batch(theirs[:2], range(2)), 0.0)
    out = dict(host.worker.flush(0.0))
    assert (len(out["worker/1"].pieces), out["worker/1"].until) == (1, 2)
    host.worker.admit(1, Batch(mine(1), range(1)), 0.0)
    out = dict(host.worker.flush(0.0))
    assert out["worker/1"] == Items([], (), 3), "also where there are none"
    assert "worker/1" not in dict(host.worker.flush(0.0))


def test_what_merged_fronts_make_leaves_at_once() -> None:
    plan = dataclasses.replace(
        plan_of(keyed(), "a", "a", advance=False), placement=Placement((0, 0), (0,) * KEY_GROUPS)
    )
    fronts = [Front(name, number) for number, name in enumerate(plan.fronts, 1)]
    segments = len(plan.segments.inbound)
    worker = Worker(0, plan, reporter=Deaf(), listener=SingleListener(segments, 0), random=Random(1), fronts=fronts)
    for number in (1, 2):
        worker.admit(number, Batch([1, 2, 3], range(3)), 0.0)
    words = [message for to, message in worker.flush(0.0) if to == "rear/out"]
    assert worker.due() == 0.0
    words += [message for to, message in worker.flush(0.0) if to == "rear/out"]
    assert [len(word.payloads) for word in words if word.payloads] == [6]
    assert worker.due() is None


def test_states_in_a_row_open_one_after_the_other_without_a_message() -> None:
    flow = fc.Flow("row")
    stream: fc.Stream[Any] = flow.source("a", int)
    for _ in range(4):
        stream = stream.key_by(lambda value: value).count()
    stream.sink("out")
    plan = plan_of(flow, "a", owners=1, advance=False)
    segments = len(plan.segments.inbound)
    worker = Worker(1, plan, reporter=Deaf(), listener=SingleListener(segments, 0), random=Random(1))
    first = next(vertex.index for vertex in plan.graph.vertices if vertex.stateful)
    worker.receive("worker/0", Items([(first, 0, True, [at(time) for time in range(9)], [*range(9)])], (), 9))
    found: list[Any] = []
    for _ in range(9):
        found += [message for to, message in worker.flush(0.0) if to == "rear/out"]
        if worker.due() is None:
            break
        assert worker.due() == 0.0
    assert [(word.time, len(word.payloads)) for word in found if word.payloads] == [(9, 9)]


def failing() -> fc.Flow:
    flow = fc.Flow("failing")
    flow.source("a", int).key_by(lambda n: n).fold(0, lambda total, n: total + 1 // (n - 500), name="fold").sink("out")
    return flow


def test_a_worker_that_holds_a_failure_is_not_ahead() -> None:
    flow = fc.Flow("failing")
    flow.source("a", int).map(lambda n: 1 // n, name="map").sink("out")
    host = Host(flow)
    assert [word.time for word in host.admit(1)] == [1]
    assert host.admit(0, 2) == []
    assert [(word.time, word.heard, word.failures) for word in host.min_time(1)] == [(1, None, [])]
    (word,) = host.min_time(3)
    assert (word.time, word.heard, len(word.failures)) == (3, None, 1)


def test_after_a_failure_from_elsewhere_it_says_what_it_has_heard() -> None:
    host = Host(failing())
    one, other = mine(2)
    host.admit(one, other)
    index = len(host.plan.graph.vertices) + next(v.index for v in host.plan.graph.vertices if v.name == "fold")
    order, failed = at(1), failure(1)
    host.worker.receive("worker/1", Items([(index, 0, True, [order], [failed])], ()))
    host.flush()
    (word,) = host.min_time(1)
    assert (word.time, word.heard, word.failures) == (2, 1, [])
    (word,) = host.min_time(2)
    assert (word.time, word.heard) == (2, None)
    assert [found.at.time for _, found in word.failures] == [1]


def test_a_worker_says_where_it_has_sent_a_failure() -> None:
    plan = plan_of(failing(), "a")
    segments = len(plan.segments.inbound)
    worker = Worker(1, plan, reporter=Deaf(), listener=SingleListener(segments, 0), random=Random(1))
    fold = next(vertex.index for vertex in plan.graph.vertices if vertex.name == "fold")
    worker.receive("worker/0", Items([(fold, 0, True, [at(3)], [500])], ()))
    worker.receive("acker/0", MinTimes((4,) * segments))
    out: dict[str, Any] = dict(worker.flush(0.0))
    assert len(out["worker/0"].pieces) == 1
    assert out["rear/out"] == Released(1, 4, [], [], [], None, ((3, 0),))


def test_a_rear_waits_until_the_host_has_heard_of_a_failure() -> None:
    collector = Collector("out", 2)
    assert collector.receive(Released(0, 9, [at(1), at(3), at(5)], [1, 3, 5], [], 2)) is None
    complete = collector.receive(Released(1, 9, [at(4)], [4], [], None, ((3, 0),)))
    assert complete is not None
    assert (complete.time, complete.payloads) == (3, [1])
    assert collector.receive(Released(0, 9, [], [], [], 3)) is None
    complete = collector.receive(Released(0, 9, [], [], [(at(3), failure(3))], 4))
    assert complete is not None
    assert (complete.time, complete.payloads, complete.failure) == (3, [], failure(3))


def test_a_rear_goes_on_where_the_failure_was_taken_back() -> None:
    collector = Collector("out", 2)
    collector.receive(Released(0, 9, [at(1), at(3), at(5)], [1, 3, 5], [], 0))
    collector.receive(Released(1, 9, [at(4)], [4], [], None, ((3, 0),)))
    complete = collector.receive(Released(0, 9, [], [], [], 4))
    assert complete is not None
    assert (complete.time, complete.payloads, complete.failure) == (9, [3, 4, 5], None)
