"""The restart policy: how many faults a job survives, and how long it waits."""

from __future__ import annotations

import pytest

from flamecore.errors import JobError, TransportError
from flamecore.runtime.cluster.restart_policy import RestartPolicy

GONE = TransportError("worker/1 is gone")


class Clock:
    """Time that passes when it is told to."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_one_more_fault_than_there_may_be_within_the_window_is_too_many() -> None:
    clock = Clock()
    restarts = RestartPolicy(3, 60.0, clock)
    for _ in range(3):
        restarts.note(GONE)
        clock.now_s += 10.0
    with pytest.raises(JobError) as caught:
        restarts.note(GONE)
    assert caught.value.what.splitlines() == [
        "worker/1 is gone",
        "  the job gives up: 4 faults within 60 s (deploy.restarts is 3)",
    ]
    assert caught.value.hint is not None
    assert restarts.faults == 4


def test_old_faults_do_not_count() -> None:
    clock = Clock()
    restarts = RestartPolicy(2, 60.0, clock)
    for _ in range(100):
        restarts.note(GONE)
        clock.now_s += 30.0  # the last but one is just not within the window any more
    assert restarts.faults == 100
    clock.now_s -= 1.0
    with pytest.raises(JobError, match="3 faults within 60 s"):
        restarts.note(GONE)


def test_a_job_allowed_no_fault_gives_up_at_the_first() -> None:
    with pytest.raises(JobError, match=r"1 faults within 60 s \(deploy.restarts is 0\)"):
        RestartPolicy(0, 60.0, Clock()).note(GONE)


def test_pauses_between_futile_attempts_grow() -> None:
    restarts = RestartPolicy(10, 60.0)
    assert restarts.pause_s(fruitless=False) == 0.0
    waits = [restarts.pause_s(fruitless=True) for _ in range(8)]
    assert waits == [0.0, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    assert restarts.pause_s(fruitless=False) == 0.0
    assert restarts.pause_s(fruitless=True) == 0.0
