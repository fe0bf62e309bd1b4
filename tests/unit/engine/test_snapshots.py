"""Snapshots while a job runs: what the control asks for and when, what workers store, journal and acknowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from random import Random
from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.acker import Reporter, SingleListener
from flamecore.abc.source import Batch, Reader, Rejected
from flamecore.abc.store import StoreContext
from flamecore.errors import CorruptError, JobError, StoreError
from flamecore.model.clock import ClockName
from flamecore.model.failure import Cause, Failure
from flamecore.model.hashing import key_groups
from flamecore.model.messages import (
    Committed,
    Delivered,
    Failing,
    MinTimes,
    Prepare,
    Prepared,
    Reached,
    Report,
    Resume,
    Settled,
)
from flamecore.model.meta import MIN_FRONT, FrontId, GlobalTime
from flamecore.model.plan import Plan
from flamecore.model.settings import JobSettings, StateTable
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.engine.snapshots.coordinator import SnapshotCoordinator
from flamecore.runtime.engine.snapshots.journal import EpochStore
from flamecore.runtime.engine.snapshots.participant import SnapshotWriter
from flamecore.runtime.parts.completion import Completion
from flamecore.runtime.parts.front import Front
from flamecore.runtime.parts.worker import Worker
from flamecore.runtime.state.format import (
    Binding,
    FrontState,
    Manifest,
    Part,
    commit_blob,
    journal_blob,
    part_blob,
    seal,
)
from flamecore.runtime.state.history import History
from flamecore.runtime.state.journal import (
    IDLE_MARK,
    LAST_MARK,
    GivenTimes,
    decode_journal,
    encode_journal,
    end_of,
    load_journal,
)
from flamecore.runtime.state.restore import load_manifest, load_state
from flamecore.runtime.state.writer import StateWriter
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.testing.progress import patience
from flamestream_stores.memory import Memory


class Gated(Memory):
    """A store whose writes wait until they are let through; each is told of."""

    def __init__(self) -> None:
        super().__init__(None, StoreContext("job"))
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[str] = []

    async def create(self, name: str, data: bytes) -> bool:
        self.asked.append(name)
        await self.gate.wait()
        return await super().create(name, data)


class Silent(Reporter):
    """Writes down promises and ends."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def ack(self, segment: int, time: int, xor: int) -> None:
        raise AssertionError("there is one worker")

    def heartbeat(self, front: int, time: int) -> None:
        self.calls.append((front, time))

    def unregister(self, front: int) -> None:
        self.calls.append((front, "end"))

    def flush(self, now: float) -> Sequence[tuple[int, Report]]:
        return ()


class Told(Reader):
    """A reader that notes what it is told to forget."""

    def __init__(self) -> None:
        self.forgotten: list[Any] = []

    async def read(self, limit: int) -> Batch | None:
        return None

    async def acknowledge(self, position: Any) -> None:
        self.forgotten.append(position)


