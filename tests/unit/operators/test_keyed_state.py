"""The layers of a drifting state against one dictionary, and a copy of it at each cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamecore.runtime.operators import keyed_state
from flamecore.runtime.operators.keyed_state import LayeredState
from flamecore.testing.draws import seeds

INITIAL = "the initial state"
SEVEN = 7  # that of integers

keys = st.integers(0, 12)
# Of lists all leave the top at a cut, of numbers those that have changed stay.
put = st.tuples(
    st.just("put"), keys, st.one_of(st.integers(0, 3), st.integers(), st.just(INITIAL), st.just([]), st.just((1,)))
)
put_integer = st.tuples(st.just("put"), keys, st.one_of(st.integers(0, 3), st.just(SEVEN), st.just(2**70)))
puts = st.tuples(st.just("put"), keys, st.integers(0, 3))
others = st.one_of(
    puts,
    puts,
    st.tuples(st.just("drop"), keys, st.none()),
    st.tuples(st.just("trim"), st.none(), st.none()),
    st.tuples(st.just("cut"), st.none(), st.integers(0, 5)),
)
scripts = st.one_of(
    st.tuples(st.just(False), st.lists(st.one_of(put, others), max_size=60)),
    st.tuples(st.just(True), st.lists(st.one_of(put_integer, others), max_size=60)),
)


def take(states: LayeredState, key: int) -> Any:
    """Return a state as an operation does."""
    return states.top[key] if key in states.top else states.load(key)


def without(initial: object, states: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: state for key, state in states.items() if type(state) is list or state != initial}


@settings(max_examples=len(seeds(2_000)), deadline=None)
@given(scripts)
def test_layers_act_as_one_dictionary_and_cuts_as_copies_of_it(script: tuple[bool, list[tuple[str, Any, Any]]]) -> None:
    """A cut is of some steps ago: what has changed since is told to it."""
    integers, actions = script
    initial = SEVEN if integers else INITIAL
    states, now = LayeredState(initial, snapshots=True, integers=integers), dict[int, Any]()
    past: list[dict[int, Any]] = [{}]
    moved: list[set[int]] = []  # for each step, what has got a state, if only the one it had
    written: dict[int, Any] = {}
    last = set[int]()  # keys that a cut has told of
    floor = 0  # cuts do not go back
    for what, key, value in actions:
        moved.append(set())
        if what == "put":
            assert take(states, key) == now.get(key, initial)
            states.top[key] = value
            now[key] = value
            moved[-1].add(key)
        elif what == "drop":
            if key in without(initial, past[floor]):
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
            since = {key: then.get(key, initial) for key in set[int]().union(*moved[at:])}
            changed = states.cut(since)
            if value % 2:
                states.compact(lambda state: state == initial)
            written.update(changed)
            assert without(initial, written) == without(initial, then), "what was written up to now is what there was"
            if states._kept and states.integers is integers:  # they have stayed, and none has grown too large
                assert not any(state == initial and key not in last for key, state in changed.items()), "no first items"
            assert states.snapshot_of(range(13)) == without(initial, then)
            last = set(without(initial, then)) | set(written)
            floor = at
        past.append(dict(now))
    assert {key: states.get(key) for key in range(13)} == {key: now.get(key, initial) for key in range(13)}
    assert set(without(initial, now)) <= set(states.names), "a sweep comes to all of them"


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
    states.top.update((key, [1]) for key in range(64_000))
    states.cut({})
    moved = []
    for _ in range(20):
        states.trim()
        moved.append(len(states._old))
    assert moved[0] == 8001
    assert moved[-1] == 64_001
    states.top[5] = 2
    assert states.snapshot_of([5, "old"]) == {5: [1], "old": 1}


@pytest.mark.parametrize("integers", [False, True])
def test_states_that_change_often_are_looked_for_once(integers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    states, loaded = LayeredState(0, snapshots=True, integers=integers), list[object]()
    load = states.load
    monkeypatch.setattr(states, "load", lambda key: loaded.append(key) or load(key))
    for some in ("abcdefghij", "abcde", "abc", "ab", "c", "abc", "abc"):
        for key in some:
            take_from(states, key)
        changed = states.cut({})
        assert "".join(changed) == some  # type: ignore[arg-type]
        assert len(changed) == len(some)
        assert all(changed[key] == state for key, state in changed.items())
        states.trim()
    assert [*map(str, loaded)] == [*"abcdefghijabc"], "all leave the top once few of them change"
    assert states.snapshot_of("abcj") == {"a": 6, "b": 6, "c": 6, "j": 1}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("beside", [1, (1, "one"), None])
def test_what_is_changed_in_place_has_changed(inside: bool, beside: object) -> None:
    """Such a function breaks the rules, but not the snapshots of a job that needs no repair."""
    states = LayeredState(0, snapshots=True)
    made = [1]
    states.top["a"] = state = ("b", made) if inside else made
    states.top["b"] = beside
    assert states.cut({}) == {"a": state, "b": beside}
    states.trim()
    assert states.load("a") is state
    made.append(2)
    states.top["a"] = state
    assert states.cut({}) == {"a": ("b", [1, 2]) if inside else [1, 2]}


def test_tuples_of_plain_values_stay() -> None:
    states = LayeredState((), snapshots=True)
    for count in range(3):
        states.top.update({"a": (b"a", count), "b": (), "c": 7})
        assert states.cut({}) == ({"a": (b"a", count), "c": 7} if count == 0 else {"a": (b"a", count)})
        assert [*states.top] == ["a", "b", "c"]


def test_a_change_that_is_later_than_all_cuts_is_in_none() -> None:
    states = LayeredState(0, snapshots=True)
    take_from(states, "a")
    for _ in range(3):
        take_from(states, "b")
        assert "b" not in states.cut({"b": 0})
        assert states.snapshot_of("ab") == {"a": 1}
    assert states.get("b") == 3
    assert states.cut({}) == {"b": 3}


def test_a_first_item_that_is_later_than_a_cut_and_taken_back_hides_no_change() -> None:
    states = LayeredState(0, snapshots=True)
    for key in "abc":
        take_from(states, key)
    assert states.cut({"a": 0}) == {"b": 1, "c": 1}
    for key in "bd":
        take_from(states, key)
    states.drop("a")
    assert states.cut({}) == {"b": 2, "d": 1}
    take_from(states, "c")
    assert states.cut({}) == {"c": 2}
    assert states.snapshot_of("abcd") == {"b": 2, "c": 2, "d": 1}


@pytest.mark.parametrize("integers", [False, True])
def test_a_very_large_cut_leaves_the_top(integers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_state, "_MOST_KEPT", 10)
    monkeypatch.setattr(keyed_state, "_AT_ONCE", 4)
    states = LayeredState(0, snapshots=True, integers=integers)
    for size in (10, 11, 5, 9):
        states.top.update((key, object_of(size, key)) for key in range(size))
        assert states.cut({}) == {key: object_of(size, key) for key in range(size)}
        # With 11 they leave, and unless they are known to be integers once more with the next.
        assert len(states.top) == {10: 10, 11: 0, 5: 5 if integers else 0, 9: 9}[size]
        assert states.snapshot_of([0, 4]) == {0: object_of(size, 0), 4: object_of(size, 4)}
    assert states.snapshot_of([10]) == {10: object_of(11, 10)}


def object_of(size: int, key: int) -> int:
    return 1000 * size + key


def test_the_types_of_all_keys_are_known_also_of_equal_ones() -> None:
    """A dictionary keeps the first of several equal keys: 1, True and 1.0 may take each other's place at a cut."""
    states = LayeredState(0, snapshots=True)
    for key in (1, "a"):
        states.top[key] = states.load(key) + 1  # type: ignore[operator]
    assert states.key_types == {int, str}
    assert set(map(type, states.cut({}))) == {int, str}
    states.top[True] = states.load(True) + 1  # type: ignore[operator]
    assert states.key_types == {int, str, bool}
    assert states.cut({1.0: 5}) == {True: 5}
    assert states.key_types == {int, str, bool, float}
    assert states.key_types.issuperset(map(type, states.top))
    states.restore({b"c": 1})
    assert bytes in states.key_types
