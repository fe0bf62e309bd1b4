"""The control plane: messages of nodes and clients in, and lost nodes noticed.

A node is gone when its process has ended, when its connection is lost, when others cannot reach it, or when it has been
silent for long. The first of these counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from flamecore import events
from flamecore._version import __version__
from flamecore.errors import FlameError, JobError, TransportError
from flamecore.logs import logger
from flamecore.model.messages import (
    CONTROL,
    Halted,
    Join,
    Left,
    NodeFailed,
    NodeReport,
    Opened,
    Ready,
    Refusal,
    Rescale,
    Upgrade,
    Welcome,
)
from flamecore.runtime.cluster.membership import Membership
from flamecore.runtime.cluster.nodes import NodeManager
from flamecore.runtime.engine.epoch import Epoch, FaultError
from flamecore.runtime.parts.counters import NodeStats
from flamecore.runtime.tasks.door import Door, Fits, anything

ENDED: Final = "the job has come to its end"
"""The answer to clients that come too late."""

_REPLACED: Final = (
    "another process has joined by the name of {name}; processes that run together need names of their own"
)

_CONFIG_BYTES: Final = 2**20
"""Longest configuration that a client may send: what it holds takes many times as much."""

_GRACE_S: Final = 0.5
"""Longest wait for a lost process to be found dead, so that its last words are reported."""

_FAULTS: Final = frozenset(
    ("PeerGoneError", "SendTimeout", "TransportClosedError", "ConnectError", "FrameError", "CorruptError")
)
"""Errors of a node that a new epoch may repair."""


def _has_stats(report: NodeReport) -> bool:
    try:
        msgspec.convert(report.stats, NodeStats)
    except msgspec.ValidationError:
        return False
    return True


_OF_CLIENTS: Final[Mapping[type, Fits]] = {
    **dict.fromkeys((Join, Rescale, NodeReport), anything),
    Upgrade: lambda upgrade: len(upgrade.config) <= _CONFIG_BYTES,
}
_OF_NODES: Final[Mapping[type, Fits]] = {
    **dict.fromkeys((Join, Opened, Ready, Halted, Left, NodeFailed), anything),
    NodeReport: _has_stats,
}
"""The messages of clients, and those of nodes."""


class ControlledJob(Protocol):
    """The job that acts on what the control plane hears."""

    @property
    def id(self) -> str:
        """Return the id of the job."""
        ...

    @property
    def epoch(self) -> Epoch | None:
        """Return the present epoch."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the epoch with an error."""
        ...

    def serve(self, client: str, message: object) -> None:
        """Serve a client that has joined, or sent a request."""
        ...


