"""Placing records: which ways keep what is made of them, what is refused when it is drawn, and what pictures show."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest

import flamecore as fc
from flamecore.cli.render import dot, mermaid
from flamecore.cli.sample import timed
from flamecore.errors import GraphError
from flamecore.model.batch import children, extended, made_of
from flamecore.model.builder import same
from flamecore.model.graph import Graph
from flamecore.model.hashing import check_key
from flamecore.model.meta import GlobalTime, encode_child
from flamecore.model.vertices import ByKey, ByTime, Placing, user_functions

Pair = tuple[str, int]


def number(pair: Pair) -> int:
    return pair[1]


def key(pair: Pair) -> Pair:
    return pair


def pairs(line: str) -> list[Pair]:
    return [(word, len(line)) for word in line.split()]


def drawn(way: Callable[[Any], Any]) -> Graph:
    flow = fc.Flow("places")
    way(flow.source("in", str).place_by(len)).key_by(key, place=number).count(name="count").sink("out")
    return flow.graph()


def turned(inside: Any) -> Any:
    return inside.map(lambda item: item).branch(lambda item: item[1] < 0)


STAYS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda s: s,
    "maps": lambda s: s.map(str.upper).flat_map(pairs).filter(bool).inspect(bool),
    "a branch": lambda s: _one(*s.flat_map(pairs).branch(lambda pair: pair[1])),
    "a copy": lambda s: s.flat_map(pairs).broadcast(3)[1],
    "a stream used twice": lambda s: _used(s.flat_map(pairs)),
    "a label": lambda s: s.label("line").flat_map(pairs),
    "a map by the same place": lambda s: s.flat_map(pairs).key_by(key, place=number).map(key),
    "many maps by the same place": lambda s: reduce(
        lambda stream, _: stream.key_by(key, place=number).map(key), range(60), s.flat_map(pairs)
    ),
    "the last placing": lambda s: s.map(str.strip).place_by(len, name="last").flat_map(pairs),
}

BREAKS: dict[str, Callable[[Any], Any]] = {
    "a rebalance": lambda s: s.rebalance().flat_map(pairs),
    "another key": lambda s: s.flat_map(pairs).key_by(lambda pair: pair[0]).map(key),
    "a state": lambda s: s.flat_map(pairs).key_by(key, place=number).count(name="first").map(lambda pair: pair[0]),
    "a merge": lambda s: s.flat_map(pairs).merge(s.map(lambda line: (line, len(line)))),
    "a loop": lambda s: s.flat_map(pairs).loop(turned),
    "a gathering": lambda s: s.label("l").flat_map(pairs).gather("l").flat_map(lambda got: got.parts),
}


def _one(stream: Any, other: Any) -> Any:
    other.sink("other")
    return stream


def _used(stream: Any) -> Any:
    stream.sink("too")
    return stream


def state_of(graph: Graph) -> Any:
    return next(vertex for vertex in graph.vertices if vertex.name == "count")


@pytest.mark.parametrize("way", STAYS.values(), ids=STAYS)
def test_items_stay_behind_what_makes_them_of_a_record(way: Callable[[Any], Any]) -> None:
    graph = drawn(way)
    placing = graph.placing_of(state_of(graph))
    assert placing is not None
    assert placing is [vertex for vertex in graph.vertices if isinstance(vertex, Placing)][-1]
    assert "by place" not in mermaid(graph) + dot(graph), "no worker changes there"
    assert "by key" in mermaid(graph), "records are dealt"


@pytest.mark.parametrize("way", BREAKS.values(), ids=BREAKS)
def test_items_are_routed_by_their_place_behind_anything_else(way: Callable[[Any], Any]) -> None:
    graph = drawn(way)
    assert graph.placing_of(state_of(graph)) is None
    assert "by place" in mermaid(graph)
    assert "by place" in dot(graph)


def test_a_key_without_place_is_routed_by_itself() -> None:
    flow = fc.Flow("plain")
    flow.source("in", str).place_by(len).flat_map(pairs).key_by(key).count().sink("out")
    graph = flow.graph()
    assert graph.placing_of(next(vertex for vertex in graph.vertices if vertex.stateful)) is None


def in_a_loop(stream: Any) -> Any:
    return stream.loop(lambda inside: inside.place_by(number).map(key).branch(number))


REFUSED: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "no function": (lambda s: s.place_by(3), "place_by after 'in' takes a function, not 3", ""),
    "a field": (
        lambda s: s.place_by("page"),
        "place_by after 'in' takes a function, not 'page'",
        "lambda item: item.page",
    ),
    "a place that is none": (lambda s: s.key_by(key, place=1), r"key_by\(place=…\) after 'in' takes a function", ""),
    "a list as place": (lambda s: s.place_by(pairs), "place_by after 'in': the key function is declared", "tuple"),
    "a list as place of a key": (lambda s: s.key_by(key, place=pairs), "the key function is declared", "tuple"),
    "behind a key": (lambda s: s.key_by(key).place_by(number), "no attribute 'place_by'", ""),
    "in a loop": (in_a_loop, "'place_by:number'> lies in the cycle of <merge 'loop'>", "before the loop, or behind it"),
    "in a loop by key": (
        lambda s: s.key_by(key).loop(lambda s: s.map(key).place_by(number).map(key).branch(number)),
        "'place_by:number'> lies in the cycle of",
        "before the loop",
    ),
    "another place in a loop by key": (
        lambda s: s.key_by(key, place=number).loop(lambda s: s.map(key).key_by(key).count().branch(number)),
        "'count'> goes by the same key to another place inside of",
        "",
    ),
}


@pytest.mark.parametrize(("way", "what", "hint"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_when_it_is_drawn(way: Callable[[Any], Any], what: str, hint: str) -> None:
    def draw() -> Graph:
        flow = fc.Flow("refused")
        way(flow.source("in")).sink("out")
        return flow.graph()

    with pytest.raises((GraphError, AttributeError), match=what) as caught:
        draw()
    assert hint in str(caught.value) + getattr(caught.value, "hint", "")
    assert "key_by" in str(caught.value) or not isinstance(caught.value, AttributeError), "it says where it can be"


@pytest.mark.parametrize("route", [None, ByTime(), ByKey(len, place=abs)])
def test_a_placing_drawn_by_hand_needs_a_key_of_records(route: Any) -> None:
    graph = Graph()
    with pytest.raises(GraphError, match=r"<place_by 'deal'> has no key of records"):
        graph.add(Placing("deal", route=route, function=same, shape="one")).check()


def test_places_are_functions_of_the_user() -> None:
    graph = drawn(STAYS["maps"])
    assert number in user_functions(state_of(graph))
    with timed(graph) as timings:
        route = state_of(graph).route
        assert route.place is number
        assert route.placed(("a", 7)) == 7
    assert "key of count" in [timing.name for timing in timings]
    check_key(number(("a", 1)))


RECORDS = [GlobalTime(time, 1).encode() + encode_child(child) for time, child in ((0, 0), (0, 300), (2, 1), (3, 0))]


@pytest.mark.parametrize("many", [1, 40])
def test_orders_say_of_which_record_they_are_made(many: int) -> None:
    some = children(RECORDS[1:], [many, 2, many])
    for orders in (some, extended(some, b"\0"), list(some), children(some, [2] * len(some))):
        each = len(orders) // (2 * many + 2)
        assert list(made_of(orders, RECORDS)) == [(1, many * each), (2, 2 * each), (3, many * each)]
    assert list(made_of(RECORDS[2:3], RECORDS)) == [(2, 1)]
    assert list(made_of(RECORDS, RECORDS)) == [(index, 1) for index in range(4)]
