"""The least version of TLS: a server that would speak one below 1.3 does not stay up.

gRPC for Python has no option for the version. It has a list of ciphers in the environment, which is about TLS 1.2 and
not about 1.3: `flamestream_grpc.environment` names one only, that needs a key both sides know beforehand, and nobody
here has such a key. But gRPC reads the list while it is imported, and whoever imports it first decides. So each server
is asked, once it listens.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Final

_HANDSHAKE: Final = 0x16
"""First byte of an answer that goes on with the handshake; a refusal is an alert, or nothing."""

_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a server is found that listens everywhere."""


async def speaks_tls_1_2(host: str, port: int, limit_s: float) -> bool:
    """Return whether the server of an address answers a client that knows nothing above TLS 1.2.

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
    """Return the first message of a client of TLS 1.2 that knows all ciphers there are."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    hello = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    return hello.read()
