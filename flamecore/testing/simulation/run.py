"""One run of a job in the simulated world, in one process or on several.

See `flamecore.testing.simulation.world`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from flamecore.runtime.engine.job import Job
from flamecore.runtime.engine.node import Node
from flamecore.runtime.parts.front import Front
from flamecore.testing.simulation.job import SimulatedJob, Start
from flamecore.testing.simulation.network import SimulatedTransport
from flamecore.testing.simulation.store import SimulatedStore
from flamecore.testing.simulation.supervisor import SimulatedSupervisor
from flamecore.testing.simulation.world import Process


class Run:
    """A start of the job, to whatever end.

    Args:
        job: The job.
        name: The name of the run; no other has it.
        outcome: Judges how the run ended: takes its error or None, returns a word, raises if it must not end so.
        ghost_ended: Called with the error or None of a run that ends although it was given up before.
    """

    def __init__(
        self,
        job: SimulatedJob,
        name: str,
        *,
        outcome: Callable[[BaseException | None], str],
        ghost_ended: Callable[[BaseException | None], None],
    ) -> None:
        self.spread = job.random.random() < 0.6
        self._start = Start.draw(job, name)
        self._outcome, self._ghost_ended = outcome, ghost_ended
        self._draining = False
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._job: Job | None = None
        self._supervisor = SimulatedSupervisor(self._start, self._watch_all) if self.spread else None
        self._watched: list[Front] = []

    async def play(self) -> str:
        """Run the job; return how it ended, in a word."""
        task = self._start.control.start(self._in_one() if self._supervisor is None else self._supervisor.run())
        task.add_done_callback(self._done)
        return await self._ended

    async def _in_one(self) -> None:
        start, simulated = self._start, self._start.job
        job = self._job = Job(
            simulated.graph,
            sources=simulated.sources(start.control, self._watch_all),
            sinks=simulated.sinks(start.control),
            acker=start.acker,
            transport=partial(SimulatedTransport, start.control, start.network),
            settings=start.settings,
            store=SimulatedStore(start.control),
            operators=simulated.operators,
        )
        if self._draining:
            job.drain()
        await job.run()

    def _done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if self._ended.done():
            if self._start.control.alive:
                self._ghost_ended(error)
            return
        try:
            how = self._outcome(error)
            self._ended.set_result("drained" if how == "done" and self._draining else how)
        except BaseException as broken:  # noqa: BLE001 - raised where the end is awaited
            self._ended.set_exception(broken)

    def _watch_all(self) -> None:
        """Note the times given by fronts that have begun since the last call."""
        nodes = list(self._supervisor.nodes) if self._supervisor is not None else []
        if self._job is not None and self._job.epoch is not None:
            nodes.append(self._job.epoch.node)
        for node in nodes:
            self._watch(node)

    def _watch(self, node: Node) -> None:
        for worker_task in node.workers if node.state_access is not None else ():
            for front in worker_task.worker.fronts.values():
                if front not in self._watched:
                    self._watched.append(front)
                    assert node.state_access is not None
                    resume = node.state_access.resume
                    self._start.job.watch(front, resume.epoch, resume.fronts[front.number - 1][1])

    # -- fate ----------------------------------------------------------------------------------------------------------

    def has(self, process: Process) -> bool:
        """Return whether a process is one of this run."""
        return process in self._processes

    @property
    def _processes(self) -> list[Process]:
        """Return all processes of the run, dead ones too, in the order of their start."""
        return [self._start.control, *(() if self._supervisor is None else self._supervisor.processes)]

    def kill(self) -> None:
        """Kill all processes."""
        for process in self._processes:
            process.kill()
        self._end("killed")

    def abandon(self) -> None:
        """Give the run up as dead while it goes on."""
        self._end("abandoned")

    def _end(self, how: str) -> None:
        if not self._ended.done():
            self._ended.set_result(how)

    def drain(self) -> None:
        """Stop reading, and end the job in order."""
        self._draining = True
        if self._job is not None:
            self._job.drain()
        if self._supervisor is not None:
            self._supervisor.drain()

    def lose_worker(self, *, dead: bool) -> None:
        """Kill a process with a worker, or declare it dead while it goes on for a while."""
        process = None if self._supervisor is None else self._supervisor.some_worker()
        if process is None or self._supervisor is None:
            return self.kill()
        loop, random = asyncio.get_running_loop(), self._start.job.random
        if dead:
            process.kill()
        else:
            loop.call_later(random.choice((0.01, 0.1, 1.0)), process.kill)
        loop.call_later(random.choice((0.0, 0.002, 0.05)), self._supervisor.lose, process)
        return None

    def cut(self) -> None:
        """Cut the connection of two processes, and report it to the supervisor later."""
        pair = None if self._supervisor is None else self._supervisor.some_pair()
        if pair is not None:
            self._start.network.cut.add(pair)
            asyncio.get_running_loop().call_later(self._start.job.random.choice((0.0, 0.002, 0.05)), self._mend, pair)

    def _mend(self, pair: frozenset[Process]) -> None:
        self._start.network.cut.discard(pair)
        if self._supervisor is not None:
            self._supervisor.disconnect()

    def turn(self, workers: int) -> None:
        """Continue with another number of workers."""
        if self._supervisor is not None:
            self._supervisor.turn(workers)
