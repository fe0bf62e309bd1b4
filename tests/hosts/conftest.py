"""Machines for tests: network namespaces of this one, joined by a switch, each with files of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from flamecore.testing.progress import Patience

HOME = "/srv/words"
"""Where each machine has its files; commands run there."""

_ENTER = """
set -e
mount --bind "$1/hosts" /etc/hosts
mount -t tmpfs tmpfs /srv
mkdir -p "$2"
mount --bind "$3" "$2"
cd "$2"
exec bash -c "$4"
"""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Command:
    """A command that runs on a machine; what it prints, on both outputs, goes to a file."""

    def __init__(self, text: str, arguments: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
        self.text = text
        self._log = log
        with log.open("w") as file:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=dict(environ),
            )

    @property
    def said(self) -> str:
        """Return the output so far."""
        return self._log.read_text("utf-8")

    def wait(self, limit_s: float = 60, *, code: int | None = 0) -> str:
        """Wait for the end, and return the output.

        It must end with that exit code; None: with any. The limit counts time without progress.
        """
        limit = Patience(limit_s)
        while (found := self._process.poll()) is None:
            if limit.passed():
                self.end()
                raise AssertionError(f"not at its end, without progress for {limit_s} s; it said:\n{self.said}")
            time.sleep(0.05)
        assert code in (found, None), f"ended with code {found}; it said:\n{self.said}"
        return self.said

    def terminate(self) -> None:
        """Send SIGTERM to it alone, not to what it has started."""
        self._process.terminate()

    def end(self) -> None:
        """End it and all that it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)


class Machines:
    """Hosts with names and addresses of their own, on one network.

    What a command mounts is seen by it alone: each machine has its own `/srv/words` and its own `/etc/hosts`, and
    shares everything else with this one.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.names = tuple(names)
        self.environ: dict[str, str] = {}
        self._prefix = f"flame-{secrets.token_hex(3)}"
        self._made: list[str] = []
        self._started: list[Command] = []

    def __enter__(self) -> Machines:
        try:
            self._make("switch")
            _ip("-n", self._space("switch"), "link", "add", "br0", "type", "bridge")
            _ip("-n", self._space("switch"), "link", "set", "br0", "up")
            for number, name in enumerate(self.names, 1):
                self._join(name, f"10.77.0.{number}")
            addresses = [f"10.77.0.{number} {name}" for number, name in enumerate(self.names, 1)]
            addresses.append("10.77.0.1 acker")  # which has a name of its own where it has a container of its own
            (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *addresses]) + "\n")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for command in self._started:
            command.end()
            print(f"--- {command.text}\n{command.said}")  # to be seen when a test fails
        for space in self._made:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _make(self, name: str) -> str:
        space = self._space(name)
        _ip("netns", "add", space)
        self._made.append(space)
        _ip("-n", space, "link", "set", "lo", "up")
        return space

    def _join(self, name: str, address: str) -> None:
        """Make a machine, and put it on the network."""
        space, switch, port = self._make(name), self._space("switch"), f"to-{name}"
        _ip("link", "add", "name", "eth0", "netns", space, "type", "veth", "peer", "name", port, "netns", switch)
        _ip("-n", switch, "link", "set", port, "master", "br0", "up")
        _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        self.files(name).mkdir()

    def files(self, name: str) -> Path:
        """Return the folder that a machine has as /srv/words."""
        return self.folder / name

    def start(self, name: str, command: str) -> Command:
        """Start a command on a machine; it is ended with the machines."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        arguments = ["ip", "netns", "exec", self._space(name), "sh", "-c", _ENTER, "sh"]
        arguments += [str(self.folder), HOME, str(self.files(name)), command]
        log = self.folder / f"command-{len(self._started)}.log"
        started = Command(
            f"{name}$ {command}", arguments, log, {**os.environ, "PATH": path, "COLUMNS": "110", **self.environ}
        )
        self._started.append(started)
        return started

    def run(self, name: str, command: str, limit_s: float = 60, *, code: int | None = 0) -> str:
        """Return what a command prints on a machine, on both outputs. It must end with that code; None: with any."""
        return self.start(name, command).wait(limit_s, code=code)

    def programs(self, name: str, word: str) -> dict[int, str]:
        """Return the processes on a machine whose command has a word, by id."""
        asked = subprocess.run(
            ["ip", "netns", "pids", self._space(name)], check=True, capture_output=True, text=True
        ).stdout
        found: dict[int, str] = {}
        for pid in map(int, asked.split()):
            with suppress(OSError):  # it has ended since
                command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                if word in command:
                    found[pid] = command
        return found

    def cut(self, name: str) -> None:
        """Cut a machine from the network: nothing goes in or out, and nobody is told."""
        _ip("-n", self._space("switch"), "link", "set", f"to-{name}", "down")


@pytest.fixture
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Three hosts of a cluster, and somebody's laptop."""
    if reason := _no_machines():
        pytest.skip(reason)
    with Machines(tmp_path_factory.mktemp("machines"), ["node1", "node2", "node3", "laptop"]) as made:
        yield made


def _no_machines() -> str:
    """Why there can be no network namespaces here; empty if there can."""
    if shutil.which("ip") is None:
        return "several hosts: the program ip (iproute2) is not installed"
    if os.geteuid() != 0:
        return "several hosts: network namespaces can be made by root only"
    name = f"flame-{secrets.token_hex(3)}"
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        return f"several hosts: no network namespace can be made here: {error.stderr.strip()}"
    _ip("netns", "del", name)
    return ""
