"""The balancer of a job, which moves fronts and key groups where that pays.

`flamecore.runtime.cluster.balance` is the policy. A move is a reconfiguration with the same workers, from a snapshot,
as a rescale is; so outputs do not depend on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from flamecore.model.plan import Placement, Plan
from flamecore.runtime.cluster.balance import (
    EVEN,
    MARGIN,
    MUCH,
    Choice,
    Loads,
    chosen,
    grown,
    hot_groups,
    measured,
    predicted,
)
from flamecore.runtime.cluster.nodes import NodeManager
from flamecore.runtime.cluster.reconfiguration import Reconfiguration
from flamecore.runtime.cluster.status import Downtime
from flamecore.runtime.engine.epoch import Epoch
from flamecore.runtime.parts.counters import NodeStats
from flamecore.runtime.tasks.event_loop import monotonic

_LOOK_S: Final = 0.5
"""Seconds between two looks at the reports of nodes, which come as often."""

_LEAST_S: Final = 4 * _LOOK_S
"""Shortest stretch of time that is a measurement: of several reports of each worker."""

_PAUSE_S: Final = 0.5
"""Least seconds that a move is taken to need."""


class Window:
    """The stretch of an epoch over which loads are measured.

    Args:
        epoch: The epoch.
        first: The reports at its beginning, by worker.
    """

    def __init__(self, epoch: Epoch, first: tuple[NodeStats, ...]) -> None:
        self.epoch, self.first = epoch, first
        self.since = monotonic()
        self.due_s = _LEAST_S
        """Length at which the loads are looked at next: twice that of the last time, which bounds the cost of looks."""

    @property
    def passed_s(self) -> float:
        """Return the length so far."""
        return monotonic() - self.since


class Experience:
    """The measured costs of placements of a job, and of moves between them.

    Attributes:
        known: Seconds of the busiest worker for a record, by placement.
        disappointments: Number of moves in a row that have saved less than half of the prediction.
    """

    def __init__(self) -> None:
        self.known: dict[Placement, float] = {}
        self.disappointments = 0
        self._shapes: dict[Placement, list[float]] = {}  # of the known ones, the loads in relation to the greatest
        self._expected: float | None = None  # seconds for a record, half way between before and as predicted

    def expect(self, loads: Loads, choice: Choice) -> None:
        """Note the prediction of a move that begins; the way back to a known placement is none."""
        if choice.placement not in self.known:
            self._expected = loads.per_record * (1 + choice.ratio) / 2

    def learn(self, now: Placement, loads: Loads) -> None:
        """Note the cost of the present placement."""
        cost, shape = loads.per_record, [load / (max(loads.busy) or 1.0) for load in loads.busy]
        if now in self.known:
            changes = [abs(load - before) for load, before in zip(shape, self._shapes[now], strict=True)]
            # A processor that others use takes longer for the same; but another load says nothing of this one.
            scale = cost / self.known[now]
            self.known = {} if max(changes) > MARGIN else {place: one * scale for place, one in self.known.items()}
        self.known[now], self._shapes[now] = cost, shape
        if self._expected is not None:
            self.disappointments = self.disappointments + 1 if cost > self._expected else 0
            self._expected = None


class Balancer:
    """The balancer of a job on several processes.

    Args:
        nodes: The job's processes, with its context.
        reconfiguration: The one that moves.
        downtime: The pauses of the job, which tell the cost of a move.
    """

    def __init__(self, nodes: NodeManager, reconfiguration: Reconfiguration, downtime: Downtime) -> None:
        self._nodes, self._reconfiguration, self._downtime = nodes, reconfiguration, downtime
        self._window: Window | None = None
        self._experience = Experience()
        self._plan: Plan | None = None  # of the present epoch
        self._readers: set[tuple[str, int]] = set()
        """Sources, each with a worker that has read a partition of it."""
        self._loads: Loads | None = None
        self._choice: Choice | None = None
        self._moves = 0
        self._verdict = "the loads have not been measured yet"

    async def run(self, present: Callable[[], Epoch | None]) -> None:
        """Measure, and move, until cancelled.

        Args:
            present: Returns the present epoch.
        """
        while True:
            await asyncio.sleep(_LOOK_S)
            epoch = present()
            if epoch is None or not epoch.begun or epoch.outcome.done():
                self._window = None
                continue
            await self._look(epoch)

    async def _look(self, epoch: Epoch) -> None:
        reports = self._reports(epoch.plan)
        if reports is None:
            return
        if self._window is None or self._window.epoch is not epoch:
            self._compare(epoch.plan)
            self._window = Window(epoch, reports)
            return
        if (passed_s := self._window.passed_s) < self._window.due_s:
            return
        self._window.due_s = 2 * passed_s
        since = [grown(now, before) for now, before in zip(reports, self._window.first, strict=True)]
        loads, now = measured(epoch.plan, since, self._may_go), epoch.plan.placed
        if loads is None:
            read = sum(sum(report.read.values()) for report in since)
            done = read - sum(report.in_flight for report in since)
            self._verdict = "too little has been measured yet" if read or done else "nothing was read lately"
            if read >= EVEN * done:  # fronts read ahead, or nothing: the measurement begins behind that
                self._window = Window(epoch, reports)
            return
        spent_s, pause_s = max(sum(report.cpu_s.values()) for report in since), self._pause_s
        choice = chosen(loads, now, self._experience.known)
        # From then on a later load counts.
        if long_enough := spent_s >= pause_s / MARGIN or spent_s * (1 - choice.ratio) >= pause_s:
            self._experience.learn(now, loads)
            choice = chosen(loads, now, self._experience.known)
            self._window = Window(epoch, reports)
        self._loads, self._choice = loads, choice
        self._verdict = self._judge(choice, now, spent_s)
        if long_enough and not self._verdict:
            self._experience.expect(loads, choice)
            self._verdict = "the job is moving its parts"
            await self._reconfiguration.move(choice.placement, epoch)

    def _compare(self, plan: Plan) -> None:
        """Compare the plan of an epoch with the one before."""
        before, self._plan = self._plan, plan
        self._readers |= {(front.source, plan.host_of(number)) for number, front in enumerate(plan.fronts, 1)}
        if before is not None and (plan.workers, plan.graph) != (before.workers, before.graph):
            self._experience, self._loads = Experience(), None
        elif before is not None and plan.placed != before.placed:
            self._moves += 1
            self._loads, self._verdict = None, "the loads have not been measured since the last move"

    @property
    def _pause_s(self) -> float:
        """Return the seconds that a move has to save: it takes as long as the last pause.

        Twice as many after each move that has saved little, so that moves do not go on where loads cannot be predicted.
        """
        return float(max(self._downtime.last_s, _PAUSE_S) * 2**self._experience.disappointments)

    def _judge(self, choice: Choice, now: Placement, spent_s: float) -> str:
        """Return why nothing moves; empty if it is to."""
        context, loads = self._nodes.context, self._loads
        assert loads is not None
        greatest, saved_s = max(loads.busy), spent_s * (1 - choice.ratio)
        if choice.placement == now:
            return f"no other placement is known that lowers the greatest load by {MARGIN:.0%}"
        if context.spec.config.placement.fixed:
            return "nothing moves, since [placement] fixed is true, the default; false lets parts move"
        if context.history is None:
            return "nothing moves, as the job keeps no state to go on from; configure [state]"
        if greatest < MUCH:
            return f"nothing moves while the greatest load is below {MUCH:.0%} of a processor: no worker limits the job"
        if saved_s < self._pause_s:
            return (
                f"a move takes {self._pause_s:.2f} s, and would have saved {saved_s:.2f} s of the {spent_s:.1f} s "
                "that the busiest worker has run"
            )
        return ""

    def _reports(self, plan: Plan) -> tuple[NodeStats, ...] | None:
        """Return the last report of each worker; None if one of them is missing."""
        members = self._nodes.members
        found = [members.reports.get(members.hosts.get(f"worker/{worker}", "")) for worker in range(plan.workers)]
        reports = tuple(report for report in found if report is not None)
        there = all(worker in report.busy_s for worker, report in enumerate(reports))
        return reports if there and len(reports) == plan.workers else None

    def _may_go(self, number: int, worker: int) -> bool:
        """Return whether a worker is known to be able to read a front.

        It reads another partition of the source, or has done so.
        """
        context = self._nodes.context
        source = context.plan.fronts[number - 1].source
        return context.spec.sources[source].capabilities.replayable and (source, worker) in self._readers

    # -- for people ------------------------------------------------------------------------------------------------

    def described(self) -> dict[str, object]:
        """Return the loads, what they would be, and why nothing changes."""
        plan, loads, choice = self._plan, self._loads, self._choice
        if plan is None or loads is None or choice is None or len(loads.busy) != plan.workers:
            return {"verdict": self._verdict, "moves": self._moves}
        now, then = plan.placed, choice.placement
        after = predicted(loads, now, then) if len(then.hosts) == len(now.hosts) else loads.busy
        members = self._nodes.members
        hot = {}
        for group in hot_groups(loads, now):
            owner = now.owners[group]
            report = members.reports.get(members.hosts.get(f"worker/{owner}", ""), NodeStats())
            hot[str(group)] = {
                "owner": owner,
                "share": round(loads.groups[group] / loads.busy[owner], 3),
                "key": report.hot_keys.get(group, ""),
            }
        return {
            "verdict": self._verdict,
            "workers": {
                f"worker/{worker}": {
                    "busy": round(loads.busy[worker], 3),
                    "fronts": _hosted(plan, now, worker),
                    "of_fronts": round(sum(loads.fronts[at][worker] for at in _at(now, worker)), 3),
                    "key_groups": _groups(now, worker),
                    "would_be": {
                        "busy": round(after[worker], 3),
                        "fronts": _hosted(plan, then, worker),
                        "key_groups": _groups(then, worker),
                    },
                }
                for worker in range(plan.workers)
            },
            "hot_groups": hot,
            "moves": self._moves,
            "disappointments": self._experience.disappointments,
        }


def _at(place: Placement, worker: int) -> list[int]:
    return [at for at, host in enumerate(place.hosts) if host == worker]


def _hosted(plan: Plan, place: Placement, worker: int) -> list[str]:
    return [f"{plan.fronts[at].source} {plan.partitions[at]}".rstrip() for at in _at(place, worker)]


def _groups(place: Placement, worker: int) -> list[int]:
    """Return the first and the last key group of a worker, or nothing."""
    if worker not in place.owners:
        return []
    count = place.owners.count(worker)
    first = place.owners.index(worker)
    return [first, first + count - 1]
