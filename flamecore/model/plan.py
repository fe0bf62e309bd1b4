"""The plan of a job: the graph and all facts on which workers must agree."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Literal

from flamecore.model.clock import ClockName
from flamecore.model.graph import Graph, cycle_name
from flamecore.model.hashing import KEY_GROUPS, key_group, owners, stable_hash
from flamecore.model.meta import MAX_FRONT, FrontId
from flamecore.model.segments import Segments
from flamecore.model.vertices import ByHash, ByKey, Vertex

OnError = Literal["fail", "skip", "dead_letter"]

DEAD_LETTERS = "dead_letter"
"""Name of the rear that takes dead letters."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a job, the same for every worker.

    Attributes:
        graph: The checked graph.
        workers: Number of workers.
        owning: Number of workers that own key groups; None: see `owning_workers`.
        fronts: The fronts in the order of their numbers, which start at 1.
        barrier: Whether outputs wait for the minimum time.
        on_error: Treatment of records that a user function fails on.
        dead_letters: Whether there is a rear for dead letters.
        partitions: The partition that each front reads.
        policies: For each source the treatment of malformed records; "fail" if not given.
        clock: "sequence" (a replay gives the same times) or "wall" (fronts interleave by arrival).
        start: The time fronts start from.
        max_in_flight: Most records admitted and not yet delivered, over all fronts.
        max_rounds: Most rounds of an item in a cycle, and most items of one record that wait there.
        heartbeat_interval_s: Seconds between heartbeats of an idle front of the wall clock.
        snapshots: Whether snapshots are taken of the state.
        advance: Whether, on several workers, items may go into stateful operations before they are known to be in
            order; a few calls of their functions are then wasted, and latency is lower. Never without the barrier,
            behind which outputs cannot be retracted.
        seed: Seed of random ids, for tests; None: unpredictable.
        check_types: Whether to check the types of all results, not only of the first records.
        check_mutation: Whether to check that functions leave their arguments unchanged.
        segments: Segments of the graph.
        owners: Owner of each key group, for vertices without a home.
        homes: Home worker of each vertex on a cycle with keyed state, except in loops by key.
    """

    graph: Graph
    workers: int
    fronts: tuple[FrontId, ...]
    barrier: bool = True
    on_error: OnError = "fail"
    dead_letters: bool = False
    partitions: tuple[str, ...] = ()
    policies: Mapping[str, OnError] = field(default_factory=dict)
    clock: ClockName = "sequence"
    start: int = 0
    max_in_flight: int = 8192
    max_rounds: int = 1_000_000
    heartbeat_interval_s: float = 0.05
    snapshots: bool = False
    advance: bool = True
    seed: int | None = None
    owning: int | None = None
    check_types: bool = False
    check_mutation: bool = False
    segments: Segments = field(init=False, repr=False, compare=False)
    owners: tuple[int, ...] = field(init=False, repr=False, compare=False)
    homes: Mapping[Vertex, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shared = owners(self.workers, self.owning)  # refuses impossible numbers
        object.__setattr__(self, "segments", Segments.number(self.graph))
        # The home of a cycle is the owner of the key group of its name. Not all owners of its keys: guesses would go
        # round faster than tombstones catch them, without a bound; and to know the least order across workers is
        # serial, 8 times slower than one home at a delay of ten calls.
        homeless = self.graph.homeless_cycles()
        homes = {
            vertex: shared[key_group(stable_hash(cycle_name(cycle)))]
            for cycle in self.graph.keyed_cycles()
            if cycle not in homeless
            for vertex in cycle
        }
        object.__setattr__(self, "homes", homes)
        owning = owning_workers(self.graph, self.workers, homes) if self.owning is None else self.owning
        object.__setattr__(self, "owners", owners(self.workers, owning))
        if len(self.fronts) >= MAX_FRONT:
            raise ValueError(f"{len(self.fronts)} fronts are more than can be numbered")

    def owners_of(self, vertex: Vertex) -> tuple[int, ...]:
        """Return the owner of each key group of a vertex.

        One worker owns them all on a cycle with keyed state: items that go round must meet in order, and only one
        worker can know this. In a loop by key only items of one key meet, so it is shared like a state outside of
        cycles.
        """
        home = self.homes.get(vertex)
        return self.owners if home is None else (home,) * KEY_GROUPS

    def homes_on(self, worker: int) -> tuple[str, ...]:
        """Return the names of the cycles whose home is a worker."""
        cycles = [cycle for cycle in self.graph.keyed_cycles() if self.homes.get(next(iter(cycle))) == worker]
        return tuple(map(cycle_name, cycles))

    @property
    def rears(self) -> tuple[str, ...]:
        """Return the names of the rears: the sinks, and the one for dead letters."""
        names = tuple(sink.name for sink in self.graph.sinks)
        return (*names, DEAD_LETTERS) if self.dead_letters else names

    def host_of(self, number: int) -> int:
        """Return the worker that hosts a front."""
        return (number - 1) % self.workers


def owning_workers(graph: Graph, workers: int, homes: Container[Vertex] = ()) -> int:
    """Return the default number of workers that own key groups.

    All workers own some, so that work and state are shared, unless all keyed operations are light: then looking up the
    owner of each key, and merging items of several workers, costs more than the work itself. Then half of the workers
    own the key groups, and a single owner needs no lookup; the others do the work before.

    Args:
        graph: Graph of the job.
        workers: Number of workers.
        homes: Vertices that a single worker owns, which do not count.

    >>> owning_workers(Graph(), 4)
    4
    """
    keyed = [vertex for vertex in graph.vertices if isinstance(vertex.route, (ByKey, ByHash)) and vertex not in homes]
    if keyed and all(vertex.light for vertex in keyed):
        return workers - workers // 2
    return workers
