"""Nodes as processes of this machine.

The host `processes` uses it, and so do hosts that start nodes elsewhere by it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from flamecore.abc.host import HostContext, NodeHost, NodeSlot, NodeState

_LINES_KEPT: Final = 40
_LINE_LIMIT: Final = 64 * 1024
_LAST_WORDS_S: Final = 0.2
START: Final = """
import signal
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
import runpy, sys
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Code that runs a program as `python -m` does. A terminal sends Ctrl-C to all processes of a job, also to one that
takes a second to import its modules, in which it would be a traceback."""
"""Seconds for which output of a process may arrive after its end."""


class ProcessHost(NodeHost):
    """The processes of a job; it keeps their last lines, and leaves none behind.

    Attributes:
        program: The module that each process runs.
    """

    program: ClassVar[str] = "flamecore.runtime.cluster.node_process"

    def __init__(self, options: object, context: HostContext) -> None:
        super().__init__(options, context)
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    async def start(self, slots: Sequence[NodeSlot], bootstrap: Mapping[str, object]) -> None:
        for slot in slots:
            await self._start(slot, bootstrap)

    async def _start(self, slot: NodeSlot, bootstrap: Mapping[str, Any]) -> None:
        name = slot.name
        # The folder is private to the job's user; the file is read once.
        path = Path(bootstrap["folder"]) / f"{name}.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            told = {"node": name, "role": slot.role, "parent": os.getpid(), "path": [*map(str, sys.path)]}
            # In a file, not in arguments or the environment: other users can see the former, and
            # children inherit the latter.
            json.dump({**bootstrap, **told}, file)
        # A pipe of our own: with that of asyncio, a child that the process leaves behind would hide its end.
        ours, its = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # a file in the current folder may shadow a module that Python starts with
                "-c",
                START,
                self.program,
                str(path),
                stdin=None if slot.terminal else asyncio.subprocess.DEVNULL,
                # What a function prints is not the data that the job writes to its standard output.
                stdout=its,
                stderr=its,
                cwd=bootstrap.get("cwd"),
                env={**os.environ, "PYTHONPATH": _python_path(), "PYTHONUNBUFFERED": "1"},
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(its)
        self._processes[name] = process
        self._watching[name] = asyncio.create_task(self._watch(name, process, ours))

    async def _watch(self, name: str, process: asyncio.subprocess.Process, said: int) -> None:
        """Pass on the output of a process, keep its last lines, and report its end."""
        words = asyncio.StreamReader(_LINE_LIMIT)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(words), os.fdopen(said, "rb", 0)
        )
        lines: deque[str] = deque(maxlen=_LINES_KEPT)
        passing = asyncio.create_task(_pass_on(name, words, lines))
        try:
            code = await process.wait()
            await asyncio.wait((passing,), timeout=_LAST_WORDS_S)
        finally:
            passing.cancel()
            pipe.close()
        if not self._stopping:
            what = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            self.context.died(name, f"(process {process.pid}) {what}", tuple(lines))

    def running(self) -> list[str]:
        return [name for name, process in self._processes.items() if process.returncode is None]

    def watches(self, name: str) -> bool:
        return name in self._watching and not self._watching[name].done()

    def state(self, name: str) -> NodeState | None:
        process = self._processes.get(name)
        if process is None or process.returncode is not None:
            return None
        try:
            stat = Path(f"/proc/{process.pid}/stat").read_text()
        except OSError:  # no Linux
            return "running"
        letter = stat.rpartition(")")[2].split()[0]
        # A zombie is gone: its end is reported by the task that waits for it.
        return None if letter in "ZX" else "stopped" if letter in "Tt" else "running"

    def kill(self, name: str) -> None:
        process = self._processes.get(name)
        if process is not None and process.returncode is None:
            process.kill()

    async def stop(self, timeout_s: float) -> None:
        self._stopping = True
        if not self._watching:
            return
        _, waiting = await asyncio.wait(self._watching.values(), timeout=timeout_s)
        if waiting:
            for process in self._processes.values():
                if process.returncode is None:
                    process.kill()
            await asyncio.wait(waiting, timeout=timeout_s)


def _python_path() -> str:
    """Return the import path with which a process starts.

    It holds all folders of this process, but the standard library before the folders beside the flow. After its start,
    the process restores the order of this one.
    """
    own = Path(os.__file__).parent
    asked = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # before the standard library in this process, too
    first = [*asked, str(own), str(own / "lib-dynload")]
    paths = [path for path in sys.path if path]
    return os.pathsep.join([*[path for path in first if path in paths], *[path for path in paths if path not in first]])


async def _pass_on(name: str, words: asyncio.StreamReader, lines: deque[str]) -> None:
    """Print the output of a process, and keep its lines, until it ends.

    Reading goes on even if printing fails: a process whose output is not read would block in the end.
    """
    while True:
        try:
            line = await words.readline()
        except ValueError:  # longer than the limit: its part so far has been dropped
            continue
        if not line:
            break
        text = line.decode(errors="replace").rstrip()
        lines.append(text)
        with suppress(OSError, ValueError):  # a pipe whose reader is gone, or a closed one
            print(f"[{name}] {text}", file=sys.stderr, flush=True)
