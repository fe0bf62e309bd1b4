"""A rear at work: one call of its sink at a time, and what is known of the sink when an epoch ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

import flamecore as fc
from flamecore.abc.sink import Encode, Guarantee, Sink
from flamecore.abc.source import EdgeContext
from flamecore.abc.transport import Delivery, Endpoint
from flamecore.errors import SinkError
from flamecore.model.batch import Beside, Rows
from flamecore.model.messages import Delivered, Released
from flamecore.model.meta import GlobalTime
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.launch import job_of
from flamecore.runtime.parts.collector import Collector
from flamecore.runtime.tasks.rear_task import RearTask
from flamecore.runtime.tasks.sender import Sender
from flamecore.testing.progress import patience


class Slow(Sink):
    """Each call waits to be let through; fails when it is told to."""

    name: ClassVar[str] = "slow"

    def __init__(self) -> None:
        super().__init__(None, EdgeContext("out"))
        self.calls: list[tuple[str, int]] = []
        self.gate = asyncio.Event()
        self.fails = False

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        await self._pass("write", time)

    async def sync(self, time: int) -> None:
        await self._pass("sync", time)

    async def _pass(self, call: str, time: int) -> None:
        self.calls.append((f"{call} begins", time))
        await self.gate.wait()
        self.calls.append((f"{call} ends", time))
        if self.fails:
            raise SinkError("the answer was lost", sink="out")


class Here(Endpoint):
    address = "rear/out"

    def __init__(self) -> None:
        self.come: asyncio.Queue[Delivery] = asyncio.Queue()
        self.sent: list[tuple[str, Any]] = []

    def send_nowait(self, to: str, message: Any) -> bool:
        self.sent.append((to, message))
        return True

    async def send(self, to: str, message: Any) -> None:
        self.send_nowait(to, message)

    async def receive(self) -> Delivery:
        return await self.come.get()

    def receive_nowait(self) -> Delivery | None:
        return None

    async def aclose(self) -> None:
        return


def released(time: int, *payloads: str) -> Delivery:
    orders = [GlobalTime(time - 1, 1).encode() + bytes([number]) for number in range(len(payloads))]
    return Delivery("worker/0", Released(0, time, orders, list(payloads), []))


class Bench:
    def __init__(self, sink: Slow | None = None) -> None:
        self.sink, self.endpoint = sink or Slow(), Here()
        self.rear = RearTask(
            Collector("out", 1),
            self.sink,
            Sender(self.endpoint, lambda error: None),
            listeners=["worker/0"],
            delivered=lambda rear, time, count: None,
        )
        self.task = asyncio.create_task(self.rear.run())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_sink_is_called_once_at_a_time() -> None:
    async def body() -> None:
        bench = Bench()
        bench.endpoint.come.put_nowait(released(5, "a"))
        await settle()
        syncing = asyncio.create_task(bench.rear.writer.sync(4))
        await settle()
        assert bench.sink.calls == [("write begins", 5)]
        bench.sink.gate.set()
        await syncing
        assert bench.sink.calls == [("write begins", 5), ("write ends", 5), ("sync begins", 4), ("sync ends", 4)]
        bench.task.cancel()

    asyncio.run(body())


def test_an_epoch_ends_with_the_batch_that_is_being_written() -> None:
    async def body() -> None:
        bench = Bench()
        bench.endpoint.come.put_nowait(released(5, "a"))
        await settle()
        halting = [asyncio.create_task(bench.rear.writer.halt()) for _ in range(2)]
        await settle()
        assert not any(task.done() for task in halting)
        bench.sink.gate.set()
        async with patience(5):
            await asyncio.gather(*halting)
        assert bench.rear.reached == 5
        assert bench.endpoint.sent == [("worker/0", Delivered("out", 5))]
        bench.endpoint.come.put_nowait(released(9, "b"))
        await settle()
        assert bench.sink.calls[-1] == ("write ends", 5), "nothing is written any more"
        bench.task.cancel()

    asyncio.run(body())


def test_a_sink_may_have_heard_of_a_sync_that_is_broken_off() -> None:
    """The next epoch must not take the time that it tells for that of lost outputs."""

    async def body() -> None:
        bench = Bench()
        bench.endpoint.come.put_nowait(released(9))
        await settle()
        syncing = asyncio.create_task(bench.rear.writer.sync(9))
        await settle()
        assert bench.sink.calls == [("sync begins", 9)]
        syncing.cancel()
        await asyncio.wait([syncing])
        assert bench.rear.delivered_up_to == 9
        bench.task.cancel()

    asyncio.run(body())


def test_a_sink_whose_batch_failed_must_be_opened_anew() -> None:
    """It may be there all the same."""

    async def body() -> None:
        bench = Bench()
        bench.sink.fails = True
        bench.sink.gate.set()
        bench.endpoint.come.put_nowait(released(5, "a"))
        await settle()
        with pytest.raises(SinkError, match="the answer was lost"):
            await bench.task
        with pytest.raises(SinkError, match="the answer was lost"):
            await bench.rear.writer.halt()

    asyncio.run(body())


class Shouting(Sink):
    """Stores capitals, which others may make."""

    name: ClassVar[str] = "shouting"

    def __init__(self) -> None:
        super().__init__(None, EdgeContext("out"))
        self.given: list[Any] = []

    @property
    def guarantee(self) -> Guarantee:
        return "at_least_once"

    def encoder(self) -> Encode:
        return lambda payloads: [payload.upper() for payload in payloads]

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        raise AssertionError("what is written is encoded already")

    async def write_encoded(self, time: int, encoded: Sequence[Any]) -> None:
        self.given += encoded


def run_loud(sink: Sink, workers: int, *, barrier: bool = True) -> list[str]:
    """Put out some words with exclamation marks; returns them."""
    flow = fc.Flow("loud")
    flow.source("words", str).rebalance().map(lambda word: word + "!").sink("out")
    words = [f"word {number}" for number in range(200)]
    settings = from_program({"job.workers": workers, "job.barrier": barrier})
    spec = resolve(make_config(settings, environ={}), flow, given={"words": words})
    spec.sinks["out"] = sink
    asyncio.run(job_of(spec).run())
    return [f"{word}!" for word in words]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("barrier", [True, False])
def test_workers_encode_payloads_for_a_sink(workers: int, barrier: bool) -> None:
    sink = Shouting()
    words = run_loud(sink, workers, barrier=barrier)
    assert sorted(sink.given) == sorted(word.upper() for word in words)


class Kept(Slow):
    """Keeps the batches as they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Sequence[Any]] = []

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        self.given.append(payloads)


