"""The number of records that a job may leave out and still end well."""

from __future__ import annotations

from typing import Any

import pytest

import flamecore as fc
from flamecore.errors import ConfigError, TooManyFailedError
from flamecore.runtime.parts.counters import JobStats
from flamecore.runtime.tasks.stats import check_left_out


@pytest.mark.parametrize(
    ("items_in", "rejected", "failed", "limit", "allowed"),
    [
        (0, 0, 0, None, True),
        (10, 0, 0, 0, True),
        (1, 0, 1, None, False),
        (0, 3, 0, None, False),
        (4, 2, 4, None, False),
        (4, 0, 3, None, True),
        (99, 0, 60, None, True),
        (100, 0, 50, None, True),
        (100, 0, 51, None, False),
        (49, 51, 0, None, False),
        (10, 0, 1, 0, False),
        (10, 0, 2, 2, True),
        (10, 0, 3, 2, False),
        (1, 0, 1, 1, True),
        (10, 0, 1, 0.1, True),
        (10, 0, 2, 0.1, False),
        (10, 0, 10, 1.0, True),
        (10, 0, 1, 0.0, False),
    ],
)
def test_a_job_may_leave_out_so_many_records(
    items_in: int, rejected: int, failed: int, limit: float | None, allowed: bool
) -> None:
    stats = JobStats(items_in=items_in, rejected=rejected, failed=failed)
    if allowed:
        check_left_out("shares", stats, limit)
        return
    with pytest.raises(TooManyFailedError, match=f"{rejected + failed} of {items_in + rejected} records") as caught:
        check_left_out("shares", stats, limit)
    error = caught.value
    assert (error.records, error.rejected, error.failed) == (items_in + rejected, rejected, failed)


def shares(records: list[Any], **settings: Any) -> fc.Outputs:
    flow = fc.Flow("shares")
    flow.source("numbers", int).map(lambda number: 12 // number, name="share").sink("out")
    return flow.run({"numbers": records}, settings={"job.on_error": "skip", **settings})


@pytest.mark.parametrize("workers", [1, 3])
def test_a_job_whose_records_all_fail_does_not_end_well(workers: int) -> None:
    with pytest.raises(TooManyFailedError, match="2 of 2") as caught:
        shares([0, 0], **{"job.workers": workers})
    first = "the first  'share': ZeroDivisionError: integer division or modulo by zero, at value 1 of numbers"
    assert first in str(caught.value)
    assert shares([0, 1], **{"job.workers": workers})["out"] == [12]


def test_a_limit_is_a_number_or_a_share() -> None:
    assert shares([0, 0], **{"job.max_failed": 2})["out"] == []
    assert shares([0, 0], **{"job.max_failed": 1.0})["out"] == []
    with pytest.raises(TooManyFailedError):
        shares([0, 1, 2], **{"job.max_failed": 0})
    for wrong in (-1, 1.5, "some"):
        with pytest.raises(ConfigError, match="max_failed"):
            shares([1], **{"job.max_failed": wrong})


def test_a_record_that_fails_several_times_counts_once() -> None:
    flow = fc.Flow("words")
    flow.source("lines", str).flat_map(str.split).map(int).sink("out")
    done = flow.run({"lines": ["a b c", "1"]}, settings={"job.on_error": "skip"})
    assert (done.stats.failed, done["out"]) == (1, [1])
