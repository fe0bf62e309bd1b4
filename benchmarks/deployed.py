"""Jobs as a user starts them, in processes of their own: `flamestream run`.

They are watched from outside.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final

from benchmarks.processes import LIMIT_S, ROOT, RunError, cpu_s

FLOWS: Final = Path(__file__).parent / "flows"
TRANSPORTS: Final = ("socket", "grpc", "nats")


@contextmanager
def transport(name: str) -> Iterator[list[str]]:
    """Yield the settings of a transport, with its server running meanwhile.

    Raises:
        FlameError: Its client or its server is not installed.
    """
    chosen = ["--set", f"transport.use={name}"]
    if name != "nats":
        yield chosen
        return
    from flamestream_nats.testing import NatsServer

    with NatsServer() as server:
        yield [*chosen, "--set", f'transport.nats.servers=["{server.url}"]']


def missing(name: str) -> str:
    """Return why jobs cannot run over a transport here; empty if they can."""
    if name == "socket":
        return "" if hasattr(socket, "AF_UNIX") else "this system has no unix sockets"
    if find_spec(name) is None:
        return f"the client of {name} is not installed"
    if name == "nats":
        from flamecore.errors import MissingDependencyError
        from flamestream_nats.testing import program

        try:
            program()
        except MissingDependencyError as error:
            return str(error).splitlines()[0]
    return ""


class Run:
    """A job that is running.

    Args:
        flow: Name of a file in `benchmarks/flows`, without its ending.
        arguments: Arguments of `flamestream run`.
        environment: Added to this process's own.
        stdin, stdout: As of `subprocess.Popen`.
    """

    def __init__(
        self,
        flow: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
    ) -> None:
        self.flow = flow
        command = [sys.executable, "-m", "flamecore", "run", str(FLOWS / f"{flow}.py"), *arguments, "-q", "--json"]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        self.spent: dict[int, float] = {}
        """Processor's seconds of each process of the job, when last looked at."""
        self.log = ""
        """Standard error of the job, once it has ended."""

    def look(self) -> dict[int, float]:
        """Return the processor time of each process of the job, in seconds.

        Empty where the system does not tell.
        """
        own = self.process.pid
        try:
            children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        except OSError:
            return self.spent
        for pid in (own, *map(int, children)):
            with suppress(OSError):  # it has just ended
                self.spent[pid] = cpu_s(pid)
        return self.spent

    def finish(self) -> dict[str, Any]:
        """Wait for the end; return the job's summary.

        Raises:
            RunError: It failed, or takes too long.
        """
        end = time.monotonic() + LIMIT_S
        try:
            while True:
                try:
                    output, errors = self.process.communicate(timeout=0.05)
                    break
                except subprocess.TimeoutExpired as error:
                    self.look()
                    if time.monotonic() > end:
                        raise RunError(f"{self.flow}: not done after {LIMIT_S:.0f} s") from error
        finally:
            self.process.kill()
        text = self.log = errors.decode()
        if self.process.returncode:
            raise RunError(f"{self.flow}: exit code {self.process.returncode}\n{text[-3000:]}")
        # A sink that writes to the standard output has it for itself; the summary is then on the other one, where other
        # programs (a Java machine that ends) may write after it.
        for line in reversed([*(output or b"").decode().splitlines(), *text.splitlines()]):
            if line.startswith("{"):
                summary: dict[str, Any] = json.loads(line)
                return summary
        raise RunError(f"{self.flow}: no summary\n{text[-3000:]}")
