"""Loops by key: what they refuse when they are drawn, and whom the keys belong to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import flamecore as fc
from flamecore.cli.render import dot, mermaid
from flamecore.errors import GraphError
from flamecore.model.builder import same
from flamecore.model.graph import Graph
from flamecore.model.meta import FrontId
from flamecore.model.plan import Plan
from flamecore.model.settings import JobSettings
from flamecore.model.vertices import Broadcast, ByKey, ByTime, KeyedLoop, Map, Route, Sink, Source, ToAll

Item = tuple[int, int]


def key(item: Item) -> int:
    return item[0]


def turn(state: int, item: Item) -> tuple[int, list[Item]]:
    return state + 1, [(item[0], item[1] - 1)]


def goes_on(item: Item) -> bool:
    return item[1] > 0


def drawn(body: Callable[[Any], Any], **options: Any) -> fc.Flow:
    flow = fc.Flow("loops")
    flow.source("in").key_by(key).loop(body, **options).sink("out")
    return flow


def plain(items: Any) -> Any:
    return items.stateful_map(0, turn).branch(goes_on)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another key": (lambda s: s.map(turn).key_by(lambda item: item[0]).count().branch(goes_on), "'count'"),
    "another key of a map": (lambda s: s.map(turn).key_by(goes_on).map(turn).branch(goes_on), "'map:turn-2'"),
    "another key of a group": (lambda s: s.map(turn).key_by(goes_on).group(2).branch(goes_on), "'group'"),
    "rebalance": (lambda s: s.map(turn).rebalance().map(turn).branch(goes_on), "'map:turn-2'> is rebalanced"),
    "rebalance at the end": (lambda s: (s.map(turn).rebalance(), s.map(turn)), "'rebalance'> is rebalanced"),
    "copies to all": (lambda s: s.map(turn)._routed(ToAll()).map(turn).branch(goes_on), "copies items to all workers"),
    "a loop by another key": (
        lambda s: s.map(turn).key_by(goes_on).loop(plain, name="inner").branch(goes_on),
        "'inner.key'> goes by another key",
    ),
    "another key in a cycle": (
        lambda s: s.map(turn).loop(lambda s: s.key_by(goes_on).count().branch(goes_on)).branch(goes_on),
        "'count'> goes by another key",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_way_to_another_key_is_refused(case: str) -> None:
    body, what = REFUSED[case]
    with pytest.raises(GraphError, match=r"inside of <keyed_loop 'loop'>") as refused:
        drawn(body).graph()
    assert what in str(refused.value)
    assert "before key_by" in refused.value.hint
    assert "test_keyed_loop.py" in "".join(refused.value.__notes__)


def test_items_from_outside_of_the_loop_are_refused() -> None:
    flow = fc.Flow("loops")
    items = flow.source("in")
    items.key_by(key).loop(lambda inside: inside.map(turn).merge(items).branch(goes_on)).sink("out")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="<merge 'merge'> lies inside of <keyed_loop 'loop'>, and takes items"):
        flow.graph()


@pytest.mark.parametrize("route", [None, ByKey(goes_on), ByTime()])
def test_what_enters_a_loop_must_come_by_its_key(route: Route) -> None:
    graph = Graph("by hand")
    entry = graph.add(Map("entry", route=route, function=same, shape="one"))
    head = graph.add(KeyedLoop("loop", key=key))
    graph.chain(graph.add(Source("in")), entry, head)
    fork = graph.add(Broadcast("fork"))
    graph.chain(head, graph.add(Map("once", function=same, shape="one")), fork, head)
    graph.chain(fork, graph.add(Map("left", function=same, shape="one")), graph.add(Sink("out")))
    with pytest.raises(GraphError, match="what enters <keyed_loop 'loop'> from <map 'entry'> has not been taken"):
        graph.check()
    entry.route = ByKey(key)
    graph.check()


def test_other_keys_behind_the_way_out_are_no_part_of_the_loop() -> None:
    def body(items: Any) -> Any:
        again, left = plain(items)
        return again, left.rebalance().map(turn).key_by(goes_on).count()

    drawn(body).graph()


def test_the_body_returns_two_streams() -> None:
    with pytest.raises(GraphError, match="the body of loop 'loop' returned"):
        drawn(lambda items: items.stateful_map(0, turn))


@pytest.mark.parametrize("owning", [None, 2])
def test_a_loop_by_key_has_the_owners_of_a_state_outside_of_cycles(owning: int | None) -> None:
    def within(items: Any) -> Any:
        return items.loop(plain).key_by(key).stateful_map(0, turn, name="last").branch(goes_on)

    plan = Plan(drawn(within).graph(), (FrontId("in", 0),), JobSettings(workers=4, owners=owning))
    assert not plan.homes
    assert [cycle for worker in range(4) for cycle in plan.homes_on(worker)] == []
    assert {owner for vertex in plan.graph.vertices for owner in plan.owners_of(vertex)} == set(
        range(4 - (owning or 4), 4)
    )


def test_a_loop_by_key_in_a_cycle_with_another_key_has_the_home_of_that() -> None:
    def around(items: Any) -> Any:
        return items.key_by(key).loop(plain).map(turn).branch(goes_on)

    flow = fc.Flow("loops")
    flow.source("in").loop(around, name="around").sink("out")
    plan = Plan(flow.graph(), (FrontId("in", 0),), JobSettings(workers=4))
    assert {vertex.name for vertex in plan.homes} > {"around", "loop", "loop.key", "stateful_map:turn"}
    assert len(set(plan.homes.values())) == 1


def test_a_picture_shows_where_the_loop_begins() -> None:
    graph = drawn(plain, name="refine").graph()
    assert '(("refine"))' in mermaid(graph)
    assert "|by key| v1" in mermaid(graph)
    assert 'label="refine", shape=circle' in dot(graph)
