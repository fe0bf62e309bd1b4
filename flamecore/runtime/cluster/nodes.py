"""The node manager, which starts, assigns and ends the nodes of a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from flamecore import events as log
from flamecore._version import __version__
from flamecore.abc.host import NodeHost, NodeSlot, NodeState
from flamecore.abc.transport import SUPERVISOR
from flamecore.errors import FlameError, JobError, PeerGoneError, TransportError
from flamecore.logs import logger
from flamecore.model.messages import CONTROL, Assignment, Halted, Join, Left, NodeFailed, Refusal, Status, Stop, Welcome
from flamecore.model.plan import Plan
from flamecore.runtime.cluster.context import JobContext
from flamecore.runtime.cluster.control_plane import Event, Failed, Lost
from flamecore.runtime.cluster.membership import Membership
from flamecore.runtime.cluster.placement import placed
from flamecore.runtime.config.read import config_of_node, encode_config
from flamecore.runtime.engine.epoch import Epoch, FaultError
from flamecore.runtime.engine.planning import acker_plan
from flamecore.runtime.tasks.sender import Sender

if TYPE_CHECKING:
    from flamecore.runtime.config.job_spec import JobSpec


_REPLACED: Final = (
    "another process has joined by the name of {name}; processes that run together need names of their own"
)
_NO_ACKERS: Final = 'the job has no processes for trackers alone: [deploy] acker = "{place}", and not "own"'
_DECLARED: Final = (
    "the job has declared this process dead, since it did not answer in time, and goes on without it; start it again"
)
_TURNED: Final = "the job runs another version of the flow since this process was told to end its parts; start it again"
_REMIND_S: Final = 30.0
"""Seconds between two words to nodes that wait for others; half of the time after which they give up."""
_SHOWN: Final = 4
"""Most late nodes that an error describes."""
_START_HINT: Final = (
    "Look at the workers' log lines above, which name the line of a long import; each must reach the supervisor, "
    "import the flow and open what it reads. deploy.start_timeout_s is how long they may take."
)
_JOIN_HINT: Final = (
    "flamestream check says the commands that start them; each must reach the supervisor and import the flow, and says "
    "where it was started what keeps it. deploy.start_timeout_s is how long they may take."
)


class NodeManager:
    """A manager that starts, assigns, stops and declares dead the nodes of a job.

    Args:
        job: Id of the job.
        members: The nodes that have joined.
        context: The job's context, with its plan.
        host: The host that starts nodes.
        sender: The control's sender.
        bootstrap: Values that a node started by the host needs to join; None: nodes are started elsewhere.
        events: Queue of the events that the job acts on.
        state_of: Function that returns what the system says of the process of a node; None: nothing is known.

    Attributes:
        leaving: Whether the job ends, and the nodes with it.
    """

    def __init__(
        self,
        job: str,
        members: Membership,
        context: JobContext,
        host: NodeHost,
        sender: Sender,
        bootstrap: Mapping[str, object] | None,
        events: asyncio.Queue[Event],
        state_of: Callable[[str], NodeState | None] = lambda name: None,
    ) -> None:
        self.members = members
        self.context = context
        self.host = host
        self.sender = sender
        self.bootstrap = bootstrap
        self.state_of = state_of
        self.leaving = False
        self._condemned: set[str] = set()
        # By address: the nodes that have not halted in time, and may come back to the version that they run.
        self._slow: dict[str, tuple[Join, str]] = {}
        self._started: dict[tuple[str, int], int] = {}
        self._coming: dict[str, asyncio.Task[None]] = {}
        self._asked: list[asyncio.Task[None]] = []
        self._job, self._events = job, events

    async def start_missing(
        self, required_nodes: Mapping[str, int], beside: Collection[str] | None = None
    ) -> frozenset[str]:
        """Start the processes that are missing, unless they are started elsewhere.

        Args:
            required_nodes: Number of nodes of each role.
            beside: Names of nodes that do not count. The new ones are then on standby.

        Returns:
            Names of the nodes that were started.

        Raises:
            FaultError: There is no room for them now.
        """
        if self.bootstrap is None:
            return frozenset()
        out = self._condemned.union(beside or (), () if beside is not None else self.members.standby)
        running = self.host.running()
        slots = []
        for role, count in required_nodes.items():
            there = {name for name in running if name.startswith(f"{role}-") and name not in out}
            for index in range(count):
                if any(name.partition(".")[0] == f"{role}-{index}" for name in there):
                    continue
                self._started[role, index] = again = self._started.get((role, index), -1) + 1
                # A name is used once: an earlier process of the name may not have ended yet.
                name = f"{role}-{index}" + (f".{again}" if again else "")
                if beside is not None:
                    self.members.standby.add(name)
                # The first worker reads the input that is piped in; no other touches the terminal.
                slots.append(NodeSlot(name, role, terminal=(role, index) == ("worker", 0)))
        if slots:
            try:
                await self.host.start(slots, self.bootstrap)
            except OSError as error:
                names = ", ".join(slot.name for slot in slots)
                hint = "Is the machine out of memory, processes or files?"
                raise FaultError(JobError(f"{names} cannot be started: {error}", hint=hint)) from error
        return frozenset(slot.name for slot in slots)

    def assign(self, epoch: str) -> set[str]:
        """Send every node its parts, and the places of all parts.

        Returns:
            Names of the nodes that have parts.
        """
        members, context = self.members, self.context
        plan, config = context.plan, context.spec.config
        trackers = context.spec.acker(acker_plan(plan)).trackers
        for address in members.hosts:  # of the epoch before, which may have had more
            members.locations.pop(address, None)
        hosts = members.hosts = placed(config, trackers, plan.rears, members.named("worker"), members.named("acker"))
        locations = {SUPERVISOR: members.locations[CONTROL]}
        locations |= {name: node.location for name, node in members.nodes.items()}
        parts_at = {address: locations[name] for address, name in hosts.items()}
        members.locations |= parts_at
        assigned = set(hosts.values()) - {SUPERVISOR}
        for name in assigned:
            parts = [address.split("/") for address in members.parts_of(name)]
            assignment = Assignment(
                epoch=epoch,
                config=encode_config(config_of_node(config)),
                flow=context.place,
                total=plan.workers,
                start=plan.start,
                fronts=context.fronts,
                workers=tuple(int(index) for kind, index in parts if kind == "worker"),
                trackers=tuple(int(index) for kind, index in parts if kind == "acker"),
                locations=tuple(parts_at.items()),
                code=context.code,
                past=tuple(sorted(plan.past)),
                done=tuple(sorted(plan.done)),
                unread=tuple(sorted(plan.unread)),
                **({} if plan.placement is None else plan.placement._asdict()),
            )
            self.tell(name, assignment)
        return assigned

    @property
    def late(self) -> list[str]:
        """Return the names of the processes that run and have not joined."""
        return [name for name in self.host.running() if name not in self.members.nodes]

    @property
    def required(self) -> dict[str, int]:
        """Return the number of nodes that each role needs."""
        return required_nodes(self.context.plan, self.context.spec)

    async def wait_until(
        self, condition: Callable[[], bool], epoch: Epoch, what: str, late: Callable[[], Iterable[str]] = tuple
    ) -> None:
        """Wait for all nodes, or for the epoch to end.

        Args:
            condition: Returns whether all nodes have done it.
            epoch: The present epoch.
            what: The verb phrase that the error says they have not done.
            late: Returns the names of the nodes that have not done it.

        Raises:
            JobError: It takes too long, and no node is late.
            FaultError: It takes too long: the late nodes were declared dead.
        """
        deploy, members = self.context.spec.config.deploy, self.members
        timeout_s, start = deploy.start_timeout_s, time.monotonic()
        reminded = start
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    if epoch.outcome.done():
                        await epoch.outcome
                    changed = asyncio.ensure_future(members.change())
                    ends = () if epoch.outcome.done() else (epoch.outcome,)  # an epoch that has ended well ends no wait
                    try:
                        await asyncio.wait(
                            (changed, *ends),
                            timeout=reminded + _REMIND_S - time.monotonic(),
                            return_when=asyncio.FIRST_COMPLETED,
                        )
                    finally:
                        changed.cancel()
                    if (now := time.monotonic()) >= reminded + _REMIND_S:
                        reminded = now
                        self._remind(what, now - start)
        except TimeoutError:
            # Late nodes can be replaced in another epoch. If none is late, another epoch would be
            # late as well.
            stuck = sorted(late(), key=lambda name: (len(name), name))
            error = JobError(
                f"after {timeout_s:g} s not all workers have {what} ({self._describe_joined()})"
                + "".join(f"; {self._describe_late(name)}" for name in stuck[:_SHOWN])
                + (f"; and {len(stuck) - _SHOWN} more are late" if len(stuck) > _SHOWN else ""),
                hint=_JOIN_HINT if deploy.start == "join" else _START_HINT,
            )
            if not stuck:
                raise error from None
            for name in stuck:
                self.declare_dead(name)
            raise FaultError(error) from None

    def _remind(self, what: str, waited_s: float) -> None:
        """Tell the nodes that wait for others that the job goes on, and people what it waits for."""
        self.tell_if_there(tuple(self.members.nodes), Welcome())
        joined = self._describe_joined()
        limit_s = self.context.spec.config.deploy.start_timeout_s
        logger().warning(
            log.NODES_AWAITED, job=self._job, to=what, joined=joined, waited_s=round(waited_s), limit_s=limit_s
        )

    def _describe_joined(self) -> str:
        """Return the nodes that have joined, of how many, in words."""
        return "; ".join(
            f"of {count} {role}{'s' * (count > 1)}: {', '.join(self.members.named(role)) or 'none'}"
            for role, count in self.required.items()
            if count
        )

    def _describe_late(self, name: str) -> str:
        """Return what is known of a node that has not done its part in time."""
        node, state = self.members.nodes.get(name), self.state_of(name)
        # A node reports four times in the time of silence, and up to a second later.
        answers_s = self.context.spec.config.deploy.silence_timeout_s / 4 + 1.0
        process = name if node is None else f"{name} (process {node.pid})"
        if state == "stopped":
            return f"{process} is stopped"
        if node is not None and (silent_s := self.members.silence_of(name)) >= answers_s:
            said = f"has said nothing for {silent_s:.1f} s"
            return f"{process} is computing, and {said}" if state == "running" else f"{process} {said}"
        return f"{process} is running" if node is None else f"{process} waits, and answers"

    # -- nodes that come -------------------------------------------------------------------------------------------

    def admit(self, address: str, node: Join) -> None:
        """Admit a node if it can be reached at its location, or refuse it alone."""
        self._admit(address, node, self._welcome)

    def _admit(self, address: str, node: Join, welcome: Callable[[str, Join], None]) -> None:
        if address not in self._coming:
            self.members.locations[address] = node.location
            task = self._coming[address] = asyncio.create_task(self._reach(address, node, welcome))
            task.add_done_callback(partial(self._reached, address))

    async def _reach(self, address: str, node: Join, welcome: Callable[[str, Join], None]) -> None:
        try:
            if not self.leaving:
                await self.sender.endpoint.send(address, Welcome())
        except FlameError as error:
            self.members.locations.pop(address, None)
            why = f"it cannot be reached at {node.location}: {' '.join(str(error).split())}"
            logger().warning(log.NODE_REFUSED, job=self._job, node=node.node, why=why)
            return
        if self.leaving:
            self.turn_away(address)
        else:
            welcome(address, node)
            self.members.wake()

    def _reached(self, address: str, task: asyncio.Task[None]) -> None:
        del self._coming[address]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.put_nowait(Failed(error))

    def _welcome(self, address: str, node: Join) -> None:
        """Admit a node, in the place of an earlier process of its name.

        A service manager starts a process again that has died.
        """
        members = self.members
        members.locations[address] = node.location
        if node.version != __version__:
            why = f"{node.node} runs flamestream {node.version}, and the supervisor {__version__}"
            logger().warning(log.NODE_REFUSED, job=self._job, node=node.node, why=why)
            return self.answer(address, Refusal(f"{why}; install one version everywhere"))
        if node.role == "acker" and (place := self.context.spec.config.deploy.acker) != "own":
            return self.answer(address, Refusal(_NO_ACKERS.format(place=place)))
        over = self.host.came(node.node, node.attempt)
        if over is None:
            return self.turn_away(address)
        for slow in [slow for slow, (other, _) in self._slow.items() if other.node == node.node]:
            del self._slow[slow]
            self.answer(slow, Refusal(_REPLACED.format(name=node.node)))
        for name in (node.node, *over):
            if (former := members.addresses.get(name)) is None:
                continue
            if name == node.node:
                self.answer(former, Refusal(_REPLACED.format(name=name)))
            else:
                self.turn_away(former)
            members.leave(name)
            if name in members.hosts.values():
                self._events.put_nowait(Failed(FaultError(JobError(f"{node.node} has been started again"))))
        members.join(node, address)
        return None

    def answer_stray(self, address: str, message: object) -> None:
        """Turn away a process that has no part: it was declared dead, and still lives.

        One that was only slow to halt comes back, if it was started elsewhere: nobody would start another in its place.
        """
        if self.leaving:
            return
        if address in self._slow:
            self._take_back(address, message)
        elif address in self._coming:
            if isinstance(message, Left | NodeFailed):
                self._coming[address].cancel()
        elif self.bootstrap is None:
            self.answer(address, Refusal(_DECLARED))
        else:
            self.turn_away(address)

    def _take_back(self, address: str, message: object) -> None:
        """Take a node back that was slow to halt, once it has.

        Until then it may still say that its parts fail, as they do where another process is gone. One that cannot halt
        ends by itself.
        """
        if isinstance(message, Halted | Left):
            node, code = self._slow.pop(address)
            if isinstance(message, Halted):
                self._admit(address, node, partial(self._welcome_back, code))  # it may have gone meanwhile

    def _welcome_back(self, code: str, address: str, node: Join) -> None:
        """Admit a node that was slow to halt, but not in the place of a process that has its name meanwhile.

        Args:
            code: The version of the flow that it runs.
            address: Address of the node.
            node: Its own description.
        """
        if node.node in self.members.nodes:
            self.answer(address, Refusal(_REPLACED.format(name=node.node)))
        elif code != self.context.code:
            self.answer(address, Refusal(_TURNED))
        else:
            self._condemned.discard(node.node)
            self._welcome(address, node)

    # -- commands --------------------------------------------------------------------------------------------------

    def tell(self, name: str, message: object) -> None:
        """Send a command to a node that has a part in this epoch.

        Raises:
            FaultError: It is gone.
        """
        address = self.members.addresses.get(name)
        try:
            if address is None:
                raise PeerGoneError(f"{name} is gone", address=CONTROL, peer=name)
            self.sender.send(address, message)
        except TransportError as error:
            raise FaultError(error) from error

    def tell_if_there(self, names: Iterable[str], message: object) -> None:
        """Send a command to nodes; those that are gone are handled elsewhere."""
        for name in names:
            with suppress(TransportError):
                self.sender.send(self.members.addresses[name], message)

    def answer(self, client: str, message: Status | Refusal) -> None:
        """Answer a client; the job goes on even if that fails."""
        with suppress(TransportError):
            Sender(self.sender.endpoint, lambda _: None).send(client, message)

    # -- ends ------------------------------------------------------------------------------------------------------

    def turn_away(self, address: str) -> None:
        """Tell a node that it has no part any more, if it can be reached."""
        with suppress(TransportError):
            self.sender.send(address, Stop(False))

    def dismiss(self, names: Iterable[str]) -> None:
        """Send away nodes that have no part any more."""
        for name in tuple(names):
            self.turn_away(self.members.addresses[name])
            self.members.leave(name)
            self.members.standby.discard(name)
            self._condemned.add(name)
            self.host.release(name)

    def dismiss_standby(self) -> None:
        """Send away the nodes of a version that does not run."""
        self.dismiss(name for name in tuple(self.members.nodes) if name in self.members.standby)
        if self.bootstrap is None:  # one that has died meanwhile comes back under its name, as an ordinary node
            self.members.standby.clear()

    def dismiss_started(self, names: Iterable[str]) -> None:
        """Send away nodes that were started for a change that is not made.

        They may have joined or not.
        """
        for name in tuple(names):
            if name in self.members.nodes:
                self.dismiss((name,))
            elif name not in self._condemned:
                self.declare_dead(name)
                self.members.standby.discard(name)

    def give_up(self, name: str, limit_s: float) -> None:
        """Declare a node dead that has not halted in time."""
        logger().warning(log.NODE_ABANDONED, job=self._job, node=name, limit_s=limit_s)
        if self.bootstrap is None and (node := self.members.nodes.get(name)) is not None:
            self._slow[self.members.addresses[name]] = (node, self.context.code)
        self.declare_dead(name)

    def declare_dead(self, name: str) -> None:
        """Declare a node dead, and end it if it still runs."""
        self.members.leave(name)
        self._condemned.add(name)
        self.host.kill(name)

    def remove(self, lost: Lost) -> bool:
        """Remove a lost node.

        Returns:
            Whether the epoch ends with it.
        """
        name, members = lost.name, self.members
        if lost.how == "died":
            members.leave(name)
            return not (self.leaving or name in self._condemned or name in members.standby)
        if lost.how in ("silent", "stuck"):
            sight = members.seen.get(name)
            watched_from = members.locations.get(sight.watcher) if sight is not None else None
            self.declare_dead(name)
            if lost.how == "stuck" and sight is not None and watched_from is not None:
                members.locations[sight.watcher] = watched_from
                limit_s = self.context.spec.config.deploy.stop_timeout_s
                # The watcher kills the node.
                self._asked.append(asyncio.create_task(self._ask_to_end(sight.watcher, limit_s)))
            return True
        node = members.nodes.get(name)
        if self.leaving or node is None or lost.location not in ("", node.location):
            return False
        members.leave(name)
        if not self.host.lost(name):
            self._condemned.add(name)
        return lost.how in ("cut", "gone") or name in members.hosts.values()

    async def leave(self, timeout_s: float) -> None:
        """End all nodes: first by asking, then by force."""
        self.leaving = True
        there = (*self.members.addresses.values(), *self._slow, *self._coming)
        asked = [self._ask_to_end(address, timeout_s) for address in there]
        await asyncio.gather(self.host.stop(timeout_s), *asked, *self._asked)
        coming = tuple(self._coming.values())
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)

    async def _ask_to_end(self, address: str, timeout_s: float) -> None:
        """Tell a node to end; make the connection if there was none yet."""
        with suppress(FlameError, TimeoutError):  # it is gone already, or does not listen
            async with asyncio.timeout(timeout_s):
                await self.sender.endpoint.send(address, Stop(False))


def required_nodes(plan: Plan, spec: JobSpec) -> dict[str, int]:
    """Return the number of nodes that each role needs."""
    own = spec.config.deploy.acker == "own"
    return {"worker": plan.workers, "acker": spec.acker(acker_plan(plan)).trackers if own else 0}
