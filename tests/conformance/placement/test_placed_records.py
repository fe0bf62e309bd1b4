"""Records dealt by place: what is made of them stays, and a key of another place is an error, on any workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

import flamecore as fc
from flamecore.abc.store import StoreContext
from flamecore.errors import FlameError, JobError, OperationError, PlaceError
from flamecore.model.graph import Graph
from flamecore.model.hashing import key_group, stable_hash
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.config.defaults import ACKERS
from flamecore.runtime.state.inspect import value_of
from flamecore.runtime.state.migration import plan_migration
from flamecore.testing import assert_deterministic, assert_exactly_once
from flamecore.testing.bench.stores import using
from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import acker_named, compare
from flamecore.testing.flows.reference import Failed, interpret
from flamecore.testing.simulation.simulation import Simulation
from flamestream_stores.sqlite import Sqlite

Inputs = Mapping[str, list[Any]]


class Page(NamedTuple):
    """A version of a page."""

    id: int
    text: str


class Found(NamedTuple):
    """A word on a page."""

    word: str
    page: int
    places: tuple[int, ...]


def page_id(page: Page) -> int:
    return page.id


def words(page: Page) -> list[Found]:
    found: dict[str, list[int]] = {}
    for place, word in enumerate(page.text.split()):
        found.setdefault(word, []).append(place)
    return [Found(word, page.id, tuple(places)) for word, places in found.items()]


def word_of(found: Found) -> tuple[str, int]:
    return found.word, found.page


def page_of(key: tuple[str, int]) -> int:
    return key[1]


def post(last: Found | None, found: Found) -> tuple[Found, list[tuple[str, Found]]]:
    return found, [("-", last)] * (last is not None) + [("+", found)]


def pages(count: int = 60, seed: int = 1) -> list[Page]:
    random = Random(seed)
    return [
        Page(random.randrange(9), " ".join(random.choices("abcdefgh", k=random.randrange(6)))) for _ in range(count)
    ]


def index() -> fc.Flow:
    """Draw the inverted index by word and page, where the page is."""
    flow = fc.Flow("index")
    found = flow.source("pages", Page).place_by(page_id).flat_map(words, name="split")
    found.key_by(word_of, place=page_of).stateful_map(None, post, name="post").sink("out")
    return flow


def ways() -> fc.Flow:
    """Draw branches, copies and labels on the way to states by place, one of them behind another."""
    flow = fc.Flow("ways")
    placed = flow.source("pages", Page).label("page").place_by(page_id)
    short, long = placed.branch(lambda page: len(page.text) < 4)
    one, other = long.flat_map(words).filter(lambda found: found.word != "a").broadcast(2)
    counted = one.key_by(word_of, place=page_of).count(name="counted")
    counted.key_by(lambda pair: pair[0], place=page_of).fold(0, lambda total, pair: total + pair[1]).sink("counted")
    here = other.key_by(word_of, place=page_of).map(lambda found: found, name="here")
    here.key_by(lambda found: (found.page, len(found.places)), place=lambda key: key[0]).group(2).sink("windows")
    of_page = other.key_by(lambda found: (found.word < "d", found.page), place=page_of, label="page")
    of_page.fold(0, lambda count, found: count + 1, name="of_page").sink("labelled")
    short.map(lambda page: page.id).key_by(lambda number: number, place=lambda key: key).count().sink("short")
    return flow


def behind_repairs() -> fc.Flow:
    """Draw records that are taken back and come again, at other places."""
    flow = fc.Flow("repaired")
    spread = flow.source("pages", Page).rebalance().flat_map(words)
    latest = spread.key_by(lambda found: found.word).group(2)
    records = latest.map(lambda pair: Page(sum(found.page for found in pair) % 7, pair[-1].word + " x y x"))
    found = records.place_by(page_id).flat_map(words)
    found.key_by(word_of, place=page_of).stateful_map(None, post).sink("out")
    return flow


def without_placing() -> fc.Flow:
    """Draw places alone: items go to the worker of their place, from two sources, and in a loop by key."""
    flow = fc.Flow("alone")
    found = flow.source("pages", Page).merge(flow.source("more", Page)).rebalance().flat_map(words)

    def body(inside: fc.KeyedStream[Any, Any]) -> Any:
        turned = inside.stateful_map(0, lambda n, item: (n + 1, [(item[0], item[1] - 1, n)]), name="turn")
        return turned.branch(lambda item: item[1] > 0)

    rounds = found.map(lambda found: (word_of(found), 2, 0))
    rounds.key_by(lambda item: item[0], place=page_of).loop(body, name="rounds").sink("rounds")
    found.key_by(word_of, place=page_of).reduce(max).sink("most")
    return flow


def broken() -> fc.Flow:
    """Draw ways that do not stay: a rebalance, another key, a merge, a loop; each routes by the place again."""
    flow = fc.Flow("broken")
    placed = flow.source("pages", Page).place_by(page_id)

    def body(inside: fc.Stream[Any]) -> Any:
        back, out = inside.map(lambda item: (item[0], item[1] - 1)).branch(lambda item: item[1] > 0)
        return back, out

    def by(found: Found) -> tuple[str, int]:
        return found.word, found.page + len(found.word)  # not the place of its page

    spread = placed.rebalance().flat_map(words)
    keyed = placed.key_by(lambda page: page.text).flat_map(words)
    gone_round = placed.flat_map(words).map(lambda found: (found, 2)).loop(body).map(lambda item: item[0])
    for name, stream in (("spread", spread), ("keyed", keyed), ("merged", spread.merge(keyed)), ("round", gone_round)):
        stream.key_by(by, place=page_of).count(name=name).sink(name)
    return flow


def rounds() -> fc.Flow:
    """Draw loops before and behind a placing; the one by key is shared by place."""
    flow = fc.Flow("rounds")

    def before(inside: fc.Stream[Any]) -> Any:
        last = (
            inside.key_by(lambda page: page.id % 2).group(2).map(lambda pair: pair[-1]._replace(text=pair[-1].text[1:]))
        )
        return last.filter(lambda page: len(page.text) > 4), last

    def behind(inside: fc.KeyedStream[Any, Any]) -> Any:
        turned = inside.stateful_map(0, lambda n, item: (n + 1, [(item[0], item[1] - 1, n)]), name="turn")
        kept = turned.key_by(key_of, place=page_of).count(name="kept").map(lambda pair: (pair[0], pair[1] % 3, pair[1]))
        return kept.branch(lambda item: item[1] > 0)

    def key_of(item: Any) -> Any:
        return item[0]

    shorter = flow.source("pages", Page).rebalance().map(lambda page: page).loop(before)
    found = shorter.place_by(page_id).flat_map(words).map(lambda found: (word_of(found), 2, 0))
    looped = found.key_by(key_of, place=page_of).loop(behind, name="rounds")
    looped.sink("rounds")
    looped.key_by(key_of, place=page_of).reduce(max).sink("most")
    return flow


FLOWS: list[Callable[[], fc.Flow]] = [index, ways, behind_repairs, without_placing, broken, rounds]


def inputs_of(flow: fc.Flow) -> dict[str, list[Page]]:
    return {source.name: pages(30, number) for number, source in enumerate(flow.graph().sources)}


@pytest.mark.parametrize("build", FLOWS)
def test_no_interleaving_changes_what_comes_out(build: Callable[[], fc.Flow]) -> None:
    flow = build()
    outputs = assert_deterministic(flow, inputs_of(flow), workers=(1, 2, 3, 4), seeds=seeds(2 * len(ACKERS)))
    assert all(outputs.values())


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("build", FLOWS)
def test_times_of_the_wall_change_nothing_but_the_order_of_records(build: Callable[[], fc.Flow], workers: int) -> None:
    flow = build()
    graph, inputs = flow.graph(), inputs_of(flow)
    run = Simulation(graph, inputs, acker=acker_named(ACKERS[0]), workers=workers, clock="wall", seed=workers).run()
    wanted = interpret(graph, inputs, times={front.source: each for front, each in run.times.items()})
    compare(run, {name: [output.payload for output in some] for name, some in wanted.items()}, None, f"{workers}")


@pytest.mark.parametrize("build", FLOWS)
def test_kills_and_rescales_do_not_show(build: Callable[[], fc.Flow]) -> None:
    flow = build()
    assert_exactly_once(flow, inputs_of(flow), seeds=seeds(12), kinds=["kill"])


def test_a_run_goes_on_on_other_numbers_of_workers(tmp_path: Path) -> None:
    flow, state, given = index(), tmp_path / "state", pages()
    wanted = flow.run({"pages": given})["out"]
    found: list[Any] = []
    for end, workers in ((10, 2), (25, 1), (40, 4), (len(given), 3)):
        found += flow.run({"pages": given[:end]}, workers=workers, state=state)["out"]
    assert found == wanted


# -- what stays --------------------------------------------------------------------------------------------------------


def crossing(graph: Graph, inputs: Inputs, workers: int) -> set[str]:
    """Return the vertices to which items come from another worker."""
    acker = acker_named(ACKERS[0])
    run = Simulation(graph, inputs, acker=acker, workers=workers, seed=workers, trace=True).run()
    return {arrival.vertex for arrival in run.trace}


@pytest.mark.parametrize("workers", [2, 4])
def test_nothing_that_is_made_of_a_record_is_sent(workers: int) -> None:
    assert crossing(index().graph(), {"pages": pages()}, workers) == {"place_by:page_id"}
    found = crossing(broken().graph(), {"pages": pages()}, workers)
    assert {"spread", "keyed", "merged", "round"} < found


def test_state_is_where_the_place_says(tmp_path: Path) -> None:
    simulation = Simulation(index().graph(), {"pages": pages()}, acker=acker_named(ACKERS[0]), workers=3, seed=1)
    simulation.run()
    kept = 0
    for number in range(3):
        states = simulation.workers[f"worker/{number}"].compiled.stateful["post"].states.top  # type: ignore[attr-defined]
        kept += len(states)
        assert {simulation.plan.owners[key_group(stable_hash(page))] for _, page in states} <= {number}
    assert kept > 9


def test_state_by_place_is_found_with_the_flow_alone(tmp_path: Path) -> None:
    def state() -> Sqlite:
        return Sqlite(Sqlite.Options(path=str(tmp_path)), StoreContext("index", create=False))

    flow = index()
    graph, codec = flow.graph(), Codec.of(flow.graph())
    flow.run({"pages": [*pages(), Page(5, "z z")]}, workers=3, state=tmp_path)
    got = using(state(), lambda store: value_of(store, codec, "post", ["z", ("z", 5)], graph))
    assert (got.found, got.value) == (True, Found("z", 5, (0, 1)))
    with pytest.raises(JobError, match="stored by the places of its keys") as caught:
        using(state(), lambda store: value_of(store, codec, "post", [("z", 5)]))
    assert "--app" in caught.value.hint
    plan = using(state(), lambda store: plan_migration(store, graph, {}))
    assert [(each.name, each.fate) for each in plan.operations] == [("post", "kept")]
    assert plan.operations[0].keys > 9


@pytest.mark.parametrize("turned", [False, True])
def test_state_by_place_and_by_key_are_not_mixed(tmp_path: Path, turned: bool) -> None:
    def flow(place: Any) -> fc.Flow:
        flow = fc.Flow("turned")
        flow.source("pages", Page).flat_map(words).key_by(word_of, place=place).count(name="count").sink("out")
        return flow

    before, after = (None, page_of) if turned else (page_of, None)
    flow(before).run({"pages": pages()}, workers=2, state=tmp_path)
    with pytest.raises(JobError, match=r"it was that of a drift.*, and the operation is a drift"):
        flow(after).run({"pages": pages(70)}, workers=2, state=tmp_path)


def test_another_function_of_places_is_an_error_not_lost_state(tmp_path: Path) -> None:
    def flow(place: Any) -> fc.Flow:
        flow = fc.Flow("other")
        flow.source("pages", Page).flat_map(words).key_by(word_of, place=place).count(name="count").sink("out")
        return flow

    # By default one worker has all counts, and finds them wherever their places are.
    flow(page_of).run({"pages": pages()}, workers=4, state=tmp_path, settings={"job.owners": 4})
    for other in (lambda key: key[0] * 3, lambda key: key[7]):
        with pytest.raises(FlameError, match=r"or key_by another place|its place cannot be found"):
            flow(other).run({"pages": pages(70)}, workers=3, state=tmp_path)


# -- what fails --------------------------------------------------------------------------------------------------------


def misplaced(place: Callable[[Any], Any] = page_of) -> fc.Flow:
    flow = fc.Flow("misplaced")
    found = flow.source("pages", Page).place_by(page_id).flat_map(words)
    found.key_by(word_of, place=place).count(name="count").sink("out")
    return flow


def wrong_of(key: tuple[str, int]) -> int:
    return key[1] + (key[0] == "wrong")


GIVEN = [Page(3, "a b"), Page(4, "a wrong b"), Page(3, "b"), Page(6, "wrong")]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_key_of_another_place_is_an_error_that_names_both(workers: int) -> None:
    with pytest.raises(OperationError) as caught:
        misplaced(wrong_of).run({"pages": GIVEN}, workers=workers)
    text = str(caught.value)
    assert "'count' failed: 'count' is to take an item with the key ('wrong', 4), whose place is 5" in text
    assert "was dealt by 'place_by:page_id' to the place 4" in text
    assert "value 2 of pages" in text


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("wrong", [wrong_of, lambda key: 1 // (key[0] != "wrong") * key[1], lambda key: [key[1]]])
def test_only_items_of_another_place_are_left_out(wrong: Callable[[Any], Any], workers: int) -> None:
    flow = misplaced(wrong)
    settings = {"job.on_error": "skip", "job.max_failed": 1.0}
    wanted = [output.payload for output in interpret(flow.graph(), {"pages": GIVEN}, skip_failing=True)["out"]]
    assert flow.run({"pages": GIVEN}, workers=workers, settings=settings)["out"] == wanted


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(
    ("none", "why"),
    [
        (float("nan"), "NaN is not equal to itself"),
        ([], "a key of type list has no hash.*use a tuple"),
        (object(), "has no hash"),
    ],
)
def test_a_place_that_is_no_key_fails_on_any_number_of_workers(none: Any, why: str, behind: bool, workers: int) -> None:
    flow = fc.Flow("none")
    numbers = flow.source("numbers", int)
    numbers = numbers.place_by(lambda n: none if n == 2 else n, name="deal") if behind else numbers
    numbers.key_by(lambda n: n, place=lambda n: none if n == 2 else n).count(name="count").sink("out")
    with pytest.raises(OperationError, match=rf"'{'deal' if behind else 'count'}' failed: .*({why})"):
        flow.run({"numbers": [1, 2, 3, 2]}, workers=workers)
    kept = flow.run(
        {"numbers": [1, 2, 3, 2]}, workers=workers, settings={"job.on_error": "skip", "job.max_failed": 1.0}
    )
    assert kept["out"] == [(1, 1), (3, 1)]


@pytest.mark.parametrize("workers", [1, 2])
def test_many_records_with_one_item_each_are_checked_too(workers: int) -> None:
    flow = fc.Flow("pairs")
    placed = flow.source("numbers", int).place_by(lambda n: n % 7).map(lambda n: (n, n % 7)).map(tuple)
    placed.key_by(lambda pair: pair, place=lambda key: key[1] + (key[0] == 150)).count().sink("out")
    numbers = [n for n in range(200) if n != 150]
    assert flow.run({"numbers": numbers}, workers=workers)["out"] == [((n, n % 7), 1) for n in numbers]
    with pytest.raises(OperationError, match=r"with the key \(150, 3\), whose place is 4"):
        flow.run({"numbers": range(200)}, workers=workers)


def test_any_number_of_workers_fails_at_the_same_record() -> None:
    flow = misplaced(wrong_of)
    with pytest.raises(Failed) as wanted:
        interpret(flow.graph(), {"pages": GIVEN})
    assert isinstance(wanted.value.error, PlaceError)
    assert_deterministic(flow, {"pages": GIVEN}, workers=(1, 2, 3, 4), seeds=range(len(ACKERS)))


def test_a_late_item_that_fails_no_longer_fails_once_it_is_taken_back() -> None:
    flow = fc.Flow("guess")
    pairs = flow.source("numbers", int).rebalance().map(lambda n: n).key_by(lambda n: 0).group(2)
    records = pairs.place_by(lambda pair: pair[-1])
    keyed = records.key_by(lambda pair: (pair[0], pair[-1]), place=lambda key: key[1] + (key[1] - key[0] > 1))
    keyed.count().sink("out")
    assert_deterministic(flow, {"numbers": list(range(25))}, workers=(1, 2, 3, 4), seeds=seeds(2 * len(ACKERS)))


@pytest.mark.parametrize("setting", ["job.check_types", "job.check_mutation"])
def test_checked_functions_have_places_too(setting: str) -> None:
    flow = index()
    wanted = flow.run({"pages": pages()})["out"]
    assert flow.run({"pages": pages()}, workers=3, settings={setting: True})["out"] == wanted
    with pytest.raises(OperationError, match="whose place is 5"):
        misplaced(wrong_of).run({"pages": GIVEN}, workers=2, settings={setting: True})
