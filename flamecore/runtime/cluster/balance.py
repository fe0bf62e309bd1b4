"""The policy of placement: loads in, placement out; pure functions.

Paper 004 places work by statistics, and paper 000 gives the ranges of keys that move. A job measures how busy each
worker is, which part of that its fronts cost, and which key groups the rest is for. Another placement is worth it if it
lowers the greatest load by a clear margin, and if that saves more than the move costs.

A prediction may be wrong: a front may cost more where its items have to cross. So each placement that has been tried
is known by its measured cost from then on, and no prediction stands against that, unless the load is another one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple

from flamecore.model.hashing import KEY_GROUPS
from flamecore.model.plan import Placement, Plan
from flamecore.runtime.parts.counters import NodeStats

MARGIN: Final = 0.1
"""Least fraction by which the greatest load has to fall: two measurements of one load differ by as much."""

MUCH: Final = 0.5
"""Load below which nothing moves: no worker limits the job, and a pause would only delay outputs."""

SAMPLES: Final = 400
"""Fewest sampled items by which key groups move: the share of half of them is then known to a twentieth."""

EVEN: Final = 1.5
"""Most times as many records that are read in a measurement as are done, and the reverse."""

WRONG: Final = 1.25
"""Times the greatest load that a known placement may be predicted to have: beyond, its cost is that of another load."""

SLIGHT: Final = 0.02
"""Least fraction by which the greatest load has to be lower with other hosts of fronts than by key groups alone."""

HOT: Final = 0.25
"""Share of its owner's load from which on a key group is called hot."""


class Loads(NamedTuple):
    """The measured loads of a job, in processors.

    Attributes:
        busy: Load of each worker.
        fronts: For each front its load on each worker, as far as known; infinite where it cannot go.
        groups: Load of each key group on its owner.
        per_record: Seconds of a processor that the most loaded worker spends for a record of the job.
    """

    busy: tuple[float, ...]
    fronts: tuple[tuple[float, ...], ...]
    groups: tuple[float, ...]
    per_record: float


class Choice(NamedTuple):
    """A placement, and the greatest load with it in relation to the present one."""

    placement: Placement
    ratio: float


def grown(now: NodeStats, before: NodeStats) -> NodeStats:
    """Return the counters of a worker's load since an earlier report."""

    def since(name: str) -> dict[object, float]:
        earlier = getattr(before, name)
        return {key: value - earlier.get(key, 0) for key, value in getattr(now, name).items()}

    names = ("busy_s", "cpu_s", "up_s", "run_s", "read_s", "read", "key_groups", "group_s", "taken")
    tables: dict[str, Any] = {name: since(name) for name in names}
    return NodeStats(in_flight=now.in_flight - before.in_flight, **tables)


class _Span:
    """The work of one worker over a stretch of time, each number for a second of it.

    It is processor time: where there is more work than processors, all workers wait for one, and those that have little
    to do no less.

    Attributes:
        busy: Seconds in which the worker had work: it ran, or waited for a processor.
        fronts: By number of a front, seconds of a processor for it.
        groups: By key group, seconds of a processor for its items, once they are in their states.
        rest: Seconds of a processor for anything else: to receive, sort, encode and send items.
        samples: By key group, number of items in the sample.
        taken: Number of items that states have taken.
        read: By number of a front, records read.
        done: Records whose outputs were delivered.
    """

    def __init__(self, plan: Plan, worker: int, report: NodeStats) -> None:
        passed_s = max(report.up_s.get(worker, 0.0), 1e-9)
        self.busy = report.busy_s.get(worker, 0.0) / passed_s
        self.read = {number: count / passed_s for number, count in report.read.items()}
        self.done = sum(self.read.values()) - report.in_flight / passed_s
        self.taken = report.taken.get(worker, 0) / passed_s
        self.samples = report.key_groups
        ran = report.cpu_s.get(worker, 0.0) / passed_s
        fronts = {number: each / passed_s for number, each in _front_costs(plan, report).items()}
        # Timed by a clock that goes on while the worker waits for a processor; the items of the sample are not.
        self.fronts = _scaled(fronts, min(sum(fronts.values()) * ran / (self.busy or 1.0), ran))
        left = ran - sum(self.fronts.values())
        groups = {group: each / passed_s for group, each in report.group_s.items()}
        self.groups = _scaled(groups, min(sum(groups.values()), left))
        self.rest = left - sum(self.groups.values())

    def share_out(self, each: float) -> None:
        """Share out the rest, of which each item that states have taken accounts for `each`."""
        if samples := sum(self.samples.values()):
            for group, count in self.samples.items():
                self.groups[group] = self.groups.get(group, 0.0) + each * self.taken * count / samples
            self.rest -= each * self.taken
        if (fronts := sum(self.fronts.values())) > 0:  # to send their items
            self.fronts, self.rest = _scaled(self.fronts, fronts + self.rest), 0.0


