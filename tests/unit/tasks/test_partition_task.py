"""The task of a partition ends it at the record whose failure ends the job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from flamecore.abc.sink import Guarantee, Sink
from flamecore.abc.source import EdgeContext
from flamecore.model.failure import Cause, Failure
from flamecore.model.messages import Released
from flamecore.model.meta import MIN_TIME, GlobalTime
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.runtime.tasks.partition_task import PartitionTask
from flamecore.runtime.tasks.sender import Sender


class Kept(Sink):
    """A partition in memory."""

    name = "kept"

    def __init__(self) -> None:
        super().__init__(None, EdgeContext("out"))
        self.held: list[Any] = []

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        raise NotImplementedError

    async def write_ordered(self, time: int, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        self.held += payloads


class Sent:
    """The messages to the rear."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[Released] = asyncio.Queue()

    def send(self, to: str, word: Released) -> None:
        self.words.put_nowait(word)

    def fail(self, error: BaseException) -> None:
        raise error


def test_outputs_behind_a_failed_record_are_not_stored_then_or_later() -> None:
    async def body() -> None:
        sink, sent = Kept(), Sent()
        task = PartitionTask("out", sink, MIN_TIME, cast(Sender, sent), Deadlines().sink("out", 0))
        running = asyncio.create_task(task.run())

        async def released(until: int, times: Sequence[int], *failures: tuple[bytes, Failure]) -> Released:
            task.put(Released(0, until, [GlobalTime(time, 1).encode() for time in times], list(times), list(failures)))
            return await sent.words.get()

        await released(3, [1, 2])
        at = GlobalTime(5, 1)
        cause = Cause("bad", (), "", None)
        failure = Failure(None, "map", "5", None, cause, "", fatal=True, worker=0, at=at)
        word = await released(5, [4], (at.encode(), failure))
        assert (sink.held, word.payloads) == ([1, 2, 4], [1])
        word = await released(9, [5, 7])
        assert (sink.held, word.time, list(word.orders), word.payloads) == ([1, 2, 4], 9, [], [])
        running.cancel()

    asyncio.run(body())
