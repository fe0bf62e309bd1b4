"""The processes of a job under test: started as a user starts them, told apart by role, and looked after to the end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

_BOOTSTRAP = re.compile(r"/((worker|acker)-\d+(\.\d+)?)\.json\0$")
_GONE_S = 10.0


class Node(NamedTuple):
    """A process that a supervisor has started. `born` tells it from a later one of the same id."""

    pid: int
    role: str
    name: str
    born: str


def nodes(supervisor: int) -> list[Node]:
    """Return the node processes of a supervisor, as /proc lists them."""
    found = []
    try:
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    except OSError:
        return []
    for pid in map(int, children):
        with contextlib.suppress(OSError):
            name = _BOOTSTRAP.search(Path(f"/proc/{pid}/cmdline").read_text())
            if name is not None and (at := born(pid)):  # else it is just gone
                found.append(Node(pid, name[2], name[1], at))
    return found


def born(pid: int) -> str:
    """Return when a process was started; empty if it is gone."""
    try:
        _, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return ""
    state, *fields = after.split()
    return "" if state in "ZX" else fields[18]


def kill(node: Node) -> bool:
    """Kill a process, and return whether that is its end; False: it had ended by itself.

    It is stopped first: from then on nothing but the kill can end it.

    Raises:
        AssertionError: It is still there.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(node.pid, signal.SIGSTOP)
        end = time.monotonic() + _GONE_S
        while born(node.pid) == node.born and _state(node.pid) not in "Tt":
            assert time.monotonic() < end, f"{node} does not stop at SIGSTOP"
            time.sleep(0.001)
        hit = born(node.pid) == node.born
        os.kill(node.pid, signal.SIGKILL)
        assert not wait_until_gone([node]), f"{node} is there after SIGKILL"
        return hit
    return False


def _state(pid: int) -> str:
    """Return the letter that stands for the state of a process; `X` if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def wait_until_gone(nodes: Iterable[Node], limit_s: float = _GONE_S) -> list[Node]:
    """Return the nodes that are still there after `limit_s` seconds."""
    left = list(nodes)
    for node in left:  # one that was stopped before it had said whose end is to be its own sees that only now
        if born(node.pid) == node.born:
            with contextlib.suppress(ProcessLookupError):
                os.kill(node.pid, signal.SIGCONT)
    end = time.monotonic() + limit_s
    while left and time.monotonic() < end:
        left = [node for node in left if born(node.pid) == node.born]
        time.sleep(0.02)
    return left


class Others(Protocol):
    """Nodes that the supervisor has not started."""

    def nodes(self) -> list[Node]:
        """Return the nodes that run."""
        ...


class Run:
    """A job that is started again whenever its supervisor is killed.

    Args:
        folder: Where it runs.
        arguments: Of `flamestream run`.
        environ: Additions to its environment.
        others: Nodes that come from elsewhere.
        pardoned: Words with one of which it may end, to be started again: somebody has done what they ask for.

    Attributes:
        drained: Somebody has told it to end, and will start it again.
    """

    def __init__(
        self,
        folder: Path,
        arguments: list[str],
        environ: dict[str, str] | None = None,
        *,
        others: Others | None = None,
        pardoned: Sequence[str] = (),
    ) -> None:
        self.folder, self.arguments, self.others, self.pardoned = folder, arguments, others, pardoned
        self.log = folder / "log"
        self.environ = {**os.environ, **(environ or {})}
        self.met: set[Node] = set()
        self.started = 0.0
        self.drained = False
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "flamecore", "run", *self.arguments]
        self.started = time.monotonic()
        with self.log.open("ab") as said:
            return subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=self.environ
            )

    def nodes(self) -> list[Node]:
        """Return the nodes that run now."""
        found = nodes(self.process.pid)
        self.met.update(found)
        return found if self.others is None else [*found, *self.others.nodes()]

    def over(self) -> bool:
        """Return whether the run has come to its end by itself.

        A run whose supervisor was killed is started again.
        """
        code = self.process.poll()
        if (
            code == -signal.SIGKILL
            or (code in (1, 2) and self._is_pardoned())
            or (code in (0, 130, -signal.SIGINT, -signal.SIGTERM) and self.drained)
        ):
            self.drained = False
            self.process = self._start()
            return False
        if self.others is not None:
            self.others.nodes()  # looks after them
        return code is not None

    def _is_pardoned(self) -> bool:
        last = self.said(2000)
        error = last[last.rfind("error: ") :]
        return any(words in error for words in self.pardoned)

    def said(self, last: int = 6000) -> str:
        """Return the last lines of the log."""
        return self.log.read_text(errors="replace")[-last:]

    def end(self) -> None:
        """Kill what is left of it."""
        left = self.nodes()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for node in {*self.met, *left}:
            if node.born and born(node.pid) == node.born:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(node.pid, signal.SIGKILL)
