"""One epoch of a job: the control loop, beside the parts in its process.

An embedded job has all its parts there, and one epoch. In a job on several processes, the supervisor has the rears and
perhaps the trackers, and a failure is followed by another epoch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from flamecore.abc.acker import Acker
from flamecore.abc.hooks import Observers
from flamecore.abc.sink import Encode, Sink
from flamecore.errors import FlameError, TransportError
from flamecore.model.messages import (
    CONTROL,
    Delivered,
    Failing,
    Found,
    FoundNothing,
    FrontEnded,
    Full,
    Prepared,
    Reached,
)
from flamecore.model.plan import Plan
from flamecore.model.settings import StateTable
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.engine.node import Bindable, Node
from flamecore.runtime.engine.snapshots.coordinator import SnapshotCoordinator
from flamecore.runtime.operators.table import Operators
from flamecore.runtime.parts.completion import Completion
from flamecore.runtime.parts.search import Search, must_search
from flamecore.runtime.state.format import Manifest
from flamecore.runtime.state.history import History
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.runtime.tasks.door import Door, anything
from flamecore.runtime.tasks.event_loop import ignore_outcome, start
from flamecore.runtime.tasks.rear_task import Opening
from flamecore.runtime.tasks.sender import Sender


class FaultError(Exception):
    """A part is gone, and the epoch with it; the job can continue in another epoch.

    Args:
        error: The error of the job if it does not continue.
        blob: The damaged blob of the state, if that is the fault.
    """

    def __init__(self, error: FlameError, blob: str = "") -> None:
        super().__init__(str(error))
        self.error = error
        self.blob = blob


class ReconfigureSignal(Exception):
    """An epoch ends on purpose; the job continues with another shape."""


class FirstDelivery:
    """The first output that an epoch delivers, and the time since which it is awaited."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._seen = asyncio.Event()

    @property
    def seen(self) -> bool:
        """Return whether an output has been delivered in this epoch."""
        return self._seen.is_set()

    def note(self) -> None:
        """Note that an output has been delivered."""
        self._seen.set()

    async def wait(self) -> None:
        """Wait for it."""
        await self._seen.wait()

    def awaited_less_than(self, limit_s: float) -> bool:
        """Return whether it has not come, and has not had that long to come."""
        return not self.seen and time.monotonic() < self._since + limit_s


