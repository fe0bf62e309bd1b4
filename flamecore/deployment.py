"""A job on several processes: one node for each worker, the control and the rears with the supervisor.

It has the face of `flamecore.job.Job`. A deployment lives in epochs. In each the nodes are assigned their parts, open
what they read, load the state they go on from, and say that they are ready; then the fronts begin. When a node dies or
is lost, a job that keeps state ends the epoch, has the node replaced, and goes on in another from its last snapshot:
the processes that are well stay, and so do the sinks. A job that keeps none ends, with an error that names the node.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from flamecore import __version__, events
from flamecore.acceptance import accept
from flamecore.claim import Claim, Member
from flamecore.codec import Codec
from flamecore.config import DeployTable, encode_config
from flamecore.epoch import Epoch, FaultError, TurnError, acker_plan
from flamecore.errors import ConfigError, FlameError, JobError, PeerGoneError, TransportError
from flamecore.hashing import owned_ranges
from flamecore.history import History
from flamecore.host import CONTROL, Post
from flamecore.job import check_importable, collector_at_rest, make_plan, open_history, open_sinks
from flamecore.jobregistry import RegistryContext
from flamecore.logs import logger
from flamecore.members import Members
from flamecore.messages import (
    Assignment,
    Begin,
    Halt,
    Halted,
    Join,
    Load,
    NodeFailed,
    NodeReport,
    Opened,
    Ready,
    Refusal,
    Rescale,
    Status,
    Stop,
    Upgrade,
)
from flamecore.observe import Observers
from flamecore.placement import SUPERVISOR, TOKEN, node_options, placed
from flamecore.plan import DEAD_LETTERS, Plan
from flamecore.rear import Sink
from flamecore.revision import Revision, sinks_that_stay
from flamecore.snapshot import Manifest
from flamecore.stats import JobReport, JobStats, NodeStats, summed
from flamecore.supervisor import Supervisor
from flamecore.transport import Transport, TransportContext

if TYPE_CHECKING:
    from flamecore.layout import Layout

_GRACE_S: Final = 0.5
"""How long a process that was lost may take to be found dead, so that its last words are told."""

_TRIES: Final = 3
"""How often processes are started for another version of the flow, if they die before they have come."""

_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
"""How long to wait before the next attempt, when several in turn have come to nothing: twice as long each time."""

_MOVE_S: Final = 5.0
"""How long to wait for a first delivery, before it is said that the job goes on."""


class Deployment:
    """One run of a flow on several processes.

    Args:
        layout: Everything that is configured, checked.
        revise: Makes the version that it is asked to go on with (`flamecore.upgrading.revise`).
    """

    def __init__(self, layout: Layout, revise: Callable[[Layout, Upgrade], Revision]) -> None:
        assert layout.graph is not None
        self.layout = layout
        self.graph = layout.graph
        self.settings = layout.settings
        self._code = layout.code
        self._codec = Codec.of(layout.graph)
        self._revise = revise
        # A job that others are to reach goes by its name; of any other there may be several at once.
        reachable = layout.config.deploy.start == "join" or TOKEN in os.environ
        self.id = self.settings.name if reachable else f"{self.settings.name}-{secrets.token_hex(4)}"
        self.members = Members(CONTROL)
        self.faults = 0
        self.snapshot: Manifest | None = None
        self._observers = Observers(layout.observers)
        self._changed = asyncio.Event()
        self._draining = asyncio.Event()
        self._epoch: Epoch | None = None
        self._epochs = 0
        self._started: float | None = None
        self._ended: float | None = None
        self._leaving = False
        self._past: list[NodeStats] = []
        self._fault_times: deque[float] = deque(maxlen=layout.config.deploy.restarts + 1)
        self._rest: set[asyncio.Task[None]] = set()
        self._condemned: set[str] = set()
        self._still_since: float | None = None
        self._request: _Request | None = None
        self._ruin: BaseException | None = None
        self._barren = 0
        self._life: _Life | None = None

    # -- the face of a job -----------------------------------------------------------------------------------------

    async def run(self) -> JobReport:
        """Run to the end of all sources, or until drained. Raises as `Job.run`, and `JobError` when a node dies and the
        job keeps no state, or too many die."""
        if self._started is not None:
            raise JobError("a job runs once", hint="Make another one from the same flow.")
        self._started = time.monotonic()
        error: BaseException | None = None
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(collector_at_rest())
                await self._run(stack)
        except BaseException as caught:
            error = caught
            raise
        finally:
            self._ended = time.monotonic()
            self._observers.job_ended(self.settings.name, error)
        return JobReport(self.stats(), drained=self._draining.is_set())

    def drain(self) -> None:
        """Read no more, finish what was admitted, and end. May be called from a signal handler of the event loop."""
        self._draining.set()
        self._changed.set()

    def stats(self) -> JobStats:
        """A look at the job: the nodes report twice a second."""
        elapsed = (self._ended or time.monotonic()) - (self._started or time.monotonic())
        own = [self._epoch.node.stats()] if self._epoch is not None else []
        return summed([*self._past, *self.members.reports.values(), *own], elapsed)

    def described(self) -> dict[str, Any]:
        """Who is in the job, what each hosts, and how far it is. Holds no secret."""
        stats = self.stats()
        state = {}
        if self.settings.state is not None:
            snapshot = self.snapshot
            state = {
                "faults": self.faults,
                "snapshot": None
                if snapshot is None
                else {"number": snapshot.number, "time": snapshot.time, "age_s": time.time() - snapshot.created},
            }
        return {
            "job": self.id,
            "nodes": self.members.described(),
            "key_groups": owned_ranges(self.settings.workers),
            **state,
            "records_per_s": stats.items_in / stats.elapsed_s if stats.elapsed_s else 0.0,
            **dict(stats.rows()),
        }

    # -- its life ----------------------------------------------------------------------------------------------------

    async def _run(self, stack: AsyncExitStack) -> None:
        layout = self.layout
        folder = tempfile.mkdtemp(prefix="flamestream-")  # only its owner can enter it
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        token = os.environ.get(TOKEN) or secrets.token_hex(32)
        claim = await self._claim(stack, token)
        history = await open_history(stack, layout.store(), self.graph, self.settings.workers)
        plan = make_plan(self.graph, layout.sources, self.settings, history=history)
        transport = layout.transport(
            TransportContext(
                job=self.id,
                epoch=claim.epoch,
                codec=self._codec,
                node=SUPERVISOR,
                token=token,
                folder=folder,
                locate=self.members.locate,
                lost=self._lost,
            )
        )
        stack.push_async_callback(self._close, transport)
        check_importable(self.graph, transport)
        self.members.locations[CONTROL] = await transport.start()
        claim.publish(run=self.id, transport=layout.config.transport.use, control=self.members.locations[CONTROL])
        post = Post(await transport.bind(CONTROL), self._trouble)
        sinks = await stack.enter_async_context(AsyncExitStack())
        supervisor = Supervisor(self._died)
        stack.push_async_callback(self._leave, supervisor, post)
        for work in (self._listen(post), self._watch(supervisor)):
            task = asyncio.create_task(work)
            task.add_done_callback(self._task_ended)
            stack.push_async_callback(_cancelled, task)
        life = self._life = _Life(
            plan, history, transport, post, supervisor, sinks, claim, self._bootstrap(folder, token, claim.epoch)
        )
        while True:
            try:
                return await self._live(life)
            except TurnError:
                assert self._request is not None
                await self._turn(life, self._request)
            except FaultError as fault:
                if not await self._turn_back(life, fault.error):
                    await self._recover(life, fault)
            except FlameError as error:
                if not await self._turn_back(life, error):
                    raise

    async def _claim(self, stack: AsyncExitStack, token: str) -> Claim:
        """Have the right to run this job, and give it back when everything else has ended."""
        registry = self.layout.job_registry(RegistryContext(node=SUPERVISOR))
        stack.push_async_callback(registry.aclose)
        await registry.open()
        lease_s = self.layout.config.registry.lease_s
        claim = await Claim.take(registry, self.settings.name, lease_s=lease_s, token=token, lost=self._end)
        return await stack.enter_async_context(claim)

    async def _live(self, life: _Life) -> None:
        """One epoch, to the end of the job.

        Raises:
            FaultError: A part is gone, and the job can go on in another epoch.
            FlameError: The job has failed.
        """
        self._check()
        plan, post, history = life.plan, life.post, life.history
        self._epochs += 1
        epoch = self._epoch = Epoch(
            f"{secrets.token_hex(3)}.{self._epochs}",
            plan,
            self.layout,
            life.transport,
            self._observers,
            failing=self.drain,
            taken=self._taken,
        )
        members = self.members
        members.begin_epoch()
        wanted = self._wanted(plan)
        await self._fill(life, wanted)
        await self._until(
            lambda: all(len(members.named(role)) >= count for role, count in wanted.items()),
            epoch,
            "joined",
            lambda: [name for name in life.supervisor.running() if name not in members.nodes],
        )
        nodes = self._assign(life, epoch)
        self._publish(life.claim, plan)
        await self._until(
            lambda: members.opened >= nodes, epoch, "opened what they read", lambda: nodes - members.opened
        )
        # The sources are open, so nothing that is there is replaced in vain.
        closed = {name: sink for name, sink in self._sinks(plan).items() if name not in life.held}
        life.held |= await open_sinks(life.edges, closed, history)
        if history is not None:
            await history.begin(life.held)
        for name in nodes:
            self._tell(post, name, Load(history.resume() if history is not None else None))
        await epoch.open(self._sinks(plan), life.held, history)
        await self._until(lambda: members.ready >= nodes, epoch, "loaded their state", lambda: nodes - members.ready)
        if self._epochs == 1:
            self._observers.job_started(self.settings.name, plan.workers)
        if self._request is not None and self._request.former is not None:  # there is no way back from here on
            self._request.former = None
            self._dismiss(life, [name for name in members.nodes if name in members.resting])
        for name in nodes:
            self._tell(post, name, Begin())
        epoch.begin()
        if self._epochs > 1:
            self._see_to(asyncio.create_task(self._tell_when_moved(epoch, post)))
        draining = asyncio.create_task(self._tell_when_draining(post))
        try:
            await epoch.outcome
        finally:
            await _cancelled(draining)
        await epoch.aclose()

    async def _recover(self, life: _Life, fault: FaultError) -> None:
        """End the epoch, and find what the next one goes on from.

        Raises:
            FlameError: The job cannot go on, or has met too many faults.
        """
        self._check()
        deploy, epoch, history = self.layout.config.deploy, self._epoch, life.history
        assert epoch is not None
        now = time.monotonic()
        self._still_since = self._still_since or now
        self.faults += 1
        self._fault_times.append(now)
        recent = sum(at > now - deploy.restart_window_s for at in self._fault_times)
        if history is None:
            raise fault.error
        if recent > deploy.restarts:
            raise _too_many(fault.error, recent, deploy)
        logger().warning(events.JOB_FAULTED, job=self.id, what=fault.error.what, faults=self.faults)
        self._refuse_request(life, "the job has met a fault meanwhile; try again")
        await self._halt(life, epoch)
        if fault.blob and not history.refuse(fault.blob):
            raise fault.error
        # What keeps epochs from coming to anything may be over soon: a server that starts again, a host that is full.
        barren = not epoch.moved.is_set() and now < epoch.created + _MOVE_S
        self._barren = self._barren + 1 if barren else 0
        if self._barren > 1:
            await asyncio.sleep(min(_PAUSE_S * 2**self._barren, _LONGEST_PAUSE_S))
        await self._go_back(life, history)

    async def _turn(self, life: _Life, request: _Request) -> None:
        """End the epoch, and change what was asked for."""
        epoch, history = self._epoch, life.history
        assert epoch is not None
        assert history is not None
        self._still_since = self._still_since or time.monotonic()
        await self._halt(life, epoch)
        request.turned = True
        if request.revision is not None:
            await self._take_on(life, request, request.revision)
        else:
            config = self.layout.config
            job = msgspec.structs.replace(config.job, workers=request.workers)
            self.layout = replace(self.layout, config=msgspec.structs.replace(config, job=job))
            self.settings = self.layout.settings
            history.workers = request.workers
            self._dismiss(life, self.members.named("worker")[request.workers :])
            await self._go_back(life, history)
            life.plan = replace(life.plan, workers=request.workers)

    async def _take_on(self, life: _Life, request: _Request, revision: Revision) -> None:
        """Go on with another version: its nodes come in the place of those of the former, which rest until it runs."""
        stay = sinks_that_stay(self.layout, revision.layout)
        request.former = self.layout, self._code, set(self.members.nodes) - self.members.resting
        await self._close_sinks(life, stay)
        revision.layout.keep_sinks(self.layout, stay)
        self.members.resting = set(request.former[2])
        self._adopt(life, revision.layout, revision.code)
        try:
            if revision.plan is not None and revision.plan.loss:
                assert life.history is not None
                await accept(life.history.store, life.history.identity, self.graph, revision.plan.loss)
            await self._look_anew(life)
        except FlameError as error:
            if not await self._turn_back(life, error):
                raise

    def _adopt(self, life: _Life, layout: Layout, code: str) -> None:
        assert layout.graph is not None
        assert life.history is not None
        self.layout, self.graph, self.settings, self._code = layout, layout.graph, layout.settings, code
        self._codec.relearn(layout.graph)
        life.history.graph = layout.graph

    async def _look_anew(self, life: _Life) -> None:
        assert life.history is not None
        await life.history.look()
        life.plan = make_plan(self.graph, self.layout.sources, self.settings, history=life.history)

    async def _close_sinks(self, life: _Life, but: Collection[str]) -> None:
        for name, sink in self._all_sinks().items():
            if name not in but and life.held.pop(name, None) is not None:
                await sink.aclose()

    async def _turn_back(self, life: _Life, error: FlameError) -> bool:
        """Another version could not start: go on with the former, whose nodes have waited.

        Returns:
            Whether there was one.
        """
        request, epoch, history = self._request, self._epoch, life.history
        if request is None or request.former is None or request.revision is None:
            return False
        assert epoch is not None
        assert history is not None
        former, code, nodes = request.former
        if epoch.plan.graph is self.graph:
            await self._halt(life, epoch)
        await self._close_sinks(life, sinks_that_stay(former, self.layout))
        request.revision.forget()
        # Sinks that were closed are made again; the others are still those of the former version.
        layout = request.revision.former()
        layout.keep_sinks(former, set(life.held))
        await history.take_back()
        self._adopt(life, layout, code)
        self._dismiss(life, set(self.members.nodes) - nodes)
        self.members.resting.clear()
        await self._look_anew(life)
        text = f"the new version could not start, and the job goes on with the former: {error}"
        self._request = None
        self._answer(request.client, Refusal(text), life.post)
        return True

    def _refuse_request(self, life: _Life, why: str) -> None:
        """Let go of what was asked for, as long as it is not done."""
        request = self._request
        if request is None or request.turned:
            return
        self._request = None
        if request.revision is not None:
            request.revision.forget()
        self._dismiss(life, [name for name in self.members.nodes if name in self.members.resting])
        self._answer(request.client, Refusal(why), life.post)

    def _dismiss(self, life: _Life, names: Iterable[str]) -> None:
        """Let nodes end that have no part any more."""
        for name in tuple(names):
            self._send_away(self.members.addresses[name], life.post)
            self.members.leave(name)
            self.members.resting.discard(name)
            self._condemned.add(name)

    async def _go_back(self, life: _Life, history: History) -> None:
        """Find what the next epoch goes on from."""
        await history.look()
        if history.owned:
            life.plan = replace(life.plan, start=history.start)
        else:  # no epoch has begun, and what is new is not written down yet
            life.plan = make_plan(self.graph, self.layout.sources, self.settings, history=history)

    async def _halt(self, life: _Life, epoch: Epoch) -> None:
        """End an epoch everywhere: nobody runs anything any more, or is taken for dead."""
        deploy = self.layout.config.deploy
        reached = await epoch.halt(self._see_to)
        own = epoch.node.stats()
        self._past += [replace(node, min_times={}) for node in (*self.members.reports.values(), own)]
        self.members.reports.clear()
        life.held.update({name: max(time, life.held[name]) for name, time in reached.items()})
        survivors = set(self.members.parts)
        for name in survivors:
            with suppress(TransportError):
                life.post.send(self.members.addresses[name], Halt())
        try:
            async with asyncio.timeout(deploy.stop_timeout_s):
                while not self.members.halted >= survivors & set(self.members.parts):
                    self._check()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            for name in survivors - self.members.halted:
                self._take_for_dead(name, life.supervisor)

    async def _tell_when_moved(self, epoch: Epoch, post: Post) -> None:
        """Say how long the job stood still: until something was delivered, or, if nothing comes, until it could be."""
        began = time.monotonic()
        moved = asyncio.create_task(epoch.moved.wait())
        await asyncio.wait((moved, epoch.outcome), timeout=_MOVE_S, return_when=asyncio.FIRST_COMPLETED)
        moved.cancel()
        if epoch.outcome.done() and (epoch.outcome.cancelled() or epoch.outcome.exception() is not None):
            return  # it stands still again
        since, self._still_since = self._still_since, None
        assert since is not None
        took_ms = round(((time.monotonic() if epoch.moved.is_set() else began) - since) * 1000, 1)
        request, self._request = self._request, None
        if request is None:
            logger().info(events.JOB_RECOVERED, job=self.id, epoch=epoch.name, time=epoch.plan.start, took_ms=took_ms)
            return
        logger().info(events.JOB_TURNED, job=self.id, epoch=epoch.name, workers=epoch.plan.workers, pause_ms=took_ms)
        plan = {} if request.revision is None else {"plan": list(request.revision.plan_lines())}
        self._answer(request.client, Status({"workers": epoch.plan.workers, "pause_ms": took_ms, **plan}), post)

    # -- what clients ask for ----------------------------------------------------------------------------------------

    async def _rescale(self, client: str, workers: int, post: Post) -> None:
        """Go on with another number of workers, from a snapshot that is taken now."""
        try:
            owned_ranges(workers)
        except ValueError as error:
            return self._answer(client, Refusal(str(error)), post)
        life, epoch, request = self._life, self._epoch, _Request(client, workers)
        if not self._may_change(request, post) or life is None or epoch is None:
            return None
        # Whoever is to come comes before the pause.
        await self._fill(life, {**self._wanted(life.plan), "worker": workers})
        await self._until(lambda: len(self.members.named("worker")) >= workers, epoch, "joined")
        await epoch.commit()
        if self._still(request, epoch, life):
            epoch.fail(TurnError())
        return None

    async def _upgrade(self, client: str, asked: Upgrade, post: Post) -> None:
        """Go on with another version of the flow, where the former has done all that it has read."""
        life, epoch, request = self._life, self._epoch, _Request(client, self.settings.workers)
        if not self._may_change(request, post) or life is None or epoch is None:
            return None
        await epoch.commit()  # what the new version is held against is what there is now
        request.revision = revision = await asyncio.to_thread(self._revise, self.layout, asked)
        if self._request is not request:
            return revision.forget()
        assert revision.layout.graph is not None
        plan = replace(life.plan, graph=revision.layout.graph)
        wanted = self._wanted(plan, revision.layout)
        await self._gather(life, epoch, wanted)
        if not self._still(request, epoch, life) or not epoch.turn():
            return self._refuse_request(life, "the job has come to its end")
        for name in set(self.members.hosts.values()) & set(self.members.named("worker")):
            self._tell(post, name, Stop(True))
        return None

    async def _gather(self, life: _Life, epoch: Epoch, wanted: Mapping[str, int]) -> None:
        """Have nodes come that have imported nothing yet, besides those that run.

        Raises:
            JobError: They do not come.
        """
        members = self.members
        if self.layout.config.deploy.start == "join":
            busy = set(members.hosts.values())
            idle = {role: [name for name in members.named(role) if name not in busy] for role in wanted}
            for role, count in wanted.items():
                if len(idle[role]) < count:
                    raise JobError(
                        f"the nodes of this job were started by hand, and import the flow once: {count} new ones of "
                        f"role {role} are needed, and {len(idle[role])} are there",
                        hint=f"Start {count - len(idle[role])} more beside those that run "
                        f"(flamestream {role} --join …), and ask again; the former end when the new version runs.",
                    )
            members.resting |= {name for names in idle.values() for name in names}
            return
        old = frozenset(members.nodes)
        fresh: set[str] = set()

        def gone() -> set[str]:
            return fresh.difference(life.supervisor.running())

        def missing() -> set[str]:
            return fresh.difference(members.nodes)

        for _ in range(_TRIES):  # one may die before it has come
            fresh -= gone()
            fresh |= await self._fill(life, wanted, beside=old)
            await self._until(lambda: not missing() or bool(gone()), epoch, "joined", missing)
            if not gone():
                return
        raise JobError(f"new worker processes have died {_TRIES} times before they joined")

    def _may_change(self, request: _Request, post: Post) -> bool:
        """Take on what a client asks for, if the job is one that can be changed, and nobody else is at it."""
        epoch = self._epoch
        text = ""
        if self.settings.state is None:
            text = "the job keeps no state, so it cannot be changed while it runs; configure [state]"
        elif self._request is not None or epoch is None or self._life is None or epoch.outcome.done():
            text = "the job is just being changed, or ends; try again"
        if text:
            self._answer(request.client, Refusal(text), post)
            return False
        self._request = request
        return True

    def _still(self, request: _Request, epoch: Epoch, life: _Life) -> bool:
        """Whether what was asked for can be done yet; whoever asked is told if not."""
        if self._request is not request:
            return False
        if epoch is not self._epoch or epoch.outcome.done() or not epoch.begun:
            self._refuse_request(life, "the job has met a fault meanwhile, or ends; try again")
            return False
        return True

    def _answer(self, client: str, message: Any, post: Post) -> None:
        """Tell a client. Whatever becomes of it, the job goes on."""
        with suppress(TransportError):
            Post(post.endpoint, lambda _: None).send(client, message)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _bootstrap(self, folder: str, token: str, epoch: int) -> dict[str, Any]:
        """What every node that is started here must know to join."""
        return {
            "transport": self.layout.config.transport.use,
            "options": node_options(self.layout.transport_table),
            "job": self.id,
            "epoch": epoch,
            "token": token,
            "folder": folder,
            "control": self.members.locations[CONTROL],
        }

    def _wanted(self, plan: Plan, layout: Layout | None = None) -> dict[str, int]:
        """How many nodes of each role there must be."""
        layout = layout or self.layout
        own = layout.config.deploy.acker == "own"
        return {"worker": plan.workers, "acker": layout.acker(acker_plan(plan)).trackers if own else 0}

    async def _fill(
        self, life: _Life, wanted: Mapping[str, int], beside: Collection[str] | None = None
    ) -> frozenset[str]:
        """Start the processes that are missing, unless others are to start them.

        Args:
            life: The job's.
            wanted: How many there are to be of each role.
            beside: Names of those that do not count. Those that are started then rest.

        Returns:
            Names of those that were started.
        """
        if self.layout.config.deploy.start == "join":
            return frozenset()
        out = self._condemned.union(beside or (), () if beside is not None else self.members.resting)
        running = life.supervisor.running()
        started = set()
        for role, count in wanted.items():
            there = {name for name in running if name.startswith(f"{role}-") and name not in out}
            for index in range(count):
                if any(name.partition(".")[0] == f"{role}-{index}" for name in there):
                    continue
                life.started[role, index] = again = life.started.get((role, index), -1) + 1
                # A name is used once: whoever had it before may not be quite gone.
                name = f"{role}-{index}" + (f".{again}" if again else "")
                # The first worker reads what is piped in; nobody else touches the terminal.
                stdin = None if (role, index) == ("worker", 0) else False
                bootstrap = {**life.bootstrap, "node": name, "role": role}
                started.add(name)
                if beside is not None:
                    self.members.resting.add(name)
                await life.supervisor.start(name, Path(bootstrap["folder"]), bootstrap, stdin=stdin)
        return frozenset(started)

    def _assign(self, life: _Life, epoch: Epoch) -> set[str]:
        """Tell every node its part, and where everybody is. Returns the nodes that have one."""
        plan, members = life.plan, self.members
        workers, ackers = members.named("worker"), members.named("acker")
        trackers = self.layout.acker(acker_plan(plan)).trackers
        hosts = members.hosts = placed(self.layout.config, trackers, plan.rears, workers, ackers)
        locations = {SUPERVISOR: members.locations[CONTROL]}
        locations |= {name: node.location for name, node in members.nodes.items()}
        members.locations.update({address: locations[name] for address, name in hosts.items()})
        states = life.history.fronts if life.history is not None else ()
        fronts = tuple(
            (front.source, front.partition, partition, *(states[n][4::2] if states else (None, False)))
            for n, (front, partition) in enumerate(zip(plan.fronts, plan.partitions, strict=True))
        )
        nodes = set(hosts.values()) - {SUPERVISOR}
        for name in nodes:
            parts = [address.split("/") for address, host in hosts.items() if host == name]
            assignment = Assignment(
                epoch=epoch.name,
                config=encode_config(self.layout.config),
                flow=importable(self.layout),
                total=plan.workers,
                start=plan.start,
                fronts=fronts,
                workers=tuple(int(index) for kind, index in parts if kind == "worker"),
                trackers=tuple(int(index) for kind, index in parts if kind == "acker"),
                locations=tuple(members.locations.items()),
                code=self._code,
            )
            self._tell(life.post, name, assignment)
        return nodes

    def _tell(self, post: Post, name: str, message: Any) -> None:
        """Send something to a node that has a part in this epoch.

        Raises:
            FaultError: It is gone.
        """
        address = self.members.addresses.get(name)
        try:
            if address is None:
                raise PeerGoneError(f"{name} is gone", address=CONTROL, peer=name)
            post.send(address, message)
        except TransportError as error:
            raise FaultError(error) from error

    def _publish(self, claim: Claim, plan: Plan) -> None:
        """Say in the registry who has which part."""
        claim.publish(
            members={
                name: Member(
                    role=node.role,
                    location=node.location,
                    pid=node.pid,
                    parts=tuple(sorted(address for address, host in self.members.hosts.items() if host == name)),
                    version=node.version,
                )
                for name, node in self.members.nodes.items()
            },
            key_groups=owned_ranges(plan.workers),
            fronts=tuple(
                (front.source, partition, f"worker/{plan.host_of(number)}")
                for number, (front, partition) in enumerate(zip(plan.fronts, plan.partitions, strict=True), 1)
            ),
        )

    def _sinks(self, plan: Plan) -> dict[str, Sink]:
        sinks = self._all_sinks()
        return {name: sinks[name] for name in plan.rears}

    def _all_sinks(self) -> dict[str, Sink]:
        layout = self.layout
        return {**layout.sinks, **({DEAD_LETTERS: layout.dead_letter} if layout.dead_letter is not None else {})}

    async def _until(
        self, condition: Callable[[], bool], epoch: Epoch, what: str, late: Callable[[], Iterable[str]] = tuple
    ) -> None:
        """Wait for all nodes, or for the epoch to end.

        Args:
            condition: Whether they have all come so far.
            epoch: The present one.
            what: What they are waited for to do.
            late: Names of those who have not done it.

        Raises:
            JobError: It takes too long, and nobody can be blamed.
            FaultError: It takes too long: those who are late are taken for dead.
        """
        timeout_s = self.layout.config.deploy.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    changed = asyncio.ensure_future(self._changed.wait())
                    try:
                        await asyncio.wait((changed, epoch.outcome), return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        changed.cancel()
                    if epoch.outcome.done():
                        await epoch.outcome
        except TimeoutError:
            known = ", ".join(sorted(self.members.nodes)) or "none"
            error = JobError(
                f"after {timeout_s:g} s not all workers have {what}; joined: {known}",
                hint="Look at the workers' log lines above; each must reach the supervisor and import the flow.",
            )
            stuck = sorted(late())
            if not stuck or self._life is None:
                raise error from None
            for name in stuck:
                self._take_for_dead(name, self._life.supervisor)
            raise FaultError(error) from None

    async def _listen(self, post: Post) -> None:
        """Hear of nodes."""
        while True:
            sender, message = await post.endpoint.receive()
            if sender.startswith("client/"):
                self._serve(sender, message, post)
                continue
            if isinstance(message, Join):
                self._welcome(sender, message, post)
            elif self.members.addresses.get(message.node) != sender:
                self._send_away(sender, post)  # it was taken for dead, and is not: it has no part in this
                continue
            else:
                self._hear(message)
            self._changed.set()

    def _welcome(self, address: str, node: Join, post: Post) -> None:
        """A node has come. If another of its name is there, it comes in its place: a service starts again what died."""
        if node.version != __version__:
            return self._turn_away(address, node, post)
        former = self.members.addresses.get(node.node)
        if former is not None:
            self._send_away(former, post)
            self.members.leave(node.node)
            if node.node in self.members.hosts.values():
                self._fault(JobError(f"{node.node} has been started again"))
        self.members.join(node, address)
        return None

    def _turn_away(self, address: str, node: Join, post: Post) -> None:
        """A node of another version has come: it is told so, and the job goes on without it."""
        why = f"{node.node} runs flamestream {node.version}, and the supervisor {__version__}"
        logger().warning(events.NODE_REFUSED, job=self.id, node=node.node, why=why)
        self.members.locations[address] = node.location
        self._answer(address, Refusal(f"{why}; install one version everywhere"), post)

    def _send_away(self, address: str, post: Post) -> None:
        """Tell a node that has no part in this any more, if it still hears."""
        with suppress(TransportError):
            post.send(address, Stop(False))

    def _serve(self, client: str, message: Any, post: Post) -> None:
        """Do what a client asks for."""
        if isinstance(message, Join):
            self.members.locations[client] = message.location
            if message.role == "observer":
                self._answer(client, Status(self.described()), post)
        elif isinstance(message, Rescale):
            self._see_to(asyncio.create_task(self._asked(client, self._rescale(client, message.workers, post), post)))
        elif isinstance(message, Upgrade):
            self._see_to(asyncio.create_task(self._asked(client, self._upgrade(client, message, post), post)))

    async def _asked(self, client: str, work: Awaitable[None], post: Post) -> None:
        """Do what was asked for; whoever asked is told if it cannot be done, and the job goes on."""
        try:
            await work
        except (FlameError, FaultError, TurnError) as error:
            text = "\n".join([str(error), *getattr(error, "__notes__", ())])
            if self._life is not None and self._request is not None and self._request.client == client:
                self._refuse_request(self._life, text)
            else:
                self._answer(client, Refusal(text), post)

    def _hear(self, message: Any) -> None:
        members, epoch = self.members, self._epoch
        members.hear(message.node)
        now = epoch.name if epoch is not None else ""
        if isinstance(message, NodeReport):
            if message.stats:
                members.reports[message.node] = NodeStats(**message.stats)
        elif isinstance(message, Opened) and message.epoch == now:
            members.opened.add(message.node)
        elif isinstance(message, Ready) and message.epoch == now:
            members.ready.add(message.node)
        elif isinstance(message, Halted):
            members.halted.add(message.node)
        elif isinstance(message, NodeFailed):
            text, lost = message.text, members.at(message.lost)
            if lost is not None:  # who found out knows only where it was
                text = text.replace(message.lost, f"{lost} at {message.lost}", 1)
            error = JobError(f"{message.node} failed: {text}")
            if message.kind not in _FAULTS:
                self._fail(error)
            elif lost is None:
                self._fault(error, message.blob)
            elif epoch is not None:
                self._lost_by(lost, error, epoch)

    async def _watch(self, supervisor: Supervisor) -> None:
        """Take nodes for dead that are not heard of."""
        limit_s = self.layout.config.deploy.silence_timeout_s
        pause_s = min(limit_s / 4, 1.0)
        while True:
            began = time.monotonic()
            await asyncio.sleep(pause_s)
            if time.monotonic() > began + pause_s + limit_s / 2:
                # This process itself stood still. What the others have said meanwhile is yet to be heard.
                for name in self.members.nodes:
                    self.members.hear(name)
            for name in self.members.silent(limit_s):
                self._take_for_dead(name, supervisor)
                self._fault(
                    JobError(
                        f"{name} has not been heard of for {limit_s:g} s",
                        hint="Does a user function keep it busy? deploy.silence_timeout_s says how long it may.",
                    )
                )

    async def _tell_when_draining(self, post: Post) -> None:
        await self._draining.wait()
        for name in self.members.named("worker"):
            with suppress(TransportError):
                post.send(self.members.addresses[name], Stop(True))

    async def _leave(self, supervisor: Supervisor, post: Post) -> None:
        """End the nodes: first by asking, then by force."""
        self._leaving = True
        if self._request is not None:
            self._answer(self._request.client, Refusal("the job has come to its end"), post)
        for address in self.members.addresses.values():
            with suppress(FlameError):  # it is gone already
                post.send(address, Stop(False))
        await supervisor.stop(self.layout.config.deploy.stop_timeout_s)
        if self._epoch is not None:
            await self._epoch.halt(self._see_to)
        for task in tuple(self._rest):
            task.cancel()
        await self._close(post)

    async def _close(self, way: Transport | Post) -> None:
        """Hand over what was sent, and close. Whoever was lost and is still connected is not waited for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.layout.config.deploy.stop_timeout_s):
                await way.aclose()

    def _see_to(self, task: asyncio.Task[None]) -> None:
        """Let something of a past epoch end in its own time. How it ends is of no account."""
        self._rest.add(task)
        task.add_done_callback(self._seen_to)

    def _seen_to(self, task: asyncio.Task[None]) -> None:
        self._rest.discard(task)
        if not task.cancelled():
            task.exception()

    def _taken(self, manifest: Manifest) -> None:
        self.snapshot = manifest

    # -- what goes wrong -------------------------------------------------------------------------------------------

    def _take_for_dead(self, name: str, supervisor: Supervisor) -> None:
        self.members.leave(name)
        self._condemned.add(name)
        supervisor.kill(name)

    def _died(self, name: str, what: str, lines: Sequence[str]) -> None:
        self.members.leave(name)
        if self._leaving or name in self._condemned or name in self.members.resting:
            return self._changed.set()
        tail = "".join(f"\n    {line}" for line in lines[-8:])
        text = f"{name} {what}" + (f"; its last lines:{tail}" if tail else "")
        hint = "The job has ended. Everything delivered so far is right; run it again."
        return self._fault(JobError(text, hint=hint))
        return None

    def _lost_by(self, name: str, error: FlameError, epoch: Epoch) -> None:
        """Somebody cannot reach a node any more. One that was started here and has died tells it in its last words."""
        if self._life is None or not self._life.supervisor.watches(name):
            return epoch.fail(FaultError(error))
        asyncio.get_running_loop().call_later(_GRACE_S, epoch.fail, FaultError(error))
        return None

    def _lost(self, location: str, error: Exception) -> None:
        if not location:
            return self._end(error)
        name = self.members.at(location)
        if self._leaving or name is None:
            return None
        if self._life is None or not self._life.supervisor.watches(name):
            return self._lost_for_good(name, location, error)
        asyncio.get_running_loop().call_later(_GRACE_S, self._lost_for_good, name, location, error)
        return None

    def _lost_for_good(self, name: str, location: str, error: Exception) -> None:
        node = self.members.nodes.get(name)
        if not self._leaving and node is not None and node.location == location:
            if self._life is not None:
                self._take_for_dead(name, self._life.supervisor)
            self._fault(JobError(f"the connection to {name} is lost: {error}"))

    def _trouble(self, error: BaseException) -> None:
        """Something could not be sent to a node. If that is gone already, it is being seen to."""
        if not isinstance(error, TransportError):
            self._fail(error)
        elif self.members.concerned(getattr(error, "peer", "")):
            self._fault(error)

    def _fault(self, error: FlameError, blob: str = "") -> None:
        self._fail(FaultError(error, blob))

    def _fail(self, error: BaseException) -> None:
        """End the epoch with the first error there is."""
        if self._epoch is not None:
            self._epoch.fail(error)
        self._changed.set()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        """End the job: what is gone is gone in every epoch."""
        self._ruin = self._ruin or error
        self._fail(self._ruin)

    def _check(self) -> None:
        if self._ruin is not None:
            raise self._ruin