class ControlPlane:
    """The receiver of all messages of a job's nodes and clients.

    Args:
        members: The nodes that have joined.
        job: The job that acts on the messages.
    """

    def __init__(self, members: Membership, job: ControlledJob) -> None:
        self.members = members
        self._job = job
        self._nodes: NodeManager | None = None
        self._coming: dict[str, asyncio.Task[None]] = {}
        self.door = Door(CONTROL, {**_OF_CLIENTS, **_OF_NODES})

    async def listen(self, nodes: NodeManager) -> None:
        """Receive messages, for as long as the job lasts."""
        self._nodes = nodes
        try:
            await self._listen(nodes)
        finally:
            for task in self._coming.values():
                task.cancel()
            await asyncio.gather(*self._coming.values(), return_exceptions=True)

    async def _listen(self, nodes: NodeManager) -> None:
        while True:
            sender, message = await nodes.sender.endpoint.receive()
            if not self.door.admits(sender, message):
                continue
            if type(message) not in (_OF_CLIENTS if sender.startswith("client/") else _OF_NODES):
                self.door.refuse(sender, message)
            elif nodes.leaving:
                self._come_too_late(sender, message, nodes)
            elif sender.startswith("client/"):
                if isinstance(message, Join):
                    self.members.locations[sender] = message.location
                self._job.serve(sender, message)
            elif sender in self._coming:
                if isinstance(message, Left | NodeFailed):
                    self._coming[sender].cancel()
            elif isinstance(message, Join):
                self._coming[sender] = task = asyncio.create_task(self._reach(sender, message, nodes))
                task.add_done_callback(partial(self._reached, sender))
            elif self.members.addresses.get(message.node) != sender:
                nodes.turn_away(sender)  # declared dead, and still alive: it has no part in this epoch
            else:
                self._hear(message)
                self.members.wake()

    def _come_too_late(self, sender: str, message: object, nodes: NodeManager) -> None:
        """Handle a message while the job ends.

        Clients and nodes that join are turned away; of nodes only counts matter.
        """
        if isinstance(message, Join):
            self.members.locations[sender] = message.location
        if sender.startswith("client/"):
            nodes.answer(sender, Refusal(ENDED))
        elif isinstance(message, Join):
            nodes.turn_away(sender)
        elif isinstance(message, NodeReport) and self.members.addresses.get(message.node) == sender:
            self._hear(message)

    # -- messages of nodes -----------------------------------------------------------------------------------------

    async def _reach(self, address: str, node: Join, nodes: NodeManager) -> None:
        """Admit a node if it can be reached at its location, or refuse it alone."""
        self.members.locations[address] = node.location
        try:
            await nodes.sender.endpoint.send(address, Welcome())
        except FlameError as error:
            self.members.locations.pop(address, None)
            why = f"it cannot be reached at {node.location}: {' '.join(str(error).split())}"
            logger().warning(events.NODE_REFUSED, job=self._job.id, node=node.node, why=why)
            return
        if nodes.leaving:
            nodes.turn_away(address)
        else:
            self._welcome(address, node, nodes)
            self.members.wake()

    def _reached(self, address: str, task: asyncio.Task[None]) -> None:
        del self._coming[address]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._job.fail(error)

    def _welcome(self, address: str, node: Join, nodes: NodeManager) -> None:
        """Admit a node, in the place of an earlier process of its name.

        A service manager starts again what has died.
        """
        members = self.members
        if node.version != __version__:
            return self._turn_away(address, node, nodes)
        over = nodes.host.came(node.node, node.attempt)
        if over is None:
            members.locations[address] = node.location
            return nodes.turn_away(address)
        for name in (node.node, *over):
            if (former := members.addresses.get(name)) is None:
                continue
            if name == node.node:
                nodes.answer(former, Refusal(_REPLACED.format(name=name)))
            else:
                nodes.turn_away(former)
            members.leave(name)
            if name in members.hosts.values():
                self._fault(JobError(f"{node.node} has been started again"))
        members.join(node, address)
        return None

    def _turn_away(self, address: str, node: Join, nodes: NodeManager) -> None:
        """Refuse a node of another version; the job goes on without it."""
        why = f"{node.node} runs flamestream {node.version}, and the supervisor {__version__}"
        logger().warning(events.NODE_REFUSED, job=self._job.id, node=node.node, why=why)
        self.members.locations[address] = node.location
        nodes.answer(address, Refusal(f"{why}; install one version everywhere"))

    def _hear(self, message: Any) -> None:
        members, epoch = self.members, self._job.epoch
        members.hear(message.node)
        now = epoch.name if epoch is not None else ""
        if isinstance(message, NodeReport):
            if message.stats:
                members.reports[message.node] = msgspec.convert(message.stats, NodeStats)
        elif isinstance(message, Opened) and message.epoch == now:
            members.opened.add(message.node)
        elif isinstance(message, Ready) and message.epoch == now:
            members.ready.add(message.node)
        elif isinstance(message, Halted):
            members.halted.add(message.node)
        elif isinstance(message, Left):
            self._left(message.node)
        elif isinstance(message, NodeFailed):
            text, lost = message.text, members.at(message.lost)
            if lost is not None:  # the node that noticed knows only the location
                text = text.replace(message.lost, f"{lost} at {message.lost}", 1)
            error = JobError(f"{message.node} failed: {text}")
            if message.kind not in _FAULTS:
                self._job.fail(error)
            elif lost is None:
                self._fault(error, message.blob)
            elif epoch is not None:
                self._lost_by(lost, error, epoch)

    def _left(self, name: str) -> None:
        """Note that a node ends by itself.

        Others only see that it is gone, and know less of the reason.
        """
        if self._nodes is not None:
            self._nodes.lose(name)
        if name in self.members.hosts.values():
            self._fault(JobError(f"{name} was told to end, where it runs", hint="Stop the job before its workers."))

    # -- nodes that are gone -----------------------------------------------------------------------------------------

    async def watch(self, nodes: NodeManager, limit_s: float) -> None:
        """Declare silent nodes dead, for as long as the job lasts.

        Args:
            nodes: The job's nodes.
            limit_s: Longest time without a message.
        """
        pause_s = min(limit_s / 4, 1.0)
        while True:
            began = time.monotonic()
            await asyncio.sleep(pause_s)
            if time.monotonic() > began + pause_s + limit_s / 2:
                # This process itself stood still, and has yet to receive the messages of that time.
                for name in self.members.nodes:
                    self.members.hear(name)
            for name in self.members.silent(limit_s):
                nodes.declare_dead(name)
                self._fault(
                    JobError(
                        f"{name} has not been heard of for {limit_s:g} s",
                        hint="Does a user function keep it busy? deploy.silence_timeout_s says how long it may.",
                    )
                )

    def died(self, name: str, what: str, lines: Sequence[str]) -> None:
        """Note that a process has ended unasked.

        Args:
            name: Name of the node.
            what: The way it ended.
            lines: Its last lines.
        """
        self.members.leave(name)
        if self._nodes is None or self._nodes.is_expected_to_end(name):
            return self.members.wake()
        tail = "".join(f"\n    {line}" for line in lines[-8:])
        text = f"{name} {what}" + (f"; its last lines:{tail}" if tail else "")
        hint = "The job has ended. Everything delivered so far is right; run it again."
        return self._fault(JobError(text, hint=hint))

    def lost(self, location: str, error: Exception) -> None:
        """Note that a connection is lost."""
        name, nodes = self.members.at(location), self._nodes
        if nodes is None or nodes.leaving or name is None:
            return None
        if not nodes.host.watches(name):
            return self._lost_for_good(name, location, error)
        asyncio.get_running_loop().call_later(_GRACE_S, self._lost_for_good, name, location, error)
        return None

    def _lost_for_good(self, name: str, location: str, error: Exception) -> None:
        node, nodes = self.members.nodes.get(name), self._nodes
        if nodes is not None and not nodes.leaving and node is not None and node.location == location:
            nodes.lose(name)
            self._fault(JobError(f"the connection to {name} is lost: {error}"))

    def _lost_by(self, name: str, error: FlameError, epoch: Epoch) -> None:
        """Fail the epoch because a node cannot reach another one.

        If that was started here, its last words come first.
        """
        if self._nodes is None or not self._nodes.host.watches(name):
            return epoch.fail(FaultError(error))
        asyncio.get_running_loop().call_later(_GRACE_S, epoch.fail, FaultError(error))
        return None

    def trouble(self, error: BaseException) -> None:
        """Handle an error of sending to a node.

        If the node is gone already, that is handled elsewhere.
        """
        if not isinstance(error, TransportError):
            self._job.fail(error)
        elif self.members.concerned(getattr(error, "peer", "")):
            self._fault(error)

    def _fault(self, error: FlameError, blob: str = "") -> None:
        self._job.fail(FaultError(error, blob))
