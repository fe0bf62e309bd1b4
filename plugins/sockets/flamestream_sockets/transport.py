"""The driver: listens at a unix socket of the job, and connects to others."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path
from typing import Any, ClassVar, Final

from flamecore.abc.paths import FilePath
from flamecore.abc.transport import SUPERVISOR, JobAddress, Outlook, TransportContext
from flamecore.errors import ConfigError
from flamecore.toolkit.frames import HEADER_BYTES
from flamecore.toolkit.links.budget import Budget
from flamecore.toolkit.links.connection import BrokenConnectionError
from flamecore.toolkit.links.options import LinkOptions, Seconds
from flamecore.toolkit.links.server import MOST_PEERS
from flamecore.toolkit.links.transport import LinkedTransport
from flamecore.toolkit.links.unix import check_free, is_path, keep_private, own_folder, path_in
from flamestream_sockets.connections import Reception, SocketConnection
from flamestream_sockets.peer import is_stopped
from flamestream_sockets.pipe import Pipe

_UNIX: Final = "unix:"
_ELSEWHERE: Final = 'use another transport, such as grpc with listen = "127.0.0.1"'
_SHORTEN: Final = "name a folder with a shorter path under [transport.socket]"
_SLACK_BYTES: Final = 2**20
"""Most bytes by which a message exceeds a frame's body: head and addresses, or a batch of small frames."""
_ARRIVING_BYTES: Final = 2**28
"""Most bytes of large messages that are arriving over all connections, or wait to be taken."""
_BACKLOG: Final = 128
"""Connections that wait to be accepted by a busy process, at most."""


class Options(LinkOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the transport, besides those of links.

    Attributes:
        folder: Folder of the sockets, one for each process; that of the job's control is `supervisor.sock`. Empty: a
            private one, of another path each time.
        keepalive_s: Time after which a process that is stopped counts as lost. The end of one is detected immediately.
    """

    folder: FilePath = ""
    keepalive_s: Seconds = 5.0


class SocketTransport(LinkedTransport):
    """Addresses of one process, and its links to other processes of the machine."""

    name = "socket"
    Options = Options
    schemes = ("socket",)
    unreachable_hint: ClassVar[str] = (
        "Is that process running, on this machine and with the same job and token? connect_timeout_s under "
        "[transport.socket] says how long to try."
    )

    def __init__(self, options: Any, context: TransportContext) -> None:
        super().__init__(options, context)
        self._most_bytes = self.options.max_frame_bytes + HEADER_BYTES + _SLACK_BYTES
        self._arriving = Budget(_ARRIVING_BYTES)
        self._path: Path | None = None
        self._listener: asyncio.Server | None = None
        self._reception = Reception(
            self.server.serve,
            limit_s=self.options.connect_timeout_s,
            watch_s=self._watch_s,
            broken=self._count_broken,
            most=MOST_PEERS,
        )

    @property
    def _watch_s(self) -> float:
        return float(self.options.keepalive_s) / 2

    def _count_broken(self) -> None:
        self.refused["broken"] += 1

    @classmethod
    def address_of(cls, url: str) -> JobAddress:
        path = Path(url.partition("://")[2])
        if not path.is_absolute():
            raise ConfigError(
                f"{url!r} is no address of a job over sockets",
                hint=f"Write it as socket://{Path.cwd() / path}: with three slashes, and the whole path.",
                path="",
            )
        return JobAddress(f"{_UNIX}{path / f'{SUPERVISOR}.sock' if path.is_dir() else path}")

    # -- listening ---------------------------------------------------------------------------------------------------

    @property
    def _folder(self) -> str:
        """Return the configured folder, in full; empty: there is none."""
        return str(Path(self.options.folder).expanduser().absolute()) if self.options.folder else ""

    def outlook(self) -> Outlook:
        if not self._folder:
            self._place()
            return Outlook("a unix socket in a folder of the job", known_by='folder = "/tmp/NAME"')
        own_folder(self._folder, make=False)
        path = self._place()
        if self.context.node != SUPERVISOR:
            return Outlook(f"a unix socket in {self._folder}")
        return Outlook(str(path), join=f"socket://{path}")

    def _place(self) -> Path:
        """Return the path to listen at."""
        node = self.context.node
        if not self._folder:
            return path_in(self.context.folder, node, _ELSEWHERE)
        # Peers know each other by their paths. A process that comes in place of a killed one of the same name is to be
        # another one: only those that join look for a path that they know beforehand.
        if node != SUPERVISOR:
            node = f"{node}-{self.instance[:8]}"
        return path_in(self._folder, node, _ELSEWHERE, _SHORTEN)

    async def start(self) -> str:
        path = self._place()
        if self._folder:
            own_folder(self._folder, make=True)
        check_free(path)
        path.unlink(missing_ok=True)  # nobody listens there
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_unix_server(
            lambda: Pipe(self._most_bytes, self._arriving, self._reception.receive), path, backlog=_BACKLOG
        )
        keep_private(path)
        self._path = path
        self.location = f"{_UNIX}{path}"
        return self.location

    async def stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await self._reception.aclose()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    # -- connections -------------------------------------------------------------------------------------------------

    def is_location(self, text: str) -> bool:
        return text.startswith(_UNIX) and is_path(text.removeprefix(_UNIX))

    def _new_pipe(self) -> Pipe:
        return Pipe(self._most_bytes, self._arriving)

    async def dial(self, location: str, deadline: float) -> SocketConnection:
        path = location.removeprefix(_UNIX)
        try:
            async with asyncio.timeout_at(deadline):
                made = asyncio.get_running_loop().create_unix_connection(self._new_pipe, path)
                _, pipe = await made
        except TimeoutError:
            raise BrokenConnectionError("no connection in time", late=True) from None
        except OSError as error:
            absent = isinstance(error, (FileNotFoundError, ConnectionRefusedError))
            raise BrokenConnectionError(str(error), absent=absent) from error
        connection = SocketConnection(pipe, self._watch_s)
        try:
            if is_stopped(pipe.socket):
                raise BrokenConnectionError("the process is stopped")
            await connection.greet(self.greeting, self.options.connect_timeout_s)
        except BaseException:
            await connection.aclose()
            raise
        return connection

    async def reachable(self, location: str) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            # EAGAIN: it listens, and so many wait to be accepted that there is no room for one more.
            if probe.connect_ex(location.removeprefix(_UNIX)) not in (0, errno.EAGAIN):
                return False
            return not is_stopped(probe)
