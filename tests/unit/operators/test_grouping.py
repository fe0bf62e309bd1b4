"""Grouping: which windows come out, in which order, and which are taken back (paper 004, section 3; paper 000)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import permutations
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.abc.operator import Site, Way, each
from flamecore.errors import DuplicateItemError, NoInvalideeError, OrderViolationError
from flamecore.model.meta import GlobalTime, Meta, encode_time
from flamecore.model.vertices import ByHash, ByKey, Grouping
from flamecore.runtime.operators.grouping import GroupingOperator
from flamecore.runtime.operators.windows import Bucket, Window, Windows

Emitted = list[tuple[bool, tuple[Any, ...]]]


def grouping(window: int, **settings: Any) -> Grouping:
    return Grouping("group", route=settings.pop("route", ByKey(lambda _: 0)), window=window, **settings)


def meta(time: int, *children: int, trace: int = 0, front: int = 0) -> Meta:
    return Meta(GlobalTime(time, front), children, trace)


class OneBucket:
    """A single bucket under the rules of a grouping, and what is left of its output."""

    def __init__(self, window: int, **settings: Any) -> None:
        self.rules = Windows(grouping(window, **settings))
        self.bucket = Bucket()
        self.left: dict[tuple[bytes, int], tuple[Any, ...]] = {}

    def take(self, item: Meta, payload: Any) -> Emitted:
        change = self.rules.remove if item.tombstone else self.rules.insert
        emitted = change(self.bucket, self.rules.place_of(item.order, item.trace, payload), payload)
        for window in emitted:
            self._settle(window)
        return [(window.alive, window.payloads) for window in emitted]

    def _settle(self, window: Window) -> None:
        identity = (window.order, window.trace)
        if window.alive:
            assert identity not in self.left, "two live outputs of one identity"
            self.left[identity] = window.payloads
        else:
            assert self.left.pop(identity) == window.payloads, "a tombstone carries what its victim did"

    @property
    def final(self) -> set[tuple[Any, ...]]:
        return set(self.left.values())

    @property
    def payloads(self) -> list[Any]:
        return [entry[-1] for entry in self.bucket.entries]


def arriving(times: Iterable[int], window: int, **settings: Any) -> OneBucket:
    bench = OneBucket(window, **settings)
    for time in times:
        bench.take(meta(time), time)
    return bench


# -- acceptance cases 1 to 13 ---------------------------------------------------------------------------


@pytest.mark.parametrize("arrivals", list(permutations((1, 2, 3))), ids=str)
def test_cases_1_to_4_any_arrival_gives_the_windows_of_the_sorted_list(arrivals: tuple[int, ...]) -> None:
    assert arriving(arrivals, 2).final == {(1,), (1, 2), (2, 3)}


def test_case_5_a_derived_item_sorts_between_its_ancestor_and_the_next_item() -> None:
    bench = OneBucket(2)
    bench.take(meta(1), "v1")
    bench.take(meta(2), "v2")
    bench.take(meta(1, 0, trace=2), "state")
    assert bench.final == {("v1",), ("v1", "state"), ("state", "v2")}


def test_case_6_states_and_items_in_the_wrong_order_of_times_are_sorted() -> None:
    bench = OneBucket(2)
    bench.take(meta(2), "v5")
    bench.take(meta(2, 0, trace=2), "v5State")
    bench.take(meta(1), "x0")
    bench.take(meta(1, 0, trace=2), "x0State")
    bench.take(meta(2, 0, 0, trace=2 ^ 4), "theState")
    assert bench.final == {("x0",), ("x0", "x0State"), ("x0State", "v5"), ("v5", "v5State"), ("v5State", "theState")}


def test_case_7_a_tombstone_takes_its_victim_out() -> None:
    bench = OneBucket(2)
    for time, trace in ((1, 0), (2, 0), (3, 1)):
        bench.take(meta(time, trace=trace), f"v{time}")
    bench.take(meta(3, trace=1)._replace(tombstone=True), "v3")
    assert bench.final == {("v1",), ("v1", "v2")}


@pytest.mark.parametrize("seed", range(3))
def test_case_8_a_thousand_items_give_their_windows_in_any_order(seed: int) -> None:
    times = list(range(1000))
    Random(seed).shuffle(times)
    assert arriving(times, 6).final == {tuple(range(max(end - 5, 0), end + 1)) for end in range(1000)}


TABLE = [  # window, bucket before, arrives, output in order ("-x" in the third column: the tombstone of x)
    (2, "", "1 2 3", "+1 +12 +23"),
    (2, "1 3", "2", "-13 +12 +23"),
    (2, "1 3 4", "2", "-13 +12 +23"),
    (2, "2", "1", "-2 +1 +12"),
    (2, "2 3", "1", "-2 +1 +12"),
    (1, "2", "1", "+1"),
    (3, "1 2 4 5 6", "3", "-124 -245 +123 +234 +345"),
    (3, "1 2 3 4 5", "-3", "-123 -234 -345 +124 +245"),
    (3, "1 2 4 5", "-5", "-245"),
    (3, "1 2 4", "-1", "-1 -12 -124 +2 +24"),
    (2, "1 2 3", "-3", "-23"),
    (2, "1 2", "-1", "-1 -12 +2"),
    (2, "2", "-2", "-2"),
    (1, "1 2 3", "-2", "-2"),
    (5, "1 3", "2", "-13 +12 +123"),
]

UNDO_TABLE = [
    (2**31 - 1, "", "1 2 3", "+1 -1 +12 -12 +123"),
    (2**31 - 1, "", "2 1 3", "+2 -2 +12 -12 +123"),
    (2, "", "3 2 1", "+3 -3 +23 +12"),
    (3, "", "4 3 2 1", "+4 -4 +34 -34 +234 +123"),
    (2, "", "1 -1", "+1 -1"),
    (3, "1 2", "-1", "-12 +2"),
    (3, "1 2 3", "-1", "-123 +23"),
    (3, "1 2 3 4", "-2", "-123 -234 +134"),
    (3, "1 2 4", "3", "-124 +123 +234"),
]


def written(emitted: Sequence[tuple[bool, Sequence[Any]]]) -> str:
    return " ".join(("+" if alive else "-") + "".join(map(str, payloads)) for alive, payloads in emitted)


def fed(words: str) -> list[tuple[Meta, int]]:
    numbers = [int(word) for word in words.split()]
    return [(meta(abs(number))._replace(tombstone=number < 0), abs(number)) for number in numbers]


@pytest.mark.parametrize(("window", "before", "arrives", "output"), TABLE)
def test_case_9_windows_are_emitted_exactly(window: int, before: str, arrives: str, output: str) -> None:
    bench = OneBucket(window)
    for item, payload in fed(before):
        bench.take(item, payload)
    emitted = [each for item, payload in fed(arrives) for each in bench.take(item, payload)]
    assert written(emitted) == output


@pytest.mark.parametrize(("window", "before", "arrives", "output"), TABLE)
def test_case_9_the_compiled_step_emits_the_same(window: int, before: str, arrives: str, output: str) -> None:
    bench = Compiled(grouping(window))
    bench.take_all(fed(before))
    bench.emitted.clear()
    bench.take_all(fed(arrives))
    assert written(bench.windows) == output
    assert bench.operation.retracted >= output.count("-")


@pytest.mark.parametrize(("window", "before", "arrives", "output"), UNDO_TABLE)
def test_partial_windows_are_undone_exactly(window: int, before: str, arrives: str, output: str) -> None:
    bench = OneBucket(window, undo_partial=True)
    for item, payload in fed(before):
        bench.take(item, payload)
    emitted = [each for item, payload in fed(arrives) for each in bench.take(item, payload)]
    assert written(emitted) == output


@pytest.mark.parametrize(
    ("case", "window", "count", "final"),
    [
        (10, 2**31 - 1, 3, {(1, 2, 3)}),
        (11, 2, 3, {(1, 2), (2, 3)}),
        (12, 3, 4, {(1, 2, 3), (2, 3, 4)}),
    ],
)
def test_cases_10_to_12_partial_windows_are_undone(
    case: int, window: int, count: int, final: set[tuple[int, ...]]
) -> None:
    for arrivals in permutations(range(1, count + 1)):
        assert arriving(arrivals, window, undo_partial=True).final == final, (case, arrivals)


def test_a_window_as_wide_as_can_be_does_not_overflow() -> None:
    assert arriving((2, 3, 1), 2**31 - 1).final == {(1,), (1, 2), (1, 2, 3)}


def test_case_13_a_tombstone_without_victim_is_refused() -> None:
    bench = arriving((1, 2), 2)
    for stranger in (meta(3), meta(2, trace=9), meta(2, 0), meta(0), meta(2, front=1)):
        with pytest.raises(NoInvalideeError) as caught:
            bench.take(stranger._replace(tombstone=True), "payload")
        assert caught.value.vertex == "group"
    assert bench.payloads == [1, 2]


def test_case_13_a_second_live_item_of_one_identity_is_refused() -> None:
    bench = arriving((1, 2), 2)
    for time in (1, 2):
        with pytest.raises(DuplicateItemError) as caught:
            bench.take(meta(time), "again")
        assert caught.value.record == "again"
    step = Compiled(grouping(2))
    step.take_all(fed("1 2"))
    with pytest.raises(DuplicateItemError):
        step.take(meta(2), 2)
    with pytest.raises(NoInvalideeError):
        step.take(meta(3)._replace(tombstone=True), 3)


def test_an_identity_can_be_used_again_once_it_is_cancelled() -> None:
    bench = arriving((1, 2), 2)
    bench.take(meta(2)._replace(tombstone=True), 2)
    bench.take(meta(2), "other")
    assert bench.final == {(1,), (1, "other")}


def test_recomputations_that_came_by_different_workers_are_told_apart_by_trace() -> None:
    bench = OneBucket(2)
    bench.take(meta(1), "x")
    bench.take(meta(2, 0, trace=5), "old")
    bench.take(meta(2, 0, trace=3), "new")
    bench.take(meta(2, 0, trace=5)._replace(tombstone=True), "old")
    assert bench.final == {("x",), ("x", "new")}


# -- the compiled step ----------------------------------------------------------------------------------


class Compiled:
    """A compiled grouping with a list behind it."""

    def __init__(self, vertex: Grouping, ident: int = 0) -> None:
        self.emitted: list[tuple[bytes, int, bool, tuple[Any, ...]]] = []
        self.failed: list[tuple[bool, Any, Exception]] = []
        self.operation = GroupingOperator(vertex, Site(ident, self.fail, (Way(self.emit, each(self.emit)),)))

    def emit(self, *item: Any) -> None:
        self.emitted.append(item)

    def fail(self, order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
        self.failed.append((alive, payload, error))

    def take(self, item: Meta, payload: Any) -> None:
        self.operation.step(item.order, item.trace, not item.tombstone, payload)

    def take_all(self, items: Iterable[tuple[Meta, Any]]) -> None:
        for item, payload in items:
            self.take(item, payload)

    @property
    def windows(self) -> Emitted:
        return [(alive, payloads) for _, _, alive, payloads in self.emitted]

    def bucket(self, name: Any) -> list[Any]:
        return [entry[-1] for entry in self.operation.buckets[name].entries]


def test_windows_of_two_keys_are_kept_apart() -> None:
    """Semantics 2.2: window 3, parity as hash."""
    for route in (ByHash(lambda n: n % 2), ByKey(lambda n: n % 2)):
        bench = Compiled(grouping(3, route=route))
        bench.take_all((meta(n), n) for n in range(1, 8))
        assert written(bench.windows) == "+1 +2 +13 +24 +135 +246 +357"


def test_meta_of_a_window_is_that_of_its_last_item_and_the_trace_remembers_the_instance() -> None:
    bench = Compiled(grouping(2), ident=0b1000)
    bench.take(meta(1, 3, trace=0b0001, front=2), "a")
    bench.take(meta(2, 4, 5, trace=0b1001, front=2), "b")
    assert [(Meta.decode(order, trace)) for order, trace, _, _ in bench.emitted] == [
        meta(1, 3, trace=0b1001, front=2),
        meta(2, 4, 5, trace=0b0001, front=2),
    ]


def test_a_tombstone_ends_in_the_bucket_and_the_flag_is_not_inherited() -> None:
    bench = Compiled(grouping(2), ident=6)
    bench.take_all(fed("1 2 3 -2"))
    assert written(bench.windows[-3:]) == "-12 -23 +13"
    assert bench.bucket(0) == [1, 3]
    assert {trace for _, trace, _, _ in bench.emitted} == {6}


def test_payloads_of_equal_hash_are_parted_by_equality() -> None:
    """Equality is asked only about payloads of equal hash, and parts them."""
    asked = []

    def equal(one: str, other: str) -> bool:
        asked.append((one, other))
        return one[0] == other[0]

    bench = Compiled(grouping(2, route=ByHash(len), equal=equal))
    words = ["ax", "bx", "ay", "cxx", "by", "az"]
    bench.take_all((meta(time), word) for time, word in enumerate(words))
    assert [payloads for _, payloads in bench.windows] == [
        ("ax",),
        ("bx",),
        ("ax", "ay"),
        ("cxx",),
        ("bx", "by"),
        ("ay", "az"),
    ]
    assert all(len(one) == len(other) for one, other in asked)


def test_a_key_that_fails_is_a_failed_record_and_so_is_its_tombstone() -> None:
    bench = Compiled(grouping(2, route=ByKey(lambda payload: payload["key"])))
    bench.take(meta(1), {"key": 1})
    bench.take(meta(2), {})
    bench.take(meta(2)._replace(tombstone=True), {})
    assert [(alive, payload, type(error)) for alive, payload, error in bench.failed] == [
        (True, {}, KeyError),
        (False, {}, KeyError),
    ]
    assert len(bench.emitted) == 1


def test_an_unhashable_key_is_a_failed_record() -> None:
    bench = Compiled(grouping(2, route=ByKey(lambda payload: [payload])))
    bench.take(meta(1), 1)
    assert [type(error) for _, _, error in bench.failed] == [TypeError]


def test_a_custom_order_that_fails_is_a_failed_record_and_so_is_its_tombstone() -> None:
    bench = Compiled(grouping(2, order=lambda payload: payload["rank"]))
    bench.take(meta(1), {"rank": 1})
    bench.take(meta(1, 1), {})
    bench.take(meta(1, 1)._replace(tombstone=True), {})
    bench.take(meta(2), {"rank": 0})
    assert [(alive, type(error)) for alive, _, error in bench.failed] == [(True, KeyError), (False, KeyError)]
    assert len(bench.emitted) == 2


def test_incomparable_keys_of_a_custom_order_are_failed_records() -> None:
    bench = Compiled(grouping(2, order=lambda payload: payload))
    bench.take(meta(1, 0), 1)
    with pytest.raises(OrderViolationError) as caught:
        bench.take(meta(1, 1), "text")
    assert caught.value.vertex == "group"


def test_partial_windows_are_undone_within_a_record() -> None:
    """Each record has buckets of its own: what another record has put together stays."""
    bench = Compiled(grouping(10, undo_partial=True))
    bench.take_all((meta(time, child), f"{time}{child}") for time, child in ((1, 0), (1, 1), (2, 0), (1, 2), (2, 1)))
    left: dict[bytes, Any] = {}
    for order, _, alive, payloads in bench.emitted:
        if alive:
            left[order] = payloads
        else:
            del left[order]
    assert list(left.values()) == [("10", "11", "12"), ("20", "21")]


# -- custom order (semantics 1.6, cases 15 and 16) ------------------------------------------------------


def test_case_15_a_child_before_its_ancestor_is_refused() -> None:
    bench = OneBucket(2, order=lambda payload: payload)
    bench.take(meta(0), 0)
    with pytest.raises(OrderViolationError) as caught:
        bench.take(meta(0, 0, trace=2), -1)
    assert caught.value.vertex == "group"
    assert caught.value.record == -1


def test_case_15_an_ancestor_behind_its_child_is_refused_too() -> None:
    bench = OneBucket(2, order=lambda payload: payload)
    bench.take(meta(0, 0, 0), 1)
    with pytest.raises(OrderViolationError):
        bench.take(meta(0, 0), 2)


def test_case_16_cousins_are_ordered_by_payload() -> None:
    bench = OneBucket(2, order=lambda payload: payload)
    bench.take(meta(0), 0)
    bench.take(meta(0, 0, trace=3), 3)
    bench.take(meta(0, 0, trace=2), 2)
    bench.take(meta(0, 1, trace=2), 1)
    assert bench.payloads == [0, 1, 2, 3]


def test_a_custom_order_does_not_reach_over_global_times() -> None:
    bench = OneBucket(2, order=lambda payload: payload)
    for time, payload in ((2, 0), (1, 9), (1, 5)):
        bench.take(meta(time, payload), payload)
    assert bench.payloads == [5, 9, 0]


def test_equal_in_the_custom_order_is_ordered_by_meta() -> None:
    bench = OneBucket(2, order=lambda _: 0)
    for child in (2, 0, 1):
        bench.take(meta(1, child), child)
    assert bench.payloads == [0, 1, 2]


# -- history (semantics 2.6, cases 17 and 62) -----------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "window", "left"), [(5, 3, [2, 3, 5]), (5, 1, [5]), (1, 3, [1, 2, 3, 5]), (4, 2, [3, 5]), (9, 2, [5])]
)
def test_case_17_below_a_time_the_last_items_of_a_window_stay(before: int, window: int, left: list[int]) -> None:
    bench = arriving((1, 2, 3, 5), window)
    bench.rules.forget(bench.bucket, encode_time(before))
    assert bench.payloads == left


def test_case_62_history_below_the_minimum_time_is_dropped_and_repairs_do_not_miss_it() -> None:
    shortened, whole = Compiled(grouping(2)), Compiled(grouping(2))
    for bench in (shortened, whole):
        bench.take_all((meta(time, 0), time) for time in range(1, 11))
    shortened.operation.on_time(encode_time(8))
    assert shortened.bucket(0) == [7, 8, 9, 10]
    for bench in (shortened, whole):
        bench.emitted.clear()
        bench.take_all([(meta(8), "late"), (meta(10, 0)._replace(tombstone=True), 10), (meta(11), 11)])
    assert shortened.emitted == whole.emitted


def test_idle_buckets_are_trimmed_too_and_empty_ones_vanish() -> None:
    for window, left in ((1, []), (2, [1]), (3, [1, 1])):
        bench = Compiled(grouping(window, route=ByKey(lambda n: n % 2)))
        bench.take_all((meta(time), time % 2) for time in range(10))
        bench.operation.on_time(encode_time(100))
        assert [bench.bucket(1)] == [left] if left else bench.operation.buckets == {}


# -- property tests (case 14) ---------------------------------------------------------------------------

Identified = tuple[bytes, int, Any]
"""(order, trace, payload)"""


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[Meta, int]]:
    """Items of distinct identities in any order, and tombstones of some of them, each behind its victim."""
    identities = draw(
        st.lists(
            st.tuples(st.integers(0, 4), st.lists(st.integers(0, 1), max_size=2), st.integers(0, 2)),
            max_size=12,
            unique_by=lambda identity: (identity[0], tuple(identity[1]), identity[2]),
        )
    )
    stream = [(meta(time, *children, trace=trace), draw(st.integers(0, 9))) for time, children, trace in identities]
    for item, payload in draw(st.lists(st.sampled_from(stream), unique_by=lambda each: each[0])) if stream else ():
        place = draw(st.integers(stream.index((item, payload)) + 1, len(stream)))
        stream.insert(place, (item._replace(tombstone=True), payload))
    return stream


def remaining(stream: Iterable[tuple[Meta, Any]]) -> list[Identified]:
    left: dict[tuple[bytes, int], Any] = {}
    for item, payload in stream:
        if item.tombstone:
            del left[item.order, item.trace]
        else:
            left[item.order, item.trace] = payload
    return [(*identity, payload) for identity, payload in left.items()]


def windows_of(items: Iterable[Identified], window: int, key: Callable[[Any], Any], ident: int) -> list[Identified]:
    """Return the windows of each sorted bucket, which a grouping means."""
    buckets: dict[Any, list[Identified]] = {}
    for item in sorted(items, key=lambda item: item[:2]):
        buckets.setdefault(key(item[2]), []).append(item)
    return [
        (bucket[end][0], bucket[end][1] ^ ident, tuple(item[2] for item in bucket[max(end + 1 - window, 0) : end + 1]))
        for bucket in buckets.values()
        for end in range(len(bucket))
    ]


def settled(emitted: Iterable[tuple[bytes, int, bool, Any]]) -> list[Identified]:
    """Return the items that no tombstone has cancelled.

    Each tombstone must have the payload of its victim.
    """
    left: dict[tuple[bytes, int], Any] = {}
    for order, trace, alive, payload in emitted:
        if alive:
            assert (order, trace) not in left, "two live outputs of one identity"
            left[order, trace] = payload
        else:
            assert left.pop((order, trace)) == payload, "a tombstone carries what its victim did"
    return [(*identity, payload) for identity, payload in left.items()]


def same(one: Iterable[Identified], other: Iterable[Identified]) -> bool:
    return sorted(one, key=lambda item: item[:2]) == sorted(other, key=lambda item: item[:2])


@given(arrivals(), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_case_14_windows_of_windows_follow_any_repairs(
    stream: list[tuple[Meta, int]], window: int, second_window: int, keys: int
) -> None:
    def key(number: int) -> int:
        return number % keys

    def second_key(numbers: tuple[int, ...]) -> int:
        return sum(numbers) % keys

    second = Compiled(grouping(second_window, route=ByKey(second_key)), ident=0b11)
    first = Compiled(grouping(window, route=ByKey(key)), ident=0b10)
    first.take_all(stream)
    for item in first.emitted:
        second.operation.step(*item)
    wanted = windows_of(remaining(stream), window, key, 0b10)
    assert same(settled(first.emitted), wanted)
    assert same(settled(second.emitted), windows_of(wanted, second_window, second_key, 0b11))


@given(arrivals(), st.integers(1, 4))
def test_partial_windows_undone_are_the_full_windows_or_the_whole_bucket(
    stream: list[tuple[Meta, int]], window: int
) -> None:
    bench = OneBucket(window, undo_partial=True)
    for item, payload in stream:
        bench.take(item, payload)
    rest = [payload for _, _, payload in sorted(remaining(stream), key=lambda item: item[:2])]
    if len(rest) < window:
        wanted = [tuple(rest)] if rest else []
    else:
        wanted = [tuple(rest[end - window : end]) for end in range(window, len(rest) + 1)]
    assert [bench.left[identity] for identity in sorted(bench.left)] == wanted


@given(arrivals(), st.integers(1, 4))
def test_a_custom_order_sorts_the_items_of_a_moment_or_is_refused(stream: list[tuple[Meta, int]], window: int) -> None:
    def place(item: Identified) -> tuple[Any, ...]:
        order, trace, payload = item
        return (order[:12], payload, order, trace)

    bench = OneBucket(window, order=lambda payload: payload)
    for at, (item, payload) in enumerate(stream):
        rest = sorted(remaining(stream[: at + 1]), key=place)
        orders = [order for order, _, _ in rest]
        inverted = any(
            late != early and early.startswith(late)
            for number, early in enumerate(orders)
            for late in orders[number + 1 :]
        )
        if inverted:
            with pytest.raises(OrderViolationError):
                bench.take(item, payload)
            return
        bench.take(item, payload)
        assert bench.payloads == [payload for _, _, payload in rest]
        ends = {(order, trace): end for end, (order, trace, _) in enumerate(rest, 1)}
        assert bench.left == {
            identity: tuple(payload for _, _, payload in rest[max(end - window, 0) : end])
            for identity, end in ends.items()
        }


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 9)), max_size=30),
    st.integers(1, 4),
    st.sampled_from([{}, {"order": lambda payload: payload[0]}, {"undo_partial": True}]),
    st.randoms(use_true_random=False),
)
def test_forgetting_changes_no_output_and_leaves_less_than_a_window(
    steps: list[tuple[int, int, int]], window: int, settings: dict[str, Any], random: Random
) -> None:
    """The minimum time grows by the first number of each step, and nothing below it comes or is taken back."""
    settings = {"route": ByKey(lambda payload: payload[1]), **settings}
    forgetful, whole = Compiled(grouping(window, **settings)), Compiled(grouping(window, **settings))
    limit = 0
    alive: dict[Meta, Any] = {}
    for grows, key, ahead in steps:
        limit += grows
        forgetful.operation.on_time(encode_time(limit))
        for bucket in forgetful.operation.buckets.values():
            older = sum(entry[-3] < encode_time(limit) for entry in bucket.entries)
            assert older < window
        alive = {item: payload for item, payload in alive.items() if item.global_time.time >= limit}
        item = meta(limit + ahead, random.randrange(4))
        if alive and random.random() < 0.4:
            item = random.choice(list(alive))
        if item in alive:
            change = (item._replace(tombstone=True), alive.pop(item))
        else:
            change = (item, alive.setdefault(item, (random.randrange(3), key)))
        forgetful.take(*change)
        whole.take(*change)
        assert forgetful.emitted == whole.emitted
