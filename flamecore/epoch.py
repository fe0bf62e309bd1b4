"""The supervisor's part of one epoch of a deployment: rears, control, snapshots, and what has become of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from flamecore.acker import AckerPlan
from flamecore.commits import Commits
from flamecore.control import Control
from flamecore.errors import FlameError, TransportError
from flamecore.history import History
from flamecore.messages import CONTROL, Prepared
from flamecore.node import Node
from flamecore.observe import Observers
from flamecore.patience import Patience
from flamecore.plan import Plan
from flamecore.post import Post
from flamecore.rear import Sink
from flamecore.scope import Scope
from flamecore.snapshot import Manifest
from flamecore.transport import Transport

if TYPE_CHECKING:
    from flamecore.layout import Layout


class FaultError(Exception):
    """A part is gone, and the epoch with it: the job can go on in another.

    Args:
        error: What the job ends with if it does not go on.
        blob: What of the state is damaged, if that is the fault.
    """

    def __init__(self, error: FlameError, blob: str = "") -> None:
        super().__init__(str(error))
        self.error = error
        self.blob = blob


class TurnError(Exception):
    """An epoch ends on purpose: the job goes on in another shape."""


class Epoch:
    """One epoch, as the supervisor runs it.

    Args:
        name: Of the epoch; no other of this job has it.
        plan: The job's, from where this epoch goes on.
        layout: The job's.
        transport: Carries messages; it outlives the epoch.
        observers: Told of events.
        patience: Of the job, with its sinks.
        failing: Told of the error when a record is known to end the job: there is no use in reading on. Twice, perhaps:
            the second time it is what the epoch ends with.
        taken: Told of every snapshot.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        layout: Layout,
        transport: Transport,
        observers: Observers,
        *,
        patience: Patience,
        failing: Callable[[FlameError], None],
        taken: Callable[[Manifest], None],
    ) -> None:
        self.name = name
        self.plan = plan
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.outcome.add_done_callback(_heed)  # an epoch that is over already may fail once more
        self.created = time.monotonic()
        self.moved = asyncio.Event()
        """Set when something has been delivered in this epoch."""
        self.node = Node(plan, Scope(transport, name), fail=self.fail, observers=observers, patience=patience)
        self._layout = layout
        self._scope = Scope(transport, name)
        self._control = Control(plan)
        self._failing, self._taken = failing, taken
        self._commits: Commits | None = None
        self.begun = False
        self._finishing = False
        self._turning = False
        self._post: Post | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, sinks: Mapping[str, Sink], held: Mapping[str, int], history: History | None) -> None:
        """Bind everything, and listen.

        Args:
            sinks: By name, open.
            held: Up to which time each holds its outputs.
            history: Of the job's state.
        """
        layout, plan, node = self._layout, self.plan, self.node
        post = self._post = Post(await self._scope.bind(CONTROL), self.fail)
        for name in plan.rears:
            await node.add_rear(name, sinks[name], held[name])
        if layout.config.deploy.acker == "supervisor":
            acker = layout.acker(acker_plan(plan))
            for index in range(acker.trackers):
                await node.add_tracker(acker, index)
        if history is not None:
            state = layout.settings.state
            assert state is not None
            self._commits = Commits(plan, history, self._control, state, post, node.rears, self._taken)
        self._start(self._hear(post))
        node.listen()

    def begin(self) -> None:
        """The fronts have begun: take snapshots."""
        self.begun = True
        if self._commits is not None:
            self._start(self._commits.run())

    def _start(self, work: asyncio._CoroutineLike[None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    async def _hear(self, post: Post) -> None:
        """Hear of fronts, rears and snapshots: of the job's progress to its end, and beyond, for the last snapshot."""
        control, failing = self._control, False
        while True:
            if not self.outcome.done() and not self._finishing:
                if control.done:
                    self._finishing = True
                    self._start(self._finish())
                elif (error := control.error) is not None:
                    self._failing(error)
                    self.fail(error)
                elif control.failing and not failing and (error := control.expected) is not None:
                    failing = True
                    self._failing(error)
            if control.stored > self.plan.start:
                self.moved.set()
            message = (await post.endpoint.receive()).message
            if self._commits is not None and type(message) is Prepared:
                self._commits.receive(message)
            else:
                control.receive(message)
                if self._commits is not None:
                    self._commits.advance()

    async def commit(self) -> None:
        """Take a snapshot now, if state is kept and there is anything new.

        It is the epoch's own, whoever has asked for it: if it fails, so does the epoch; if that ends meanwhile, it is
        not taken.

        Raises:
            FlameError: It fails.
        """
        if self._commits is not None:
            taking = self._start(self._commits.commit())
            await asyncio.wait((taking,))
            if not taking.cancelled():
                taking.result()

    def turn(self) -> bool:
        """Nothing more is to be read: once all is delivered and in a snapshot, go on in another shape.

        Returns:
            Whether there is time for that still: it has not come to its end.
        """
        self._turning = not self._finishing and not self.outcome.done()
        return self._turning

    async def _finish(self) -> None:
        """It ends well: what was delivered is in a snapshot. Until then it can fail as before."""
        if self._commits is not None:
            await self._commits.finish()
        if self._turning and self._control.stopped:
            self.fail(TurnError())
        if not self.outcome.done():
            self.outcome.set_result(None)

    def fail(self, error: BaseException) -> None:
        """It cannot go on. If a part is out of reach, the job may, in another epoch."""
        if self.outcome.done():
            return
        self.outcome.set_exception(FaultError(error) if isinstance(error, TransportError) else error)

    async def halt(self, rest: Callable[[asyncio.Task[None]], None]) -> dict[str, int]:
        """End before its time. Returns up to which time each rear has delivered.

        Args:
            rest: Given what is still to be done for endpoints whose other side may be gone.

        Raises:
            SinkError: Nobody knows what a sink holds now.
        """
        await self._cancel()
        try:
            await self.node.halt(rest)
        finally:
            if self._post is not None:
                rest(asyncio.create_task(self._post.aclose()))
        return {rear.collector.name: rear.reached for rear in self.node.rears}

    async def aclose(self) -> None:
        """End."""
        await self._cancel()
        await self.node.aclose()
        if self._post is not None:
            await self._post.aclose()

    async def _cancel(self) -> None:
        if not self.outcome.done():
            self.outcome.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _heed(outcome: asyncio.Future[None]) -> None:
    if not outcome.cancelled():
        outcome.exception()


def acker_plan(plan: Plan) -> AckerPlan:
    """What an acker strategy must know of a plan."""
    return AckerPlan(plan.workers, plan.graph.segments, tuple(range(1, len(plan.fronts) + 1)), plan.start)
