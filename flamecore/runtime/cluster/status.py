"""The status of a job, for its user, its clients and the registry; its downtime."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from flamecore import events
from flamecore.abc.host import NodeHost
from flamecore.logs import logger
from flamecore.model.clock import global_time
from flamecore.model.hashing import owned_ranges
from flamecore.model.plan import Plan
from flamecore.runtime.cluster.context import JobContext
from flamecore.runtime.cluster.job_record import Member
from flamecore.runtime.cluster.lease import Lease
from flamecore.runtime.cluster.membership import Membership
from flamecore.runtime.engine.epoch import Epoch
from flamecore.runtime.engine.node import Node
from flamecore.runtime.parts.counters import JobStats, NodeStats, summed
from flamecore.runtime.state.format import Manifest
from flamecore.runtime.tasks.stats import Rates


class JobStatus:
    """The counts of a job over all epochs, and its nodes.

    Args:
        job: Id of the job.
        members: Its nodes.

    Attributes:
        host: The host, which knows where nodes are; None: it is not known yet.
        lease: The lease, with the job's record in the registry; None: it is not held yet.
        node: The supervisor's node, in the present epoch; None: there is none.
        snapshot: The newest snapshot of this run.
        balance: Returns the present verdict on the placement, for people and programs.
    """

    def __init__(self, job: str, members: Membership) -> None:
        self.host: NodeHost | None = None
        self.lease: Lease | None = None
        self.node: Node | None = None
        self.snapshot: Manifest | None = None
        self.balance: Callable[[], dict[str, object]] = dict
        self._job = job
        self._members = members
        self._past: list[NodeStats] = []
        self._rates = Rates()

    def close_epoch(self) -> None:
        """Close an epoch: keep its counts, with nothing in flight any more."""
        self._past += [counts.past() for counts in self._present()]
        self._members.reports.clear()
        self.node = None

    def _present(self) -> list[NodeStats]:
        own = [self.node.stats()] if self.node is not None else []
        return [*self._members.reports.values(), *own]

    def stats(self, elapsed_s: float) -> JobStats:
        """Return a look at the job, which has run for `elapsed_s`."""
        counts = summed([*self._past, *self._present()], elapsed_s)
        return replace(counts, where=self.host.described(self._members.sites) if self.host is not None else {})

    async def watch(self, look: Callable[[], JobStats]) -> None:
        """Look at the job every second, until cancelled, to know its rates."""
        await self._rates.watch(look)

    def described(self, stats: JobStats, context: JobContext, faults: int) -> dict[str, object]:
        """Return the nodes, the parts of each, and the progress; it holds no secret.

        Args:
            stats: A look at the job.
            context: The job's context, with its plan and state.
            faults: Number of faults so far.
        """
        snapshot, state = self.snapshot, dict[str, object]()
        if context.history is not None:
            state = {
                "faults": faults,
                "snapshot": None
                if snapshot is None
                else {
                    "number": snapshot.number,
                    "time": global_time(snapshot.time),
                    "age_s": time.time() - snapshot.created,
                },
            }
        return {
            "job": self._job,
            "nodes": self._members.described(),
            "key_groups": owned_ranges(context.plan.owners),
            "homes": homes_of(context.plan),
            "placement": self.balance(),
            **state,
            **self._rates.described(stats),
            **dict(stats.rows()),
        }

    def publish(self, plan: Plan) -> None:
        """Write the nodes and their parts in the present epoch to the registry.

        `plan` is the plan of the present epoch.
        """
        members = self._members
        if self.lease is None:
            return
        self.lease.publish(
            members={
                name: Member(
                    role=node.role,
                    location=node.location,
                    pid=node.pid,
                    parts=members.parts_of(name),
                    version=node.version,
                )
                for name, node in members.nodes.items()
            },
            key_groups=owned_ranges(plan.owners),
            homes=homes_of(plan),
            fronts=tuple(
                (front.source, partition, f"worker/{plan.host_of(number)}")
                for number, (front, partition) in enumerate(zip(plan.fronts, plan.partitions, strict=True), 1)
            ),
        )


def homes_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the names of the cycles at home on each worker, by its address.

    Workers without a cycle are left out.
    """
    return {f"worker/{worker}": plan.homes_on(worker) for worker in sorted({*plan.homes.values()})}


MOVE_S: Final = 5.0
"""Longest wait for a first delivery before the end of a pause is reported."""


class Downtime:
    """The downtime of a job, measured per pause.

    Args:
        job: Id of the job.
        changed: Called with the epoch and the pause in milliseconds when the job moves again. It answers the client of
            a change, and returns whether there was one.
    """

    def __init__(self, job: str, changed: Callable[[Epoch, float], bool]) -> None:
        self._job, self._changed = job, changed
        self._since = 0.0  # 0: it moves
        self.last_s = 0.0
        """Length of the last pause. Before the first: of the part of it that the start of the job has, too."""

    def begin(self) -> None:
        """Begin a pause, unless there is one already."""
        self._since = self._since or time.monotonic()

    async def tell_when_over(self, epoch: Epoch) -> None:
        """Wait for the end of a pause, and report its length.

        It ends with the first delivery, or, if none comes, when a delivery was possible.

        Args:
            epoch: The new epoch, which has just begun.
        """
        began = time.monotonic()
        moved = asyncio.create_task(epoch.first_delivery.wait())
        await asyncio.wait((moved, epoch.outcome), timeout=MOVE_S, return_when=asyncio.FIRST_COMPLETED)
        moved.cancel()
        if epoch.outcome.done() and (epoch.outcome.cancelled() or epoch.outcome.exception() is not None):
            return  # it stands still again
        since, self._since = self._since, 0.0
        took_ms = round(((time.monotonic() if epoch.first_delivery.seen else began) - since) * 1000, 1)
        self.last_s = took_ms / 1000
        plan = epoch.plan
        if self._changed(epoch, took_ms):
            logger().info(events.JOB_TURNED, job=self._job, epoch=epoch.name, workers=plan.workers, pause_ms=took_ms)
        else:
            logger().info(
                events.JOB_RECOVERED, job=self._job, epoch=epoch.name, time=global_time(plan.start), took_ms=took_ms
            )
