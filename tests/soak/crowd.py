"""Workers that somebody else than the supervisor starts, and starts again whenever one has ended, as a service does."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from ephemeral_port_reserve import reserve
from processes import Node, born, wait_until_gone

from flamecore.runtime.cluster.address import WAIT_S

TOKEN = "not a secret"
_SETTLED_S = 8.0
"""Age from which a process has joined the job and ends with it; a younger one may wait for the job in vain."""


class Door(NamedTuple):
    """The address of a job for processes from elsewhere.

    Attributes:
        address: The address for `--join` and `rescale`.
        job: Name of the job.
        settings: Settings of the supervisor, which opens the door.
        options: Options of the processes that join.
    """

    address: str
    job: str
    settings: list[str]
    options: list[str]

    @classmethod
    def of(cls, job: str, transport: str, url: str) -> Door:
        """Return the door of a job; `url` is that of the server, if there is one."""
        if transport == "nats":
            return cls(url, job, [], [])
        port = reserve()
        listen = "--set=transport.grpc.listen=127.0.0.1"
        return cls(f"grpc://127.0.0.1:{port}", job, [f"transport.grpc.listen=127.0.0.1:{port}"], [f"{listen}:0"])

    def command(self, what: str, *arguments: str) -> list[str]:
        """Return the command line of a process that joins or asks.

        An upgrade has the settings of the job among its arguments.
        """
        options = self.options if what != "upgrade" else []
        return [sys.executable, "-m", "flamecore", what, *arguments, "--job", self.job, *options]


class Crowd:
    """Nodes that come from elsewhere.

    Args:
        folder: Where they run.
        door: Control address of the job.
        wanted: Number of processes of each role.
        environ: Environment of the processes.
        chance: Draws how long each takes to come back.
    """

    def __init__(
        self, folder: Path, door: Door, wanted: dict[str, int], environ: dict[str, str], chance: random.Random
    ) -> None:
        self.folder, self.door, self.environ, self.chance = folder, door, environ, chance
        self._seats: dict[tuple[str, int], subprocess.Popen[bytes] | float] = {
            (role, number): 0.0 for role, count in wanted.items() for number in range(count)
        }
        self._started: dict[int, float] = {}

    def tend(self) -> None:
        """Start those that are missing, some time after they have ended."""
        now = time.monotonic()
        for seat, there in self._seats.items():
            if isinstance(there, subprocess.Popen):
                if there.poll() is not None:
                    self._seats[seat] = now + self.chance.choice((0.0, 0.1, 1.0))
            elif now >= there:
                self._seats[seat] = self._start(*seat)

    def _start(self, role: str, number: int) -> subprocess.Popen[bytes]:
        line = self.door.command(role, "--join", self.door.address, "--name", f"{role}-{number}")
        with (self.folder / f"{role}-{number}.log").open("ab") as said:
            started = subprocess.Popen(
                line, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=self.environ
            )
        self._started[started.pid] = time.monotonic()
        return started

    def nodes(self) -> list[Node]:
        """Return the nodes that run."""
        self.tend()
        return [
            Node(process.pid, role, f"{role}-{number}", at)
            for (role, number), process in self._seats.items()
            if isinstance(process, subprocess.Popen) and process.poll() is None and (at := born(process.pid))
        ]

    def left(self) -> list[Node]:
        """Return the nodes that are still there when they must have seen the job's end.

        They were told of it, or see it at once. One that was stopped before it had joined waits for the job, as long
        as a process does that has just been started.
        """
        there = [each for each in self.nodes() if self._started[each.pid] < time.monotonic() - _SETTLED_S]
        return wait_until_gone(there, limit_s=WAIT_S + _SETTLED_S)

    def end(self) -> None:
        """End them all."""
        for process in self._seats.values():
            if isinstance(process, subprocess.Popen):
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait()

    def said(self, last: int = 1500) -> str:
        """Return the last lines of each log."""
        logs = sorted(self.folder.glob("*-*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-last:]}" for log in logs)


def environment(more: dict[str, str]) -> dict[str, str]:
    """Return the environment of processes that share a secret."""
    return {**os.environ, **more, "FLAMESTREAM_TOKEN": TOKEN}
