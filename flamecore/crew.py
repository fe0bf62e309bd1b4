"""The processes of a job: who is wanted and started, what each is told, and who is let go or taken for dead."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flamecore.config import config_of_node, encode_config
from flamecore.epoch import FaultError, acker_plan
from flamecore.errors import FlameError, JobError, PeerGoneError, TransportError
from flamecore.hosting import Host, Seat
from flamecore.life import Life
from flamecore.members import Members
from flamecore.messages import CONTROL, Assignment, Refusal, Status, Stop
from flamecore.placement import SUPERVISOR, placed
from flamecore.plan import Plan
from flamecore.post import Post

if TYPE_CHECKING:
    from flamecore.layout import Layout


class Crew:
    """The nodes of a job, as far as something can be done about them.

    Args:
        members: Who has joined.
        host: Has nodes started.
        post: The control's.
        bootstrap: What every node that is started by the host must know to join; None: others start them.

    Attributes:
        leaving: The job ends, and so do they.
    """

    def __init__(self, members: Members, host: Host, post: Post, bootstrap: Mapping[str, Any] | None) -> None:
        self.members = members
        self.host = host
        self.post = post
        self.bootstrap = bootstrap
        self.leaving = False
        self._condemned: set[str] = set()
        self._started: dict[tuple[str, int], int] = {}

    async def fill(self, wanted: Mapping[str, int], beside: Collection[str] | None = None) -> frozenset[str]:
        """Start the processes that are missing, unless others are to start them.

        Args:
            wanted: How many there are to be of each role.
            beside: Names of those that do not count. Those that are started then rest.

        Returns:
            Names of those that were started.

        Raises:
            FaultError: There is no room for them now.
        """
        if self.bootstrap is None:
            return frozenset()
        out = self._condemned.union(beside or (), () if beside is not None else self.members.resting)
        running = self.host.running()
        seats = []
        for role, count in wanted.items():
            there = {name for name in running if name.startswith(f"{role}-") and name not in out}
            for index in range(count):
                if any(name.partition(".")[0] == f"{role}-{index}" for name in there):
                    continue
                self._started[role, index] = again = self._started.get((role, index), -1) + 1
                # A name is used once: whoever had it before may not be quite gone.
                name = f"{role}-{index}" + (f".{again}" if again else "")
                if beside is not None:
                    self.members.resting.add(name)
                # The first worker reads what is piped in; nobody else touches the terminal.
                seats.append(Seat(name, role, terminal=(role, index) == ("worker", 0)))
        if seats:
            try:
                await self.host.start(seats, self.bootstrap)
            except OSError as error:
                names = ", ".join(seat.name for seat in seats)
                hint = "Is the machine out of memory, processes or files?"
                raise FaultError(JobError(f"{names} cannot be started: {error}", hint=hint)) from error
        return frozenset(seat.name for seat in seats)

    def assign(self, life: Life, epoch: str) -> set[str]:
        """Tell every node its part, and where everybody is. Returns the nodes that have one."""
        members, plan, config = self.members, life.plan, life.layout.config
        trackers = life.layout.acker(acker_plan(plan)).trackers
        hosts = members.hosts = placed(config, trackers, plan.rears, members.named("worker"), members.named("acker"))
        locations = {SUPERVISOR: members.locations[CONTROL]}
        locations |= {name: node.location for name, node in members.nodes.items()}
        members.locations.update({address: locations[name] for address, name in hosts.items()})
        nodes = set(hosts.values()) - {SUPERVISOR}
        for name in nodes:
            parts = [address.split("/") for address in members.parts_of(name)]
            assignment = Assignment(
                epoch=epoch,
                config=encode_config(config_of_node(config)),
                flow=life.place,
                total=plan.workers,
                start=plan.start,
                fronts=life.fronts,
                workers=tuple(int(index) for kind, index in parts if kind == "worker"),
                trackers=tuple(int(index) for kind, index in parts if kind == "acker"),
                locations=tuple(members.locations.items()),
                code=life.code,
            )
            self.tell(name, assignment)
        return nodes

    def roll(self, life: Life) -> str:
        """Who has joined, of how many, in words."""
        counts = ((role, count) for role, count in wanted(life.plan, life.layout).items() if count)
        return "; ".join(
            f"of {count} {role}{'s' * (count > 1)}: {', '.join(self.members.named(role)) or 'none'}"
            for role, count in counts
        )

    @property
    def late(self) -> list[str]:
        """Names of the processes that run and have not joined."""
        return [name for name in self.host.running() if name not in self.members.nodes]

    def is_expected_to_end(self, name: str) -> bool:
        """Whether nothing is lost when a process ends."""
        return self.leaving or name in self._condemned or name in self.members.resting

    # -- what they are told ----------------------------------------------------------------------------------------

    def tell(self, name: str, message: Any) -> None:
        """Send something to a node that has a part in this epoch.

        Raises:
            FaultError: It is gone.
        """
        address = self.members.addresses.get(name)
        try:
            if address is None:
                raise PeerGoneError(f"{name} is gone", address=CONTROL, peer=name)
            self.post.send(address, message)
        except TransportError as error:
            raise FaultError(error) from error

    def tell_if_there(self, names: Iterable[str], message: Any) -> None:
        """Send something to nodes. Those that are gone are seen to elsewhere."""
        for name in names:
            with suppress(TransportError):
                self.post.send(self.members.addresses[name], message)

    def answer(self, client: str, message: Status | Refusal) -> None:
        """Tell a client. Whatever becomes of it, the job goes on."""
        with suppress(TransportError):
            Post(self.post.endpoint, lambda _: None).send(client, message)

    # -- how they go -----------------------------------------------------------------------------------------------

    def send_away(self, address: str) -> None:
        """Tell a node that it has no part in this any more, if it still hears."""
        with suppress(TransportError):
            self.post.send(address, Stop(False))

    def dismiss(self, names: Iterable[str]) -> None:
        """Let nodes end that have no part any more."""
        for name in tuple(names):
            self.send_away(self.members.addresses[name])
            self.members.leave(name)
            self.members.resting.discard(name)
            self._condemned.add(name)
            self.host.release(name)

    def dismiss_resting(self) -> None:
        """Let nodes of a version end that does not run."""
        self.dismiss(name for name in tuple(self.members.nodes) if name in self.members.resting)
        if self.bootstrap is None:  # one that has died meanwhile comes back under its name, for what runs then
            self.members.resting.clear()

    def dismiss_started(self, names: Iterable[str]) -> None:
        """Let nodes end that were started for what does not come to be, whether they have come yet or not."""
        for name in tuple(names):
            if name in self.members.nodes:
                self.dismiss((name,))
            elif name not in self._condemned:
                self.take_for_dead(name)
                self.members.resting.discard(name)

    def take_for_dead(self, name: str) -> None:
        """Nothing more is heard of a node. If it still runs, it is ended."""
        self.members.leave(name)
        self._condemned.add(name)
        self.host.kill(name)

    def lose(self, name: str) -> None:
        """The connection to a node is lost."""
        self.members.leave(name)
        if not self.host.lost(name):
            self._condemned.add(name)

    async def leave(self, timeout_s: float) -> None:
        """End all: first by asking, then by force."""
        self.leaving = True
        asked = [self._ask_to_end(address, timeout_s) for address in self.members.addresses.values()]
        await asyncio.gather(self.host.stop(timeout_s), *asked)

    async def _ask_to_end(self, address: str, timeout_s: float) -> None:
        """Have word of the end go out: to one that was never spoken to there is no way yet."""
        with suppress(FlameError, TimeoutError):  # it is gone already, or does not listen
            async with asyncio.timeout(timeout_s):
                await self.post.endpoint.send(address, Stop(False))


def wanted(plan: Plan, layout: Layout) -> dict[str, int]:
    """How many nodes of each role there must be."""
    own = layout.config.deploy.acker == "own"
    return {"worker": plan.workers, "acker": layout.acker(acker_plan(plan)).trackers if own else 0}
