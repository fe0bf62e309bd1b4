"""What the control of a deployment hears: what nodes say, what clients ask for, and of nodes that are gone.

A node is gone when its process has ended, when its connection is lost, when others cannot reach it, or when it has
said nothing for long. Whichever is known first counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final, Protocol

from flamecore import __version__, events
from flamecore.crew import Crew
from flamecore.epoch import Epoch, FaultError
from flamecore.errors import FlameError, JobError, TransportError
from flamecore.logs import logger
from flamecore.members import Members
from flamecore.messages import Halted, Join, Left, NodeFailed, NodeReport, Opened, Ready, Refusal
from flamecore.stats import NodeStats

ENDED: Final = "the job has come to its end"
"""What clients are told that come too late."""

_REPLACED: Final = (
    "another process has joined by the name of {name}; processes that run together need names of their own"
)

_GRACE_S: Final = 0.5
"""How long a process that was lost may take to be found dead, so that its last words are told."""

_FAULTS: Final = frozenset(
    ("PeerGoneError", "SendTimeout", "TransportClosedError", "ConnectError", "FrameError", "CorruptError")
)
"""Errors of a node that a new epoch may mend."""


class Hearer(Protocol):
    """Who does something about it."""

    @property
    def id(self) -> str:
        """Of the job."""
        ...

    @property
    def epoch(self) -> Epoch | None:
        """The present one."""
        ...

    def wake(self) -> None:
        """Something has changed that may be waited for."""
        ...

    def fail(self, error: BaseException) -> None:
        """The epoch cannot go on."""
        ...

    def serve(self, client: str, message: Any) -> None:
        """A client has come, or asks for something."""
        ...


class Reception:
    """Hears of the nodes and clients of a job.

    Args:
        members: Who has joined.
        hearer: Told of what matters.
    """

    def __init__(self, members: Members, hearer: Hearer) -> None:
        self.members = members
        self._hearer = hearer
        self._crew: Crew | None = None

    async def listen(self, crew: Crew) -> None:
        """Hear of them, for as long as the job lasts."""
        self._crew = crew
        while True:
            sender, message = await crew.post.endpoint.receive()
            if crew.leaving:
                self._come_too_late(sender, message, crew)
            elif sender.startswith("client/"):
                if isinstance(message, Join):
                    self.members.locations[sender] = message.location
                self._hearer.serve(sender, message)
            elif isinstance(message, Join):
                self._welcome(sender, message, crew)
                self._hearer.wake()
            elif self.members.addresses.get(message.node) != sender:
                crew.send_away(sender)  # it was taken for dead, and is not: it has no part in this
            else:
                self._hear(message)
                self._hearer.wake()

    def _come_too_late(self, sender: str, message: Any, crew: Crew) -> None:
        """The job ends. Clients are told so, and who joins; of nodes only counts matter."""
        if isinstance(message, Join):
            self.members.locations[sender] = message.location
        if sender.startswith("client/"):
            crew.answer(sender, Refusal(ENDED))
        elif isinstance(message, Join):
            crew.send_away(sender)
        elif isinstance(message, NodeReport) and self.members.addresses.get(message.node) == sender:
            self._hear(message)

    # -- what nodes say --------------------------------------------------------------------------------------------

    def _welcome(self, address: str, node: Join, crew: Crew) -> None:
        """A node has come. If another of its name is there, it comes in its place: a service starts again what died."""
        members = self.members
        if node.version != __version__:
            return self._turn_away(address, node, crew)
        over = crew.host.came(node.node, node.attempt)
        if over is None:
            members.locations[address] = node.location
            return crew.send_away(address)
        for name in (node.node, *over):
            if (former := members.addresses.get(name)) is None:
                continue
            if name == node.node:
                crew.answer(former, Refusal(_REPLACED.format(name=name)))
            else:
                crew.send_away(former)
            members.leave(name)
            if name in members.hosts.values():
                self._fault(JobError(f"{node.node} has been started again"))
        members.join(node, address)
        return None

    def _turn_away(self, address: str, node: Join, crew: Crew) -> None:
        """A node of another version has come: it is told so, and the job goes on without it."""
        why = f"{node.node} runs flamestream {node.version}, and the supervisor {__version__}"
        logger().warning(events.NODE_REFUSED, job=self._hearer.id, node=node.node, why=why)
        self.members.locations[address] = node.location
        crew.answer(address, Refusal(f"{why}; install one version everywhere"))

    def _hear(self, message: Any) -> None:
        members, epoch = self.members, self._hearer.epoch
        members.hear(message.node)
        now = epoch.name if epoch is not None else ""
        if isinstance(message, NodeReport):
            if message.stats:
                members.reports[message.node] = NodeStats(**message.stats)
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
            if lost is not None:  # who found out knows only where it was
                text = text.replace(message.lost, f"{lost} at {message.lost}", 1)
            error = JobError(f"{message.node} failed: {text}")
            if message.kind not in _FAULTS:
                self._hearer.fail(error)
            elif lost is None:
                self._fault(error, message.blob)
            elif epoch is not None:
                self._lost_by(lost, error, epoch)

    def _left(self, name: str) -> None:
        """A node ends by itself. That its place is empty is found by the others, too, and they know less of why."""
        if self._crew is not None:
            self._crew.lose(name)
        if name in self.members.hosts.values():
            self._fault(JobError(f"{name} was told to end, where it runs", hint="Stop the job before its workers."))

    # -- what is heard of nodes that are gone ------------------------------------------------------------------------

    async def watch(self, crew: Crew, limit_s: float) -> None:
        """Take nodes for dead that are not heard of, for as long as the job lasts.

        Args:
            crew: The job's.
            limit_s: How long a node may say nothing.
        """
        pause_s = min(limit_s / 4, 1.0)
        while True:
            began = time.monotonic()
            await asyncio.sleep(pause_s)
            if time.monotonic() > began + pause_s + limit_s / 2:
                # This process itself stood still. What the others have said meanwhile is yet to be heard.
                for name in self.members.nodes:
                    self.members.hear(name)
            for name in self.members.silent(limit_s):
                crew.take_for_dead(name)
                self._fault(
                    JobError(
                        f"{name} has not been heard of for {limit_s:g} s",
                        hint="Does a user function keep it busy? deploy.silence_timeout_s says how long it may.",
                    )
                )

    def died(self, name: str, what: str, lines: Sequence[str]) -> None:
        """A process has ended that nobody asked to.

        Args:
            name: Of the node.
            what: How it ended.
            lines: The last that it said.
        """
        self.members.leave(name)
        if self._crew is None or self._crew.is_expected_to_end(name):
            return self._hearer.wake()
        tail = "".join(f"\n    {line}" for line in lines[-8:])
        text = f"{name} {what}" + (f"; its last lines:{tail}" if tail else "")
        hint = "The job has ended. Everything delivered so far is right; run it again."
        return self._fault(JobError(text, hint=hint))

    def lost(self, location: str, error: Exception) -> None:
        """A connection is lost."""
        name, crew = self.members.at(location), self._crew
        if crew is None or crew.leaving or name is None:
            return None
        if not crew.host.watches(name):
            return self._lost_for_good(name, location, error)
        asyncio.get_running_loop().call_later(_GRACE_S, self._lost_for_good, name, location, error)
        return None

    def _lost_for_good(self, name: str, location: str, error: Exception) -> None:
        node, crew = self.members.nodes.get(name), self._crew
        if crew is not None and not crew.leaving and node is not None and node.location == location:
            crew.lose(name)
            self._fault(JobError(f"the connection to {name} is lost: {error}"))

    def _lost_by(self, name: str, error: FlameError, epoch: Epoch) -> None:
        """Somebody cannot reach a node any more. One that was started here and has died tells it in its last words."""
        if self._crew is None or not self._crew.host.watches(name):
            return epoch.fail(FaultError(error))
        asyncio.get_running_loop().call_later(_GRACE_S, epoch.fail, FaultError(error))
        return None

    def trouble(self, error: BaseException) -> None:
        """Something could not be sent to a node. If that is gone already, it is being seen to."""
        if not isinstance(error, TransportError):
            self._hearer.fail(error)
        elif self.members.concerned(getattr(error, "peer", "")):
            self._fault(error)

    def _fault(self, error: FlameError, blob: str = "") -> None:
        self._hearer.fail(FaultError(error, blob))
