"""The end of a job: the first error counts, and is reported early if need be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

import flamecore.runtime.tasks.shutdown
from flamecore.errors import FlameError, JobError, OperationError, SinkError
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.runtime.tasks.shutdown import Shutdown


def ended(body: Callable[[Shutdown, Deadlines], Awaitable[None]]) -> BaseException | None:
    """With what a job ends that does this."""

    async def run() -> None:
        deadlines = Deadlines("job", grace_s=0.2)
        await body(Shutdown("job", deadlines), deadlines)

    try:
        asyncio.run(run())
    except BaseException as error:  # noqa: BLE001 - it is what is asked for
        return error
    return None


def closing(error: Exception) -> Callable[[], Awaitable[None]]:
    async def close() -> None:
        raise error

    return close


def notes(error: BaseException | None) -> list[str]:
    return getattr(error, "__notes__", [])


def test_a_job_that_ends_well_ends_well() -> None:
    async def body(shutdown: Shutdown, deadlines: Deadlines) -> None:
        async with shutdown.scope() as stack:
            stack.push_async_callback(asyncio.sleep, 0)

    assert ended(body) is None


def test_a_failure_in_closing_is_a_note_of_the_first_error() -> None:
    cause = ValueError("the cause")
    first, last = JobError("a worker is gone"), SinkError("it cannot be closed", sink="out")
    first.__cause__ = cause

    async def body(shutdown: Shutdown, deadlines: Deadlines) -> None:
        async with shutdown.scope() as stack:
            stack.push_async_callback(closing(last))
            raise first

    error = ended(body)
    assert error is first
    assert error.__cause__ is cause
    assert notes(error) == ["also: it cannot be closed"]


def test_a_failure_in_closing_after_a_good_end_is_the_error() -> None:
    last = SinkError("it cannot be closed", sink="out")

    async def body(shutdown: Shutdown, deadlines: Deadlines) -> None:
        async with shutdown.scope() as stack:
            stack.push_async_callback(closing(last))

    error = ended(body)
    assert error is last
    assert notes(error) == []


@pytest.mark.parametrize("same", [True, False])
def test_an_expected_error_is_reported_beside_another(same: bool) -> None:
    expected = OperationError("'map' failed", vertex="map")
    met: FlameError = OperationError("'map' failed", vertex="map") if same else SinkError("too slow", sink="out")

    async def body(shutdown: Shutdown, deadlines: Deadlines) -> None:
        async with shutdown.scope():
            shutdown.expect(expected)
            raise met

    error = ended(body)
    assert error is met
    assert notes(error) == ([] if same else ["also: 'map' failed"])


def test_cancellation_goes_before_an_error() -> None:
    """The task that has cancelled the job waits until it is cancelled."""
    first, last = JobError("a worker is gone"), asyncio.CancelledError()

    async def cancelled() -> None:
        raise last

    async def body(shutdown: Shutdown, deadlines: Deadlines) -> None:
        async with shutdown.scope() as stack:
            stack.push_async_callback(cancelled)
            raise first

    error = ended(body)
    assert isinstance(error, asyncio.CancelledError)
    assert "also: a worker is gone" in notes(error)


@pytest.mark.parametrize("expected", [True, False])
def test_a_slow_end_is_reported_with_the_calls_it_waits_for(expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flamecore.runtime.tasks.shutdown, "_TELL_S", 0.05)
    first = JobError("a worker is gone\n  at line 3", hint="Look at it.")

    async def body(shutdown: Shutdown, deadlines: Deadlines) -> None:
        async def never() -> None:
            await asyncio.Event().wait()

        deadline = deadlines.sink("out")
        async with shutdown.scope() as stack:
            stack.push_async_callback(deadlines.close, deadline, never)
            if expected:
                shutdown.expect(first)
                await deadline.call(never(), "write a batch")
            raise first

    with capture_logs() as said:
        error = ended(body)
    [told] = [line for line in said if line["event"] == "job.delayed"]
    assert told["error"] == "a worker is gone"
    assert told["waits_for"].startswith("sink 'out' has been asked for 0.")
    assert (told["job"], told["grace_s"], told["log_level"]) == ("job", 0.2, "warning")
    assert "was given 0.2 s to" in "".join([str(error), *notes(error)])


def test_an_expected_error_that_does_not_come_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flamecore.runtime.tasks.shutdown, "_TELL_S", 0.05)
    met = SinkError("too slow", sink="out")

    async def body(shutdown: Shutdown, deadlines: Deadlines) -> None:
        async with shutdown.scope():
            shutdown.expect(OperationError("'map' failed", vertex="map"))
            shutdown.withdraw()
            await deadlines.sink("out").call(asyncio.sleep(0.5), "write a batch")  # which is longer than the grace
            raise met

    with capture_logs() as said:
        assert ended(body) is met
    assert notes(met) == []
    assert said == []


def test_a_finished_end_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flamecore.runtime.tasks.shutdown, "_TELL_S", 0.0)

    async def body(shutdown: Shutdown, deadlines: Deadlines) -> None:
        async with shutdown.scope():
            pass
        late: Any = JobError("the host is gone")
        shutdown.expect(late)
        await asyncio.sleep(0.01)

    with capture_logs() as said:
        assert ended(body) is None
    assert said == []
