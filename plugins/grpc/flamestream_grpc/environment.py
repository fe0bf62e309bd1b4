"""Settings of gRPC that exist only as environment variables; set ones stay."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Final

CIPHERS: Final = "GRPC_SSL_CIPHER_SUITES"
"""Variable with the list of ciphers for TLS 1.2. gRPC reads it while it is imported."""
_PLAIN_IO: Final = "-event_engine_client,-event_engine_listener"
REFUSING_CIPHER: Final = "ECDHE-PSK-CHACHA20-POLY1305"
"""The only cipher for TLS 1.2. It needs a pre-shared key, and no process here has one."""
_LAST: Final = (1, 85)
"""The last version known to accept these names: one that does not warns on stderr."""


def missing() -> dict[str, str]:
    """Return the variables to set besides those that are set.

    They silence gRPC, turn off its support of forks, make it do its I/O itself, and allow no TLS below 1.3
    (`flamestream_grpc.tls_floor`).

    By default gRPC supports the use of itself in a forked process. Now and then that aborts the fork before it executes
    its program: a Java for Spark, say.

    By default gRPC 1.76 to 1.85 passes each read of a socket to its own threads. With this setting the one thread that
    waits for its events reads: a small message takes about two thirds of the time, and of the processor.
    """
    # Without the first, gRPC logs to stderr when a handshake fails and whenever a process closes.
    wanted = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0", CIPHERS: REFUSING_CIPHER}
    try:
        major, minor, *_ = version("grpcio").split(".")
    except PackageNotFoundError:  # the import that follows says so
        return {}
    if (int(major), int(minor)) <= _LAST:
        wanted["GRPC_EXPERIMENTS"] = _PLAIN_IO
    return {name: value for name, value in wanted.items() if name not in os.environ}
