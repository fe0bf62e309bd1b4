"""The calls that a job shows: their number, those in vain, and a word where these are most of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

import flamecore as fc
from flamecore import events
from flamecore.cli.progress import Lines, Screen, Silence, shown, summary
from flamecore.runtime.parts.counters import JobStats
from flamecore.runtime.tasks.stats import wasteful


def wasted(calls: int, in_vain: int) -> JobStats:
    return JobStats(calls={"count": calls, "other": 10}, calls_in_vain={"count": in_vain} if in_vain else {})


@pytest.mark.parametrize(
    ("stats", "said"),
    [
        (JobStats(), None),
        (wasted(10_000, 0), None),
        (wasted(10_000, 5_005), None),
        (wasted(10_000, 5_006), "count"),
        (wasted(40, 39), None),
    ],
)
def test_a_job_is_wasteful_that_makes_most_of_its_calls_in_vain(stats: JobStats, said: str | None) -> None:
    assert wasteful(stats) == said


def test_waste_is_said_once_with_the_operation_and_what_to_do() -> None:
    looks: Iterator[JobStats] = iter([wasted(100, 0), wasted(4_000, 3_000), wasted(9_000, 7_000), wasted(9_000, 8_000)])
    last = wasted(9_000, 8_500)

    async def run() -> None:
        async with shown(Lines("job", 0.01), "job", lambda: next(looks, last)):
            while next(looks, None) is not None:
                await asyncio.sleep(0.05)

    with capture_logs() as said:
        asyncio.run(run())
    (warning,) = (line for line in said if line["event"] == events.CALLS_WASTED)
    assert warning["log_level"] == "warning"
    assert (warning["job"], warning["operation"]) == ("job", "count")
    assert warning["calls"] > warning["calls_in_vain"] > 1_000
    assert "advance = false" in warning["hint"]


def test_the_last_line_tells_the_calls() -> None:
    assert summary(wasted(10_000, 3)).endswith("10,010 calls, 3 in vain")
    assert summary(wasted(10_000, 0)).endswith("10,010 calls")
    assert "calls" not in summary(JobStats(items_in=3))


def test_the_last_line_tells_what_an_input_holds_back_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    stats = JobStats(
        items_in=3,
        held={"rate": 3_300, "sum": 1},
        held_for={"rate": "slow/0", "sum": "fast/2"},
        released_by={"rate": "at_end='close' of 'times'"},
    )
    Screen("job", live=False).end(events.JOB_ENDED, stats)
    assert (
        capsys.readouterr()
        .err.strip()
        .endswith(
            "; 3,300 items held at rate for slow/0, which has ended (at_end='close' of 'times' releases them); "
            "1 item held at sum for fast/2, which has ended"
        )
    )
    Screen("job", live=False).end(events.JOB_DRAINED, stats)
    assert "held" not in capsys.readouterr().err, "reading was stopped: the input goes on"


def test_a_line_tells_how_far_a_job_is_and_the_last_one_how_it_was_done() -> None:
    stats = JobStats(
        items_in=30, items_out={"out": 20}, calls={"count": 25}, messages={"Report": 4}, late={"day": 2}, elapsed_s=1.5
    )
    with capture_logs() as said:
        lines = Lines("job", 1.0)
        lines.show(stats)
        lines.end(events.JOB_ENDED, stats)
    line, last = ({name: value for name, value in each.items() if name not in ("event", "log_level")} for each in said)
    told = {"job": "job", "items_in": 30, "items_out.out": 20, "late.day": 2, "elapsed_s": 1.5}
    assert line == told
    assert last.items() >= {**told, "calls.count": 25, "messages.Report": 4, "in_flight": 0}.items()


def test_the_last_line_tells_rows_format_and_place_of_each_output(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = {"counts": "2 rows to parquet in /data/counts/", "log": "1 row to stdout"}
    Screen("job", live=False).end(events.JOB_DRAINED, JobStats(items_in=3), outputs)
    assert capsys.readouterr().err.endswith("; counts: 2 rows to parquet in /data/counts/; log: 1 row to stdout\n")
    with capture_logs() as said:
        Lines("job", 1.0).end(events.JOB_ENDED, JobStats(items_in=3), outputs)
    assert {key: value for key, value in said[-1].items() if key.startswith("output.")} == {
        "output.counts": "2 rows to parquet in /data/counts/",
        "output.log": "1 row to stdout",
    }


LINES = ["a b a", "b", "c a"] * 50


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("advance", [False, True])
def test_every_call_is_counted_and_without_advance_there_is_one_an_item(workers: int, advance: bool) -> None:
    called = 0

    def add(total: int, word: str) -> int:
        nonlocal called
        called += 1
        return total + len(word)

    flow = fc.Flow("totals")
    words = flow.source("lines", str).rebalance().flat_map(str.split)
    totals = words.key_by(lambda word: word).fold(0, add, name="total")
    totals.key_by(lambda pair: pair[1] % 5).group(2, name="pairs").sink("out")
    stats = flow.run({"lines": LINES}, workers=workers, settings={"job.advance": advance}).stats
    words_in = 50 * 6
    assert called <= stats.calls["total"] + 1, "one is made to see whether the function keeps its promise"
    assert stats.calls["total"] - stats.calls_in_vain.get("total", 0) <= words_in <= called
    if workers == 1 or not advance:
        assert stats.calls == {"total": words_in, "pairs": words_in}
        assert stats.calls_in_vain == {}
        assert called == words_in


def test_the_last_line_names_a_few_unfinished_records(capsys: pytest.CaptureFixture[str]) -> None:
    stats = JobStats(items_in=3, unfinished={front: f"{front}.log: 2 bytes" for front in range(12, 0, -1)})
    said = "1.log: 2 bytes; 2.log: 2 bytes; 3.log: 2 bytes; and so in 9 more"
    assert summary(stats).endswith(f" s; {said}")
    Silence("words").end(events.JOB_ENDED, stats)
    Silence("words").end(events.JOB_FAILED, stats)
    Silence("words").end(events.JOB_ENDED, JobStats(items_in=3, rejected=1, unfinished={1: "1.log: 2 bytes"}))
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"words: {said}"
    assert second == "words: 1 of 4 records left out (1 rejected, 0 failed); 1.log: 2 bytes"
