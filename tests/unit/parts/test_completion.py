"""The job's control: when a job is done, and what is stored."""

from __future__ import annotations

import pytest

import flamecore as fc
from flamecore.errors import JobError
from flamecore.model.failure import Cause, Failure
from flamecore.model.messages import Delivered, Failing, FrontEnded, Prepare, Reached
from flamecore.model.meta import MIN_TIME, FrontId, GlobalTime
from flamecore.model.plan import Plan
from flamecore.runtime.parts.completion import Completion


def control(start: int = 0, fronts: int = 2) -> Completion:
    flow = fc.Flow("two-sinks")
    numbers = flow.source("numbers", int)
    numbers.sink("a")
    numbers.sink("b")
    return Completion(Plan(flow.graph(), tuple(FrontId("numbers", n) for n in range(fronts)), start=start))


def test_a_job_is_done_when_every_front_has_ended_and_every_rear_has_stored_all() -> None:
    job = control()
    for message in (FrontEnded(1, 10), Delivered("a", 10), Delivered("b", 10), FrontEnded(2, 12)):
        assert not job.done
        job.receive(message)
    assert not job.done
    job.receive(Delivered("a", 12))
    assert not job.done
    job.receive(Delivered("b", 15))
    assert job.done
    assert job.stored == 12


def test_a_job_with_nothing_to_read_is_done_at_once() -> None:
    for start in (0, 40):
        job = control(start)
        job.receive(FrontEnded(1, start))
        job.receive(FrontEnded(2, start))
        assert job.done


def test_a_job_fails_when_every_rear_has_come_to_the_record_and_that_is_known_before() -> None:
    job = control()
    first, later = (Failure(None, name, "record", None, Cause("ValueError: no")) for name in ("first", "later"))
    assert (job.failing, job.expected, job.error) == (False, None, None)
    job.receive(Failing(later))
    assert job.failing
    assert not job.reached
    assert "'later' failed" in str(job.expected)
    for message in (FrontEnded(1, 10), FrontEnded(2, 10), Reached("a", first)):
        job.receive(message)
        assert (job.done, job.error) == (False, None)
    assert "'first' failed" in str(job.expected)
    job.receive(Reached("b", first))
    assert "'first' failed" in str(job.error)


def test_a_rear_that_a_failing_operation_does_not_lead_to_goes_past_the_record() -> None:
    job = control()
    failure = Failure(None, "check", "record", None, Cause("ValueError: no"), at=GlobalTime(5, 2))
    for message in (FrontEnded(1, 10), FrontEnded(2, 10), Delivered("b", 5), Reached("a", failure)):
        job.receive(message)
        assert (job.done, job.error) == (False, None)
    job.receive(Delivered("b", 6))
    assert "'check' failed" in str(job.error)


def test_the_first_of_the_records_that_rears_have_come_to_is_the_error() -> None:
    for arrived in ("ab", "ba"):
        job = control()
        for rear in arrived:
            assert job.error is None
            at = GlobalTime({"a": 7, "b": 5}[rear], 1)
            job.receive(Reached(rear, Failure(None, f"check {rear}", "record", None, Cause("ValueError: no"), at=at)))
        assert "'check b' failed" in str(job.error)


def test_the_least_time_of_all_rears_is_stored() -> None:
    job = control()
    assert job.stored == MIN_TIME
    job.receive(Delivered("a", 7))
    assert job.stored == MIN_TIME
    job.receive(Delivered("b", 5))
    job.receive(Delivered("b", 3))
    assert job.stored == 5


def test_a_stopped_job_is_done_at_the_times_of_all_fronts() -> None:
    """Records that some fronts have read beyond that are read again in the next run."""
    job = control()
    job.receive(FrontEnded(1, 20, stopped=True))
    job.receive(FrontEnded(2, 30, stopped=True))
    for rear in "ab":
        assert not job.done
        job.receive(Delivered(rear, 20))
    assert job.done


def test_a_front_that_had_ended_does_not_hold_up_one_that_is_stopped() -> None:
    job = control(start=5)
    job.receive(FrontEnded(1, 500))
    job.receive(FrontEnded(2, 5, stopped=True))
    assert job.done, "nothing of it was read"


def test_an_unexpected_message_is_an_error() -> None:
    with pytest.raises(JobError, match="Prepare"):
        control().receive(Prepare(1, 2))
