"""The times that workers know without the ackers.

A vertex is *closed* if all its items come from one worker, or stay where they are. A worker then has everything below a
time as soon as the fronts of that one worker have promised the time, and what waits before it has gone on. The ackers
say so too, one or two messages later: where one worker reads all input, those were two of the four messages in turn
that an output waited for. That worker knows it by itself, and tells the others with the items
(`flamecore.model.messages.Items.until`).

A failure can still come home to the host of a front from another worker, for a record that this has passed by its own
time. So rears distinguish the two kinds of time; see `flamecore.model.messages.Released`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from flamecore.model.meta import MIN_TIME, decode_time, encode_time
from flamecore.model.plan import Plan
from flamecore.model.vertices import ByHash, ByKey, Sink, Source, Vertex
from flamecore.runtime.operators.agenda import Agenda
from flamecore.runtime.operators.reorder import ReorderBuffer
from flamecore.runtime.parts.lowest import Lowest
from flamecore.runtime.parts.promises import NO_MORE, Promises


class Closed(NamedTuple):
    """The closed vertices of a plan.

    Attributes:
        senders: For each closed vertex, upstream ones first, the worker that all its items come from; None: they stay
            where they are.
        present: For each vertex, the workers that may have items of it.
    """

    senders: dict[Vertex, int | None]
    present: dict[Vertex, frozenset[int]]


def closed_in(plan: Plan) -> Closed:
    """Return the closed vertices of a plan.

    Operations that wait for more than items are left out, with all that is behind them: for marks, timers, or items
    that go round.
    """
    graph, everywhere = plan.graph, frozenset(range(plan.workers))
    cyclic = {vertex for _, head in graph.feedback() for vertex in graph.cycle_of(head)}
    closed = Closed({}, {})
    for vertex in reversed(graph.sinks_first()) if plan.settings.barrier else ():
        if isinstance(vertex, Source):
            closed.present[vertex] = frozenset(map(plan.host_of, _fronts_of(vertex, plan)))
            closed.senders[vertex] = None
            continue
        before = graph.predecessors(vertex)
        arriving = frozenset().union(*[closed.present.get(start, everywhere) for start in before])
        stays = vertex.route is None
        closed.present[vertex] = arriving if stays else _present_behind(vertex, arriving, plan)
        waits = vertex.ordered or vertex.marks or vertex in cyclic
        if not waits and all(start in closed.senders for start in before) and (stays or len(arriving) == 1):
            closed.senders[vertex] = None if stays else next(iter(arriving))
    return closed


def _present_behind(vertex: Vertex, arriving: frozenset[int], plan: Plan) -> frozenset[int]:
    """Return the workers that may have items of a vertex with a route."""
    if not isinstance(vertex.route, (ByKey, ByHash)):
        return frozenset(range(plan.workers))
    owners = frozenset(plan.owners_of(vertex))
    return owners if plan.graph.placing_of(vertex) is None else owners | arriving


def _fronts_of(source: Vertex, plan: Plan) -> list[int]:
    return [number for number, front in enumerate(plan.fronts, 1) if front.source == source.name]


class _Place(NamedTuple):
    """A closed vertex at which a time may change.

    It is a source, has a buffer, or has items from another worker or of several predecessors.

    Attributes:
        starts: The numbers of its predecessors, or of what is before these.
        fronts: For a source, the promises of its fronts that the worker hosts.
        sender: Address of the other worker that all its items come from; None: there is none.
        buffer: The buffer before it.
    """

    starts: Sequence[int]
    fronts: Lowest
    sender: str | None
    buffer: ReorderBuffer | None


class OwnTimes:
    """The times below which the closed vertices of a worker have all their items.

    Args:
        worker: Number of the worker.
        plan: The job's plan.
        promises: The promises of its fronts.
        waiting: Its buffers.

    Attributes:
        until: The time below which it has sent all items of closed vertices, `NO_MORE` once all fronts before them have
            ended. One time for all of them, the least.
        others: Workers that are to be told: all others if it sends any, since rears wait for each.
        suffice: Whether all that opens on the worker opens by these times, and they may still grow. Then nothing waits
            for the ackers.
    """

    def __init__(
        self, worker: int, plan: Plan, promises: Promises, waiting: Collection[ReorderBuffer | Agenda] = ()
    ) -> None:
        self.until = MIN_TIME
        self.suffice = False
        self.others: frozenset[int] = frozenset()
        made = promises.made
        self._told = {f"worker/{number}": MIN_TIME for number in range(plan.workers)}
        self._walk: list[_Place] = []
        self._sent: set[int] = set()  # the numbers of what is before the vertices whose items this worker sends
        closed, at = closed_in(plan), dict[Vertex, int]()
        buffers = {buffer.name: buffer for buffer in waiting if isinstance(buffer, ReorderBuffer)}
        for vertex, sender in closed.senders.items():
            starts = [at[start] for start in plan.graph.predecessors(vertex)]
            if sender == worker:
                self._sent.update(starts)
                self.others = frozenset(range(plan.workers)) - {worker}
            elif sender is not None:
                starts = []
            buffer = buffers.get(vertex.name) if vertex.stateful else None
            if buffer is None and len(starts) == 1:
                at[vertex] = starts[0]
                continue
            at[vertex] = len(self._walk)
            numbers = _fronts_of(vertex, plan) if isinstance(vertex, Source) else ()
            hosted = [number for number in numbers if plan.host_of(number) == worker]
            told_by = None if sender in (None, worker) else f"worker/{sender}"
            promised = Lowest(hosted, lambda front: made.get(front, MIN_TIME))
            self._walk.append(_Place(starts, promised, told_by, buffer))
        self._into = [MIN_TIME] * len(self._walk)
        self._behind = [MIN_TIME] * len(self._walk)
        self._at = {place.buffer: number for number, place in enumerate(self._walk) if place.buffer is not None}
        self._sinks = {vertex.name: number for vertex, number in at.items() if isinstance(vertex, Sink)}
        # Where a failure does not end the job, no rear waits for it: the job could be over before its host has heard of
        # it, and the position of its record be forgotten.
        if plan.settings.on_error != "fail":
            self._sinks = {}
        # The numbers of all that opens by some time; None: some of it waits for the ackers.
        self._asked: list[int] | None = None
        if self._at.keys() == set(waiting) and self._sinks.keys() == set(plan.rears):
            self._asked = [*self._at.values(), *self._sinks.values()]
        if not self._at and not self._sinks and not self._sent:  # nobody asks
            self._walk = []

    def leave_out(self, sink: str) -> None:
        """Leave a sink to the ackers."""
        self._sinks.pop(sink, None)
        self._asked = None

    def note(self, sender: str, until: int) -> None:
        """Note that another worker has sent everything below a time; an address that is no worker's says nothing."""
        if sender in self._told:
            self._told[sender] = max(until, self._told[sender])

    def update(self, limit: int = NO_MORE) -> bool:
        """Compute the times anew; return whether one has grown.

        Args:
            limit: Time of the first of the items that have not run, which no time passes.
        """
        into, behind, grown = self._into, self._behind, False
        for number, place in enumerate(self._walk):
            if place.starts:
                time = min([behind[start] for start in place.starts])
            elif place.sender is not None:
                time = self._told[place.sender]
            else:
                lowest_front = place.fronts.first()
                time = NO_MORE if lowest_front is None else lowest_front[0]
            time = min(time, limit)
            if time > into[number]:
                into[number] = time
                grown = True
            if place.buffer is not None and (lowest := place.buffer.lowest) is not None:
                time = min(time, decode_time(lowest))
            if time > behind[number]:
                behind[number] = time
                grown = True
        if grown:
            if self.others:
                self.until = max(self.until, min([behind[number] for number in self._sent]))
            self.suffice = self._asked is not None
            for number in self._asked or ():
                self.suffice = self.suffice and MIN_TIME < into[number] < NO_MORE
        return grown

    def opens_more(self) -> bool:
        """Return whether items wait that nothing can come before."""
        into = self._into
        for buffer, number in self._at.items():
            if (lowest := buffer.lowest) is not None and into[number] > MIN_TIME and lowest < self.before(buffer):
                return True
        return False

    def before(self, buffer: ReorderBuffer) -> bytes:
        """Return the encoded time below which a buffer gets nothing more, as far as is known."""
        number = self._at.get(buffer)
        return encode_time(_known(self._into[number])) if number is not None else b""

    def at_sink(self, sink: str) -> int:
        """Return the time below which a sink gets nothing more from the worker, as far as is known."""
        number = self._sinks.get(sink)
        return MIN_TIME if number is None else _known(self._behind[number])


def _known(time: int) -> int:
    # Where all fronts have ended, the ackers say how far the job is.
    return time if time < NO_MORE else MIN_TIME
