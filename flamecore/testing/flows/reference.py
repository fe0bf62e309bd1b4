"""The reference interpreter: the meaning of a flow, in the simplest terms.

Every vertex processes one item at a time: the least pending item of the least time goes next; of one time, those first
that have passed the fewest ordered operations, which wait until all of their time is there. Items derived from an item
sort after it, so every operation sees its items in order, and only a custom order ever needs repairs.
Cycles are drawn in full, windows are cut from plain sorted lists, keys are compared by `==`.

It shares the graph and the meta with the engine, and nothing else: it is the oracle the engine is tested against.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from flamecore.errors import GraphError, LoopKeyError, PlaceError
from flamecore.model.expansion import expanded
from flamecore.model.graph import Graph
from flamecore.model.hashing import check_key, stable_hash
from flamecore.model.meta import (
    GLOBAL_TIME_BYTES,
    MIN_TIME,
    DataItem,
    GlobalTime,
    Meta,
    decode_children,
    decode_time,
    encode_child,
    encode_time,
    label_code,
)
from flamecore.model.ordered import (
    CLOSING,
    DONE,
    KEPT,
    Marking,
    Now,
    Ordered,
    Outcome,
    Timer,
    behind,
    behind_record,
    tie_of,
    timer_place,
)
from flamecore.model.vertices import (
    Broadcast,
    ByHash,
    ByKey,
    Grouping,
    KeyedLoop,
    Label,
    Labelled,
    Map,
    Merge,
    Placing,
    Sink,
    Source,
    ToAll,
    Vertex,
    WithLabel,
)

T = TypeVar("T")


_KNOWN = (Source, Map, Broadcast, Merge, Grouping, Marking, Label, WithLabel, Ordered, Sink)


class Failure(NamedTuple):
    """A valid item that a user function failed on."""

    order: bytes
    vertex: str
    payload: Any
    error: Exception


class Failed(Exception):
    """A user function failed on a valid item.

    Args:
        graph: The graph that was run.
        outputs: The outputs of its sinks if failing records were left out.
        failures: All failures.

    Attributes:
        vertex, payload, error: Those of the first failure.
        outputs: Those of the records before it: the outputs of each sink.
        most: For each sink, its outputs before the first record that an operation leading to it fails on. It gets no
            more than these.
    """

    def __init__(self, graph: Graph, outputs: Mapping[str, Sequence[DataItem]], failures: Iterable[Failure]) -> None:
        found = sorted(failures, key=lambda failure: failure.order)
        reached = {vertex.name: graph.reach_of(vertex) for vertex in graph.vertices if not isinstance(vertex, Sink)}
        met = {
            sink.name: next((failure for failure in found if sink in reached[failure.vertex]), None)
            for sink in graph.sinks
        }
        # If two branches fail on one record, the failure of the sink that is first in the graph is shown.
        first = min(
            (failure for failure in met.values() if failure), key=lambda failure: failure.order[:GLOBAL_TIME_BYTES]
        )
        super().__init__(f"{first.vertex!r} failed on {first.payload!r}: {first.error!r}")
        self.vertex, self.payload, self.error = first[1:]
        self.outputs = {name: _before(first, held) for name, held in outputs.items()}
        self.most = {name: _before(met[name], held) for name, held in outputs.items()}


def _before(failure: Failure | None, held: Sequence[DataItem]) -> list[DataItem]:
    """Return the outputs before a record, whose own are delivered all or none."""
    if failure is None:
        return list(held)
    end = encode_time(decode_time(failure.order))
    return [output for output in held if output.order < end]


def interpret(
    graph: Graph,
    inputs: Mapping[str, Iterable[Any]],
    *,
    workers: int = 1,
    times: Mapping[str, Iterable[int]] | None = None,
    skip_failing: bool = False,
    max_steps: int = 10_000_000,
    end: int | None = None,
    ends: Mapping[str, int] | None = None,
    keeps: bool = False,
    wall: bool = False,
) -> dict[str, list[DataItem]]:
    """Run a graph on whole inputs.

    Args:
        graph: The graph, as for a job.
        inputs: For each source, its records.
        workers: Number of workers; only copies to all workers depend on it.
        times: For each source, the times of its records; default: 0, 1, 2, …
        skip_failing: Go on without records that a user function fails on.
        max_steps: Give up on a flow that has not ended after so many.
        end: The time at which all fronts have ended: no later timer is due. Default: right after the last record.
        ends: For each source, the time at which it has ended. Default: right after its last record.
        keeps: Whether the job keeps state, as far as vertices ask.
        wall: Whether times are those of the wall clock.

    Returns:
        For each sink, its outputs in order, as the barrier has them: alive. Their traces are 0, since no other worker
            could have made them.

    Raises:
        Failed: A user function failed on a valid item, and `skip_failing` is not set.
        GraphError: A vertex has no `draw` that tells its meaning.
    """
    drawn, spans = expanded(graph)
    for vertex in drawn.vertices:
        if not isinstance(vertex, _KNOWN):
            raise GraphError(
                f"the reference interpreter does not know what {vertex!r} means",
                hint=f"Define {type(vertex).__name__}.draw, which draws it with generic operations.",
                vertex=vertex.name,
            )
    interpreter = _Interpreter(drawn, workers, skip_failing, keeps, wall)
    for vertex, (entry, _) in spans.items():
        if isinstance(vertex.route, ByKey) and vertex.route.place is not None:
            placing, starts = graph.placing_of(vertex), graph.predecessors(vertex)
            placed = None if placing is None else spans[placing][0]
            interpreter.places |= {(spans[start][1], entry): (vertex.route, placed) for start in starts}
    for vertex, place in graph.firing_places().items():
        if (model := interpreter.ordered.get(spans[vertex][0])) is not None:
            model.firing_place = place
    return interpreter.run(inputs, times or {}, max_steps, end, ends or {})


class _Interpreter:
    def __init__(self, graph: Graph, workers: int, skip_failing: bool, keeps: bool, wall: bool) -> None:
        self.graph, self.workers, self.skip_failing, self.keeps, self.wall = graph, workers, skip_failing, keeps, wall
        self.pending: list[tuple[bytes, int, bytes, int, Vertex, Vertex, bool, Any]] = []
        """(time, stage, order, tie, start, end, alive, payload)"""
        self.stages: dict[Vertex, int] = {}
        for part in graph.parts():
            leading = {start for vertex in part for start in graph.predecessors(vertex)} - part
            stage = max([self.stages[start] + start.ordered for start in leading], default=0)
            self.stages.update(dict.fromkeys(part, stage))
        self.pushed = 0
        self.buckets: dict[Vertex, dict[Any, list[tuple[Any, ...]]]] = {}
        self.held: dict[str, list[DataItem]] = {sink.name: [] for sink in graph.sinks}
        self.failures: list[Failure] = []
        upstream_first = reversed(graph.sinks_first())
        self.models = [OrderedModel(vertex) for vertex in upstream_first if isinstance(vertex, Ordered)]
        self.ordered: dict[Vertex, OrderedModel] = {model.vertex: model for model in self.models}
        self.said: dict[tuple[Vertex, bytes], int] = {}
        self.folded: dict[tuple[Vertex, bytes], Any] = {}
        self.feedback = graph.feedback()
        self.loop_of = {vertex: head for head, inside in graph.keyed_loops().items() for vertex in inside}
        self.entered: dict[Vertex, dict[bytes, Any]] = {head: {} for head in graph.keyed_loops()}
        self.places: dict[tuple[Vertex, Vertex], tuple[ByKey, Vertex | None]] = {}  # of edges to routes by place
        self.dealt: dict[Vertex, dict[bytes, Any]] = {}  # the places of records, by their order

    def run(
        self,
        inputs: Mapping[str, Iterable[Any]],
        times: Mapping[str, Iterable[int]],
        max_steps: int,
        end: int | None,
        known_ends: Mapping[str, int],
    ) -> dict[str, list[DataItem]]:
        until = 0  # the time after all records, and all ends that are said
        ends: dict[Source, bytes] = {}
        empty: set[Source] = set()
        for front, source in enumerate(self.graph.sources, 1):
            records = list(inputs.get(source.name, ()))
            stamps = times.get(source.name, range(len(records)))
            for time, payload in zip(stamps, records, strict=True):
                self.emit(source, GlobalTime(time, front).encode(), True, payload)
            after = max(stamps, default=-1) + 1
            until = max(until, after)
            ended = known_ends.get(source.name, after)
            ends[source] = GlobalTime(ended, front).encode()
            if not records:
                empty.add(source)
        for vertex in self.graph.vertices:
            if isinstance(vertex, Marking):
                source = self.graph.marked_source(vertex)
                for behind in self.graph.next_ordered(vertex):
                    self.ordered[behind].origins[vertex] = None
                closes = vertex.closes or (vertex.closes is None and not self.keeps)
                if closes or source in empty:
                    until = max(until, decode_time(ends[source]) + 1)
                    self.say(vertex, behind_record(ends[source]), CLOSING if closes else DONE)
        for model in self.models:
            model.origins.update({other: None for other in self.graph.marks_before(model.vertex) if other.ordered})
        for _ in range(max_steps):
            if self.let_in(until if end is None else end):
                continue
            if not self.pending:
                break
            _, _, order, _, start, vertex, alive, payload = heapq.heappop(self.pending)
            try:
                self.check_key(start, vertex, order, payload)
                self.check_place(start, vertex, order, payload)
            except Exception as refused:  # noqa: BLE001 - user code, or a key that has changed
                self.fail(vertex, order, alive, payload, refused)
            else:
                self.work(vertex, order, alive, payload)
        else:
            raise RuntimeError(f"graph {self.graph.name!r} has not ended after {max_steps} steps")
        outputs = {name: sorted(held, key=lambda output: output.order) for name, held in self.held.items()}
        if self.failures and not self.skip_failing:
            raise Failed(self.graph, outputs, self.failures)
        return outputs

    def let_in(self, end: int) -> bool:
        """Run an ordered operation on an item or timer that nothing can come before.

        Return whether one has run. If several operations in a row have something of the least time, the first one goes
        first.

        Args:
            end: The time at which all fronts have ended.
        """
        nexts = [
            (order[:8], self.stages[model.vertex], number)
            for number, model in enumerate(self.models)
            if (order := model.next(end))
        ]
        if not nexts or (self.pending and min(nexts)[:2] >= self.pending[0][:2]):
            return False
        model = self.models[min(nexts)[2]]
        order = model.next(end)
        payload = model.waiting.get(order)
        try:
            outputs = model.work_on(order)
        except Exception as error:  # noqa: BLE001 - user code
            self.fail(model.vertex, order, True, payload, error)
            return True
        if model.failed is not None:
            self.fail(model.vertex, order, True, payload, model.failed)
            model.failed = None
        for place, output in outputs:
            self.emit(model.vertex, place, True, output)
        if model.says is not None:
            self.say(model.vertex, *model.says)
            model.says = None
        return True

    def say(self, vertex: Vertex, place: bytes, value: int) -> None:
        for end in self.graph.next_ordered(vertex):
            self.ordered[end].marks[place, vertex.index] = (vertex, value)

    def emit(self, vertex: Vertex, order: bytes, alive: bool, payload: Any) -> None:
        for number, end in enumerate(self.graph.successors(vertex)):
            at = order + encode_child(number) if isinstance(vertex, Broadcast) else order
            copies = range(self.workers) if isinstance(end.route, ToAll) else (None,)
            for copy in copies:
                self.pushed += 1
                place = at if copy is None else at + encode_child(copy)
                entry = (place[:8], self.stages[end], place, self.pushed, vertex, end, alive, payload)
                heapq.heappush(self.pending, entry)

    def check_key(self, start: Vertex, vertex: Vertex, order: bytes, payload: Any) -> None:
        """Check that an item in a loop by key has the key of the item that entered.

        The item that entered is the last one among those it is derived from.
        """
        loop = vertex if (start, vertex) in self.feedback else self.loop_of.get(vertex)
        if isinstance(vertex, KeyedLoop) and (start, vertex) not in self.feedback:
            self.entered[vertex][order] = vertex.key(payload)
        if isinstance(loop, KeyedLoop) and (loop is vertex or isinstance(vertex.route, ByKey)):
            key = loop.key(payload) if loop is vertex else vertex.route.key(payload)  # type: ignore[union-attr]
            length = max(length for length in range(len(order) + 1) if order[:length] in self.entered[loop])
            if key != self.entered[loop][order[:length]]:
                raise LoopKeyError(f"{key!r} came of {self.entered[loop][order[:length]]!r}", vertex=vertex.name)

    def check_place(self, start: Vertex, vertex: Vertex, order: bytes, payload: Any) -> None:
        """Check that the key of an item has a place, and that it is its record's place."""
        if isinstance(vertex, Placing):
            assert isinstance(vertex.route, ByKey)
            self.dealt.setdefault(vertex, {})[order] = vertex.route.key(payload)
        if (start, vertex) in self.places:
            route, placing = self.places[start, vertex]
            place = route.placed(payload)
            stable_hash(place)
            if placing is not None:
                places = self.dealt[placing]
                length = max(length for length in range(len(order) + 1) if order[:length] in places)
                if place != places[order[:length]]:
                    raise PlaceError(f"{place!r} came of {places[order[:length]]!r}", vertex=vertex.name)

    def fail(self, vertex: Vertex, order: bytes, alive: bool, payload: Any, error: Exception) -> None:
        if alive:
            self.failures.append(Failure(order, vertex.name, payload, error))
        else:
            self.failures = [failure for failure in self.failures if failure[:2] != (order, vertex.name)]

    def work(self, vertex: Vertex, order: bytes, alive: bool, payload: Any) -> None:
        if isinstance(vertex, Sink):
            held = self.held[vertex.name]
            if alive:
                held.append(DataItem(order, 0, True, payload))
            else:
                held.remove(next(output for output in held if output.order == order))
        elif isinstance(vertex, (Broadcast, Merge)):
            self.emit(vertex, order, alive, payload)
        elif isinstance(vertex, Label):
            self.emit(vertex, order + label_code(vertex.number), alive, payload)
        elif isinstance(vertex, WithLabel):
            children = Meta.decode(order).child_ids
            number = decode_children(label_code(vertex.number))[0]
            if number not in children:
                return self.fail(vertex, order, alive, payload, ValueError(vertex.no_label()))
            last = len(children) - children[::-1].index(number)
            label = order[:GLOBAL_TIME_BYTES] + b"".join(map(encode_child, children[:last]))
            self.emit(vertex, order, alive, Labelled(label, payload, vertex.ends))
        elif isinstance(vertex, Ordered):
            self.ordered[vertex].put(order, alive, payload)
        elif isinstance(vertex, Marking):
            front = (vertex, order[8:GLOBAL_TIME_BYTES])
            try:
                if vertex.folds:
                    wall = decode_time(order) if self.wall else None
                    self.folded[front], value, _ = vertex.function(self.folded.get(front), payload, wall)
                else:
                    value = vertex.function(payload)
            except Exception as error:  # noqa: BLE001 - user code
                return self.fail(vertex, order, alive, payload, error)
            if value is not None and (rounded := value - value % vertex.step) > self.said.get(front, MIN_TIME):
                self.said[front] = rounded
                self.say(vertex, behind_record(order), rounded)
            self.emit(vertex, order, alive, payload)
        else:
            try:
                if isinstance(vertex, Map):
                    if isinstance(vertex.route, (ByKey, ByHash)):
                        vertex.route.hash(payload)  # only that it can be computed matters here
                    meta = partial(Meta.decode, order, tombstone=not alive)
                    outputs = outputs_of(vertex, payload, meta)
                    emitted = [(order + encode_child(number), alive, output) for number, output in enumerate(outputs)]
                else:
                    assert isinstance(vertex, Grouping)
                    emitted = self.group(vertex, order, alive, payload)
            except Exception as error:  # noqa: BLE001 - user code
                return self.fail(vertex, order, alive, payload, error)
            for parts in emitted:
                self.emit(vertex, *parts)
        return None

    def group(self, vertex: Grouping, order: bytes, alive: bool, payload: Any) -> list[tuple[bytes, bool, Any]]:
        """Change the bucket; return the windows that are gone and those that are new.

        Only windows that ended at or behind the change are compared.
        """
        bucket = bucket_of(vertex, self.buckets.setdefault(vertex, {}), order, payload)
        key = (order,) if vertex.order is None else (order[:12], vertex.order(payload), order)
        place = sum(entry[:-1] < key for entry in bucket) if bucket and bucket[-1][:-1] >= key else len(bucket)
        before = _windows(vertex, bucket, place, vertex.window + (not alive))
        if alive:
            bucket.insert(place, (*key, payload))
        else:
            assert bucket[place][:-1] == key
            del bucket[place]
        after = _windows(vertex, bucket, place, vertex.window + alive)
        same = {at for at, window in before.items() if at in after and _identical(window, after[at])}
        gone = [(at, False, window) for at, window in before.items() if at not in same]
        come = [(at, True, window) for at, window in after.items() if at not in same]
        return gone + come


