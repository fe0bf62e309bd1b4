"""Labels and gathering in flows: all that comes of an item, once and in order, whatever lies between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import flamecore as fc
from flamecore.errors import OperationError
from flamecore.model.ordered import Gathered
from flamecore.runtime.config.defaults import ACKERS
from flamecore.runtime.operators.drift import DriftOperator
from flamecore.runtime.operators.keyed_state import LabelledState
from flamecore.runtime.operators.ordered import OrderedOperator
from flamecore.testing import assert_deterministic, assert_exactly_once
from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import acker_named, compare
from flamecore.testing.flows.drawn import Op, draw_flow, draw_records, draw_spec, split
from flamecore.testing.flows.reference import Failed, interpret
from flamecore.testing.simulation.simulation import Simulation

MOST_STEPS = 6000

LINES = ["a b a", "", "b C c", "a", "d c b a d", "", "C", "b b b b", "a d", "e"]


def rejoined() -> fc.Flow:
    """Words go to the workers that own them, and come back as lines."""
    flow = fc.Flow("rejoined")
    words = flow.source("lines", str).rebalance().label("line").flat_map(str.split).rebalance().map(str.lower)
    words.key_by(lambda word: word).count().gather("line").sink("out")
    return flow


def parts_of_parts() -> fc.Flow:
    """Two labels, one within the other, several ways that meet again, and a gathering of gatherings."""
    flow = fc.Flow("parts")
    lines = flow.source("lines", str).label("line")
    words = lines.flat_map(str.split).label("word")
    letters = words.flat_map(list).merge(words.key_by(len).stateful_map(0, lambda n, word: (n + 1, [word] * (n % 2))))
    spelled = letters.rebalance().map(str.upper).gather("word").map(lambda got: (got.item, "".join(got.parts)))
    spelled.gather("line").sink("out")
    words.map(len).merge(lines.map(len)).gather("line", name="lengths").sink("lengths")
    lines.gather("line", name="once").gather("line", name="twice").sink("twice")
    return flow


NOTHING: frozenset[str] = frozenset()


def asked(number: int, state: frozenset[str], word: str) -> tuple[frozenset[str], list[str]]:
    return state | {word}, [] if word in state or len(state) > number else [word]


def visit(seen: frozenset[str], word: str) -> tuple[frozenset[str], list[str]]:
    return asked(9, seen, word)


def shorter(word: str) -> list[str]:
    return [word[1:], word[:-1]] if len(word) > 1 else []


def searched() -> fc.Flow:
    """Each line asks for all parts of it, round by round; state by label knows what it has had."""
    flow = fc.Flow("searched")

    def body(inside: fc.Stream[str]) -> tuple[fc.Stream[str], fc.Stream[str]]:
        new = inside.key_by(len, label="request").stateful_map(NOTHING, visit, name="visit")
        left, back = new.broadcast(2)
        return back.flat_map(shorter), left

    found = flow.source("lines", str).rebalance().label("request").loop(body)
    done = found.gather("request").map(lambda got: f"{got.item}: {len(got.parts)}")
    found.merge(done).sink("out")
    return flow


def labelled_rounds() -> fc.Flow:
    """Draw a label inside a cycle: what comes of a round belongs to that round."""
    flow = fc.Flow("rounds")

    def body(inside: fc.Stream[str]) -> tuple[fc.Stream[str], fc.Stream[str]]:
        turned = inside.label("round").flat_map(lambda line: [line, line[::2], line[1::2]])
        some = turned.key_by(lambda part: part[:1]).stateful_map(0, lambda n, part: (n + 1, [part] * (n % 3 > 0)))
        return some.filter(lambda part: len(part) > 2).map(lambda part: part[1:]), some

    flow.source("lines", str).loop(body).gather("round").sink("out")
    return flow


def rounds_by_key() -> fc.Flow:
    """Draw a loop by key between label and gathering."""
    flow = fc.Flow("by-key")

    def body(inside: fc.KeyedStream[int, str]) -> tuple[fc.Stream[str], fc.Stream[str]]:
        counted = inside.stateful_map(0, lambda n, part: (n + 1, [f"{part}{n}"]))
        return counted.filter(lambda part: len(part) % 5).map(lambda part: part[:1] + part), counted

    words = flow.source("lines", str).label("line").flat_map(str.split)
    words.key_by(lambda word: ord(word[0]) % 3).loop(body).gather("line").sink("out")
    return flow


def several_sources() -> fc.Flow:
    """Labelled items come of two sources and by two ways; one way comes of a state that takes back."""
    flow = fc.Flow("sources")
    left, right = flow.source("lines", str), flow.source("more", str)
    lines = left.merge(right.map(lambda line: line[::-1])).rebalance().label("line")
    pairs = lines.flat_map(str.split).key_by(len).group(2, undo_partial=True)
    pairs.merge(lines.map(len)).gather("line").sink("out")
    return flow


FLOWS = [rejoined, parts_of_parts, searched, labelled_rounds, rounds_by_key, several_sources]


def inputs_of(flow: fc.Flow) -> dict[str, list[str]]:
    return {source.name: LINES[number:] for number, source in enumerate(flow.graph().sources)}


@pytest.mark.parametrize("build", FLOWS)
def test_no_interleaving_changes_what_is_gathered(build: Callable[[], fc.Flow]) -> None:
    flow = build()
    outputs = assert_deterministic(flow, inputs_of(flow), workers=(1, 2, 3, 4), seeds=seeds(2 * len(ACKERS)))
    assert all(len(each) > len(LINES) - 2 for each in outputs.values())


@pytest.mark.parametrize("build", FLOWS)
def test_kills_and_rescales_do_not_show(build: Callable[[], fc.Flow]) -> None:
    flow = build()
    assert_exactly_once(flow, inputs_of(flow), seeds=seeds(12), kinds=["kill"])


def test_a_line_of_which_nothing_comes_is_gathered_too() -> None:
    (out,) = rejoined().run({"lines": LINES}, workers=3).values()
    assert [gathered.item for gathered in out] == LINES
    assert [gathered.item for gathered in out if not gathered.parts] == ["", ""]
    assert out[0] == Gathered("a b a", (("a", 1), ("b", 1), ("a", 2)))


@pytest.mark.parametrize("workers", [1, 4])
def test_the_end_of_a_request_is_behind_its_last_answer(workers: int) -> None:
    out = searched().run({"lines": ["abc", "ab", "abc"]}, workers=workers)["out"]
    of_abc = ["abc", "bc", "c", "b", "ab", "a", "abc: 6"]
    assert out == [*of_abc, "ab", "b", "a", "ab: 3", *of_abc]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_an_item_that_comes_of_no_labelled_one_fails(workers: int) -> None:
    flow = fc.Flow("stray")
    labelled = flow.source("lines", str).label("line").map(len)
    flow.source("more", str).map(len).merge(labelled).gather("line").sink("out")
    with pytest.raises(
        OperationError, match=r"'gather:line.parts' failed: .* is derived from no item with the label 'line'"
    ):
        flow.run({"lines": ["ab", "c"], "more": ["stray"]}, workers=workers)


@pytest.mark.parametrize("build", [rejoined, searched])
def test_a_run_goes_on_on_other_numbers_of_workers(build: Callable[[], fc.Flow], tmp_path: Path) -> None:
    flow, state = build(), tmp_path / "state"
    wanted = flow.run({"lines": LINES})["out"]
    found: list[Any] = []
    for end, workers in ((1, 2), (4, 1), (5, 4), (len(LINES), 3)):
        found += flow.run({"lines": LINES[:end]}, workers=workers, state=state)["out"]
    assert found == wanted


@pytest.mark.parametrize("workers", [1, 3])
def test_a_part_that_fails_is_missing(workers: int) -> None:
    flow = fc.Flow("fails")
    flow.source("lines", str).label("line").flat_map(str.split).map(int).gather("line").sink("out")
    settings = {"job.on_error": "skip", "job.max_failed": 1.0}
    out = flow.run({"lines": ["1 x 2", "y"]}, workers=workers, settings=settings)["out"]
    assert out == [("1 x 2", (1, 2)), ("y", ())]


@pytest.mark.parametrize("build", [rejoined, parts_of_parts])
def test_functions_are_called_as_often_on_one_worker_as_on_four(build: Callable[[], fc.Flow]) -> None:
    calls: dict[int, dict[str, int]] = {}
    graph = build().graph()
    for workers in (1, 4):
        for seed in range(4):
            simulation = Simulation(
                graph,
                {"lines": LINES},
                acker=acker_named(ACKERS[seed % len(ACKERS)]),
                workers=workers,
                seed=seed,
                advance=False,
            )
            found: Counter[str] = Counter()
            run = simulation.run()
            assert run.outputs
            for worker in simulation.workers.values():
                for name, operation in worker.compiled.stateful.items():
                    found[name] += operation.calls
            assert calls.setdefault(0, dict(found)) == found


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("build", [searched, rejoined, labelled_rounds])
def test_nothing_is_kept_of_a_label_that_is_done(build: Callable[[], fc.Flow], workers: int) -> None:
    simulation = Simulation(build().graph(), {"lines": LINES * 3}, acker=acker_named(ACKERS[0]), workers=workers)
    simulation.run()
    kept: list[Any] = []
    for worker in simulation.workers.values():
        for operation in worker.compiled.stateful.values():
            if isinstance(operation, OrderedOperator):
                kept += [*operation._records, *operation.names]
            elif isinstance(operation, DriftOperator) and isinstance(operation.states, LabelledState):
                kept += operation.states.top
    assert kept == []


# -- drawn flows -------------------------------------------------------------------------------------------------------


def scattered(random: Random) -> tuple[Any, dict[str, Any]]:
    """Draw a flow with operations between a label and its gathering, and records for it."""
    spec = draw_spec(random)
    between = list(spec.chain)
    for _ in range(random.randint(0, 2)):
        between.insert(random.randint(0, len(between)), ("of_label", random.randint(1, 3)))
    chain: list[Op] = [("scatter", random.randint(1, 3), tuple(between))]
    if random.random() < 0.5:
        chain.insert(0, ("flat", 1))
    if random.random() < 0.3:
        chain = [("scatter", 1, tuple(chain))]
    chain.append(("fold", 2))
    spec = spec._replace(chain=tuple(chain), side=None)
    return spec, split(draw_records(random, spec))


@pytest.mark.parametrize("seed", seeds(20, least=4))
def test_any_flow_between_gives_what_the_reference_does(seed: int) -> None:
    found: tuple[dict[str, Any], Failed | None] | None = None
    for attempt in range(100):
        random = Random(f"labels {seed} {attempt}")
        spec, records = scattered(random)
        graph, skip = draw_flow(spec, split=True).graph(), random.random() < 0.5
        try:
            found = interpret(graph, records, skip_failing=skip, max_steps=MOST_STEPS), None
        except Failed as failed:
            found = dict(failed.outputs), failed
        except RuntimeError:
            continue
        break
    assert found is not None
    outputs, failure = found
    wanted = {name: [output.payload for output in each] for name, each in outputs.items()}
    for workers in (1, 2, 3, 4):
        acker, story = random.choice(ACKERS), random.randrange(1000)
        simulation = Simulation(
            graph,
            records,
            acker=acker_named(acker),
            workers=workers,
            seed=story,
            on_error="skip" if skip else "fail",
        )
        for worker in simulation.workers.values():
            worker.schedule.set_pace(random.choice((1, 5, 65_536)))
        compare(simulation.run(), wanted, failure, f"{workers} workers, acker {acker!r}, seed {story}: {spec}")


@pytest.mark.parametrize("seed", seeds(5))
def test_faults_do_not_show_in_any_flow_between(seed: int) -> None:
    random = Random(f"labels {seed} in trouble")
    spec, records = scattered(random)
    while True:
        graph = draw_flow(spec, split=True).graph()
        try:
            interpret(graph, records, skip_failing=True, max_steps=MOST_STEPS // 3)
            break
        except RuntimeError:
            spec, records = scattered(random)
    assert_exactly_once(graph, records, seeds=(2 * seed, 2 * seed + 1), on_error=random.choice(("fail", "skip")))
