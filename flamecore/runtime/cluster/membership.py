"""Who is in a job of several processes, where each is, and how far each has come with what it was told."""

from __future__ import annotations

import time
from typing import Any

from flamecore.errors import PeerGoneError
from flamecore.model.messages import Join
from flamecore.runtime.tasks.epoch_transport import plain
from flamecore.runtime.tasks.stats import NodeStats


class Membership:
    """The nodes of a job, as its supervisor knows them.

    Attributes:
        nodes: Those that have joined and are not gone, by name.
        addresses: Where each of them hears.
        hosts: For each part, the node that has it.
        opened, ready, halted: Names of the nodes that have come so far in this epoch.
        reports: The last counts of each node.
        standby: Names of nodes that are given no parts: those of another version of the flow.
    """

    def __init__(self, address: str) -> None:
        self.nodes: dict[str, Join] = {}
        self.hosts: dict[str, str] = {}
        self.opened: set[str] = set()
        self.ready: set[str] = set()
        self.halted: set[str] = set()
        self.addresses: dict[str, str] = {}
        self.reports: dict[str, NodeStats] = {}
        self.standby: set[str] = set()
        self.locations: dict[str, str] = {}
        self._address = address
        self._heard: dict[str, float] = {}

    def join(self, node: Join, address: str) -> None:
        """A node has come.

        Args:
            node: What it says of itself.
            address: Where it hears: that of this one process, whatever others were or will be called so.
        """
        self.nodes[node.node] = node
        self.addresses[node.node] = address
        self.locations[address] = node.location
        self.hear(node.node)

    def leave(self, name: str) -> Join | None:
        """A node is gone."""
        self.addresses.pop(name, None)
        for names in (self.opened, self.ready, self.halted):
            names.discard(name)
        return self.nodes.pop(name, None)

    def hear(self, name: str) -> None:
        """A node has said something."""
        self._heard[name] = time.monotonic()

    def silent(self, limit_s: float) -> list[str]:
        """Nodes that have said nothing for so long."""
        before = time.monotonic() - limit_s
        return [name for name in self.nodes if self._heard[name] < before]

    def begin_epoch(self) -> None:
        """Nobody has come anywhere in the new epoch."""
        self.opened.clear()
        self.ready.clear()
        self.halted.clear()

    def named(self, role: str) -> list[str]:
        """Names of the nodes of a role, in the order in which they get their parts."""
        names = [name for name, node in self.nodes.items() if node.role == role and name not in self.standby]
        return sorted(names, key=lambda name: (len(name), name))

    def hosting(self, role: str) -> list[str]:
        """Names of the nodes of a role that have parts; others are there to spare."""
        hosts = set(self.hosts.values())
        return [name for name in self.named(role) if name in hosts]

    @property
    def parts(self) -> list[str]:
        """Names of the nodes that can be given parts."""
        return [*self.named("worker"), *self.named("acker")]

    def parts_of(self, name: str) -> tuple[str, ...]:
        """Addresses of the parts that a node has, sorted."""
        return tuple(sorted(address for address, host in self.hosts.items() if host == name))

    @property
    def sites(self) -> list[str]:
        """Where nodes are, in the words of what started them."""
        return [node.site for node in self.nodes.values() if node.site]

    def at(self, location: str) -> str | None:
        """The node at a location."""
        return next((name for name, node in self.nodes.items() if node.location == location), None)

    def concerned(self, peer: str) -> bool:
        """Whether an error of a transport is of a node that is here. `peer`: an address, or a location."""
        return peer in self.addresses.values() or self.at(peer) is not None

    def locate(self, address: str) -> str:
        """Where an address is.

        Raises:
            PeerGoneError: Nobody has said.
        """
        try:
            return self.locations[plain(address)]
        except KeyError:
            raise PeerGoneError(f"nobody has said where {address} is", address=self._address, peer=address) from None

    def described(self) -> dict[str, Any]:
        """Who hosts what."""
        return {
            name: {
                "role": node.role,
                "location": node.location,
                "pid": node.pid,
                **({"site": node.site} if node.site else {}),
                "parts": list(self.parts_of(name)),
            }
            for name, node in sorted(self.nodes.items())
        }
