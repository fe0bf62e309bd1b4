"""The plan of a job: the graph and all facts on which workers must agree."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from types import MethodDescriptorType
from typing import Final, NamedTuple

from flamecore.model.graph import Graph, cycle_name
from flamecore.model.hashing import KEY_GROUPS, key_group, owners, stable_hash
from flamecore.model.meta import MAX_FRONT, FrontId
from flamecore.model.segments import Segments
from flamecore.model.settings import JobSettings
from flamecore.model.vertices import ByHash, ByKey, Map, Vertex

DEAD_LETTERS = "dead_letter"
"""Name of the rear that takes dead letters."""


class Placement(NamedTuple):
    """The workers of fronts and key groups. Outputs do not depend on it.

    Attributes:
        hosts: Worker of each front, in the order of their numbers. Fronts beyond them are dealt out by default.
        owners: Owner of each key group, for vertices without a home. The groups of a worker are consecutive, because a
            stored part of the state names one range of them.
    """

    hosts: tuple[int, ...]
    owners: tuple[int, ...]

    def check(self, workers: int) -> None:
        """Refuse a placement that does not fit a number of workers.

        Raises:
            ValueError: It names other workers, not all key groups have an owner, or those of one are not consecutive.
        """
        if not {*self.hosts, *self.owners} <= {*range(workers)}:
            raise ValueError(f"a placement on {workers} workers names {sorted({*self.hosts, *self.owners})}")
        if len(self.owners) != KEY_GROUPS:
            raise ValueError(f"{len(self.owners)} of {KEY_GROUPS} key groups have an owner")
        borders = sum(one != other for one, other in zip(self.owners, self.owners[1:], strict=False))
        if borders >= len(set(self.owners)):
            raise ValueError("the key groups of an owner are not consecutive")


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a job, the same for every worker.

    Attributes:
        graph: The checked graph.
        fronts: The fronts in the order of their numbers, which start at 1.
        settings: The settings of the job.
        start: The time fronts start from.
        partitions: The partition that each front reads.
        past: Numbers of the fronts of earlier phases: they read no more, and their marks do not count.
        done: Numbers of the other fronts that had ended, with nothing new in them: no watermark waits for their marks,
            which count again when a later run finds something new.
        unread: Numbers of the fronts of which nothing was read since the job began, or went on behind its end.
        placement: Workers of fronts and key groups, as measured; None: the default, which knows only the graph.
        segments: Segments of the graph.
        owners: Owner of each key group, for vertices without a home.
        homes: Home worker of each vertex on a cycle with keyed state, except in loops by key.
        sorting: Vertices before which items wait until nothing can come before them, if these keep keyed state or are
            on a cycle with some: all on several workers, and on one those that late items enter beside others.
        firing_places: Place of each ordered operation among those that have outputs at one mark or time.
    """

    graph: Graph
    fronts: tuple[FrontId, ...]
    settings: JobSettings = field(default_factory=JobSettings)
    start: int = 0
    partitions: tuple[str, ...] = ()
    past: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    unread: frozenset[int] = frozenset()
    placement: Placement | None = None
    segments: Segments = field(init=False, repr=False, compare=False)
    owners: tuple[int, ...] = field(init=False, repr=False, compare=False)
    homes: Mapping[Vertex, int] = field(init=False, repr=False, compare=False)
    sorting: frozenset[Vertex] = field(init=False, repr=False, compare=False)
    firing_places: Mapping[Vertex, int] = field(init=False, repr=False, compare=False)
    _hosting: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        workers, owning = self.settings.workers, self.settings.owners
        shared = owners(workers, owning)  # refuses impossible numbers
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
        # On one worker nothing else waits: its items come in order, and in a cycle the agenda sees to that.
        sorting = self.graph.vertices if workers > 1 else self.graph.late_meetings()
        object.__setattr__(self, "sorting", frozenset(sorting))
        object.__setattr__(self, "firing_places", self.graph.firing_places())
        if owning is None:
            owning = owning_workers(self.graph, workers, homes)
        if self.placement is not None:
            self.placement.check(workers)
        owned = owners(workers, owning) if self.placement is None else self.placement.owners
        object.__setattr__(self, "owners", owned)
        object.__setattr__(self, "_hosting", hosting_workers(self.graph, workers, {*owned, *homes.values()}))
        if len(self.fronts) >= MAX_FRONT:
            raise ValueError(f"{len(self.fronts)} fronts are more than can be numbered")

    @property
    def workers(self) -> int:
        """Return the number of workers."""
        return self.settings.workers

    @property
    def snapshots(self) -> bool:
        """Return whether snapshots are taken of the state."""
        return self.settings.state is not None

    def owners_of(self, vertex: Vertex) -> tuple[int, ...]:
        """Return the owner of each key group of a vertex.

        One worker owns them all on a cycle with keyed state: items that go round must meet in order, and only one
        worker can know this. In a loop by key only items of one key meet, so it is shared like a state outside of
        cycles.
        """
        home = self.homes.get(vertex)
        return self.owners if home is None else (home,) * KEY_GROUPS

    def share_of(self, worker: int, most: int) -> int:
        """Return the share of the fronts that a worker hosts in a limit of all fronts of the job."""
        # By fronts, not by workers: a worker may host more fronts than another, or none.
        hosts = [self.host_of(number) for number in range(1, len(self.fronts) + 1)]
        return most * hosts.count(worker) // max(len(hosts), 1)

    def homes_on(self, worker: int) -> tuple[str, ...]:
        """Return the names of the cycles whose home is a worker."""
        cycles = [cycle for cycle in self.graph.keyed_cycles() if self.homes.get(next(iter(cycle))) == worker]
        return tuple(map(cycle_name, cycles))

    @property
    def rears(self) -> tuple[str, ...]:
        """Return the names of the rears: the sinks, and the one for dead letters."""
        names = tuple(sink.name for sink in self.graph.sinks)
        return (*names, DEAD_LETTERS) if self.settings.dead_letters else names

    def opening_of(self, worker: int) -> int | None:
        """Return the number of a worker's opening; None: it has none.

        An opening is a front without records. It ends once the worker has reported the timers that it goes on with, so
        that no minimum time passes them before.
        """
        return MAX_FRONT - 1 - worker if self.snapshots and self.graph.has_timers else None

    def marking_fronts(self, source: str) -> tuple[int, ...]:
        """Return the numbers of the fronts whose marks count behind a source.

        The last marks of an earlier phase would hold back those of the present one.
        """
        found = tuple(number for number, front in enumerate(self.fronts, 1) if front.source == source)
        return tuple(number for number in found if number not in self.past) or found

    @property
    def tracked_fronts(self) -> tuple[int, ...]:
        """Return the numbers of all fronts that the acker is to know from the start."""
        openings = map(self.opening_of, range(self.workers))
        return (*range(1, len(self.fronts) + 1), *(number for number in openings if number is not None))

    @property
    def placed(self) -> Placement:
        """Return where all fronts and key groups are."""
        return Placement(tuple(map(self.host_of, range(1, len(self.fronts) + 1))), self.owners)

    def host_of(self, number: int) -> int:
        """Return the worker that hosts a front."""
        if self.placement is not None and number <= len(self.placement.hosts):
            return self.placement.hosts[number - 1]
        return self._hosting[(number - 1) % len(self._hosting)]