def _front_costs(plan: Plan, report: NodeStats) -> dict[int, float]:
    """Return the seconds of each front of a worker, from reading to the first states."""
    counts: Counter[str] = Counter()
    for number, count in report.read.items():
        counts[plan.fronts[number - 1].source] += count
    costs = {}
    for number, count in report.read.items():
        source = plan.fronts[number - 1].source
        # Fronts of one source run the same functions: by their numbers of records.
        shared_s = report.run_s.get(source, 0.0) * count / (counts[source] or 1)
        costs[number] = report.read_s.get(number, 0.0) + shared_s
    return costs


def _scaled(parts: Mapping[int, float], whole: float) -> dict[int, float]:
    """Return the parts of a whole, in the relation of these."""
    total = sum(parts.values())
    return {key: part * whole / total for key, part in parts.items()} if total else {}


def measured(plan: Plan, reports: Sequence[NodeStats], may_go: Callable[[int, int], bool]) -> Loads | None:
    """Return the loads that the workers have measured; None: too little for that.

    Args:
        plan: The job's plan.
        reports: The counters of each worker, over a stretch of time.
        may_go: Returns whether (number of a front, worker) can go together.
    """
    spans = [_Span(plan, worker, report) for worker, report in enumerate(reports)]
    read, done = sum(sum(span.read.values()) for span in spans), sum(span.done for span in spans)
    if read >= done * EVEN or done >= read * EVEN:
        return None
    pace = done / read  # fronts read ahead, so each counts for the records that were done
    # An item costs no less where it comes from the worker's own fronts than where it has to be received.
    each = min((span.rest / span.taken for span in spans if span.taken), default=0.0)
    for span in spans:
        span.share_out(each)
        span.fronts = {number: cost * pace for number, cost in span.fronts.items()}
    spent = [sum(span.fronts.values()) + sum(span.groups.values()) + span.rest for span in spans]
    busiest = max(range(plan.workers), key=spent.__getitem__)
    if 0 < sum(sum(span.samples.values()) for span in spans) < SAMPLES or not spent[busiest]:
        return None
    # So that the greatest load is the share of the time in which its worker had work.
    unit = spans[busiest].busy / spent[busiest]
    groups = [spans[owner].groups.get(group, 0.0) * unit for group, owner in enumerate(plan.owners)]
    fronts = _front_loads(plan, spans, unit, may_go)
    return Loads(tuple(one * unit for one in spent), fronts, tuple(groups), spent[busiest] / done)


def _front_loads(
    plan: Plan, spans: Sequence[_Span], unit: float, may_go: Callable[[int, int], bool]
) -> tuple[tuple[float, ...], ...]:
    """Return the load of each front on each worker: as a record of its source costs there, if that is known."""
    costs: defaultdict[tuple[str, int], float] = defaultdict(float)
    counts: defaultdict[tuple[str, int], float] = defaultdict(float)
    for worker, span in enumerate(spans):
        for number, cost in span.fronts.items():
            key = plan.fronts[number - 1].source, worker
            costs[key] += cost
            counts[key] += span.read[number]
    rates = {key: costs[key] / count for key, count in counts.items() if count}

    def load(number: int, worker: int) -> float:
        source, host = plan.fronts[number - 1].source, plan.host_of(number)
        if worker != host and not may_go(number, worker):
            return inf
        here = rates.get((source, host), 0.0)
        there = rates.get((source, worker), here)
        return spans[host].fronts.get(number, 0.0) * unit * (there / here if here else 1.0)

    return tuple(
        tuple(load(number, worker) for worker in range(plan.workers)) for number in range(1, len(plan.fronts) + 1)
    )


def predicted(loads: Loads, now: Placement, then: Placement) -> tuple[float, ...]:
    """Return the load of each worker with another placement."""
    busy = list(loads.busy)
    for costs, host, other in zip(loads.fronts, now.hosts, then.hosts, strict=True):
        if host != other:
            busy[host] -= costs[host]
            busy[other] += costs[other]
    for load, owner, other in zip(loads.groups, now.owners, then.owners, strict=True):
        busy[owner] -= load
        busy[other] += load
    return tuple(busy)


def proposed(loads: Loads, now: Placement) -> Placement:
    """Return the placement with the least greatest load that single steps reach.

    A step moves one front from the busiest worker to another one, or a border between the key groups of two owners by
    one group. The number of owners stays: whether more of them pay follows from the operations, not from loads.
    """
    while True:
        kept, moved = _descended(loads._replace(fronts=()), now), _descended(loads, now)
        least, other = (max(predicted(loads, now, place), default=0.0) for place in (kept, moved))
        found = moved if other < (1 - SLIGHT) * least else kept
        if found == now:
            return now
        loads, now = loads._replace(busy=predicted(loads, now, found)), found


def _descended(loads: Loads, now: Placement) -> Placement:
    """Return the placement that the best steps lead to."""
    best, busy = now, loads.busy
    while True:
        load, make = min(_steps(loads, best, busy), key=lambda step: _profile(step[0]), default=(busy, None))
        if make is None or not _profile(load) < _profile(busy):
            return best
        best, busy = make(), load


