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

from flamecore import escapes, events, logs
from flamecore.abc.host import HostContext, NodeHost, NodeSlot, NodeState
from flamecore.toolkit.processes import command_of, environment, state_of

_LINES_KEPT: Final = 40
_LINE_LIMIT: Final = 64 * 1024
_LAST_WORDS_S: Final = 0.2
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
                *command_of(self.program, str(path)),
                stdin=None if slot.terminal else asyncio.subprocess.DEVNULL,
                # What a function prints is not the data that the job writes to its standard output.
                stdout=its,
                stderr=its,
                cwd=bootstrap.get("cwd"),
                env=environment(),
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
        passing = asyncio.create_task(pass_on(name, words, lines))
        try:
            code = await process.wait()
            await asyncio.wait((passing,), timeout=_LAST_WORDS_S)
        finally:
            passing.cancel()
            pipe.close()
        if not self._stopping:
            self.context.died(name, f"(process {process.pid}) {ending_of(code)}", tuple(lines))

    def running(self) -> list[str]:
        return [name for name, process in self._processes.items() if process.returncode is None]

    def watches(self, name: str) -> bool:
        return name in self._watching and not self._watching[name].done()

    def state(self, name: str) -> NodeState | None:
        process = self._processes.get(name)
        if process is None or process.returncode is not None:
            return None
        return state_of(process.pid)

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


def ending_of(code: int) -> str:
    """Return how a process has ended, by its code.

    >>> ending_of(-9), ending_of(-63), ending_of(3)
    ('was killed by SIGKILL', 'was killed by signal 63', 'ended with code 3')
    """
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # one for real time, of which few have a name
        return f"was killed by signal {-code}"


def _told(name: str, text: str) -> str:
    """Return a line that a process has printed, as it is passed on: as an object where the log is JSON."""
    if not logs.as_json():
        return escapes.line(f"[{name}] {text}")
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if isinstance(said, dict) and "event" in said:  # a line of its log
        return escapes.line(json.dumps({**said, "process": name}, ensure_ascii=False))
    return logs.json_line(events.NODE_PRINTED, "info", process=name, text=text)


async def pass_on(name: str, words: asyncio.StreamReader, lines: deque[str]) -> None:
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
            print(_told(name, text), file=sys.stderr, flush=True)
