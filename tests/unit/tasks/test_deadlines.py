"""A source or sink is waited for: for long, with a warning, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from flamecore.errors import FlameError, SinkError, SourceError
from flamecore.model.meta import FrontId
from flamecore.runtime.tasks.deadlines import CallDeadline, Deadlines
from flamecore.testing.progress import patience
from flamecore.testing.simulation.virtual import run_virtually


def played(body: Callable[[CallDeadline], Awaitable[None]], limit_s: float = 0.2) -> None:
    """Run a body in made-up time: on a busy machine a call of 0.03 s can take longer than the limit."""

    async def limited() -> None:
        async with patience(10):
            await body(Deadlines("job", limit_s, limit_s).sink("out"))

    run_virtually(limited())


async def stubborn() -> None:
    """Ignore cancellation for longer than any limit here."""
    over = asyncio.get_running_loop().time() + 30
    while asyncio.get_running_loop().time() < over:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


@contextmanager
def overdue(deadline: CallDeadline) -> Iterator[list[FlameError]]:
    """Yield the errors of calls that take too long."""
    told: list[FlameError] = []
    deadline.overdue = told.append
    yield told


def test_a_call_that_ends_in_time_is_like_any_other() -> None:
    async def body(deadline: CallDeadline) -> None:
        async def double(number: int) -> int:
            return number * 2

        with overdue(deadline) as told:
            assert await deadline.call(double(4), "double") == 8
            with pytest.raises(ValueError, match="no number"):
                await deadline.call(broken(), "break")
        assert told == []
        assert deadline.pending == ""

    async def broken() -> None:
        raise ValueError("no number")

    played(body)


def test_a_call_that_takes_too_long_is_an_error_that_says_what_is_known() -> None:
    async def body(deadline: CallDeadline) -> None:
        deadline.known = lambda: "its output is stored below time 7"
        with overdue(deadline) as told, pytest.raises(SinkError) as raised:
            await deadline.call(stubborn(), "close")
        assert told == [raised.value]
        assert raised.value.what == (
            "sink 'out' was given 0.2 s to close, and has not done it; its output is stored below time 7"
        )
        assert "job.sink_timeout_s" in raised.value.hint
        assert raised.value.sink == "out"
        with pytest.raises(SinkError):
            await deadline.call(asyncio.sleep(0), "open")

    played(body)


def test_warnings_come_long_before_the_limit() -> None:
    async def body(deadline: CallDeadline) -> None:
        with capture_logs() as said, pytest.raises(SinkError):
            await deadline.call(asyncio.sleep(60), "make its output durable")
        assert [round(line["waited_s"] / 0.2) for line in said] == [1, 2], "and when the time has doubled"
        assert {line["event"] for line in said} == {"edge.waited"}
        assert said[0]["edge"] == "sink 'out'"
        assert said[0]["to"] == "make its output durable"
        assert (said[0]["job"], said[0]["limit_s"], said[0]["log_level"]) == ("job", 0.8, "warning")

    played(body, limit_s=0.8)


def test_each_call_has_the_time_for_itself() -> None:
    """Many short calls are not one long one, although what looks at them is scheduled once."""

    async def body(deadline: CallDeadline) -> None:
        with capture_logs() as said, overdue(deadline) as told:
            for _ in range(20):
                with deadline.during("write a batch", 3):
                    await asyncio.sleep(0.03)
        assert (said, told) == ([], [])
        with overdue(deadline) as told, deadline.during("write a batch", 3):
            waiting = asyncio.get_running_loop().create_future()
            with pytest.raises(SinkError, match="to write a batch of 3 payloads, and has not done it"):
                await deadline.wait_done(waiting)
            assert len(told) == 1
            assert "write a batch of 3 payloads" in deadline.pending
        assert deadline.pending == ""

    played(body, limit_s=0.4)


@pytest.mark.parametrize("heeds", [True, False])
def test_a_call_that_is_cancelled_may_take_its_time_to_heed_it(heeds: bool) -> None:
    async def body(deadline: CallDeadline) -> None:
        ended = asyncio.Event()

        async def slow() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)
                ended.set()

        with overdue(deadline) as told:
            calling = asyncio.create_task(deadline.call(slow() if heeds else stubborn(), "write"))
            await asyncio.sleep(0.01)
            calling.cancel()
            await asyncio.wait((calling,))
        assert calling.cancelled()
        assert ended.is_set() is heeds
        assert len(told) == (0 if heeds else 1)

    played(body)


def test_calls_under_way_get_the_grace_when_a_job_ends() -> None:
    async def body(deadline: CallDeadline) -> None:
        deadlines = Deadlines("job", 60, 60, grace_s=0.2)
        sink, other = deadlines.sink("out"), deadlines.sink("other")
        with overdue(sink) as told, capture_logs() as said:
            writing = asyncio.create_task(sink.call(stubborn(), "write"))
            await asyncio.sleep(0.3)  # which is longer than the grace
            assert told == []
            deadlines.shorten()
            assert told == []
            assert deadlines.pending.startswith("sink 'out' has been asked for ")
            with pytest.raises(SinkError):
                await writing
        assert [error.what for error in told] == ["sink 'out' was given 0.2 s more to write, and has not done it"]
        assert "job.grace_s" in told[0].hint
        assert {line["event"] for line in said} <= {"edge.waited"}
        for late in (other, deadlines.source(FrontId("lines", 0)), deadlines.store("nowhere", 60)):
            with pytest.raises(FlameError, match=r" was given 0\.2 s to close, and has not done it"):
                await late.call(stubborn(), "close")

    played(body)


def test_the_end_of_a_job_extends_no_limit() -> None:
    async def body(deadline: CallDeadline) -> None:
        deadlines = Deadlines("job", 0.2, 60, grace_s=60)
        sink = deadlines.sink("out")
        writing = asyncio.create_task(sink.call(stubborn(), "write"))
        await asyncio.sleep(0)
        deadlines.shorten()
        with pytest.raises(SinkError, match=r"sink 'out' was given 0\.2 s to write, and has not done it"):
            await writing

    played(body)


def test_a_job_that_does_not_end_after_all_keeps_its_limits() -> None:
    async def body(deadline: CallDeadline) -> None:
        deadlines = Deadlines("job", 60, 60, grace_s=0.05)
        sink, other = deadlines.sink("out"), deadlines.sink("other")
        go = asyncio.Event()
        with overdue(sink) as told:
            writing = asyncio.create_task(sink.call(go.wait(), "write"))
            await asyncio.sleep(0)
            deadlines.shorten()
            deadlines.restore()
            await other.call(asyncio.sleep(0.2), "write")  # which is longer than the grace
            go.set()
            assert await writing
        assert told == []
        deadlines.shorten()
        with pytest.raises(SinkError, match=r"'other' was given 0\.05 s to write, and has not done it"):
            await other.call(stubborn(), "write")

    played(body)


def test_the_error_names_the_shorter_of_limit_and_grace() -> None:
    async def body(deadline: CallDeadline) -> None:
        deadlines = Deadlines("job", 0.05, 60, grace_s=60)
        deadlines.shorten()
        with pytest.raises(SinkError) as raised:
            await deadlines.sink("out").call(stubborn(), "write")
        assert "job.sink_timeout_s" in raised.value.hint

    played(body)


def test_the_error_of_a_call_near_its_limit_names_the_limit() -> None:
    async def body(deadline: CallDeadline) -> None:
        deadlines = Deadlines("job", 0.3, 60, grace_s=0.25)
        sink = deadlines.sink("out")
        writing = asyncio.create_task(sink.call(stubborn(), "write"))
        await asyncio.sleep(0.1)
        deadlines.shorten()
        with pytest.raises(SinkError, match=r"sink 'out' was given 0\.3 s to write, and has not done it"):
            await writing

    played(body)


def test_an_abandoned_edge_is_not_closed() -> None:
    async def body(deadline: CallDeadline) -> None:
        closed: list[Any] = []

        async def aclose() -> None:
            closed.append(None)

        deadlines = Deadlines("job", 0.05, 0.05)
        sink, other = deadlines.sink("out"), deadlines.sink("other")
        with pytest.raises(SinkError):
            await sink.call(stubborn(), "write")
        await deadlines.close(sink, aclose)
        assert closed == []
        await deadlines.close(other, aclose)
        assert closed == [None]

    played(body)


def test_a_reader_is_named_with_its_partition() -> None:
    async def body(deadline: CallDeadline) -> None:
        deadlines = Deadlines("job", 60, 0.05)
        reading = asyncio.create_task(stubborn())
        reader = deadlines.source(FrontId("lines", 2))
        with (
            reader.during("leave off reading"),
            pytest.raises(SourceError, match=r"source 'lines', partition 2, was given 0.05 s to leave off reading"),
        ):
            await reader.wait_done(reading)

    played(body)