def test_a_sink_is_given_lists_which_are_not_copied_for_it() -> None:
    async def body() -> None:
        sink = Kept()
        bench = Bench(sink)
        words, rows = ["a", "b"], Rows([["a", "b"], [1, 2]])
        for time, payloads in ((5, words), (6, rows), (7, Beside(words, (len, [1, 1])))):
            orders = [GlobalTime(time - 1, 1).encode() + bytes([number]) for number in range(len(payloads))]
            bench.endpoint.come.put_nowait(Delivery("worker/0", Released(0, time, orders, payloads, [])))
            await settle()
        first, second, third = sink.given
        assert first is words
        assert second == [("a", 1), ("b", 2)]
        assert [*map(type, sink.given)] == [list, list, list]
        assert third == words
        bench.task.cancel()

    asyncio.run(body())


class Hoarse(Shouting):
    """Its encoder is not what it should be."""

    def __init__(self, encode: Encode) -> None:
        super().__init__()
        self._encode = encode

    def encoder(self) -> Encode:
        return self._encode


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("workers", [1, 2])
def test_the_error_of_a_failing_encoder_names_sink_and_payload(workers: int) -> None:
    def encode(payloads: Sequence[Any]) -> list[Any]:
        return [len(payload) // ("77" not in payload) for payload in payloads]

    with pytest.raises(SinkError, match=r"sink 'out': its encoder has failed on 'word 77!': ZeroDivisionError"):
        run_loud(Hoarse(encode), workers)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("workers", [1, 2])
def test_an_encoder_that_leaves_something_out_is_refused(workers: int) -> None:
    def encode(payloads: Sequence[Any]) -> list[Any]:
        return [payload for payload in payloads if "77" not in payload]

    with pytest.raises(SinkError, match=r"sink 'out': its encoder has made \d+ of \d+ payloads"):
        run_loud(Hoarse(encode), workers)


def test_a_rear_may_be_halted_again() -> None:
    """As where a job has ended its epoch, and then finds that it cannot go on."""

    async def body() -> None:
        host = RearTask(
            Collector("out", 1), Shouting(), Sender(Here(), lambda error: None), listeners=(), delivered=lambda *_: None
        )
        async with patience(5):
            await host.writer.halt()
            await host.writer.halt()

    asyncio.run(body())


def test_dead_letters_are_never_encoded() -> None:
    sink = Shouting()
    host = RearTask(
        Collector("out", 1),
        sink,
        Sender(Here(), lambda error: None),
        listeners=(),
        delivered=lambda *_: None,
        translate=str.lower,
    )
    with pytest.raises(AssertionError, match="encoded already"):
        asyncio.run(host.writer.write(1, None, ["x"]))
