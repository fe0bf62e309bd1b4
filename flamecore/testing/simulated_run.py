"""One run of a job in the made-up world of `flamecore.testing.crashes`: in one process, or on several.

On several it is what `flamecore.deployment` does, without the processes: a supervisor with the rears and the control,
a node for each worker, and new epochs after faults.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from flamecore.clock import Front
from flamecore.codec import Codec
from flamecore.commits import StateSettings
from flamecore.epoch import Epoch, FaultError, acker_plan
from flamecore.errors import FlameError, JobError
from flamecore.history import History
from flamecore.job import Job, JobSettings, make_plan, open_history, open_sinks
from flamecore.node import Node
from flamecore.observe import Observers
from flamecore.plan import Plan
from flamecore.recovery import Kept
from flamecore.scope import Scope
from flamecore.testing.world import Process, SimulatedStore, SimulatedTransport

if TYPE_CHECKING:
    from flamecore.testing.crashes import Crashes

_HALT_S = 5.0
_MAY_MEND = ("CorruptError", "PeerGoneError", "TransportClosedError")


class Run:
    """A start of the job, to whatever end.

    Args:
        story: What it is part of.
        name: Of the run; no other has it.
    """

    def __init__(self, story: Crashes, name: str) -> None:
        random = story.random
        self.story, self.name = story, name
        self.spread = random.random() < 0.6
        self.workers = random.choice(story.workers)
        self.control = Process(story.world, f"{name}/control")
        self.network = story.network()
        self._acker = story.ackers[random.choice(list(story.ackers))]
        self._trackers = random.choice(("supervisor", "worker"))
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._job: Job | None = None
        self._epoch: Epoch | None = None
        self._nodes: dict[int, tuple[Process, Node]] = {}
        self._processes = [self.control]
        self._draining = False
        self._turned_to: int | None = None
        self._rest: set[asyncio.Task[None]] = set()
        self._watched: list[Front] = []
        self._settings = JobSettings(
            workers=self.workers,
            clock=story.clock,
            on_error=story.on_error,
            max_in_flight=random.choice((2, 10, 4096)),
            seed=random.getrandbits(32),
            state=StateSettings(
                interval_s=random.choice((0.001, 0.01, 0.05)), max_uncommitted=random.choice((3, 20, 1000))
            ),
        )

    # -- for the story -------------------------------------------------------------------------------------------------

    async def play(self) -> str:
        """Run; returns how it ended."""
        task = self.control.start(self._on_several() if self.spread else self._in_one())
        task.add_done_callback(self._done)
        return await self._ended

    def _done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if self._ended.done():
            if self.control.alive:
                self.story.ghost_ended(error)
            return
        try:
            how = self.story.outcome(error)
            self._ended.set_result("drained" if how == "done" and self._draining else how)
        except BaseException as error:  # noqa: BLE001 - for whoever waits
            self._ended.set_exception(error)

    def has(self, process: Process) -> bool:
        """Whether a process is one of this run."""
        return process in self._processes

    def kill(self) -> None:
        """All processes die."""
        for process in self._processes:
            process.kill()
        self._end("killed")

    def abandon(self) -> None:
        """It is taken for dead, and goes on."""
        self._end("abandoned")

    def _end(self, how: str) -> None:
        if not self._ended.done():
            self._ended.set_result(how)

    def drain(self) -> None:
        """Read no more, and end well."""
        self._draining = True
        if self._job is not None:
            self._job.drain()
        for _, node in self._nodes.values():
            node.stop.set()

    def some_worker(self) -> Process:
        """A process with a worker; that of the control if there is none."""
        there = [process for process, _ in self._nodes.values() if process.alive]
        return self.story.random.choice(there) if there else self.control

    def lose(self, process: Process, *, dead: bool) -> None:
        """A process dies, or is taken for dead and goes on for a while."""
        if process is self.control:
            return self.kill()
        loop, random = asyncio.get_running_loop(), self.story.random
        if dead:
            process.kill()
        else:
            loop.call_later(random.choice((0.01, 0.1, 1.0)), process.kill)
        loop.call_later(random.choice((0.0, 0.002, 0.05)), self._lost, process)
        return None

    def _lost(self, process: Process) -> None:
        """The supervisor hears of it."""
        for index, (other, _) in tuple(self._nodes.items()):
            if other is process:
                del self._nodes[index]
        self._fault(FaultError(JobError(f"{process.name} is gone")))

    def cut(self) -> None:
        """Two processes hear no more of each other; the supervisor hears of that."""
        loop, random = asyncio.get_running_loop(), self.story.random
        there = [self.control, *(process for process, _ in self._nodes.values())]
        if len(there) > 1:
            pair = frozenset(random.sample(there, 2))
            self.network.cut.add(pair)
            loop.call_later(random.choice((0.0, 0.002, 0.05)), self._mend, pair)

    def _mend(self, pair: frozenset[Process]) -> None:
        self.network.cut.discard(pair)
        self._fault(FaultError(JobError("a connection is lost")))

    def turn(self, workers: int) -> None:
        """Go on with another number of workers, from a snapshot that is taken now."""
        if self._epoch is not None and self._turned_to is None:
            self.control.start(self._turn(self._epoch, workers))

    async def _turn(self, epoch: Epoch, workers: int) -> None:
        try:
            await epoch.commit()
        except Exception as error:  # noqa: BLE001 - ends the epoch
            epoch.fail(error)
        self._turned_to = workers
        epoch.fail(FaultError(JobError("the job is being changed")))

    def _fault(self, error: BaseException) -> None:
        if self._epoch is not None and self.control.alive:
            self._epoch.fail(error)

    # -- in one process ------------------------------------------------------------------------------------------------

    async def _in_one(self) -> None:
        story = self.story
        job = self._job = Job(
            story.graph,
            sources=story.sources(self.control, self._watch),
            sinks=story.sinks(self.control),
            acker=self._acker,
            transport=partial(SimulatedTransport, self.control, self.network),
            settings=self._settings,
            store=SimulatedStore(self.control),
        )
        if self._draining:
            job.drain()
        await job.run()

    def _watch(self) -> None:
        """Fronts have begun: note the times they give."""
        nodes = [node for _, node in self._nodes.values()]
        if self._job is not None and self._job._node is not None:
            nodes.append(self._job._node)
        for node in nodes:
            for host in node.workers if node.kept is not None else ():
                for front in host.worker.fronts.values():
                    if front not in self._watched:
                        self._watched.append(front)
                        assert node.kept is not None
                        self.story.watch(front, node.kept.resume.epoch)

    # -- on several ----------------------------------------------------------------------------------------------------

    async def _on_several(self) -> None:
        story = self.story
        async with AsyncExitStack() as stack:
            store = SimulatedStore(self.control)
            history = await open_history(stack, store, story.graph, self.workers)
            assert history is not None
            sources = story.sources(self.control, self._watch)
            plan = make_plan(story.graph, sources, self._settings, history=history)
            sinks = story.sinks(self.control)
            edges = await stack.enter_async_context(AsyncExitStack())
            held: dict[str, int] = {}
            transport = SimulatedTransport(self.control, self.network)
            for number in range(1, 1000):
                name = f"{self.name}.{number}"
                epoch = self._epoch = Epoch(
                    name,
                    plan,
                    self._layout(),
                    transport,
                    Observers(()),
                    failing=self._stop,
                    taken=lambda manifest: None,
                )
                try:
                    await self._live(epoch, name, plan, history, sinks, edges, held)
                except FaultError as fault:
                    reached = await epoch.halt(self._see_to)
                    held.update({rear: max(time, held[rear]) for rear, time in reached.items()})
                    await self._halt()
                    if fault.blob and not history.refuse(fault.blob):
                        raise fault.error from fault
                    workers, self._turned_to = self._turned_to or self.workers, None
                    history.workers = self.workers = workers
                    await history.look()
                    if not history.fronts:
                        history.find_fronts(story.graph, sources)
                    plan = replace(plan, start=history.start, workers=workers)
                    self._nodes = {index: each for index, each in self._nodes.items() if index < workers}
                else:
                    return

    def _layout(self) -> Any:
        deploy = SimpleNamespace(acker=self._trackers)
        return SimpleNamespace(config=SimpleNamespace(deploy=deploy), acker=self._acker, settings=self._settings)

    async def _live(
        self,
        epoch: Epoch,
        name: str,
        plan: Plan,
        history: History,
        sinks: dict[str, Any],
        edges: AsyncExitStack,
        held: dict[str, int],
    ) -> None:
        """One epoch, to the end of the job."""
        random = self.story.random
        for index in range(plan.workers):
            process, _ = self._nodes.get(index, (None, None))
            if process is None or not process.alive:
                process = Process(self.story.world, f"{name}/worker-{index}")
                self._processes.append(process)
            seeded = replace(plan, seed=random.getrandbits(32))
            transport = Scope(SimulatedTransport(process, self.network), name)
            self._nodes[index] = process, Node(seeded, transport, fail=partial(self._failed, epoch, process))
        nodes = dict(self._nodes)
        states = [(front.position, front.ended) for front in history.fronts]
        await self._all(
            epoch,
            [
                process.start(node.open_sources(self.story.sources(process, self._watch), [index], states))
                for index, (process, node) in nodes.items()
            ],
        )
        if not held:
            held.update(await open_sinks(edges, sinks, history))
        await history.begin(held)
        await self._all(
            epoch,
            [process.start(self._load(index, process, node, history)) for index, (process, node) in nodes.items()],
        )
        await epoch.open(sinks, held, history)
        for process, node in nodes.values():
            if self._draining:
                node.stop.set()
            process.start(_begin(node))
        epoch.begin()
        await epoch.outcome
        await epoch.aclose()
        await self._halt()

    async def _load(self, index: int, process: Process, node: Node, history: History) -> None:
        most = self._settings.state.max_uncommitted if self._settings.state is not None else 0
        node.kept = Kept(SimulatedStore(process), Codec.of(self.story.graph), history.resume(), most)
        acker = self._acker(acker_plan(node.plan))
        if self._trackers == "worker":
            for tracker in range(index, acker.trackers, node.plan.workers):
                await node.add_tracker(acker, tracker)
        await node.add_worker(acker, index)
        node.listen()

    async def _all(self, epoch: Epoch, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for all nodes, or for the epoch to end."""
        try:
            while not all(task.done() for task in tasks):
                left = [task for task in tasks if not task.done()]
                await asyncio.wait([*left, epoch.outcome], return_when=asyncio.FIRST_COMPLETED)
                if epoch.outcome.done():
                    await epoch.outcome
            if any(task.cancelled() for task in tasks):  # its process died; the supervisor will hear of it
                await epoch.outcome
            for task in tasks:
                task.result()
        except FlameError as error:
            raise _fault_of(error) from error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _halt(self) -> None:
        """End the nodes of an epoch; those that do not answer are taken for dead."""
        tasks = {index: process.start(node.halt(self._see_to)) for index, (process, node) in self._nodes.items()}
        if tasks:
            await asyncio.wait(tasks.values(), timeout=_HALT_S)
        for index, task in tasks.items():
            if not task.done():
                self._nodes.pop(index)[0].kill()

    def _failed(self, epoch: Epoch, process: Process, error: BaseException) -> None:
        """A node tells the supervisor that it cannot go on."""
        if process.alive and isinstance(error, FlameError):
            asyncio.get_running_loop().call_later(self.story.world.delay(), epoch.fail, _fault_of(error))
        elif process.alive:
            epoch.fail(error)

    def _stop(self) -> None:
        for _, node in self._nodes.values():
            node.stop.set()

    def _see_to(self, task: asyncio.Task[None]) -> None:
        self._rest.add(task)
        task.add_done_callback(self._rest.discard)


def _fault_of(error: FlameError) -> BaseException:
    """What an error of a node means to the supervisor."""
    return FaultError(error, getattr(error, "blob", "")) if type(error).__name__ in _MAY_MEND else error


async def _begin(node: Node) -> None:
    node.begin()
