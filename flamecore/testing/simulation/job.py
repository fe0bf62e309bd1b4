"""The job of a story: the shared state of all its runs, and the start of each.

This module is below `flamecore.testing.simulation.run` and `flamecore.testing.simulation.supervisor`: a run knows its
job, and knows nothing of the fate (`flamecore.testing.simulation.crashes`) that starts and ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from flamecore.abc.acker import Acker, AckerPlan
from flamecore.abc.sink import Sink
from flamecore.abc.source import Source
from flamecore.model.clock import ClockName
from flamecore.model.graph import Graph
from flamecore.model.settings import JobSettings, OnError, StateTable
from flamecore.runtime.config.operators import plugin_operators
from flamecore.runtime.config.plugins import PluginRegistry
from flamecore.runtime.parts.front import Front
from flamecore.testing.simulation.edges import (
    Contents,
    PartitionedContents,
    Records,
    SimulatedPartitionedSink,
    SimulatedSink,
    SimulatedSource,
)
from flamecore.testing.simulation.network import Network
from flamecore.testing.simulation.world import Process, World

Stamps = dict[tuple[str, int], tuple[int, int]]
"""For (source, place of a record): (the epoch in which it was given a time, the time)."""

_EPOCHS = 1_000_000
"""More epochs than any story has."""


class SimulatedJob:
    """A job in the simulated world: graph, records, outputs, and times of records.

    Args:
        world: The world it runs in.
        graph: The graph, checked.
        inputs: For each source, its records.
        ackers: Strategies by name.
        workers: Numbers of workers that runs are started with.
        on_error: The fate of records that a user function fails on.
        clock: The clock that gives the times.
        partitioned: Whether sinks are in partitions.

    Attributes:
        operators: Those of plugins, besides the engine's.
        records: For each source, its contents.
        contents: For each sink, its contents.
        epochs: The epochs in which times were given.
    """

    def __init__(
        self,
        world: World,
        graph: Graph,
        inputs: Mapping[str, Iterable[Any]],
        *,
        ackers: Mapping[str, Callable[[AckerPlan], Acker]],
        workers: Sequence[int],
        on_error: OnError,
        clock: ClockName,
        partitioned: bool = False,
        finds_ends: bool = False,
    ) -> None:
        self.world, self.graph = world, graph
        self.operators = plugin_operators(graph, PluginRegistry())
        self.ackers, self.workers = ackers, workers
        self.on_error, self.clock, self._finds_ends = on_error, clock, finds_ends
        self.records = {source.name: Records(list(inputs.get(source.name, ()))) for source in graph.sources}
        kind = PartitionedContents if partitioned else Contents
        self.contents = {sink.name: kind(partial(self._note, sink.name)) for sink in graph.sinks}
        self.epochs: set[int] = set()
        self._stamps: Stamps = {}
        self._latest: dict[str, tuple[int, Front]] = {}  # for each source its front in its latest epoch, and that
        self._held_ends: dict[str, int] = {}  # times of the marks of ends that the snapshot before that epoch holds
        self._noted: dict[str, Stamps] = {}  # for each sink, as they were when it got its last output
        self._passed = 0  # added to the numbers of epochs

    @property
    def random(self) -> Random:
        """Return the generator that decides everything that is left to chance."""
        return self.world.random

    @property
    def outputs(self) -> dict[str, list[Any]]:
        """Return, for each sink, the outputs it holds."""
        return {name: held.outputs for name, held in self.contents.items()}

    def sources(self, process: Process, began: Callable[[], None]) -> dict[str, Source]:
        """Return the sources, as one process sees them.

        Args:
            process: The process that reads them.
            began: Called when a reader is asked for records.
        """
        return {
            source.name: SimulatedSource(
                process, source.name, source.type, self.records[source.name], began, finds_ends=self._finds_ends
            )
            for source in self.graph.sources
        }

    def sinks(self, process: Process) -> dict[str, Sink]:
        """Return the sinks, as one process sees them."""
        return {
            name: (SimulatedPartitionedSink if isinstance(held, PartitionedContents) else SimulatedSink)(
                process, name, held
            )
            for name, held in self.contents.items()
        }

    # -- times ---------------------------------------------------------------------------------------------------------

    def go_back(self) -> None:
        """Treat the following epochs as later ones: an older copy of the state is back.

        Numbers of epochs repeat otherwise.
        """
        self._passed += _EPOCHS

    def watch(self, front: Front, epoch: int, start: int) -> None:
        """Note the times that a front gives in an epoch.

        Args:
            front: The front, which has given none in this epoch; it may have ended.
            epoch: Number of the epoch.
            start: First time of the front that is in no snapshot, as the epoch has begun.
        """
        stamp, name = front.stamp, front.name.source
        epoch += self._passed
        self.epochs.add(epoch)
        end = self.ends.get(name)
        if epoch > self._latest.get(name, (-1, front))[0]:
            self._latest[name] = epoch, front
            self._held_ends.pop(name, None)
            if end is not None and end < start:  # it stays; this epoch says it again, too late to count
                self._held_ends[name] = end

        def watched(positions: Sequence[Any], at: float) -> int:
            first = stamp(positions, at)
            for time, position in enumerate(positions, first):
                before = self._stamps.get((name, position))
                if before is None or before[0] <= epoch:
                    self._stamps[name, position] = (epoch, time)
            return first

        front.stamp = watched  # type: ignore[method-assign]

    @property
    def ends(self) -> dict[str, int]:
        """Return the times of the marks that sources have ended, as far as there are any."""
        # Asked of the fronts: one that finds its end again may do so before anything is known of its epoch.
        ends = {name: front.end_time for name, (_, front) in self._latest.items() if front.end_time is not None}
        return {**ends, **self._held_ends}

    @property
    def all_read(self) -> bool:
        """Return whether every record that will ever be there was given a time."""
        return all(
            (name, index) in self._stamps for name, held in self.records.items() for index in range(len(held.records))
        )

    def times(self, *, failed: bool) -> dict[str, list[int]]:
        """Return the times of the records of every source, in their order.

        Args:
            failed: Whether a record ended the job. Records behind it may have been read in an earlier epoch, and not
                again: these do not count.
        """
        return {name: self._times_of(name, self._stamps, failed) for name in self.records}

    def times_at(self, sink: str) -> dict[str, list[int]]:
        """Return the times of every source's records at a sink's last output.

        A sink that a failing operation does not lead to may have got it in an earlier epoch, and be ahead of the last.
        """
        stamps = self._noted.get(sink, {})
        return {name: self._times_of(name, stamps, failed=True) for name in self.records}

    def _note(self, sink: str) -> None:
        self._noted[sink] = dict(self._stamps)

    def _times_of(self, source: str, stamps: Stamps, failed: bool) -> list[int]:
        times: list[int] = []
        latest = 0
        for index in range(len(self.records[source].records)):
            epoch, time = stamps.get((source, index), (-1, 0))
            if epoch < latest and (epoch < 0 or failed):
                break
            latest = epoch
            times.append(time)
        return times


@dataclass(frozen=True)
class Start:
    """One start of a job, with everything that differs between starts.

    Attributes:
        job: The job.
        name: The name of the run; no other has it.
        control: The process that the run begins in.
        network: The network between the processes of the run.
        acker: The strategy of acknowledging.
        settings: The settings of the run.
    """

    job: SimulatedJob
    name: str
    control: Process
    network: Network
    acker: Callable[[AckerPlan], Acker]
    settings: JobSettings

    @classmethod
    def draw(cls, job: SimulatedJob, name: str) -> Start:
        """Draw the settings of a run by chance."""
        random = job.random
        acker = job.ackers[random.choice(list(job.ackers))]
        workers, most, seed = random.choice(job.workers), random.choice((2, 10, 4096)), random.getrandbits(32)
        settings = JobSettings(
            workers=workers,
            owners=Random(seed).choice((None, 1, 2, 3)),
            clock=job.clock,
            on_error=job.on_error,
            max_failed=1.0,  # a run may read few records, or one that fails
            max_in_flight=most,
            seed=seed,
            state=StateTable(
                interval_s=random.choice((0.001, 0.01, 0.05)),
                max_uncommitted=random.choice((3, 20, 1000)),
            ),
            leased=False,
        )
        return cls(job, name, Process(job.world, f"{name}/control"), Network(job.world), acker, settings)
