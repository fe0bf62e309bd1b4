"""A job on several processes: nodes, with control and rears in the supervisor.

A job runs in epochs. In each the nodes are assigned their parts, open their inputs, load the state from which they
continue, and say that they are ready; then the fronts begin. When a node dies or is lost, a job that keeps state ends
the epoch, has the node replaced, and goes on in another from its last snapshot: the processes that are well stay, and
so do the sinks. A job that keeps none ends, with an error that names the node.

`flamecore.runtime.cluster.membership` knows the nodes. `flamecore.runtime.cluster.control_plane` notes their messages
there, and makes events of those that the job acts on; `flamecore.runtime.cluster.nodes` starts nodes, sends them
commands, waits for them and ends them. `flamecore.runtime.cluster.reconfiguration` makes the changes that clients ask
for, `flamecore.runtime.cluster.context` goes from epoch to epoch, and `flamecore.runtime.cluster.status` reports on the
job, and on its downtime between epochs.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from flamecore import events
from flamecore.abc.config import DeployTable
from flamecore.abc.registry import JobRegistry, RegistryContext
from flamecore.abc.transport import SUPERVISOR, Transport, TransportContext
from flamecore.errors import FlameError
from flamecore.logs import logger
from flamecore.model.messages import (
    CLIENT,
    CONTROL,
    OPERATOR,
    Begin,
    Halt,
    Join,
    Load,
    Refusal,
    Rescale,
    Status,
    Stop,
    Upgrade,
)
from flamecore.runtime.cluster.balancer import Balancer
from flamecore.runtime.cluster.context import JobContext
from flamecore.runtime.cluster.control_plane import ENDED, ControlPlane, Denied, Event, Failed, Lost, Said
from flamecore.runtime.cluster.lease import Lease
from flamecore.runtime.cluster.membership import Membership
from flamecore.runtime.cluster.nodes import NodeManager
from flamecore.runtime.cluster.placement import TOKEN
from flamecore.runtime.cluster.reconfiguration import Reconfiguration
from flamecore.runtime.cluster.restart_policy import RestartPolicy
from flamecore.runtime.cluster.status import MOVE_S, Downtime, JobStatus
from flamecore.runtime.cluster.versions.upgrade import FlowVersion
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.config.options import node_options
from flamecore.runtime.engine.epoch import Epoch, FaultError, ReconfigureSignal
from flamecore.runtime.engine.job import AnyJob
from flamecore.runtime.engine.planning import acker_plan, check_importable, open_history
from flamecore.runtime.parts.counters import JobStats
from flamecore.runtime.state.format import Manifest
from flamecore.runtime.tasks.epoch_transport import EpochTransports
from flamecore.runtime.tasks.event_loop import BackgroundTasks, monotonic, start
from flamecore.runtime.tasks.sender import Sender
from flamecore.runtime.tasks.stats import JobReport
from flamecore.toolkit.private_dir import private_folder

if TYPE_CHECKING:
    from flamecore.runtime.config.job_spec import JobSpec


T = TypeVar("T")

_GRACE_S: Final = 0.5
"""Longest wait for a lost process to be found dead, so that its last words are reported."""


class ClusterJob(AnyJob):
    """One run of a flow on several processes.

    Args:
        spec: The checked configuration.
        load_version: Makes the version to switch to (`flamecore.runtime.cluster.versions.upgrade.load_version`).
    """

    def __init__(self, spec: JobSpec, load_version: Callable[[JobSpec, Upgrade], FlowVersion]) -> None:
        # A job that others are to reach goes by its name; any other may run several times at once.
        reachable = spec.config.deploy.start == "join" or TOKEN in os.environ
        super().__init__(
            spec.settings, spec.observers, spec.name if reachable else f"{spec.name}-{secrets.token_hex(4)}"
        )
        self._spec = spec  # of the job's first version; settings of the whole job never change
        self._load_version = load_version
        self._members = Membership()
        self._status = JobStatus(spec.name, self._members)
        self._restart_policy = RestartPolicy(self._deploy.restarts, self._deploy.restart_window_s)
        self._background = BackgroundTasks()
        # From when it runs:
        self._context: JobContext
        self._nodes: NodeManager
        self._reconfiguration: Reconfiguration
        self._downtime: Downtime
        self._transports: EpochTransports

    @property
    def _deploy(self) -> DeployTable:
        return self._spec.config.deploy

    # -- the interface of a job ------------------------------------------------------------------------------------

    async def run(self) -> JobReport:
        """Run to the end of all sources, or until drained.

        Raises as `Job.run`, and `JobError` when a node dies and the job keeps no state, or too many die.
        """
        report = await super().run()
        # Everything is delivered; not every node has heard of it before it ended.
        return replace(report, stats=report.stats.at_end())

    def stats(self) -> JobStats:
        """Return a look at the job: the nodes report twice a second."""
        return self._status.stats(self._elapsed_s)

    def described(self) -> dict[str, object]:
        """Return the nodes, the parts of each, and the progress; it holds no secret."""
        return self._status.described(self.stats(), self._context, self._restart_policy.faults)

    # -- its start and its end -------------------------------------------------------------------------------------

    async def _start(self, stack: AsyncExitStack) -> None:
        """Acquire the lease, find the starting point, and listen.

        The stack ends all of it.
        """
        spec, members, graph = self._spec, self._members, self._spec.checked_graph
        limits = self._deploy.silence_timeout_s, spec.settings.call_limit_s
        control_plane, codec = ControlPlane(members, spec.name, *limits), Codec.of(graph)
        folder = stack.enter_context(private_folder())
        token = os.environ.get(TOKEN) or secrets.token_hex(32)
        lease = self._status.lease = await self._acquire_lease(stack, token)
        # The state before the transport: a second run is refused before it listens, or opens
        # anything.
        history = await open_history(
            stack, spec.store(), graph, spec.settings, self._deadlines, lost=self._end, listed=spec.is_listed
        )
        sinks = AsyncExitStack()
        transport = spec.transport(
            TransportContext(
                job=self.id,
                incarnation=lease.incarnation,
                codec=codec,
                node=SUPERVISOR,
                token=token,
                folder=folder,
                locate=members.locate,
                lost=partial(self._lost, control_plane),
                watched=control_plane.watches,
            )
        )
        stack.push_async_callback(self._close, transport)
        self._transports = EpochTransports(transport, lease.incarnation)
        if spec.flow_code.packed is None:
            check_importable(graph, transport)
        context = self._context = JobContext(spec, codec, history, sinks, self._deadlines)
        control = members.locations[CONTROL] = await transport.start()
        lease.publish(run=self.id, transport=spec.config.transport.use, control=control)
        sender = Sender(await transport.bind(CONTROL), control_plane.trouble)
        await stack.enter_async_context(sinks)
        bootstrap = {
            "transport": spec.config.transport.use,
            "options": node_options(spec.transport_table),
            "job": self.id,
            "job_name": spec.name,
            "incarnation": lease.incarnation,
            "token": token,
            "folder": folder,
            "control": control,
        }
        host = self._status.host = self._spec.host(control_plane.died, self._end, lambda: dict(self.stats().rows()))
        control_plane.state_of = host.state
        started_here = None if self._deploy.start == "join" else bootstrap
        self._nodes = NodeManager(
            spec.name, members, context, host, sender, started_here, control_plane.events, control_plane.state
        )
        self._reconfiguration = Reconfiguration(self._nodes, self._load_version)
        self._downtime = Downtime(spec.name, self._reconfiguration.done)
        balancer = Balancer(self._nodes, self._reconfiguration, self._downtime)
        self._status.balance = balancer.described
        # The stack runs these in reverse: first the nodes end, while their last counts are still
        # heard; then the tasks that hear them; then the rest of earlier epochs.
        stack.push_async_callback(self._end_rest)
        listening, watching = control_plane.listen(sender.endpoint), control_plane.watch()
        for work in (
            self._act(control_plane.events),
            listening,
            watching,
            self._status.watch(self.stats),
            balancer.run(lambda: self.epoch),
        ):
            stack.push_async_callback(_cancelled, start(work, self._end))
        stack.push_async_callback(self._end_nodes)
        await host.open()

    async def _acquire_lease(self, stack: AsyncExitStack, token: str) -> Lease:
        """Acquire the lease, to be given back when everything else has ended."""
        registry = self._spec.job_registry(RegistryContext(node=SUPERVISOR))
        stack.push_async_callback(self._close, registry)
        await registry.open()
        lease_s = self._spec.config.registry.lease_s
        lease = await Lease.acquire(
            registry,
            self._spec.name,
            lease_s=lease_s,
            token=token,
            lost=self._end,
            take_over=self._spec.config.job.take_over,
        )
        return await stack.enter_async_context(lease)

    async def _end_nodes(self) -> None:
        """End the nodes, while their last counts and late requests are still received."""
        self._reconfiguration.leave()
        await self._nodes.leave(self._deploy.stop_timeout_s)

    async def _end_rest(self) -> None:
        """End the rest of earlier epochs."""
        try:
            if self.epoch is not None:
                await self.epoch.halt(self._background.add)
        finally:
            await self._background.aclose()
            await self._close(self._nodes.sender)

    async def _close(self, way: Transport | Sender | JobRegistry) -> None:
        """Hand over all messages that were sent, and close.

        A lost peer that is still connected is not waited for beyond `deploy.stop_timeout_s`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._deploy.stop_timeout_s):
                await way.aclose()

    # -- its epochs ------------------------------------------------------------------------------------------------

    async def _run(self, stack: AsyncExitStack) -> None:
        """Run epoch after epoch, to the end of the job."""
        await self._start(stack)
        while True:
            self._check()
            transport = self._transports.next()
            epoch = self.epoch = Epoch(
                self._context.plan, transport, self._observers, name=transport.name, deadlines=self._deadlines
            )
            self._status.node = epoch.node
            try:
                return await self._live(epoch)
            except ReconfigureSignal:
                self._downtime.begin()
                await self._halt(epoch, patient=True)
                await self._reconfiguration.apply()
            except FaultError as fault:
                if self._reconfiguration.on_trial:
                    await self._roll_back(epoch, fault.error)
                else:
                    await self._recover(epoch, fault)
            except FlameError as error:
                if not self._reconfiguration.on_trial:
                    raise
                await self._roll_back(epoch, error)

    async def _live(self, epoch: Epoch) -> None:
        """Run one epoch, which may last to the end of the job.

        Raises:
            FaultError: A part is gone, and the job can go on in another epoch.
            ReconfigureSignal: It goes on with another version or number of workers.
            FlameError: The job has failed.
        """
        context, nodes, members = self._context, self._nodes, self._members
        members.begin_epoch(epoch.name)
        count_of = nodes.required
        await nodes.start_missing(count_of)
        await nodes.wait_until(
            lambda: all(len(members.named(role)) >= count for role, count in count_of.items()),
            epoch,
            "joined",
            lambda: nodes.late,
        )
        await context.find_ends()
        assigned = nodes.assign(epoch.name)
        self._status.publish(context.plan)
        await nodes.wait_until(
            lambda: members.opened >= assigned, epoch, "opened what they read", lambda: assigned - members.opened
        )
        opened = monotonic()
        # The sources are open, so no sink replaces its output in vain.
        await context.open_sinks()
        history = context.history
        # Behind the opening of the sinks: from then on no earlier epoch can deliver, so the
        # journals that are there are all that count.
        if history is not None:
            await history.begin(context.delivered_up_to)
        for name in assigned:
            nodes.tell(name, Load(history.resume() if history is not None else None, tuple(context.grants.items())))
        acker = context.spec.acker(acker_plan(context.plan)) if self._deploy.acker == "supervisor" else None
        await epoch.open(
            context.sinks,
            context.delivered_up_to,
            history,
            late=context.late,
            acker=acker,
            failing=self._failing,
            taken=self._taken,
        )
        await nodes.wait_until(
            lambda: members.ready >= assigned, epoch, "loaded their state", lambda: assigned - members.ready
        )
        if self._transports.count == 1:
            self._observers.job_started(self._spec.name, context.plan.workers)
        self._reconfiguration.commit()
        for name in assigned:
            nodes.tell(name, Begin())
        self._begin(epoch)
        if self._transports.count > 1:
            self._background.add(asyncio.create_task(self._downtime.tell_when_over(epoch)))
        else:
            self._downtime.last_s = monotonic() - opened
        await epoch.outcome
        await epoch.aclose()
        await context.open_late()

    async def _roll_back(self, epoch: Epoch, error: FlameError) -> None:
        """Go back to the former version, as the new one could not start."""
        if epoch.plan.graph is self._context.graph:  # otherwise it was halted for the new one
            await self._halt(epoch)
        await self._reconfiguration.roll_back(error)

    async def _recover(self, epoch: Epoch, fault: FaultError) -> None:
        """End the epoch, and find the starting point of the next one.

        Raises:
            FlameError: The job cannot go on, or has met too many faults.
        """
        self._check()
        history, fruitless = self._context.history, epoch.first_delivery.awaited_less_than(MOVE_S)
        self._downtime.begin()
        if history is None:
            raise fault.error
        self._restart_policy.note(fault.error)
        logger().warning(
            events.JOB_FAULTED, job=self._spec.name, what=fault.error.what, faults=self._restart_policy.faults
        )
        self._reconfiguration.refuse("the job has met a fault meanwhile; try again")
        await self._halt(epoch)
        if fault.blob and not history.refuse(fault.blob):
            raise fault.error
        await asyncio.sleep(self._restart_policy.pause_s(fruitless=fruitless))
        await self._context.rewind()

    async def _halt(self, epoch: Epoch, *, patient: bool = False) -> None:
        """End an epoch on all nodes; declare dead those that do not halt in time.

        Args:
            epoch: The epoch.
            patient: Whether to wait for those that the system says are there, since all are well, and a call of a
                user's function may take its time.
        """
        members, nodes = self._members, self._nodes
        if self._ruin is None:
            self._shutdown.withdraw()
        reached = await epoch.halt(self._background.add)
        self._status.close_epoch()
        self._context.note_delivered(reached)
        survivors = {name: members.addresses[name] for name in members.parts}
        nodes.tell_if_there(survivors, Halt())

        def awaited() -> set[str]:  # another process may have the name of one that is gone
            return {name for name, told in survivors.items() if members.addresses.get(name) == told} - members.halted

        try:
            async with asyncio.timeout(self._deploy.stop_timeout_s):
                while awaited():
                    self._check()
                    await members.change()
        except TimeoutError:
            for name in awaited():
                if not patient or nodes.state_of(name) is None:
                    nodes.give_up(name, self._deploy.stop_timeout_s)
        while awaited():  # one of them that is lost is a member no more
            self._check()
            await members.change()

    def _stop_reading(self, epoch: Epoch, *, failing: bool = False) -> None:
        if epoch.begun and not epoch.outcome.done():
            self._nodes.tell_if_there(self._members.hosting("worker"), Stop(True, failing))

    def _taken(self, manifest: Manifest) -> None:
        self._status.snapshot = manifest

    # -- events ----------------------------------------------------------------------------------------------------

    async def _act(self, events: asyncio.Queue[Event]) -> None:
        """Act on events, for as long as the job lasts."""
        while True:
            self._act_on(await events.get())
            events.task_done()

    def _act_on(self, event: Event) -> None:
        nodes, epoch = self._nodes, self.epoch
        match event:
            case Said(address, message) if address.startswith((CLIENT, OPERATOR)):
                self._serve(address, message)
            case Denied(address, why):
                nodes.answer(address, Refusal(why))
            case Said(address, Join() as node):
                nodes.admit(address, node)
            case Said(address, message):
                nodes.answer_stray(address, message)
            case Failed(error, unreachable) if epoch is not None:
                self._after_last_words(unreachable, epoch.fail, error)
            case Lost(name, "cut"):
                self._after_last_words(name, self._remove, event)
            case Lost():
                self._remove(event)

    def _serve(self, client: str, message: object) -> None:
        """Serve a client that has joined, or sent a request."""
        if isinstance(message, Join):
            self._members.locations[client] = message.location
        if self._nodes.leaving:
            self._nodes.answer(client, Refusal(ENDED))
        elif isinstance(message, Join) and message.role == "observer":
            self._nodes.answer(client, Status(self.described()))
        elif isinstance(message, Rescale | Upgrade):
            self._background.keep(asyncio.create_task(self._reconfiguration.asked(client, message, self.epoch)))

    def _after_last_words(self, name: str, act: Callable[[T], None], of: T) -> None:
        """Act on the loss of a node; if its host or its watcher tells of its end, its last words come first."""
        if name and (self._nodes.host.watches(name) or name in self._members.seen):
            asyncio.get_running_loop().call_later(_GRACE_S, act, of)
        else:
            act(of)

    def _remove(self, lost: Lost) -> None:
        if self._nodes.remove(lost) and self.epoch is not None:
            self.epoch.fail(FaultError(lost.error))
        self._members.wake()

    def _lost(self, control_plane: ControlPlane, location: str, error: Exception) -> None:
        if not location:
            return self._end(error)
        return control_plane.lost(location, error)

    def _end(self, error: BaseException) -> None:
        super()._end(error)
        self._members.wake()


async def _cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    await asyncio.wait((task,))
