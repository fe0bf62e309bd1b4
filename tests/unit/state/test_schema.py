"""A state says what it relies on, and a flow that does not fit it is refused with a clear word."""

from __future__ import annotations

from pathlib import Path

import pytest

import flamecore as fc
from flamecore.abc.store import Store, StoreContext
from flamecore.errors import JobError
from flamecore.runtime.state import schema
from flamecore.runtime.state.migration import StatePlan, plan_migration
from flamecore.testing.bench.stores import using
from flamestream_stores.sqlite import Sqlite

pytestmark = pytest.mark.usefixtures("installed")


def plan_of(folder: Path, flow: fc.Flow) -> StatePlan:
    """What `flamestream plan` finds of the state in a folder."""

    async def act(store: Store) -> StatePlan:
        return await plan_migration(store, flow.graph(), {})

    return using(Sqlite(Sqlite.Options(path=str(folder)), StoreContext(flow.name, create=False)), act)


# -- the order of copies ---------------------------------------------------------------------------------------------


def copies(*, tuple_order: bool, named: str = "group") -> fc.Flow:
    flow = fc.Flow("copies")
    first, second = flow.source("numbers", int).broadcast(2)
    if tuple_order:
        left, right = first.map(abs, name="left"), second.map(int, name="right")
    else:
        right, left = second.map(int, name="right"), first.map(abs, name="left")
    left.merge(right).key_by(lambda n: 0).group(2, name=named).sink("out")
    return flow


def stored(flow: fc.Flow, folder: Path, monkeypatch: pytest.MonkeyPatch, *, earlier: bool) -> None:
    """Run a flow with state, as this version does or as one that knew of no places."""
    with monkeypatch.context() as patch:
        if earlier:
            patch.setattr(schema, "_COPIES", {})
        flow.run({"numbers": [1, 2]}, state=folder)


def test_state_of_copies_in_another_order_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(copies(tuple_order=False), tmp_path, monkeypatch, earlier=True)
    with pytest.raises(JobError, match=r"'group': .* earlier flamestream, .* order of the flow's\s+lines"):
        copies(tuple_order=False).run({"numbers": [1, 2, 3]}, state=tmp_path)
    (operation,) = plan_of(tmp_path, copies(tuple_order=False)).operations
    assert operation.fate == "unreadable"
    assert "in the order of the flow's lines" in operation.why


@pytest.mark.parametrize("earlier", [True, False])
def test_state_of_copies_in_the_same_order_is_kept(
    earlier: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(copies(tuple_order=True), tmp_path, monkeypatch, earlier=earlier)
    assert plan_of(tmp_path, copies(tuple_order=True)).operations[0].fate == "kept"
    assert copies(tuple_order=True).run({"numbers": [1, 2, 3]}, state=tmp_path)["out"] == [(2, 3), (3, 3)]


@pytest.mark.parametrize("before", [True, False])
def test_lines_may_move_between_runs(before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(copies(tuple_order=before), tmp_path, monkeypatch, earlier=False)
    assert plan_of(tmp_path, copies(tuple_order=not before)).operations[0].fate == "kept"
    assert copies(tuple_order=not before).run({"numbers": [1, 2, 3]}, state=tmp_path)["out"] == [(2, 3), (3, 3)]


def test_a_flow_without_copies_says_nothing_of_them() -> None:
    flow = fc.Flow("plain")
    numbers = flow.source("numbers", int)
    numbers.key_by(lambda n: n).count(name="count").sink("counts")
    numbers.sink("all")  # copies that never meet
    assert "copies" not in schema.state_schema(flow.graph())["count"]
