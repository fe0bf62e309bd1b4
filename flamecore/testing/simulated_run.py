"""One run of a job in the made-up world of `flamecore.testing.crashes`: in one process, or on several."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from flamecore.clock import Front
from flamecore.commits import StateSettings
from flamecore.job import Job
from flamecore.node import Node
from flamecore.settings import JobSettings
from flamecore.testing.simulated_network import Network, SimulatedTransport
from flamecore.testing.simulated_store import SimulatedStore
from flamecore.testing.simulated_supervisor import SimulatedSupervisor
from flamecore.testing.world import Process

if TYPE_CHECKING:
    from flamecore.testing.crashes import Crashes


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
        self.network = Network(story.world)
        self.control = Process(story.world, f"{name}/control")
        self.processes = [self.control]
        self.acker = story.ackers[random.choice(list(story.ackers))]
        self.draining = False
        workers, most, seed = random.choice(story.workers), random.choice((2, 10, 4096)), random.getrandbits(32)
        self.settings = JobSettings(
            workers=workers,
            owners=Random(seed).choice((None, 1, 2, 3)),
            clock=story.clock,
            on_error=story.on_error,
            max_in_flight=most,
            seed=seed,
            state=StateSettings(
                interval_s=random.choice((0.001, 0.01, 0.05)), max_uncommitted=random.choice((3, 20, 1000))
            ),
        )
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._job: Job | None = None
        self._supervisor = SimulatedSupervisor(self) if self.spread else None
        self._watched: list[Front] = []

    async def play(self) -> str:
        """Run; returns how it ended."""
        task = self.control.start(self._in_one() if self._supervisor is None else self._supervisor.run())
        task.add_done_callback(self._done)
        return await self._ended

    async def _in_one(self) -> None:
        story = self.story
        job = self._job = Job(
            story.graph,
            sources=story.sources(self.control, self.watch),
            sinks=story.sinks(self.control),
            acker=self.acker,
            transport=partial(SimulatedTransport, self.control, self.network),
            settings=self.settings,
            store=SimulatedStore(self.control),
        )
        if self.draining:
            job.drain()
        await job.run()

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
            self._ended.set_result("drained" if how == "done" and self.draining else how)
        except BaseException as broken:  # noqa: BLE001 - for whoever waits
            self._ended.set_exception(broken)

    def watch(self) -> None:
        """Fronts have begun: note the times they give."""
        nodes = list(self._supervisor.nodes) if self._supervisor is not None else []
        if self._job is not None and self._job._node is not None:
            nodes.append(self._job._node)
        for node in nodes:
            self._watch(node)

    def _watch(self, node: Node) -> None:
        for host in node.workers if node.kept is not None else ():
            for front in host.worker.fronts.values():
                if front not in self._watched:
                    self._watched.append(front)
                    assert node.kept is not None
                    self.story.watch(front, node.kept.resume.epoch)

    # -- fate ----------------------------------------------------------------------------------------------------------

    def has(self, process: Process) -> bool:
        """Whether a process is one of this run."""
        return process in self.processes

    def kill(self) -> None:
        """All processes die."""
        for process in self.processes:
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
        self.draining = True
        if self._job is not None:
            self._job.drain()
        if self._supervisor is not None:
            self._supervisor.stop()

    def lose_worker(self, *, dead: bool) -> None:
        """A process with a worker dies, or is taken for dead and goes on for a while."""
        process = None if self._supervisor is None else self._supervisor.some_worker()
        if process is None or self._supervisor is None:
            return self.kill()
        loop, random = asyncio.get_running_loop(), self.story.random
        if dead:
            process.kill()
        else:
            loop.call_later(random.choice((0.01, 0.1, 1.0)), process.kill)
        loop.call_later(random.choice((0.0, 0.002, 0.05)), self._supervisor.lose, process)
        return None

    def cut(self) -> None:
        """Two processes hear no more of each other; the supervisor hears of that."""
        pair = None if self._supervisor is None else self._supervisor.some_pair()
        if pair is not None:
            self.network.cut.add(pair)
            asyncio.get_running_loop().call_later(self.story.random.choice((0.0, 0.002, 0.05)), self._mend, pair)

    def _mend(self, pair: frozenset[Process]) -> None:
        self.network.cut.discard(pair)
        if self._supervisor is not None:
            self._supervisor.disconnect()

    def turn(self, workers: int) -> None:
        """Go on with another number of workers."""
        if self._supervisor is not None:
            self._supervisor.turn(workers)
