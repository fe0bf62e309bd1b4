"""The control plane: messages of nodes and clients in, events out.

It notes in the membership the messages of nodes about themselves, and sends nothing. An event is a value in a queue, on
which the job acts.

A node is gone when its process has ended, when its connection is lost, when others cannot reach it, or when nothing has
been heard of it for long, neither from itself nor from who asks the system that it runs on: its host, or the watcher
beside it (`flamecore.runtime.cluster.watching`). The first of these counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from flamecore import errors, events
from flamecore.abc.host import NodeState
from flamecore.abc.transport import Endpoint
from flamecore.errors import FlameError, JobError, PluginError, TransportError
from flamecore.logs import logger
from flamecore.model.messages import (
    CLIENT,
    CONTROL,
    NODE,
    OPERATOR,
    WATCHER,
    Halted,
    Join,
    Left,
    NodeFailed,
    NodeReport,
    Opened,
    Ready,
    Rescale,
    Upgrade,
    Watched,
)
from flamecore.runtime.cluster.membership import Membership
from flamecore.runtime.engine.epoch import FaultError
from flamecore.runtime.parts.counters import NodeStats
from flamecore.runtime.tasks.door import Door, Fits, anything

ENDED: Final = "the job has come to its end"
"""The answer to clients that come too late."""

_CONFIG_BYTES: Final = 2**20
"""Longest configuration that a client may send: decoded, it takes many times as much memory."""

_TOLD_S: Final = 10.0
"""Seconds of silence of a node after which it is told of, and between two words of it."""


_NOTICED_S: Final = 7.0
"""Seconds in which a node that can says that it is at work, or ends a call itself."""


def _unknown(name: str) -> NodeState | None:
    return None


_FAULTS: Final = frozenset(
    ("PeerGoneError", "SendTimeout", "TransportClosedError", "ConnectError", "FrameError", "CorruptError")
)
"""Errors of a node that a new epoch may repair."""


def _error_of(kind: str, text: str) -> FlameError:
    """Return the error of a node: a mistake of a plugin as what it is, since its exit code is another one."""
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, PluginError):
        return found(text)
    return JobError(text)


def _has_stats(report: NodeReport) -> bool:
    try:
        msgspec.convert(report.stats, NodeStats)
    except msgspec.ValidationError:
        return False
    return True


ROLES: Final[Mapping[type, tuple[str, ...]]] = {
    Join: (CLIENT, OPERATOR, NODE),
    NodeReport: (CLIENT, OPERATOR, NODE),
    Rescale: (OPERATOR,),
    Upgrade: (OPERATOR,),
    Opened: (NODE,),
    Ready: (NODE,),
    Halted: (NODE,),
    Left: (NODE,),
    NodeFailed: (NODE,),
    Watched: (NODE,),
}
"""Every kind of message that the control takes, with the prefixes of the addresses from which it takes it. A transport
with certificates lets a process send from the addresses of its role alone."""

_FITS: Final[Mapping[type, Fits]] = {
    NodeReport: _has_stats,
    Upgrade: lambda upgrade: len(upgrade.config) <= _CONFIG_BYTES,
}


def refusal_of(sender: str, message: object) -> str:
    """Return why the control does not take a message, for its sender; empty: it does."""
    roles = ROLES.get(type(message), ())
    if sender.startswith(roles):
        return ""
    kind, known = type(message).__name__, " or ".join(role.rstrip("/") for role in roles)
    return f"a {kind} is taken from the role {known}, and {sender} has another" if roles else f"{kind} is no message"


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a client, or of a process that is no node of the job, or not yet."""

    address: str
    message: object


@dataclass(frozen=True, slots=True)
class Lost:
    """The loss of a node.

    Attributes:
        name: Name of the node.
        how: Its process has ended ("died"), or is being ended ("left"); its watcher says that it is gone ("gone");
            nothing was heard of it ("silent"), one call of it lasts too long ("stuck"), or its connection is lost
            ("cut").
        error: The same for people.
        location: Location of its process, if it is cut off.
    """

    name: str
    how: Literal["died", "left", "gone", "silent", "stuck", "cut"]
    error: FlameError
    location: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """An error that ends the epoch.

    Attributes:
        error: The error; a `FaultError` if another epoch may follow.
        unreachable: Name of the node that another one cannot reach, if that is it.
    """

    error: BaseException
    unreachable: str = ""


