"""A job on several processes: one node for each worker, the control and the rears with the supervisor.

It has the face of `flamecore.job.Job`. A deployment lives in epochs. In each the nodes are assigned their parts, open
what they read, load the state they go on from, and say that they are ready; then the fronts begin. When a node dies or
is lost, a job that keeps state ends the epoch, has the node replaced, and goes on in another from its last snapshot:
the processes that are well stay, and so do the sinks. A job that keeps none ends, with an error that names the node.

What is heard of nodes is `flamecore.reception`'s, what is done about them `flamecore.crew`'s, and `flamecore.turnout`
waits for them; `flamecore.changes` makes what clients ask for, and `flamecore.life` is what goes from epoch to epoch.
What is told of the job is `flamecore.account`'s, and how long it stands still between epochs `flamecore.standstill`'s.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flamecore import events
from flamecore.account import Account
from flamecore.changes import Changes
from flamecore.claim import Claim
from flamecore.codec import Codec
from flamecore.crew import Crew, wanted
from flamecore.ending import Ending
from flamecore.epoch import Epoch, FaultError, TurnError
from flamecore.errors import FlameError, JobError
from flamecore.job import collector_at_rest
from flamecore.jobregistry import JobRegistry, RegistryContext
from flamecore.life import Life
from flamecore.logs import logger
from flamecore.members import Members
from flamecore.messages import CONTROL, Begin, Halt, Join, Load, Rescale, Status, Stop, Upgrade
from flamecore.observe import Observers
from flamecore.opening import check_importable, open_history
from flamecore.placement import SUPERVISOR, TOKEN, node_options
from flamecore.post import Post
from flamecore.private import private_folder
from flamecore.reception import Reception
from flamecore.remains import Remains
from flamecore.restarts import Restarts
from flamecore.revision import Revision
from flamecore.snapshot import Manifest
from flamecore.standstill import MOVE_S, Standstill
from flamecore.stats import JobReport, JobStats
from flamecore.transport import Transport, TransportContext
from flamecore.turnout import Turnout

if TYPE_CHECKING:
    from flamecore.layout import Layout


class Deployment:
    """One run of a flow on several processes.

    Args:
        layout: Everything that is configured, checked.
        revise: Makes the version that it is asked to go on with (`flamecore.upgrading.revise`).
    """

    def __init__(self, layout: Layout, revise: Callable[[Layout, Upgrade], Revision]) -> None:
        self._layout = layout  # as it was when the job began; what is of the whole job stays as it is there
        self._deploy = layout.config.deploy
        self._codec = Codec.of(layout.sound_graph)
        self._revise = revise
        # A job that others are to reach goes by its name; of any other there may be several at once.
        reachable = self._deploy.start == "join" or TOKEN in os.environ
        self.id = layout.settings.name if reachable else f"{layout.settings.name}-{secrets.token_hex(4)}"
        self.epoch: Epoch | None = None
        self._members = Members(CONTROL)
        self._reception = Reception(self._members, self)
        self._observers = Observers(layout.observers)
        self._turnout = Turnout(
            self._deploy, lambda: self._crew.roll(self._life), lambda name: self._crew.take_for_dead(name)
        )
        self.until = self._turnout.until
        self._draining = asyncio.Event()
        self._started: float | None = None
        self._ended: float | None = None
        self._account = Account(self.id, self._members)
        self._epochs = 0
        self._restarts = Restarts(self._deploy.restarts, self._deploy.restart_window_s)
        self._ruin: BaseException | None = None
        self._patience = layout.settings.patience
        self._ending = Ending(self.id, self._patience)
        self._remains = Remains()
        # From when it runs:
        self._life: Life
        self._crew: Crew
        self._changes: Changes
        self._standstill: Standstill
        self._transport: Transport
        self._claim: Claim

    # -- the face of a job -----------------------------------------------------------------------------------------

    async def run(self) -> JobReport:
        """Run to the end of all sources, or until drained. Raises as `Job.run`, and `JobError` when a node dies and the
        job keeps no state, or too many die."""
        if self._started is not None:
            raise JobError("a job runs once", hint="Make another one from the same flow.")
        self._started = time.monotonic()
        error: BaseException | None = None
        try:
            async with self._ending.holding() as stack:
                stack.enter_context(collector_at_rest())
                await self._start(stack)
                await self._run()
        except BaseException as caught:
            error = caught
            raise
        finally:
            self._ended = time.monotonic()
            self._observers.job_ended(self._layout.name, error)
        # Everything is delivered; not everybody has heard of it before it ended.
        return JobReport(replace(self.stats(), in_flight=0, held_back=0), drained=self._draining.is_set())

    def drain(self) -> None:
        """Read no more, finish what was admitted, and end. May be called from a signal handler of the event loop."""
        self._draining.set()
        self.wake()

    def stats(self) -> JobStats:
        """A look at the job: the nodes report twice a second."""
        return self._account.stats((self._ended or time.monotonic()) - (self._started or time.monotonic()))

    def described(self) -> dict[str, Any]:
        """Who is in the job, what each hosts, and how far it is. Holds no secret."""
        return self._account.described(self.stats(), self._life, self._restarts.faults)

    # -- its start and its end -------------------------------------------------------------------------------------

    async def _start(self, stack: AsyncExitStack) -> None:
        """Have the right to run, find where to go on from, and listen. The stack ends all of it."""
        layout, members = self._layout, self._members
        graph = layout.sound_graph
        folder = stack.enter_context(private_folder())
        token = os.environ.get(TOKEN) or secrets.token_hex(32)
        claim = self._claim = await self._claimed(stack, token)
        history = await open_history(stack, layout.store(), graph, layout.settings, self._patience)
        sinks = AsyncExitStack()
        transport = self._transport = layout.transport(
            TransportContext(
                job=self.id,
                epoch=claim.epoch,
                codec=self._codec,
                node=SUPERVISOR,
                token=token,
                folder=folder,
                locate=members.locate,
                lost=self._lost,
            )
        )
        stack.push_async_callback(self._close, transport)
        check_importable(graph, transport)
        life = self._life = Life(layout, self._codec, history, sinks, self._patience)
        control = members.locations[CONTROL] = await transport.start()
        claim.publish(run=self.id, transport=layout.config.transport.use, control=control)
        post = Post(await transport.bind(CONTROL), self._reception.trouble)
        await stack.enter_async_context(sinks)
        bootstrap = {
            "transport": layout.config.transport.use,
            "options": node_options(layout.transport_table),
            "job": self.id,
            "epoch": claim.epoch,
            "token": token,
            "folder": folder,
            "control": control,
        }
        host = self._account.host = self._layout.host(self._reception.died, self._end)
        crew = self._crew = Crew(members, host, post, None if self._deploy.start == "join" else bootstrap)
        self._changes = Changes(self, life, crew, self._revise)
        self._standstill = Standstill(self.id, self._changes.done)
        stack.push_async_callback(self._end_rest)
        reception = self._reception
        watching = reception.watch(crew, self._deploy.silence_timeout_s)
        for work in (reception.listen(crew), watching, self._account.watch(self.stats)):
            task = asyncio.create_task(work)
            task.add_done_callback(self._task_ended)
            stack.push_async_callback(_cancelled, task)
        stack.push_async_callback(self._dismiss)
        await host.open()

    async def _claimed(self, stack: AsyncExitStack, token: str) -> Claim:
        """Have the right to run this job, and give it back when everything else has ended."""
        registry = self._layout.job_registry(RegistryContext(node=SUPERVISOR))
        stack.push_async_callback(self._close, registry)
        await registry.open()
        lease_s = self._layout.config.registry.lease_s
        claim = await Claim.take(registry, self._layout.name, lease_s=lease_s, token=token, lost=self._end)
        return await stack.enter_async_context(claim)

    async def _dismiss(self) -> None:
        """End the nodes, while it is still heard what they have counted last, and who asks for something too late."""
        self._changes.leave()
        await self._crew.leave(self._deploy.stop_timeout_s)

    async def _end_rest(self) -> None:
        """End what is left of epochs."""
        try:
            if self.epoch is not None:
                await self.epoch.halt(self._remains.see_to)
        finally:
            self._remains.cancel()
            await self._close(self._crew.post)

    async def _close(self, way: Transport | Post | JobRegistry) -> None:
        """Hand over what was sent, and close. Whoever was lost and is still connected is not waited for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._deploy.stop_timeout_s):
                await way.aclose()

    # -- its epochs ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Epoch after epoch, to the end of the job."""
        while True:
            self._check()
            self._epochs += 1
            epoch = self.epoch = Epoch(
                f"{secrets.token_hex(3)}.{self._epochs}",
                self._life.plan,
                self._life.layout,
                self._transport,
                self._observers,
                patience=self._patience,
                failing=self._failing,
                taken=self._taken,
            )
            self._account.node = epoch.node
            try:
                return await self._live(epoch)
            except TurnError:
                self._standstill.begin()
                await self._changes.turn(epoch)
            except FaultError as fault:
                if not await self._changes.turn_back(fault.error, epoch):
                    await self._recover(epoch, fault)
            except FlameError as error:
                if not await self._changes.turn_back(error, epoch):
                    raise

    async def _live(self, epoch: Epoch) -> None:
        """One epoch, to the end of the job.

        Raises:
            FaultError: A part is gone, and the job can go on in another epoch.
            TurnError: It goes on in another shape.
            FlameError: The job has failed.
        """
        life, crew, members = self._life, self._crew, self._members
        members.begin_epoch()
        count_of = wanted(life.plan, life.layout)
        await crew.fill(count_of)
        await self.until(
            lambda: all(len(members.named(role)) >= count for role, count in count_of.items()),
            epoch,
            "joined",
            lambda: crew.late,
        )
        nodes = crew.assign(life, epoch.name)
        self._account.publish(self._claim, life.plan)
        await self.until(
            lambda: members.opened >= nodes, epoch, "opened what they read", lambda: nodes - members.opened
        )
        # The sources are open, so nothing that is there is replaced in vain.
        await life.open_sinks()
        history = life.history
        if history is not None:
            await history.begin(life.held)
        for name in nodes:
            crew.tell(name, Load(history.resume() if history is not None else None))
        await epoch.open(life.sinks, life.held, history)
        await self.until(lambda: members.ready >= nodes, epoch, "loaded their state", lambda: nodes - members.ready)
        if self._epochs == 1:
            self._observers.job_started(self._layout.name, life.plan.workers)
        self._changes.settle()
        for name in nodes:
            crew.tell(name, Begin())
        epoch.begin()
        if self._epochs > 1:
            self._remains.see_to(asyncio.create_task(self._standstill.tell_when_over(epoch)))
        draining = asyncio.create_task(self._tell_when_draining())
        try:
            await epoch.outcome
        finally:
            await _cancelled(draining)
        await epoch.aclose()

    async def _recover(self, epoch: Epoch, fault: FaultError) -> None:
        """End the epoch, and find what the next one goes on from.

        Raises:
            FlameError: The job cannot go on, or has met too many faults.
        """
        self._check()
        history, now = self._life.history, time.monotonic()
        self._standstill.begin()
        if history is None:
            raise fault.error
        self._restarts.note(fault.error)
        logger().warning(events.JOB_FAULTED, job=self.id, what=fault.error.what, faults=self._restarts.faults)
        self._changes.refuse("the job has met a fault meanwhile; try again")
        await self.halt(epoch)
        if fault.blob and not history.refuse(fault.blob):
            raise fault.error
        barren = not epoch.moved.is_set() and now < epoch.created + MOVE_S
        await asyncio.sleep(self._restarts.pause_s(barren=barren))
        await self._life.go_back()

    async def halt(self, epoch: Epoch) -> None:
        """End an epoch everywhere: nobody runs anything any more, or is taken for dead."""
        members, crew = self._members, self._crew
        if self._ruin is None:
            self._ending.withdraw()
        reached = await epoch.halt(self._remains.see_to)
        self._account.close_epoch()
        self._life.hold(reached)
        survivors = set(members.parts)
        crew.tell_if_there(survivors, Halt())
        try:
            async with asyncio.timeout(self._deploy.stop_timeout_s):
                while not members.halted >= survivors & set(members.parts):
                    self._check()
                    await self._turnout.change()
        except TimeoutError:
            for name in survivors - members.halted:
                crew.take_for_dead(name)

    async def _tell_when_draining(self) -> None:
        await self._draining.wait()
        self._stop_reading()

    def _stop_reading(self) -> None:
        self._crew.tell_if_there(self._members.hosting("worker"), Stop(True))

    def _taken(self, manifest: Manifest) -> None:
        self._account.snapshot = manifest

    # -- what is heard ---------------------------------------------------------------------------------------------

    def serve(self, client: str, message: Any) -> None:
        """Do what a client asks for."""
        if isinstance(message, Join) and message.role == "observer":
            self._crew.answer(client, Status(self.described()))
        elif isinstance(message, Rescale | Upgrade):
            self._remains.keep(asyncio.create_task(self._changes.asked(client, message)))

    def wake(self) -> None:
        """Something has changed that may be waited for."""
        self._turnout.wake()

    def fail(self, error: BaseException) -> None:
        """End the epoch with the first error there is."""
        if self.epoch is not None:
            self.epoch.fail(error)
        self.wake()

    def _failing(self, error: FlameError) -> None:
        """A record ends the job, once what comes before it is delivered. Until then it may go on in another epoch, in
        which the record is read again: that nothing more is read now is for this epoch alone."""
        self._ending.expect(error)
        self._stop_reading()

    def _lost(self, location: str, error: Exception) -> None:
        if not location:
            return self._end(error)
        return self._reception.lost(location, error)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        """End the job: what is gone is gone in every epoch."""
        self._ruin = self._ruin or error
        self._ending.expect(self._ruin)
        self.fail(self._ruin)

    def _check(self) -> None:
        if self._ruin is not None:
            raise self._ruin


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait((task,))