class _Request:
    """What a client has asked for.

    Attributes:
        client: Who waits for the answer.
        workers: How many there are to be.
        revision: Another version to go on with; None: the same.
        turned: The change is being made.
        former: As long as that can be gone back to: the version before, its fingerprint, and the names of its nodes.
    """

    def __init__(self, client: str, workers: int) -> None:
        self.client = client
        self.workers = workers
        self.revision: Revision | None = None
        self.turned = False
        self.former: tuple[Layout, str, set[str]] | None = None


class _Life:
    """What of a deployment outlives its epochs.

    Attributes:
        plan: The job's, from where the present epoch goes on.
        held: Up to which time each sink that is open holds its outputs.
        started: For each process of a role, how often it was started again.
    """

    def __init__(
        self,
        plan: Plan,
        history: History | None,
        transport: Transport,
        post: Post,
        supervisor: Supervisor,
        edges: AsyncExitStack,
        claim: Claim,
        bootstrap: Mapping[str, Any],
    ) -> None:
        self.plan, self.history, self.transport, self.post = plan, history, transport, post
        self.supervisor, self.edges, self.claim, self.bootstrap = supervisor, edges, claim, bootstrap
        self.held: dict[str, int] = {}
        self.started: dict[tuple[str, int], int] = {}


_FAULTS: Final = frozenset(
    ("PeerGoneError", "SendTimeout", "TransportClosedError", "ConnectError", "FrameError", "CorruptError")
)
"""Errors of a node that a new epoch may mend."""


def _too_many(error: FlameError, faults: int, deploy: DeployTable) -> JobError:
    """The end of a job that has met one fault too many: the last one, and how many there were."""
    return JobError(
        f"{error.what}\n  the job gives up: {faults} faults within {deploy.restart_window_s:g} s "
        f"(deploy.restarts is {deploy.restarts})",
        hint="What was delivered is right, and the state is kept: mend what the last lines tell of, and run it again.",
    )


def importable(layout: Layout) -> tuple[str, str]:
    """Where another process finds the flow: a reference, and the folder it is relative to.

    Raises:
        ConfigError: Nowhere: the flow is no module-level variable.
    """
    reference = layout.flow.reference
    if reference is None:
        raise ConfigError(
            f"flow {layout.flow.name!r} cannot be imported by other processes",
            hint="Make it a module-level variable of a file, and run that file: flamestream run FILE.py",
            path="job.flow",
        )
    module, _, name = reference.partition(":")
    file = getattr(sys.modules[module], "__file__", None)
    if "." not in module and file:
        return f"{Path(file).resolve()}:{name}", str(Path.cwd())
    return reference, str(Path.cwd())


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait((task,))
