"""A job that keeps state, under a fate that kills its processes, loses their words, turns back their clocks (seeded).

The parts are the job's own: `flamecore.job.Job` for a job in one process; nodes, epochs and histories for one on
several. Only the world they run in is made up. A run of the job ends when it is done, fails or dies; then it is started
again, as somebody would who runs the same command once more, until it is done and fate has nothing left to do. What the
sinks hold then must be what the reference interpreter gives.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from flamecore.acker import Acker, AckerPlan
from flamecore.clock import STOPWATCH, WALL_CLOCK, ClockName, Front
from flamecore.codec import Codec
from flamecore.errors import CorruptError, FencedError, OperationError
from flamecore.front import Source
from flamecore.graph import Graph
from flamecore.plan import OnError
from flamecore.rear import Sink
from flamecore.snapshot import decode_epoch
from flamecore.testing.damages import Damages
from flamecore.testing.laws import LawBroken
from flamecore.testing.simulated_edges import Contents, Records, SimulatedSink, SimulatedSource
from flamecore.testing.simulated_run import Run
from flamecore.testing.trouble import Trouble
from flamecore.testing.virtual import run_virtually
from flamecore.testing.world import Process, World, follow_tasks, stopwatch

_MOST_RUNS = 60
_SOONER = 8
"""Behind a snapshot a fault comes so many times sooner: there may soon be another, or the job be done."""


@dataclass
class Played:
    """What became of a job.

    Attributes:
        outputs: For each sink, what it holds.
        times: For each source, the global times of its records.
        failed: The error of the record that ends the job, if one does.
        runs: How many runs it took.
        epochs: How many epochs.
        log: What fate has done, in order.
        counts: How often each kind of fault was played. Of what is stored: "damage" to a snapshot to spare, "back": it
            went on from an older one, "ruin" of what is needed, "refusal": it said so.
    """

    outputs: dict[str, list[Any]]
    times: dict[str, list[int]]
    failed: OperationError | None
    runs: int
    epochs: int
    log: list[str]
    counts: Counter[str]


class Crashes:
    """One story of a job.

    Args:
        graph: The graph, checked.
        inputs: For each source, its records.
        seed: Decides everything that is left to chance.
        ackers: Strategies by name.
        trouble: What may happen.
        workers: Numbers of workers that runs are started with.
        on_error: What becomes of records that a user function fails on.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Iterable[Any]],
        *,
        seed: int,
        ackers: Mapping[str, Callable[[AckerPlan], Acker]],
        trouble: Trouble | None = None,
        workers: Sequence[int] = (1, 2, 3, 4),
        on_error: OnError = "fail",
    ) -> None:
        self.random = random = Random(seed)
        self.graph = graph
        self.ackers = ackers
        self.trouble = trouble or Trouble()
        self.workers = workers
        self.on_error = on_error
        self.clock: ClockName = random.choice(("sequence", "wall"))
        codec = Codec.of(graph)
        wire = random.random() < 0.2
        self.world = World(
            random,
            self._moment,
            tears=self.trouble.tears and random.random() < 0.5,
            copy=(lambda message: codec.decode(codec.encode(message))) if wire else None,
        )
        self.records = {source.name: Records(list(inputs.get(source.name, ()))) for source in graph.sources}
        self.contents = {sink.name: Contents() for sink in graph.sinks}
        self.log: list[str] = []
        self.run: Run | None = None
        self.runs = 0
        self.failed: OperationError | None = None
        self._ghosts: list[Run] = []
        self._broken: LawBroken | None = None
        self.counts: Counter[str] = Counter()
        self._damages = Damages(self.world.disk, random)
        self._damaging = False
        self._snapshots = 0
        self.world.stored = self._stored
        self._faults = random.randint(0, self.trouble.faults) if self.trouble.kinds else 0
        self._kind, self._after, self._next_fault = self._draw()
        self._stamps: dict[tuple[str, int], tuple[int, int]] = {}
        self._epochs: set[int] = set()
        self._stopwatch = stopwatch(seed)
        if self.trouble.grows and random.random() < 0.3:
            for records in self.records.values():
                records.there = random.randint(0, len(records.records))

    # -- the story ---------------------------------------------------------------------------------------------------

    def play(self) -> Played:
        """From the first start to the end.

        Raises:
            LawBroken: The job has come to an end that no fault accounts for.
            SimulationStuckError: It comes to none.
        """
        thresholds = gc.get_threshold()
        try:
            run_virtually(self._play())
        finally:
            gc.unfreeze()
            gc.set_threshold(*thresholds)
        times = {name: self._times_of(name) for name in self.records}
        outputs = {name: held.outputs for name, held in self.contents.items()}
        return Played(outputs, times, self.failed, self.runs, len(self._epochs), self.log, self.counts)

    def _times_of(self, source: str) -> list[int]:
        """Times of the records of a source. Behind a record that ends the job some may have been read in an earlier
        epoch, and not again: these do not count."""
        times: list[int] = []
        latest = 0
        for index in range(len(self.records[source].records)):
            epoch, time = self._stamps.get((source, index), (-1, 0))
            if epoch < latest and (epoch < 0 or self.failed is not None):
                break
            latest = epoch
            times.append(time)
        return times

    async def _play(self) -> None:
        follow_tasks(asyncio.get_running_loop())
        WALL_CLOCK.set(self.world.now_us)
        STOPWATCH.set(self._stopwatch)
        while not await self._once():
            if self.runs >= _MOST_RUNS:
                raise LawBroken("done", f"the job is not done after {self.runs} runs")
            if self._broken is not None:
                raise self._broken
        for ghost in self._ghosts:
            ghost.kill()

    async def _once(self) -> bool:
        """One run. Returns whether the story is at its end."""
        self.runs += 1
        self._damages.run_begins()
        run = self.run = Run(self, f"{self.runs}")
        how = await run.play()
        self.run = None
        self._note(f"run {self.runs} {how}")
        if how != "abandoned":
            run.kill()
        await asyncio.sleep(self.random.random() * 0.02)
        if self._damaging:
            await self._damage()
        if self.failed is not None:
            return True
        if how != "done":
            return False
        grown = [held for held in self.records.values() if held.there < len(held.records)]
        for held in grown:  # what has come since is for another run
            held.there = self.random.choice((self.random.randint(held.there, len(held.records)), len(held.records)))
        return not grown and all(
            (name, index) in self._stamps for name, held in self.records.items() for index in range(len(held.records))
        )

    def ghost_ended(self, error: BaseException | None) -> None:
        """A run that was abandoned has come to an end by itself: it must not have failed but for being overtaken."""
        failed = self.failed
        try:
            self.outcome(error)
        except LawBroken as broken:
            self._broken = broken
        self.failed = failed  # the next run will come to that record, too

    def outcome(self, error: BaseException | None) -> str:
        """What the end of a run means.

        Raises:
            LawBroken: It should not have ended so.
        """
        if error is None:
            return "done"
        if isinstance(error, OperationError):
            self.failed = error
            return "failed at a record"
        if getattr(error, "injected", False):
            return "failed"
        if isinstance(error, CorruptError) and self._damages.accounts_for(error):
            self.counts["refusal"] += 1
            return "was refused what is damaged"
        # What the run before had on its way may come late; and one that was abandoned goes on, and is gone on from.
        fenced = isinstance(error, FencedError) or getattr(error, "fenced", False)
        if self.runs > 1 and fenced:
            return "was overtaken"
        if self._ghosts and getattr(error, "forgotten", False):
            return "was overtaken"
        raise LawBroken("ends", f"a run ended with {type(error).__name__}: {error}") from error

    # -- what runs ask for ---------------------------------------------------------------------------------------------

    def sources(self, process: Process, began: Callable[[], None]) -> dict[str, Source]:
        """The sources, as one process sees them."""
        return {
            source.name: SimulatedSource(process, source.name, source.type, self.records[source.name], began)
            for source in self.graph.sources
        }

    def sinks(self, process: Process) -> dict[str, Sink]:
        """The sinks, as one process sees them."""
        return {name: SimulatedSink(process, name, held) for name, held in self.contents.items()}

    def watch(self, front: Front, epoch: int) -> None:
        """Note which times a front gives."""
        stamp, name = front.stamp, front.name.source
        self._epochs.add(epoch)

        def watched(positions: Sequence[Any], at: float) -> int:
            first = stamp(positions, at)
            for time, position in enumerate(positions, first):
                before = self._stamps.get((name, position))
                if before is None or before[0] <= epoch:
                    self._stamps[name, position] = (epoch, time)
            return first

        front.stamp = watched  # type: ignore[method-assign]

    # -- fate ----------------------------------------------------------------------------------------------------------

    def _draw(self) -> tuple[str, int, int]:
        """The next fault: which, behind how many snapshots, and how many moments later."""
        random, trouble = self.random, self.trouble
        if not trouble.kinds:
            return "", 0, 0
        kind = random.choices(list(trouble.kinds), list(trouble.kinds.values()))[0]
        if kind == "damage" and (self.world.tears or not trouble.damages):
            kind = "kill"
        moments = random.expovariate(1 / random.choice(trouble.between))
        if kind == "damage" or random.random() < 0.5:
            return kind, self._snapshots + 1, round(moments / _SOONER)
        return kind, 0, round(moments)

    def _stored(self, blob: str) -> None:
        """Something has come to be on the disk."""
        self._snapshots += blob.startswith("commit/")
        if blob.startswith("epoch/") and self._damages.went_back(decode_epoch(self.world.disk[blob], blob)):
            self.counts["back"] += 1

    def _note(self, what: str) -> None:
        self.log.append(f"{asyncio.get_running_loop().time():.4f} {what}")

    def _moment(self, process: Process) -> None:
        if not self._faults or self.run is None or not self.run.has(process):
            return
        if self._snapshots < self._after:
            return
        self._next_fault -= 1
        if self._next_fault > 0:
            return
        kind = self._kind
        self._faults -= 1
        self._kind, self._after, self._next_fault = self._draw()
        if kind in ("worker", "partition", "cut", "turn") and not self.run.spread:
            kind = "kill"
        self._note(kind)
        if kind != "damage":
            self.counts[kind] += 1
        self._strike(kind, self.run)
        if self.trouble.grows and self.random.random() < 0.3:
            held = self.random.choice(list(self.records.values()))
            held.there = self.random.randint(held.there, len(held.records))

    def _strike(self, kind: str, run: Run) -> None:
        world, random = self.world, self.random
        if kind in ("kill", "damage"):
            self._damaging = kind == "damage"
            run.kill()
        elif kind == "abandon":
            self._ghosts.append(run)
            asyncio.get_running_loop().call_later(random.choice((0.01, 0.1, 1.0, 10.0)), run.kill)
            run.abandon()
        elif kind == "worker":
            run.lose_worker(dead=True)
        elif kind == "partition":
            run.lose_worker(dead=False)
        elif kind == "cut":
            run.cut()
        elif kind == "store":
            world.store_mishap.when = random.choice(("before", "after"))
        elif kind == "sink":
            random.choice(list(self.contents.values())).mishap.when = random.choice(("before", "after"))
        elif kind == "clock":
            hour_us = 3_600_000_000
            world.wall_us += random.choice((-hour_us, hour_us, random.randint(-50_000, 50_000)))
        elif kind == "drain":
            run.drain()
        else:
            run.turn(random.choice(self.workers))

    async def _damage(self) -> None:
        """Something of what is stored turns out not to be what was written. Nobody is at work then: he might go on from
        what is damaged, or record a snapshot that relies on it, and never know."""
        self._damaging = False
        for ghost in self._ghosts:
            ghost.kill()
        while self.world.under_way:
            await asyncio.sleep(self.world.delay_s)
        if done := self._damages.strike():
            self._note(done)
            self.counts[done.partition(" ")[0]] += 1
