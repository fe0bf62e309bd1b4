"""The task of a worker: its bursts of messages, and its rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flamecore.abc.source import Batch
from flamecore.abc.transport import Delivery
from flamecore.model.messages import Busy, Delivered, Items, Released
from flamecore.runtime.operators.rounds import Rounds
from flamecore.runtime.tasks import worker_task
from flamecore.runtime.tasks.worker_task import WorkerTask
from flamecore.testing.progress import patience
from flamecore.testing.simulation.virtual import run_virtually

MESSAGES = 300


class Post:
    """An endpoint where many messages have come."""

    address = "worker/0"

    def __init__(self) -> None:
        self.left = MESSAGES

    def receive_nowait(self) -> Delivery | None:
        self.left -= 1
        return Delivery("worker/1", Items([], ())) if self.left >= 0 else None

    async def receive(self) -> Delivery:
        if (delivery := self.receive_nowait()) is None:
            await asyncio.get_running_loop().create_future()
            raise AssertionError
        return delivery


def fake_worker(receive: Callable[[str, Any], None], flush: Callable[..., list[Any]]) -> Any:
    """Return a worker without parts."""
    return SimpleNamespace(
        index=0,
        fronts={},
        schedule=SimpleNamespace(step=lambda: False, run_by=lambda clock: None),
        rounds=Rounds(),
        compiled=SimpleNamespace(shares=None),
        plan=SimpleNamespace(
            rears=(), segments=SimpleNamespace(inbound=()), settings=SimpleNamespace(call_limit_s=None)
        ),
        receive=receive,
        flush=flush,
        due=lambda: None,
    )


@pytest.mark.parametrize(("tick_s", "most"), [(0.0, 64), (0.001, 5)])
def test_outputs_of_a_burst_leave_before_the_next_one(
    tick_s: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes on by a tick at each look."""
    now = 0.0

    def time() -> float:
        nonlocal now
        now += tick_s
        return now

    monkeypatch.setattr(worker_task, "clock", lambda: time)
    received, flushed = [0], asyncio.Event()

    def receive(sender: str, message: Any) -> None:
        received[-1] += 1

    def flush(now: float, *, stepped: bool) -> list[Any]:
        if sum(received) == MESSAGES:
            flushed.set()
        received.append(0)
        return []

    worker = fake_worker(receive, flush)
    sender: Any = SimpleNamespace(endpoint=Post(), send_all=lambda outgoing: None)

    async def main() -> None:
        running = asyncio.create_task(WorkerTask(worker, sender, lambda front, records: None).run())
        async with patience(20):
            await flushed.wait()
        running.cancel()

    asyncio.run(main())
    assert max(received) == most


@pytest.mark.parametrize("at_work", [False, True])
def test_a_flush_is_a_round_of_its_own_unless_one_is_at_work(at_work: bool) -> None:
    """The round before it has ended by its time: what is flushed outside of it has a time of its own."""
    over: list[bool] = []

    def flush(now: float, *, stepped: bool) -> list[Any]:
        over.append(worker.rounds.is_over)
        return []

    worker = fake_worker(lambda sender, message: None, flush)
    sender: Any = SimpleNamespace(endpoint=Post(), send_all=lambda outgoing: None)

    async def main() -> None:
        task = WorkerTask(worker, sender, lambda front, records: None)
        if at_work:
            with task.working:
                worker.rounds.end()
                task.flush()
        else:
            worker.rounds.end()
            task.flush()
        assert not task.working.is_on
        task.aclose()

    asyncio.run(main())
    assert over == [at_work]


