"""Who waits for room: senders in the order in which they came, for transports that push back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from flamecore.errors import FlameError

T = TypeVar("T")


class WaitQueue(Generic[T]):
    """Those who wait for room, each with what it would hand over.

    Whoever makes room hands over as well (`admit`), so that nobody can step between a sender's turn and its message.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[asyncio.Future[None], T]] = deque()

    def __bool__(self) -> bool:
        return bool(self._queue)

    async def wait(self, thing: T, limit_s: float | None = None) -> None:
        """Wait until something has been handed over.

        Args:
            thing: What.
            limit_s: How long that may take; None: as long as it does.

        Raises:
            TimeoutError: It takes longer. It is not handed over any more.
            FlameError: It cannot be, or will never be.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (turn, thing)
        self._queue.append(waiting)
        try:
            async with asyncio.timeout(limit_s):
                await turn
        finally:
            if waiting in self._queue:
                self._queue.remove(waiting)

    def admit(self, fits: Callable[[], bool], take: Callable[[T], None]) -> None:
        """Let those in for whom there is room now.

        Args:
            fits: Whether there is room for one more.
            take: Takes what the next one hands over. An error of it is that one's.
        """
        while self._queue and fits():
            turn, thing = self._queue.popleft()
            if turn.done():
                continue
            try:
                take(thing)
            except FlameError as error:
                turn.set_exception(error)
            else:
                turn.set_result(None)

    def refuse(self, error: Callable[[T], FlameError | None]) -> int:
        """Let nobody wait any longer.

        Args:
            error: What each is told, by what it would hand over; None: it goes on waiting.

        Returns:
            How many have been told.
        """
        told, kept = 0, []
        while self._queue:
            turn, thing = self._queue.popleft()
            reason = error(thing)
            if reason is None:
                kept.append((turn, thing))
            elif not turn.done():
                turn.set_exception(reason)
                told += 1
        self._queue.extend(kept)
        return told
