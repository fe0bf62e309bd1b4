"""What a running job is asked to change: how many workers it has, which version of the flow it runs (paper 004, ticks).

A change is prepared while the job runs, and made between two epochs. One at a time; whoever asked is answered when the
job moves again. A version that cannot start is taken back: its forerunner's nodes have waited, and go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from flamecore.acceptance import accept
from flamecore.crew import Crew, wanted
from flamecore.epoch import Epoch, FaultError, TurnError
from flamecore.errors import FlameError, JobError
from flamecore.failure import describe
from flamecore.hashing import owners
from flamecore.life import Life
from flamecore.messages import Refusal, Rescale, Status, Stop, Upgrade
from flamecore.reception import ENDED
from flamecore.revision import Revision, sinks_that_stay
from flamecore.runner import aside

if TYPE_CHECKING:
    from flamecore.layout import Layout

_TRIES: Final = 3
"""How often processes are started for another version of the flow, if they die before they have come."""

_FAULT: Final = "the job has met a fault meanwhile"


class Runs(Protocol):
    """What runs the epochs."""

    @property
    def epoch(self) -> Epoch | None:
        """The present one."""
        ...

    async def halt(self, epoch: Epoch) -> None:
        """End it everywhere."""
        ...

    async def until(
        self, condition: Callable[[], bool], epoch: Epoch, what: str, late: Callable[[], Iterable[str]] = ...
    ) -> None:
        """Wait for nodes."""
        ...


def _forget(importing: asyncio.Future[Revision]) -> None:
    """Let go of a version that comes too late."""
    if not importing.cancelled() and importing.exception() is None:
        importing.result().forget()


@dataclass(slots=True)
class _Request:
    """What a client has asked for.

    Attributes:
        client: Who waits for the answer.
        workers: How many there are to be.
        revision: Another version to go on with; None: the same.
        turned: The change is being made.
        former: As long as that can be gone back to: the version before, its fingerprint, where it is found, and the
            names of its nodes.
    """

    client: str
    workers: int
    revision: Revision | None = None
    turned: bool = False
    former: tuple[Layout, str, tuple[str, str], set[str]] | None = None


class Changes:
    """Prepares and makes what clients ask for.

    Args:
        runs: Runs the epochs.
        life: What changes.
        crew: The job's processes.
        revise: Makes the version that it is asked to go on with (`flamecore.upgrading.revise`).
    """

    def __init__(self, runs: Runs, life: Life, crew: Crew, revise: Callable[[Layout, Upgrade], Revision]) -> None:
        self._runs = runs
        self._life = life
        self._crew = crew
        self._members = crew.members
        self._revise = revise
        self._request: _Request | None = None
        self._importing: asyncio.Future[Revision] | None = None

    # -- while the job runs ----------------------------------------------------------------------------------------

    async def asked(self, client: str, message: Rescale | Upgrade) -> None:
        """Do what was asked for; whoever asked is told if it cannot be done, and the job goes on.

        Raises:
            Exception: Something unexpected; whoever asked is told that too.
        """
        work: Awaitable[None]
        if isinstance(message, Rescale):
            work = self._rescale(client, message.workers)
        else:
            work = self._upgrade(client, message)
        try:
            await work
        except FaultError as error:  # what it would say of the end of the job is not so
            self._failed(client, f"{_FAULT}: {error.error.what}")
        except (FlameError, TurnError) as error:
            self._failed(client, "\n".join([str(error), *getattr(error, "__notes__", ())]))
        except Exception as error:
            self._failed(client, f"it has failed: {describe(error)}")
            raise

    def _failed(self, client: str, why: str) -> None:
        if self._request is not None and self._request.client == client:
            self.refuse(why)
        else:
            self._crew.answer(client, Refusal(why))

    async def _rescale(self, client: str, workers: int) -> None:
        """Go on with another number of workers, from a snapshot that is taken now."""
        try:
            owners(workers)
        except ValueError as error:
            return self._crew.answer(client, Refusal(str(error)))
        request = _Request(client, workers)
        epoch = self._taken_on(request)
        if epoch is None:
            return None
        # Whoever is to come comes before the pause.
        life, members = self._life, self._members
        await self._crew.fill({**wanted(life.plan, life.layout), "worker": workers})
        await self._runs.until(lambda: len(members.named("worker")) >= workers or epoch.outcome.done(), epoch, "joined")
        if epoch.outcome.done():
            return self.refuse(ENDED)
        await epoch.commit()
        if self._still(request, epoch):
            epoch.fail(TurnError())
        return None

    async def _upgrade(self, client: str, asked: Upgrade) -> None:
        """Go on with another version of the flow, where the former has done all that it has read."""
        life, members = self._life, self._members
        request = _Request(client, life.settings.workers)
        epoch = self._taken_on(request)
        if epoch is None:
            return None
        if self._importing is not None:  # for another request, which was refused meanwhile
            await self._imported(self._importing)
            if self._request is not request:
                return None
        await epoch.commit()  # what the new version is held against is what there is now
        self._importing = importing = aside(partial(self._revise, life.layout, asked))
        try:
            await self._imported(importing)
        except JobError:
            importing.add_done_callback(_forget)
            raise
        request.revision = revision = importing.result()
        if self._request is not request:
            return revision.forget()
        plan = replace(life.plan, graph=revision.layout.sound_graph)
        fresh: set[str] = set()
        turning = False
        try:
            await self._gather(epoch, wanted(plan, revision.layout), fresh)
            turning = self._still(request, epoch) and epoch.turn()
        finally:
            if not turning:
                self._crew.dismiss_started(fresh)
        if not turning:
            return self.refuse(ENDED)
        for name in members.hosting("worker"):
            self._crew.tell(name, Stop(True))
        return None

    async def _imported(self, importing: asyncio.Future[Revision]) -> None:
        """Wait until a version has been imported, or could not be.

        Raises:
            JobError: It takes too long.
        """
        limit_s = self._life.layout.config.deploy.start_timeout_s
        await asyncio.wait((importing,), timeout=limit_s)
        if not importing.done():
            raise JobError(
                f"the flow has not been imported after {limit_s:g} s; until it has, no other version can be",
                hint="Does one of its modules wait for something? deploy.start_timeout_s says how long it may take.",
            )

    def _taken_on(self, request: _Request) -> Epoch | None:
        """Take on what a client asks for, if the job is one that can be changed, and nobody else is at it.

        Returns:
            The present epoch; None: it cannot be, and the client has been told.
        """
        epoch = self._runs.epoch
        text = ""
        if self._life.history is None:
            text = "the job keeps no state, so it cannot be changed while it runs; configure [state]"
        elif self._request is not None or epoch is None or epoch.outcome.done():
            text = "the job is just being changed, or ends; try again"
        if text:
            self._crew.answer(request.client, Refusal(text))
            return None
        self._request = request
        return epoch

    def _still(self, request: _Request, epoch: Epoch) -> bool:
        """Whether what was asked for can be done yet; whoever asked is told if not."""
        if self._request is not request:
            return False
        if epoch is not self._runs.epoch or epoch.outcome.done() or not epoch.begun:
            self.refuse(f"{_FAULT}, or ends; try again")
            return False
        return True

    async def _gather(self, epoch: Epoch, count_of: Mapping[str, int], fresh: set[str]) -> None:
        """Have nodes come that have imported nothing yet, besides those that run.

        Args:
            epoch: The present one.
            count_of: How many of each role.
            fresh: To it the names are added of those that are started for this.

        Raises:
            JobError: They do not come.
        """
        members, crew = self._members, self._crew
        if crew.bootstrap is None:
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
            members.resting |= {name for names in idle.values() for name in names}
            return
        old = frozenset(members.nodes)

        def gone() -> set[str]:
            return fresh.difference(crew.host.running())

        def missing() -> set[str]:
            return fresh.difference(members.nodes)

        for _ in range(_TRIES):  # one may die before it has come
            fresh -= gone()
            fresh |= await crew.fill(count_of, beside=old)
            await self._runs.until(lambda: not missing() or bool(gone()), epoch, "joined", missing)
            if not gone():
                return
        raise JobError(f"new worker processes have died {_TRIES} times before they joined")

    def refuse(self, why: str) -> None:
        """Let go of what was asked for, as long as it is not done."""
        request = self._request
        if request is None or request.turned:
            return
        self._request = None
        if request.revision is not None:
            request.revision.forget()
        self._crew.dismiss_resting()
        self._crew.answer(request.client, Refusal(why))

    # -- between two epochs ----------------------------------------------------------------------------------------

    async def turn(self, epoch: Epoch) -> None:
        """End the epoch, and change what was asked for."""
        request = self._request
        await self._runs.halt(epoch)
        if request is None:  # refused when the fronts were stopping: they go on as they were
            return await self._life.go_back()
        request.turned = True
        if request.revision is not None:
            return await self._take_on(request, request.revision, epoch)
        self._crew.dismiss(self._members.named("worker")[request.workers :])
        return await self._life.rescale(request.workers)

    async def _take_on(self, request: _Request, revision: Revision, epoch: Epoch) -> None:
        """Go on with another version: its nodes come in the place of those of the former, which rest until it runs."""
        life, members = self._life, self._members
        stay = sinks_that_stay(life.layout, revision.layout)
        request.former = life.layout, life.code, life.place, set(members.nodes) - members.resting
        await life.close_sinks(stay)
        revision.layout.keep_sinks(life.layout, stay)
        members.resting = set(request.former[-1])
        life.adopt(revision.layout, revision.code, revision.place)
        try:
            if revision.plan is not None and revision.plan.loss:
                assert life.history is not None
                await accept(life.history.store, life.history.identity, life.graph, revision.plan.loss)
            await life.look_anew()
        except FlameError as error:
            if not await self.turn_back(error, epoch):
                raise

    async def turn_back(self, error: FlameError, epoch: Epoch) -> bool:
        """Another version could not start: go on with the former, whose nodes have waited.

        Args:
            error: Why it could not.
            epoch: The present one.

        Returns:
            Whether there was one.
        """
        request, life = self._request, self._life
        if request is None or request.former is None or request.revision is None:
            return False
        assert life.history is not None
        former, code, place, nodes = request.former
        if epoch.plan.graph is life.graph:
            await self._runs.halt(epoch)
        await life.close_sinks(sinks_that_stay(former, life.layout))
        request.revision.forget()
        # Sinks that were closed are made again; the others are still those of the former version.
        layout = request.revision.former()
        layout.keep_sinks(former, set(life.held))
        await life.history.take_back()
        life.adopt(layout, code, place)
        self._crew.dismiss(set(self._members.nodes) - nodes)
        self._members.resting.clear()
        await life.look_anew()
        self._request = None
        text = f"the new version could not start, and the job goes on with the former: {error}"
        self._crew.answer(request.client, Refusal(text))
        return True

    def settle(self) -> None:
        """All nodes have loaded their state: from here on there is no way back."""
        if self._request is not None and self._request.former is not None:
            self._request.former = None
            self._crew.dismiss_resting()

    def done(self, epoch: Epoch, pause_ms: float) -> bool:
        """The job moves again. Returns whether that is because of a change; who asked for it is answered.

        Args:
            epoch: The present one.
            pause_ms: How long it stood still.
        """
        request = self._request
        if request is None or not request.turned:  # it has only recovered: what was asked for since is yet to come
            return False
        self._request = None
        plan: dict[str, Any] = {} if request.revision is None else {"plan": list(request.revision.plan_lines())}
        self._crew.answer(request.client, Status({"workers": epoch.plan.workers, "pause_ms": pause_ms, **plan}))
        return True

    def leave(self) -> None:
        """The job ends."""
        if self._request is not None:
            self._crew.answer(self._request.client, Refusal(ENDED))