@dataclass(frozen=True, slots=True)
class Denied:
    """The refusal of a request before anything acts on it, for the client that waits for an answer."""

    address: str
    why: str


Event = Said | Denied | Lost | Failed
"""An event that a job acts on. All other messages change the membership alone."""


class ControlPlane:
    """The receiver of all messages of a job's nodes and clients.

    Args:
        members: The nodes that have joined.
        job: Name of the job, for the log.
        silence_s: Longest time without a message of a process of which nothing else is known.
        call_limit_s: Most seconds of a call of a user's function; None: any number.

    Attributes:
        state_of: Function that returns what the host says of the process of a node; None: nothing is known.
        events: The events that the job has not acted on yet.
        door: The filter of messages.
    """

    def __init__(
        self, members: Membership, job: str = "", silence_s: float = 30.0, call_limit_s: float | None = None
    ) -> None:
        self.members, self._job, self._silence_s, self._call_limit_s = members, job, silence_s, call_limit_s
        self.state_of: Callable[[str], NodeState | None] = _unknown
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.door = Door(CONTROL, {kind: _FITS.get(kind, anything) for kind in ROLES})

    async def listen(self, endpoint: Endpoint) -> None:
        """Receive messages, for as long as the job lasts."""
        while True:
            await self.events.join()  # messages wait outside, where their number is bounded
            sender, message = await endpoint.receive()
            if self.door.admits(sender, message):
                self.receive(sender, message)
            elif sender.startswith((CLIENT, OPERATOR)) and type(message) in ROLES:  # it waits for an answer
                self.events.put_nowait(Denied(sender, f"the job does not take this {type(message).__name__}"))

    def receive(self, sender: str, message: Any) -> None:
        """Process a message that the door has admitted."""
        client = sender.startswith((CLIENT, OPERATOR))
        if why := refusal_of(sender, message):
            self.door.refuse(sender, message)
            if client:
                self.events.put_nowait(Denied(sender, why))
        elif isinstance(message, Watched):
            self._see(sender, message)
        elif isinstance(message, Join) and message.role == WATCHER:
            self.members.locations[sender] = message.location
        # The job answers a process that is no member, or is an earlier one of a member's name.
        elif client or isinstance(message, Join) or self.members.addresses.get(message.node) != sender:
            self.events.put_nowait(Said(sender, message))
        else:
            self._hear(message)
            self.members.wake()

    def _hear(self, message: Any) -> None:
        members, name = self.members, message.node
        members.hear(name)
        if isinstance(message, NodeReport):
            if message.stats:
                members.reports[name] = msgspec.convert(message.stats, NodeStats)
        # Only for the present epoch: a node may answer late for one that has ended.
        elif isinstance(message, Opened) and message.epoch == members.epoch:
            members.opened.add(name)
        elif isinstance(message, Ready) and message.epoch == members.epoch:
            members.ready.add(name)
        elif isinstance(message, Halted):
            members.halted.add(name)
            members.reports.pop(name, None)  # of the epoch that has ended; it came behind the end of its counts
        elif isinstance(message, Left):  # others only see that it is gone, and know less of the reason
            left = JobError(f"{name} was told to end, where it runs", hint="Stop the job before its workers.")
            self.events.put_nowait(Lost(name, "left", left))
        elif isinstance(message, NodeFailed):
            text, lost = message.text, members.at(message.lost)
            if lost is not None:  # the node that noticed knows only the location
                text = text.replace(message.lost, f"{lost} at {message.lost}", 1)
            error = _error_of(message.kind, f"{name} failed: {text}")
            if message.kind in _FAULTS:
                self.events.put_nowait(Failed(FaultError(error, message.blob), lost or ""))
            else:
                self.events.put_nowait(Failed(error))

    def _see(self, watcher: str, word: Watched) -> None:
        """Note the word of a watcher, if it is of a member, and not of an earlier process of its name."""
        members, name, state = self.members, word.node, word.state
        if members.addresses.get(name) != word.address:
            return
        if state == "gone":
            node = members.nodes[name]
            tail = "".join(f"\n    {line}" for line in word.why.splitlines())
            error = JobError(f"{name} (process {node.pid}) has ended" + (f"; its last words:{tail}" if tail else ""))
            self.events.put_nowait(Lost(name, "gone", error, node.location))
        elif not members.see(name, watcher, state):
            self.door.refuse(watcher, word)

    # -- nodes that are gone -----------------------------------------------------------------------------------------

    def state(self, name: str) -> NodeState | None:
        """Return what the system that a node runs on says of its process; None: nothing is known."""
        return self.state_of(name) or self.members.seen_state(name, self._silence_s)

    def watches(self, location: str) -> bool:
        """Return whether the process at a location is there, by what the system says of it."""
        name = self.members.at(location)
        return name is not None and self.state(name) is not None

    async def watch(self) -> None:
        """Report silent nodes as lost, for as long as the job lasts; tell of those that the system says are there."""
        limit_s = self._silence_s
        pause_s = min(limit_s / 4, 1.0)
        told: dict[str, tuple[NodeState, float]] = {}  # the last word of a silent node: its state, and when
        while True:
            began = time.monotonic()
            await asyncio.sleep(pause_s)
            if time.monotonic() > began + pause_s + limit_s / 2:
                self.members.hear_all()
            silent = self.members.silent(min(limit_s, _TOLD_S))
            for name in self.members.waited.keys() - silent:
                del self.members.waited[name]
            for name in silent:
                if (state := self.state(name)) is not None:
                    if state == "running" and self._is_stuck(name):
                        continue
                    self.members.waited[name] = state
                    said, at = told.get(name, ("", 0.0))
                    if state != said or time.monotonic() >= at + _TOLD_S:
                        told[name] = state, time.monotonic()
                        self._tell_silent(name, state)
                    continue
                if self.members.silence_of(name) < limit_s:
                    continue
                error = JobError(
                    f"{name} has not been heard of for {limit_s:g} s",
                    hint="Neither it nor a process beside it says anything: does its machine run, and the network? "
                    "deploy.silence_timeout_s says how long they may be away.",
                )
                self.events.put_nowait(Lost(name, "silent", error))

    def _is_stuck(self, name: str) -> bool:
        """Return whether a call of a node is beyond its limit, which no thread of the node has noticed; report it."""
        members, limit_s = self.members, self._call_limit_s
        if limit_s is None or name not in members.ready or members.silence_of(name) < limit_s + _NOTICED_S:
            return False
        error = JobError(
            f"a call of {name} (process {members.nodes[name].pid}) has lasted for more than job.call_limit_s = "
            f"{limit_s:g} s, in code in C that keeps the interpreter",
            hint="Its process has been killed; what it was at cannot be told from outside.",
        )
        self.events.put_nowait(Lost(name, "stuck", error))
        return True

    def _tell_silent(self, name: str, state: NodeState) -> None:
        logger().warning(
            events.NODE_WAITED,
            job=self._job,
            node=name,
            state=state,
            pid=self.members.nodes[name].pid,
            silent_s=round(self.members.silence_of(name), 1),
        )

    def died(self, name: str, what: str, lines: Sequence[str]) -> None:
        """Note that a process has ended unasked.

        Args:
            name: Name of the node.
            what: The way it ended.
            lines: Its last lines.
        """
        tail = "".join(f"\n    {line}" for line in lines[-8:])
        text = f"{name} {what}" + (f"; its last lines:{tail}" if tail else "")
        hint = "The job has ended. Everything delivered so far is right; run it again."
        self.events.put_nowait(Lost(name, "died", JobError(text, hint=hint)))

    def lost(self, location: str, error: Exception) -> None:
        """Note that a connection is lost."""
        self.members.lose_sight(location)
        name = self.members.at(location)
        if name is not None:
            error = JobError(f"the connection to {name} is lost: {error}")
            self.events.put_nowait(Lost(name, "cut", error, location))

    def trouble(self, error: BaseException) -> None:
        """Handle an error of sending to a node.

        If the node is gone already, that is handled elsewhere.
        """
        if not isinstance(error, TransportError):
            self.events.put_nowait(Failed(error))
        elif self.members.concerned(getattr(error, "peer", "")):
            self.events.put_nowait(Failed(FaultError(error)))
