"""The main program of a node process: join a job, run the assigned parts, end.

It ends when told to, or when the job is gone.

python -m flamecore.runtime.cluster.node_process BOOTSTRAP.json
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from flamecore import logs
from flamecore.abc.transport import Endpoint
from flamecore.errors import FlameError, JobError, PeerGoneError, TransportError
from flamecore.escapes import block
from flamecore.model.failure import memory_error
from flamecore.model.messages import (
    CONTROL,
    Assignment,
    Begin,
    Halt,
    Halted,
    Left,
    Load,
    NodeFailed,
    NodeReport,
    Opened,
    Ready,
    Refusal,
    Stop,
    Welcome,
)
from flamecore.runtime.cluster.node_epoch import NodeContext, NodeEpoch
from flamecore.runtime.cluster.session import ControlSession
from flamecore.runtime.cluster.watching.beside import ASKED, Beside
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.config.guard import blamed
from flamecore.runtime.config.read import decode_config
from flamecore.runtime.engine.job import relaxed_gc
from flamecore.runtime.tasks.door import Door, anything
from flamecore.runtime.tasks.event_loop import exit_without_waiting, run, start
from flamecore.runtime.tasks.load import CLOCKS
from flamecore.runtime.tasks.sender import Sender
from flamecore.runtime.tasks.watch import end_process_by
from flamecore.toolkit.closing import to_its_end

_REPORT_S: Final = 0.5
_SAME_REPORT_S: Final = 5.0
"""Time between two reports of a node, and the longest such time if nothing has changed."""
_ASSIGN_TIMEOUT_S: Final = 60.0
_PR_SET_PDEATHSIG: Final = 1


class NodeProcess:
    """One node process.

    Args:
        bootstrap: Values to join (see `flamecore.runtime.cluster.session.ControlSession`); where the flow's own files
            are missing, the folder with a copy of its source: `flow_folder`; and whether the job cannot ask the system
            of this process: `watcher`.

    Attributes:
        name: Name of the node.
    """

    def __init__(self, bootstrap: Mapping[str, Any]) -> None:
        self.name: str = bootstrap["node"]
        self._bootstrap = bootstrap
        self._session = ControlSession(bootstrap, self._lost)
        self._beside: Beside | None = None
        self._spare = Path(bootstrap["flow_folder"]) if bootstrap.get("flow_folder") else None
        self._node_epoch: NodeEpoch | None = None
        self._failed: BaseException | None = None
        self._sender: Sender | None = None
        kinds = (Assignment, Begin, Halt, Load, Refusal, Stop, Welcome)
        self.door = Door(f"node/{self.name}", dict.fromkeys(kinds, anything))

    @property
    def welcome(self) -> bool:
        """Return whether the control has answered."""
        return self._session.welcome

    async def run(self) -> None:
        """Run until told to end.

        Raises:
            FlameError: It cannot join, or a part failed and the job did not go on.
        """
        end_process_by(self._end_process)
        try:
            await self._run()
        finally:
            end_process_by(None)
            # The last: the control is to hear first why the node ends, and then that it is gone.
            if self._beside is not None:
                self._beside.close()

    def _end_process(self, text: str) -> None:
        """End this process in the midst of a call, with an error for people and for the job."""
        os.write(2, f"{text}\n".encode())
        if self._beside is not None:
            self._beside.say(text.encode())
        os._exit(1)

    async def _run(self) -> None:
        codec = Codec()
        async with self._session.joined(codec) as (transport, sender):
            self._sender, over = sender, self._session.over
            context = NodeContext(transport, codec, self._part_failed, self._spare)
            reports = start(self._report(sender), self._session.end)
            commands = start(self._listen(context, sender, over), self._session.end)
            try:
                await over
            except PeerGoneError:
                if not _dismissed(sender.endpoint):
                    raise
            except asyncio.CancelledError:
                with suppress(FlameError):  # the control may be gone, too
                    sender.send(CONTROL, Left(self.name))
                raise
            finally:
                await to_its_end(self._end(context, sender, (reports, commands)))
            if self._failed is not None:
                raise self._failed

    async def _end(self, context: NodeContext, sender: Sender, tasks: Collection[asyncio.Task[None]]) -> None:
        """End the tasks, the parts and the context, and send the last counts."""
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        # Before the parts are closed, which takes their counters with it.
        stats = self._node_epoch.stats(ended=True) if self._node_epoch is not None else None
        try:
            await self._leave(orderly=self._failed is None)
        finally:
            await context.aclose()
        if stats is not None:
            with suppress(TransportError):  # the control may be gone already
                sender.send(CONTROL, NodeReport(self.name, stats))

    # -- messages of the control -----------------------------------------------------------------------------------

    async def _listen(self, context: NodeContext, sender: Sender, over: asyncio.Future[None]) -> None:
        limit: float | None = _ASSIGN_TIMEOUT_S
        while True:
            try:
                async with asyncio.timeout(limit):
                    delivery = await sender.endpoint.receive()
            except TimeoutError:
                raise self._failed or JobError(f"{self.name} was given nothing to do for {limit:g} s") from None
            message = delivery.message
            # Only the supervisor commands a node, not every process that has the token.
            if delivery.sender != CONTROL or not self.door.admits(*delivery):
                if delivery.sender != CONTROL:
                    self.door.refuse(*delivery)
                continue
            self._session.welcome = True
            if isinstance(message, Welcome):
                continue
            limit = None
            if isinstance(message, Refusal):
                raise JobError(message.text)
            if isinstance(message, Stop) and not message.drain:
                over.set_result(None)
                return
            try:
                await self._handle(message, context, sender)
            except FlameError as error:
                if isinstance(message, Halt):
                    raise  # its parts have not ended, so that it can be given no others
                self._part_failed(error)
            # The next assignment may never come, if the supervisor has gone without a word.
            if self._failed is not None or isinstance(message, Halt):
                limit = _ASSIGN_TIMEOUT_S

    async def _handle(self, message: object, context: NodeContext, sender: Sender) -> None:
        node_epoch = self._node_epoch
        if isinstance(message, Halt):
            await self._leave(orderly=False)
            self._failed = None
            sender.send(CONTROL, Halted(self.name))
        elif isinstance(message, Assignment):
            if self._beside is None and self._bootstrap.get(ASKED):
                await self._start_watcher(message, sender.endpoint.address)
            self._session.learn(message.locations)
            self._node_epoch = await context.assign(message)
            sender.send(CONTROL, Opened(self.name, message.epoch))
        elif node_epoch is None:
            raise JobError(f"{self.name} was sent a {type(message).__name__} before its assignment")
        elif isinstance(message, Load):
            await node_epoch.load(message.resume, dict(message.grants))
            sender.send(CONTROL, Ready(self.name, node_epoch.assignment.epoch))
        elif isinstance(message, Begin):
            node_epoch.node.begin()
        elif isinstance(message, Stop):
            stop = node_epoch.node.stop
            (stop.fail if message.failing else stop.set)()

    async def _start_watcher(self, assignment: Assignment, address: str) -> None:
        """Start the watcher, before the flow's import is the first that may keep this process busy."""
        silence_s = decode_config(assignment.config).deploy.silence_timeout_s
        self._beside = Beside(self._bootstrap, address, silence_s)
        await self._beside.start()

    async def _leave(self, *, orderly: bool) -> None:
        node_epoch, self._node_epoch = self._node_epoch, None
        if node_epoch is not None:
            await to_its_end(node_epoch.leave(orderly=orderly))

    async def _report(self, sender: Sender) -> None:
        told: dict[str, object] = {}
        told_at = 0.0
        while True:
            await asyncio.sleep(_REPORT_S)
            stats = self._node_epoch.stats() if self._node_epoch is not None else {}
            same_s = min(_SAME_REPORT_S, self._node_epoch.silence_s / 4) if self._node_epoch is not None else 0.0
            now = time.monotonic()
            # Without the clocks of workers, which run while nothing happens.
            counts = {name: value for name, value in stats.items() if name not in CLOCKS}
            if counts != told or now >= told_at + same_s:
                told, told_at = counts, now
                sender.send(CONTROL, NodeReport(self.name, stats))

    # -- faults ----------------------------------------------------------------------------------------------------

    def _part_failed(self, error: BaseException, lost: str = "") -> None:
        """Report a failure to the control.

        The control decides whether the job goes on from a snapshot, or ends.

        Args:
            error: The failure.
            lost: Location of the process that is gone, if that is the reason.
        """
        if self._failed is not None or self._session.over.done():
            return None
        error = self._failed = blamed(error)
        if self._sender is None or not isinstance(error, FlameError):
            return self._session.end(error)
        text, blob = str(error), getattr(error, "blob", "")
        try:
            self._sender.send(CONTROL, NodeFailed(self.name, type(error).__name__, text, blob, lost))
        except FlameError as gone:
            self._session.end(gone)

    def _lost(self, error: PeerGoneError) -> None:
        if self._node_epoch is not None and self._session.concerns(error.peer):
            self._part_failed(error, error.peer)


