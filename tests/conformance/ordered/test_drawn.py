"""Ordered operations with timers and marks among drawn ones: in rows, beside copies, behind repairs, around cycles.

`python tests/soak/draws.py` plays it with other seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

import pytest

import flamecore as fc
from flamecore.abc.operator import Work
from flamecore.model.ordered import Marking, Now, Ordered, Outcome, Timer
from flamecore.runtime.config.defaults import ACKERS
from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import acker_named, compare
from flamecore.testing.flows.drawn import Item, Spec, draw_records, draw_spec, drawing, split
from flamecore.testing.flows.moved import moved
from flamecore.testing.flows.reference import Failed, interpret
from flamecore.testing.simulation.simulation import Simulation

MOST_STEPS = 6000


@dataclass(eq=False, slots=True, repr=False)
class Mixes(Ordered):
    """Outputs that depend on all that came before, on times and on the watermark.

    Attributes:
        waits: Whether it sets timers by time, and by marks.
        fussy: Whether it fails on some items.
    """

    kind: ClassVar[str] = "mixes"
    timers: ClassVar[bool] = True

    waits: tuple[bool, bool] = field(kw_only=True)
    fussy: bool = field(kw_only=True)

    def work(self) -> Work:
        return MixesWork(self.waits, self.fussy)


class MixesWork(Work):
    def __init__(self, waits: tuple[bool, bool], fussy: bool) -> None:
        self.by_time, self.by_mark = waits
        self.fussy = fussy

    def process(self, key: Any, state: Any, payload: Item, now: Now) -> Outcome:
        if self.fussy and payload.value % 11 == 5:
            raise ValueError(f"{payload.value} is not liked")
        after = ((state or 0) * 13 + payload.value + now.watermark % 5) % 101
        timers = [Timer(now.time + after % 5 - 1, after % 3)] if self.by_time else []
        timers += [Timer(payload.value // 2 * 2, after % 2, mark=True)] if self.by_mark else []
        outputs = [Item((after + place) % 97, payload.rounds) for place in range(after % 3)]
        return Outcome(after, outputs, timers, payload.value // 2 * 2 - 1 if self.by_mark else None)

    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        after = ((state or 0) * 7 + timer.time + 3 * timer.tag + now.watermark % 3) % 89
        again = self.by_time and after % 4 == 0 and not timer.mark
        timers = [Timer(timer.time + 2 + after % 3, 1)] if again else []
        return Outcome(after if after % 5 else None, [Item((after + now.time) % 97)] * (after % 3), timers)


def drawn_flow(spec: Spec, random: Random) -> fc.Flow:
    """Return the flow of a spec with ordered operations between its own, and behind the last."""
    flow, draw = fc.Flow("drawn"), drawing(Counter())
    marks = random.choice((None, True, False))
    streams = []
    for name, partitions in zip("abc", spec.sources, strict=False):
        for partition in range(partitions):
            stream = flow.source(f"{name}{partition}", Item)
            if marks is not None:
                settings = {"function": mark_of, "step": 3, "closes": marks}
                stream = stream.apply(Marking, name=f"marks-{name}{partition}", **settings)
            streams.append(stream)
    stream = streams[0].merge(*streams[1:]) if len(streams) > 1 else streams[0]
    for place, op in enumerate(spec.chain, 1):
        stream = draw(stream, op)
        if place == len(spec.chain) or random.random() < 0.4:
            keys, waits = random.randint(1, 4), (random.random() < 0.5, random.random() < 0.5)
            keyed = stream.key_by(lambda item, keys=keys: item.value % keys)  # type: ignore[misc]
            mixed = keyed.apply(Mixes, name=f"mixes{place}", waits=waits, fussy=random.random() < 0.3)
            stream = mixed.merge(stream) if random.random() < 0.4 else mixed
    stream.sink("out")
    return flow


def mark_of(item: Item) -> int | None:
    return item.value * 2 if item.value % 3 else None


def needed(graph: Any, records: Mapping[str, Any], *, skip: bool) -> tuple[dict[str, Any], Failed | None] | None:
    """Return what the reference gives, and where it fails; None if it takes too many steps."""
    try:
        return interpret(graph, records, skip_failing=skip, max_steps=MOST_STEPS), None
    except Failed as failed:
        return dict(failed.outputs), failed
    except RuntimeError:
        return None


@pytest.mark.parametrize("seed", seeds(20))
def test_any_flow_gives_what_the_reference_does(seed: int) -> None:
    found = None
    for attempt in range(100):
        random = Random(f"ordered {seed} {attempt}")
        spec = draw_spec(random)
        records = split(draw_records(random, spec))
        graph, skip = drawn_flow(spec, random).graph(), random.random() < 0.5
        found = needed(graph, records, skip=skip)
        if found is not None:
            break
    assert found is not None
    outputs, failed = found
    wanted = {name: [output.payload for output in each] for name, each in outputs.items()}
    for workers in (1, 2, 3, 5):
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
        compare(simulation.run(), wanted, failed, f"{workers} workers, acker {acker!r}, seed {story}: {spec}")


def drawn_ways(spec: Spec, random: Random) -> fc.Flow:
    """Return a flow whose ordered operations are side by side, and meet by twos and threes or not at all."""
    flow, draw = fc.Flow("ways"), drawing(Counter())
    waits, closes = random.choice([(True, False), (False, True), (True, True)]), random.random() < 0.5
    ways = []
    for name, partitions in zip("abc", spec.sources, strict=False):
        for partition in range(partitions):
            stream: fc.Stream[Item] = flow.source(f"{name}{partition}", Item).apply(
                Marking, name=f"marks of {name}{partition}", function=mark_of, step=2, closes=closes
            )
            ways.append(stream)
    ways.append(ways[0].merge(*ways[1:]) if len(ways) > 1 else ways[0])
    for number in range(random.randint(3, 6)):
        stream = random.choice(ways)
        if spec.chain and random.random() < 0.3:
            stream = draw(stream, random.choice(spec.chain))
        # Items that tell the ways apart.
        stream = stream.map(lambda item, number=number: Item(item.value + number, item.rounds))  # type: ignore[misc]
        keys = random.randint(1, 3)
        keyed = stream.key_by(lambda item, keys=keys: item.value % keys)  # type: ignore[misc]
        ways.append(keyed.apply(Mixes, name=f"mixes of way {number}", waits=waits, fussy=False))
        if random.random() < 0.5:
            some = random.sample(ways, random.randint(2, min(3, len(ways))))
            ways.append(some[0].merge(*some[1:]))
    for number in range(random.randint(1, 3)):
        some = random.sample(ways, random.randint(2, min(4, len(ways))))
        some[0].merge(*some[1:]).sink(f"out {number}")
    ways[0].merge(*ways[1:]).sink("all")
    return flow


def drawn_within_reason(
    seed: str, draw: Callable[[Spec, Random], fc.Flow]
) -> tuple[Random, fc.Flow, dict[str, Any], dict[str, list[Any]]]:
    """Return a drawn flow that ends soon, with records and the outputs that the reference gives."""
    for attempt in range(100):
        random = Random(f"{seed} {attempt}")
        spec = draw_spec(random)
        records, flow = split(draw_records(random, spec)), draw(spec, random)
        found = needed(flow.graph(), records, skip=True)
        if found is not None:
            outputs = {name: [output.payload for output in each] for name, each in found[0].items()}
            return random, flow, records, outputs
    raise AssertionError(f"no flow of {seed} ends soon")


@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.parametrize("draw", [drawn_ways, drawn_flow], ids=["side by side", "in a row"])
def test_moving_independent_lines_changes_no_output(draw: Callable[[Spec, Random], fc.Flow], seed: int) -> None:
    random, flow, records, wanted = drawn_within_reason(f"moved {seed}", draw)
    for workers in (1, 3):
        graph = moved(flow, random).graph()
        found = needed(graph, records, skip=True)
        assert found is not None
        assert {name: [output.payload for output in each] for name, each in found[0].items()} == wanted
        acker, story = acker_named(random.choice(ACKERS)), random.randrange(1000)
        simulation = Simulation(graph, records, acker=acker, workers=workers, seed=story, on_error="skip")
        compare(simulation.run(), wanted, None, f"{workers} workers, story {story}")