class Post:
    """Takes messages."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.some = asyncio.Event()

    def send(self, to: str, message: Any) -> None:
        self.sent.append((to, message))
        self.some.set()

    async def next(self) -> Any:
        while not self.sent:
            self.some.clear()
            await self.some.wait()
        return self.sent.pop(0)


def counting() -> fc.Graph:
    flow = fc.Flow("counting")
    flow.source("lines", str).key_by(lambda line: line).count(name="count").sink("out")
    return flow.graph()


HERE = Binding("mine", "run")


def resumed(*journals: str) -> Resume:
    """Return the state for a worker that goes on from these journals."""
    return Resume("mine", 3, "", journals, (), 0)


class Bench:
    """One worker with its side of snapshots."""

    def __init__(self, clock: ClockName = "sequence", now: int = 100, fronts: int = 1, **front: Any) -> None:
        self.now = now
        self.plan = Plan(
            counting(), tuple(FrontId("lines", n) for n in range(fronts)), JobSettings(clock=clock, state=StateTable())
        )
        self.reporter = Silent()
        made = [
            Front(name, number, clock=clock, snapshots=True, now_us=lambda: self.now, **front)
            for number, name in enumerate(self.plan.fronts, 1)
        ]
        self.worker = Worker(
            0,
            self.plan,
            reporter=self.reporter,
            listener=SingleListener(len(self.plan.segments.inbound), 0),
            random=Random(1),
            fronts=made,
        )
        self.store, self.post, self.readers = Gated(), Post(), {number: Told() for number in self.worker.fronts}
        self.taken = self.flushed = 0
        (operation,) = self.worker.compiled.stateful.values()
        self.commits = SnapshotWriter(
            self.worker,
            [StateWriter({"count": operation}, Codec(), (0, 127))],
            EpochStore(self.store, 3, HERE),
            Codec(),
            self.post,  # type: ignore[arg-type]
            self.readers,
            Deadlines(),
            flush=self._flush,
            taken=self._take,
        )

    def _flush(self) -> None:
        self.flushed += 1
        self.worker.flush(0.0)

    def _take(self) -> None:
        self.taken += 1

    def admit(self, *values: str, number: int = 1, start: int = 0) -> None:
        self.worker.admit(number, Batch(values, range(start, start + len(values))), 0.0)
        self.commits.wake()

    def calls(self) -> list[tuple[Any, ...]]:
        calls, self.reporter.calls = self.reporter.calls, []
        return calls


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with patience(20):
            await body()

    asyncio.run(limited())


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def working(body: Callable[[Bench], Awaitable[None]], **settings: Any) -> None:
    """Run a bench whose commits work meanwhile."""

    async def both() -> None:
        bench = Bench(**settings)
        task = asyncio.create_task(bench.commits.run())
        try:
            await body(bench)
        finally:
            task.cancel()
            await asyncio.wait((task,))
        if not task.cancelled():
            task.result()

    run(both)


# -- a worker's side ---------------------------------------------------------------------------------------------------


def test_a_worker_stores_what_is_below_the_cut_and_says_so() -> None:
    async def body(bench: Bench) -> None:
        bench.admit("a", "b", "a")
        bench.commits.prepare(Prepare(7, 2))
        bench.admit("a", start=3)  # it goes on meanwhile
        to, answer = await bench.post.next()
        assert (to, answer.number, answer.worker) == ("job", 7, 0)
        assert answer.fronts == ((1, 1, 2, False),)
        (part,) = (Part(*part) for part in answer.parts)
        assert (part.blob, part.operations, part.groups, part.number) == (part_blob(3, 7, 0), ("count",), (0, 127), 7)
        assert bench.taken == 1
        manifest = Manifest("", 3, 7, 2, 0.0, {}, 1, (), (part,))
        state = await load_state(bench.store, Codec(), manifest, range(128), {"count": key_groups})
        assert state == {"count": {"a": 1, "b": 1}}

    working(body)


def test_a_single_worker_cuts_at_the_time_that_it_has_released() -> None:
    """Then it need not set apart what the sinks do not have yet, nor keep it."""

    async def body(bench: Bench) -> None:
        segments = len(bench.plan.segments.inbound)
        words = ["a", "b"] * 1000
        bench.admit(*words)
        bench.worker.receive("acker/0", MinTimes((1500,) * segments))
        bench.worker.flush(0.0)
        (operation,) = bench.worker.compiled.stateful.values()
        assert bench.worker.fronts[1].uncommitted == 2000
        bench.commits.prepare(Prepare(7, 2))
        assert bench.worker.fronts[1].uncommitted == 500
        _, answer = await bench.post.next()
        assert answer.time == 1500
        assert answer.fronts == ((1, 1499, 1500, False),)
        manifest = Manifest("", 3, 7, 1500, 0.0, {}, 1, (), tuple(Part(*part) for part in answer.parts))
        state = await load_state(bench.store, Codec(), manifest, range(128), {"count": key_groups})
        assert state == {"count": {"a": 750, "b": 750}}
        bench.worker.receive("acker/0", MinTimes((2000,) * segments))
        bench.admit("a", start=2000)
        bench.worker.flush(0.0)
        assert operation._notes, "a snapshot would have to wait for the sinks"
        bench.commits.prepare(Prepare(8, 1600))
        assert (await bench.post.next())[1].time == 1600
        bench.worker.receive("rear/out", Delivered("out", 2000))
        bench.admit(*words, start=2001)
        bench.worker.receive("acker/0", MinTimes((4001,) * segments))
        bench.worker.flush(0.0)
        assert not operation._notes, "it trims after many records"
        bench.worker.receive("job", Settled(2000))
        bench.commits.prepare(Prepare(9, 2000))
        assert (await bench.post.next())[1].time == 4001

    working(body)


def test_a_single_worker_does_not_cut_behind_a_record_that_ends_the_job() -> None:
    """The sinks do not get as far, and the snapshot would wait for them."""

    async def body(bench: Bench) -> None:
        segments = len(bench.plan.segments.inbound)
        bench.admit("a", "b", [], "c")  # type: ignore[arg-type]
        bench.worker.receive("acker/0", MinTimes((4,) * segments))
        bench.worker.flush(0.0)
        bench.commits.prepare(Prepare(7, 2))
        answer = (await bench.post.next())[1]
        assert answer.time == 2

    working(body)


def test_items_go_on_while_a_snapshot_is_stored() -> None:
    async def body(bench: Bench) -> None:
        bench.admit("a")
        bench.store.gate.clear()
        bench.commits.prepare(Prepare(1, 1))
        await settle()
        assert bench.store.asked == [part_blob(3, 1, 0)]
        bench.admit("b", start=1)
        await settle()
        assert not bench.post.sent, "not before it is stored"
        bench.store.gate.set()
        await bench.post.next()

    working(body)


def test_unchanged_state_makes_no_part() -> None:
    async def body(bench: Bench) -> None:
        bench.commits.prepare(Prepare(1, 5))
        _, answer = await bench.post.next()
        assert answer.parts == ()
        assert not bench.store.asked

    working(body)


def test_a_large_snapshot_is_stored_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamecore.runtime.engine.snapshots.participant._PART_BYTES", 100)

    async def body(bench: Bench) -> None:
        words = [f"word {number}" for number in range(100)]
        bench.admit(*words)
        bench.commits.prepare(Prepare(7, 100))
        _, answer = await bench.post.next()
        parts = [Part(*part) for part in answer.parts]
        assert [part.blob for part in parts] == [part_blob(3, 7, 0, piece) for piece in range(len(parts))]
        assert len(parts) > 3
        manifest = Manifest("", 3, 7, 100, 0.0, {}, 1, (), tuple(parts))
        state = await load_state(bench.store, Codec(), manifest, range(128), {"count": key_groups})
        assert state == {"count": dict.fromkeys(words, 1)}

    working(body)


def test_settled_history_is_forgotten_before_the_snapshot() -> None:
    async def body(bench: Bench) -> None:
        bench.admit("a")
        bench.admit("b", "a", "c", start=1)
        bench.worker.receive("job", Settled(2))
        (operation,) = bench.worker.compiled.stateful.values()
        assert [list(note.payloads) for note in operation._notes] == [["b", "a", "c"]]
        assert bench.worker.fronts[1].uncommitted == 4, "what is to be read again after a crash"
        bench.admit("b", start=4)
        bench.commits.prepare(Prepare(7, 3))
        _, answer = await bench.post.next()
        assert bench.worker.fronts[1].uncommitted == 2
        assert answer.fronts == ((1, 2, 3, False),)
        manifest = Manifest("", 3, 7, 3, 0.0, {}, 1, (), tuple(Part(*part) for part in answer.parts))
        state = await load_state(bench.store, Codec(), manifest, range(128), {"count": key_groups})
        assert state == {"count": {"a": 2, "b": 1}}

    working(body)


def test_a_part_that_is_there_already_is_an_error() -> None:
    async def body() -> None:
        bench = Bench()
        bench.store.blobs[part_blob(3, 1, 0)] = b""
        bench.admit("a")
        bench.commits.prepare(Prepare(1, 1))
        with pytest.raises(StoreError, match="already"):
            await bench.commits.run()

    run(body)


def test_times_of_the_wall_clock_are_promised_once_they_are_written_down() -> None:
    async def body(bench: Bench) -> None:
        bench.worker.heartbeat(1)
        assert bench.calls() == [(1, 100)]
        bench.store.gate.clear()
        bench.admit("a", "b")
        await settle()
        assert bench.store.asked == [journal_blob(3, 0, 1)]
        bench.now = 500
        bench.worker.heartbeat(1)
        bench.admit("c")
        bench.worker.heartbeat(1)
        assert bench.calls() == [], "nothing is promised before it is written"
        bench.store.gate.set()
        await settle()
        assert bench.calls() == [(1, 102), (1, 501)]
        assert bench.flushed == 2
        assert bench.store.asked == [journal_blob(3, 0, 1), journal_blob(3, 0, 2)], "what came meanwhile, all at once"
        assert decode_journal(bench.store.blobs[journal_blob(3, 0, 2)], journal_blob(3, 0, 2), HERE) == [
            GivenTimes(1, 500, 1)
        ]
        bench.now = 900
        bench.worker.heartbeat(1)
        assert bench.calls() == [(1, 900)]

    working(body, clock="wall")


def test_times_given_meanwhile_are_written_down_together() -> None:
    async def body(bench: Bench) -> None:
        bench.store.gate.clear()
        bench.admit("a")
        await settle()
        for value in "bcd":
            bench.admit(value)
            bench.admit(value, number=2)
        bench.worker.flush(0.0)  # no record waits for the other front any more
        bench.store.gate.set()
        await settle()
        assert len(bench.store.blobs) == 2
        assert len(decode_journal(bench.store.blobs[journal_blob(3, 0, 2)], journal_blob(3, 0, 2), HERE)) == 6
        assert bench.calls()[-2:] == [(1, 106), (2, 107)], "of one clock: what is read later comes later"

    working(body, clock="wall", fronts=2)


def test_a_front_of_the_wall_clock_ends_once_its_times_are_written_down() -> None:
    async def body(bench: Bench) -> None:
        bench.store.gate.clear()
        bench.admit("a")
        assert bench.worker.end_front(1) == 101
        await settle()
        assert bench.calls() == []
        bench.store.gate.set()
        await settle()
        assert bench.calls() == [(1, 101), (1, "end")]

    working(body, clock="wall")


def test_the_end_of_a_front_of_the_sequence_clock_is_written_down_first() -> None:
    async def body(bench: Bench) -> None:
        bench.admit("a", "b")
        assert bench.calls() == [(1, 2)]
        assert not bench.store.asked, "its times need no journal"
        bench.store.gate.clear()
        assert bench.worker.end_front(1) == 2
        bench.commits.wake()
        await settle()
        assert bench.calls() == []
        bench.store.gate.set()
        await settle()
        assert bench.calls() == [(1, 2), (1, "end")]
        journal = await load_journal(bench.store, resumed(journal_blob(3, 0, 1)), 0)
        assert journal.ends == {1: 2}
        assert journal.times == {}

    working(body)


def test_a_front_that_had_ended_before_ends_at_once() -> None:
    async def body(bench: Bench) -> None:
        bench.worker.end_front(1)
        assert bench.calls() == [(1, "end")]
        assert not bench.worker.ingress.promises.given_times

    working(body, ended=True)


def test_a_stopped_front_makes_its_last_promise_and_stays() -> None:
    async def body(bench: Bench) -> None:
        bench.admit("a", "b")
        bench.calls()
        assert bench.worker.stop_front(1) == 2
        assert bench.calls() == [(1, 2)]
        bench.commits.prepare(Prepare(1, 2))
        _, answer = await bench.post.next()
        assert answer.fronts == ((1, 1, 2, False),), "the next run reads on"

    working(body)


def test_a_stopped_front_of_the_wall_clock_keeps_its_promise() -> None:
    async def body(bench: Bench) -> None:
        bench.store.gate.clear()
        bench.admit("a")
        bench.now = 300
        assert bench.worker.stop_front(1) == 101
        assert bench.calls() == []
        bench.store.gate.set()
        await settle()
        assert bench.calls() == [(1, 101)]
        assert bench.worker.stop_front(1) == 300

    working(body, clock="wall")


def test_times_of_the_journal_are_given_again_and_not_written_again() -> None:
    async def body(bench: Bench) -> None:
        batch = Batch(["a", "b", "c", "d"], range(4), [Rejected(1.5, "bad", "?")])
        bench.worker.admit(1, batch, 0.0, "dead_letter")
        assert bench.calls() == [(1, 60), (1, 70), (1, 100)]
        bench.commits.wake()
        await settle()
        assert len(bench.store.blobs) == 1, "the fifth record is new"
        assert decode_journal(bench.store.blobs[journal_blob(3, 0, 1)], journal_blob(3, 0, 1), HERE) == [
            GivenTimes(1, 100, 1)
        ]
        released = bench.worker.compiled.barriers["out"].release(1000)
        assert [payload for _, payload in released] == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]

    working(body, clock="wall", journal=[(50, 2), (60, 1), (70, 1)])


def test_sources_hear_which_positions_they_may_forget() -> None:
    async def body(bench: Bench) -> None:
        bench.commits.committed(Committed(4, 10, ((1, "ten"), (2, None), (3, "elsewhere"))))
        await settle()
        assert bench.readers[1].forgotten == ["ten"]
        assert bench.readers[2].forgotten == [], "nothing was read of it"

    working(body, fronts=2)


def test_journals_are_deleted_when_no_snapshot_needs_them() -> None:
    async def body(bench: Bench) -> None:
        for now in (100, 200, 300):
            bench.now = now
            bench.admit("a")
            await settle()
        assert len(bench.store.blobs) == 3
        bench.commits.committed(Committed(4, 201, ()))
        await settle()
        assert list(bench.store.blobs) == [journal_blob(3, 0, 3)]

    working(body, clock="wall")


def test_a_journal_is_kept_that_a_snapshot_has_named_before_it_was_stored() -> None:
    """Else the snapshot could not be used any more: a journal that it needs would count as lost."""

    async def body(bench: Bench) -> None:
        bench.store.gate.clear()
        bench.worker.ingress.promises.given_times.append(GivenTimes(MIN_FRONT, 99, 1))
        bench.commits.wake()
        await settle()
        bench.commits.prepare(Prepare(7, 150))
        _, answer = await bench.post.next()
        assert answer.journal == 1, "it is being stored, and the next one"
        bench.store.gate.set()
        bench.now = 200
        bench.admit("a")
        await settle()
        bench.commits.committed(Committed(7, 120, ()))
        await settle()
        assert list(bench.store.blobs) == [journal_blob(3, 0, 1), journal_blob(3, 0, 2)]
        bench.commits.committed(Committed(8, 151, ()))
        await settle()
        assert list(bench.store.blobs) == [journal_blob(3, 0, 2)], "that snapshot is no longer kept"

    working(body, clock="wall")


# -- the control's side ------------------------------------------------------------------------------------------------


class Rear:
    """A rear that is told to make things durable."""

    def __init__(self, told: list[Any]) -> None:
        self.told = told
        self.writer = self.deadline = self.collector = self  # of its sink
        self.name, self.pending, self.reached = "out", "", 0

    async def sync(self, time: int) -> None:
        self.told.append(("sync", time))


class Watched(Memory):
    """Notes what is recorded."""

    def __init__(self, told: list[Any]) -> None:
        super().__init__(None, StoreContext("job"))
        self.told = told
        self.full = False

    async def create(self, name: str, data: bytes) -> bool:
        if self.full:
            raise StoreError("the disk is full", store=self.name, blob=name)
        if name.startswith("commit"):
            self.told.append(("commit", name))
        return await super().create(name, data)

    async def delete(self, names: Collection[str]) -> None:
        await super().delete(names)


class Job:
    """The control of a job of two workers."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.store = Watched(self.told)
        self.graph = counting()
        self.history = History(self.store, self.graph, 2)
        self.plan = Plan(self.graph, (FrontId("lines", 0),), JobSettings(workers=2, state=StateTable()))
        self.completion = Completion(self.plan)
        self.post = Post()
        self.taken: list[Manifest] = []

    async def open(self, **settings: Any) -> Job:
        await self.history.scan()
        self.history.fronts = (FrontState("lines", 0, "", 1, None, 0, False),)
        await self.history.begin({})
        self.coordinator = SnapshotCoordinator(
            self.plan,
            self.history,
            self.completion,
            StateTable(**settings),
            self.post,  # type: ignore[arg-type]
            [Rear(self.told)],  # type: ignore[list-item]
            self.taken.append,
        )
        return self

    def answer(self, number: int, position: Any, time: int) -> None:
        for worker in (1, 0):
            fronts = ((1, position, time, False),) if worker == 0 else ()
            self.coordinator.receive(Prepared(number, worker, fronts, ()))


