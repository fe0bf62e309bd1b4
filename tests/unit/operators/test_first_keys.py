"""State that ends, and the keys that it is stored by: both follow from the order of items, as in a plain program.

Items come late and are taken back, cuts come at any time: what is stored by then is what the items below leave.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flamecore as fc
from flamecore.abc.operator import GONE, Site, Way, each
from flamecore.model.drift import Drift
from flamecore.model.meta import GlobalTime, encode_time
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.operators.drift import DriftOperator
from flamecore.testing.bench.contents import Contents

CODEC = Codec()
NAN = float("nan")
KEYS: list[Any] = [1, True, 1.0, 0.0, -0.0, 0, False, "x", "y", (1, "a"), (True, "a"), None]
VALUES: list[Any] = [0, 0.0, -0.0, False, None, "", b"", (), (0,), (0.0,), (-0.0,), (NAN,), NAN, frozenset(), 1]

Item = tuple[int, Any, Any]
"""(time, key, the state from it on)."""


def left_by(items: list[Item], initial: Any) -> dict[str, str]:
    """Return what items leave, by a plain program: keys and states as text."""
    held: dict[Any, tuple[Any, Any]] = {}
    for _, key, state in sorted(items, key=lambda item: item[0]):
        first = held.pop(key, (key, None))[0]
        if CODEC.encode(state) != CODEC.encode(initial):
            held[key] = (first, state)
    return {repr(first): repr(state) for first, state in held.values()}


class Bench:
    """A state that is the last value of its key, and what its cuts have written."""

    def __init__(self, initial: Any, *, snapshots: bool = True) -> None:
        flow = fc.Flow("last")
        keyed = flow.source("items", tuple).key_by(lambda item: item[1])
        keyed.fold(initial, lambda _, item: item[2], name="last").sink("out")
        (vertex,) = (vertex for vertex in flow.graph().vertices if isinstance(vertex, Drift))
        out = Contents()
        way = Way(out.step, each(out.step))
        self.operator = DriftOperator(vertex, Site(1, out.step, (way,), snapshots=snapshots, stored=CODEC.encode))
        self.written: dict[Any, Any] = {}

    def cut(self, time: int) -> dict[str, str]:
        """Cut at a time; return what has been written until then, as a reader puts it together."""
        for piece in self.operator.cut(encode_time(time)):
            for key, state in piece.items():
                self.written.pop(key, None)
                if state is not GONE:
                    self.written[key] = state
        return {repr(key): repr(state) for key, state in self.written.items()}

    def swept(self) -> dict[str, str]:
        """Return the state of all names as of the last cut, as a sweep reads it."""
        found = self.operator.snapshot_of(self.operator.names)
        return {repr(key): repr(state) for key, state in found.items()}


keys, values = st.sampled_from(KEYS), st.sampled_from(VALUES)
scripts = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"), st.integers(0, 12), st.integers(0, 4), st.sampled_from(KEYS), st.sampled_from(VALUES)
        ),
        st.tuples(st.sampled_from(("cut", "trim", "gone")), st.integers(0, 12)),
    ),
    max_size=30,
)


@pytest.mark.parametrize("initial", VALUES, ids=repr)
@given(script=scripts)
def test_what_a_cut_stores_follows_from_the_items_below_it(initial: Any, script: list[tuple[Any, ...]]) -> None:
    bench, items, latest, floor = Bench(initial), list[Item](), 0, 0
    operator = bench.operator
    for what, *how in script:
        if what == "put":
            back, ahead, key, value = how
            time = max(latest - back, floor) if ahead == 0 else latest + ahead
            if time in {item[0] for item in items}:
                continue
            items.append((time, key, CODEC.decode(CODEC.encode(value))))  # another object than the initial one
            operator.step(GlobalTime(time, 1).encode(), 0, True, items[-1])
            latest = max(latest, time)
        elif what == "gone":
            there = [item for item in items if item[0] >= floor]
            if there:
                victim = there[how[0] % len(there)]
                operator.step(GlobalTime(victim[0], 1).encode(), 0, False, victim)
                items.remove(victim)
        else:
            floor = max(latest + 1 - how[0], floor)
            if what == "trim":
                operator.trim(encode_time(floor))
                continue
            wanted = left_by([item for item in items if item[0] < floor], initial)
            assert bench.cut(floor) == wanted
            if how[0] % 2:  # as when a sweep has come to its end
                operator._enough = 0
                operator.compact()
            assert bench.swept() == wanted
    assert bench.cut(latest + 1) == bench.swept() == left_by(items, initial)


@pytest.mark.parametrize("initial", [0, (0.0, 0)], ids=repr)
def test_a_key_begins_anew_where_it_ends(initial: Any) -> None:
    bench = Bench(initial)
    for time, (key, value) in enumerate([(1, 5), (True, initial), (1.0, 7), (True, 8)]):
        item = (time, key, value)
        bench.operator.step(GlobalTime(time, 1).encode(), 0, True, item)
    assert bench.cut(2) == {}
    assert bench.cut(4) == {"1.0": "8"}


def test_a_state_that_cannot_be_stored_is_told_by_itself() -> None:
    initial = object()
    bench = Bench(initial)
    bench.operator.step(GlobalTime(0, 1).encode(), 0, True, (0, "a", initial))
    bench.operator.step(GlobalTime(1, 1).encode(), 0, True, (1, "b", 1))
    assert bench.cut(2) == {"'b'": "1"}


@pytest.mark.parametrize("snapshots", [False, True])
def test_keys_that_have_ended_take_no_memory(snapshots: bool) -> None:
    bench = Bench(0, snapshots=snapshots)
    operator, stored = bench.operator, 0
    for number in range(20_000):
        time = 2 * number
        for at, state in ((time, 1), (time + 1, 0)):
            operator.step(GlobalTime(at, 1).encode(), 0, True, (at, float(number), state))
        operator.on_time(encode_time(time))
        if snapshots and number % 100 == 99:
            for piece in operator.cut(encode_time(time + 1)):
                stored += sum(state is GONE for state in piece.values())
            operator.compact()
    assert not snapshots or stored >= 199, "those that have ended since a cut"
    kept = max(len(operator.states.top), len(operator.states._old), len(operator.names), len(operator._first_keys))
    assert kept < 3_000
