"""NATS transport: the processes of a job talk through a NATS server, which they all reach; none has to reach another.

Core NATS delivers at most once, holds nobody back and lets everybody in write to everybody. What it lacks is added
here: numbers, repeats and a window for each channel (`outgoing`, `incoming`), proof of belonging (`envelope`), and
signs of life (`peers`).
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
        # Its processes are wherever they have connected to the server: no location is needed.
        return JobAddress(options={"servers": (url,)})

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=True, serialises=True)

    @property
    def refused(self) -> Counter[str]:
        """How many messages were refused, by reason: one word."""
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

    # Trouble, for tests:

    def disconnect(self) -> None:
        """Break the connection to the server, as a network would. Nothing that was sent may be lost."""
        if self._exchange is not None:
            self._exchange.disconnect()

    def repeat(self) -> None:
        """Send again everything that is not known to have arrived. Nothing may come twice out of it."""
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
            # All at once: each may wait for others of this process.
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
