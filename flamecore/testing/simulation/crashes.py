"""A job that keeps state, under a seeded fate of crashes.

Fate kills its processes, loses their messages, and turns back their clocks. The parts are the job's own:
`flamecore.runtime.engine.job.Job` for a job in one process; nodes, epochs and histories for one on several. Only the
world they run in is simulated. A run of the job ends when it is done, fails or dies; then it is started again, as an
operator would run the same command once more, until it is done and fate has no fault left. The sinks must then hold the
outputs of the reference interpreter.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from flamecore.abc.acker import Acker, AckerPlan
from flamecore.errors import FencedError, FlameError, OperationError
from flamecore.model.clock import STOPWATCH, WALL_CLOCK, ClockName
from flamecore.model.graph import Graph
from flamecore.model.settings import OnError
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.operators.rounds import ROUNDS
from flamecore.runtime.state.format import Binding, decode_epoch
from flamecore.testing.laws import LawBroken
from flamecore.testing.simulation.damages import Damages
from flamecore.testing.simulation.job import SimulatedJob
from flamecore.testing.simulation.rounds import drawn_rounds
from flamecore.testing.simulation.run import Run
from flamecore.testing.simulation.trouble import Trouble
from flamecore.testing.simulation.virtual import run_virtually
from flamecore.testing.simulation.world import Process, World, follow_tasks, stopwatch

_MOST_RUNS = 60
_SOONER = 8
"""Factor by which a fault comes sooner after a snapshot: another may follow soon, or the job's end."""


@dataclass
class Played:
    """The end of a job.

    Attributes:
        outputs: For each sink, its outputs.
        times: For each source, the global times of its records.
        times_at: For each sink, the same as of when it got its last output.
        failed: The error of the record that ends the job, if one does.
        ends: For each source whose end is a mark, the global time of that mark.
        runs: Number of runs.
        epochs: Number of epochs.
        log: The faults, in order.
        clock: The clock of the fronts.
        counts: How often each kind of fault was played. For stored data: "damage" to a snapshot to spare, "back": the
            job went on from an older one, "ruin" of needed data, "age": an older copy of all data was brought back,
            "refusal": the job refused it. For all these, by kind: "cut", "flip", "stale", "swap", "older".
    """

    outputs: dict[str, list[Any]]
    times: dict[str, list[int]]
    times_at: dict[str, dict[str, list[int]]]
    failed: OperationError | None
    ends: dict[str, int]
    runs: int
    epochs: int
    log: list[str]
    clock: ClockName
    counts: Counter[str]


