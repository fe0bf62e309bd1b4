"""Rebalances: where items come once, workers that have less to do are dealt more."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flamecore as fc
from flamecore.abc.operator import each
from flamecore.model.clock import STOPWATCH
from flamecore.model.messages import Busy
from flamecore.model.meta import FrontId, GlobalTime
from flamecore.model.plan import Plan
from flamecore.model.settings import JobSettings
from flamecore.model.vertices import ByTime, Map
from flamecore.runtime.operators.compiler import compile_worker
from flamecore.runtime.operators.exchange import Outbox, routed
from flamecore.runtime.operators.rebalance import DealingByLoad, DealingByTime, LoadShares

counts = st.lists(st.integers(0, 40), max_size=30)


def sizes(ends: Sequence[int]) -> list[int]:
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


@given(counts, st.lists(st.floats(0, 1), min_size=1, max_size=5).filter(lambda shares: sum(shares) > 0.1))
def test_each_worker_gets_its_share(counts: list[int], wanted: list[float]) -> None:
    shares = LoadShares(len(wanted), 0)
    shares.shares = [share / sum(wanted) for share in wanted]
    got = [0] * len(wanted)
    for count in counts:
        ends = shares.deal(count)
        assert ends == sorted(ends)
        assert ends[-1] == count
        got = [so_far + more for so_far, more in zip(got, sizes(ends), strict=True)]
    for found, share in zip(got, shares.shares, strict=True):
        assert abs(found - share * sum(counts)) < len(wanted) + 1


def test_a_worker_without_share_gets_nothing() -> None:
    shares = LoadShares(3, 0)
    shares.shares = [0.25, 0.0, 0.75]
    assert all(sizes(shares.deal(count))[1] == 0 for count in (1, 1, 1, 7, 100))


@given(st.lists(st.integers(0, 1000), min_size=1, unique=True).map(sorted), st.integers(1, 4), st.integers(0, 99))
def test_every_record_is_dealt_once(times: list[int], workers: int, seed: int) -> None:
    orders = [GlobalTime(time, 1).encode() for time in times]
    shares = LoadShares(workers, 0)
    shares.shares = Random(seed).choices([0.0, 0.1, 0.5], k=workers)
    shares.shares[0] += 1.0 - sum(shares.shares)
    for dealing in (DealingByLoad(shares), DealingByTime(workers)):
        parts = dealing(orders, 0, times)
        assert len(parts) == workers
        assert sorted(payload for _, payloads in parts for payload in payloads) == times
        for places, payloads in parts:
            assert places == [GlobalTime(time, 1).encode() for time in payloads]
            assert payloads == sorted(payloads)


class Machine:
    """Two workers, the first of which deals; the second is as busy as `other` with what else it has to do.

    `cost`: number of processors that all records together would keep busy. A worker with more work than time keeps
    all waiting.
    """

    def __init__(self, cost: float, own: float, other: float) -> None:
        self.cost, self.fixed = cost, [own, other]
        self.now = 0.0
        watch = STOPWATCH.set(lambda: self.now)
        self.shares = LoadShares(2, 0)
        STOPWATCH.reset(watch)

    def wanted(self) -> list[float]:
        return [fixed + share * self.cost for fixed, share in zip(self.fixed, self.shares.shares, strict=True)]

    def go_on(self) -> None:
        """Run for a second."""
        wanted = self.wanted()
        speed = min(1.0, 1 / max(wanted))
        self.shares.deal(100)

        def work(orders: Sequence[bytes], trace: int, payloads: Sequence[Any]) -> None:
            self.now += speed * self.shares.shares[0] * self.cost

        self.shares.timed(work)([], 0, [])
        for worker in (1, 0):
            self.shares.note(Busy(worker, speed * wanted[worker], 1.0))


@pytest.mark.parametrize("cost", [0.2, 0.5, 1.0, 1.9])
@pytest.mark.parametrize("other", [0.1, 0.3, 0.9])
def test_all_workers_are_soon_equally_busy(cost: float, other: float) -> None:
    machine = Machine(cost, 0.1, other)
    for _ in range(8):
        machine.go_on()
    first, second = machine.wanted()
    if max(first, second) >= 0.5:
        assert first == pytest.approx(second, abs=0.05) or machine.shares.shares == [1.0, 0.0]
    if other == 0.9 and cost < 0.6:
        assert machine.shares.shares == [1.0, 0.0]


def test_a_lowered_share_grows_again() -> None:
    machine = Machine(1.5, 0.0, 1.5)
    for _ in range(8):
        machine.go_on()
    assert machine.shares.shares[0] > 0.9
    machine.fixed = [0.0, 0.3]
    for _ in range(8):
        machine.go_on()
    first, second = machine.wanted()
    assert first == pytest.approx(second, abs=0.1)


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), max_size=20), st.integers(0, 2), st.floats(0, 3))
def test_the_dealing_worker_keeps_an_even_share(words: list[list[float]], own: int, spent: float) -> None:
    """Also where others have said that they have nothing to do: they may have been sent nothing yet."""
    now = 0.0
    watch = STOPWATCH.set(lambda: now)
    shares = LoadShares(3, own)
    STOPWATCH.reset(watch)

    def work(orders: Sequence[bytes], trace: int, payloads: Sequence[Any]) -> None:
        nonlocal now
        now += spent

    for busy in words:
        shares.deal(10)
        shares.timed(work)([], 0, [])
        for worker in (*{0, 1, 2} - {own}, own):
            shares.note(Busy(worker, busy[worker], 1.0))
        assert sum(shares.shares) == pytest.approx(1)
        assert min(shares.shares) >= 0
        assert shares.shares[own] >= 1 / 3 - 1e-9


def test_nothing_changes_while_nobody_is_busy() -> None:
    machine = Machine(0.3, 0.0, 0.3)
    for _ in range(8):
        machine.go_on()
    assert machine.shares.shares == [0.5, 0.5]


def test_single_items_are_timed_as_runs_are() -> None:
    """Otherwise it would seem to cost nothing, and all of it would be moved at once."""
    now = 0.0
    watch = STOPWATCH.set(lambda: now)
    shares = LoadShares(2, 0)
    STOPWATCH.reset(watch)

    def work(*_: Any) -> None:
        nonlocal now
        now += 0.008

    outboxes = [Outbox() for _ in range(2)]
    vertex = Map("map", route=ByTime(), index=1, function=abs)
    step, _ = routed(vertex, work, each(work), worker=0, owners=(), outboxes=outboxes, fail=work, shares=shares)
    for turn in range(2):
        for time in range(100):
            step(GlobalTime(100 * turn + time, 1).encode(), 0, True, time)
        shares.note(Busy(1, 1.0, 1.0))
        shares.note(Busy(0, 0.4, 1.0))
    assert 0.6 < shares.shares[0] < 0.8
    assert 40 < sum(len(orders) for _, _, _, orders, _ in outboxes[1].take()) <= 100


def test_a_worker_that_deals_nothing_changes_no_share() -> None:
    shares = LoadShares(2, 0)
    for _ in range(5):
        shares.note(Busy(1, 0.0, 1.0))
        shares.note(Busy(0, 1.0, 1.0))
    assert shares.shares == [0.5, 0.5]


def by_load(flow: fc.Flow, fronts: int = 1) -> bool:
    """Return whether a flow's rebalance goes by the load of workers."""
    names = tuple(FrontId("numbers", number) for number in range(fronts))
    outboxes = [Outbox() for _ in range(2)]

    def fail_at(vertex: Any) -> Any:
        return lambda order, trace, alive, payload, error: None

    return (
        compile_worker(Plan(flow.graph(), names, JobSettings(workers=2)), 0, Random(0), outboxes, fail_at).shares
        is not None
    )


def numbers() -> tuple[fc.Flow, fc.Stream[int]]:
    flow = fc.Flow("rebalanced")
    return flow, flow.source("numbers", int)


def test_records_straight_from_fronts_are_dealt_by_load() -> None:
    flow, stream = numbers()
    other = flow.source("others", int)
    stream.map(abs).merge(other).rebalance().map(abs).sink("out")
    assert by_load(flow)


def test_items_that_may_be_taken_back_are_dealt_by_time() -> None:
    flow, stream = numbers()
    stream.key_by(abs).count().rebalance().map(lambda pair: pair).sink("out")
    assert not by_load(flow)


def test_items_of_a_loop_are_dealt_by_time() -> None:
    flow, stream = numbers()

    def body(inside: fc.Stream[int]) -> tuple[fc.Stream[int], fc.Stream[int]]:
        again, done = inside.rebalance().map(lambda number: number - 1).branch(lambda number: number > 0)
        return again, done

    stream.loop(body).sink("out")
    assert not by_load(flow)


def test_items_dealt_by_key_before_are_dealt_by_time() -> None:
    flow, stream = numbers()
    stream.key_by(abs).map(abs).rebalance().map(abs).sink("out")
    assert not by_load(flow)
