"""The flow API: what each operation gives, what is refused when the flow is built, and what the types become."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import flamecore as fc
from flamecore.abc.transport import TransportCapabilities
from flamecore.errors import ConfigError, GraphError
from flamecore.model.drift import Drift
from flamecore.model.vertices import Broadcast, Merge, Sink
from flamecore.runtime.config import plugins as registry
from flamecore.testing.flows.deterministic import acker_named
from flamecore.testing.simulation.simulation import Simulation
from flamestream_inproc import InprocTransport

Build = Callable[[fc.Stream[int]], object]
"""Ends the stream it is given in a sink, or draws something that cannot work."""


def out(build: Callable[[fc.Stream[int]], fc.Stream[Any]], records: list[int], workers: int = 1) -> list[Any]:
    flow = fc.Flow("small")
    build(flow.source("numbers", int)).sink("out")
    return flow.run({"numbers": records}, workers=workers)["out"]


# -- what comes out ---------------------------------------------------------------------------


def last_and_sum(state: int, n: int) -> tuple[int, list[str]]:
    return state + n, [f"{n} of {state + n}"] * (n % 3)


def descend(stream: fc.Stream[int]) -> tuple[fc.Stream[int], fc.Stream[int]]:
    fewer = stream.map(lambda n: n - 1)
    return fewer.filter(lambda n: n > 0), fewer


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("build", "records", "wanted"),
    [
        (lambda s: s.map(lambda n: n + 1), [1, 2], [2, 3]),
        (lambda s: s.flat_map(range), [2, 0, 3], [0, 1, 0, 1, 2]),
        (lambda s: s.filter(lambda n: n % 2), [1, 2, 3], [1, 3]),
        (lambda s: s.inspect(lambda n: "ignored"), [1, 2], [1, 2]),
        (lambda s: s.rebalance().map(lambda n: n * n), list(range(9)), [n * n for n in range(9)]),
        (lambda s: s.key_by(lambda n: n % 2).map(str), [1, 2], ["1", "2"]),
        (lambda s: s.key_by(lambda n: n % 2).flat_map(lambda n: [n, n]), [1, 2], [1, 1, 2, 2]),
        (lambda s: s.key_by(lambda n: n % 2).group(2), [1, 2, 3, 4], [(1,), (2,), (1, 3), (2, 4)]),
        (
            lambda s: s.key_by(lambda n: n % 2).reduce(lambda a, b: a + b),
            [1, 2, 3, 4],
            [(1, 1), (0, 2), (1, 4), (0, 6)],
        ),
        (
            lambda s: s.key_by(lambda n: n % 2).fold("", lambda text, n: text + str(n)),
            [1, 2, 3],
            [(1, "1"), (0, "2"), (1, "13")],
        ),
        (lambda s: s.key_by(lambda n: n % 2).count(), [1, 2, 3], [(1, 1), (0, 1), (1, 2)]),
        (
            lambda s: s.key_by(lambda n: 0).stateful_map(0, last_and_sum),
            [1, 3, 2],
            ["1 of 1", "2 of 6", "2 of 6"],
        ),
        (lambda s: s.loop(descend), [3, 1, 2], [0, 1, 2, 0, 0, 1]),
        (lambda s: s.merge(s.map(lambda n: -n)), [1, 2], [1, -1, 2, -2]),
        (lambda s: s.map(lambda n: -n).merge(s), [1, 2], [-1, 1, -2, 2]),
        (
            lambda s: s.flat_map(lambda n: [n, n - 1, n]).key_by(lambda n: 0).group(2, order=lambda n: n),
            [5],
            [(4, 5), (4,), (5, 5)],
        ),
        (
            lambda s: (
                s.flat_map(lambda n: [(n, i) for i in range(n)]).key_by(lambda p: p[0]).group(9, undo_partial=True)
            ),
            [2, 1, 2],
            [((2, 0), (2, 1)), ((1, 0),), ((2, 0), (2, 1))],
        ),
    ],
)
def test_an_operation_gives_its_outputs(
    build: Callable[[fc.Stream[int]], fc.Stream[Any]], records: list[int], wanted: list[Any], workers: int
) -> None:
    assert out(build, records, workers) == wanted


@pytest.mark.parametrize("workers", [1, 3])
def test_a_branch_gives_each_item_to_the_first_that_holds(workers: int) -> None:
    flow = fc.Flow("ways")
    streams = flow.source("numbers", int).branch(lambda n: n < 3, lambda n: n < 6)
    for name, stream in zip(("low", "middle", "rest"), streams, strict=True):
        stream.sink(name)
    outputs = flow.run({"numbers": range(9)}, workers=workers)
    assert outputs == {"low": [0, 1, 2], "middle": [3, 4, 5], "rest": [6, 7, 8]}


@pytest.mark.parametrize("workers", [1, 3])
def test_copies_of_a_broadcast_come_in_its_order(workers: int) -> None:
    flow = fc.Flow("copies")
    first, second, third = flow.source("numbers", int).broadcast(3)
    third.merge(first.map(lambda n: n + 10), second.map(lambda n: n + 20)).sink("out")
    assert flow.run({"numbers": [1, 2]}, workers=workers)["out"] == [11, 21, 1, 12, 22, 2]


def test_a_stream_used_twice_is_copied() -> None:
    flow = fc.Flow("twice")
    numbers = flow.source("numbers", int)
    numbers.map(lambda n: -n).sink("negative")
    numbers.sink("as they are")
    assert flow.run({"numbers": [1, 2]}) == {"negative": [-1, -2], "as they are": [1, 2]}
    assert [v.name for v in flow.graph().vertices if isinstance(v, Broadcast)] == ["numbers.fork"]


def test_a_flow_runs_again_and_can_go_on_being_described() -> None:
    flow = fc.Flow("again")
    numbers = flow.source("numbers", int)
    numbers.key_by(lambda n: n).count().sink("counts")
    wanted = [(1, 1), (1, 2)]
    assert flow.run({"numbers": [1, 1]})["counts"] == wanted
    numbers.sink("all")
    assert flow.run({"numbers": [1, 1]}) == {"counts": wanted, "all": [1, 1]}


def test_no_records_give_no_outputs() -> None:
    assert out(lambda s: s.key_by(lambda n: n).count(), []) == []
    assert out(lambda s: s.filter(lambda n: False), [1, 2], workers=2) == []


def test_two_runs_share_no_state() -> None:
    def build(stream: fc.Stream[int]) -> fc.Stream[Any]:
        return stream.key_by(lambda n: n).reduce(lambda a, b: a + b)

    assert out(build, [1, 1]) == out(build, [1, 1]) == [(1, 1), (1, 2)]


def test_an_inspection_with_meta_tells_guesses_from_what_takes_them_back() -> None:
    """In the end every guess has its tombstone, and the rest is what one worker sees, which guesses nothing."""
    shown: list[bool] = []

    def run(workers: int, seed: int) -> Counter[tuple[Any, ...]]:
        left: Counter[tuple[Any, ...]] = Counter()

        def look(pair: tuple[int, ...], meta: fc.Meta) -> None:
            left[meta.global_time.time, meta.child_ids, pair] += -1 if meta.tombstone else 1
            shown.append(meta.tombstone)

        flow = fc.Flow("inspected")
        pairs = flow.source("numbers", int).rebalance().map(int).key_by(lambda _: 0).group(2)
        pairs.inspect(look, meta=True).sink("out")
        inputs, acker = {"numbers": [3, 1, 2, 9, 4, 4, 8]}, acker_named("centralized")
        Simulation(flow.graph(), inputs, acker=acker, workers=workers, seed=seed).run()
        return +left

    wanted = run(1, 0)
    assert len(wanted) == 7
    assert not any(shown)
    assert all(run(3, seed) == wanted for seed in range(30))
    assert any(shown), "some guesses were taken back"


# -- what cannot work -------------------------------------------------------------------------


def two_sinks_of_one_name(stream: fc.Stream[int]) -> None:
    stream.sink("out")
    stream.sink("out")


def dangling(stream: fc.Stream[int]) -> None:
    stream.map(abs, name="forgotten")
    stream.sink("out")


def dangling_branch(stream: fc.Stream[int]) -> None:
    stream.branch(bool, name="ways")[0].sink("out")


def dangling_copy(stream: fc.Stream[int]) -> None:
    stream.broadcast(0, name="nobody")
    stream.sink("out")


def loop_of_nothing(stream: fc.Stream[int]) -> None:
    stream.loop(lambda inside: (inside, inside), name="round").sink("out")


def loop_without_feedback(stream: fc.Stream[int]) -> None:
    stream.loop(lambda inside: inside, name="round").sink("out")  # type: ignore[arg-type,return-value]


def loop_of_three(stream: fc.Stream[int]) -> None:
    stream.loop(lambda inside: (inside, inside, inside), name="round").sink("out")  # type: ignore[arg-type,return-value]


def loop_without_exit(stream: fc.Stream[int]) -> None:
    stream.sink("out")
    stream.loop(lambda inside: (inside.map(abs), inside.map(abs, name="exit")), name="round")


def loop_that_nothing_leaves(stream: fc.Stream[int]) -> None:
    def body(inside: fc.Stream[int]) -> tuple[fc.Stream[int], fc.Stream[int]]:
        return inside.map(abs, name="turning"), stream

    stream.loop(body, name="round").sink("out")


def loop_by_no_function(stream: fc.Stream[int]) -> None:
    stream.loop(None, name="round").sink("out")  # type: ignore[arg-type]


def merged_with_another_flow(stream: fc.Stream[int]) -> None:
    stream.merge(fc.Flow("other").source("others", int), name="joined").sink("out")


def fed_back_from_another_flow(stream: fc.Stream[int]) -> None:
    other = fc.Flow("other").source("others", int)
    stream.loop(lambda inside: (other, inside.map(abs)), name="round").sink("out")


def listed(n: int) -> list[int]:
    return [n]


def key_declared_a_list(stream: fc.Stream[int]) -> None:
    stream.key_by(listed).count(name="counted").sink("out")


def mutable_state(stream: fc.Stream[int]) -> None:
    stream.key_by(abs).fold([0], lambda state, n: [*state, n], name="gathered").sink("out")


def no_window(stream: fc.Stream[int]) -> None:
    stream.key_by(abs).group(0, name="nothing").sink("out")


def one_name_twice(stream: fc.Stream[int]) -> None:
    stream.map(abs, name="same").map(abs, name="same").sink("out")


REFUSED: list[tuple[Build, str]] = [
    (two_sinks_of_one_name, "out"),
    (dangling, "forgotten"),
    (dangling_branch, "ways.1"),
    (dangling_copy, "nobody"),
    (loop_of_nothing, "round"),
    (loop_without_feedback, "round"),
    (loop_of_three, "round"),
    (loop_without_exit, "exit"),
    (loop_that_nothing_leaves, "round"),
    (loop_by_no_function, "numbers"),
    (merged_with_another_flow, "joined"),
    (fed_back_from_another_flow, "round"),
    (key_declared_a_list, "numbers"),
    (mutable_state, "gathered"),
    (no_window, "nothing"),
    (one_name_twice, "same"),
    (lambda s: s.map(3, name="m").sink("out"), "numbers"),  # type: ignore[arg-type]
    (lambda s: s.flat_map("split").sink("out"), "numbers"),  # type: ignore[arg-type]
    (lambda s: s.filter(None).sink("out"), "numbers"),  # type: ignore[arg-type]
    (lambda s: s.inspect(print()).sink("out"), "numbers"),  # type: ignore[arg-type]
    (lambda s: s.branch(True)[0].sink("out"), "numbers"),  # type: ignore[arg-type]
    (lambda s: s.key_by("name").count().sink("out"), "numbers"),  # type: ignore[arg-type]
    (lambda s: s.key_by(abs).reduce("sum").sink("out"), "numbers"),  # type: ignore[arg-type]
    (lambda s: s.key_by(abs).fold(0, 0).sink("out"), "numbers"),  # type: ignore[arg-type]
    (lambda s: s.key_by(abs).stateful_map(0, ()).sink("out"), "numbers"),  # type: ignore[arg-type]
    (lambda s: s.key_by(abs).group(2, order="n").sink("out"), "numbers"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("build", "vertex"), REFUSED, ids=lambda value: getattr(value, "__name__", value))
def test_a_flow_that_cannot_work_is_refused_when_built(build: Build, vertex: str) -> None:
    flow = fc.Flow("wrong")
    numbers = flow.source("numbers", int)

    def built() -> None:
        build(numbers)
        flow.graph()

    with pytest.raises(GraphError) as caught:
        built()
    assert caught.value.vertex == vertex
    assert repr(vertex) in str(caught.value)


def test_a_flow_without_sink_or_source_is_refused() -> None:
    with pytest.raises(GraphError, match="no source"):
        fc.Flow("empty").graph()
    flow = fc.Flow("no end")
    flow.source("numbers", int)
    with pytest.raises(GraphError, match="no sink"):
        flow.graph()


def test_a_grouping_without_the_barrier_is_refused() -> None:
    flow = fc.Flow("open")
    flow.source("numbers", int).key_by(abs).count(name="counted").sink("out")
    with pytest.raises(GraphError, match="barrier") as caught:
        flow.graph(barrier=False)
    assert caught.value.vertex == "counted"
    flow.graph()


class Elsewhere(InprocTransport):
    """Claims that its workers live in other processes."""

    name = "elsewhere"

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=True, serialises=True)


module_level = fc.Flow("importable")
module_level.source("numbers", int).map(lambda n: n + 1).sink("out")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda s: s.key_by(lambda n: n).reduce(lambda a, b: a + b, name="op"), r"uses .*<lambda>, which"),
        (lambda s: s.key_by(lambda n: n).fold(0, lambda a, b: a + b, name="op"), r"uses .*<lambda>, which"),
        (lambda s: (ways := s.branch(lambda n: n > 0, name="op"))[0].merge(ways[1]), r"uses .*<lambda>, which"),
        (lambda s: s.key_by(int).count(name="op"), "<drift 'op'> is what"),
    ],
)
def test_functions_that_cannot_be_imported_have_the_names_of_the_user(build: Build, words: str) -> None:
    flow = fc.Flow("local")
    numbers = flow.source("numbers", int)
    build(numbers).sink("out")  # type: ignore[attr-defined]  # builds return streams here
    with registry.override("transport", "elsewhere", Elsewhere), pytest.raises(GraphError, match=words) as caught:
        flow.run({"numbers": [1]}, transport="elsewhere")
    assert "_accumulate" not in str(caught.value)
    assert "goes" not in str(caught.value)


def test_a_lambda_that_other_processes_cannot_import_is_refused() -> None:
    flow = fc.Flow("local")
    flow.source("numbers", int).map(lambda n: n + 1, name="plus").sink("out")
    with registry.override("transport", "elsewhere", Elsewhere):
        with pytest.raises(GraphError, match="cannot import") as caught:
            flow.run({"numbers": [1]}, transport="elsewhere")
        assert caught.value.vertex == "plus"
        assert flow.run({"numbers": [1]})["out"] == [2]


def test_a_flow_that_is_an_attribute_of_its_module_can_be_imported() -> None:
    assert module_level.reference == f"{__name__}:module_level"
    with registry.override("transport", "elsewhere", Elsewhere):
        assert module_level.run({"numbers": [1]}, transport="elsewhere")["out"] == [2]


def test_functions_of_modules_can_be_imported_for_any_name_of_the_flow() -> None:
    flow = fc.Flow("functions")
    flow.source("numbers", int).map(abs).flat_map(listed).sink("out")
    with registry.override("transport", "elsewhere", Elsewhere):
        assert flow.run({"numbers": [-1]}, transport="elsewhere")["out"] == [1]


@pytest.mark.parametrize("name", ["count", "reduce", "fold", "group", "stateful_map"])
def test_an_operation_by_key_on_a_stream_without_one_is_told_of_key_by(name: str) -> None:
    numbers = fc.Flow("small").source("numbers", int)
    with pytest.raises(AttributeError, match=rf"'Stream' .* '{name}'\n  .*\.key_by\(function\)\.{name}\("):
        getattr(numbers, name)


@pytest.mark.parametrize("name", ["filter", "inspect", "sink", "merge"])
def test_an_operation_on_a_keyed_stream_that_needs_none_is_told_where_it_goes(name: str) -> None:
    keyed = fc.Flow("small").source("numbers", int).key_by(abs)
    with pytest.raises(AttributeError, match=rf"'KeyedStream' .* '{name}'\n  Call {name} before key_by"):
        getattr(keyed, name)


def test_an_operation_that_there_is_not_stays_an_attribute_error() -> None:
    numbers = fc.Flow("small").source("numbers", int)
    for stream in (numbers, numbers.key_by(abs)):
        assert not hasattr(stream, "group_by")  # although its error has a remedy
        assert not hasattr(stream, "_flows")
        with pytest.raises(AttributeError) as caught:
            stream.mapp  # type: ignore[attr-defined]  # noqa: B018 - Python says what was perhaps meant
        assert (caught.value.name, caught.value.obj) == ("mapp", stream)


def test_the_name_of_a_field_in_the_place_of_a_key_is_told_as_a_function() -> None:
    numbers = fc.Flow("small").source("numbers", int)
    with pytest.raises(GraphError, match="takes a function, not 'real'") as caught:
        numbers.key_by("real")  # type: ignore[arg-type]
    assert "lambda item: item.real" in caught.value.hint


def test_the_function_of_a_fold_in_the_place_of_its_initial_state_is_told() -> None:
    keyed = fc.Flow("small").source("numbers", int).key_by(abs)
    with pytest.raises(GraphError, match="initial state first") as caught:
        keyed.fold(lambda total, number: total + number, 0)  # type: ignore[arg-type, misc]
    assert caught.value.hint == "Write fold(0, function)."


def test_inputs_that_name_no_source_are_refused() -> None:
    with pytest.raises(ConfigError, match="a list, which does not say whose records") as caught:
        module_level.run([1, 2])  # type: ignore[arg-type]
    assert caught.value.hint == "Name the source: flow.run({'numbers': …})"


def test_a_source_without_records_is_told_of_in_the_words_of_a_program() -> None:
    with pytest.raises(ConfigError, match="'numbers' has no driver") as caught:
        module_level.run()
    assert "flow.run({'numbers': …})" in caught.value.hint
    assert "--source" not in caught.value.hint


def test_outputs_of_no_sink_are_told_with_those_that_there_are() -> None:
    outputs = module_level.run({"numbers": [1]})
    with pytest.raises(KeyError, match="no sink 'output'; the flow has '"):
        outputs["output"]
    assert outputs.get("output") is None
    assert "output" not in outputs


def test_inputs_of_no_source_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="numbers"):
        module_level.run({"nubmers": [1]})


@pytest.mark.parametrize("workers", [0, -1, 129])
def test_impossible_numbers_of_workers_are_refused(workers: int) -> None:
    with pytest.raises((ConfigError, ValueError), match="workers"):
        module_level.run({"numbers": [1]}, workers=workers)


# -- names and types --------------------------------------------------------------------------


def test_names_come_from_functions_and_are_numbered() -> None:
    flow = fc.Flow("names")
    stream = flow.source("numbers", int).map(abs).map(abs).map(lambda n: n).map(lambda n: n).filter(bool)
    stream.key_by(abs).fold(0, max).sink("out")
    names = [vertex.name for vertex in flow.graph().vertices]
    assert names == ["numbers", "map:abs", "map:abs-2", "map", "map-2", "filter:bool", "fold:max", "out"]


class Page(NamedTuple):
    words: list[str]


def words_of(page: Page) -> list[str]:
    return page.words


def lengths(page: Page) -> Iterator[int]:
    yield from map(len, page.words)


def first(word: str) -> str:
    return word[0]


def longest(state: str, word: str) -> str:
    return max(state, word, key=len)


def seen(state: int, word: str) -> tuple[int, list[Page]]:
    return state + 1, []


def sink_type(build: Callable[[fc.Stream[Page]], fc.Stream[Any]]) -> Any:
    flow = fc.Flow("typed")
    build(flow.source("pages", Page)).sink("out")
    (sink,) = (vertex for vertex in flow.graph().vertices if isinstance(vertex, Sink))
    return sink.type


@pytest.mark.parametrize(
    ("build", "hint"),
    [
        (lambda s: s, Page),
        (lambda s: s.filter(bool), Page),
        (lambda s: s.inspect(print), Page),
        (lambda s: s.rebalance(), Page),
        (lambda s: s.map(words_of), list[str]),
        (lambda s: s.flat_map(words_of), str),
        (lambda s: s.flat_map(lengths), int),
        (lambda s: s.map(str), str),
        (lambda s: s.map(lambda page: page), object),
        (lambda s: s.flat_map(words_of).key_by(first).count(), tuple[str, int]),
        (lambda s: s.flat_map(words_of).key_by(first).reduce(longest), tuple[str, str]),
        (lambda s: s.flat_map(words_of).key_by(first).fold("", longest), tuple[str, str]),
        (lambda s: s.flat_map(words_of).key_by(first).fold(0, lambda a, b: a), tuple[str, int]),
        (lambda s: s.flat_map(words_of).key_by(first).group(2), tuple[str, ...]),
        (lambda s: s.flat_map(words_of).key_by(first).stateful_map(0, seen), Page),
        (lambda s: s.branch(bool)[0], Page),
        (lambda s: s.broadcast(1)[0], Page),
        (lambda s: s.broadcast(2)[0].merge(s.broadcast(1)[0]), Page),
    ],
)
def test_types_are_taken_from_hints(build: Callable[[fc.Stream[Page]], fc.Stream[Any]], hint: Any) -> None:
    try:
        assert sink_type(build) == hint
    except GraphError:  # a copy that is not used: only the type is of interest here
        flow = fc.Flow("typed")
        assert build(flow.source("pages", Page))._type == hint


def test_a_flow_has_its_graph() -> None:
    flow = fc.Flow("graph")
    merged = flow.source("a", int).merge(flow.source("b", int))
    merged.key_by(abs).count().sink("out")
    graph = flow.graph()
    assert graph.name == "graph"
    assert [vertex.kind for vertex in graph.vertices] == ["source", "source", "merge", "drift", "sink"]
    assert isinstance(graph.vertices[2], Merge)
    assert isinstance(graph.vertices[3], Drift)
    assert repr(flow) == "<Flow 'graph': 5 operations>"
    assert flow.graph() is not graph


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda stream: stream.window(5), "event_time(stream, at).key_by(function).window(…)"),
        (lambda stream: stream.key_by(str).join(stream), "docs/how-to/windows.md"),
        (lambda stream: stream.event_time(str), "a function that takes the stream"),
        (lambda stream: stream.sum(), ".key_by(function).reduce(function)"),
        (lambda stream: stream.key_by(str).max(), ".key_by(function).reduce(function)"),
        (lambda stream: stream.group_by(str), "Say .key_by(function)."),
        (lambda stream: stream.union(stream), "Say .merge(other)."),
        (lambda stream: stream.for_each(print), ".inspect(function)"),
        (lambda stream: stream.run(), "flow.run({source: records})"),
        (lambda stream: stream._flow.map(str), "Begin with a source: flow.source(name, type).map("),
        (lambda stream: stream._flow.key_by(str), "Begin with a source: flow.source(name, type).key_by("),
    ],
)
def test_verbs_of_elsewhere_have_a_remedy(call: Callable[[Any], object], remedy: str) -> None:
    with pytest.raises(AttributeError) as caught:
        call(fc.Flow("elsewhere").source("numbers", int))
    missing, _, hint = str(caught.value).partition("\n")
    assert "object has no attribute" in missing
    assert remedy in hint


def test_records_in_the_place_of_their_type_are_refused() -> None:
    wrong: Any = [1, 2, 3]
    with pytest.raises(GraphError, match=r"the type of its records is \[1, 2, 3\], which is no type") as caught:
        fc.Flow("typed").source("numbers", wrong)
    assert "flow.run({name: …})" in caught.value.hint
