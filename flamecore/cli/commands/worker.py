"""The command `flamestream worker`."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any, Final

import click

from flamecore import events
from flamecore.cli.joining import join_options, joining
from flamecore.cli.output import log_option
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


def serve(address: str, *, name: str | None, role: str, job: str, **options: Any) -> None:
    """Run a node of a job until it ends. Options as of `join_options`.

    Through a server a job that is yet to come looks like one that is gone, so the node waits for it, `WAIT_S` at most.
    """
    import asyncio

    from flamecore.errors import PeerGoneError
    from flamecore.runtime.cluster.node_process import NodeProcess
    from flamecore.runtime.engine.job import relaxed_gc
    from flamecore.runtime.tasks.event_loop import run

    until = time.monotonic() + WAIT_S
    told = False
    while True:
        with joining(address, name=name, role=role, job=job, **options) as bootstrap, relaxed_gc():
            process = NodeProcess(bootstrap)
            try:
                return run(_until_told(process.run()))
            except asyncio.CancelledError:
                return None  # by SIGTERM
            except PeerGoneError:
                if process.welcome or time.monotonic() > until:
                    raise
        if not told:
            if as_json():
                logger().info(events.JOB_AWAITED, job=job, start_timeout_s=WAIT_S, commands=[])
            else:
                click.echo(f"no supervisor runs job {job!r} yet; waiting for {WAIT_S:g} s", err=True)
            told = True


async def _until_told(running: Coroutine[object, object, None]) -> None:
    """Run a node until it ends or gets SIGTERM.

    On SIGTERM it leaves the job, which is told, within `LEAVE_S`.
    """
    import asyncio
    import os
    import signal
    import threading

    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def end(*_: object) -> None:
        loop.call_soon_threadsafe(task.cancel)
        # User code that never returns keeps the loop from ending the task.
        timer = threading.Timer(LEAVE_S, os._exit, (128 + signal.SIGTERM,))
        timer.daemon = True
        timer.start()

    signal.signal(signal.SIGTERM, end)
    await running
