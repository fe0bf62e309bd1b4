"""A queue of senders that wait for room, first in, first out.

For transports that push back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from flamecore.errors import FlameError, SendTimeout

T = TypeVar("T")


class WaitQueue(Generic[T]):
    """The waiting senders, each with the thing to hand over.

    The caller that makes room also hands over (`admit`), so that nothing can come between a sender's turn and its
    message.

    Attributes:
        waiting: The waiting senders. Whether there are any is asked with each message: a call for it is a cost.
    """

    def __init__(self) -> None:
        self.waiting: deque[tuple[asyncio.Future[None], T]] = deque()

    def __bool__(self) -> bool:
        return bool(self.waiting)

    async def wait(self, thing: T, limit_s: float | None = None) -> None:
        """Wait until a thing has been handed over.

        Args:
            thing: The thing.
            limit_s: Most seconds to wait; None: no limit.

        Raises:
            TimeoutError: The limit has passed. The thing is not handed over any more.
            FlameError: The thing cannot be, or will never be, handed over.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (turn, thing)
        self.waiting.append(entry)
        try:
            async with asyncio.timeout(limit_s):
                await turn
        finally:
            # Also if it was cancelled: a thing whose sender has gone must not be handed over.
            if entry in self.waiting:
                self.waiting.remove(entry)

    async def send(
        self, message: T, limit_s: float | None, *, sender: str, receiver: str, unread: Callable[[], str]
    ) -> None:
        """Wait until a message has been handed over.

        Args:
            message: The message.
            limit_s: Most seconds to wait: the option `send_timeout_s` of the transport. None: until it is refused.
            sender: Address of its sender.
            receiver: Address of its receiver.
            unread: Function that describes the messages that take up the room.

        Raises:
            SendTimeout: There is no room within the limit.
            FlameError: As for `wait`.
        """
        try:
            await self.wait(message, limit_s)
        except TimeoutError:
            assert limit_s is not None
            raise SendTimeout(
                f"{receiver} has given {sender} no room for {limit_s:g} s: {unread()}",
                hint="Check why the receiver is slow; send_timeout_s limits the wait.",
                address=sender,
                peer=receiver,
                timeout_s=limit_s,
            ) from None

    def admit(self, fits: Callable[[], bool], take: Callable[[T], None]) -> None:
        """Hand over things in order, as long as there is room.

        Args:
            fits: Function that returns whether there is room for one more.
            take: Function that takes the next thing. Its sender gets an error of it.
        """
        while self.waiting and fits():
            turn, thing = self.waiting.popleft()
            if turn.done():
                continue
            try:
                take(thing)
            except FlameError as error:
                turn.set_exception(error)
            else:
                turn.set_result(None)

    def refuse(self, error: Callable[[T], FlameError | None]) -> int:
        """Raise an error in waiting senders.

        Args:
            error: Function from a thing to the error of its sender; None: this one keeps waiting.

        Returns:
            The number of senders that got an error.
        """
        told, kept = 0, []
        while self.waiting:
            turn, thing = self.waiting.popleft()
            reason = error(thing)
            if reason is None:
                kept.append((turn, thing))
            elif not turn.done():
                turn.set_exception(reason)
                told += 1
        self.waiting.extend(kept)
        return told
