"""The main program of a node process: join a job, run what is assigned, end when told to or when the job is gone.

python -m flamecore.process BOOTSTRAP.json
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec

from flamecore import __version__, logs
from flamecore.codec import Codec
from flamecore.config import JobConfig
from flamecore.errors import FlameError, JobError, PeerGoneError, TransportError
from flamecore.host import CONTROL, Post
from flamecore.job import collector_at_rest, make_plan
from flamecore.launch import lay_out
from flamecore.layout import Layout, options_of
from flamecore.messages import Assignment, Begin, Join, NodeFailed, NodeReport, Ready, Status, Stop
from flamecore.node import Node
from flamecore.reference import load_flow
from flamecore.registry import Registry
from flamecore.transport import Transport, TransportContext

_REPORT_S: Final = 0.5
_ASSIGN_TIMEOUT_S: Final = 60.0
_LOOK_TIMEOUT_S: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1


class Process:
    """One node process.

    Args:
        bootstrap: How to join: transport and its options, job, epoch, token, names, and where the control is.
    """

    def __init__(self, bootstrap: Mapping[str, Any]) -> None:
        self.bootstrap = bootstrap
        self.name: str = bootstrap["node"]
        self._locations: dict[str, str] = {CONTROL: bootstrap["control"]}
        self._over: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Until told to end.

        Raises:
            FlameError: It cannot join, or a part fails; the control has been told.
        """
        codec = Codec()
        async with self._joined(codec) as (transport, post, over):
            try:
                await self._serve(transport, post, codec, over)
            except FlameError as error:
                with suppress(TransportError):  # the control may be who cannot be reached
                    post.send(CONTROL, NodeFailed(self.name, type(error).__name__, str(error)))
                raise

    async def look(self) -> dict[str, Any]:
        """Ask the control how the job is, and leave.

        Raises:
            FlameError: It cannot be reached, or does not answer.
        """
        async with self._joined(Codec()) as (_, post, over):
            answer = await self._heard(post, over, _LOOK_TIMEOUT_S)
        if not isinstance(answer, Status):
            raise JobError(f"the job answered with a {type(answer).__name__}")
        return answer.facts

    @asynccontextmanager
    async def _joined(self, codec: Codec) -> AsyncIterator[tuple[Transport, Post, asyncio.Future[None]]]:
        """Listen, and tell the control where."""
        over = self._over = asyncio.get_running_loop().create_future()
        transport = self._transport(codec)
        try:
            location = await transport.start()
            kind = "client" if self.bootstrap["role"] == "observer" else "node"
            post = Post(await transport.bind(f"{kind}/{self.name}"), self._fail)
            try:
                post.send(CONTROL, Join(self.name, self.bootstrap["role"], location, os.getpid(), __version__))
                yield transport, post, over
            finally:
                await post.aclose()
        finally:
            await transport.aclose()

    def _transport(self, codec: Codec) -> Transport:
        registry = Registry()
        driver = registry.get("transport", self.bootstrap["transport"])
        options = options_of(driver, self.bootstrap["options"], f"transport.{self.bootstrap['transport']}")
        made: Transport = driver(
            options,
            TransportContext(
                job=self.bootstrap["job"],
                epoch=self.bootstrap["epoch"],
                codec=codec,
                node=self.name,
                token=self.bootstrap["token"],
                folder=self.bootstrap["folder"],
                locate=self._locate,
                lost=self._lost,
            ),
        )
        return made

    async def _heard(self, post: Post, over: asyncio.Future[None], limit_s: float) -> Any:
        """What the control says next.

        Raises:
            FlameError: This node has come to its end before that: the control cannot be reached, or is gone.
            JobError: It says nothing.
        """
        receiving = asyncio.create_task(post.endpoint.receive())
        try:
            await asyncio.wait((receiving, over), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                return receiving.result().message
            if over.done():
                await over
        finally:
            receiving.cancel()
            await asyncio.wait((receiving,))
        raise JobError(
            f"the job at {self.bootstrap['control']} has not answered {self.name} within {limit_s:g} s",
            hint="Does its supervisor run, and wait for nodes still?",
        )

    async def _serve(self, transport: Transport, post: Post, codec: Codec, over: asyncio.Future[None]) -> None:
        assignment = await self._heard(post, over, _ASSIGN_TIMEOUT_S)
        if isinstance(assignment, Stop):
            return
        if not isinstance(assignment, Assignment):
            raise JobError(f"{self.name} was sent a {type(assignment).__name__} before its assignment")
        self._locations.update(assignment.locations)
        layout = _layout(assignment)
        assert layout.graph is not None
        codec.learn(layout.graph)
        node = await self._build(layout, assignment, transport)
        commands = asyncio.create_task(self._obey(node, post, over))
        reports = asyncio.create_task(self._report(node, post))
        for task in (commands, reports):
            task.add_done_callback(self._task_ended)
        try:
            node.listen()
            post.send(CONTROL, Ready(self.name))
            await over
        finally:
            for task in (commands, reports):
                task.cancel()
            await asyncio.wait((commands, reports))
            await node.aclose()
            with suppress(PeerGoneError):  # whoever told this process to end may be gone already
                post.send(CONTROL, NodeReport(self.name, asdict(node.stats())))

    async def _build(self, layout: Layout, assignment: Assignment, transport: Transport) -> Node:
        """The parts of the assignment, with their sources open."""
        from flamecore.deployment import acker_plan

        assert layout.graph is not None
        plan = make_plan(layout.graph, layout.sources, layout.settings, fronts=assignment.fronts)
        node = Node(plan, transport, fail=self._fail)
        acker = layout.acker(acker_plan(plan))
        await node.open_sources(layout.sources, assignment.workers)
        for index in assignment.trackers:
            await node.add_tracker(acker, index)
        for index in assignment.workers:
            await node.add_worker(acker, index)
        return node

    def _locate(self, address: str) -> str:
        try:
            return self._locations[address]
        except KeyError:
            raise PeerGoneError(f"nobody has said where {address} is", address=self.name, peer=address) from None

    async def _obey(self, node: Node, post: Post, over: asyncio.Future[None]) -> None:
        while True:
            message = (await post.endpoint.receive()).message
            if isinstance(message, Begin):
                node.begin()
            elif isinstance(message, Stop) and message.drain:
                node.stop.set()
            elif isinstance(message, Stop) and not over.done():
                over.set_result(None)

    async def _report(self, node: Node, post: Post) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            post.send(CONTROL, NodeReport(self.name, asdict(node.stats())))

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _lost(self, location: str, error: Exception) -> None:
        self._fail(JobError(f"{self.name} lost its connection to {location}: {error}"))

    def _fail(self, error: BaseException) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)


def _layout(assignment: Assignment) -> Layout:
    """What the control has laid out, here."""
    config = msgspec.json.decode(assignment.config, type=JobConfig, dec_hook=lambda kind, value: kind(value))
    reference, folder = assignment.flow
    layout = lay_out(config, load_flow(reference, Path(folder)))
    layout.problems.raise_first()
    return layout


def _end_with_parent() -> None:
    """Have the kernel kill this process when its supervisor is gone, however it went (Linux)."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it went meanwhile
            os._exit(1)


def main() -> int:
    """Run the node that a bootstrap file describes. Exit codes as of the command line."""
    path = Path(sys.argv[1])
    bootstrap = json.loads(path.read_text())
    path.unlink()
    _end_with_parent()
    logs.to_stderr()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to hear
    try:
        with collector_at_rest():
            asyncio.run(Process(bootstrap).run())
    except FlameError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
