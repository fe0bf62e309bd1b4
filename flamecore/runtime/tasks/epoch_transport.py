"""Addresses of one epoch: the same parts, in every new start, under names that nobody has used before.

After a fault every part starts anew. What is still on its way between the parts of before, and what a process that was
taken for dead goes on sending, must not reach those of now. So in an epoch `worker/3` is `worker/3@EPOCH` to the
transport: a message for an address of before finds nobody, and the parts need not know.
"""

from __future__ import annotations

from typing import Any

from flamecore.abc.transport import Delivery, Endpoint, Transport

_MARK = "@"


def plain(address: str) -> str:
    """The address without its epoch."""
    return address.partition(_MARK)[0]


class EpochTransport:
    """Binds addresses of one epoch.

    Args:
        transport: Carries the messages.
        name: Of the epoch; never used before in this job.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._suffix = f"{_MARK}{name}"

    async def bind(self, address: str) -> Endpoint:
        """Open an address of this epoch. Raises as `Transport.bind`."""
        return _Scoped(address, self._suffix, await self._transport.bind(address + self._suffix))


class _Scoped(Endpoint):
    def __init__(self, address: str, suffix: str, endpoint: Endpoint) -> None:
        self.address = address
        self._suffix = suffix
        self._endpoint = endpoint

    def send_nowait(self, to: str, message: Any) -> bool:
        return self._endpoint.send_nowait(to + self._suffix, message)

    async def send(self, to: str, message: Any) -> None:
        await self._endpoint.send(to + self._suffix, message)

    async def receive(self) -> Delivery:
        sender, message = await self._endpoint.receive()
        return Delivery(plain(sender), message)

    def receive_nowait(self) -> Delivery | None:
        delivery = self._endpoint.receive_nowait()
        return None if delivery is None else Delivery(plain(delivery.sender), delivery.message)

    async def aclose(self) -> None:
        await self._endpoint.aclose()
