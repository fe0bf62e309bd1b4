"""Transport `socket`: addresses of a job in several processes of one machine, over unix sockets."""

from __future__ import annotations

from flamecore.abc.hooks import hookimpl
from flamecore.abc.transport import Transport
from flamestream_sockets.transport import Options, SocketTransport

__all__ = ["Options", "SocketTransport"]


@hookimpl
def flamestream_transport() -> type[Transport]:
    return SocketTransport
