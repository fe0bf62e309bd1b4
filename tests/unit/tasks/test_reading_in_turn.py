"""The task of fronts: partitions in turn, their ends, and a stop between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from flamecore.abc.source import Batch, Reader
from flamecore.errors import SourceError
from flamecore.model.messages import Found, FoundNothing, FrontEnded
from flamecore.model.meta import FrontId
from flamecore.model.settings import JobSettings
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.room import Room
from flamecore.runtime.tasks import front_task
from flamecore.runtime.tasks.front_search import FrontSearch
from flamecore.runtime.tasks.front_task import FrontTask, Heartbeats, Reading, StopSignal
from flamecore.testing.progress import patience, patiently
from flamecore.testing.simulation.virtual import run_virtually


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock by which a step is timed, and begin with larger batches: their size follows it."""
    monkeypatch.setattr(front_task, "clock", lambda: lambda: 0.0)
    monkeypatch.setattr(front_task, "_LEAST", 16)


class Numbers(Reader):
    """A reader of as many numbers as asked for, or fewer at the end of a chunk; it fails at one of them."""

    waits = False

    def __init__(self, size: int, fails_at: int = -1, chunk: int = 1_000_000) -> None:
        self.at, self.size, self.fails_at, self.chunk = 0, size, fails_at, chunk

    async def read(self, limit: int) -> Batch | None:
        if self.at == self.size:
            return None
        if self.at == self.fails_at:
            raise SourceError("the disk is gone", hint="Correct it.", source="n", position="")
        end = self.at - self.at % self.chunk + self.chunk
        stop = self.fails_at if self.fails_at > self.at else self.size
        found = range(self.at, min(self.at + limit, self.size, stop, end))
        self.at = found.stop
        return Batch(list(found), list(found))


class Hosts:
    """A stand-in for the task of a worker: it notes what is admitted, and delivers it when told."""

    is_behind = False

    def __init__(self, fronts: Sequence[Front], merged: Sequence[int]) -> None:
        self.fronts = {front.number: front for front in fronts}
        self.admitted: list[tuple[int, int]] = []
        self.ended: list[tuple[int, bool]] = []
        self.open_fronts: dict[int, None] = {}
        self.promised: list[tuple[int, int]] = []
        ingress = SimpleNamespace(merge_of=dict.fromkeys(merged, "one merge"))
        self.worker = SimpleNamespace(
            index=0,
            fronts=self.fronts,
            end_front=self._end,
            stop_front=self._end,
            heartbeat=self._promise,
            ingress=ingress,
        )
        self.sender = SimpleNamespace(send=self._send)
        self.working = nullcontext()
        self.search = FrontSearch(self.worker, self.sender, is_open=False)  # type: ignore[arg-type]
        self.stop_after = -1
        self.stop = StopSignal()

    def admit(self, number: int, batch: Batch, at: float, policy: str) -> None:
        self.fronts[number].stamp(batch.positions, at)
        self.admitted.append((number, len(batch.values)))
        self._promise(number)
        if len(self.admitted) == self.stop_after:
            self.stop.set()

    def flush(self) -> None: ...

    def _promise(self, number: int) -> None:
        self.promised.append((number, self.fronts[number].next_time))

    def _end(self, number: int) -> int:
        self.fronts[number].ended = True
        return self.fronts[number].next_time

    def _send(self, address: str, word: FrontEnded) -> None:
        self.ended.append((word.front, word.stopped))


def make(
    sizes: Sequence[int],
    most: int = 8192,
    fails_at: int = -1,
    chunk: int = 1_000_000,
    merged: Sequence[int] = (1, 2, 3),
    *,
    again: bool = True,
) -> tuple[FrontTask, Hosts, Room]:
    fronts = [Front(FrontId("n", str(number)), number) for number in range(1, len(sizes) + 1)]
    hosts = Hosts(fronts, merged)
    room = Room(hosts.fronts, most)
    readings = [
        Reading(front, Numbers(size, fails_at if front.number == 2 else -1, chunk), again=again)
        for front, size in zip(fronts, sizes, strict=True)
    ]
    plan: Any = SimpleNamespace(snapshots=False, settings=JobSettings())
    return FrontTask(readings, hosts, plan, room, hosts.stop), hosts, room  # type: ignore[arg-type]


