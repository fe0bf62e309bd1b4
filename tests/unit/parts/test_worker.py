"""One worker: what it makes of records and messages, what it sends and in which order, what it keeps and forgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.acker import Reporter, SingleListener
from flamecore.abc.source import Batch, Rejected
from flamecore.errors import JobError
from flamecore.model.failure import Failure
from flamecore.model.graph import Graph
from flamecore.model.hashing import key_group, owners, stable_hash
from flamecore.model.messages import Ack, Delivered, Items, MinTimes, Released, Report
from flamecore.model.meta import FrontId, GlobalTime, Meta, encode_time
from flamecore.model.plan import Plan
from flamecore.model.settings import JobSettings
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.operators.drift import DriftOperator
from flamecore.runtime.operators.grouping import GroupingOperator
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.worker import Worker


class Log(Reporter):
    """Writes down what is reported; hands it out, in the order it came, as one report a flush."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def ack(self, segment: int, time: int, xor: int) -> None:
        self.calls.append(("ack", segment, time, xor))

    def heartbeat(self, front: int, time: int) -> None:
        self.calls.append(("heartbeat", front, time))

    def unregister(self, front: int) -> None:
        self.calls.append(("end", front))

    def flush(self, now: float) -> Sequence[tuple[int, Report]]:
        return [(0, Report(0))] if self.calls else []

    def taken(self) -> list[tuple[Any, ...]]:
        calls, self.calls = self.calls, []
        return calls


class Bench:
    """A worker with a reporter that writes everything down, and one front of number 1 if it is worker 0."""

    def __init__(self, graph: Graph, index: int = 0, workers: int = 1, log: Log | None = None, **settings: Any) -> None:
        names = tuple(FrontId(source.name, 0) for source in graph.sources)
        self.plan = Plan(graph, names, JobSettings(**{"workers": workers, "owners": workers, **settings}))
        self.log = log or Log()
        fronts = [
            Front(name, number, clock=self.plan.settings.clock, describe=lambda at: f"line {at}")
            for number, name in enumerate(names, 1)
            if self.plan.host_of(number) == index
        ]
        self.worker = Worker(
            index,
            self.plan,
            reporter=self.log,
            listener=SingleListener(len(self.plan.segments.inbound), 0),
            random=Random(index),
            fronts=fronts,
        )

    def admit(self, *values: Any, number: int = 1, rejected: Iterable[Rejected] = (), policy: str = "fail") -> None:
        self.worker.admit(number, Batch(values, range(len(values)), list(rejected)), 0.0, policy)

    def flush(self) -> list[tuple[str, Any]]:
        return self.worker.flush(0.0)

    def min_time(self, time: int, segment: int | None = None) -> list[tuple[str, Any]]:
        """Tell it of one segment, or of all of them."""
        numbers = range(len(self.plan.segments.inbound))
        news = [time if segment in (None, number) else self.worker.listener.min_time(number) for number in numbers]
        self.worker.receive("acker/0", MinTimes(tuple(news)))
        return self.flush()

    def released(self, time: int, rear: str = "out") -> list[Any]:
        """Return the payloads that the rear is sent when the minimum time grows."""
        (message,) = (message for to, message in self.min_time(time) if to == f"rear/{rear}")
        assert isinstance(message, Released)
        assert message.time == time
        return [payload for _, payload in message.items]


def flow(build: Callable[[fc.Stream[Any]], fc.Stream[Any]]) -> Graph:
    made = fc.Flow("small")
    build(made.source("numbers", int)).sink("out")
    return made.graph()


def plain(stream: fc.Stream[int]) -> fc.Stream[int]:
    return stream.map(lambda n: n, name="map")


def keyed(stream: fc.Stream[int]) -> fc.Stream[Any]:
    return stream.key_by(lambda n: n).count(name="count")


def owner_of(key: Any, workers: int) -> int:
    return owners(workers)[key_group(stable_hash(key))]


# -- records come in --------------------------------------------------------------------------


