"""A source or sink is waited for: for long, with a warning, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from flamecore.errors import FlameError, SinkError, SourceError
from flamecore.meta import FrontId
from flamecore.patience import Patience, Watch
from flamecore.runner import run


def played(body: Callable[[Watch], Awaitable[None]], limit_s: float = 0.2) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await body(Patience("job", limit_s, limit_s).sink("out"))

    run(limited())


async def stubborn() -> None:
    """What does not heed that it is cancelled."""
    over = asyncio.get_running_loop().time() + 60
    while asyncio.get_running_loop().time() < over:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


@contextmanager
def overdue(watch: Watch) -> Iterator[list[FlameError]]:
    """What is told of calls that take too long."""
    told: list[FlameError] = []
    watch.overdue = told.append
    yield told


def test_a_call_that_ends_in_time_is_like_any_other() -> None:
    async def body(watch: Watch) -> None:
        async def double(number: int) -> int:
            return number * 2

        with overdue(watch) as told:
            assert await watch.call(double(4), "double") == 8
            with pytest.raises(ValueError, match="no number"):
                await watch.call(broken(), "break")
        assert told == []
        assert watch.waited == ""

    async def broken() -> None:
        raise ValueError("no number")

    played(body)


def test_a_call_that_takes_too_long_is_an_error_that_says_what_is_known() -> None:
    async def body(watch: Watch) -> None:
        watch.known = lambda: "its output is stored below time 7"
        with overdue(watch) as told, pytest.raises(SinkError) as raised:
            await watch.call(stubborn(), "close")
        assert told == [raised.value]
        assert raised.value.what == (
            "sink 'out' was given 0.2 s to close, and has not done it; its output is stored below time 7"
        )
        assert "job.sink_timeout_s" in raised.value.hint
        assert raised.value.sink == "out"
        with pytest.raises(SinkError):
            await watch.call(asyncio.sleep(0), "open")

    played(body)


def test_there_are_warnings_long_before() -> None:
    async def body(watch: Watch) -> None:
        with capture_logs() as said, pytest.raises(SinkError):
            await watch.call(asyncio.sleep(60), "make its output durable")
        assert [round(line["waited_s"] / 0.2) for line in said] == [1, 2], "and when the time has doubled"
        assert {line["event"] for line in said} == {"edge.waited"}
        assert said[0]["edge"] == "sink 'out'"
        assert said[0]["to"] == "make its output durable"
        assert (said[0]["job"], said[0]["limit_s"], said[0]["log_level"]) == ("job", 0.8, "warning")

    played(body, limit_s=0.8)


def test_each_call_has_the_time_for_itself() -> None:
    """Many short calls are not one long one, although what looks at them is scheduled once."""

    async def body(watch: Watch) -> None:
        with capture_logs() as said, overdue(watch) as told:
            for _ in range(20):
                watch.begin("write a batch", 3)
                await asyncio.sleep(0.03)
                watch.end()
        assert (said, told) == ([], [])
        watch.begin("write a batch", 3)
        with overdue(watch) as told:
            waiting = asyncio.get_running_loop().create_future()
            with pytest.raises(SinkError, match="to write a batch of 3 payloads, and has not done it"):
                await watch.until(waiting)
        assert len(told) == 1
        assert "write a batch of 3 payloads" in watch.waited

    played(body, limit_s=0.4)


@pytest.mark.parametrize("heeds", [True, False])
def test_a_call_that_is_cancelled_may_take_its_time_to_heed_it(heeds: bool) -> None:
    async def body(watch: Watch) -> None:
        ended = asyncio.Event()

        async def slow() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)
                ended.set()

        with overdue(watch) as told:
            calling = asyncio.create_task(watch.call(slow() if heeds else stubborn(), "write"))
            await asyncio.sleep(0.01)
            calling.cancel()
            await asyncio.wait((calling,))
        assert calling.cancelled()
        assert ended.is_set() is heeds
        assert len(told) == (0 if heeds else 1)

    played(body)


def test_when_a_job_ends_what_is_under_way_is_given_so_much_more() -> None:
    async def body(watch: Watch) -> None:
        patience = Patience("job", 60, 60, grace_s=0.2)
        sink, other = patience.sink("out"), patience.sink("other")
        with overdue(sink) as told, capture_logs() as said:
            writing = asyncio.create_task(sink.call(stubborn(), "write"))
            await asyncio.sleep(0.3)  # which is longer than the grace
            assert told == []
            patience.hasten()
            assert told == []
            assert patience.waited.startswith("sink 'out' has been asked for ")
            await asyncio.wait((writing,))
        assert [error.what for error in told] == ["sink 'out' was given 0.2 s more to write, and has not done it"]
        assert "job.grace_s" in told[0].hint
        assert {line["event"] for line in said} <= {"edge.waited"}
        for late in (other, patience.source(FrontId("lines", 0)), patience.store("nowhere", 60)):
            with pytest.raises(FlameError, match=r" was given 0\.2 s to close, and has not done it"):
                await late.call(stubborn(), "close")

    played(body)


def test_the_end_of_a_job_gives_nobody_more_time() -> None:
    async def body(watch: Watch) -> None:
        patience = Patience("job", 0.2, 60, grace_s=60)
        sink = patience.sink("out")
        writing = asyncio.create_task(sink.call(stubborn(), "write"))
        await asyncio.sleep(0)
        patience.hasten()
        with pytest.raises(SinkError, match=r"sink 'out' was given 0\.2 s to write, and has not done it"):
            await writing

    played(body)


def test_a_job_that_goes_on_after_all_waits_as_long_as_ever() -> None:
    async def body(watch: Watch) -> None:
        patience = Patience("job", 60, 60, grace_s=0.05)
        sink, other = patience.sink("out"), patience.sink("other")
        go = asyncio.Event()
        with overdue(sink) as told:
            writing = asyncio.create_task(sink.call(go.wait(), "write"))
            await asyncio.sleep(0)
            patience.hasten()
            patience.ease()
            await other.call(asyncio.sleep(0.2), "write")  # which is longer than the grace
            go.set()
            assert await writing
        assert told == []
        patience.hasten()
        with pytest.raises(SinkError, match=r"'other' was given 0\.05 s to write, and has not done it"):
            await other.call(stubborn(), "write")

    played(body)


def test_a_limit_that_is_shorter_than_the_grace_is_the_one_that_is_told_of() -> None:
    async def body(watch: Watch) -> None:
        patience = Patience("job", 0.05, 60, grace_s=60)
        patience.hasten()
        with pytest.raises(SinkError) as raised:
            await patience.sink("out").call(stubborn(), "write")
        assert "job.sink_timeout_s" in raised.value.hint

    played(body)


def test_a_call_that_is_nearly_out_of_time_is_told_of_with_the_time_it_had() -> None:
    async def body(watch: Watch) -> None:
        patience = Patience("job", 0.3, 60, grace_s=0.25)
        sink = patience.sink("out")
        writing = asyncio.create_task(sink.call(stubborn(), "write"))
        await asyncio.sleep(0.1)
        patience.hasten()
        with pytest.raises(SinkError, match=r"sink 'out' was given 0\.3 s to write, and has not done it"):
            await writing

    played(body)


def test_what_was_given_up_is_not_closed() -> None:
    async def body(watch: Watch) -> None:
        closed: list[Any] = []

        async def aclose() -> None:
            closed.append(None)

        patience = Patience("job", 0.05, 0.05)
        sink, other = patience.sink("out"), patience.sink("other")
        with pytest.raises(SinkError):
            await sink.call(stubborn(), "write")
        await patience.close(sink, aclose)
        assert closed == []
        await patience.close(other, aclose)
        assert closed == [None]

    played(body)


def test_a_reader_is_named_with_its_partition() -> None:
    async def body(watch: Watch) -> None:
        patience = Patience("job", 60, 0.05)
        reading = asyncio.create_task(stubborn())
        with pytest.raises(SourceError, match=r"source 'lines', partition 2, was given 0.05 s to leave off reading"):
            await patience.source(FrontId("lines", 2)).left(reading, "leave off reading")

    played(body)
