"""Drawn flows call a state function once for each item it is to see: in cycles of every form, and in long rows.

On several workers items may go in early, on an advance, which bounds what is called in vain. All is seeded:
`python tests/soak/draws.py tests/conformance/test_drawn_calls.py` plays others, until one stops it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from flamecore.model.clock import ClockName
from flamecore.model.meta import FrontId
from flamecore.model.settings import OnError
from flamecore.runtime.operators import reorder
from flamecore.runtime.parts import schedule
from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import acker_named, compare
from flamecore.testing.flows.drawn import Item, Spec, draw, draw_flow, simpler, split
from flamecore.testing.flows.reference import Failed, interpret
from flamecore.testing.simulation.simulation import SimulatedRun, Simulation

ACKERS = {name: acker_named(name) for name in ("centralized", "local", "sharded")}
CLOCKS: tuple[ClockName, ...] = ("sequence", "wall")
ADVANCES = (0, 2, 6, 32)
STEPS = (65_536, 1, 5)
"""Items that have waited and go on at once, at most."""


class Needed(NamedTuple):
    """The result of the reference: outputs, where it fails, and the calls of state functions."""

    outputs: dict[str, list[Any]]
    failed: Failed | None
    calls: int


class Run(NamedTuple):
    """A run of a drawn flow.

    Attributes:
        spec: The flow.
        records: The records, by source and partition.
        workers, acker, clock, seed: As of `Simulation`.
        advance: The calls in advance that each state has; 0: none go in early.
        on_error: The fate of items that a function fails on.
    """

    spec: Spec
    records: Mapping[str, Sequence[Sequence[Item]]]
    workers: int
    acker: str
    clock: ClockName
    seed: int
    advance: int
    on_error: OnError

    def made(self) -> tuple[SimulatedRun, int, Sequence[tuple[str, int, int]]]:
        """Return what the run gives, and the calls it makes.

        Behind these of each operation on each worker its name, its calls, and how many of these it says are in vain.
        """
        calls: Counter[str] = Counter()
        steps = STEPS[self.seed % len(STEPS)]
        with patch.object(reorder, "_ADVANCE", self.advance or 32), patch.object(schedule, "_STEP_ITEMS", steps):
            simulation = Simulation(
                draw_flow(self.spec, calls).graph(),
                {},
                partitioned=self.records,
                acker=ACKERS[self.acker],
                workers=self.workers,
                clock=self.clock,
                seed=self.seed,
                advance=self.advance > 0,
                on_error=self.on_error,
            )
            run = simulation.run()
        counts = [each.counts() for each in simulation.workers.values()]
        said = [(name, each.calls[name], vain) for each in counts for name, vain in each.calls_in_vain.items()]
        return run, calls.total(), said

    def needed(self, times: Mapping[FrontId, Sequence[int]]) -> Needed:
        """Return what the reference gives and takes for some times of the records, as far as they were read."""
        calls: Counter[str] = Counter()
        stamps = {f"{front.source}{front.partition}": each for front, each in times.items()}
        records = {name: part[: len(stamps[name])] for name, part in split(self.records).items()}
        graph, skip = draw_flow(self.spec, calls, split=True).graph(), self.on_error == "skip"
        try:
            failed, outputs = None, interpret(graph, records, times=stamps, skip_failing=skip)
        except Failed as error:
            failed, outputs = error, error.outputs
        return Needed({name: [each.payload for each in some] for name, some in outputs.items()}, failed, calls.total())

    def check(self) -> None:
        """Hold the run against the reference."""
        run, made, said = self.made()
        wanted, failed, needed = self.needed(run.times)
        compare(run, wanted, failed, "any workers")
        if failed is not None:
            return  # how far the others had come is left to chance
        assert made >= needed, f"{made} calls instead of {needed}"
        vain = sum(each for _, _, each in said)
        assert made - needed <= vain, f"{made} calls instead of {needed}; {vain} in vain, it says"
        # The account of each operation by itself. Its calls are items: a group has some, and calls no function.
        for name, calls, each in said:
            most = self.advance + calls // 10 if self.advance and self.workers > 1 else 0
            assert each <= most, f"{each} of {calls} calls of {name} in vain, at most {most}"
        assert run.replays == 0 or vain, f"{run.replays} outputs are taken back"


def runs(seed: int) -> Iterator[Run]:
    """Yield the runs of a seed, one for each number of workers: over the seeds, every two settings meet."""
    spec, records = draw(seed)
    for workers in range(1, 5):
        yield Run(
            spec,
            records,
            workers,
            sorted(ACKERS)[(seed + workers) % 3],
            CLOCKS[(seed + seed // 3 + workers) % 2],
            seed,
            ADVANCES[(seed // 2 + workers) % 4],
            "fail" if seed % 3 == 0 else "skip",
        )


def fault(run: Run) -> str:
    """Return what is wrong with a run; empty: nothing."""
    try:
        run.check()
    except Exception as error:  # noqa: BLE001 - whatever breaks
        return f"{type(error).__name__}: {error}"
    return ""


def smallest(run: Run) -> Run:
    """Return the least run with a fault of the same kind."""
    kind = fault(run).partition(":")[0]

    def fewer() -> Iterator[Run]:
        yield from (run._replace(workers=workers) for workers in range(1, run.workers))
        yield from (run._replace(spec=spec) for spec in simpler(run.spec))
        for name, parts in run.records.items():
            for at, part in enumerate(parts):
                for place in range(len(part)):
                    rest = [*part[:place], *part[place + 1 :]]
                    yield run._replace(records={**run.records, name: [*parts[:at], rest, *parts[at + 1 :]]})

    while (less := next((each for each in fewer() if fault(each).partition(":")[0] == kind), None)) is not None:
        run = less
    return run


# A step that began with a buffer ran what was left of a round last, and the buffer that had waited for it stood still.
@pytest.mark.parametrize("seed", [200741, 200776])
def test_a_buffer_that_waits_for_what_is_left_of_a_round_has_its_turn(seed: int) -> None:
    assert [wrong for run in runs(seed) if (wrong := fault(run))] == []


def test_calls_of_drawn_flows_are_those_that_are_needed() -> None:
    for seed in seeds(40):
        for run in runs(seed):
            if wrong := fault(run):
                least = smallest(run)
                pytest.fail(f"seed {seed}: {wrong}\n{run}\nThe least: {fault(least)}\n{least}")
