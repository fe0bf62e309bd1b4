"""The lowest version of TLS: a server that speaks one below 1.3 is stopped.

gRPC for Python has no option for the version. It has a list of ciphers in the environment, which applies to TLS 1.2 and
not to 1.3: `flamestream_grpc.environment` sets it to one cipher that needs a pre-shared key, and no process here has
such a key. But gRPC reads the list while it is imported, and another package may import it first. So each server is
probed, once it listens.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Final

_HANDSHAKE: Final = 0x16
"""First byte of an answer that goes on with the handshake; a refusal is an alert, or nothing."""

_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Address to reach a server that listens on all interfaces."""


async def speaks_tls_1_2(host: str, port: int, limit_s: float) -> bool:
    """Return whether a server accepts a client that offers TLS 1.2 at most.

    The answer comes before either side shows a certificate, so none is needed.

    Args:
        host: Name or IP address that the server listens at.
        port: Its port.
        limit_s: Seconds that it may take.

    Raises:
        OSError: It cannot be connected to; a `TimeoutError`, if it takes too long.
    """
    async with asyncio.timeout(limit_s):
        reader, writer = await asyncio.open_connection(_EVERYWHERE.get(host, host), port)
        try:
            writer.write(_client_hello())
            return await reader.read(1) == bytes((_HANDSHAKE,))
        except ConnectionError:  # refused without an alert
            return False
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def _client_hello() -> bytes:
    """Return the first message of a TLS 1.2 client that offers all ciphers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    hello = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    return hello.read()
