"""The bytes that all peers of a process together may have it hold."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

UNREAD_BYTES: Final = 2**29
"""Most bytes of messages that have come from all peers and are not read yet; those that are being taken come on top."""


class Budget:
    """A number of bytes that may be held, however many hold them; one more is granted if nothing is held.

    Args:
        most_bytes: The number.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def hold(self, size: int) -> None:
        """Count bytes that are there already."""
        self._held += size

    def grant(self, size: int, then: Callable[[], None]) -> bool:
        """Hold so many bytes now, or when there is room; requests are granted in their order.

        Args:
            size: The number of bytes.
            then: Called when they are held, if that is later.

        Returns:
            Whether they are held now.
        """
        if not self._waiting and self._fits(size):
            self._held += size
            return True
        self._waiting.append((size, then))
        return False

    def withdraw(self, then: Callable[[], None]) -> None:
        """Withdraw a request that has not been granted."""
        self._waiting = deque(request for request in self._waiting if request[1] != then)
        self.free(0)

    def free(self, size: int) -> None:
        """Free bytes that were held."""
        self._held -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            size, then = self._waiting.popleft()
            self._held += size
            then()

    async def room(self) -> None:
        """Wait until less is held than may be."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def grant() -> None:
            if not granted.done():
                granted.set_result(None)

        if self._held < self._most_bytes or self.grant(0, grant):
            return
        try:
            await granted
        finally:
            self.withdraw(grant)

    def _fits(self, size: int) -> bool:
        return not self._held or self._held + size <= self._most_bytes
