"""The main program of the process beside a node, which tells the job's control what the system says of the node.

A function of the user may keep the node's process from saying anything, also from all of its threads: code in C keeps
the interpreter, and SIGSTOP stops the whole process. This one runs no such code.

It is a child of the node, not its parent: signals, exit codes and the end of the node are what they would be without
it. It ends when the node does, or the job.

python -m flamecore.runtime.cluster.watching.watcher < BOOTSTRAP.json
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import FileIO
from time import monotonic
from typing import Any, Final, Literal

from flamecore.errors import FlameError
from flamecore.model.messages import CONTROL, Stop, Watched
from flamecore.runtime.cluster.session import ControlSession
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.tasks.aside import in_daemon_thread
from flamecore.runtime.tasks.event_loop import exit_without_waiting, run
from flamecore.runtime.tasks.sender import Sender
from flamecore.toolkit.private_dir import private_folder
from flamecore.toolkit.processes import state_of

State = Literal["running", "stopped", "gone"]

READY: Final = "ready"
"""Word on standard output, once the control has been told for the first time."""

_LOOK_S: Final = 0.25
"""Most seconds between two looks at the node."""
_LAST_WORDS_BYTES: Final = 16 * 1024


class Watcher:
    """A watcher of one process.

    Args:
        bootstrap: Values to reach the control (see `flamecore.runtime.cluster.session.ControlSession`), and of the
            node: `watched`, its name, `address` and `pid`; `every_s`, the longest time between two words of it.
        words: The words of the process, which end with it.
        answer: Called with `READY` once the control has been told for the first time.

    Attributes:
        has_told: Whether the control has been told of the process.
    """

    def __init__(self, bootstrap: Mapping[str, Any], words: FileIO, answer: Callable[[str], None]) -> None:
        self._session = ControlSession(bootstrap)
        self._words, self._answer = words, answer
        self._name, self._address = bootstrap["watched"], bootstrap["address"]
        self._pid, self._every_s = bootstrap["pid"], bootstrap["every_s"]
        self.has_told = False

    async def run(self) -> None:
        """Tell of the process, at each change and at regular intervals, until it ends; kill it if the control asks.

        Raises:
            FlameError: The control cannot be reached.
        """
        async with self._session.joined(Codec()) as (_, sender):
            await self._watch(sender, self._session.over)

    async def _watch(self, sender: Sender, over: asyncio.Future[None]) -> None:
        last = in_daemon_thread(self._words.readall)  # to their end: this is when the process ends
        said: State | None = None
        said_at = 0.0
        while True:
            state: State = "gone" if last.done() else self._state()
            if state != said or monotonic() >= said_at + self._every_s:
                why = last.result()[-_LAST_WORDS_BYTES:].decode(errors="replace").strip() if last.done() else ""
                await sender.endpoint.send(CONTROL, Watched(self._name, self._address, state, why))
                if not self.has_told:
                    self.has_told = True
                    self._answer(READY)
                said, said_at = state, monotonic()
            if state == "gone":
                return None
            await asyncio.wait((last, over), timeout=min(_LOOK_S, self._every_s), return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                return await over
            while (delivery := sender.endpoint.receive_nowait()) is not None:
                # Only the supervisor commands here, not every process that has the token.
                if delivery.sender == CONTROL and isinstance(delivery.message, Stop) and self._state() != "gone":
                    os.kill(self._pid, signal.SIGKILL)

    def _state(self) -> State:
        # A process that has ended has another one take its children, before its id can be another's.
        return (state_of(self._pid) if os.getppid() == self._pid else None) or "gone"


def main() -> int:
    """Watch the parent process, as the values on standard input describe.

    Returns:
        0: the process or the job has ended; 1: nothing can be said of it, for the reason on standard output.
    """
    # Without a buffer: its lock would be that of a thread which reads until the end of this process.
    words = FileIO(0, closefd=False)
    bootstrap = json.loads(words.readline() or b"{}")
    if not bootstrap:
        return 0
    sys.path[:] = bootstrap["path"]
    answers = FileIO(os.dup(1), "w")
    # Of its connections the node says the same in its own log.
    logging.disable()
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the end of the process

    def answer(text: str) -> None:
        with suppress(OSError):  # the node is gone
            answers.write(f"{text}\n".encode())

    with private_folder() as folder:
        watcher = Watcher({**bootstrap, "folder": folder}, words, answer)
        try:
            run(watcher.run())
        except FlameError as error:
            if watcher.has_told:  # the job has ended, or its supervisor has
                return 0
            answer(f"{type(error).__name__}: {' '.join(str(error).split())}")
            return 1
    return 0


if __name__ == "__main__":
    code = main()
    exit_without_waiting(code)
    sys.exit(code)
