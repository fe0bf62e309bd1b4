"""Host `processes`: a job's nodes are processes of this machine."""

from __future__ import annotations

import socket
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from flamecore.abc.config import JobConfig
from flamecore.abc.hooks import hookimpl
from flamecore.abc.host import NodeHost
from flamecore.toolkit.local_processes import ProcessHost

_TRANSPORT: Final = "socket"
"""The transport of processes that are all on this machine: every installation has it."""

_REACHED_FROM_ELSEWHERE: Final = "grpc"
"""The transport with a place to listen at, and certificates: with options of it a job is to be reached from outside."""


class Processes(ProcessHost):
    """The host; its code is in the toolkit, where other hosts use it too."""

    name: ClassVar[str] = "processes"

    @classmethod
    def complete(cls, options: Any, config: JobConfig) -> JobConfig:
        """Return the configuration with sockets as the transport, if nothing speaks against them.

        The transport stays open if workers join, which may be elsewhere, unless a folder for sockets is named; if there
        are options of the one that is reached from elsewhere; and on systems without unix sockets.
        """
        transport = config.transport
        if transport.use or _REACHED_FROM_ELSEWHERE in transport.tables:
            return config
        if config.deploy.start == "join" and not transport.tables.get(_TRANSPORT, {}).get("folder"):
            return config
        if not hasattr(socket, "AF_UNIX"):
            return config
        return replace(config, transport=replace(transport, use=_TRANSPORT))


@hookimpl
def flamestream_host() -> type[NodeHost]:
    return Processes
