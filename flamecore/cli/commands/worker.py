"""The command `flamestream worker`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any, Final, Self

import click

from flamecore import events
from flamecore.cli.joining import join_options, joining
from flamecore.cli.output import log_option, say
from flamecore.cli.stop import handle
from flamecore.logs import as_json, logger
from flamecore.runtime.cluster.address import WAIT_S

LEAVE_S: Final = 5.0
"""Longest time for a node to leave its job once it has been asked to end."""


@click.command("worker")
@click.option("--join", "address", required=True, metavar="ADDRESS", help="Address of the job's supervisor.")
@click.option("--name", help="Name of this worker; it determines the worker's place among the workers.")
@join_options
@log_option
def command(address: str, name: str | None, **options: Any) -> None:
    """Join a job as one of its workers, and run until the job ends.

    The supervisor is `flamestream run` with [deploy] start = "join". The flow must be importable here as it is there.
    """
    serve(address, name=name, role="worker", **options)


def serve(address: str, *, name: str | None, role: str, job: str | None, **options: Any) -> None:
    """Run a node of a job until it ends. Options as of `join_options`.

    Through a server a job that is yet to come looks like one that is gone, so the node waits for it, `WAIT_S` at most.

    Raises:
        KeyboardInterrupt: It was told to end by Ctrl-C, whatever became of the job meanwhile.
    """
    import asyncio

    from flamecore.errors import PeerGoneError, TransportError
    from flamecore.runtime.cluster.node_process import NodeProcess
    from flamecore.runtime.engine.job import relaxed_gc
    from flamecore.runtime.tasks.event_loop import run

    until = time.monotonic() + WAIT_S
    told = False
    while True:
        with (
            joining(address, name=name, role=role, job=job, **options) as bootstrap,
            relaxed_gc(),
            EndSignals() as signals,
        ):
            process = NodeProcess(bootstrap)
            ended: BaseException | None = None
            try:
                run(signals.until_told(process.run()))
            except (asyncio.CancelledError, TransportError) as error:
                ended = error
            # The signal counts, whether or not the job has ended meanwhile, and however.
            if signals.told == signal.SIGINT:
                raise KeyboardInterrupt from ended
            if ended is None or signals.told is not None:
                return
            if not isinstance(ended, PeerGoneError) or process.welcome or time.monotonic() > until:
                raise ended
        if not told:
            if as_json():
                logger().info(events.JOB_AWAITED, job=bootstrap["job_name"], start_timeout_s=WAIT_S, commands=[])
            else:
                say(f"no supervisor runs job {bootstrap['job_name']!r} yet; waiting for {WAIT_S:g} s", err=True)
            told = True


class EndSignals:
    """Ctrl-C and SIGTERM, which tell a node to leave its job and to end: handled while the block runs.

    A second one of its kind kills the process, also while code in C keeps the interpreter.

    Attributes:
        told: The first signal; None: there was none.
    """

    def __init__(self) -> None:
        self.told: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._cancel: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = handle(number, self._tell)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _tell(self, number: int, frame: FrameType | None) -> None:
        handle(number, self._tell)  # for the next one
        if self.told is None:
            self.told = signal.Signals(number)
            self._cancel()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        if number == signal.SIGTERM:
            # User code that never returns keeps the loop from ending the task.
            timer = threading.Timer(LEAVE_S, os._exit, (128 + number,))
            timer.daemon = True
            timer.start()

    async def until_told(self, running: Coroutine[object, object, None]) -> None:
        """Run a node until it ends, or is told to; it leaves the job then, which hears of it.

        Raises:
            CancelledError: It was told to end.
        """
        import asyncio

        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel() -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)

        self._cancel = cancel
        if self.told is not None:  # before there was a task to cancel
            task.cancel()
        await running