def _dismissed(endpoint: Endpoint) -> bool:
    """Return whether the control, which is gone, has told this process to end while it was busy with its parts."""
    while (delivery := endpoint.receive_nowait()) is not None:
        if delivery == (CONTROL, Stop(False)):
            return True
    return False


def end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its supervisor ends (Linux).

    Args:
        parent: The supervisor, which may have gone before this was reached.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _nothing(bootstrap: Mapping[str, Any]) -> None:
    return


def main(prepare: Callable[[Mapping[str, Any]], None] = _nothing) -> int:
    """Run the node that a bootstrap file describes.

    Args:
        prepare: Called with the bootstrap before the node joins, when modules are found as the supervisor finds them.

    Returns:
        An exit code of the command line.
    """
    path = Path(sys.argv[1])
    try:
        bootstrap = json.loads(path.read_text())
        # It holds the job's token.
        path.unlink()
    except FileNotFoundError:
        print(f"{path} is gone: the supervisor has ended meanwhile", file=sys.stderr)
        return 1
    end_with_parent(bootstrap["parent"])
    sys.path[:] = bootstrap.get("path", sys.path)  # from here on, modules are found as the supervisor finds them
    prepare(bootstrap)
    logs.to_stderr(alone=True)
    # A terminal, a shell, a service manager sends them to all processes of a job. The supervisor handles them, and the
    # kernel kills this process with it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        with relaxed_gc():
            run(NodeProcess(bootstrap).run())
    except MemoryError as error:
        known: FlameError = memory_error(error, f"the work of {bootstrap['node']}")
    except FlameError as error:
        known = error
    else:
        return 0
    print(block(f"{type(known).__name__}: {known}"), file=sys.stderr)
    return 1


def run_program(prepare: Callable[[Mapping[str, Any]], None] = _nothing) -> NoReturn:
    """Run a node as the main program of its process. Arguments as `main`."""
    code = main(prepare)
    exit_without_waiting(code)
    sys.exit(code)


if __name__ == "__main__":
    run_program()