def test_partitions_are_read_in_turn_and_each_ends_when_it_is_exhausted() -> None:
    task, hosts, _ = make([40, 5, 100])
    asyncio.run(task.run())
    read: dict[int, int] = {}
    for number, count in hosts.admitted:
        read[number] = read.get(number, 0) + count
    assert read == {1: 40, 2: 5, 3: 100}
    assert [number for number, _ in hosts.admitted[:6]] == [1, 2, 3, 1, 3, 3], "16, 32 and 64 records at a time"
    assert hosts.ended == [(2, False), (1, False), (3, False)], "the shortest first, not all at the end of the longest"
    assert not hosts.open_fronts


def test_turns_that_others_have_take_no_time() -> None:
    """They are turns of the event loop, in which nothing waits for a clock."""

    async def play() -> float:
        task, hosts, room = make([4000, 4000, 0])
        task.rears_here = True
        running = asyncio.create_task(task.run())
        while not running.done():
            await asyncio.sleep(0)
            hosts.is_behind = not hosts.is_behind
            if task.held_back:
                for front in hosts.fronts.values():
                    front.delivered(front.next_time)
                room.note()
                task.wake()
        await running
        assert sum(count for _, count in hosts.admitted) == 8000
        return asyncio.get_running_loop().time()

    assert run_virtually(play()) == 0.0


def test_partitions_that_do_not_wait_for_each_other_go_on_behind_the_end_of_the_first() -> None:
    task, hosts, _ = make([5, 100], merged=())
    asyncio.run(task.run())
    assert hosts.ended == [(1, False), (2, False)]
    assert sum(count for number, count in hosts.admitted if number == 2) == 100


def test_a_stop_between_two_partitions_leaves_each_where_it_is() -> None:
    task, hosts, _ = make([40, 5, 100])
    hosts.stop_after = 4
    asyncio.run(task.run())
    assert [number for number, _ in hosts.admitted] == [1, 2, 3, 1]
    assert sorted(hosts.ended) == [(1, True), (2, False), (3, True)], "the second had fewer than asked for, and no more"
    assert not hosts.open_fronts


def test_a_short_batch_is_filled_up_before_the_next_partition_is_read() -> None:
    """All others would wait for the rest, round after round."""
    task, hosts, _ = make([16, 16], chunk=6)
    asyncio.run(task.run())
    assert hosts.admitted == [(1, 6), (1, 6), (1, 4), (2, 6), (2, 6), (2, 4)]


@pytest.mark.parametrize("failing", [True, False])
def test_after_a_failed_record_fronts_are_stopped_though_no_later_run_reads_them(failing: bool) -> None:
    task, hosts, _ = make([40], again=False)
    (hosts.stop.fail if failing else hosts.stop.set)()
    asyncio.run(task.run())
    assert hosts.ended == [(1, failing)]


def test_the_end_of_a_front_is_told_behind_all_that_it_has_sent() -> None:
    done: list[Any] = []
    task, hosts, _ = make([0])
    hosts.worker.end_front = lambda number: done.append("end") or hosts._end(number)
    hosts.flush = lambda: done.append("flush")  # type: ignore[method-assign]
    hosts.sender.send = lambda address, word: done.append(word)
    asyncio.run(task.run())
    assert done == ["end", "flush", FrontEnded(1, 0, stopped=False)]


def test_heartbeats_tell_for_how_long_a_front_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_task, "monotonic", lambda: 7.5)
    heard: list[Any] = []
    fronts = {1: SimpleNamespace(waits_since=5.0), 2: SimpleNamespace(waits_since=None)}
    worker = SimpleNamespace(
        fronts=fronts, idle_front=lambda *idle: heard.append(idle), heartbeat=lambda number: heard.append(number)
    )

    async def main() -> None:
        flushed = asyncio.Event()
        hosts: Any = SimpleNamespace(
            worker=worker, open_fronts=dict.fromkeys(fronts), working=nullcontext(), flush=flushed.set
        )
        beating = asyncio.create_task(Heartbeats(hosts, 0.0).run())
        async with patience(20):
            await flushed.wait()
        beating.cancel()

    asyncio.run(main())
    assert heard == [(1, 2_500_000), 1, 2]