@pytest.mark.parametrize(
    ("left", "end_at", "least", "most"),
    [(7, 1000, 7, 7), (1000, 1000, 19, 21), (1000, 9, 9, 9)],
    ids=["all there is", "the time of a step", "the time of the round"],
)
def test_a_step_runs_waiting_items_until_its_time_is_over(
    left: int, end_at: int, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes on by a millisecond for each piece of work, and by none otherwise."""
    steps = 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        if steps == end_at:
            worker.rounds.end()
        return steps < left

    monkeypatch.setattr(worker_task, "monotonic", lambda: steps / 1000)
    worker = fake_worker(lambda sender, message: None, lambda now, *, stepped: [])
    worker.schedule.step = step
    sender: Any = SimpleNamespace(endpoint=Post(), send_all=lambda outgoing: None)

    async def main() -> None:
        task = WorkerTask(worker, sender, lambda front, records: None)
        task.flush()
        task.aclose()

    asyncio.run(main())
    assert least <= steps <= most


def test_a_worker_that_has_failed_keeps_no_front_waiting() -> None:
    """Nothing that it has left will ever run."""

    def flush(now: float, *, stepped: bool) -> list[Any]:
        raise ZeroDivisionError

    worker = fake_worker(lambda sender, message: None, flush)
    worker.backlog = SimpleNamespace(waiting=0)
    sender: Any = SimpleNamespace(endpoint=Post(), send_all=lambda outgoing: None)

    async def main() -> None:
        task = WorkerTask(worker, sender, lambda front, records: None)
        assert not task.is_behind
        worker.backlog.waiting = 3
        assert task.is_behind
        with pytest.raises(ZeroDivisionError):
            task.flush()
        assert not task.is_behind
        task.flush()  # does nothing any more
        task.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("routes", "opens", "greeted"),
    [
        ([None, None], None, []),
        ([None, "by key"], None, ["worker/1", "worker/2"]),
        (["by key", "in turn"], 7, ["flush", "worker/1", "worker/2"]),
    ],
)
def test_a_worker_greets_the_others_if_items_change_workers(
    routes: list[str | None], opens: int | None, greeted: list[str]
) -> None:
    done: list[str] = []

    def flush(now: float, *, stepped: bool) -> list[Any]:
        done.append("flush")
        return []

    def send(to: str, message: Any) -> None:
        assert message == Items([], ())
        done.append(to)

    worker = fake_worker(lambda sender, message: None, flush)
    worker.plan.workers, worker.plan.opening_of = 3, lambda index: opens
    worker.plan.graph = SimpleNamespace(vertices=[SimpleNamespace(route=route) for route in routes])
    sender: Any = SimpleNamespace(endpoint=Post(), send_all=lambda outgoing: None, send=send)

    async def main() -> None:
        task = WorkerTask(worker, sender, lambda front, records: None)
        task.greet()
        task.aclose()

    asyncio.run(main())
    assert done == greeted


@pytest.mark.parametrize("snapshots", [False, True])
def test_word_of_deliveries_needs_no_flush_but_for_snapshots(snapshots: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait until sinks hold all below their time."""
    monkeypatch.setattr(worker_task, "clock", lambda: lambda: 0.0)
    done: list[str] = []

    def flush(now: float, *, stepped: bool) -> list[Any]:
        done.append("flush")
        return []

    def receive(sender: str, message: Any) -> None:
        done.append(type(message).__name__)

    worker = fake_worker(receive, flush)
    worker.plan.rears, worker.delivered = ("out",), lambda: -1
    words = [Delivered("out", 1), Delivered("out", 2)]

    async def main() -> None:
        all_read = asyncio.Event()

        class Rear(Post):
            def receive_nowait(self) -> Delivery | None:
                if words:
                    return Delivery("rear/out", words.pop(0))
                all_read.set()
                return None

        sender: Any = SimpleNamespace(endpoint=Rear(), send_all=lambda outgoing: None)
        task = WorkerTask(worker, sender, lambda front, records: None)
        if snapshots:
            task.snapshots = SimpleNamespace(wake=lambda: done.append("wake"))  # type: ignore[assignment]
        running = asyncio.create_task(task.run())
        async with patience(20):
            await all_read.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        running.cancel()
        task.aclose()

    asyncio.run(main())
    assert done == ["Delivered", "Delivered", *["flush", "wake"] * snapshots]


def test_a_flush_that_is_due_at_a_time_comes_then() -> None:
    moments: list[float] = []
    dues = [0.25, 7.0, None]

    def flush(now: float, *, stepped: bool) -> list[Any]:
        moments.append(now)
        return []

    worker = fake_worker(lambda sender, message: None, flush)
    worker.due = lambda: dues[len(moments) - 1]
    sender: Any = SimpleNamespace(endpoint=Post(), send_all=lambda outgoing: None)

    async def main() -> None:
        task = WorkerTask(worker, sender, lambda front, records: None)
        task._time = asyncio.get_running_loop().time  # as a task that runs
        await asyncio.sleep(0.125)
        task.flush()
        await asyncio.sleep(60)
        task.aclose()

    run_virtually(main())
    assert moments == [0.125, 0.25, 7.0]


@pytest.mark.parametrize("fronts", [1, 2, 3])
def test_records_of_several_fronts_leave_together(fronts: int) -> None:
    """Each small batch of many fronts would cost a message."""
    done: list[Any] = []

    def flush(now: float, *, stepped: bool) -> list[Any]:
        done.append("flush")
        return []

    worker = fake_worker(lambda sender, message: None, flush)
    worker.fronts = {number: SimpleNamespace(first_in_flight=None) for number in range(fronts)}
    worker.admit = lambda number, batch, at, policy: done.append(number)
    sender: Any = SimpleNamespace(endpoint=Post(), send_all=lambda outgoing: None)

    async def main() -> None:
        task = WorkerTask(worker, sender, lambda front, records: None)
        for turn in range(2):
            for number in range(fronts):
                task.admit(number, Batch([turn], [turn]), 0.0, "fail")
                assert (done[-1] == "flush") is (fronts == 1), "at once, if there are no others"
            await asyncio.sleep(0)
        task.aclose()

    asyncio.run(main())
    assert done == [*range(fronts), "flush"] * 2


def test_releases_go_to_the_partitions_that_the_worker_writes_itself() -> None:
    here, there = Released(0, 7, [], [], []), Released(0, 8, [], [], [])
    worker = fake_worker(lambda sender, message: None, lambda now, *, stepped: [("rear/a", here), ("rear/b", there)])
    sent: list[Any] = []
    put: list[Any] = []
    sender: Any = SimpleNamespace(endpoint=Post(), send_all=sent.append)

    async def main() -> None:
        task = WorkerTask(worker, sender, lambda front, records: None)
        task.partitions["rear/a"] = SimpleNamespace(put=put.append)  # type: ignore[assignment]
        task.flush()
        task.aclose()

    asyncio.run(main())
    assert (sent, put) == ([[("rear/b", there)]], [here])


def test_the_hosts_of_fronts_are_told_of_the_load() -> None:
    """They deal out the items; the worker is one of them, and other workers need not know."""
    told: list[Any] = []
    worker = fake_worker(lambda sender, message: told.append((sender, message)), lambda now, *, stepped: [])
    worker.compiled.shares = object()
    worker.plan.fronts, worker.plan.host_of = ("a", "b", "c", "d"), {1: 1, 2: 0, 3: 2, 4: 3}.__getitem__
    sender: Any = SimpleNamespace(
        endpoint=Post(),
        send=lambda to, message: told.append((to, message)),
        fail=lambda error: told.append(error),
    )

    async def main() -> None:
        task = WorkerTask(worker, sender, lambda front, records: None)
        task._tell_load(0.05, 0.1)
        task.aclose()

    asyncio.run(main())
    word = Busy(0, 0.05, 0.1)
    assert told[0] == ("worker/0", word), "itself"
    assert sorted(told[1:]) == [(f"worker/{index}", word) for index in (1, 2, 3)]
