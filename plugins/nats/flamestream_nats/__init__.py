"""NATS transport: the processes of a job talk through a NATS server.

Every process needs to reach the server; none needs to reach another process. Core NATS delivers at most once, has no
flow control, and lets every client write to every subject. The missing parts are added here: sequence numbers,
retransmission and a window for each channel (`outgoing`, `incoming`), authentication (`envelope`), and heartbeats
(`peers`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from flamecore.abc.hooks import hookimpl
from flamecore.abc.transport import JobAddress, Outlook, Transport, TransportCapabilities, TransportContext
from flamecore.errors import TransportClosedError, TransportError
from flamestream_nats.channels.endpoint import NatsEndpoint
from flamestream_nats.channels.exchange import Exchange
from flamestream_nats.options import SCHEMES, Options, check, check_seed, exposed, shown_server, ssl_context, warn

__all__ = ["NatsTransport", "Options", "flamestream_transport"]


class NatsTransport(Transport):
    """All endpoints of one process."""

    name = "nats"
    Options = Options
    schemes = SCHEMES

    def __init__(self, options: Any, context: TransportContext) -> None:
        super().__init__(options or Options(), context)
        check(self.options)
        self._exchange: Exchange | None = None
        self._closed: asyncio.Future[None] | None = None

    @classmethod
    def address_of(cls, url: str) -> JobAddress:
        # Processes connect to the server from anywhere: no location is needed.
        return JobAddress(options={"servers": (url,)})

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=True, serialises=True)

    @property
    def refused(self) -> Counter[str]:
        """Count the refused messages by reason, one word each."""
        return Counter() if self._exchange is None else self._exchange.refused

    def outlook(self) -> Outlook:
        options = self.options
        missing = exposed(options, self.context.token)
        ssl_context(options)
        if options.nkey_seed:
            check_seed(options)
        place, join = f"server {options.shown}", shown_server(options.servers[0])
        return Outlook(place, join=join, tls=options.secured, missing=tuple(missing))

    async def start(self) -> str:
        return (await self._started()).location

    async def _started(self) -> Exchange:
        if self._closed is not None:
            raise TransportClosedError("the transport is closed", address="", peer="")
        if self._exchange is None:
            if missing := exposed(self.options, self.context.token):
                warn(self.options, missing)
            exchange = Exchange(self.options, self.context)
            await exchange.open()
            self._exchange = exchange
        return self._exchange

    async def bind(self, address: str) -> NatsEndpoint:
        exchange = await self._started()
        if exchange.error is not None:
            raise exchange.error
        if address in exchange.endpoints:
            raise TransportError(f"{address} is bound already", address=address, peer="")
        endpoint = exchange.endpoints[address] = NatsEndpoint(address, exchange)
        try:
            await exchange.listen(endpoint)
        except BaseException:
            exchange.forget(endpoint)
            raise
        return endpoint

    # Faults for tests:

    def disconnect(self) -> None:
        """Break the connection to the server, as a network would; no message may be lost."""
        if self._exchange is not None:
            self._exchange.disconnect()

    def repeat(self) -> None:
        """Send unconfirmed messages again; the receiver must see none of them twice."""
        if self._exchange is not None:
            self._exchange.repeat()

    async def aclose(self) -> None:
        if self._closed is not None:
            return await asyncio.shield(self._closed)
        self._closed = asyncio.get_running_loop().create_future()
        exchange = self._exchange
        try:
            if exchange is not None:
                await self._leave(exchange)
        finally:
            self._closed.set_result(None)

    async def _leave(self, exchange: Exchange) -> None:
        try:
            # Close concurrently: each may wait for another endpoint of this process.
            endpoints = tuple(exchange.endpoints.values())
            ends = await asyncio.gather(*(endpoint.aclose() for endpoint in endpoints), return_exceptions=True)
            await exchange.leave()
            for error in ends:
                if error is not None:
                    raise error
        finally:
            await exchange.aclose()


@hookimpl
def flamestream_transport() -> type[Transport]:
    return NatsTransport