def test_a_snapshot_covers_outputs_that_every_rear_has_stored() -> None:
    async def body() -> None:
        job = await Job().open()
        job.completion.receive(Delivered("out", 5))
        committing = asyncio.create_task(job.coordinator.commit())
        await settle()
        assert job.post.sent == [("worker/0", Prepare(1, 5)), ("worker/1", Prepare(1, 5))]
        job.completion.receive(Delivered("out", 9))
        job.answer(1, "five", 5)
        await committing
        assert job.told == [("sync", 5), ("commit", commit_blob(1, 1))], "durable first"
        assert [manifest.time for manifest in job.taken] == [5]
        assert job.history.start == 5

    run(body)


def test_a_first_snapshot_can_be_had_before_anything_is_done() -> None:
    """Another version of the flow is held against it: it says which operations keep state. One is enough."""

    async def body() -> None:
        job = await Job().open()
        await job.coordinator.commit()
        assert job.post.sent == []
        committing = asyncio.create_task(job.coordinator.commit(first=True))
        await settle()
        assert [message for _, message in job.post.sent] == 2 * [Prepare(1, job.plan.start)]
        job.answer(1, None, 0)
        await committing
        assert [list(manifest.flow) for manifest in job.taken] == [["count"]]
        await job.coordinator.commit(first=True)
        assert len(job.taken) == 1
        job.completion.receive(Delivered("out", 5))
        committing = asyncio.create_task(job.coordinator.commit())
        await settle()
        job.answer(2, "five", 5)
        await committing
        assert [(manifest.number, manifest.time) for manifest in job.taken] == [(1, job.plan.start), (2, 5)]

    run(body)


