"""Which process is shot, and when."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crowd import Door
from disk import Disk
from processes import Node, Run, born

if TYPE_CHECKING:
    from flamestream_nats.testing import NatsServer


_PATIENCE_S = 3.0
"""How long a shot waits for what it waits for; then it is fired all the same."""

_LIMIT_S = 30.0
"""How long who has asked for something may wait for the answer, once the job has ended."""


class Gun:
    """Shoots at a run.

    Args:
        run: The job.
        chance: Draws victims and moments.
        stored: Changes with everything that the job puts into its store: a commit is under way then.
        delivered: Grows with everything that the job delivers.
        server: NATS server that the job uses for messages and state, if there is one: it is killed, and comes back.
        clock: File that says by how many seconds the clock of the job's processes is wrong.
        door: Where the job is reached by who wants more or fewer workers; None: nowhere.
        disk: File system of its state and its outputs, which may be full for a while; None: it has room.
        versions: For each version of the flow that it may be asked to go on with, the arguments of `upgrade`.
        only_kills: Whether nothing happens but kills of the processes of the job.
    """

    def __init__(
        self,
        run: Run,
        chance: random.Random,
        *,
        stored: Callable[[], int],
        delivered: Callable[[], int],
        server: NatsServer | None,
        clock: Path,
        door: Door | None,
        disk: Disk | None,
        versions: Sequence[Sequence[str]],
        only_kills: bool,
    ) -> None:
        self.run, self.chance, self.stored, self.delivered = run, chance, stored, delivered
        self.server, self.clock, self.door, self.disk = server, clock, door, disk
        self._versions = versions
        self._asked: list[subprocess.Popen[str]] = []
        self.victims: Counter[str] = Counter()
        self.troubles: Counter[str] = Counter()
        self.moments: Counter[str] = Counter()
        self._targets = {
            "worker": (self._worker, 8),
            "two": (self._two, 2),
            "all": (self._all, 1),
            "acker": (self._acker, 3),
            "supervisor": (self._supervisor, 3),
            "server": (self._server, 2 if server and not only_kills else 0),
            "pause": (self._pause, 0 if only_kills else 2),
            "drain": (self._drain, 0 if only_kills else 2),
            "rescale": (self._rescale, 4 if door else 0),
            "upgrade": (self._upgrade, 4 if door else 0),
            "full": (self._full, 3 if disk else 0),
        }
        self._waits = {
            "calm": (self._until_calm, 4),
            "recovery": (lambda: time.sleep(chance.uniform(0, 0.4)), 4),
            "start": (self._until_start, 2),
            "commit": (self._until_commit, 3),
        }

    def fire(self) -> int:
        """Fire one shot, if there is still a target.

        Returns:
            Number of processes it hit.
        """
        moment = self._draw(self._waits)
        self._waits[moment][0]()
        if self.run.over():
            return 0
        if self.chance.random() < 0.3:  # by an hour at most
            self.clock.write_text(str(self.chance.uniform(-3600, 3600)))
        before = self.victims.total()
        self._shoot()
        hit = self.victims.total() - before
        self.moments[moment] += hit > 0
        return hit

    def _shoot(self) -> None:
        target = self._draw(self._targets)
        self.victims[target] += self._targets[target][0]()

    def _draw(self, choices: dict[str, tuple[Callable[[], object], int]]) -> str:
        return self.chance.choices(list(choices), [weight for _, weight in choices.values()])[0]

    # -- when --------------------------------------------------------------------------------------------------------

    def _until_start(self) -> None:
        """Wait until a moment after some process has been started."""
        before = {node.pid for node in self.run.nodes()}
        end = time.monotonic() + _PATIENCE_S / 3
        while time.monotonic() < end and not self.run.over():
            if {node.pid for node in self.run.nodes()} - before:
                break
            time.sleep(0.005)
        time.sleep(self.chance.uniform(0, 0.5))

    def _until_calm(self) -> None:
        """Wait for some time after the run has recovered."""
        self._until_changed(self.delivered)
        time.sleep(self.chance.uniform(0, 1.0))

    def _until_commit(self) -> None:
        self._until_changed(self.stored)
        time.sleep(self.chance.choice((0.0, 0.0, 0.002, 0.01)))

    def _until_changed(self, look: Callable[[], int]) -> None:
        before, end = look(), time.monotonic() + _PATIENCE_S
        while time.monotonic() < end and not self.run.over() and look() == before:
            time.sleep(0.001)

    # -- whom --------------------------------------------------------------------------------------------------------

    def _kill(self, nodes: list[Node]) -> int:
        return sum(self._signal(node.pid, signal.SIGKILL) for node in nodes)

    def _signal(self, pid: int, number: signal.Signals) -> bool:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def _some(self, role: str, count: int) -> list[Node]:
        there = [node for node in self.run.nodes() if node.role == role]
        return self.chance.sample(there, min(count, len(there)))

    def _worker(self) -> int:
        return self._kill(self._some("worker", 1))

    def _two(self) -> int:
        return self._kill(self.chance.sample(there, min(2, len(there)))) if (there := self.run.nodes()) else 0

    def _all(self) -> int:
        return self._kill(self.run.nodes())

    def _acker(self) -> int:
        return self._kill(self._some("acker", 1) or self._some("worker", 1))

    def _supervisor(self) -> int:
        self.run.nodes()
        return self._signal(self.run.process.pid, signal.SIGKILL)

    def _pause(self) -> int:
        """Somebody stands still, and goes on when others may have been shot, or have taken it for dead."""
        found = [*self.run.nodes()]
        if at := born(self.run.process.pid):
            found.append(Node(self.run.process.pid, "supervisor", "supervisor", at))
        if not found:
            return 0
        node = self.chance.choice(found)
        if not self._signal(node.pid, signal.SIGSTOP):
            return 0
        self.troubles["pause"] += 1
        try:
            time.sleep(self.chance.choice((0.02, 0.3, 1.0)) * self.chance.random())
            if self.chance.random() < 0.5:
                self._shoot()
            time.sleep(self.chance.choice((0.1, 1.0, 3.0)) * self.chance.random())
        finally:
            if born(node.pid) == node.born:
                self._signal(node.pid, signal.SIGCONT)
        return 0

    def _drain(self) -> int:
        """Somebody ends the job, to start it again."""
        self.run.nodes()
        if self._signal(self.run.process.pid, self.chance.choice((signal.SIGINT, signal.SIGTERM))):
            self.run.drained = True
            self.troubles["drain"] += 1
            if self.chance.random() < 0.5:
                time.sleep(self.chance.choice((0.05, 0.5)) * self.chance.random())
                if self.chance.random() < 0.5:
                    self._shoot()
                else:
                    self._signal(self.run.process.pid, signal.SIGINT)
        return 0

    def _rescale(self) -> int:
        """Somebody asks for another number of workers; what is shot at next may be shot at meanwhile."""
        assert self.door is not None
        return self._ask("rescale", self.door.address, "-w", str(self.chance.randint(1, 5)))

    def _upgrade(self) -> int:
        """Somebody asks for another version of the flow, which does the same."""
        assert self.door is not None
        return self._ask("upgrade", self.door.address, *self.chance.choice(self._versions))

    def _ask(self, what: str, *arguments: str) -> int:
        assert self.door is not None
        self.troubles[what] += 1
        self._asked.append(
            subprocess.Popen(
                self.door.command(what, *arguments),
                cwd=self.run.folder,
                env=self.run.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        time.sleep(0.3 + self.chance.uniform(0, 1.0))  # the command must find the job first
        if self.chance.random() < 0.7:
            self._shoot()
        return 0

    def _full(self) -> int:
        """There is no room, or next to none, for a while."""
        assert self.disk is not None
        self.troubles["full"] += 1
        self.disk.fill(self.chance.choice((0, 4096, 60_000)))
        try:
            time.sleep(self.chance.choice((0.1, 0.5, 2.0)) * self.chance.random())
            if self.chance.random() < 0.3:
                self._shoot()
        finally:
            self.disk.clear()
        return 0

    def answers(self) -> list[str]:
        """Return the answers to all requests, after the job has ended.

        Raises:
            AssertionError: Somebody still waits, or has failed.
        """
        found = []
        for asked in self._asked:
            try:
                told, _ = asked.communicate(timeout=_LIMIT_S)
            except subprocess.TimeoutExpired:
                asked.kill()
                asked.communicate()
                raise AssertionError(f"who has asked for something waits for the answer: {asked.args}") from None
            assert "Traceback" not in told, told
            assert asked.returncode in (0, 1), f"{asked.args} ended with {asked.returncode}: {told}"
            found.append(told)
        return found

    def end(self) -> None:
        """End all requests that still wait for an answer."""
        for asked in self._asked:
            asked.kill()
            asked.communicate()

    def _server(self) -> int:
        assert self.server is not None
        self.server.kill()
        time.sleep(self.chance.choice((0, 0.3, 1.5)))
        self.server.start()
        return 1


def stored(state: Path) -> int:
    """Return a number that changes with every blob that a store of files takes."""
    found = 0
    for path in state.rglob("*"):
        try:
            found += path.stat().st_mtime_ns % 1_000_003
        except OSError:
            continue
    return found


def size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it is not there."""
    return path.stat().st_size if path.exists() else 0