def test_records_get_growing_times_and_the_next_one_is_promised_at_once() -> None:
    bench = Bench(flow(plain))
    bench.admit("a", "b")
    bench.admit("c")
    assert bench.log.taken() == [("heartbeat", 1, 2), ("heartbeat", 1, 3)]
    ((to, released),) = bench.min_time(3)
    assert to == "rear/out"
    assert [(Meta.decode(order), payload) for order, payload in released.items] == [
        (Meta(GlobalTime(time, 1), (0,)), payload) for time, payload in enumerate("abc")
    ]


@pytest.mark.parametrize(
    "build", [lambda stream: stream, lambda stream: stream.filter(bool), fc.Stream.rebalance, keyed]
)
@pytest.mark.parametrize("workers", [1, 2])
def test_records_may_come_in_any_sequence(build: Callable[[fc.Stream[int]], fc.Stream[Any]], workers: int) -> None:
    """As the range of a source that counts: what is made of it crosses to other processes as what comes in lists."""
    codec = Codec()
    said = []
    for values in (list(range(1, 101)), range(1, 101)):
        bench = Bench(flow(build), workers=workers)
        bench.worker.admit(1, Batch(values, values), 0.0)
        said.append([(to, codec.encode(message)) for to, message in [*bench.flush(), *bench.min_time(200)]])
    assert said[0] == said[1]


@pytest.mark.parametrize("build", [lambda stream: stream, lambda stream: stream.filter(lambda n: True)])
def test_a_driver_may_use_its_list_again(build: Callable[[fc.Stream[int]], fc.Stream[Any]]) -> None:
    bench, values = Bench(flow(build)), [1, 2, 3]
    bench.worker.admit(1, Batch(values, range(3)), 0.0)
    values[:] = 4, 5, 6
    bench.worker.admit(1, Batch(values, range(3)), 0.0)
    values.clear()
    assert bench.released(9) == [1, 2, 3, 4, 5, 6]