@pytest.mark.parametrize("broken_off", [False, True])
def test_no_snapshot_follows_a_failed_one(broken_off: bool) -> None:
    """A change is cut once, so a later snapshot would lack it; also one that was waiting for its turn."""

    async def body() -> None:
        job = await Job().open()
        job.completion.receive(Delivered("out", 5))
        failing = asyncio.create_task(job.coordinator.commit())
        await settle()
        job.completion.receive(Delivered("out", 9))
        waiting = asyncio.create_task(job.coordinator.commit())
        await settle()
        if broken_off:
            failing.cancel()
        else:
            job.store.full = True
            job.answer(1, "five", 5)
        await asyncio.wait((failing,))
        job.store.full = False
        job.answer(2, "nine", 9)
        with pytest.raises(JobError, match="an earlier snapshot has failed"):
            await waiting
        assert failing.cancelled() or isinstance(failing.exception(), StoreError)
        assert job.history.snapshot is None
        assert job.taken == []

    run(body)


def test_workers_hear_of_settled_times_now_and_then() -> None:
    async def body() -> None:
        job = await Job().open()
        loop = asyncio.get_running_loop()

        def told() -> list[Any]:
            sent, job.post.sent = job.post.sent, []
            assert [to for to, _ in sent] == ["worker/0", "worker/1"] * (len(sent) // 2)
            return [message for _, message in sent[::2]]

        job.coordinator.advance()
        assert told() == [], "nothing is stored yet"
        times = []
        begun = loop.time()
        for time in range(1, 60):
            job.completion.receive(Delivered("out", time))
            job.coordinator.advance()
            times += [message.time for message in told()]
            assert all(settled <= time for settled in times)
            await asyncio.sleep(0.001)
        took = loop.time() - begun
        assert times[0] == 1
        assert times == sorted(set(times))
        assert len(times) <= 1 + took / 0.02, "not each time"
        committing = asyncio.create_task(job.coordinator.commit())
        await settle()
        assert told() == [Prepare(1, 59)]
        await asyncio.sleep(0.03)
        job.coordinator.advance()
        assert told() == [], "a snapshot is taken of that time"
        job.answer(1, "there", 59)
        await committing

    run(body)


def test_sources_hear_of_positions_no_snapshot_goes_back_to() -> None:
    async def body() -> None:
        job = await Job().open()
        for number, time in enumerate((5, 9, 12), 1):
            job.post.sent.clear()
            job.completion.receive(Delivered("out", time))
            committing = asyncio.create_task(job.coordinator.commit())
            await settle()
            job.answer(number, f"at {time}", time)
            await committing
            words = [message for _, message in job.post.sent if isinstance(message, Committed)]
            if number == 1:
                assert words == [], "the beginning may have to be gone back to"
            else:
                before = {2: 5, 3: 9}[number]
                assert words == [Committed(number, before, ((1, f"at {before}"),))] * 2

    run(body)


def test_no_snapshot_is_taken_without_changes() -> None:
    async def body() -> None:
        job = await Job().open()
        await job.coordinator.commit()
        assert not job.post.sent, "nothing is stored yet"
        for number, time in enumerate((5, 9, 9), 1):
            job.completion.receive(Delivered("out", time))
            committing = asyncio.create_task(job.coordinator.commit())
            await settle()
            job.answer(number, "the same", 5)
            await committing
        assert [manifest.time for manifest in job.taken] == [5], "time alone is nothing new"
        assert len([message for _, message in job.post.sent if isinstance(message, Prepare)]) == 4

    run(body)


def test_a_run_tidies_up_though_it_finds_nothing_new() -> None:
    async def body() -> None:
        job = await Job().open()
        for number, time in enumerate((5, 9), 1):  # from the second on there is no going back to the beginning
            job.completion.receive(Delivered("out", time))
            committing = asyncio.create_task(job.coordinator.commit())
            await settle()
            job.answer(number, f"at {time}", time)
            await committing
        again = Job()
        again.store.blobs = job.store.blobs
        await again.open()
        again.completion.receive(Delivered("out", 12))
        again.store.blobs[left := part_blob(1, 7, 0)] = b"left by a fault"
        committing = asyncio.create_task(again.coordinator.commit())
        await settle()
        again.answer(3, None, 0)
        await committing
        assert again.taken == []
        assert left not in again.store.blobs

    run(body)


def test_the_least_progress_is_worth_a_snapshot() -> None:
    async def body() -> None:
        job = await Job().open()
        job.completion.receive(Delivered("out", job.plan.start))
        committing = asyncio.create_task(job.coordinator.commit())
        await settle()
        job.answer(1, "one", job.plan.start)
        await committing
        assert [manifest.time for manifest in job.taken] == [job.plan.start]

    run(body)


def test_the_last_snapshot_is_taken_though_time_has_not_advanced() -> None:
    """It says that the sources have ended."""

    async def body() -> None:
        job = await Job().open()
        job.completion.receive(Delivered("out", 5))
        committing = asyncio.create_task(job.coordinator.commit())
        await settle()
        job.answer(1, "five", 5)
        await committing
        finishing = asyncio.create_task(job.coordinator.finish())
        await settle()
        assert job.post.sent[-2:] == [("worker/0", Prepare(2, 5)), ("worker/1", Prepare(2, 5))]
        for worker in (0, 1):
            job.coordinator.receive(Prepared(2, worker, ((1, "five", 5, True),) if worker == 0 else (), ()))
        await finishing
        assert [(manifest.number, manifest.time) for manifest in job.taken] == [(1, 5), (2, 5)]

    run(body)


def test_there_are_snapshots_until_a_sink_comes_to_a_record_that_fails() -> None:
    """It may be slow, and what it stores until then is not to be repeated by the next run."""

    async def body() -> None:
        job = await Job().open()
        failure = Failure(None, "count", "record", None, Cause("ValueError: no"))
        job.completion.receive(Failing(failure))
        job.completion.receive(Delivered("out", 10))
        taking = asyncio.create_task(job.coordinator.commit())
        await settle()
        job.answer(1, "ten", 10)
        await taking
        assert [manifest.time for manifest in job.taken] == [10]
        job.completion.receive(Delivered("out", 20))
        job.completion.receive(Reached("out", failure))
        job.post.sent.clear()
        await job.coordinator.commit()
        assert job.post.sent == []

    run(body)


def test_a_snapshot_that_a_worker_waits_for_is_taken_before_the_interval_is_over() -> None:
    async def body() -> None:
        job = await Job().open(interval_s=3600.0)
        running = asyncio.create_task(job.coordinator.run())
        job.coordinator.hasten()
        await settle()
        assert prepared(job) == [], "there is nothing yet that it would cover"
        job.completion.receive(Delivered("out", 5))
        job.coordinator.advance()
        await settle()
        assert prepared(job) == 2 * [Prepare(1, 5)]
        job.answer(1, "five", 5)
        job.completion.receive(Delivered("out", 9))
        job.coordinator.advance()
        await settle()
        assert prepared(job) == [], "nobody waits for the next one"
        job.coordinator.hasten()
        await settle()
        assert prepared(job) == 2 * [Prepare(2, 9)]
        job.answer(2, "nine", 9)
        await settle()
        assert [manifest.time for manifest in job.taken] == [5, 9]
        running.cancel()
        await asyncio.wait((running,))

    def prepared(job: Job) -> list[Prepare]:
        sent = [message for _, message in job.post.sent if isinstance(message, Prepare)]
        job.post.sent.clear()
        return sent

    run(body)


def test_a_snapshot_is_recorded_once_the_sinks_hold_all_below_the_time_of_the_worker() -> None:
    async def body() -> None:
        job = await Job().open(interval_s=3600.0)
        running = asyncio.create_task(job.coordinator.run())
        job.completion.receive(Delivered("out", 5))
        job.coordinator.hasten()
        for worker in (1, 0):
            fronts = ((1, "nine", 9, False),) if worker == 0 else ()
            job.coordinator.receive(Prepared(1, worker, fronts, (), time=9))
        await settle()
        job.completion.receive(Delivered("out", 8))
        job.coordinator.advance()
        await settle()
        assert job.told == []
        job.completion.receive(Delivered("out", 9))
        job.coordinator.advance()
        await settle()
        assert job.told == [("sync", 9), ("commit", commit_blob(1, 1))]
        assert job.history.start == 9
        job.coordinator.hasten()
        job.completion.receive(Delivered("out", 10))
        job.coordinator.advance()
        job.coordinator.receive(Prepared(2, 1, (), (), time=12))
        job.coordinator.receive(Prepared(2, 0, ((1, "twelve", 12, False),), (), time=12))
        failure = Failure(None, "map", "x", None, Cause("it fails"), at=GlobalTime(14, 1))
        job.completion.receive(Reached("out", failure))
        job.coordinator.advance()
        await settle()
        assert job.history.start == 12, "of what was before a record that ends the job"
        running.cancel()
        await asyncio.wait((running,))

    run(body)


@pytest.mark.parametrize("pending", ["", "sink 'out' takes long to write a batch"])
def test_a_sink_that_does_not_come_to_the_time_of_a_snapshot_is_named(pending: str) -> None:
    async def body() -> None:
        job = await Job().open(commit_timeout_s=0.05)
        job.coordinator._rears[0].pending = pending  # type: ignore[attr-defined]
        job.completion.receive(Delivered("out", 5))
        committing = asyncio.create_task(job.coordinator.commit())
        await settle()
        job.coordinator.receive(Prepared(1, 1, (), (), time=9))
        job.coordinator.receive(Prepared(1, 0, ((1, "nine", 9, False),), (), time=9))
        with pytest.raises(JobError, match=pending or "sink 'out' has not stored its output"):
            await committing
        assert job.told == []

    run(body)


def test_a_snapshot_that_is_due_is_asked_for_with_the_next_delivery() -> None:
    """Before the worker that hears of the delivery can admit more; and soon without one."""

    def prepared(job: Job) -> list[Prepare]:
        return [message for to, message in job.post.sent if to == "worker/0" and isinstance(message, Prepare)]

    async def body() -> None:
        job = await Job().open(interval_s=0.02)
        job.completion.receive(Delivered("out", 5))
        running = asyncio.create_task(job.coordinator.run())
        while not job.coordinator._wanted:
            await asyncio.sleep(0.001)
        assert prepared(job) == []
        job.completion.receive(Delivered("out", 9))
        job.coordinator.advance()
        assert prepared(job) == [Prepare(1, 9)], "it is not left to a task"
        job.completion.receive(Delivered("out", 12))
        job.coordinator.advance()
        job.answer(1, "nine", 9)
        while len(prepared(job)) < 2:
            await asyncio.sleep(0.001)
        assert prepared(job)[1] == Prepare(2, 12), "no further delivery has come"
        job.answer(2, "twelve", 12)
        await asyncio.sleep(0.1)
        assert len(prepared(job)) == 2, "nothing is new"
        assert [manifest.time for manifest in job.taken] == [9, 12]
        running.cancel()
        await asyncio.wait((running,))

    run(body)


@pytest.mark.parametrize("last", [False, True])
def test_a_snapshot_that_was_asked_for_is_completed_before_another_is_taken(last: bool) -> None:
    async def body() -> None:
        job = await Job().open(interval_s=3600.0)
        job.completion.receive(Delivered("out", 5))
        job.coordinator.hasten()  # nobody runs that would complete it
        job.completion.receive(Delivered("out", 9))
        taking = asyncio.create_task(job.coordinator.finish() if last else job.coordinator.commit())
        await settle()
        assert [message for _, message in job.post.sent if isinstance(message, Prepare)] == 2 * [Prepare(1, 5)]
        job.answer(1, "five", 5)
        await settle()
        job.answer(2, "nine", 9)
        await taking
        assert [(manifest.number, manifest.time) for manifest in job.taken] == [(1, 5), (2, 9)]

    run(body)


def test_a_worker_that_asks_during_a_snapshot_gets_the_next_one_at_once() -> None:
    """Its answer to the first covers too little of what it has read."""

    async def body() -> None:
        job = await Job().open(interval_s=3600.0)
        running = asyncio.create_task(job.coordinator.run())
        job.completion.receive(Delivered("out", 5))
        job.coordinator.hasten()
        await settle()
        job.coordinator.hasten()
        job.completion.receive(Delivered("out", 9))
        job.coordinator.advance()
        await settle()
        assert [message for _, message in job.post.sent if isinstance(message, Prepare)] == 2 * [Prepare(1, 5)]
        job.answer(1, "five", 5)
        await settle()
        job.answer(2, "nine", 9)
        await settle()
        assert [manifest.time for manifest in job.taken] == [5, 9]
        running.cancel()
        await asyncio.wait((running,))

    run(body)


def test_answers_to_an_earlier_request_do_not_count() -> None:
    async def body() -> None:
        job = await Job().open()
        job.completion.receive(Delivered("out", 5))
        committing = asyncio.create_task(job.coordinator.commit())
        await settle()
        job.coordinator.receive(Prepared(0, 1, (), ()))
        job.coordinator.receive(Prepared(1, 0, (), ()))
        await settle()
        assert not committing.done()
        job.coordinator.receive(Prepared(1, 1, (), ()))
        await committing

    run(body)


def test_a_worker_that_does_not_answer_is_named() -> None:
    async def body() -> None:
        job = await Job().open(commit_timeout_s=0.01)
        job.completion.receive(Delivered("out", 5))
        committing = asyncio.create_task(job.coordinator.commit())
        await settle()
        job.coordinator.receive(Prepared(1, 0, (), ()))
        with pytest.raises(JobError, match=r"snapshot 1 .* no answer of worker 1"):
            await committing

    run(body)


# -- what is loaded ----------------------------------------------------------------------------------------------------


def test_a_journal_comes_back_in_order_from_the_start_on() -> None:
    async def body() -> None:
        store = Memory(None, StoreContext("job"))
        entries = [
            [GivenTimes(2, 30, 2), GivenTimes(1, 10, 5)],
            [GivenTimes(1, 15, 2), GivenTimes(3, 4, 1), GivenTimes(4, 9, 0)],
            [GivenTimes(1, 40, 1)],
        ]
        blobs = [journal_blob(1, 0, number) for number in (3, 1, 2)]
        for blob, given in zip(blobs, entries, strict=True):
            assert await store.create(blob, encode_journal(given, blob, HERE))
        journal = await load_journal(store, resumed(*blobs), 12)
        assert journal.times == {1: [(12, 3), (15, 2), (40, 1)], 2: [(30, 2)]}
        assert journal.ends == {4: 9}
        assert [end_of(given) for given in entries] == [32, 17, 41]
        assert end_of([GivenTimes(1, 9, 0)]) == 10

    run(body)


def test_a_journal_holds_the_times_at_which_fronts_were_idle_or_closed() -> None:
    async def body() -> None:
        store, blob = Memory(None, StoreContext("job")), journal_blob(1, 0, 1)
        given = [
            GivenTimes(1, 9, IDLE_MARK),
            GivenTimes(1, 12, IDLE_MARK),
            GivenTimes(1, 10, 2),
            GivenTimes(2, 30, LAST_MARK),
        ]
        assert await store.create(blob, encode_journal(given, blob, HERE))
        journal = await load_journal(store, resumed(blob), 11)
        assert journal.times == {1: [(11, 1), (12, IDLE_MARK)], 2: [(30, LAST_MARK)]}
        assert journal.ends == {}
        assert [each.end for each in given] == [10, 13, 12, 31]
        assert end_of(given) == 31

    run(body)


def test_a_damaged_journal_is_named() -> None:
    async def body() -> None:
        blob = "journal/1/0/1"
        store = Memory(None, StoreContext("job"), {blob: seal(Codec().encode([(1, 2)]), blob, HERE)})
        with pytest.raises(CorruptError, match="journal/1/0/1"):
            await load_journal(store, resumed(blob), 0)
        with pytest.raises(CorruptError, match="missing"):
            await load_journal(store, resumed("journal/1/0/2"), 0)

    run(body)


def test_without_a_snapshot_there_is_nothing_to_load() -> None:
    async def body() -> None:
        resume = Resume("mine", 1, "", (), (), 0)
        assert await load_manifest(Memory(None, StoreContext("job")), resume) is None

    run(body)


def test_a_missing_part_is_named() -> None:
    async def body() -> None:
        manifest = Manifest("", 1, 1, 0, 0.0, {}, 1, (), (Part("part/1/1/0", 1, ("count",), (3, 3), 1, 0),))
        store = Memory(None, StoreContext("job"))
        assert await load_state(store, Codec(), manifest, [4], {"count": key_groups}) == {"count": {}}
        with pytest.raises(CorruptError, match="part/1/1/0") as caught:
            await load_state(store, Codec(), manifest, [3], {"count": key_groups})
        assert caught.value.blob == "part/1/1/0"

    run(body)