class OrderedModel:
    """An ordered operation: waiting items and marks, and the state of each key.

    The state of a key comes with its timers and its hold.

    Args:
        vertex: The operation.

    Attributes:
        firing_place: Its place among the operations that have outputs at one mark or time.
    """

    def __init__(self, vertex: Ordered) -> None:
        assert isinstance(vertex.route, ByKey)
        self.vertex = vertex
        self.firing_place = 0
        self.key_of = vertex.route.key
        self.work = vertex.work()
        self.work.open()
        self.outcomes: dict[Any, Outcome] = {}  # of the keys with state, as their first items have them
        self.waiting: dict[bytes, Any] = {}
        self.marks: dict[tuple[bytes, int], tuple[Vertex, int]] = {}
        self.origins: dict[Vertex, int | None] = {}
        self.watermark = self.before = MIN_TIME  # now, and before the mark whose timers are due
        self.reached: bytes = b""  # the place of the mark whose timers are due
        self.says: tuple[bytes, int] | None = None
        self.failed: Exception | None = None  # what the last timer has raised, which is left out
        self.numbers: Counter[bytes] = Counter()

    def next(self, end: int) -> bytes:
        """Return the order of the next item, mark, or timer below `end`.

        It is empty if there is none.
        """
        marks = [self.reached] if self.reached else [place for place, _ in self.marks]
        return min([*self.waiting, *marks, *(place for place, *_ in self.due(end))], default=b"")

    def due(self, end: int, mark: bytes | None = None) -> list[tuple[bytes, bytes, Any, Timer]]:
        """Return the timers below a time, or those of a mark, in order.

        Each is (place, tie, key, timer).
        """
        pending = [(key, timer) for key, outcome in self.outcomes.items() for timer in outcome.timers]
        found = [
            (timer_place(self.firing_place, timer, key, mark), tie_of(key), key, timer)
            for key, timer in pending
            if timer.time < end and timer.mark == (mark is not None)
        ]
        return sorted(found, key=lambda timer: timer[:2])

    def put(self, order: bytes, alive: bool, payload: Any) -> None:
        """Add an item to those that wait, or take one back."""
        if alive:
            assert order not in self.waiting
            self.waiting[order] = payload
        else:
            del self.waiting[order]

    def work_on(self, order: bytes) -> list[tuple[bytes, Any]]:
        """Work on the item, timer or mark of an order; return outputs and their orders.

        For a mark it works on one timer at a time, and at the end on none: then the operation emits its own marks.

        Raises:
            Exception: An item fails; the state is as it was.
        """
        time = decode_time(order)
        if order in self.waiting:
            payload = self.waiting.pop(order)
            key = self.key_of(payload)
            check_key(key)
            key = next((first for first in self.outcomes if first == key), key)
            before = self.outcomes.get(key, Outcome())
            outcome = self.work.process(key, before.state, payload, self.now(time))
            if outcome.timers is KEPT:
                outcome = outcome._replace(timers=before.timers, hold=before.hold)
            return self.settle(key, order, None, outcome)
        timers = self.due(time + 1)
        if not timers or timers[0][0] != order:
            if not self.reached:
                self.take_marks(order)
            timers = self.due(self.watermark + 1, order) if self.reached else []
            if not timers:
                if self.reached:
                    holds = [outcome.hold for outcome in self.outcomes.values() if outcome.hold is not None]
                    self.says = (behind(order), min([self.watermark, *holds])) if self.watermark > MIN_TIME else None
                self.reached = b""
                return []
        place, _, key, timer = timers[0]
        before = self.outcomes[key]
        self.outcomes[key] = before._replace(timers=tuple(other for other in before.timers if other != timer))
        now = self.now(time, timer)
        try:
            return self.settle(key, place, timer, self.work.on_time(key, before.state, timer, now))
        except Exception as error:  # noqa: BLE001 - user code
            self.failed = error
        left = self.work.leave_out(key, before.state, timer, now)
        return [] if left is None else self.settle(key, place, timer, left)

    def take_marks(self, place: bytes) -> None:
        """Take all marks of a place."""
        counts, self.before = False, self.watermark
        for mark in [mark for mark in self.marks if mark[0] == place]:
            vertex, value = self.marks.pop(mark)
            if value == DONE:
                counts = True
                del self.origins[vertex]
                continue
            last = self.origins[vertex]
            grows = last is None or value > last
            counts |= grows or vertex.ordered
            if grows:
                self.origins[vertex] = value
        said = [value for value in self.origins.values() if value is not None]
        if said and len(said) == len(self.origins):
            self.watermark = max(self.watermark, min(said))
        self.reached = place if counts else b""

    def now(self, time: int, due: Timer | None = None) -> Now:
        return Now(time, self.watermark, self.before if due is not None and due.mark else self.watermark)

    def settle(self, key: Any, place: bytes, due: Timer | None, outcome: Outcome) -> list[tuple[bytes, Any]]:
        """Take the outcome of a call, after timers that are past."""
        now = self.now(decode_time(place), due)
        outputs = list(outcome.outputs)
        while past := [timer for timer in outcome.timers if self.is_past(timer, key, place, due)]:
            outcome = self.work.on_time(key, outcome.state, min(past, key=lambda timer: (timer[2], timer)), now)
            outputs += outcome.outputs
        left = outcome._replace(outputs=(), timers=tuple(set(outcome.timers)))
        if left == Outcome():
            self.outcomes.pop(key, None)
        else:
            self.outcomes[key] = left
        first = self.numbers[place]
        self.numbers[place] += len(outputs)
        return [(place + encode_child(number), output) for number, output in enumerate(outputs, first)]

    def is_past(self, timer: Timer, key: Any, place: bytes, due: Timer | None) -> bool:
        if not timer.mark:
            return timer_place(self.firing_place, timer, key) <= place
        if due is not None and due.mark:
            return timer.time <= self.watermark and timer[:2] <= due[:2]
        return timer.time <= self.watermark