def test_a_stop_leaves_a_short_batch_as_it_is() -> None:
    task, hosts, _ = make([16, 16], chunk=6)
    hosts.stop_after = 2
    asyncio.run(task.run())
    assert hosts.admitted == [(1, 6), (1, 6)]
    assert sorted(hosts.ended) == [(1, True), (2, True)]


def test_a_short_batch_is_filled_up_no_further_than_there_is_room() -> None:
    async def play() -> None:
        task, hosts, _ = make([16, 16], most=20, chunk=6)
        running = asyncio.create_task(task.run())
        while not task.held_back:
            await asyncio.sleep(0)
        assert hosts.admitted == [(1, 6), (1, 4), (2, 6), (2, 4)]
        hosts.stop.set()
        await running

    asyncio.run(patiently(play(), 10))


def test_the_only_partition_is_read_as_its_reader_gives_it() -> None:
    """Nobody waits for its records but those who want them soon."""
    task, hosts, _ = make([16], chunk=6)
    asyncio.run(task.run())
    assert [count for _, count in hosts.admitted] == [6, 6, 4]


def test_partitions_wait_for_credit_together_and_go_on_with_it() -> None:
    async def play() -> None:
        task, hosts, room = make([10, 10, 10], most=6)
        running = asyncio.create_task(task.run())
        for _ in range(100):
            await asyncio.sleep(0)
            if task.held_back:
                assert task.held_back == len(hosts.open_fronts)
                assert sum(front.in_flight for front in hosts.fronts.values()) <= 6
                for front in hosts.fronts.values():
                    front.delivered(front.next_time)
                room.note()
                task.wake()
        await running
        assert sorted(number for number, _ in hosts.ended) == [1, 2, 3]
        assert {number: front.next_time for number, front in hosts.fronts.items()} == {1: 10, 2: 10, 3: 10}

    asyncio.run(patiently(play(), 10))


def test_a_round_waits_for_the_partition_that_is_behind_and_reads_from_all() -> None:
    """Credit that ends within a row of records is not used from some partitions first."""

    async def play() -> None:
        task, hosts, room = make([20, 20, 20], most=30)
        running = asyncio.create_task(task.run())

        async def deliver(*before: int) -> list[tuple[int, int]]:
            while not task.held_back:
                await asyncio.sleep(0)
            hosts.admitted.clear()
            for front, time in zip(hosts.fronts.values(), before, strict=True):
                front.delivered(time)
            room.note()
            task.wake()
            while task.held_back and room.has_room(1, 16):
                await asyncio.sleep(0)
            return list(hosts.admitted)

        assert await deliver(4, 8, 8) == [], "the first is behind, and has no room for half of its part"
        assert await deliver(6, 8, 8) == [(1, 6), (2, 8), (3, 8)]
        assert await deliver(12, 11, 11) == [(1, 4), (2, 2), (3, 2)], "of which the last have less than half of theirs"
        hosts.stop.set()
        await running

    asyncio.run(patiently(play(), 10))


def test_partitions_that_wait_for_others_keep_none_waiting_that_do_not() -> None:
    async def play() -> None:
        task, hosts, room = make([20, 20, 20], most=30, merged=(1, 2))
        running = asyncio.create_task(task.run())
        while not task.held_back:
            await asyncio.sleep(0)
        hosts.admitted.clear()
        hosts.fronts[3].delivered(10)  # the records of the others wait, for instance for lines of a third
        room.note()
        task.wake()
        while not hosts.admitted:
            await asyncio.sleep(0)
        assert hosts.admitted == [(3, 10)]
        hosts.stop.set()
        await running

    asyncio.run(patiently(play(), 10))


def test_a_partition_that_fails_ends_the_task_with_its_error() -> None:
    task, hosts, _ = make([40, 40, 40], fails_at=16)
    with pytest.raises(SourceError, match="the disk is gone"):
        asyncio.run(task.run())
    assert hosts.ended == []
    assert not hosts.open_fronts


async def delivered(task: FrontTask, hosts: Hosts, room: Room) -> int:
    """Run a task, and deliver all that is admitted whenever it waits; return how often it waits."""
    running, waited = asyncio.create_task(task.run()), 0
    while not running.done():
        await asyncio.sleep(0)
        if task.held_back:
            waited += 1
            for number, time in hosts.promised:
                hosts.fronts[number].delivered(time)
            room.note()
            task.wake()
            assert task._woken.is_set()
    await running
    return waited


