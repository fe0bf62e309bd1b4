"""A job without data, which runs an acker under a seeded scheduler.

It is compared with a plain model, a dict of the items in flight. Workers hand items over that spawn items; channels
keep their order and delay by chance; fronts and listeners come and go. The laws, as `LawBroken.law` names them:

* `safe`: a minimum time passes no item in flight, there or upstream, and no time that a front may still send;
* `arrives`: once all is acked and delivered, every listener knows the exact minimum time;
* `forward`: a listener begins where the job does, never goes back, reports growth truly, keeps segments apart;
* `reports`: acks in descending (segment, time), one heartbeat a front, no front ends beside acks, node times by one;
* `legal`: calls that the contract allows are not refused;
* `refused`: calls that the contract forbids are refused;
* `subscribers`: news go to the subscribers, once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, Final

from flamecore.abc.acker import Acker, AckerPlan, Listener, Segments
from flamecore.errors import FlameError
from flamecore.model.messages import MinTimes, Report
from flamecore.testing.laws import LawBroken

Make = Callable[[AckerPlan], Acker]
"""Function that builds the acker under test for a plan. Called anew for every run."""

SEGMENTS: Final[tuple[Segments, ...]] = tuple(
    tuple(map(frozenset, shape)) for shape in ([()], [(), (0,)], [(), (0,), (1,)], [(), (), (0, 1), (0,)])
)
"""Shapes of graphs that the simulation draws from."""

_EVENTS = 20_000  # a run has some hundred; beyond this it will never be quiet


class Model:
    """The reference: items in flight and times that fronts may still send, as dicts.

    Attributes:
        in_flight: (segment, time) of each item in flight, by its number.
        fronts: For each front the lowest time that it may send next.
        default: The highest promise of a front that has ended.
    """

    def __init__(self, plan: AckerPlan) -> None:
        self.in_flight: dict[int, tuple[int, int]] = {}
        self.fronts = dict.fromkeys(plan.fronts, plan.start)
        self.default = plan.start
        self.upstream: list[set[int]] = []
        for segment, feeding in enumerate(plan.segments):
            self.upstream.append({segment}.union(*(self.upstream[index] for index in feeding)))

    def end(self, front: int) -> None:
        """Forget a front that sends nothing more."""
        self.default = max(self.default, self.fronts.pop(front))

    def limit(self, segment: int) -> int:
        """Return a segment's minimum time if everything were known at once."""
        upstream = self.upstream[segment]
        times = [time for at, time in self.in_flight.values() if at in upstream]
        return min([min(self.fronts.values(), default=self.default), *times])


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a simulated job.

    Attributes:
        workers, fronts, listeners: Their numbers. Front f is numbered f + 1 and runs on worker f mod workers.
        segments: The graph.
        items: Number of items each front sends.
        children: Number of items these may spawn, in all.
        joins: Whether a front and a listener join while the job runs, and a listener leaves it.
        start: Time at which the job starts.
    """

    workers: int = 2
    fronts: int = 1
    listeners: int = 1
    segments: Segments = SEGMENTS[0]
    items: int = 3
    children: int = 4
    joins: bool = False
    start: int = 0

    @classmethod
    def drawn(cls, random: Random) -> Shape:
        """Draw a shape from the seed of a run."""
        return cls(
            workers=random.randint(1, 4),
            fronts=random.randint(0, 3),
            listeners=random.randint(1, 2),
            segments=random.choice(SEGMENTS),
            items=random.randint(0, 5),
            children=random.randint(0, 8),
            joins=random.random() < 0.5,
            start=random.choice((0, 0, -3, 1_700_000_000_000_000)),
        )


class _Channel:
    """Events that happen in this order, at times the scheduler chooses."""

    __slots__ = ("happen", "queue", "slow")

    def __init__(self, happen: Callable[[Any], None], slow: bool = False) -> None:
        self.queue: deque[Any] = deque()
        self.happen = happen
        self.slow = slow


class Bench:
    """An acker set up with workers, trackers, listeners, and channels between all.

    Args:
        make: Builds the acker.
        plan: The plan of the job.
        random: Decides which channels are slow.
        seed: The seed named in messages.
    """

    def __init__(self, make: Make, plan: AckerPlan, random: Random | None = None, seed: int | None = None) -> None:
        self.plan = plan
        self.random = random or Random(0)
        self.seed = seed
        self.now = 0.0
        self.model = Model(plan)
        self.acker = make(plan)
        self.channels: list[_Channel] = []
        self.reporters = [self.acker.reporter(worker) for worker in range(plan.workers)]
        self.trackers = [self.acker.tracker(index) for index in range(self.acker.trackers)]
        self.listeners: dict[str, Listener] = {}
        self._ticks = [0] * plan.workers
        self._flushes = [self.channel(self._flush) for _ in self.reporters]
        self._reports = [
            [self.channel(self._apply(index)) for index in range(len(self.trackers))] for _ in self.reporters
        ]
        self._news: dict[tuple[int, str], _Channel] = {}

    def broken(self, law: str, what: str) -> LawBroken:
        return LawBroken(law, what, self.seed)

    def channel(self, happen: Callable[[Any], None]) -> _Channel:
        """Add a channel; the events put into its queue happen in order."""
        channel = _Channel(happen, slow=self.random.random() < 0.3)
        self.channels.append(channel)
        return channel

    def stepped(self, worker: int) -> None:
        """Note that a worker has done a step: it will flush, maybe after a few more."""
        queue = self._flushes[worker].queue
        if not queue:
            queue.append(worker)

    def _flush(self, worker: int) -> None:
        ticked = False
        for index, report in self.reporters[worker].flush(self.now):
            ticked |= self._check_report(worker, report)
            self._reports[worker][index].queue.append(report)
        self._ticks[worker] += ticked

    def _check_report(self, worker: int, report: Report) -> bool:
        """Check the laws of one report; return whether it carries a node time."""
        _, tick, acks, heartbeats, unregistered, _ = report
        if not (tick or acks or heartbeats or unregistered) or report.worker != worker:
            raise self.broken("reports", f"worker {worker} sent {report}, which is empty or not its own")
        if acks and (unregistered or not tick):
            raise self.broken("reports", f"a report with acks has a node time and no end of a front, not {report}")
        if any(left[:2] <= right[:2] for left, right in pairwise(acks)):
            raise self.broken("reports", f"acks must go down in (segment, time), each once, not {acks}")
        if len({front for front, _ in heartbeats}) < len(heartbeats):
            raise self.broken("reports", f"a report has one heartbeat a front, not {heartbeats}")
        if tick and tick != self._ticks[worker] + 1:
            raise self.broken("reports", f"node time {tick} of worker {worker} follows {self._ticks[worker]}")
        return bool(tick)

    def _apply(self, index: int) -> Callable[[Report], None]:
        def apply(report: Report) -> None:
            tracker = self.trackers[index]
            self._tell(index, tracker.subscribers, tracker.receive(report))

        return apply

    def _tell(self, index: int, addresses: Sequence[str], news: Sequence[MinTimes]) -> None:
        for address in addresses:
            self._news[index, address].queue.extend(news)

    def subscribe(self, address: str) -> Listener:
        """Add a listener; each tracker subscribes it at its own moment."""
        listener = self.listeners[address] = self.acker.listener()
        for segment in range(len(self.plan.segments)):
            if listener.min_time(segment) != self.plan.start:
                raise self.broken(
                    "forward", f"a listener starts at {self.plan.start}, not {listener.min_time(segment)}"
                )

        def subscribe(index: int) -> None:
            self._tell(index, [address], [self.trackers[index].subscribe(address)])

        for index in range(len(self.trackers)):
            self._news[index, address] = self.channel(self._hear(index, listener))
            self.channel(subscribe).queue.append(index)
        return listener

    def unsubscribe(self, address: str) -> None:
        """Remove a listener."""
        del self.listeners[address]
        for tracker in self.trackers:
            tracker.unsubscribe(address)

    def _hear(self, index: int, listener: Listener) -> Callable[[MinTimes], None]:
        segments = range(len(self.plan.segments))

        def hear(news: MinTimes) -> None:
            before = [listener.min_time(segment) for segment in segments]
            grew = listener.receive(index, news)
            after = [listener.min_time(segment) for segment in segments]
            for segment in segments:
                if after[segment] < before[segment]:
                    raise self.broken("forward", f"{news} of tracker {index} changed {before} to {after}")
            if grew != (after != before):
                raise self.broken("forward", f"receive returned {grew}, but {before} became {after}")
            if grew:
                self.check(listener)

        return hear

    def check(self, listener: Listener) -> None:
        """Compare a listener with the model."""
        for segment, feeding in enumerate(self.plan.segments):
            time = listener.min_time(segment)
            limit = self.model.limit(segment)
            if time > limit:
                raise self.broken(
                    "safe",
                    f"minimum time {time} of segment {segment} passed {limit}; in flight: {self.model.in_flight}",
                )
            if any(time > listener.min_time(upstream) for upstream in feeding):
                raise self.broken("safe", f"minimum time {time} of segment {segment} is ahead of one that feeds it")

    def run(self, *, arrive: bool = True) -> None:
        """Run all events in an order drawn from the seed, then check the listeners.

        Args:
            arrive: Whether all minimum times must have arrived. Workers at rest may not be told of some.

        Raises:
            LawBroken: A law did not hold, or the acker refused something legal (the cause is chained).
        """
        try:
            self._run()
        except FlameError as error:
            raise self.broken("legal", f"a legal run was refused: {error}") from error
        for worker, reporter in enumerate(self.reporters):
            if rest := reporter.flush(self.now):
                raise self.broken("reports", f"worker {worker} had nothing to report and sent {rest}")
        for address, listener in self.listeners.items() if arrive else ():
            known = [listener.min_time(segment) for segment in range(len(self.plan.segments))]
            wanted = [self.model.limit(segment) for segment in range(len(self.plan.segments))]
            if known != wanted:
                raise self.broken("arrives", f"all is acked and {address} knows {known}, not {wanted}")

    def _run(self) -> None:
        draw = self.random.random
        for _ in range(_EVENTS):
            ready = [channel for channel in self.channels if channel.queue]
            if not ready or draw() < 0.05:
                if self._wait() or ready:
                    continue
                return
            channel = ready[int(draw() * len(ready))]
            if not channel.slow or draw() < 0.2:
                self.now += 0.001 * draw()
                channel.happen(channel.queue.popleft())
        raise self.broken("arrives", f"never quiet: still busy after {_EVENTS} events")

    def deliver(self, worker: int) -> None:
        """Flush a worker and run all events; errors of the acker are raised as they are."""
        self.stepped(worker)
        self._run()

    def _wait(self) -> bool:
        """Advance to the first reporter's due time and flush it; False if none is due."""
        dues = [(due, worker) for worker, reporter in enumerate(self.reporters) if (due := reporter.due()) is not None]
        if dues:
            due, worker = min(dues)
            self.now = max(self.now, due)
            self._flush(worker)
        return bool(dues)

    def hand_over(self, worker: int, segment: int, time: int) -> int:
        """Ack an item that a worker sends; return its number."""
        number = self.random.getrandbits(64) | 1
        self.reporters[worker].ack(segment, time, number)
        self.model.in_flight[number] = (segment, time)
        return number

    def received(self, worker: int, number: int) -> None:
        """Ack an item that a worker has processed."""
        segment, time = self.model.in_flight.pop(number)
        self.reporters[worker].ack(segment, time, number)

    def promise(self, worker: int, front: int, time: int) -> None:
        """Send a heartbeat of a front."""
        self.model.fronts[front] = time
        self.reporters[worker].heartbeat(front, time)

    def end(self, worker: int, front: int) -> None:
        """Unregister a front."""
        self.model.end(front)
        self.reporters[worker].unregister(front)


