"""Changes of a running job: number of workers, version of the flow.

Paper 004, ticks. A change is prepared while the job runs, and made between two epochs. There is one at a time; its
client is answered when the job moves again. A version that cannot start is rolled back: the nodes of the former version
have waited, and go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from flamecore.errors import FlameError, JobError
from flamecore.model.failure import describe
from flamecore.model.hashing import owners
from flamecore.model.messages import Refusal, Rescale, Status, Stop, Upgrade
from flamecore.model.plan import Placement
from flamecore.runtime.cluster.control_plane import ENDED
from flamecore.runtime.cluster.nodes import NodeManager, required_nodes
from flamecore.runtime.cluster.versions.trial import try_version
from flamecore.runtime.cluster.versions.upgrade import FlowVersion, config_of, sinks_that_stay
from flamecore.runtime.engine.epoch import Epoch, FaultError, ReconfigureSignal
from flamecore.runtime.state.accepted_loss import accept
from flamecore.runtime.tasks.aside import in_daemon_thread

if TYPE_CHECKING:
    from flamecore.runtime.config.job_spec import JobSpec


_TRIES: Final = 3
"""Most starts of processes for another version of the flow, if they die before they have joined."""

_FAULT: Final = "the job has met a fault meanwhile"


def _forget(importing: asyncio.Future[FlowVersion]) -> None:
    """Forget a version whose import has ended too late."""
    if not importing.cancelled() and importing.exception() is None:
        importing.result().forget()


@dataclass(slots=True)
class _Request:
    """The request of a client, or of the job itself.

    Attributes:
        client: Address of the client, which waits for the answer; empty: the job moves its own parts.
        workers: The requested number of workers.
        version: The version to switch to; None: the same.
        placement: The placement to switch to; None: that of the number of workers.
        applied: Whether the change is being made.
        former: The former version, its fingerprint, its place, and the names of its nodes; None: there is none to go
            back to.
    """

    client: str
    workers: int
    version: FlowVersion | None = None
    placement: Placement | None = None
    applied: bool = False
    former: tuple[JobSpec, str, tuple[str, str], set[str]] | None = None


class Reconfiguration:
    """The reconfiguration of a job on request of clients.

    Args:
        nodes: The job's processes, with the context that changes.
        load_version: Makes the version to switch to (`flamecore.runtime.cluster.versions.upgrade.load_version`).
    """

    def __init__(
        self,
        nodes: NodeManager,
        load_version: Callable[[JobSpec, Upgrade], FlowVersion],
    ) -> None:
        self._nodes = nodes
        self._context = nodes.context
        self._members = nodes.members
        self._load_version = load_version
        self._request: _Request | None = None
        self._importing: asyncio.Future[FlowVersion] | None = None

    # -- while the job runs ----------------------------------------------------------------------------------------

    async def asked(self, client: str, message: Rescale | Upgrade, epoch: Epoch | None) -> None:
        """Serve a request; if that fails, tell its client, and let the job go on.

        Args:
            client: Address of the client.
            message: The request.
            epoch: The present epoch, if there is one.

        Raises:
            Exception: An unexpected error, which the client is told, too.
        """
        work: Awaitable[None]
        if isinstance(message, Rescale):
            work = self._rescale(client, message.workers, epoch)
        else:
            work = self._upgrade(client, message, epoch)
        try:
            await work
        except FaultError as error:  # its own text and hint say that the job has ended, and it has not
            self._failed(client, f"{_FAULT}: {error.error.what}")
        except (FlameError, ReconfigureSignal) as error:
            self._failed(client, "\n".join([str(error), *getattr(error, "__notes__", ())]))
        except Exception as error:
            self._failed(client, f"it has failed: {describe(error)}")
            raise

    def _failed(self, client: str, why: str) -> None:
        if self._request is not None and self._request.client == client:
            self.refuse(why)
        else:
            self._nodes.answer(client, Refusal(why))

    async def _rescale(self, client: str, workers: int, present: Epoch | None) -> None:
        """Prepare another number of workers, from a snapshot that is taken now."""
        try:
            owners(workers)
        except ValueError as error:
            return self._nodes.answer(client, Refusal(str(error)))
        request = _Request(client, workers)
        epoch = self._accept(request, present)
        if epoch is None:
            return None
        # New nodes start before the pause, so that the pause is short.
        members, nodes = self._members, self._nodes
        await nodes.start_missing({**nodes.required, "worker": workers})
        await nodes.wait_until(lambda: len(members.named("worker")) >= workers or epoch.outcome.done(), epoch, "joined")
        if epoch.outcome.done():
            return self.refuse(ENDED)
        await self._turn(request, epoch)
        return None

    async def move(self, placement: Placement, present: Epoch) -> None:
        """Prepare another placement on the same workers, from a new snapshot.

        If anything else happens meanwhile, nothing changes.

        Args:
            placement: The placement.
            present: The present epoch.
        """
        request = _Request("", self._context.settings.workers, placement=placement)
        epoch = self._accept(request, present)
        if epoch is None:
            return
        try:
            await self._turn(request, epoch)
        except (FlameError, FaultError, ReconfigureSignal) as error:  # the epoch has failed, and acts on it itself
            self.refuse(str(error))

    async def _turn(self, request: _Request, epoch: Epoch) -> None:
        """End the epoch for a request, behind a snapshot."""
        # Now, so that the next epoch has little to repeat.
        await epoch.commit()
        if self._is_current(request, epoch):
            epoch.fail(ReconfigureSignal())

    async def _upgrade(self, client: str, asked: Upgrade, present: Epoch | None) -> None:
        """Prepare another version of the flow.

        It begins where the former one has finished everything that it has read.
        """
        context, members = self._context, self._members
        request = _Request(client, context.settings.workers)
        epoch = self._accept(request, present)
        if epoch is None:
            return None
        if self._importing is not None:  # for another request, which was refused meanwhile
            await self._imported(self._importing)
            if self._request is not request:
                return None
        await try_version(config_of(context.spec.config, asked), context.spec.config.deploy.start_timeout_s)
        if not self._is_current(request, epoch):
            return None
        await epoch.commit(first=True)  # the new version is compared with a snapshot
        # An import runs code of the flow and may hang even now, and the control must go on: so in a thread.
        # It cannot be cancelled either: so in one that does not keep the process from ending.
        self._importing = importing = in_daemon_thread(partial(self._load_version, context.spec, asked))
        try:
            await self._imported(importing)
        except JobError:
            importing.add_done_callback(_forget)
            raise
        request.version = version = importing.result()
        if self._request is not request:
            return version.forget()
        plan = replace(context.plan, graph=version.spec.checked_graph)
        fresh: set[str] = set()
        turning = False
        try:
            await self._gather(epoch, required_nodes(plan, version.spec), fresh)
            turning = self._is_current(request, epoch) and epoch.begin_reconfiguration()
        finally:
            if not turning:
                self._nodes.dismiss_started(fresh)
        if not turning:
            return self.refuse(ENDED)
        for name in members.hosting("worker"):
            self._nodes.tell(name, Stop(True))
        return None

    async def _imported(self, importing: asyncio.Future[FlowVersion]) -> None:
        """Wait until a version has been imported, or has failed to be.

        Raises:
            JobError: It takes too long.
        """
        limit_s = self._context.spec.config.deploy.start_timeout_s
        await asyncio.wait((importing,), timeout=limit_s)
        if not importing.done():
            raise JobError(
                f"the flow has not been imported after {limit_s:g} s; until it has, no other version can be",
                hint="Does one of its modules wait for something? deploy.start_timeout_s says how long it may take.",
            )

    def _accept(self, request: _Request, epoch: Epoch | None) -> Epoch | None:
        """Accept a request, if the job can be changed and no other change is under way.

        Returns:
            The present epoch; None: the request was refused, and its client has been told.
        """
        text = ""
        if self._context.history is None:
            text = "the job keeps no state, so it cannot be changed while it runs; configure [state]"
        elif self._request is not None or epoch is None or epoch.outcome.done():
            text = "the job is just being changed, or ends; try again"
        if text:
            self._answer(request, Refusal(text))
            return None
        self._request = request
        return epoch

    def _answer(self, request: _Request, message: Status | Refusal) -> None:
        """Answer the client of a request, if it has one."""
        if request.client:
            self._nodes.answer(request.client, message)

    def _is_current(self, request: _Request, epoch: Epoch) -> bool:
        """Return whether a request can still be served; tell its client if not."""
        if self._request is not request:
            return False
        if epoch.outcome.done() or not epoch.begun:
            self.refuse(f"{_FAULT}, or ends; try again")
            return False
        return True

    async def _gather(self, epoch: Epoch, count_of: Mapping[str, int], fresh: set[str]) -> None:
        """Start or find nodes that have imported nothing yet, besides those that run.

        Args:
            epoch: The present epoch.
            count_of: Number of nodes of each role.
            fresh: Gets the names of the nodes that are started here.

        Raises:
            JobError: There are not enough of them.
        """
        members, nodes = self._members, self._nodes
        if nodes.bootstrap is None:
            busy = set(members.hosts.values())
            idle = {role: [name for name in members.named(role) if name not in busy] for role in count_of}
            for role, count in count_of.items():
                if len(idle[role]) < count:
                    raise JobError(
                        f"the nodes of this job were started by hand, and import the flow once: {count} new ones of "
                        f"role {role} are needed, and {len(idle[role])} are there",
                        hint=f"Start {count - len(idle[role])} more beside those that run "
                        f"(flamestream {role} --join …), and ask again; the former end when the new version runs.",
                    )
            members.standby |= {name for names in idle.values() for name in names}
            return
        old = frozenset(members.nodes)

        def gone() -> set[str]:
            return fresh.difference(nodes.host.running())

        def missing() -> set[str]:
            return fresh.difference(members.nodes)

        for _ in range(_TRIES):  # one may die before it has joined
            fresh -= gone()
            fresh |= await nodes.start_missing(count_of, beside=old)
            await nodes.wait_until(lambda: not missing() or bool(gone()), epoch, "joined", missing)
            if not gone():
                return
        raise JobError(f"new worker processes have died {_TRIES} times before they joined")

    def refuse(self, why: str) -> None:
        """Drop the present request, unless it is being applied, and tell its client."""
        request = self._request
        if request is None or request.applied:
            return
        self._request = None
        if request.version is not None:
            request.version.forget()
        self._nodes.dismiss_standby()
        self._answer(request, Refusal(why))

    # -- between two epochs ----------------------------------------------------------------------------------------

    async def apply(self) -> None:
        """Apply the request, as the epoch has ended for it."""
        request = self._request
        if request is None:  # refused when the fronts were stopping: they go on as they were
            return await self._context.rewind()
        request.applied = True
        if request.version is not None:
            return await self._apply_version(request, request.version)
        if request.placement is not None:
            return await self._context.move(request.placement)
        self._nodes.dismiss(self._members.named("worker")[request.workers :])
        return await self._context.rescale(request.workers)

    async def _apply_version(self, request: _Request, version: FlowVersion) -> None:
        """Switch to another version.

        The nodes of the former one are on standby until it runs.
        """
        context, members = self._context, self._members
        stay = sinks_that_stay(context.spec, version.spec)
        request.former = context.spec, context.code, context.place, set(members.nodes) - members.standby
        await context.close_sinks(stay)
        version.spec.keep_sinks(context.spec, stay)
        members.standby = set(request.former[-1])
        context.switch_version(version.spec, version.code, version.place)
        try:
            if version.plan is not None and version.plan.loss:
                assert context.history is not None
                await accept(context.history.store, context.history.identity, context.graph, version.plan.loss)
            await context.rescan()
        except FlameError as error:
            await self.roll_back(error)

    @property
    def on_trial(self) -> bool:
        """Return whether another version is being started, and the former one waits."""
        return self._request is not None and self._request.former is not None

    async def roll_back(self, error: FlameError) -> None:
        """Go back to the former version, as the new one could not start; see `on_trial`.

        The nodes of the former version have waited.

        Args:
            error: The reason.
        """
        request, context = self._request, self._context
        assert request is not None
        assert request.former is not None
        assert request.version is not None
        assert context.history is not None
        former, code, place, former_nodes = request.former
        await context.close_sinks(sinks_that_stay(former, context.spec))
        request.version.forget()
        # Sinks that were closed are made again; the others are still those of the former version.
        spec = request.version.former()
        spec.keep_sinks(former, set(context.delivered_up_to))
        await context.history.take_back()
        context.switch_version(spec, code, place)
        self._nodes.dismiss(set(self._members.nodes) - former_nodes)
        self._members.standby.clear()
        await context.rescan()
        self._request = None
        text = f"the new version could not start, and the job continues with the former: {error}"
        self._answer(request, Refusal(text))

    def commit(self) -> None:
        """Make the change final, as all nodes have loaded their state."""
        if self._request is not None and self._request.former is not None:
            self._request.former = None
            self._nodes.dismiss_standby()

    def done(self, epoch: Epoch, pause_ms: float) -> bool:
        """Note that the job moves again, and answer the client of the change.

        Args:
            epoch: The present epoch.
            pause_ms: Length of the pause, in milliseconds.

        Returns:
            Whether it moves because of a change.
        """
        request = self._request
        if request is None or not request.applied:  # it has only recovered: a later request is yet to be applied
            return False
        self._request = None
        plan: dict[str, object] = {} if request.version is None else {"plan": list(request.version.plan_lines())}
        self._answer(request, Status({"workers": epoch.plan.workers, "pause_ms": pause_ms, **plan}))
        return True

    def leave(self) -> None:
        """Tell the client of a request that the job ends."""
        if self._request is not None:
            self._answer(self._request, Refusal(ENDED))