@pytest.mark.parametrize("most", [1, 2, 3, 7, 20, 60])
def test_fronts_read_on_as_room_comes_back(most: int) -> None:
    """Whatever their credit is."""
    task, hosts, room = make([50, 50], most=most)
    assert asyncio.run(delivered(task, hosts, room))
    assert {number: front.next_time for number, front in hosts.fronts.items()} == {1: 50, 2: 50}


# -- behind the end of a job -------------------------------------------------------------------------------------------


class Waiting(Numbers):
    """A reader that takes its time."""

    waits = True

    async def read(self, limit: int) -> Batch | None:
        for _ in range(3):
            await asyncio.sleep(0)
        return await super().read(limit)


class Behind(Hosts):
    """The stand-in for a worker whose fronts go on behind the end of their job, at time 7."""

    def __init__(self, sizes: Sequence[int], most: int) -> None:
        fronts = [
            Front(FrontId("n", number), number, start=7, is_behind_end=True) for number in range(1, len(sizes) + 1)
        ]
        super().__init__(fronts, ())
        self.said: list[object] = []
        self.search.is_open = True
        plan: Any = SimpleNamespace(snapshots=True, settings=JobSettings())
        self.room = room = Room(self.fronts, most)
        self.tasks = [
            FrontTask([Reading(front, Waiting(size))], self, plan, room, self.stop)  # type: ignore[arg-type]
            for front, size in zip(fronts, sizes, strict=True)
        ]

    def admit(self, number: int, batch: Batch, at: float, policy: str) -> None:
        if self.search.is_open:
            self.search.note(batch, policy)
        super().admit(number, batch, at, policy)

    def _send(self, address: str, word: Any) -> None:
        self.said.append(word)

    def deliver(self) -> None:
        """Return the credit of what was admitted."""
        for front in self.fronts.values():
            front.delivered(front.next_time)
        self.room.note()
        for task in self.tasks:
            task.wake()

    async def run(self) -> list[asyncio.Task[None]]:
        """Start all tasks, and let them come as far as they do by themselves."""
        running = [asyncio.create_task(task.run()) for task in self.tasks]
        for _ in range(100):
            await asyncio.sleep(0)
        return running


def play(body: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with patience(20):
            await body()

    asyncio.run(limited())


@pytest.mark.parametrize("found", [False, True])
def test_fronts_with_nothing_behind_the_end_wait_for_what_others_find(found: bool) -> None:
    async def body() -> None:
        hosts = Behind([0, 0, 0], most=1)  # credit for one front at a time
        running = await hosts.run()
        assert hosts.said == [FoundNothing(1), FoundNothing(2), FoundNothing(3)]
        assert {time for _, time in hosts.promised} == {7}
        hosts.search.end(found=found)
        await asyncio.gather(*running)
        assert hosts.said[3:] == [FrontEnded(number, 7) for number in (1, 2, 3)]
        assert [front.is_behind_end for front in hosts.fronts.values()] == [not found] * 3

    play(body)


def test_the_first_record_behind_the_end_ends_the_search() -> None:
    async def body() -> None:
        hosts = Behind([0, 5, 0], most=100)
        running = await hosts.run()
        while not all(task.done() for task in running):
            hosts.deliver()
            await asyncio.sleep(0)
        assert hosts.said.count(Found(0)) == 1
        assert hosts.said[:2] == [FoundNothing(1), Found(0)]
        assert {word.front for word in hosts.said if isinstance(word, FrontEnded) and not word.stopped} == {1, 2, 3}
        assert [front.next_time for front in hosts.fronts.values()] == [7, 12, 7]
        assert not any(front.is_behind_end for front in hosts.fronts.values())

    play(body)


def test_a_front_that_waits_for_others_is_stopped_where_it_is() -> None:
    """It is not known whether there is anything new: the next run looks again."""

    async def body() -> None:
        hosts = Behind([0, 0], most=100)
        running = await hosts.run()
        hosts.stop.set()
        await asyncio.gather(*running)
        assert hosts.said[2:] == [FrontEnded(1, 7, stopped=True), FrontEnded(2, 7, stopped=True)]
        hosts.search.end(found=False)
        assert len(hosts.said) == 4

    play(body)
