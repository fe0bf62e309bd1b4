"""Addresses of one epoch: the same parts under new names after each restart.

After a fault every part starts anew. Messages still under way between the earlier parts, and those of a process that
was declared dead, must not reach the new parts. So in an epoch `worker/3` is `worker/3@EPOCH` to the transport: a
message for an earlier address reaches nobody, and parts need not know.
"""

from __future__ import annotations

import secrets

from flamecore.abc.transport import Delivery, Endpoint, Transport

_MARK = "@"


def plain(address: str) -> str:
    """Return the address without its epoch."""
    return address.partition(_MARK)[0]


class EpochTransport:
    """A transport for the addresses of one epoch.

    Args:
        transport: Transport that carries the messages.
        name: Name of the epoch, never used before in this job.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        self.name = name
        self._transport = transport
        self._suffix = f"{_MARK}{name}"

    async def bind(self, address: str) -> Endpoint:
        """Open an address of this epoch; raises as `Transport.bind`."""
        return _Scoped(address, self._suffix, await self._transport.bind(address + self._suffix))


class EpochTransports:
    """The transports of the epochs of a job, on one that carries the messages of all.

    Args:
        transport: Transport that carries the messages.
        incarnation: Number of the job's start.

    Attributes:
        count: Number of epochs so far.
    """

    def __init__(self, transport: Transport, incarnation: int) -> None:
        self._transport = transport
        self._incarnation = incarnation
        self.count = 0

    def next(self) -> EpochTransport:
        """Return the transport of a new epoch."""
        self.count += 1
        # Where the registry ends with its supervisor, every start has incarnation 1, and an epoch of the state has no
        # number before it begins. So chance tells the name from those of other starts.
        return EpochTransport(self._transport, f"{self._incarnation}.{self.count}.{secrets.token_hex(3)}")


class _Scoped(Endpoint):
    def __init__(self, address: str, suffix: str, endpoint: Endpoint) -> None:
        self.address = address
        self._suffix = suffix
        self._endpoint = endpoint

    def send_nowait(self, to: str, message: object) -> bool:
        return self._endpoint.send_nowait(to + self._suffix, message)

    async def send(self, to: str, message: object) -> None:
        await self._endpoint.send(to + self._suffix, message)

    async def receive(self) -> Delivery:
        sender, message = await self._endpoint.receive()
        return Delivery(plain(sender), message)

    def receive_nowait(self) -> Delivery | None:
        delivery = self._endpoint.receive_nowait()
        return None if delivery is None else Delivery(plain(delivery.sender), delivery.message)

    async def aclose(self) -> None:
        await self._endpoint.aclose()
