"""Which process is shot, and when."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from processes import Node, Run

from flamecore.testing.nats_server import NatsServer

_PATIENCE_S = 3.0
"""How long a shot waits for what it waits for; then it is fired all the same."""


class Gun:
    """Shoots at a run.

    Args:
        run: The job.
        chance: Draws victims and moments.
        stored: Changes with everything that the job puts into its store: a commit is under way then.
        delivered: Grows with everything that the job delivers.
        stuck: Whether processes may be stopped instead of killed; the job takes them for dead.
        server: That the job talks through and keeps its state in, if there is one: it is killed, and comes back.
        clock: File that says by how many seconds the clock of the job's processes is wrong.
    """

    def __init__(
        self,
        run: Run,
        chance: random.Random,
        *,
        stored: Callable[[], int],
        delivered: Callable[[], int],
        stuck: bool,
        server: NatsServer | None,
        clock: Path,
    ) -> None:
        self.run, self.chance, self.stored, self.delivered = run, chance, stored, delivered
        self.server, self.clock = server, clock
        self.victims: Counter[str] = Counter()
        self.moments: Counter[str] = Counter()
        self._targets = {
            "worker": (self._worker, 8),
            "two": (self._two, 2),
            "all": (self._all, 1),
            "acker": (self._acker, 3),
            "supervisor": (self._supervisor, 3),
            "stuck": (self._stuck, 2 if stuck else 0),
            "server": (self._server, 2 if server else 0),
        }
        self._waits = {
            "calm": (self._until_calm, 4),
            "recovery": (lambda: time.sleep(chance.uniform(0, 0.4)), 4),
            "start": (self._until_start, 2),
            "commit": (self._until_commit, 3),
        }

    def fire(self) -> int:
        """One shot, if there is still something to be shot. Returns how many processes it hit."""
        moment = self._draw(self._waits)
        self._waits[moment][0]()
        if self.run.over():
            return 0
        target = self._draw(self._targets)
        if self.chance.random() < 0.3:  # by an hour at most
            self.clock.write_text(str(self.chance.uniform(-3600, 3600)))
        hit = self._targets[target][0]()
        self.victims[target] += hit
        self.moments[moment] += hit > 0
        return hit

    def _draw(self, choices: dict[str, tuple[Callable[[], object], int]]) -> str:
        return self.chance.choices(list(choices), [weight for _, weight in choices.values()])[0]

    # -- when --------------------------------------------------------------------------------------------------------

    def _until_start(self) -> None:
        """A moment after some process has been started."""
        before = {node.pid for node in self.run.nodes()}
        end = time.monotonic() + _PATIENCE_S / 3
        while time.monotonic() < end and not self.run.over():
            if {node.pid for node in self.run.nodes()} - before:
                break
            time.sleep(0.005)
        time.sleep(self.chance.uniform(0, 0.5))

    def _until_calm(self) -> None:
        """Some time after it has recovered."""
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

    def _stuck(self) -> int:
        return sum(self._signal(node.pid, signal.SIGSTOP) for node in self._some("worker", 1))

    def _server(self) -> int:
        assert self.server is not None
        self.server.kill()
        time.sleep(self.chance.choice((0, 0.3, 1.5)))
        self.server.start()
        return 1


def stored(state: Path) -> int:
    """A number that changes with every blob that a store of files takes."""
    found = 0
    for path in state.rglob("*"):
        try:
            found += path.stat().st_mtime_ns % 1_000_003
        except OSError:
            continue
    return found


def size(path: Path) -> int:
    """Of a file, in bytes; of none it is 0."""
    return path.stat().st_size if path.exists() else 0
