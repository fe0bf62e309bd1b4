"""A whole job under a seeded scheduler: real parts, on a simulated network.

Workers, ackers and rears are the job's own. At every step the scheduler picks, at random, one thing that could happen
next: a front admits some records, a channel delivers its oldest message, an acker's buffer becomes due. Channels keep
their own order and are delayed at will against each other; time is virtual. The same seed gives the same run; another
seed gives another interleaving, and the same outputs.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import replace

from flamecore.abc.acker import Acker, AckerPlan, Tracker
from flamecore.abc.source import Batch
from flamecore.errors import FlameError
from flamecore.model.clock import STOPWATCH, ClockName
from flamecore.model.failure import Failure
from flamecore.model.graph import Graph
from flamecore.model.messages import CONTROL, Busy, Delivered, Items, MinTimes, Patient, Released, Report
from flamecore.model.meta import DataItem, FrontId
from flamecore.model.plan import Plan
from flamecore.model.settings import JobSettings, OnError
from flamecore.runtime.config.operators import plugin_operators
from flamecore.runtime.config.plugins import PluginRegistry
from flamecore.runtime.operators.rounds import ROUNDS
from flamecore.runtime.parts.collector import Collector
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.room import Room
from flamecore.runtime.parts.worker import Worker
from flamecore.testing.simulation.placements import drawn_placement
from flamecore.testing.simulation.rounds import drawn_rounds
from flamecore.testing.simulation.world import stopwatch
from flamecore.testing.trace import Arrival


class SimulationStuckError(FlameError):
    """A simulation in which nothing can happen any more, before the job is done."""


@dataclass
class SimulatedRun:
    """The result of a simulated run.

    Attributes:
        outputs: For each sink, the payloads in the order of delivery.
        failure: The record that ended the run, if one did.
        replays: Outputs that operations took back.
        steps: Number of steps.
        messages: Number of messages of each kind.
        trace: The items that workers handed over to each other, in the order of arrival, if a trace was asked for.
        times: For each front, the global times of its records.
        ends: For each front, the time at which it has ended.
    """

    outputs: dict[str, list[Any]]
    failure: Failure | None = None
    replays: int = 0
    steps: int = 0
    messages: dict[str, int] = field(default_factory=dict)
    trace: list[Arrival] = field(default_factory=list)
    times: dict[FrontId, list[int]] = field(default_factory=dict)
    ends: dict[FrontId, int] = field(default_factory=dict)


class Simulation:
    """One run of a graph on simulated workers.

    Args:
        graph: The graph, checked.
        inputs: For each source, its records; or a list of lists, one for each partition, under `partitioned`.
        acker: Builds the acker strategy.
        workers: Number of workers. How many of them own key groups is drawn, and for half of the seeds where all
            parts are.
        seed: Decides everything that is left to chance.
        partitioned: For each source, its records by partition (instead of in `inputs`).
        settings: Settings of the job. The number of workers and their owners are not taken from it, nor is `advance`;
            the arguments that follow count more.
        on_error: Treatment of records that a user function fails on.
        copy: Applied to every message on its way, as a codec would; default: handed over.
        burst: Most records a front admits at once.
        advance: As in `Plan`; None: drawn.
        trace: Whether the run notes each item that goes from one worker to another.
        clock: The clock of the fronts: a wall clock shows the virtual time, and begins at 0.
        check_mutation: Whether functions that change what they are given fail.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Iterable[Any]],
        *,
        acker: Callable[[AckerPlan], Acker],
        workers: int = 2,
        seed: int = 0,
        partitioned: Mapping[str, Sequence[Sequence[Any]]] | None = None,
        settings: JobSettings | None = None,
        on_error: OnError | None = None,
        copy: Callable[[Any], Any] | None = None,
        burst: int = 3,
        advance: bool | None = None,
        trace: bool = False,
        clock: ClockName | None = None,
        check_mutation: bool | None = None,
    ) -> None:
        base = settings or JobSettings()
        clock = base.clock if clock is None else clock
        self.random = Random(seed)
        self.now = 0.0
        self.steps = 0
        self.burst = burst
        self.copy = copy or (lambda message: message)
        parts = {name: [list(records)] for name, records in inputs.items()}
        parts.update({name: [list(part) for part in split] for name, split in (partitioned or {}).items()})
        self.records: dict[int, deque[Any]] = {}
        self.times: dict[FrontId, list[int]] = {}
        fronts: list[Front] = []
        for source in graph.sources:
            for partition, records in enumerate(parts.get(source.name, [[]])):
                number = len(fronts) + 1
                fronts.append(Front(FrontId(source.name, partition), number, clock=clock, now_us=self._now_us))
                self._watch(fronts[-1])
                self.records[number] = deque(records)
        drawn = Random(seed)
        if advance is None:
            advance = drawn.choice((False, True))
        owning = drawn.choice((None, *range(1, workers + 1)))
        names = tuple(front.name for front in fronts)
        self.settings = replace(
            base,
            workers=workers,
            owners=owning,
            on_error=base.on_error if on_error is None else on_error,
            advance=advance,
            clock=clock,
            check_mutation=base.check_mutation if check_mutation is None else check_mutation,
        )
        self.plan = Plan(graph, names, self.settings, unread=frozenset(range(1, len(names) + 1)))
        if drawn.choice((False, True)):
            self.plan = dataclasses.replace(self.plan, placement=drawn_placement(self.plan, drawn))
        strategy = acker(AckerPlan(workers, self.plan.segments.inbound, self.plan.tracked_fronts))
        self._loads = Random(f"loads {seed}")
        self.trackers: dict[str, Tracker] = {}
        for index in range(strategy.trackers):
            tracker = self.trackers[f"acker/{index}"] = strategy.tracker(index)
            for worker in range(workers):
                tracker.subscribe(f"worker/{worker}")
        operators = plugin_operators(graph, PluginRegistry())
        timing, rounds = STOPWATCH.set(stopwatch(seed)), ROUNDS.set(drawn_rounds(seed))
        self.workers = {
            f"worker/{index}": Worker(
                index,
                self.plan,
                reporter=strategy.reporter(index),
                listener=strategy.listener(),
                random=Random(self.random.getrandbits(64)),
                fronts=[front for front in fronts if self.plan.host_of(front.number) == index],
                operators=operators,
            )
            for index in range(workers)
        }
        STOPWATCH.reset(timing)
        ROUNDS.reset(rounds)
        self.rears = {f"rear/{name}": Collector(name, workers) for name in self.plan.rears}
        self.outputs: dict[str, list[Any]] = {name: [] for name in self.plan.rears}
        self.channels: dict[tuple[str, str], deque[Any]] = {}
        self.open_fronts = {front.number: f"worker/{self.plan.host_of(front.number)}" for front in fronts}
        self.room = Room({front.number: front for front in fronts}, self.settings.max_in_flight)
        self.ends: dict[FrontId, int] = {}
        self.failures: dict[str, Failure] = {}
        self.sent: dict[str, int] = {}
        self._trace: list[Arrival] | None = [] if trace else None
        self._patient: set[tuple[str, str]] = set()
        self._kept: dict[tuple[str, str], MinTimes] = {}  # for each tracker and patient worker, news it has not got

    def run(self, max_steps: int = 1_000_000) -> SimulatedRun:
        """Run steps until the job is done.

        Raises:
            SimulationStuckError: It cannot get there.
            FlameError: An error of a part.
        """
        while not self.done():
            self.steps += 1
            if self.steps > max_steps:
                raise SimulationStuckError(f"not done after {max_steps} steps")
            choices = self.choices()
            if not choices:
                self.wait()
                continue
            self.random.choice(choices)()
        return SimulatedRun(
            self.outputs,
            self.failure,
            sum(worker.counts().replays for worker in self.workers.values()),
            self.steps,
            dict(self.sent),
            self._trace or [],
            self.times,
            self.ends,
        )

    @property
    def failure(self) -> Failure | None:
        """Return the first record that a rear has come to and that ends the run, or None."""
        reached = [self.failures[rear] for rear in self.rears if rear in self.failures]
        return min(reached, key=lambda failure: failure.at, default=None)

    def done(self) -> bool:
        """Return whether a failure has ended the run, or all admitted items are delivered."""
        if (failure := self.failure) is not None:  # each sink gets the outputs before the record that failed
            return all(name in self.failures or rear.time > failure.at.time for name, rear in self.rears.items())
        if self.open_fronts:
            return False
        end = max(self.ends.values(), default=0)
        return all(rear.time >= end for rear in self.rears.values()) or end == 0

    def choices(self) -> list[Callable[[], None]]:
        """Return all possible next steps, in an order that depends only on the run so far."""
        ways: list[Callable[[], None]] = []
        ways.extend(partial(self.deliver, *channel) for channel, waiting in self.channels.items() if waiting)
        ways.extend(partial(self.tell_kept, *each) for each in self._kept)
        ways.extend(
            partial(self.feed, number)
            for number, address in self.open_fronts.items()
            if (not self.records[number] or self.room.has_room(number, self.burst))
            and not self.workers[address].backlog.waiting
        )
        return ways

    def wait(self) -> None:
        """Advance virtual time to the next due worker: nothing is in flight.

        Raises:
            SimulationStuckError: No worker is due.
        """
        due = {address: at for address, worker in self.workers.items() if (at := worker.due()) is not None}
        if not due:
            raise SimulationStuckError(
                f"nothing is in flight and nothing is due, but only "
                f"{ {name: rear.time for name, rear in self.rears.items()} } is delivered of "
                f"{max(self.ends.values(), default=0)}"
            )
        self.now = max(self.now, min(due.values()))
        for address, at in due.items():
            if at <= self.now:
                self.workers[address].rounds.begin()
                self.flush(address)

    def feed(self, number: int) -> None:
        """Make a front admit some records, or end."""
        address, records = self.open_fronts[number], self.records[number]
        worker = self.workers[address]
        worker.rounds.begin()
        if records:
            if self._loads.random() < 0.3:  # a rebalance uses these loads
                for index in range(self.plan.workers):
                    worker.receive(f"worker/{index}", Busy(index, self._loads.random(), 1.0))
            wanted = min(len(records), self.random.randint(1, self.burst))
            values = [records.popleft() for _ in range(self.room.take(number, wanted))]
            worker.admit(number, Batch(values, range(len(values))), self.now)
            self.room.release(number)
        else:
            del self.open_fronts[number]
            self.ends[worker.fronts[number].name] = worker.end_front(number)
        self.flush(address)

    def _watch(self, front: Front) -> None:
        """Note the times that a front gives."""
        stamp, times = front.stamp, self.times.setdefault(front.name, [])

        def watched(positions: Sequence[Any], at: float) -> int:
            first = stamp(positions, at)
            times.extend(range(first, first + len(positions)))
            return first

        front.stamp = watched  # type: ignore[method-assign]

    def _now_us(self) -> int:
        return round(self.now * 1e6)

    def deliver(self, sender: str, to: str) -> None:
        """Deliver the oldest message of a channel."""
        message = self.channels[sender, to].popleft()
        if to in self.workers:
            self.workers[to].rounds.begin()
            if self._trace is not None and type(message) is Items:
                self._trace += self.arrivals(int(to.removeprefix("worker/")), message)
            self.workers[to].receive(sender, message)
            if type(message) is Delivered:
                self.release(self.workers[to])
            more = any(waiting for (_, end), waiting in self.channels.items() if end == to)
            if not more or self.random.random() < 0.7:  # a worker may take several messages before it sends
                self.flush(to)
        elif to in self.trackers:
            self.track(sender, to, message)
        elif to != CONTROL:  # CONTROL is told of a record that ends the job; there is none here
            self.collect(to, message)

    def track(self, worker: str, to: str, message: Any) -> None:
        """Pass a report to a tracker, or note whether a worker waits for its news."""
        if type(message) is Patient:
            (self._patient.add if message.patient else self._patient.discard)((to, worker))
            if not message.patient and (to, worker) in self._kept:
                self.tell_kept(to, worker)
            return
        assert type(message) is Report
        for news in self.trackers[to].receive(message):
            for subscriber in self.trackers[to].subscribers:
                if (to, subscriber) in self._patient and not news.vector:
                    self._kept[to, subscriber] = news
                else:
                    self.send(to, subscriber, news)

    def tell_kept(self, tracker: str, worker: str) -> None:
        """Tell a patient worker the latest of several news."""
        self.send(tracker, worker, self._kept.pop((tracker, worker)))

    def arrivals(self, worker: int, message: Items) -> Iterator[Arrival]:
        """Yield the items of a hand-over to a worker, without failures and marks."""
        vertices = self.plan.graph.vertices
        for index, trace, alive, orders, payloads in message.pieces:
            if index >= len(vertices):
                continue
            vertex = vertices[index].name
            for order, payload in zip(orders, payloads, strict=True):
                yield Arrival(worker, vertex, DataItem(order, trace, alive, payload))

    def collect(self, rear: str, message: Released) -> None:
        """Pass a release to a rear, and deliver the outputs it completes."""
        if rear in self.failures:
            return
        complete = self.rears[rear].receive(message)
        if complete is None:
            return
        self.outputs[self.rears[rear].name].extend(complete.payloads)
        if complete.failure is not None:
            self.failures[rear] = complete.failure
            return
        for worker in self.workers:
            self.send(rear, worker, Delivered(self.rears[rear].name, complete.time))

    def flush(self, address: str) -> None:
        """Send a worker's messages."""
        self.now += self.random.expovariate(1000.0)
        for to, message in self.workers[address].flush(self.now):
            self.send(address, to, message)

    def release(self, worker: Worker) -> None:
        """Return the credit of records that all rears have delivered."""
        for front in worker.fronts.values():
            front.delivered(worker.delivered())
        self.room.note()

    def send(self, sender: str, to: str, message: Any) -> None:
        self.sent[type(message).__name__] = self.sent.get(type(message).__name__, 0) + 1
        self.channels.setdefault((sender, to), deque()).append(self.copy(message))