def set_apart(loads: Loads, now: Placement) -> Placement:
    """Return the placement in which the busiest owner of keys hosts no fronts.

    It is the present one if workers that own none have no room for them.
    """
    busy = list(loads.busy)
    hosts = list(now.hosts)
    busiest = max(range(len(busy)), key=busy.__getitem__, default=0)
    greatest = busy[busiest]
    others = [worker for worker in range(len(busy)) if worker not in now.owners]
    if busiest in others or not others:
        return now
    for index, costs in enumerate(loads.fronts):
        if hosts[index] == busiest and costs[busiest]:
            host = min(others, key=lambda one: busy[one] + costs[one])
            if busy[host] + costs[host] >= greatest:
                return now
            busy[host] += costs[host]
            hosts[index] = host
    return Placement(tuple(hosts), now.owners)


def _profile(busy: Sequence[float]) -> tuple[float, ...]:
    # All loads, the greatest first: if two workers are the busiest, a step that helps one of them helps. Rounded, so
    # that nothing moves for the last bit of a sum.
    return tuple(sorted((round(load, 6) for load in busy), reverse=True))


def _steps(
    loads: Loads, place: Placement, busy: tuple[float, ...]
) -> Iterator[tuple[tuple[float, ...], Callable[[], Placement]]]:
    """Yield the loads behind each step, and a function that takes the step."""
    busiest = max(range(len(busy)), key=busy.__getitem__, default=0)
    hosts, owners = place
    for index, (host, costs) in enumerate(zip(hosts, loads.fronts, strict=False)):  # perhaps no front is to move
        if host != busiest or not costs[host]:
            continue
        for other, cost in enumerate(costs):
            if other != host and cost < inf:
                yield _shifted(busy, (host, -costs[host]), (other, cost)), partial(_with_host, place, index, other)
    for group in range(1, KEY_GROUPS):
        left, right = owners[group - 1], owners[group]
        if left == right:
            continue
        for edge, step, giver, taker in ((group - 1, -1, left, right), (group, 1, right, left)):
            moved = _outer(loads, owners, edge, step)
            if moved and len(moved) < owners.count(giver):
                load = sum(loads.groups[moved.start : moved.stop])
                yield _shifted(busy, (giver, -load), (taker, load)), partial(_with_owner, place, moved, taker)


def _with_host(place: Placement, index: int, host: int) -> Placement:
    return Placement((*place.hosts[:index], host, *place.hosts[index + 1 :]), place.owners)


def _with_owner(place: Placement, groups: range, owner: int) -> Placement:
    owners = place.owners
    return Placement(place.hosts, (*owners[: groups.start], *(owner,) * len(groups), *owners[groups.stop :]))


def _outer(loads: Loads, owners: Sequence[int], edge: int, step: int) -> range:
    """Return the groups from an edge of an owner's range to its first with a load."""
    at = edge
    while 0 <= at < KEY_GROUPS and owners[at] == owners[edge]:
        if loads.groups[at]:
            return range(min(edge, at), max(edge, at) + 1)
        at += step
    return range(0)


def _shifted(busy: tuple[float, ...], *changes: tuple[int, float]) -> tuple[float, ...]:
    shifted = list(busy)
    for worker, change in changes:
        shifted[worker] += change
    return tuple(shifted)


def chosen(loads: Loads, now: Placement, known: Mapping[Placement, float]) -> Choice:
    """Return the best placement: the present one, unless another is clearly better.

    Args:
        loads: The measured loads.
        now: The present placement.
        known: Seconds for a record, as in `Loads`, with placements that have been tried.
    """
    found = proposed(loads, now)
    greatest = max(loads.busy, default=0.0)
    choices = []
    if found not in known and greatest:
        choices.append(Choice(found, max(predicted(loads, now, found)) / greatest))
    # Not predicted, but tried once: of what an owner spends to merge its own records with those of others, to order
    # them and to encode their outputs no part can be timed by itself. A word count saves a quarter by that, and the
    # time of its fronts is a thirtieth.
    apart = set_apart(loads, now)
    if apart not in known and apart != now and greatest:
        choices.append(Choice(apart, 1 - MARGIN))
    for place, cost in known.items():
        if place != now and max(predicted(loads, now, place)) <= WRONG * greatest:
            choices.append(Choice(place, cost / loads.per_record))
    best = min(choices, key=lambda choice: choice.ratio, default=Choice(now, 1.0))
    return best if best.ratio <= 1 - MARGIN else Choice(now, 1.0)


def hot_groups(loads: Loads, now: Placement) -> list[int]:
    """Return the key groups that are more than `HOT` of their owners' loads."""
    found = [group for group, load in enumerate(loads.groups) if load and load > HOT * loads.busy[now.owners[group]]]
    return sorted(found, key=lambda group: -loads.groups[group])