class Epoch:
    """One epoch, in the process that has the control.

    Args:
        plan: The job's plan, from the start of this epoch.
        transport: The started transport, with addresses of this epoch's own.
        observers: Observers of events.
        name: Name of the epoch, unique in this job.
        deadlines: The job's deadlines.
        encoders, operators, codec: Those of the workers in this process; see `flamecore.runtime.engine.node.Node`.

    Attributes:
        outcome: Its end: done, or with the error that has ended it.
        begun: Whether the fronts have begun.
    """

    def __init__(
        self,
        plan: Plan,
        transport: Bindable,
        observers: Observers,
        *,
        name: str = "",
        deadlines: Deadlines,
        encoders: Mapping[str, Encode] = MappingProxyType({}),
        operators: Operators = MappingProxyType({}),
        codec: Codec | None = None,
    ) -> None:
        self.name = name
        self.plan = plan
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.outcome.add_done_callback(ignore_outcome)  # an epoch that is over may fail again
        self.first_delivery = FirstDelivery()
        self.node = Node(
            plan,
            transport,
            fail=self.fail,
            observers=observers,
            encoders=encoders,
            operators=operators,
            deadlines=deadlines,
            codec=codec,
        )
        self._completion = Completion(plan)
        self._coordinator: SnapshotCoordinator | None = None
        self._search: Search | None = None
        self.begun = False
        self._finishing = False
        self._reconfiguring = False
        self._sender: Sender | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(
        self,
        sinks: Mapping[str, Sink],
        delivered_up_to: Mapping[str, int],
        history: History | None,
        *,
        late: Mapping[str, Opening] = MappingProxyType({}),
        acker: Acker | None = None,
        workers: Sequence[int] = (),
        grants: Mapping[str, str] = MappingProxyType({}),
        failing: Callable[[FlameError], None],
        taken: Callable[[Manifest], None] = lambda manifest: None,
    ) -> None:
        """Bind the control and the parts of this process, and start listening.

        Args:
            sinks: The sinks, by name.
            delivered_up_to: For each sink the time up to which it holds its outputs.
            history: History of the job's state; None: it keeps none.
            late: Openings of those sinks that are opened with their first output.
            acker: Strategy whose trackers are here; None: they are elsewhere.
            workers: Workers that are here, with open sources, and an acker.
            grants: Grants of the sinks in partitions, if there are workers.
            failing: Function called with the error when a record is known to end the job, so reading on is useless. It
                may be called twice: the second time with the error that ends the epoch.
            taken: Function called with every snapshot.
        """
        plan, node = self.plan, self.node
        stored = partial(self._stored, failing)
        sender = self._sender = await node.senders.open(CONTROL)
        # All parts are bound before the first one listens, so none sends to an address that is not
        # there yet.
        if acker is not None:
            for index in range(acker.trackers):
                await node.add_tracker(acker, index)
            for index in workers:
                await node.add_worker(acker, index)
        await node.add_partitions(sinks, grants)
        for name in plan.rears:
            await node.add_rear(name, sinks[name], delivered_up_to[name], stored, late.get(name))
        if history is not None:
            self._search = Search(plan) if must_search(plan, history.resume()) else None
            state = plan.settings.state or StateTable()
            self._coordinator = SnapshotCoordinator(plan, history, self._completion, state, sender, node.rears, taken)
        self._start(self._hear(sender, failing))
        node.listen()

    def begin(self) -> None:
        """Begin to take snapshots, and start the fronts here; the others begin, too."""
        self.begun = True
        if self._coordinator is not None:
            self._start(self._coordinator.run())
        self.node.begin()

    def _start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = start(work, self.fail)
        self._tasks.append(task)
        return task

    async def _hear(self, sender: Sender, failing: Callable[[FlameError], None]) -> None:
        """Process messages about progress, to the job's end and its last snapshot."""
        completion, door = self._completion, _door(self.plan)
        while True:
            # Looked at before each wait, not after a message: a job without partitions gets none, and ends, too.
            self._look(failing)
            delivery = await sender.endpoint.receive()
            if not door.admits(*delivery):
                continue
            message = delivery.message
            if self._search is not None and isinstance(message, Found | FoundNothing | FrontEnded):
                if (word := self._search.receive(message)) is not None:
                    for worker in range(self.plan.workers):
                        sender.send(f"worker/{worker}", word)
                if not isinstance(message, FrontEnded):
                    continue
            if self._coordinator is not None and type(message) is Prepared:
                self._coordinator.receive(message)
            elif self._coordinator is not None and type(message) is Full:
                self._coordinator.hasten()
            else:
                completion.receive(message)
                if self._coordinator is not None:
                    self._coordinator.advance()

    # Called, and not sent: the rears are always in the process of the control, and a message for each batch would be
    # a fifth of those of a job in one process.
    def _stored(self, failing: Callable[[FlameError], None], rear: str, time: int) -> None:
        """Note that a rear has stored all outputs below a time."""
        self._completion.receive(Delivered(rear, time))
        if self._coordinator is not None:
            self._coordinator.advance()
        self._look(failing)

    def _look(self, failing: Callable[[FlameError], None]) -> None:
        """Look whether the job is over, will fail, or has delivered its first output."""
        completion = self._completion
        if not self.outcome.done() and not self._finishing:
            if completion.done:
                self._finishing = True
                self._start(self._finish())
            elif (error := completion.error) is not None:
                failing(error)
                self.fail(error)
            elif (error := completion.announce()) is not None:
                failing(error)
        if not self.first_delivery.seen and completion.stored > self.plan.start:
            self.first_delivery.note()

    async def commit(self, *, first: bool = False) -> None:
        """Take a snapshot now, if state is kept and there is anything new.

        The snapshot belongs to the epoch, whatever asked for it: if it fails, so does the epoch; if the epoch ends
        meanwhile, it is not taken.

        Args:
            first: Whether to take the first one even without progress: it records which operations keep state.

        Raises:
            FlameError: The snapshot fails.
        """
        if self._coordinator is not None:
            # A task of the epoch, not of the caller: a command that asks for a snapshot and goes
            # must not cancel it half-way.
            taking = self._start(self._coordinator.commit(first=first))
            await asyncio.wait((taking,))
            if not taking.cancelled():
                taking.result()

    def begin_reconfiguration(self) -> bool:
        """Note that the epoch ends with a change of shape, once all is in a snapshot.

        The caller stops reading.

        Returns:
            Whether this is still possible: the epoch is neither over nor finishing.
        """
        self._reconfiguring = not self._finishing and not self.outcome.done()
        return self._reconfiguring

    async def _finish(self) -> None:
        """Take the last snapshot, and end well; until then the epoch can still fail."""
        if self._coordinator is not None:
            await self._coordinator.finish()
        if self._reconfiguring and self._completion.stopped:
            self.fail(ReconfigureSignal())
        if not self.outcome.done():
            self.outcome.set_result(None)

    def fail(self, error: BaseException) -> None:
        """End the epoch with an error.

        If a part is out of reach, it is a `FaultError`, and the job may continue in another epoch.
        """
        # The first outcome counts: an error of a part of an ended epoch, as it closes, is a consequence.
        if self.outcome.done():
            return
        self.outcome.set_exception(FaultError(error) if isinstance(error, TransportError) else error)

    async def halt(self, rest: Callable[[asyncio.Task[None]], None]) -> dict[str, int]:
        """End early; return the time up to which each sink holds its outputs.

        Args:
            rest: Function that takes the closing tasks of endpoints, whose peers may be gone.

        Raises:
            SinkError: The contents of a sink are not known now.
        """
        await self._cancel()
        try:
            await self.node.halt(rest)
        finally:
            if self._sender is not None:
                rest(asyncio.create_task(self._sender.aclose()))
        return {rear.collector.name: rear.delivered_up_to for rear in self.node.rears}

    async def aclose(self) -> None:
        """End all parts, and close their endpoints."""
        await self._cancel()
        try:
            await self.node.aclose()
        finally:
            if self._sender is not None:
                await self._sender.aclose()

    async def _cancel(self) -> None:
        if not self.outcome.done():
            self.outcome.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _door(plan: Plan) -> Door:
    """Return the filter of messages about a job's progress."""
    rears = frozenset(plan.rears)
    return Door(
        CONTROL,
        {
            Reached: lambda message: message.rear in rears,
            FrontEnded: lambda message: 0 < message.front <= len(plan.fronts),
            FoundNothing: lambda message: 0 < message.front <= len(plan.fronts),
            Found: lambda message: 0 <= message.worker < plan.workers,
            Failing: anything,
            Full: lambda message: 0 <= message.worker < plan.workers,
            Prepared: lambda message: 0 <= message.worker < plan.workers,
        },
    )
