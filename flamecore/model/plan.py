"""The plan of a job: the graph and everything about its deployment that all workers must agree on."""

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
    """What every worker of a job knows.

    Attributes:
        graph: The checked graph.
        workers: How many workers there are.
        owning: How many of them own key groups; None: see `owning_workers`.
        fronts: The fronts in the order of their numbers, which start at 1.
        barrier: Whether outputs wait for the minimum time.
        on_error: What becomes of a record that a user function fails on.
        dead_letters: Whether there is a rear for dead letters.
        partitions: The partition that each front reads.
        policies: For each source, what becomes of malformed records; "fail" where nothing is said.
        clock: "sequence" (a replay gives the same times) or "wall" (fronts interleave by arrival).
        start: The time fronts start from.
        max_in_flight: Records admitted and not yet delivered, over all fronts.
        max_rounds: How often an item may go round a cycle, and how many items of one record may wait there.
        heartbeat_interval_s: How often an idle front of the wall clock says that time goes on.
        snapshots: Whether snapshots are taken of the state.
        advance: Whether items may go into stateful operations before it is known that nothing comes before them, on
            several workers; a few calls of their functions are in vain then, and latency is lower. Never without the
            barrier, behind which outputs cannot be taken back.
        seed: Seed of random ids, for tests; None: unpredictable.
        check_types: Whether all records are held to declared types, not only the first.
        check_mutation: Whether functions are held to leave their arguments as they are.
        segments: Those of the graph.
        owners: Which worker owns each key group of what has no home.
        homes: For each vertex on a cycle that holds keyed state, the worker that is its home; but for loops by key.
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
        # The home of a cycle is the owner of the key group that its name is of.
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
        """Which worker owns each key group of a vertex.

        One owns them all on a cycle that holds keyed state: what goes round must meet in order, which is known on one.
        In a loop by key only what is of one key meets, so it is shared like a state outside of cycles.
        """
        home = self.homes.get(vertex)
        return self.owners if home is None else (home,) * KEY_GROUPS

    def homes_on(self, worker: int) -> tuple[str, ...]:
        """Return the names of the cycles that are at home on a worker."""
        cycles = [cycle for cycle in self.graph.keyed_cycles() if self.homes.get(next(iter(cycle))) == worker]
        return tuple(map(cycle_name, cycles))

    @property
    def rears(self) -> tuple[str, ...]:
        """Names of the rears: the sinks, and the one for dead letters."""
        names = tuple(sink.name for sink in self.graph.sinks)
        return (*names, DEAD_LETTERS) if self.dead_letters else names

    def host_of(self, number: int) -> int:
        """The worker that hosts a front."""
        return (number - 1) % self.workers


def owning_workers(graph: Graph, workers: int, homes: Container[Vertex] = ()) -> int:
    """How many of the workers own key groups where nobody has said it.

    All do, so that work and state are shared out, unless all that goes by key is light: then to look up who owns the
    key of an item, and to put together what several workers have sent, costs more than the work itself. Half of the
    workers do it, with nothing to look up if that is one of them; the others do what is before it.

    Args:
        graph: Of the job.
        workers: How many there are.
        homes: The vertices that one worker owns by itself: they do not count.

    >>> owning_workers(Graph(), 4)
    4
    """
    keyed = [vertex for vertex in graph.vertices if isinstance(vertex.route, (ByKey, ByHash)) and vertex not in homes]
    if keyed and all(vertex.light for vertex in keyed):
        return workers - workers // 2
    return workers
