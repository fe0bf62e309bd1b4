"""What gRPC is told by the environment, which is all that some things can be told by. What is set already stays."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Final

CIPHERS: Final = "GRPC_SSL_CIPHER_SUITES"
"""Name of what lists the ciphers for TLS 1.2. gRPC reads it while it is imported."""
_PLAIN_IO: Final = "-event_engine_client,-event_engine_listener"
REFUSING_CIPHER: Final = "ECDHE-PSK-CHACHA20-POLY1305"
"""The only cipher for TLS 1.2. It needs a key that both sides know beforehand, and nobody here has one."""
_LAST: Final = (1, 85)
"""The last version that is known to know these names: one that does not writes to stderr that it does not."""


def missing() -> dict[str, str]:
    """What is to be set besides what is set: gRPC shall be quiet, leave forks alone, do its I/O itself, and speak no
    TLS below 1.3 (`flamestream_grpc.tls_floor`).

    By default gRPC sees to it that a process forked from this one may go on using it. Now and then that aborts the fork
    before it becomes what it was forked for: a Java for Spark, say.

    By default gRPC 1.76 to 1.85 hands each read of a socket to threads of its own. Here the one thread that waits for
    its events does it: a small message takes about two thirds of the time, and of the processor.
    """
    # Without the first it writes lines of its own to stderr: when a handshake fails, whenever a process closes.
    wanted = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0", CIPHERS: REFUSING_CIPHER}
    try:
        major, minor, *_ = version("grpcio").split(".")
    except PackageNotFoundError:  # the import that follows says so
        return {}
    if (int(major), int(minor)) <= _LAST:
        wanted["GRPC_EXPERIMENTS"] = _PLAIN_IO
    return {name: value for name, value in wanted.items() if name not in os.environ}
