"""A state says what it relies on, and a flow that does not fit it is refused with a clear word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.store import Store, StoreContext
from flamecore.errors import JobError
from flamecore.runtime.state import fit
from flamecore.runtime.state.accepted_loss import accept
from flamecore.runtime.state.migration import StatePlan, plan_migration
from flamecore.testing.bench.stores import using
from flamestream_stores.sqlite import Sqlite

pytestmark = pytest.mark.usefixtures("installed")


def plan_of(folder: Path, flow: fc.Flow) -> StatePlan:
    """Return the plan that `flamestream plan` makes of the state in a folder."""

    async def act(store: Store) -> StatePlan:
        return await plan_migration(store, flow.graph(), {})

    return using(Sqlite(Sqlite.Options(path=str(folder)), StoreContext(flow.name, create=False)), act)


# -- the order of copies ---------------------------------------------------------------------------------------------


def copies(*, tuple_order: bool) -> fc.Flow:
    flow = fc.Flow("copies")
    first, second = flow.source("numbers", int).broadcast(2)
    if tuple_order:
        left, right = first.map(abs, name="left"), second.map(int, name="right")
    else:
        right, left = second.map(int, name="right"), first.map(abs, name="left")
    left.merge(right).key_by(lambda n: 0).group(2, name="group").sink("out")
    return flow


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True), (True, True)])
def test_lines_may_move_between_runs(before: bool, after: bool, tmp_path: Path) -> None:
    copies(tuple_order=before).run({"numbers": [1, 2]}, state=tmp_path)
    assert plan_of(tmp_path, copies(tuple_order=after)).operations[0].fate == "kept"
    assert copies(tuple_order=after).run({"numbers": [1, 2, 3]}, state=tmp_path)["out"] == [(2, 3), (3, 3)]


def test_an_operation_whose_name_a_sink_has_goes_on(tmp_path: Path) -> None:
    def made() -> fc.Flow:
        flow = fc.Flow("named")
        first, second = flow.source("numbers", int).broadcast(2)
        right = second.map(str, name="right")
        left = first.key_by(lambda n: n).count(name="out").map(str, name="left")
        left.merge(right).sink("out")
        return flow

    made().run({"numbers": [1, 1]}, state=tmp_path)
    assert plan_of(tmp_path, made()).operations[0].fate == "kept"
    assert made().run({"numbers": [1, 1, 1]}, state=tmp_path)["out"] == ["(1, 3)", "1"]


# -- another operation under the same name -----------------------------------------------------------------------------


def text(state: str, word: str) -> str:
    return state + word


Keyed = fc.KeyedStream[Any, Any]
Make = Callable[[Keyed], fc.Stream[Any]]

FORMS: dict[str, Make] = {
    "count": lambda s: s.count(name="x"),
    "fold from text": lambda s: s.fold("", lambda state, word: state + word, name="x"),
    "fold from text, annotated": lambda s: s.fold("", text, name="x"),
    "fold from a number": lambda s: s.fold(0, lambda state, word: state + 0.5, name="x"),
    "fold from a tuple": lambda s: s.fold((), lambda state, word: (*state, word), name="x"),
    "fold from nothing": lambda s: s.fold(None, lambda state, word: word, name="x"),
    "reduce": lambda s: s.reduce(lambda a, b: a + b, name="x"),
    "stateful_map from text": lambda s: s.stateful_map("", lambda state, word: (word, [word]), name="x"),
    "stateful_map from a number": lambda s: s.stateful_map(0, lambda state, word: (1, [word]), name="x"),
    "group": lambda s: s.group(3, name="x"),
}

TEXTS = {"fold from nothing", "fold from text", "fold from text, annotated", "reduce", "stateful_map from text"}
NUMBERS = {"count", "fold from a number", "stateful_map from a number"}


def words(make: Make, type_: Any = str) -> fc.Flow:
    flow = fc.Flow("words")
    make(flow.source("words", type_).key_by(lambda word: word)).sink("out")
    return flow


def fits(before: str, after: str) -> bool:
    """Return whether the states of one are states of the other.

    States of the fold from nothing are texts here.
    """
    if before == after or {before, after} <= TEXTS or (after == "fold from nothing" and before != "group"):
        return True
    halves = before == "fold from a number" and after == "count"  # counted are whole numbers
    return {before, after} <= NUMBERS and not halves


@pytest.mark.parametrize("before", FORMS)
def test_a_plan_keeps_what_fits_and_a_run_refuses_the_rest(before: str, tmp_path: Path) -> None:
    words(FORMS[before]).run({"words": ["to", "be"]}, state=tmp_path)
    given = {"words": ["to", "be", "to"]}
    for after, make in FORMS.items():
        (operation, *_) = plan_of(tmp_path, words(make)).operations
        assert operation.fate == ("kept" if fits(before, after) else "unreadable"), after
        if not fits(before, after):
            assert operation.why
            with pytest.raises(JobError, match=r"'x'.*(cannot continue from the state|it was that of a)"):
                words(make).run(given, state=tmp_path)
    assert len(words(FORMS[before]).run(given, state=tmp_path)["out"]) == 1, "nothing was changed"


@pytest.mark.parametrize(("before", "after"), [("count", "fold from a number"), ("reduce", "fold from text")])
def test_an_operation_goes_on_with_values_that_fit(before: str, after: str, tmp_path: Path) -> None:
    words(FORMS[before]).run({"words": ["to", "be"]}, state=tmp_path)
    (found,) = words(FORMS[after]).run({"words": ["to", "be", "to"]}, state=tmp_path)["out"]
    assert found in (("to", 1.5), ("to", "toto"))


def test_records_are_not_left_out_for_a_state_that_does_not_fit(tmp_path: Path) -> None:
    words(FORMS["count"]).run({"words": ["to"]}, state=tmp_path)
    with pytest.raises(JobError, match="cannot continue from the state"):
        words(FORMS["fold from text"]).run({"words": ["to", "to"]}, state=tmp_path, settings={"job.on_error": "skip"})


@pytest.mark.parametrize("after", [FORMS["fold from nothing"], FORMS["reduce"]])
def test_a_plan_says_what_nobody_can_know(after: Make, tmp_path: Path) -> None:
    words(FORMS["count"]).run({"words": ["to"]}, state=tmp_path)
    plan = plan_of(tmp_path, words(after, object))
    assert [(each.fate, "cannot know whether they fit" in each.why) for each in plan.operations] == [("kept", True)]
    assert not plan.loss
    assert "cannot know" in "\n".join(plan.lines())


def test_other_declared_types_are_refused_before_a_run(tmp_path: Path) -> None:
    def number(state: int, word: str) -> int:
        return state + 1

    def several(state: tuple[int, ...], word: str) -> tuple[int, ...]:
        return (*state, 1)

    words(lambda s: s.fold(0, number, name="x")).run({"words": ["to"]}, state=tmp_path)
    with pytest.raises(JobError, match=r"its state for 'to' is 1, and is declared otherwise: tuple\[int, \.\.\.\]"):
        words(lambda s: s.fold((), several, name="x")).run({"words": ["to"]}, state=tmp_path)


def test_an_accepted_loss_is_not_looked_at(tmp_path: Path) -> None:
    words(FORMS["count"]).run({"words": ["to"]}, state=tmp_path)
    changed = words(FORMS["fold from text"])

    async def act(store: Store) -> None:
        plan = await plan_migration(store, changed.graph(), {})
        await accept(store, plan.identity, changed.graph(), plan.loss)

    using(Sqlite(Sqlite.Options(path=str(tmp_path)), StoreContext("words", create=False)), act)
    assert changed.run({"words": ["to", "be"]}, state=tmp_path)["out"] == [("be", "be")]


def test_nothing_is_read_of_operations_that_are_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words(FORMS["count"]).run({"words": ["to"]}, state=tmp_path)
    monkeypatch.setattr(fit, "decode_part", None)
    assert words(FORMS["count"]).run({"words": ["to", "to"]}, state=tmp_path)["out"] == [("to", 2)]
