"""The ack table. Numbers are those of the acceptance cases."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from flamecore.errors import ConsistencyError, TimeRegressionError
from flamecore.testing.draws import seeds
from flamestream_ackers.table import AckTable

FAR = 2**63 - 1


def test_case_22_and_23_an_empty_table_goes_as_far_as_it_may() -> None:
    assert AckTable(0, 10, 10).promote(0) == 0
    assert AckTable(0, 10, 10).promote(10**7) == 10**7


def test_case_24_nothing_passes_a_cell_in_use() -> None:
    table = AckTable(0, 14, 10)
    assert not table.ack(70, 1)
    assert table.promote(FAR) == 70


@pytest.mark.parametrize("time", [10**9, 101, 100])
def test_case_25_and_26_what_is_out_of_reach_is_refused(time: int) -> None:
    table = AckTable(0, 10, 10)
    with pytest.raises(ConsistencyError, match="a table of 10 cells of 10 from 0 on") as caught:
        table.ack(time, 1)
    assert not isinstance(caught.value, TimeRegressionError)
    assert (caught.value.time, caught.value.limit) == (time, 100)
    assert not table.ack(99, 1)


def test_case_27_an_epoch_holds_many_times() -> None:
    random = Random(27)
    table = AckTable(0, 100, 10)
    for epoch in range(200):
        start = 500 * epoch
        acks = [(start + offset, random.getrandbits(64)) for offset in random.sample(range(500), 100)]
        for time, xor in acks:
            table.ack(time, xor)
        assert table.promote(start + 500) <= min(time for time, _ in acks)
        random.shuffle(acks)
        for time, xor in acks:
            table.ack(time, xor)
        assert table.promote(start + 500) == start + 500
        assert len(table) == 0


def test_case_28_the_head_goes_by_whole_cells() -> None:
    table = AckTable(0, 10, 10)
    assert not table.ack(5, 77)
    assert table.promote(95) == 0
    assert table.ack(5, 77)
    assert table.promote(95) == 90
    assert table.promote(100) == 100


def test_case_29_an_ack_of_the_past_is_an_error_in_the_only_table() -> None:
    table = AckTable(0, 100, 1)
    assert table.promote(50) == 50
    with pytest.raises(TimeRegressionError) as caught:
        table.ack(49, 1)
    assert (caught.value.time, caught.value.limit) == (49, 50)


@pytest.mark.parametrize(("window", "head"), [(10, 40), (1, 49)])
def test_case_29_and_f13_it_moves_the_head_back_in_one_of_several(window: int, head: int) -> None:
    table = AckTable(0, 100, window, single=False)
    assert table.promote(50) == 50
    assert not table.ack(49, 1)
    assert table._head == head
    assert table.promote(90) == head
    assert table.ack(49, 1)
    assert table.promote(90) == 90


def test_case_29_moving_back_may_not_push_a_cell_in_use_out_at_the_far_end() -> None:
    table = AckTable(0, 10, 10, single=False)
    assert table.promote(50) == 50
    table.ack(149, 1)
    with pytest.raises(ConsistencyError):
        table.ack(49, 1)


def test_moving_back_forgets_what_is_zero_at_the_far_end() -> None:
    table = AckTable(0, 10, 10, single=False)
    table.promote(50)
    table.ack(50, 1)
    table.ack(149, 1)
    table.ack(149, 1)
    assert not table.ack(49, 1)
    with pytest.raises(ConsistencyError):
        table.ack(149, 1)
    table.ack(49, 1)
    table.ack(50, 1)
    assert table.promote(140) == 140


def test_f16_cells_are_cut_from_wherever_the_stream_starts() -> None:
    table = AckTable(7, 10, 10)
    assert not table.ack(17, 1)
    assert table.promote(100) == 17
    assert table.ack(26, 1)
    assert table.promote(36) == 27


def test_microseconds_cost_what_is_in_flight_not_the_time_between() -> None:
    start = 1_700_000_000_000_000
    table = AckTable(-(2**63), 2**64, 1)
    table.ack(start, 5)
    table.ack(start + 3_600_000_000, 6)
    assert len(table) == 2
    assert table.promote(FAR) == start
    table.ack(start, 5)
    assert table.promote(FAR) == start + 3_600_000_000
    table.ack(start + 3_600_000_000, 6)
    assert table.promote(FAR) == FAR


def test_a_cell_that_comes_and_goes_is_kept_once() -> None:
    table = AckTable(0, 2**64, 1)
    table.ack(0, 1)
    for _ in range(1000):
        table.ack(5, 3)
    assert len(table) == 2


class Ring:
    """The table as a list of cells; it must give the same answers."""

    def __init__(self, head: int, capacity: int, window: int, single: bool) -> None:
        self.head, self.window, self.single = head, window, single
        self.cells = [0] * capacity

    def ack(self, time: int, xor: int) -> bool | type[Exception]:
        offset = (time - self.head) // self.window
        if offset >= len(self.cells):
            return ConsistencyError
        if offset < 0 and self.single:
            return TimeRegressionError
        if offset < 0 and any(self.cells[max(0, len(self.cells) + offset) :]):
            return ConsistencyError
        for _ in range(-offset):
            self.cells = [0, *self.cells[:-1]]
            self.head -= self.window
        self.cells[max(offset, 0)] ^= xor
        return not self.cells[max(offset, 0)]

    def promote(self, limit: int) -> int:
        turn = len(self.cells)
        while turn and not self.cells[0] and self.head <= limit - self.window:
            self.cells = [*self.cells[1:], 0]
            self.head += self.window
            turn -= 1
        if not turn:
            self.head = max(limit, self.head)
        return self.head


class TableMachine(RuleBasedStateMachine):
    """Any sequence of calls gives the ring's answers, errors included."""

    @initialize(
        head=st.integers(-5, 5), capacity=st.integers(1, 6), window=st.sampled_from([1, 1, 2, 5]), single=st.booleans()
    )
    def begin(self, head: int, capacity: int, window: int, single: bool) -> None:
        self.table = AckTable(head, capacity, window, single=single)
        self.ring = Ring(head, capacity, window, single)
        self.lost = False

    @precondition(lambda self: not self.lost)
    @rule(offset=st.integers(-8, 32), xor=st.integers(0, 3))
    def ack(self, offset: int, xor: int) -> None:
        time = self.ring.head + offset
        wanted = self.ring.ack(time, xor)
        if isinstance(wanted, bool):
            assert self.table.ack(time, xor) == wanted
        else:
            with pytest.raises(wanted):
                self.table.ack(time, xor)
            self.lost = wanted is ConsistencyError and offset < 0  # moving back stopped half-way, and the job with it

    @precondition(lambda self: not self.lost)
    @rule(offset=st.integers(-3, 40))
    def promote(self, offset: int) -> None:
        limit = self.ring.head + offset
        assert self.table.promote(limit) == self.ring.promote(limit)

    @precondition(lambda self: self.lost)
    @rule()
    def give_up(self) -> None:
        """End the job: its table is lost."""


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=len(seeds(150)), stateful_step_count=30, deadline=None)