def test_local_hand_overs_are_not_acked() -> None:
    bench = Bench(flow(keyed))
    bench.admit(*range(100))
    assert {call[0] for call in bench.log.taken()} == {"heartbeat"}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("key", [lambda n: 1 // n, lambda n: [n], lambda n: object()])
def test_the_key_of_a_map_fails_on_one_worker_as_on_several(key: Callable[[int], Any], workers: int) -> None:
    bench = Bench(flow(lambda stream: stream.key_by(key).map(lambda n: n, name="map")), workers=workers)
    bench.admit(0)
    ((_, failure),) = messages_to("out", bench.min_time(1)).failures
    assert failure.vertex == "map"


def test_an_end_is_reported_with_the_time_everything_is_below() -> None:
    bench = Bench(flow(plain))
    bench.admit("a", "b")
    assert bench.worker.end_front(1) == 2
    assert bench.log.taken() == [("heartbeat", 1, 2), ("end", 1)]


def test_an_idle_front_repeats_its_promise() -> None:
    bench = Bench(flow(plain))
    bench.admit("a")
    bench.worker.heartbeat(1)
    assert bench.log.taken() == [("heartbeat", 1, 1), ("heartbeat", 1, 1)]


# -- minimum times ----------------------------------------------------------------------------


def test_outputs_below_the_minimum_time_go_to_the_rear() -> None:
    bench = Bench(flow(plain))
    bench.admit("a", "b", "c")
    assert [to for to, _ in bench.flush()] == ["acker/0"]
    assert bench.released(2) == ["a", "b"]
    assert [to for to, _ in bench.min_time(2)] == ["acker/0"], "nothing new, nothing sent"
    assert [to for to, _ in bench.min_time(1)] == ["acker/0"], "a minimum time never goes back"
    assert bench.released(3) == ["c"]
    assert bench.worker.min_time == 3


def test_every_rear_hears_of_time_also_without_outputs() -> None:
    made = fc.Flow("two")
    numbers = made.source("numbers", int)
    numbers.sink("a")
    numbers.filter(lambda n: n > 5).sink("b")
    bench = Bench(made.graph())
    bench.admit(1)
    rears = {to: message.items for to, message in bench.min_time(1) if to.startswith("rear/")}
    assert [payload for _, payload in rears["rear/a"]] == [1]
    assert rears["rear/b"] == []


def branches(*, dealt: bool = False) -> Graph:
    """Two states side by side, one of them behind a function that fails on 13, and a sink behind each."""
    made = fc.Flow("branches")
    numbers = made.source("numbers", int)
    if dealt:
        numbers = numbers.merge(made.source("more", int)).rebalance()
    numbers.key_by(lambda n: n).count(name="one").sink("a")
    failing(numbers).key_by(lambda n: n).count(name="other").sink("b")
    numbers.sink("c")
    return made.graph()


@pytest.mark.parametrize("segment", range(3))
def test_a_sink_opens_at_the_minimum_time_of_what_leads_to_it(segment: int) -> None:
    bench = Bench(branches(dealt=True), workers=2)  # so that each worker has items of the other's front everywhere
    opens = {sink.name: bench.plan.segments.of[sink.index] for sink in bench.plan.graph.sinks}
    assert len(set(opens.values())) == 3
    bench.admit(1)
    bench.flush()
    rears = [to for to, _ in bench.min_time(1, segment) if to.startswith("rear/")]
    assert rears == [f"rear/{name}" for name, own in opens.items() if own == segment]


def test_a_failure_goes_to_the_sinks_that_its_operation_leads_to() -> None:
    bench = Bench(branches())
    bench.admit(1, 13, 2)
    messages = {rear: messages_to(rear, out) for out in [bench.min_time(3)] for rear in "abc"}
    assert {rear: [failure.record for _, failure in told.failures] for rear, told in messages.items()} == {
        "a": [],
        "b": ["13"],
        "c": [],
    }


@pytest.mark.parametrize("window", [1, 2, 5])
def test_history_below_the_minimum_time_is_less_than_a_window(window: int) -> None:
    """In entries, not bytes; a fused state keeps one. Also of keys that are never seen again."""

    def build(stream: fc.Stream[int]) -> fc.Stream[Any]:
        return stream.key_by(lambda n: n % 10).group(window).key_by(lambda w: w[-1] % 7).count()

    bench = Bench(flow(build))
    random = Random(1)
    for step in range(1, 40):
        values = [random.randrange(5) if step > 20 else random.randrange(100) for _ in range(25)]
        bench.admit(*values)
        bench.min_time(25 * step - 10)
        limit = encode_time(25 * step - 10)
        grouping, drift = bench.worker.compiled.stateful.values()
        if isinstance(drift, GroupingOperator):
            grouping, drift = drift, grouping
        assert isinstance(grouping, GroupingOperator)
        assert isinstance(drift, DriftOperator)
        for bucket in grouping.buckets.values():
            assert sum(entry[0] < limit for entry in bucket.entries) <= window - 1
        for history in drift.histories.values():
            assert sum(entry[0] < limit for entry in history) <= 1
        assert sum(map(len, drift.histories.values())) <= 7 + 10
        assert window > 1 or len(grouping.buckets) <= 10, "a bucket of window 1 has no history at all"
    assert bench.worker.counts().replays == 0


def test_a_worker_that_closes_closes_the_works_of_its_operations() -> None:
    closed: list[str] = []
    bench = Bench(flow(lambda stream: stream.label("line").gather("line").map(lambda gathered: gathered.parts)))
    for name, operation in bench.worker.compiled.ordered.items():
        operation.work.close = lambda name=name: closed.append(name)  # type: ignore[method-assign]
    bench.worker.close()
    bench.worker.close()
    assert closed == [*bench.worker.compiled.ordered]
    assert closed


def test_a_work_that_counts_no_late_records_has_none() -> None:
    bench = Bench(flow(lambda stream: stream.label("line").gather("line").map(lambda gathered: gathered.parts)))
    bench.admit(1)
    bench.min_time(2)
    assert (bench.worker.counts().late, bench.worker.counts().dropped) == ({}, {})


def test_credit_counts_records_that_every_rear_has_stored() -> None:
    made = fc.Flow("two")
    made.source("numbers", int).sink("a")
    made.source("others", int).sink("b")
    bench = Bench(made.graph())
    assert bench.worker.delivered() < 0
    bench.worker.receive("rear/a", Delivered("a", 7))
    assert bench.worker.delivered() < 0
    bench.worker.receive("rear/b", Delivered("b", 3))
    assert bench.worker.delivered() == 3
    bench.worker.receive("rear/b", Delivered("b", 2))
    assert bench.worker.delivered() == 3
    bench.worker.receive("rear/b", Delivered("b", 9))
    assert bench.worker.delivered() == 7


def test_an_unknown_message_is_an_error() -> None:
    with pytest.raises(JobError, match="str"):
        Bench(flow(plain)).worker.receive("worker/0", "hello")


# -- hand-overs -------------------------------------------------------------------------------


def test_items_for_others_have_one_number_and_are_reported_first() -> None:
    bench = Bench(flow(keyed), workers=2)
    mine = next(n for n in range(100) if owner_of(n, 2) == 0)
    theirs = next(n for n in range(100) if owner_of(n, 2) == 1)
    bench.admit(theirs, mine, theirs)
    out = bench.flush()
    assert [to for to, _ in out] == ["worker/1", "acker/0", "acker/0", "rear/out"]
    items = out[0][1]
    ((_, _, alive, orders, payloads),) = items.pieces
    assert alive
    assert [(Meta.decode(order), payload) for order, payload in zip(orders, payloads, strict=True)] == [
        (Meta(GlobalTime(0, 1)), theirs),
        (Meta(GlobalTime(2, 1)), theirs),
    ]
    assert [(ack.segment, ack.time) for ack in items.acks] == [(0, 0)], "the lowest: all of them are done at once"
    heartbeat, *acks = bench.log.taken()
    assert heartbeat == ("heartbeat", 1, 3)
    assert acks == [("ack", *ack) for ack in items.acks], "the promise is flushed with the acks, never before"


def test_numbers_of_hand_overs_differ() -> None:
    bench = Bench(flow(keyed), workers=2)
    theirs = next(n for n in range(100) if owner_of(n, 2) == 1)
    numbers = []
    for _ in range(50):
        bench.admit(theirs)
        numbers += [ack.xor for to, message in bench.flush() if to == "worker/1" for ack in message.acks]
    assert len(set(numbers)) == 50
    assert 0 not in numbers


def test_received_items_are_acked_with_their_number_after_their_outputs() -> None:
    """Semantics 4.1: process, ack and send all outputs, then ack what was received."""

    def build(stream: fc.Stream[int]) -> fc.Stream[Any]:
        return stream.key_by(lambda n: n).map(lambda n: n, name="first").key_by(lambda n: -n).map(lambda n: n)

    graph = flow(build)
    payload = next(n for n in range(1, 1000) if owner_of(n, 2) == 1 and owner_of(-n, 2) == 0)
    index = next(vertex.index for vertex in graph.vertices if vertex.name == "first")
    bench = Bench(graph, index=1, workers=2)
    received = Ack(0, 5, 12345)
    bench.worker.receive("worker/0", Items([(index, 0, True, [Meta(GlobalTime(5, 1)).order], [payload])], (received,)))
    assert bench.log.calls == [], "nothing is acked before it is sent"
    out = bench.flush()
    assert [to for to, _ in out] == ["worker/0", "acker/0"]
    (sent,) = out[0][1].acks
    assert bench.log.taken() == [("ack", *sent), ("ack", *received)]


def test_one_flush_may_give_several_messages() -> None:
    graph = flow(keyed)
    bench = Bench(graph, index=1, workers=2)
    index = next(vertex.index for vertex in graph.vertices if vertex.name == "count")
    for time in (3, 4):
        order = Meta(GlobalTime(time, 1)).order
        bench.worker.receive("worker/0", Items([(index, 0, True, [order], ["x"])], (Ack(0, time, time),)))
    bench.flush()
    assert bench.log.taken() == [("ack", 0, 3, 3), ("ack", 0, 4, 4)]
    assert bench.released(5) == [("x", 1), ("x", 2)]


def test_acks_bear_the_segment_of_the_vertex_they_lead_to() -> None:
    def build(stream: fc.Stream[int]) -> fc.Stream[Any]:
        counted = stream.key_by(lambda n: n).count(name="count")
        return counted.map(lambda pair: pair[0]).key_by(lambda n: -n).map(lambda n: n, name="b")

    bench = Bench(flow(build), workers=2)
    first = next(n for n in range(1, 1000) if owner_of(n, 2) == 1)
    second = next(n for n in range(1, 1000) if owner_of(n, 2) == 0 and owner_of(-n, 2) == 1)
    bench.admit(first, second)
    (items,) = (message for to, message in bench.flush() if to == "worker/1")
    assert [(ack.segment, ack.time) for ack in items.acks] == [(0, 0), (1, 1)]


def test_outputs_stay_on_the_worker_that_made_them() -> None:
    bench = Bench(flow(keyed), workers=2)
    mine = next(n for n in range(100) if owner_of(n, 2) == 0)
    bench.admit(mine, mine)
    assert bench.released(2) == [(mine, 1), (mine, 2)]


def test_late_items_from_another_worker_are_repaired_and_counted() -> None:
    graph = flow(keyed)
    bench = Bench(graph, index=1, workers=2)
    index = next(vertex.index for vertex in graph.vertices if vertex.name == "count")
    for time in (4, 3, 5):
        order = Meta(GlobalTime(time, 1)).order
        bench.worker.receive("worker/0", Items([(index, 0, True, [order], ["x"])], (Ack(0, time, time),)))
        bench.flush()
    assert bench.worker.counts().replays == 1
    assert bench.worker.counts().calls_in_vain == {"count": 2}, "found out again to be taken back, and made again"
    assert bench.worker.counts().calls == {"count": 5}
    assert bench.released(6) == [("x", 1), ("x", 2), ("x", 3)]


def test_items_that_wait_are_reported_until_they_go_in() -> None:
    """They are in flight like a hand-over: one number under their lowest time, new before the old one goes."""
    graph = flow(keyed)
    bench = Bench(graph, index=1, workers=3, advance=False)
    index = next(vertex.index for vertex in graph.vertices if vertex.name == "count")

    def arrive(sender: str, *times: int) -> list[tuple[Any, ...]]:
        orders = [Meta(GlobalTime(time, 1), (int(sender[-1]),)).order for time in times]
        received = Ack(0, times[0], 1000 + times[0])
        items = Items([(index, int(sender[-1]), True, orders, ["x"] * len(times))], (received,))
        bench.worker.receive(sender, items)
        bench.flush()
        calls = bench.log.taken()
        calls.remove(("ack", *received))
        return calls

    (first,) = arrive("worker/0", 3, 4)
    assert first[:3] == ("ack", 1, 3), "of the segment that the state begins"
    assert arrive("worker/0", 5, 6) == [], "still the same"
    (second, *rest) = arrive("worker/2", 2, 4)
    assert second[:3] == ("ack", 1, 2)
    assert rest == [first]
    assert bench.worker.counts().waiting == {"count": 6}
    bench.min_time(4, segment=0)
    third, *rest = bench.log.taken()
    assert third[:3] == ("ack", 1, 4)
    assert rest == [second]
    bench.min_time(9, segment=0)
    assert bench.log.taken() == [third]
    assert bench.worker.counts().waiting == {}
    assert bench.worker.due() is None
    assert [count for _, count in bench.released(9)] == list(range(1, 7))


class Rests(Log):
    """Writes down what it is told of rest, too."""

    def rest(self, at_rest: bool) -> None:
        self.calls.append(("rest", at_rest))


def test_a_worker_is_at_rest_unless_something_waits_for_a_segment() -> None:
    graph = flow(keyed)
    bench = Bench(graph, index=1, workers=3, log=Rests(), advance=False)
    index = next(vertex.index for vertex in graph.vertices if vertex.name == "count")
    bench.flush()
    assert bench.log.taken() == [("rest", True)]
    bench.flush()
    assert bench.log.taken() == [], "said once"
    order = Meta(GlobalTime(3, 1), (0,)).order
    bench.worker.receive("worker/0", Items([(index, 0, True, [order], ["x"])], (Ack(0, 3, 7),)))
    bench.flush()
    assert ("rest", False) in bench.log.taken()
    bench.min_time(4, segment=0)
    assert ("rest", True) in bench.log.taken()


def test_a_worker_with_a_sink_before_the_last_segment_is_never_at_rest() -> None:
    made = fc.Flow("short")
    stream = made.source("in", int)
    stream.sink("first")
    stream.key_by(lambda value: value).count().sink("out")
    bench = Bench(made.graph(), workers=2, log=Rests())
    bench.flush()
    assert bench.log.taken() == []


def test_a_worker_with_an_ordered_operation_is_never_at_rest() -> None:
    """Timers and marks wait there for minimum times, without an item."""
    graph = flow(lambda stream: stream.label("line").gather("line").map(lambda gathered: gathered.parts))
    bench = Bench(graph, workers=2, log=Rests())
    bench.admit(1)
    bench.flush()
    bench.min_time(1)
    assert not [call for call in bench.log.taken() if call[0] == "rest"]


# -- malformed and failing records ------------------------------------------------------------


def bad(position: int) -> Rejected:
    return Rejected(position, "bad", f"raw {position}")


def mixed(values: dict[int, Any], rejected: Iterable[int], policy: str, **settings: Any) -> Bench:
    """Admit a batch with values and malformed records at their positions."""
    bench = Bench(flow(plain), **settings)
    batch = Batch(list(values.values()), list(values), [bad(position) for position in rejected])
    bench.worker.admit(1, batch, 0.0, policy)
    return bench


def messages_to(rear: str, out: list[tuple[str, Any]]) -> Released:
    (message,) = (message for to, message in out if to == f"rear/{rear}")
    assert isinstance(message, Released)
    return message


def test_malformed_records_that_are_skipped_take_no_time() -> None:
    bench = mixed({0: "a", 2: "c"}, (1, 3), "skip")
    assert bench.released(2) == ["a", "c"]
    assert (bench.worker.ingress.rejected, bench.worker.ingress.admitted) == (2, 2)


def test_a_malformed_record_fails_at_its_place() -> None:
    bench = mixed({0: "a", 2: "c"}, (1,), "fail")
    message = messages_to("out", bench.min_time(3))
    ((order, failure),) = message.failures
    assert order == GlobalTime(1, 1).encode()
    assert (failure.source, failure.vertex, failure.fatal) == ("numbers", None, True)
    assert (failure.record, failure.reason, failure.position) == ("'raw 1'", "bad", "line 1")
    assert [payload for _, payload in message.items] == ["a", "c"], "whoever stores leaves out what is behind it"


def test_malformed_records_as_dead_letters_keep_their_place() -> None:
    bench = mixed({0: "a", 2: "c"}, (1, 3), "dead_letter", dead_letters=True)
    out = bench.min_time(4)
    assert [payload for _, payload in messages_to("out", out).items] == ["a", "c"]
    letters = messages_to("dead_letter", out).items
    assert [GlobalTime.decode(order).time for order, _ in letters] == [1, 3]
    assert [failure.letter()["position"] for _, failure in letters] == ["line 1", "line 3"]
    assert bench.worker.ingress.rejected == 2


def failing(stream: fc.Stream[int]) -> fc.Stream[Any]:
    def check(n: int) -> int:
        if n == 13:
            raise ValueError("unlucky")
        return n

    return stream.map(check, name="check")


def test_a_failing_function_is_an_item_at_the_place_of_its_record() -> None:
    bench = Bench(flow(failing))
    bench.admit(1, 13, 2)
    assert messages_to("out", bench.min_time(1)).failures == []
    message = messages_to("out", bench.min_time(3))
    ((order, failure),) = message.failures
    assert order == GlobalTime(1, 1).encode()
    assert isinstance(failure, Failure)
    assert (failure.vertex, failure.record, failure.reason) == ("check", "13", "ValueError: unlucky")
    assert failure.position == "line 1"
    assert isinstance(failure.cause.error, ValueError)
    assert any("test_worker.py" in frame and "unlucky" in frame for frame in failure.cause.frames)


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_a_failing_function_that_does_not_end_the_job(on_error: str) -> None:
    bench = Bench(flow(failing), on_error=on_error, dead_letters=on_error == "dead_letter")
    bench.admit(1, 13, 2)
    out = bench.min_time(3)
    message = messages_to("out", out)
    assert [payload for _, payload in message.items] == [1, 2]
    assert message.failures == []
    assert bench.worker.counts().failed == 1
    if on_error == "dead_letter":
        ((_, letter),) = messages_to("dead_letter", out).items
        assert letter.letter() == {
            "source": "numbers",
            "vertex": "check",
            "position": "line 1",
            "reason": "ValueError: unlucky",
            "record": "13",
            "original": None,
            "original_base64": None,
            "traceback": letter.cause.trace,
        }


def test_a_failure_goes_to_the_worker_that_knows_where_the_record_stood() -> None:
    graph = flow(lambda stream: failing(stream.key_by(lambda n: n).map(lambda n: n, name="there")))
    home, away = Bench(graph, workers=2), Bench(graph, index=1, workers=2)
    order = Meta(GlobalTime(0, 1)).order
    index = next(vertex.index for vertex in graph.vertices if vertex.name == "there")
    home.admit("a record that went to worker 1")
    home.flush()
    away.worker.receive("worker/0", Items([(index, 0, True, [order], [13])], (Ack(0, 0, 5),)))
    ((to, items), _) = away.flush()
    assert to == "worker/0"
    home.worker.receive("worker/1", items)
    ((_, failure),) = messages_to("out", home.min_time(1)).failures
    assert (failure.position, failure.worker) == ("line 0", 1)


def test_a_wrong_guess_that_failed_is_taken_back() -> None:
    def build(stream: fc.Stream[int]) -> fc.Stream[Any]:
        def add(total: int, n: int) -> int:
            if total == 0 and n == 5:
                raise ValueError("five first")
            return total + n

        return stream.key_by(lambda n: 0).fold(0, add, name="sum")

    graph = flow(build)
    index = next(vertex.index for vertex in graph.vertices if vertex.name == "sum")
    bench = Bench(graph)
    for time, n in ((4, 5), (3, 1)):
        order = Meta(GlobalTime(time, 1)).order
        bench.worker.receive("worker/1", Items([(index, 0, True, [order], [n])], ()))
    message = messages_to("out", bench.min_time(9))
    assert message.failures == []
    assert [payload for _, payload in message.items] == [(0, 1), (0, 6)]


# -- without the barrier ----------------------------------------------------------------------


def test_without_the_barrier_everything_goes_out_with_the_next_flush() -> None:
    """Semantics 3.4."""
    bench = Bench(flow(plain), barrier=False)
    bench.admit("a", "b")
    message = messages_to("out", bench.flush())
    assert [payload for _, payload in message.items] == ["a", "b"]
    assert messages_to("out", bench.min_time(2)) == Released(0, 2, [], [], []), "minimum times are told all the same"
    bench.log.taken()
    assert bench.flush() == []


def test_without_the_barrier_a_failing_function_still_ends_the_job() -> None:
    bench = Bench(flow(failing), barrier=False)
    bench.admit(1, 13, 2)
    bench.flush()
    ((_, failure),) = messages_to("out", bench.min_time(3)).failures
    assert failure.vertex == "check"


def test_buffers_without_a_turn_in_a_round_have_one_in_the_next() -> None:
    """Nobody tells the worker anything more: if it took itself for done, the job would wait for ever."""
    flow = fc.Flow("gathered")
    flow.source("lines", str).label("line").flat_map(str.split).gather("line").sink("out")
    bench = Bench(flow.graph())
    worker = bench.worker
    bench.admit("to be", "or not")
    bench.flush()
    (buffer,) = worker.compiled.waiting
    assert buffer.lowest is not None
    worker.receive("acker/0", MinTimes((2,) * len(bench.plan.segments.inbound)))
    worker.rounds.end()  # in the midst of what comes before the buffer has its turn
    assert worker.step()
    assert buffer.lowest is not None
    assert worker.due() == 0.0
    worker.rounds.begin()
    assert worker.step(), "it began with the buffer, and what comes before it had its turn last"
    assert not worker.step()
    assert buffer.lowest is None
    assert worker.due() is None or worker.due() > 0.0