class Crashes:
    """One story of a job.

    Args:
        graph: The graph, checked.
        inputs: For each source, its records.
        seed: Decides everything that is left to chance.
        ackers: Strategies by name.
        trouble: The faults that may happen.
        workers: Numbers of workers that runs are started with.
        on_error: Treatment of records that a user function fails on.
        partitioned: Whether sinks are in partitions.
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
        partitioned: bool = False,
    ) -> None:
        self.random = random = Random(seed)
        self.trouble = trouble or Trouble()
        self.log: list[str] = []
        self.run: Run | None = None
        self.runs = 0
        self.failed: OperationError | None = None
        self.counts: Counter[str] = Counter()
        self.clock: ClockName = random.choice(("sequence", "wall"))
        codec = Codec.of(graph)
        wire = random.random() < 0.2
        self.world = World(
            random,
            self._moment,
            tears=self.trouble.tears and random.random() < 0.5,
            copy=(lambda message: codec.decode(codec.encode(message))) if wire else None,
        )
        self.job = SimulatedJob(
            self.world,
            graph,
            inputs,
            ackers=ackers,
            workers=workers,
            on_error=on_error,
            clock=self.clock,
            partitioned=partitioned,
            finds_ends=seed % 2 == 1,  # without a draw, which would change all that follow
        )
        self._ghosts: list[Run] = []
        self._broken: LawBroken | None = None
        self._damages = Damages(self.world.disk, random)
        self._damaging = False
        self._snapshots = 0
        self.world.stored = self._stored
        self._faults = random.randint(0, self.trouble.faults) if self.trouble.kinds else 0
        self._kind, self._after, self._next_fault = self._draw()
        self._stopwatch, self._rounds = stopwatch(seed), drawn_rounds(seed)
        self._grows = self.trouble.grows_in(graph)
        if self._grows and random.random() < 0.3:
            for records in self.job.records.values():
                records.there = random.randint(0, len(records.records))

    # -- the story ---------------------------------------------------------------------------------------------------

    def play(self) -> Played:
        """Play from the first start to the end.

        Raises:
            LawBroken: The job ends in a way that no fault explains.
            SimulationStuckError: It does not end.
        """
        thresholds = gc.get_threshold()
        try:
            run_virtually(self._play())
        finally:
            gc.unfreeze()
            gc.set_threshold(*thresholds)
        job = self.job
        times = job.times(failed=self.failed is not None)
        times_at = {sink: job.times_at(sink) for sink in job.outputs}
        return Played(
            outputs=job.outputs,
            times=times,
            times_at=times_at,
            failed=self.failed,
            ends=job.ends,
            runs=self.runs,
            epochs=len(job.epochs),
            log=self.log,
            clock=self.clock,
            counts=self.counts,
        )

    async def _play(self) -> None:
        follow_tasks(asyncio.get_running_loop())
        WALL_CLOCK.set(self.world.now_us)
        STOPWATCH.set(self._stopwatch)
        ROUNDS.set(self._rounds)
        while not await self._once():
            if self.runs >= _MOST_RUNS:
                raise LawBroken("done", f"the job is not done after {self.runs} runs")
            if self._broken is not None:
                raise self._broken
        for ghost in self._ghosts:
            ghost.kill()

    async def _once(self) -> bool:
        """Play one run; return whether the story is at its end."""
        self.runs += 1
        self._damages.run_begins()
        run = self.run = Run(self.job, f"{self.runs}", outcome=self._outcome, ghost_ended=self._ghost_ended)
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
        grown = [held for held in self.job.records.values() if held.there < len(held.records)]
        for held in grown:  # records that came since are for another run
            held.there = self.random.choice((self.random.randint(held.there, len(held.records)), len(held.records)))
        return not grown and self.job.all_read

    def _ghost_ended(self, error: BaseException | None) -> None:
        """Check the end of an abandoned run: it must not fail but for being overtaken."""
        failed = self.failed
        try:
            self._outcome(error, ghost=True)
        except LawBroken as broken:
            self._broken = broken
        self.failed = failed  # the next run will come to that record, too

    def _outcome(self, error: BaseException | None, *, ghost: bool = False) -> str:
        """Return the outcome of a run's end in words; a `ghost` was abandoned before.

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
        if isinstance(error, FlameError) and self._damages.accounts_for(error, ghost=ghost):
            self.counts["refusal"] += 1
            return "was refused what is damaged"
        # Calls of the run before may arrive late; and an abandoned run goes on, and the next continues its state.
        fenced = isinstance(error, FencedError) or getattr(error, "fenced", False)
        if self.runs > 1 and fenced:
            return "was overtaken"
        if self._ghosts and getattr(error, "forgotten", False):
            return "was overtaken"
        raise LawBroken("ends", f"a run ended with {type(error).__name__}: {error}") from error

    # -- fate ----------------------------------------------------------------------------------------------------------

    def _draw(self) -> tuple[str, int, int]:
        """Draw the next fault: kind, snapshots before it, and moments after those."""
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
        """Count a blob that is now on the disk."""
        self._snapshots += blob.startswith("commit/")
        self._damages.stored(blob)
        if blob.startswith("epoch/") and self._damages.went_back(decode_epoch(self.world.disk[blob], blob, Binding())):
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
        if self._grows and self.random.random() < 0.3:
            held = self.random.choice(list(self.job.records.values()))
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
            random.choice(list(self.job.contents.values())).mishap.when = random.choice(("before", "after"))
        elif kind == "clock":
            hour_us = 3_600_000_000
            world.wall_us += random.choice((-hour_us, hour_us, random.randint(-50_000, 50_000)))
        elif kind == "drain":
            run.drain()
        else:
            run.turn(random.choice(self.job.workers))

    async def _damage(self) -> None:
        """Damage stored data while no process runs.

        A running process might continue from the damaged data, or record a snapshot that relies on it, without notice.
        """
        self._damaging = False
        for ghost in self._ghosts:
            ghost.kill()
        while self.world.under_way:
            await asyncio.sleep(self.world.delay_s)
        if done := self._damages.strike():
            self._note(done)
            if done.startswith("age"):
                self.job.go_back()
            self.counts.update(done.split()[:2])
