"""The layers of a drifting state against one dictionary, and a copy of it at each cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamecore.runtime.operators.keyed_state import LayeredState

INITIAL = object()

keys = st.integers(0, 12)
put = st.tuples(st.just("put"), keys, st.one_of(st.integers(), st.just(INITIAL)))
steps = st.lists(
    st.one_of(
        put,
        put,
        st.tuples(st.just("drop"), keys, st.none()),
        st.tuples(st.just("trim"), st.none(), st.none()),
        st.tuples(st.just("cut"), st.none(), st.integers(0, 5)),
    ),
    max_size=60,
)


def take(states: LayeredState, key: int) -> Any:
    """Return a state as an operation does."""
    return states.top[key] if key in states.top else states.load(key)


def clean(states: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: state for key, state in states.items() if state is not INITIAL}


@settings(max_examples=300, deadline=None)
@given(steps)
def test_layers_act_as_one_dictionary_and_cuts_as_copies_of_it(script: list[tuple[str, Any, Any]]) -> None:
    """A cut is of some steps ago: what has changed since is told to it."""
    states, now = LayeredState(INITIAL, snapshots=True), dict[int, Any]()
    past: list[dict[int, Any]] = [{}]
    moved: list[set[int]] = []  # for each step, what has got a state, if only the one it had
    last_cut: dict[int, Any] = {}
    written: dict[int, Any] = {}
    floor = 0  # cuts do not go back
    for what, key, value in script:
        moved.append(set())
        if what == "put":
            assert take(states, key) == now.get(key, INITIAL)
            states.top[key] = value
            now[key] = value
            moved[-1].add(key)
        elif what == "drop":
            if key in clean(past[floor]):
                moved.pop()
                continue  # what is older than a cut is not taken back
            states.drop(key)
            for each in (now, *past[floor:]):
                each.pop(key, None)
            for keys_moved in moved[floor:]:
                keys_moved.discard(key)
        elif what == "trim":
            states.trim()
        else:
            at = max(len(past) - 1 - value, floor)
            then = past[at]
            since = {key: then.get(key, INITIAL) for key in set[int]().union(*moved[at:])}
            changed = states.cut(since)
            written.update(changed)
            assert clean(written) == clean(then), "what was written up to now is what there was"
            assert states.snapshot_of(range(13)) == clean(then)
            last_cut, floor = then, at
        past.append(dict(now))
    assert {key: states.get(key) for key in range(13)} == {key: now.get(key, INITIAL) for key in range(13)}
    assert states.snapshot_of(range(13)) == clean(last_cut)
    assert set(clean(now)) <= set(states.names), "a sweep comes to all of them"


def test_a_key_is_noted_once() -> None:
    states = LayeredState(0, snapshots=True)
    for _ in range(3):
        take_from(states, "a")
        states.cut({})
        states.trim()
    assert states.names == ["a"]


def take_from(states: LayeredState, key: str) -> None:
    states.top[key] = (states.top.get(key) or states.load(key)) + 1


def test_an_unhashable_key_is_refused_before_anything_is_noted() -> None:
    states = LayeredState(0, snapshots=True)
    with pytest.raises(TypeError):
        states.load([])
    assert states.names == []


def test_no_changes_are_noted_without_snapshots() -> None:
    states = LayeredState(0, snapshots=False)
    take_from(states, "a")
    assert states.top == {"a": 1}
    assert states.names == []


def test_a_large_cut_is_moved_a_share_at_a_time() -> None:
    states = LayeredState(0, snapshots=True)
    states.restore({"old": 1})
    states.top.update(dict.fromkeys(range(64_000), 1))
    states.cut({})
    moved = []
    for _ in range(20):
        states.trim()
        moved.append(len(states._old))
    assert moved[0] == 8001
    assert moved[-1] == 64_001
    states.top[5] = 2
    assert states.snapshot_of([5, "old"]) == {5: 1, "old": 1}


def test_the_types_of_all_keys_are_known_also_of_equal_ones() -> None:
    """A dictionary keeps the first of several equal keys: 1, True and 1.0 may take each other's place at a cut."""
    states = LayeredState(0, snapshots=True)
    for key in (1, "a"):
        states.top[key] = states.load(key) + 1  # type: ignore[operator]
    assert states.key_types == {int, str}
    assert set(map(type, states.cut({}))) == {int, str}
    states.top[True] = states.load(True) + 1  # type: ignore[operator]
    assert states.key_types == {int, str, bool}
    assert [*states.cut({1.0: 1})] == [True]
    assert [*map(type, states.top)] == [float]
    assert states.key_types == {int, str, bool, float}
    states.restore({b"c": 1})
    assert bytes in states.key_types
