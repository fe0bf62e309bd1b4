"""A job on several processes whose workers, acker and supervisor are killed."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NamedTuple

from flamecore import events
from flamecore.errors import FlameError, JobError
from flamecore.runtime.cluster.client import Client
from flamecore.runtime.cluster.placement import TOKEN
from flamestream_demo.follower import Follower
from flamestream_demo.pages import topics

FLOW: Final = "flamestream_demo.cyclic_index:flow"
WORKERS: Final = 4
PAGES_PER_S: Final = 12.0
"""Low enough not to load a machine of two cores: the demo shows recovery, not speed."""

_JOB: Final = """\
schema = 1

[job]
name = "{name}"
flow = "{flow}"
workers = {workers}

[source.pages]
use = "pydoc"
repeat = {repeat}
pages_per_s = {pages_per_s}

[sink.index]
use = "jsonl"
path = "{folder}/index.jsonl"

[transport.socket]
folder = "{folder}/s"

[deploy]
on = "processes"
acker = "own"
restarts = 1000

[state]
use = "sqlite"
path = "state"
"""
_LIMIT_S: Final = 60.0
_LOOK_S: Final = 0.01
_TAIL: Final = 20


class Shot(NamedTuple):
    """A process that was killed.

    Attributes:
        at_s: Time of the kill, in seconds since the job was started.
        role: "worker", "acker" or "supervisor".
        name: Name of the process.
        pid: Id of the process.
        recovered_ms: Time until the job delivered again.
    """

    at_s: float
    role: str
    name: str
    pid: int
    recovered_ms: float


def order_of(kills: int, chance: random.Random) -> list[str]:
    """Return the roles to kill, in order.

    Each of the three is among the first three; after that workers come twice as often.
    """
    roles: list[str] = []
    while len(roles) < kills:
        block = ["worker", "acker", "supervisor", *(["worker"] if roles else [])]
        chance.shuffle(block)
        roles += block
    return roles[:kills]


class Target:
    """The job, with all its files in one folder.

    Args:
        folder: Folder for its files.
        seconds: Planned duration without failures.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self.name = f"demo-{secrets.token_hex(3)}"
        self.output = folder / "index.jsonl"
        self.recovered = threading.Semaphore(0)
        self._folder = folder
        self._token = secrets.token_hex(16)
        pages = len(topics())
        repeat = min(max(round(seconds * PAGES_PER_S / pages), 1), 255)
        (folder / "job.toml").write_text(
            _JOB.format(
                name=self.name,
                flow=FLOW,
                workers=WORKERS,
                repeat=repeat,
                pages_per_s=repeat * pages / seconds,
                folder=folder,
            )
        )
        self._process: subprocess.Popen[str] | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL)

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """Return the process id of the supervisor."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Return whether the job runs, or was killed and must be started again.

        Raises:
            JobError: It has failed.
        """
        assert self._process is not None
        code = self._process.poll()
        if code not in (None, 0, -signal.SIGKILL):
            lines = "".join(f"\n    {line}" for line in self._tail)
            raise JobError(f"the job has ended with code {code}; its last lines:{lines}")
        return code != 0

    def start(self) -> None:
        """Start the job, or start it again after a kill: the command is the same."""
        line = [sys.executable, "-m", "flamecore", "run", "job.toml", "--progress-interval", "1000"]
        environment = {**os.environ, TOKEN: self._token}
        self._process = subprocess.Popen(
            line, cwd=self._folder, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True).start()

    def wait(self) -> None:
        """Wait until the supervisor, which was killed, is gone."""
        assert self._process is not None
        self._process.wait()

    def _listen(self, said: IO[str]) -> None:
        with said:
            for line in said:
                self._tail.append(line.rstrip())
                if f"event={events.JOB_RECOVERED}" in line:
                    self.recovered.release()

    def undisturbed(self) -> subprocess.Popen[bytes]:
        """Start an undisturbed run of the same job, in one process at full speed."""
        settings = (
            "deploy.on=here",
            "job.workers=1",
            "source.pages.pages_per_s=1e9",
            f"sink.index.path={self._folder / 'undisturbed.jsonl'}",
            f"state.path={self._folder / 'undisturbed'}",
        )
        options = [part for setting in settings for part in ("--set", setting)]
        line = [sys.executable, "-m", "flamecore", "run", "job.toml", "-q", *options]
        return subprocess.Popen(line, cwd=self._folder, stdin=subprocess.DEVNULL)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the processes with parts of the job, by name, as in its status.

        Raises:
            FlameError: The job does not answer.
        """
        folder = tempfile.mkdtemp(dir=self._folder)
        bootstrap = {
            "transport": "socket",
            "options": {},
            "job": self.name,
            "job_name": self.name,
            "incarnation": 1,
            "token": self._token,
            "folder": folder,
            "control": f"unix:{self._folder}/s/supervisor.sock",
            "node": f"demo-{secrets.token_hex(3)}",
            "role": "observer",
        }
        facts = asyncio.run(Client(bootstrap).look())
        nodes: dict[str, dict[str, Any]] = facts["nodes"]
        return {name: node for name, node in nodes.items() if node["parts"]}


class Hunt:
    """Kills of processes of a target, and the comparison of its output.

    Processes are killed after drawn shares of the output.

    Args:
        target: The job; started here.
        kills: Number of processes to kill.
        seed: Seed of the choice of processes and shares.
    """

    def __init__(self, target: Target, kills: int, seed: int) -> None:
        self.target = target
        self.shots: list[Shot] = []
        self.follower = Follower(target.output, ())
        self.same = False
        self._chance = random.Random(seed)
        self._roles = order_of(kills, self._chance)
        self._began = 0.0

    def run(self) -> Iterator[None]:
        """Run to the end of the job; yield whenever there may be news to show.

        Raises:
            JobError: The job has failed, or does not go on.
        """
        target = self.target
        output = target.output.with_name("undisturbed.jsonl")
        other = target.undisturbed()
        try:
            yield from self._follow("the undisturbed run", lambda: other.poll() is None, lambda: _size(output))
        finally:
            other.kill()
        if other.returncode:
            raise JobError(f"the undisturbed run has ended with code {other.returncode}")
        wanted = output.read_bytes()
        lines = wanted.splitlines(keepends=True)
        self.follower = Follower(target.output, lines)
        # Only now, and by what is put out, not by the clock: on a busy machine the job must not be over before.
        target.start()
        self._began = time.monotonic()
        share = 0.0
        for role in self._roles:
            share += self._chance.uniform(0.3, 0.9) / (len(self._roles) + 1)
            yield from self._wait_for_outputs(round(share * len(lines)))
            if not target.running:
                break
            yield from self._shoot(role)
        yield from self._wait_for_outputs(None)
        self.follower.look()
        self.same = target.output.read_bytes() == wanted

    def _wait_for_outputs(self, wanted: int | None) -> Iterator[None]:
        """Wait for so many outputs, None: for all, or for the end of the job."""

        def goes_on() -> bool:
            return self.target.running and (wanted is None or self.follower.delivered < wanted)

        def delivered() -> int:
            self.follower.look()
            return self.follower.delivered

        yield from self._follow("the job", goes_on, delivered)

    def _follow(self, whose: str, goes_on: Callable[[], bool], put_out: Callable[[], int]) -> Iterator[None]:
        """Wait for as long as something goes on and puts out.

        Raises:
            JobError: It has put out nothing for too long.
        """
        before, end = -1, 0.0
        while goes_on():
            if (now := put_out()) != before:
                before, end = now, time.monotonic() + _LIMIT_S
            elif time.monotonic() > end:
                raise JobError(f"{whose} has put out nothing for {_LIMIT_S:g} s")
            yield
            time.sleep(_LOOK_S)

    def _shoot(self, role: str) -> Iterator[None]:
        target, follower = self.target, self.follower
        found = [("supervisor", target.pid)]
        if role != "supervisor":
            end = time.monotonic() + _LIMIT_S
            found = []
            while target.running and not found and time.monotonic() < end:
                yield
                with suppress(FlameError):  # it has just begun, or is about to end
                    nodes = target.nodes()
                    found = [(name, node["pid"]) for name, node in sorted(nodes.items()) if node["role"] == role]
            if not found or not target.running:
                return
        name, pid = self._chance.choice(found)
        while target.recovered.acquire(blocking=False):
            pass
        follower.look()
        os.kill(pid, signal.SIGKILL)
        killed, before = time.monotonic(), follower.delivered
        if role == "supervisor":
            target.wait()
            follower.look()
            before = follower.delivered
            target.start()

        def goes_on() -> bool:
            if not target.running:
                return True
            return follower.delivered > before if role == "supervisor" else target.recovered.acquire(blocking=False)

        yield from self._wait(_LIMIT_S, goes_on)
        took_s = time.monotonic() - killed
        if took_s >= _LIMIT_S:
            raise JobError(f"{_LIMIT_S:g} s after {name} was killed the job does not go on")
        self.shots.append(Shot(killed - self._began, role, name, pid, took_s * 1000))
        yield

    def _wait(self, limit_s: float, over: Callable[[], bool]) -> Iterator[None]:
        end = time.monotonic() + limit_s
        while time.monotonic() < end and not over():
            yield
            time.sleep(_LOOK_S)
            self.follower.look()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
