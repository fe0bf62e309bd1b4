"""The sender of a part, which never waits for room.

Messages without room are kept in order and sent by a task of their own, so a cycle of workers cannot block itself; the
credit of the fronts bounds their number.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from flamecore.abc.transport import Endpoint
from flamecore.errors import CodecError, FlameError, FrameError, JobError
from flamecore.model.messages import Outgoing
from flamecore.runtime.config.guard import check_sent
from flamecore.runtime.parts.counters import NodeStats
from flamecore.runtime.tasks.parting import is_too_large, parted, told

_BACKLOG: Final = 1_000_000
"""Most messages kept for one address."""


class Sender:
    """A sender on one endpoint that does not wait, and keeps each channel in order.

    Args:
        endpoint: The endpoint.
        fail: Function called with errors of later sends.
    """

    def __init__(self, endpoint: Endpoint, fail: Callable[[Exception], None]) -> None:
        self.endpoint = endpoint
        self.fail = fail
        self.sent: Counter[str] = Counter()
        self._backlog: dict[str, deque[object]] = {}
        self._senders: set[asyncio.Task[None]] = set()

    def counts(self) -> NodeStats:
        """Return this sender's share of the counters."""
        return NodeStats(messages=dict(self.sent))

    def send(self, to: str, message: object) -> None:
        """Send a message now if there is room, otherwise later, in order per address.

        A message that is too large is sent in parts.

        Raises:
            JobError: Too many messages wait for the receiver.
            TooLargeError: An item alone is too large.
            TransportError: As `Endpoint.send_nowait`.
        """
        self.sent[type(message).__name__] += 1
        waiting = self._backlog.get(to)
        if waiting is None:
            try:
                sent = self.endpoint.send_nowait(to, message)
                if sent is True:
                    return
                check_sent(self.endpoint, sent)
            except (CodecError, FrameError) as error:
                # Only what is refused is parted: to measure every message before it is sent would
                # cost each of them an encoding.
                parts = parted(message) if is_too_large(error) else []
                if not parts:
                    raise _on_the_way(error, to, message) from error
                self.sent[type(message).__name__] -= 1
                for part in parts:
                    self.send(to, part)
                return
            # Sending never waits: of two workers that each wait for room at the other, neither would read.
            waiting = self._backlog[to] = deque()
            task = asyncio.get_running_loop().create_task(self._drain(to, waiting))
            self._senders.add(task)
            task.add_done_callback(self._senders.discard)
        elif len(waiting) >= _BACKLOG:
            # The credit of the fronts keeps the backlog small. The bound is for a peer that takes
            # nothing.
            raise JobError(
                f"{self.endpoint.address} has {_BACKLOG} messages waiting for {to}, which takes none",
                hint="Lower max_in_flight, or look at why that worker is stuck.",
            )
        waiting.append(message)

    async def _drain(self, to: str, waiting: deque[object]) -> None:
        try:
            while waiting:
                message = waiting[0]
                try:
                    await self.endpoint.send(to, message)
                except (CodecError, FrameError) as error:
                    parts = parted(message) if is_too_large(error) else []
                    if not parts:
                        raise _on_the_way(error, to, message) from error
                    self.sent[type(message).__name__] += len(parts) - 1
                    waiting.extend(parts)
                    waiting.rotate(len(parts))  # to the front, before the message they replace
                    del waiting[len(parts)]
                else:
                    waiting.popleft()
        except Exception as error:  # noqa: BLE001 - handed to the job, which ends with it
            self.fail(error)
        finally:  # after an error the backlog must not reach a new owner of the address
            del self._backlog[to]

    def send_all(self, outgoing: Outgoing) -> None:
        """Send messages in order."""
        for to, message in outgoing:
            self.send(to, message)

    async def aclose(self) -> None:
        """Drop waiting messages, and close the endpoint."""
        for task in tuple(self._senders):
            task.cancel()
        if self._senders:
            await asyncio.wait(self._senders)
        await self.endpoint.aclose()


def _on_the_way(error: CodecError | FrameError, to: str, message: object) -> FlameError:
    """Return the error of a message that cannot be encoded, with its destination.

    An error that already has a vertex, and one without a sink as destination, stays as it is.
    """
    known = told(error, message) if is_too_large(error) else error
    kind, _, name = to.partition("/")
    if isinstance(known, CodecError) and known.vertex is None and kind == "rear":
        return known.going_to(name, f"sink {name!r}")
    return known
