"""The rates of records and outputs over the last seconds."""

from __future__ import annotations

import asyncio

import pytest

from flamecore.runtime.parts.counters import JobStats
from flamecore.runtime.tasks.stats import RATE_LOOKS, Rates


def test_the_first_rate_is_the_mean() -> None:
    assert Rates().described(JobStats(items_in=30, items_out={"a": 60}, elapsed_s=3)) == {
        "records_per_s": 10,
        "outputs_per_s": {"a": 20},
    }
    assert Rates().described(JobStats()) == {"records_per_s": 0, "outputs_per_s": {}}


def test_old_counts_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 a second for ten seconds, then ten a second for as long as is looked at."""
    second = 0

    def look() -> JobStats:
        count = min(second, 10) * 1000 + max(second - 10, 0) * 10
        return JobStats(items_in=count, items_out={"a": 2 * count}, elapsed_s=float(second))

    async def pass_a_second(_: float) -> None:
        nonlocal second
        second += 1
        if second > 10 + RATE_LOOKS:
            raise asyncio.CancelledError

    rates = Rates()
    monkeypatch.setattr("flamecore.runtime.tasks.stats.asyncio.sleep", pass_a_second)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(rates.watch(look))
    second = 10 + RATE_LOOKS
    assert rates.described(look()) == {"records_per_s": 10, "outputs_per_s": {"a": 20}}
