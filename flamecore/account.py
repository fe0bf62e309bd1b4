"""What is told of a job on several processes: to who runs it, to clients who ask, and to those who look it up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flamecore.claim import Claim
from flamecore.hashing import owned_ranges
from flamecore.hosting import Host
from flamecore.jobrecord import Member
from flamecore.life import Life
from flamecore.members import Members
from flamecore.node import Node
from flamecore.plan import Plan
from flamecore.snapshot import Manifest
from flamecore.stats import JobStats, NodeStats, Rates, summed


class Account:
    """Keeps what has been counted, and tells it together with who is there.

    Args:
        job: Its id.
        members: Who is in it.

    Attributes:
        host: Says where nodes are; None: it is not known yet.
        node: That of the supervisor, in the present epoch; None: there is none.
        snapshot: The newest that this run has taken.
    """

    def __init__(self, job: str, members: Members) -> None:
        self.host: Host | None = None
        self.node: Node | None = None
        self.snapshot: Manifest | None = None
        self._job = job
        self._members = members
        self._past: list[NodeStats] = []
        self._rates = Rates()

    def close_epoch(self) -> None:
        """An epoch is over: what was counted in it counts on, and nothing of it is under way any more."""
        self._past += [replace(counts, in_flight=0, held_back=0, min_times={}) for counts in self._present()]
        self._members.reports.clear()
        self.node = None

    def _present(self) -> list[NodeStats]:
        own = [self.node.stats()] if self.node is not None else []
        return [*self._members.reports.values(), *own]

    def stats(self, elapsed_s: float) -> JobStats:
        """A look at the job, which runs for so long."""
        counts = summed([*self._past, *self._present()], elapsed_s)
        return replace(counts, where=self.host.described(self._members.sites) if self.host is not None else {})

    async def watch(self, look: Callable[[], JobStats]) -> None:
        """Look at the job every second, until cancelled, so that it is known how fast it is."""
        await self._rates.watch(look)

    def described(self, stats: JobStats, life: Life, faults: int) -> dict[str, Any]:
        """Who is in the job, what each hosts, and how far it is. Holds no secret.

        Args:
            stats: A look at the job.
            life: Its plan, and whether it keeps state.
            faults: How many it has met.
        """
        snapshot, state = self.snapshot, dict[str, Any]()
        if life.history is not None:
            state = {
                "faults": faults,
                "snapshot": None
                if snapshot is None
                else {"number": snapshot.number, "time": snapshot.time, "age_s": time.time() - snapshot.created},
            }
        return {
            "job": self._job,
            "nodes": self._members.described(),
            "key_groups": owned_ranges(life.plan.owners),
            **state,
            **self._rates.described(stats),
            **dict(stats.rows()),
        }

    def publish(self, claim: Claim, plan: Plan) -> None:
        """Say in the registry who has which part.

        Args:
            claim: On the job.
            plan: Of the present epoch.
        """
        members = self._members
        claim.publish(
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
            fronts=tuple(
                (front.source, partition, f"worker/{plan.host_of(number)}")
                for number, (front, partition) in enumerate(zip(plan.fronts, plan.partitions, strict=True), 1)
            ),
        )
