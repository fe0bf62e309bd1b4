"""The node's half of the watch: it starts the watcher beside it, and tells it its last words."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import IO, Any, Final

from flamecore import events
from flamecore.logs import logger
from flamecore.model.messages import WATCHER
from flamecore.runtime.cluster.watching.watcher import READY
from flamecore.runtime.config.options import node_options
from flamecore.runtime.tasks.aside import in_daemon_thread
from flamecore.toolkit.processes import command_of, environment

ASKED: Final = "watcher"
"""Key of a bootstrap: whether the node is to start a watcher, since the job cannot ask the system of its process."""

_PROGRAM: Final = "flamecore.runtime.cluster.watching.watcher"
_READY_S: Final = 20.0
"""Longest wait for a watcher to reach the control."""
_OFTEN_S: Final = 5.0
_SHARE: Final = 4
"""Words of a watcher within the time after which its silence counts, and their longest distance."""


class Beside:
    """The watcher beside this process.

    Args:
        bootstrap: Values by which this node has joined.
        address: Address of this process.
        silence_s: Time without a message after which a node is declared dead.
    """

    def __init__(self, bootstrap: Mapping[str, Any], address: str, silence_s: float) -> None:
        self._job, self._name, self._closing = bootstrap["job_name"], bootstrap["node"], False
        told = {
            **{name: bootstrap[name] for name in ("transport", "job", "job_name", "incarnation", "token", "control")},
            "options": node_options(bootstrap["options"]),
            "node": f"watcher-{secrets.token_hex(6)}",
            "role": WATCHER,
            "path": [*map(str, sys.path)],
            "watched": self._name,
            "address": address,
            "pid": os.getpid(),
            "every_s": min(_OFTEN_S, silence_s / _SHARE),
        }
        self._first = json.dumps(told).encode() + b"\n"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start the watcher, and wait until the control has heard of it.

        The node goes on without one that cannot be started: the job judges it by its own messages then.
        """
        try:
            # In a session of its own, as it is not to be stopped with this process by the terminal.
            self._process = process = subprocess.Popen(
                command_of(_PROGRAM),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment(),
                start_new_session=True,
            )
        except OSError as error:
            return self._tell_missing(str(error))
        assert process.stdout is not None
        # Through a pipe, which other users cannot look into as into arguments or an environment; it ends with this
        # process, however that ends.
        self.say(self._first)
        line = in_daemon_thread(partial(_only_line, process.stdout))
        try:
            async with asyncio.timeout(_READY_S):
                said = (await line).decode(errors="replace").strip()
        except TimeoutError:
            said = f"it has not reached the control within {_READY_S:g} s"
        if said != READY:
            return self._tell_missing(said or "it has ended")
        in_daemon_thread(process.wait).add_done_callback(self._ended)
        return None

    def say(self, words: bytes) -> None:
        """Tell the watcher something that is to be known if this process ends. Any thread may call it."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):  # it has ended
                self._process.stdin.write(words)
                self._process.stdin.flush()

    def close(self) -> None:
        """Close the pipe to the watcher, which then ends: so does this node."""
        self._closing = True
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def _ended(self, ended: asyncio.Future[int]) -> None:
        if not self._closing and not ended.cancelled() and (code := ended.result()):
            self._tell_missing(f"it has ended with code {code}")

    def _tell_missing(self, why: str) -> None:
        logger().warning(events.NODE_UNWATCHED, job=self._job, node=self._name, why=why)


def _only_line(stream: IO[bytes]) -> bytes:
    """Return the only line of a stream, which is closed: by the thread that may wait for the line."""
    with stream:
        return stream.readline()
