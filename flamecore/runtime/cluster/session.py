"""The session of a process with a job's control: join, listen, hear of the end.

Nodes have one (`flamecore.runtime.cluster.node_process`), and clients, which only send a request
(`flamecore.runtime.cluster.client`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from flamecore._version import __version__
from flamecore.abc.transport import Transport, TransportContext
from flamecore.errors import JobError, PeerGoneError
from flamecore.model.messages import CLIENT, CONTROL, NODE, OPERATOR, WATCHER, Join
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.config.guard import blamed
from flamecore.runtime.config.options import options_of
from flamecore.runtime.config.plugins import PluginRegistry
from flamecore.runtime.tasks.epoch_transport import plain
from flamecore.runtime.tasks.sender import Sender

CLIENTS: Final[Mapping[str, str]] = {"observer": CLIENT, "operator": OPERATOR}
"""Roles of processes that only ask for the status or for a change, with the prefix of their addresses."""


class ControlSession:
    """The session of one process with the control of one job.

    Args:
        bootstrap: Values to join: transport, its options, job, incarnation, token, names, and the control's location.
        lost: Called with the error of a lost connection, unless it led to the control; its `peer` is the location.

    Attributes:
        name: Name of the process.
        job: Name of the job.
        locations: Locations of the control and of the parts of the present epoch, by address.
        welcome: Whether the control has answered.
        over: Made when it begins to listen, and done when the session ends, with its error if there is one.
    """

    over: asyncio.Future[None]

    def __init__(
        self, bootstrap: Mapping[str, Any], lost: Callable[[PeerGoneError], None] = lambda error: None
    ) -> None:
        self.name: str = bootstrap["node"]
        self.job: str = bootstrap["job_name"]
        self.locations: dict[str, str] = {CONTROL: bootstrap["control"]}
        self.welcome = False
        self._bootstrap = bootstrap
        self._lost_peer = lost

    @property
    def _asks(self) -> bool:
        """Return whether this is a client, which is no part of the job."""
        return self._bootstrap["role"] in CLIENTS

    @property
    def _certified(self) -> str:
        """Return the role that a certificate of this process must have."""
        role: str = self._bootstrap["role"]
        return CLIENTS[role].rstrip("/") if role in CLIENTS else "worker" if role == WATCHER else role

    @asynccontextmanager
    async def joined(self, codec: Codec) -> AsyncIterator[tuple[Transport, Sender]]:
        """Listen, and send the control the location. Leave at the end.

        Args:
            codec: The transport's codec.
        """
        self.over = asyncio.get_running_loop().create_future()
        transport = self._make_transport(codec)
        try:
            location = await transport.start()
            # An earlier process of the same name may still be there.
            address = f"{NODE}{self.name}.{secrets.token_hex(4)}"
            if self._asks:
                address = f"{CLIENTS[self._bootstrap['role']]}{self.name}"
            sender = Sender(await transport.bind(address), self.end)
            try:
                attempt, site = self._bootstrap.get("attempt", 0), self._bootstrap.get("site", "")
                role = self._bootstrap["role"]
                sender.send(CONTROL, Join(self.name, role, location, os.getpid(), __version__, attempt, site))
                yield transport, sender
            finally:
                await sender.aclose()
        finally:
            await transport.aclose()

    def _make_transport(self, codec: Codec) -> Transport:
        bootstrap = self._bootstrap
        driver: type[Transport] = PluginRegistry().guarded("transport", bootstrap["transport"])
        options = options_of(driver, bootstrap["options"], f"transport.{bootstrap['transport']}")
        context = TransportContext(
            job=bootstrap["job"],
            incarnation=bootstrap["incarnation"],
            codec=codec,
            node=self.name,
            token=bootstrap["token"],
            folder=bootstrap["folder"],
            locate=self._locate,
            lost=self._lost,
            waits=not self._asks,
            # The control says when a process is gone; nobody says it of the control.
            watched=self.concerns,
        )
        return driver(options, context)

    def learn(self, locations: Iterable[tuple[str, str]]) -> None:
        """Learn where the parts of an epoch are, in place of those of the epoch before.

        A process that had parts and has none now is nobody's peer any more: its loss is no fault of this epoch, and
        nothing waits for it.
        """
        self.locations = {CONTROL: self._bootstrap["control"], **dict(locations)}

    def concerns(self, location: str) -> bool:
        """Return whether a process at a location has parts of the present epoch."""
        return location in self.locations.values() and location != self._bootstrap["control"]

    def _locate(self, address: str) -> str:
        try:
            return self.locations[plain(address)]
        except KeyError:
            raise PeerGoneError(f"the location of {address} is not known", address=self.name, peer=address) from None

    def _lost(self, location: str, error: Exception) -> None:
        what = f"{self.name} lost its connection to {location}: {error}"
        if not location or getattr(error, "refused", False):
            self.end(error)
        elif location == self._bootstrap["control"]:
            self.end(JobError(what))
        else:
            self._lost_peer(PeerGoneError(what, address=self.name, peer=location))

    def end(self, error: BaseException) -> None:
        """End the session with an error; the first one counts."""
        error = blamed(error)
        # A transport names the address that was spoken to, or the location of the process that was there.
        controls = (CONTROL, self._bootstrap["control"])
        if isinstance(error, PeerGoneError) and getattr(error, "peer", "") in controls:
            any_more = " any more" if self.welcome else ""
            what, hint = f"job {self.job!r} has no supervisor{any_more}: {error.what}", error.hint
            if error.refused:
                what = f"job {self.job!r} refuses this process: {error.what}"
                hint = hint or f"Its certificate must be for the role {self._certified}, or name no role."
            error = PeerGoneError(what, hint=hint, address=self.name, peer=CONTROL, refused=error.refused)
        if not self.over.done():
            self.over.set_exception(error)