_LIGHT: Final = (MethodDescriptorType, itemgetter, attrgetter)
"""Classes of functions that take less than a keyed operation does with one output: methods of built-in classes."""


# On two processes, where one owns the keys of a word count, it is the busier one already. If it also reads one of two
# files, all the job waits for it, and it has to merge its own records with the other's: a third more CPU time.
def hosting_workers(graph: Graph, workers: int, owning: Container[int]) -> Sequence[int]:
    """Return the workers to which fronts are dealt out by default, in turn.

    All workers host some, so that reading is shared, unless the work before the first keyed operations is light: then
    the workers that own keys are the busiest, and the others host the fronts.

    Args:
        graph: Graph of the job.
        workers: Number of workers.
        owning: Workers that own key groups, or are the home of a cycle.

    >>> hosting_workers(Graph(), 4, (2, 3))
    range(0, 4)
    """
    # The first workers own no key groups where not all do. Standard input is that of worker 0.
    spare = [worker for worker in range(workers) if worker not in owning]
    return spare if 0 in spare and graph.sources and is_light_before_keys(graph) else range(workers)


def is_light_before_keys(graph: Graph) -> bool:
    """Return whether only methods of built-in classes run before the first keys.

    Then items go to the owners of their keys. The cost of a user function is not known before it has run, nor is the
    cost of making records that are no texts.
    """
    ways: list[Vertex] = []
    for source in graph.sources:
        if source.type not in (str, bytes):
            return False
        ways += graph.successors(source)
    for vertex in ways:  # it grows meanwhile; there is no cycle without a route
        if isinstance(vertex.route, (ByKey, ByHash)):
            continue
        if vertex.route is not None or type(vertex) is not Map or not isinstance(vertex.function, _LIGHT):
            return False
        ways += graph.successors(vertex)
    return True


def owning_workers(graph: Graph, workers: int, homes: Container[Vertex] = ()) -> int:
    """Return the default number of workers that own key groups.

    All workers own some, so that work and state are shared, unless all keyed operations are light: then looking up the
    owner of each key, and merging items of several workers, costs more than the work itself. One owner needs no lookup,
    and the others do the work before. Two or more do not even get less to do each: measured with functions of 0 to
    20 µs before the count, on 3 to 8 workers, half of them as owners took 1.3 to 1.7 times the processor time of one,
    and the busiest process 0.85 to 1.2 times as much.

    Args:
        graph: Graph of the job.
        workers: Number of workers.
        homes: Vertices that a single worker owns, which do not count.

    >>> owning_workers(Graph(), 4)
    4
    """
    keyed = [vertex for vertex in graph.vertices if isinstance(vertex.route, (ByKey, ByHash)) and vertex not in homes]
    if keyed and all(vertex.light for vertex in keyed):
        return 1
    return workers