class Simulation(Bench):
    """One seeded run of a job: `Simulation(make, seed).run()`.

    Args:
        make: Builds the acker.
        seed: Decides everything; the same seed is the same run.
        shape: Shape of the job; None: drawn.
    """

    def __init__(self, make: Make, seed: int, shape: Shape | None = None) -> None:
        random = Random(seed)
        self.shape = shape = shape or Shape.drawn(random)
        fronts = tuple(range(1, shape.fronts + 1))
        super().__init__(make, AckerPlan(shape.workers, shape.segments, fronts, shape.start), random, seed)
        workers = range(shape.workers)
        self._data = [[self.channel(self._process(worker)) for worker in workers] for _ in workers]
        self._children = shape.children
        self._sources = [segment for segment, feeding in enumerate(shape.segments) if not feeding]
        self._below = [
            [segment, *(after for after, feeding in enumerate(shape.segments) if segment in feeding)]
            for segment in range(len(shape.segments))
        ]
        for front in fronts:
            self._start(front)
        for number in range(shape.listeners):
            self.subscribe(f"worker/{number}")
        if shape.joins:
            self._answers: list[int] = []
            joining = [lambda: None] * random.randint(0, 8)
            joining += [lambda: self._add("late"), *[self._register] * len(self.trackers), self._join]
            if shape.listeners > 1:
                joining.append(lambda: self.unsubscribe("worker/0"))
            self._script(joining)

    def _script(self, steps: Sequence[Callable[[], None]]) -> None:
        self.channel(lambda step: step()).queue.extend(steps)

    def _add(self, address: str) -> None:
        self.subscribe(address)

    def _send(self, worker: int, segment: int, time: int) -> None:
        to = int(self.random.random() * self.shape.workers)
        self._data[worker][to].queue.append(self.hand_over(worker, segment, time))

    def _process(self, worker: int) -> Callable[[int], None]:
        def process(number: int) -> None:
            random = self.random
            segment, time = self.model.in_flight[number]
            for _ in range(min(random.choice((0, 1, 1, 2)), self._children)):
                self._children -= 1
                self._send(worker, random.choice(self._below[segment]), time + random.choice((0, 1, 1, 2)))
            self.received(worker, number)
            self.stepped(worker)

        return process

    def _start(self, front: int) -> None:
        """Script a front: items of growing times, a promise after each, mostly an end."""
        worker = (front - 1) % self.shape.workers
        random = self.random

        def item() -> None:
            time = self.model.fronts[front] + random.choice((0, 0, 0, 1, 5))
            for _ in range(random.choice((0, 1, 1, 2))):
                self._send(worker, random.choice(self._sources), time)
            self.promise(worker, front, time + 1)
            self.stepped(worker)

        def end() -> None:
            self.end(worker, front)
            self.stepped(worker)

        self._script([item] * self.shape.items + [end] * (random.random() < 0.8))

    def _register(self) -> None:
        self._answers.append(self.trackers[len(self._answers)].register(self.shape.fronts + 1))

    def _join(self) -> None:
        front = self.shape.fronts + 1
        time = max(self._answers)
        self.model.fronts[front] = time
        for listener in self.listeners.values():
            self.check(listener)
        self.promise((front - 1) % self.shape.workers, front, time)
        self.stepped((front - 1) % self.shape.workers)
        self._start(front)
