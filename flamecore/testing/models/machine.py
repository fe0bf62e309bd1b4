"""The machine of all models: workers, FIFO channels and a seeded scheduler.

At every step the scheduler picks a channel at random, and its receiver works on the oldest item there. There is a
channel from each front to its worker, and from each worker to each worker, itself too: an item that stays on a worker
waits like any other. So even one worker meets items out of order, and an item never overtakes what was sent before it.

Nothing tracks progress: barriers release when all channels are empty, since nothing can be taken back from then on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from operator import is_
from random import Random
from typing import Any, NamedTuple

from flamecore.errors import ConsistencyError, GraphError, JobError, OrderViolationError
from flamecore.model.expansion import expand
from flamecore.model.graph import Graph
from flamecore.model.hashing import key_group, owners
from flamecore.model.meta import GLOBAL_TIME_BYTES, DataItem, GlobalTime, decode_time
from flamecore.model.vertices import Broadcast, ByHash, ByKey, ByTime, Grouping, Map, Merge, Sink, Source, ToAll, Vertex
from flamecore.testing.flows.reference import Failed, Failure, bucket_of, outputs_of
from flamecore.testing.models.ordering import Instance, Ordering
from flamecore.testing.trace import Arrival


@dataclass
class ModelRun:
    """The result of a run.

    Attributes:
        outputs: For each sink, its items in order.
        replays: Number of windows that groupings emitted and that turned out wrong.
        trace: Every item that came to a vertex, in the order of arrival.
    """

    outputs: dict[str, list[DataItem]]
    replays: int = 0
    trace: list[Arrival] = field(default_factory=list)


class _Failure(NamedTuple):
    """The payload of an item that a user function failed on."""

    vertex: str
    payload: Any
    error: Exception


class Machine:
    """One run of a graph by the rules of one meta.

    Args:
        graph: The graph, as for a job. Fused drifting state is expanded.
        inputs: For each source, its records.
        ordering: The rules of the meta.
        workers: Number of workers.
        seed: Selects the interleaving. The same seed gives the same run.
        max_arrivals: Limit for the length of the trace.

    Attributes:
        result: The result so far.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Iterable[Any]],
        ordering: Ordering,
        *,
        workers: int,
        seed: int,
        max_arrivals: int = 1_000_000,
    ) -> None:
        self.graph, self.ordering, self.workers = expand(graph), ordering, workers
        for vertex in self.graph.vertices:
            if not isinstance(vertex, (Source, Map, Broadcast, Merge, Grouping, Sink)):
                raise GraphError(
                    f"the models of the meta do not know {vertex!r}, which the papers do not have",
                    hint="Compare flows without it; `flamecore.testing.flows.reference.interpret` knows it.",
                    vertex=vertex.name,
                )
        self.max_arrivals = max_arrivals
        self.result = ModelRun({})
        self._random = Random(seed)
        self._owners = owners(workers)
        self._instances = {
            (vertex, worker): Instance(self._random.getrandbits(64))
            for vertex in self.graph.vertices
            for worker in range(workers)
        }
        self._buckets: dict[Vertex, dict[Any, list[DataItem]]] = {}
        # A failure is held and taken back as an output is: it has a sink of its own, which is in no graph.
        self._failures = Sink("failures")
        self._barriers: dict[tuple[Vertex, int], list[DataItem]] = {}
        self._channels: dict[tuple[str, int], deque[tuple[Vertex, DataItem]]] = {}
        for front, source in enumerate(self.graph.sources, 1):
            self._channels[f"front/{front}", (front - 1) % workers] = deque(
                (source, DataItem(GlobalTime(time, front).encode(), 0, True, payload))
                for time, payload in enumerate(inputs.get(source.name, ()))
            )

    def run(self) -> ModelRun:
        """Work until nothing is in flight, then release.

        Raises:
            Failed: A user function failed on a valid item.
            JobError: The run has not ended after `max_arrivals`.
            ConsistencyError: A law of the meta is broken.
        """
        result = self.result
        while ready := [channel for channel, waiting in self._channels.items() if waiting]:
            channel = self._random.choice(ready)
            self._arrive(channel[1], *self._channels[channel].popleft())
        result.outputs = {sink.name: self._released(sink) for sink in self.graph.sinks}
        failures = self._released(self._failures)
        if failures:
            raise Failed(self.graph, result.outputs, [Failure(each.order, *each.payload) for each in failures])
        return result

    def _send(self, worker: int, start: Vertex, end: Vertex, item: DataItem) -> None:
        """Put an emitted item into the channels to the workers where `end` takes it."""
        try:
            places = list(self._places(worker, start, end, item))
        except Exception as error:  # noqa: BLE001 - user code
            return self._fail(worker, end, item, error)
        for receiver, copy in places:
            self._channels.setdefault((f"worker/{worker}", receiver), deque()).append((end, copy))
        return None

    def _places(self, worker: int, start: Vertex, end: Vertex, item: DataItem) -> Iterator[tuple[int, DataItem]]:
        """Yield each worker that an item goes to, with the item as it comes there."""
        route = end.route
        by_time = isinstance(route, ByTime) or (isinstance(end, Sink) and self.ordering.barriers_by_time)
        if isinstance(route, (ByKey, ByHash)):
            yield self._owners[key_group(route.hash(item.payload))], item
        elif isinstance(route, ToAll):
            yield from enumerate(self.ordering.copies(self._instances[start, worker], item, self.workers))
        else:
            yield decode_time(item.order) % self.workers if by_time else worker, item

    def _fail(self, worker: int, vertex: Vertex, item: DataItem, error: Exception) -> None:
        payload = _Failure(vertex.name, item.payload, error)
        self._send(worker, vertex, self._failures, item._replace(payload=payload))

    def _arrive(self, worker: int, vertex: Vertex, item: DataItem) -> None:
        """Process an item at a vertex, and send the items it emits."""
        self.result.trace.append(Arrival(worker, vertex.name, item))
        if len(self.result.trace) > self.max_arrivals:
            raise JobError(
                f"graph {self.graph.name!r} has not ended after {self.max_arrivals} arrivals",
                hint="Give the cycle an exit condition, or the model fewer records.",
            )
        if isinstance(vertex, Sink):
            self.ordering.meet(self._barriers.setdefault((vertex, worker), []), item)
            return None
        ends = self.graph.successors(vertex)
        try:
            images = self._images(self._instances[vertex, worker], vertex, item, len(ends))
        except ConsistencyError:
            raise
        except Exception as error:  # noqa: BLE001 - user code
            return self._fail(worker, vertex, item, error)
        # The i-th copy of a broadcast goes to its i-th successor; every other vertex has one successor.
        for end, image in zip(ends if isinstance(vertex, Broadcast) else ends * len(images), images, strict=True):
            self._send(worker, vertex, end, image)
        return None

    def _images(self, instance: Instance, vertex: Vertex, item: DataItem, successors: int) -> list[DataItem]:
        """Return the items that a vertex emits for an item, in the order of emission."""
        if isinstance(vertex, Map):
            outputs = outputs_of(vertex, item.payload, partial(self.ordering.meta, item))
            return self.ordering.images(instance, item, outputs)
        if isinstance(vertex, Broadcast):
            return self.ordering.copies(instance, item, successors)
        if isinstance(vertex, Merge):
            return [self.ordering.merged(instance, item)]
        return self._group(instance, vertex, item) if isinstance(vertex, Grouping) else [item]

    def _group(self, instance: Instance, vertex: Grouping, item: DataItem) -> list[DataItem]:
        """Change the bucket, and compare the windows before with the windows after."""
        bucket = bucket_of(vertex, self._buckets.setdefault(vertex, {}), item.order, item.payload)
        _place(vertex, item)  # a custom order that fails must fail before the item is in the bucket
        before = _windows(vertex, bucket)
        self.ordering.meet(bucket, item)
        bucket.sort(key=partial(_place, vertex))
        after = _windows(vertex, bucket)
        gone = [window for last, window in before.items() if not _same(window, after.get(last, ()))]
        come = [window for last, window in after.items() if not _same(window, before.get(last, ()))]
        self.result.replays += len(gone)
        return self.ordering.windows(instance, gone, come)

    def _released(self, sink: Sink) -> list[DataItem]:
        """Return the items of a sink in the barriers of all workers, in order."""
        held = [item for (at, _), items in self._barriers.items() if at is sink for item in items]
        held.sort(key=lambda item: item.order)
        for item, following in pairwise(held):
            if item.order == following.order:
                raise OrderViolationError(
                    f"sink {sink.name!r}: two valid items have one order ({self.ordering.meta(item)})",
                    hint="A user function on their way is not deterministic.",
                    vertex=sink.name,
                    record=item.payload,
                )
        return held


def _place(vertex: Grouping, item: DataItem) -> tuple[Any, ...]:
    """Return the key that sorts an item in a bucket."""
    if vertex.order is None:
        return (item.order, item.trace)
    return (item.order[:GLOBAL_TIME_BYTES], vertex.order(item.payload), item.order, item.trace)


def _windows(vertex: Grouping, bucket: Sequence[DataItem]) -> dict[tuple[bytes, int], Sequence[DataItem]]:
    """Return the windows of a sorted bucket, ascending, by their last item's identity."""
    size, window = len(bucket), vertex.window
    ends: Iterable[int] = range(1, size + 1)
    if vertex.undo_partial:
        ends = [size] if 0 < size < window else range(window, size + 1)
    return {(bucket[end - 1].order, bucket[end - 1].trace): tuple(bucket[max(end - window, 0) : end]) for end in ends}


def _same(one: Sequence[DataItem], other: Sequence[DataItem]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))