def bucket_of(vertex: Grouping, buckets: dict[Any, list[T]], order: bytes, payload: Any) -> list[T]:
    """Return the bucket of an item, by its key or by its hash and an equal payload.

    Where partial windows are undone, each record has buckets of its own.

    Args:
        vertex: The grouping.
        buckets: Its buckets. A missing one is added.
        order: The order of the item.
        payload: The payload of the item.
    """
    route = vertex.route
    if isinstance(route, ByKey):
        key = route.key(payload)
        return buckets.setdefault((order[:12], key) if vertex.undo_partial else key, [])
    assert isinstance(route, ByHash)
    hashed = route.function(payload)
    for (other, example), bucket in buckets.items():
        if other == hashed and (vertex.equal is None or vertex.equal(example, payload)):
            return bucket
    return buckets.setdefault((hashed, payload), [])


def outputs_of(vertex: Map, payload: Any, meta: Callable[[], Any]) -> list[Any]:
    """Return the outputs of a map for one payload, in order.

    Args:
        vertex: The map.
        payload: The payload of the item.
        meta: Spells out the meta of the item, for a map that takes it.
    """
    if vertex.shape == "inspect_meta":
        vertex.function(payload, meta())
        return [payload]
    if vertex.shape == "timed":
        return [vertex.function(payload, meta().global_time.time)]
    result = vertex.function(payload)
    if vertex.shape == "many":
        return list(result)
    if vertex.shape == "one":
        return [result]
    return [payload] if vertex.shape == "inspect" or result else []


def _windows(vertex: Grouping, bucket: list[tuple[Any, ...]], place: int, count: int) -> dict[bytes, tuple[Any, ...]]:
    """Return the first `count` windows that end at `place` or behind it.

    They are by the order of their last item.
    """
    size = len(bucket)
    if vertex.undo_partial and 0 < size < vertex.window:
        return {bucket[-1][-2]: tuple(entry[-1] for entry in bucket)}
    cuts = {}
    for end in range(place + 1, min(place + count, size) + 1):
        if end >= vertex.window or not vertex.undo_partial:
            cuts[bucket[end - 1][-2]] = tuple(entry[-1] for entry in bucket[max(end - vertex.window, 0) : end])
    return cuts


def _identical(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
