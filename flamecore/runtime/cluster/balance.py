"""The policy of placement: loads in, placement out; pure functions.

Paper 004 places work by statistics, and paper 000 gives the ranges of keys that move. A job measures how busy each
worker is, which part of that its fronts cost, and which key groups the rest is for. Another placement is worth it if it
lowers the greatest load by a clear margin, and if that saves more than the move costs.

A prediction may be wrong: a front may cost more where its items have to cross. So each placement that has been tried
is known by its measured cost from then on, and no prediction stands against that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Final, NamedTuple

from flamecore.model.hashing import KEY_GROUPS
from flamecore.model.plan import Placement, Plan
from flamecore.runtime.parts.counters import NodeStats

MARGIN: Final = 0.1
"""Least fraction by which the greatest load has to fall: two measurements of one load differ by as much."""

MUCH: Final = 0.5
"""Load below which nothing moves: no worker limits the job, and a pause would only delay outputs."""

SAMPLES: Final = 400
"""Fewest sampled items by which key groups move: the share of half of them is then known to a twentieth."""

HOT: Final = 0.25
"""Share of its owner's load from which on a key group is called hot."""


class Loads(NamedTuple):
    """The measured loads of a job, in processors.

    Attributes:
        busy: Load of each worker.
        fronts: For each front its load on each worker, as far as known; infinite where it cannot go.
        groups: Load of each key group on its owner; 0 where it is not known.
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

    names = ("busy_s", "cpu_s", "up_s", "run_s", "read_s", "read", "key_groups")
    return NodeStats(**{name: since(name) for name in names})  # type: ignore[arg-type]  # of the same types


def measured(plan: Plan, reports: Sequence[NodeStats], may_go: Callable[[int, int], bool]) -> Loads:
    """Return the loads that the workers have measured.

    Args:
        plan: The job's plan.
        reports: The counters of each worker, over a stretch of time.
        may_go: Returns whether (number of a front, worker) can go together.
    """
    busy: list[float] = []
    costs: list[float] = [0.0] * len(plan.fronts)
    rates: dict[tuple[str, int], float] = {}  # (source, worker): seconds for a record
    groups = [0.0] * KEY_GROUPS
    records = sum(sum(report.read.values()) for report in reports)
    for worker, report in enumerate(reports):
        passed = max(report.up_s.get(worker, 0.0), 1e-9)
        load = max(report.busy_s.get(worker, 0.0), 0.0) / passed
        busy.append(load)
        mine = _front_costs(plan, worker, report)
        total = sum(mine.values()) / passed
        owns = worker in plan.owners or plan.homes_on(worker)
        # A worker that owns nothing works for its fronts alone, such as to encode and to send.
        scale = load / total if total > load or (total and not owns) else 1.0
        counts: dict[str, int] = {}
        spent: dict[str, float] = {}
        for number, seconds in mine.items():
            source = plan.fronts[number - 1].source
            costs[number - 1] = seconds * scale / passed
            counts[source] = counts.get(source, 0) + report.read.get(number, 0)
            spent[source] = spent.get(source, 0.0) + seconds * scale
        rates.update({(source, worker): spent[source] / count for source, count in counts.items() if count})
        samples = sum(report.key_groups.values())
        if samples >= SAMPLES:
            rest = max(load - min(total * scale, load), 0.0)
            for group, count in report.key_groups.items():
                if plan.owners[group] == worker:
                    groups[group] = rest * count / samples
    fronts = []
    for number, cost in enumerate(costs, 1):
        source, host = plan.fronts[number - 1].source, plan.host_of(number)
        here = rates.get((source, host), 0.0)
        ways = [
            cost
            if worker == host or not here
            else cost * rates.get((source, worker), here) / here
            if may_go(number, worker)
            else inf
            for worker in range(plan.workers)
        ]
        fronts.append(tuple(ways))
    per_record = max((report.cpu_s.get(worker, 0.0) for worker, report in enumerate(reports)), default=0.0)
    return Loads(tuple(busy), tuple(fronts), tuple(groups), per_record / records if records else 0.0)


def _front_costs(plan: Plan, worker: int, report: NodeStats) -> dict[int, float]:
    """Return the seconds of each front, from reading to the first states."""
    hosted = [number for number in range(1, len(plan.fronts) + 1) if plan.host_of(number) == worker]
    of_source: dict[str, int] = {}
    for number in hosted:
        source = plan.fronts[number - 1].source
        of_source[source] = of_source.get(source, 0) + report.read.get(number, 0)
    costs = {}
    for number in hosted:
        source = plan.fronts[number - 1].source
        # Fronts of one source run the same functions: by their numbers of records.
        share = report.read.get(number, 0) / of_source[source] if of_source[source] else 0.0
        costs[number] = report.read_s.get(number, 0.0) + report.run_s.get(source, 0.0) * share
    return costs


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
    best, busy = now, loads.busy
    while True:
        load, make = min(_steps(loads, best, busy), key=lambda step: _profile(step[0]), default=(busy, None))
        if make is None or not _profile(load) < _profile(busy):
            return best
        best, busy = make(), load


def set_apart(loads: Loads, now: Placement) -> Placement:
    """Return the placement in which the busiest owner of keys hosts no fronts.

    It is the present one if others have no room for them.
    """
    busy = list(loads.busy)
    hosts = list(now.hosts)
    busiest = max(range(len(busy)), key=busy.__getitem__, default=0)
    greatest = busy[busiest]
    if busiest not in now.owners or len(busy) == 1:
        return now
    for index, costs in enumerate(loads.fronts):
        if hosts[index] == busiest and costs[busiest]:
            host = min(
                (worker for worker in range(len(busy)) if worker != busiest), key=lambda one: busy[one] + costs[one]
            )
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
    for index, host in enumerate(hosts):
        costs = loads.fronts[index]
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
    if loads.per_record:
        choices += [Choice(place, cost / loads.per_record) for place, cost in known.items() if place != now]
    best = min(choices, key=lambda choice: choice.ratio, default=Choice(now, 1.0))
    return best if best.ratio <= 1 - MARGIN else Choice(now, 1.0)


def hot_groups(loads: Loads, now: Placement) -> list[int]:
    """Return the key groups that are more than `HOT` of their owners' loads."""
    found = [group for group, load in enumerate(loads.groups) if load and load > HOT * loads.busy[now.owners[group]]]
    return sorted(found, key=lambda group: -loads.groups[group])
