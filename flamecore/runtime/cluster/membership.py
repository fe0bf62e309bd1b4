"""The membership of a job: its nodes, their places, and their progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass

from flamecore.abc.host import NodeState
from flamecore.errors import PeerGoneError
from flamecore.model.messages import CONTROL, Join
from flamecore.runtime.parts.counters import NodeStats
from flamecore.runtime.tasks.epoch_transport import plain


@dataclass(slots=True)
class Sight:
    """The last word of a watcher beside a node.

    Attributes:
        watcher: Address of the watcher.
        state: State of the node's process.
        heard: Time of the word, by the monotonic clock.
    """

    watcher: str
    state: NodeState
    heard: float


class Membership:
    """The nodes of a job, as its supervisor knows them.

    Attributes:
        nodes: Nodes that have joined and are not gone, by name.
        addresses: Address of each of them, by name.
        epoch: Name of the present epoch.
        hosts: The node that hosts a part, by address of the part.
        opened, ready, halted: Names of the nodes that have reached this point in the present epoch.
        reports: The last counts of each node.
        standby: Names of nodes that get no parts: those of another version of the flow.
        seen: The last words of the watchers beside nodes, by name of the node.
        waited: The state of each silent node that the job waits for, by name.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Join] = {}
        self.epoch = ""
        self.hosts: dict[str, str] = {}
        self.opened: set[str] = set()
        self.ready: set[str] = set()
        self.halted: set[str] = set()
        self.addresses: dict[str, str] = {}
        self.reports: dict[str, NodeStats] = {}
        self.standby: set[str] = set()
        self.locations: dict[str, str] = {}
        self.seen: dict[str, Sight] = {}
        self.waited: dict[str, NodeState] = {}
        self._heard: dict[str, float] = {}
        self._changed = asyncio.Event()

    def join(self, node: Join, address: str) -> None:
        """Add a node.

        Args:
            node: Its own description.
            address: The address of this one process, although others may have had or get its name.
        """
        self.nodes[node.node] = node
        self.addresses[node.node] = address
        self.locations[address] = node.location
        self.hear(node.node)

    def leave(self, name: str) -> Join | None:
        """Remove a node and return it; None if it is not there."""
        self.addresses.pop(name, None)
        self._forget(name)
        self.waited.pop(name, None)
        for names in (self.opened, self.ready, self.halted):
            names.discard(name)
        return self.nodes.pop(name, None)

    def wake(self) -> None:
        """Wake all that wait for a change.

        Each change has an event of its own, so that no waiter can take it from another.
        """
        self._changed.set()
        self._changed = asyncio.Event()

    def change(self) -> Awaitable[object]:
        """Return an awaitable of the next change, from this moment on."""
        return self._changed.wait()

    def hear(self, name: str) -> None:
        """Note that a node has sent a message."""
        self._heard[name] = time.monotonic()

    def see(self, name: str, watcher: str, state: NodeState) -> bool:
        """Note the word of a watcher of a node; return False if another one watches it."""
        if (sight := self.seen.get(name)) is not None and sight.watcher != watcher:
            return False
        self.seen[name] = Sight(watcher, state, time.monotonic())
        return True

    def seen_state(self, name: str, limit_s: float) -> NodeState | None:
        """Return what the watcher of a node says of it; None: it has none, or one without a word for `limit_s`."""
        sight = self.seen.get(name)
        return sight.state if sight is not None and sight.heard >= time.monotonic() - limit_s else None

    def lose_sight(self, location: str) -> None:
        """Note that the process at a location is gone: if it is a watcher, its node is judged by its own messages."""
        for name, sight in tuple(self.seen.items()):
            if self.locations.get(sight.watcher) == location:
                self._forget(name)
                self.hear(name)  # its silence has not counted so far

    def _forget(self, name: str) -> None:
        if (sight := self.seen.pop(name, None)) is not None:
            self.locations.pop(sight.watcher, None)

    def hear_all(self) -> None:
        """Note that this process itself stood still, and has yet to receive the messages of that time."""
        for name in self.nodes:
            self.hear(name)
        for sight in self.seen.values():
            sight.heard = time.monotonic()

    def silent(self, limit_s: float) -> list[str]:
        """Return the nodes without a message for `limit_s`."""
        before = time.monotonic() - limit_s
        return [name for name in self.nodes if self._heard[name] < before]

    def silence_of(self, name: str) -> float:
        """Return the seconds since the last message of a node."""
        return time.monotonic() - self._heard[name]

    def begin_epoch(self, epoch: str) -> None:
        """Clear the progress of all nodes, for a new epoch of this name."""
        self.epoch = epoch
        self.opened.clear()
        self.ready.clear()
        self.halted.clear()

    def named(self, role: str) -> list[str]:
        """Return the names of the nodes of a role, in the order in which they get parts."""
        names = [name for name, node in self.nodes.items() if node.role == role and name not in self.standby]
        # By length first: worker-2 comes before worker-10.
        return sorted(names, key=lambda name: (len(name), name))

    def hosting(self, role: str) -> list[str]:
        """Return the names of the nodes of a role that have parts.

        Others are spare.
        """
        hosts = set(self.hosts.values())
        return [name for name in self.named(role) if name in hosts]

    @property
    def parts(self) -> list[str]:
        """Return the names of the nodes that can be given parts."""
        return [*self.named("worker"), *self.named("acker")]

    def parts_of(self, name: str) -> tuple[str, ...]:
        """Return the addresses of the parts of a node, sorted."""
        return tuple(sorted(address for address, host in self.hosts.items() if host == name))

    @property
    def sites(self) -> list[str]:
        """Return where nodes are, in the words of their host."""
        return [node.site for node in self.nodes.values() if node.site]

    def at(self, location: str) -> str | None:
        """Return the node at a location; None if there is none."""
        return next((name for name, node in self.nodes.items() if node.location == location), None)

    def concerned(self, peer: str) -> bool:
        """Return whether an error of a transport is about a present node.

        `peer` is an address, or a location.
        """
        return peer in self.addresses.values() or self.at(peer) is not None

    def locate(self, address: str) -> str:
        """Return the location of an address.

        Raises:
            PeerGoneError: It is not known.
        """
        try:
            return self.locations[plain(address)]
        except KeyError:
            raise PeerGoneError(f"the location of {address} is not known", address=CONTROL, peer=address) from None

    def described(self) -> dict[str, object]:
        """Return the nodes and the parts that they host, for people and programs."""
        return {
            name: {
                "role": node.role,
                "location": node.location,
                "pid": node.pid,
                **({"site": node.site} if node.site else {}),
                **(
                    {"state": self.waited[name], "silent_s": round(self.silence_of(name), 1)}
                    if name in self.waited
                    else {}
                ),
                "parts": list(self.parts_of(name)),
            }
            for name, node in sorted(self.nodes.items())
        }
