"""Exactly once under any fault: jobs that keep state die and go on, in a made-up world; outputs are the reference's.

`python tests/soak/draws.py tests/conformance/test_crashes.py` plays more stories.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pytest

import flamecore as fc
from flamecore.abc.store import StoreContext
from flamecore.model.graph import Graph
from flamecore.runtime.state.scan import scan
from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import acker_named
from flamecore.testing.flows.drawn import draw, draw_flow, split
from flamecore.testing.flows.exactly_once import Reference, assert_exactly_once
from flamecore.testing.simulation.crashes import Crashes
from flamecore.testing.simulation.trouble import Trouble
from flamestream_stores.memory import Memory

ACKERS = {name: acker_named(name) for name in ("centralized", "local", "sharded")}
KINDS = ("kill", "worker", "turn")


class Case(NamedTuple):
    """As `flows.Case`."""

    name: str
    graph: Callable[[], Graph]
    inputs: Callable[[int, int], Mapping[str, Sequence[Any]]]


def test_every_flow_gives_the_reference_under_any_fault(case: Case) -> None:
    played = seeds(16, sum(case.name.encode()))  # one seed does much the same to all flows
    inputs = case.inputs(played[0], 20)
    print(dict(assert_exactly_once(case.graph(), inputs, seeds=played)))
    if case.name.startswith("failing"):
        print(dict(assert_exactly_once(case.graph(), inputs, seeds=played, on_error="skip")))


def test_drawn_flows_give_the_reference_under_any_fault() -> None:
    """With cycles that hold states, rows of states, and several fronts; workers come and go, too."""
    counts: Counter[str] = Counter()
    enough = len(seeds(14))
    for number, seed in enumerate(seeds(100, least=100)):
        if number >= enough and all(counts[kind] for kind in KINDS):
            break
        spec, records = draw(seed)
        graph = draw_flow(spec, split=True).graph()
        on_error: Literal["fail", "skip"] = "skip" if seed % 2 else "fail"
        try:
            counts += assert_exactly_once(graph, split(records), seeds=(2 * seed, 2 * seed + 1), on_error=on_error)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {spec}: {error}") from error
    print(dict(counts))
    assert all(counts[kind] for kind in KINDS), counts


def test_a_run_may_leave_out_all_that_it_reads() -> None:
    """Few records are read in some runs of a story, and each of these may fail."""

    def refuse(number: int) -> int:
        raise ValueError(f"{number} is not liked")

    flow = fc.Flow("refusing")
    flow.source("numbers", int).map(refuse).sink("out")
    assert_exactly_once(flow, {"numbers": [1, 2, 3]}, seeds=range(4), on_error="skip")


EVERY_KIND = (28, 14, 52, 15, 4, 41)
"""Seeds whose stories together have every kind of fault; if stories become others, the next seeds are played, too."""


def test_every_kind_of_fault_is_played() -> None:
    """At the size of the tests of whole flows: what is asked for and comes to nothing tests nothing."""
    flow = fc.Flow("counts")
    lines = flow.source("lines", str).merge(flow.source("more", str)).rebalance()
    lines.key_by(lambda line: line).count().sink("counts")
    inputs = {"lines": ["a", "b", "a", "c"] * 5, "more": ["c", "d"] * 10}
    kinds = set(Trouble().kinds)
    kinds |= {"cut", "flip", "stale", "swap", "older"}  # what is done to what is stored
    kinds |= {"damage", "back"}  # of a snapshot that there is one to spare for; the job goes back to that one
    kinds |= {"ruin", "refusal"}  # of what it cannot do without; it says that it cannot
    assert_exactly_once(flow, inputs, seeds=EVERY_KIND, kinds=kinds)


def test_more_stories_are_played_until_what_they_are_about_has_happened() -> None:
    flow = fc.Flow("counts")
    flow.source("numbers", int).sink("out")
    inputs = {"numbers": [1, 2, 3]}
    alone = assert_exactly_once(flow, inputs, seeds=[3])
    missing = sorted({"kill", "drain", "store"}.difference(alone))
    assert missing
    counts = assert_exactly_once(flow, inputs, seeds=[3], kinds=missing)
    assert all(counts[kind] for kind in missing)


def test_what_never_happens_in_a_story_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamecore.testing.flows.exactly_once._MORE", 9)
    flow = fc.Flow("counts")
    flow.source("numbers", int).sink("out")
    with pytest.raises(AssertionError, match="none of 10 stories has had meteorite"):
        assert_exactly_once(flow, {"numbers": [1]}, seeds=[0], workers=[1], ackers=[*ACKERS][:1], kinds=["meteorite"])


def test_a_story_without_faults_is_one_run() -> None:
    flow = fc.Flow("counts")
    flow.source("lines", str).key_by(lambda line: line).count().sink("counts")
    inputs = {"lines": ["a", "b", "a"] * 5}
    reference = Reference(flow.graph(), inputs)
    for seed in range(5):
        story = Crashes(flow.graph(), inputs, seed=seed, ackers=ACKERS, trouble=Trouble(faults=0, grows=False))
        played = story.play()
        assert (played.runs, played.epochs, played.log[0].split()[1:]) == (1, 1, ["run", "1", "done"])
        contents = asyncio.run(scan(Memory(None, StoreContext("job"), story.world.disk)))
        needed = {part.blob for snapshot in contents.snapshots for part in snapshot.parts}
        assert len(contents.snapshots) <= 2
        assert all(name in needed for name in story.world.disk if name.startswith("part/")), "nothing is left behind"
        reference.check(played)


def test_one_seed_is_one_story() -> None:
    flow = fc.Flow("counts")
    flow.source("lines", str).rebalance().map(str.upper).key_by(lambda line: line).count().sink("counts")
    inputs = {"lines": ["a", "b", "c"] * 7}
    for seed in range(8):
        one, other = (Crashes(flow.graph(), inputs, seed=seed, ackers=ACKERS).play() for _ in range(2))
        assert one.log == other.log
        assert one.times == other.times
        assert one.outputs == other.outputs


def test_times_of_a_clock_that_counts_are_those_of_an_undisturbed_run() -> None:
    """However often it dies; unless a source holds less at first than it will."""
    flow = fc.Flow("two")
    a, b = flow.source("a", int), flow.source("b", int)
    a.merge(b).key_by(lambda n: n % 3).fold(0, lambda total, n: total + n).sink("sums")
    inputs = {"a": list(range(20)), "b": list(range(7))}
    clocks = set()
    for seed in range(12):
        story = Crashes(flow.graph(), inputs, seed=seed, ackers=ACKERS, trouble=Trouble(grows=False))
        played = story.play()
        clocks.add(story.job.clock)
        if story.job.clock == "sequence":
            assert played.times == {"a": list(range(20)), "b": list(range(7))}
    assert clocks == {"sequence", "wall"}
