"""A job whose workers come from elsewhere: one is killed or stands still, another comes, and the job goes on."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from words import SHORT, Joined, Words, alive, ended, wait_for

ELSEWHERE = dict.fromkeys(SHORT, 1.5)
"""Limits of silence that any of these calls passes, and no start of a worker that nobody watches yet: it has no process
beside it before it has parts, and reports every 0.5 s.
"""


@pytest.fixture
def joined(tmp_path: Path, joinable: list[str]) -> Iterator[Joined]:
    made = Joined(Words(tmp_path, joinable))
    yield made
    made.end()


def test_workers_that_come_before_their_supervisor_wait_for_it(joined: Joined) -> None:
    words = joined.words
    for name in ("w0", "w1"):
        joined.worker(name)
    if "transport.use=nats" in words.over:  # where the server says at once that nobody is there
        wait_for(lambda: all("no supervisor runs job 'words' yet" in joined.said(name) for name in ("w0", "w1")))
    with words.running(**joined.settings) as run:
        assert words.finish(run) == 0, run.said()
    words.check()


@pytest.mark.parametrize("again", ["w2", "w1"])
def test_another_worker_replaces_a_killed_one(joined: Joined, again: str) -> None:
    """Under another name, or under the same, as a service that is started again comes back."""
    words = joined.words
    with words.running(**joined.settings) as run:
        _, victim = joined.pair(run)
        victim.kill()
        joined.worker(again)
        assert words.finish(run) == 0, run.said()
    assert run.said().count("job.faulted") == 1
    words.check()


def test_a_worker_restarted_before_its_end_was_noticed_takes_its_place(joined: Joined) -> None:
    """The former one stands still, so its connections do too: the new one says that it is there in its place."""
    words = joined.words
    with words.running(**joined.settings) as run:
        _, former = joined.pair(run)
        words.stand_still(former)
        joined.worker("w1")
        assert words.finish(run) == 0, run.said()
    words.check()


def test_a_worker_whose_host_was_away_is_ignored_afterwards(joined: Joined) -> None:
    """Nothing is heard of it, nor of the process beside it."""
    words = joined.words
    with words.running(**joined.settings, deploy__silence_timeout_s=1) as run:
        _, stuck = joined.pair(run)
        watcher = joined.watcher(stuck)
        os.kill(watcher, signal.SIGSTOP)
        words.stand_still(stuck)
        wait_for(lambda: "has not been heard of for 1 s" in run.said(), run)
        joined.worker("w2")
        before = words.delivered()
        wait_for(lambda: words.delivered() > before + 100, run)
        for process in (watcher, stuck.pid):
            os.kill(process, signal.SIGCONT)
        assert stuck.wait(20) in (0, 1), "it is told that it is not missed"
        assert words.finish(run) == 0, run.said()
    words.check()
    assert run.said().count("job.faulted") == 1, "what the late one said did no harm"
    wait_for(lambda: not alive(watcher))


@pytest.mark.parametrize("state", [True, False], ids=["state", "no state"])
@pytest.mark.parametrize("how", ["asleep", "in_c", "stopped"])
def test_no_busy_worker_from_elsewhere_is_taken_for_dead(
    tmp_path: Path, joinable: list[str], how: str, state: bool
) -> None:
    """The process beside it says that it runs, or is stopped."""
    words = Words(tmp_path, joinable, out="out.jsonl")
    words.be_busy(how)
    joined = Joined(words)
    kept = {} if state else {"job__guarantee": None, "state__use": None, "state__path": None, "state__interval_s": None}
    try:
        # Longer than the time between two reports of a node, which has no watcher before it has parts.
        with words.running(**joined.settings, **ELSEWHERE, **kept) as run:
            workers = [joined.worker(name) for name in ("w0", "w1")]
            assert ended(run) == 0, run.said()
            assert [worker.wait(20) for worker in workers] == [0, 0]
    finally:
        joined.end()
    assert "job.recovered" not in run.said()
    assert f"state={'stopped' if how == 'stopped' else 'running'}" in run.said()
    assert words.calls() == ["w0", "w40"]
    assert "node.unwatched" not in joined.said("w0") + joined.said("w1")
    words.check()


NO_STATE = dict.fromkeys(("job__guarantee", "state__use", "state__path", "state__interval_s"))


@pytest.mark.parametrize("elsewhere", [True, False], ids=["joined", "started"])
@pytest.mark.parametrize(
    ("how", "where"), [("asleep", "import"), ("in_c", "import"), ("stopped", "import"), ("in_c", "open")]
)
def test_no_worker_that_starts_slowly_is_taken_for_dead(
    tmp_path: Path, joinable: list[str], how: str, where: str, elsewhere: bool
) -> None:
    """It imports the flow, or opens what it reads, for longer than any limit of silence."""
    words = Words(tmp_path, joinable, out="out.jsonl")
    words.start_slowly(how, where)
    joined = Joined(words)
    settings = {**joined.settings, **NO_STATE, **(ELSEWHERE if elsewhere else {**SHORT, "deploy__start": "local"})}
    try:
        with words.running(**settings) as run:
            if elsewhere:
                workers = [joined.worker(name) for name in ("w0", "w1")]
            assert ended(run) == 0, run.said()
            if elsewhere:
                assert [worker.wait(20) for worker in workers] == [0, 0]
    finally:
        joined.end()
    assert (tmp_path / "late").exists()
    assert f"state={'stopped' if how == 'stopped' else 'running'}" in run.said()
    words.check()


@pytest.mark.parametrize("elsewhere", [True, False], ids=["joined", "started"])
@pytest.mark.parametrize(
    ("how", "where", "text"),
    [
        ("asleep", "import", "is computing, and has said nothing for"),
        ("in_c", "open", "is computing, and has said nothing for"),
        ("stopped", "import", "is stopped"),
    ],
)
def test_a_start_beyond_its_limit_is_an_error_that_says_how_the_workers_are(
    tmp_path: Path, grpc: list[str], how: str, where: str, text: str, elsewhere: bool
) -> None:
    words = Words(tmp_path, grpc, out="out.jsonl")
    words.start_slowly(how, where, long_s=15)
    joined = Joined(words)
    limits = {**(ELSEWHERE if elsewhere else {**SHORT, "deploy__start": "local"}), "deploy__start_timeout_s": 7}
    try:
        with words.running(**joined.settings | NO_STATE | limits) as run:
            if elsewhere:
                for name in ("w0", "w1"):
                    joined.worker(name)
            assert ended(run) in (1, 2), run.said()
    finally:
        joined.end()
    error = run.said()[run.said().rindex("error: ") :]
    assert "after 7 s not all workers have opened what they read (of 2 workers: w" in error
    assert re.search(rf"; w[^;]* \(process \d+\) {text}", error), error


@pytest.mark.parametrize("elsewhere", [True, False], ids=["joined", "started"])
@pytest.mark.parametrize("how", ["in_c", "stopped"])
def test_a_change_of_the_workers_waits_for_one_that_is_busy(
    tmp_path: Path, joinable: list[str], how: str, elsewhere: bool
) -> None:
    """None is given up, although it ends its parts long after `deploy.stop_timeout_s`."""
    words = Words(tmp_path, joinable, out="out.jsonl")
    words.be_busy(how)
    joined = Joined(words)
    settings = {**joined.settings, "deploy__start": "join" if elsewhere else "local", "deploy__stop_timeout_s": 0.5}
    try:
        with words.running(**settings) as run:
            if elsewhere:
                for name in ("w0", "w1"):
                    joined.worker(name)
            wait_for(lambda: (tmp_path / "begun-w0").exists(), run)
            asked = joined.rescale(1)
            assert asked.returncode == 0, asked.stderr
            assert ended(run) == 0, run.said()
    finally:
        joined.end()
    assert "event=node.abandoned" not in run.said()
    assert "event=job.faulted" not in run.said()
    words.check()


@pytest.mark.parametrize("how", ["in_c", "stopped"])
def test_a_drain_waits_for_a_worker_that_is_busy(tmp_path: Path, joinable: list[str], how: str) -> None:
    words = Words(tmp_path, joinable, out="out.jsonl")
    words.be_busy(how)
    joined = Joined(words)
    try:
        with words.running(**joined.settings, **ELSEWHERE) as run:
            for name in ("w0", "w1"):
                joined.worker(name)
            wait_for(lambda: (tmp_path / "begun-w0").exists(), run)
            run.process.send_signal(signal.SIGINT)
            assert ended(run) == 0, run.said()
    finally:
        joined.end()
    assert "event=job.faulted" not in run.said()
    assert words.calls()[0] == "w0"
    assert words.outputs()
    assert words.outputs() == words.wanted()[: len(words.outputs())]


def test_a_worker_goes_on_without_the_process_beside_it(joined: Joined) -> None:
    """It is judged by its own messages then."""
    words = joined.words
    with words.running(**joined.settings, deploy__silence_timeout_s=1) as run:
        workers = joined.pair(run)
        os.kill(joined.watcher(workers[1]), signal.SIGKILL)
        wait_for(lambda: "event=node.unwatched" in joined.said("w1"), run)
        before = words.delivered()
        wait_for(lambda: words.delivered() > before + 100, run)
        words.stand_still(workers[1])
        wait_for(lambda: "w1 has not been heard of for 1 s" in run.said(), run)
        joined.worker("w2")
        assert words.finish(run) == 0, run.said()
    words.check()
    assert run.said().count("job.faulted") == 1


@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ("endless", 1, "CallLimitError: seen has lasted for more than"),
        ("kept", -signal.SIGKILL, "in code in C that keeps the interpreter"),
    ],
)
def test_a_call_beyond_its_limit_ends_a_worker_from_elsewhere(
    tmp_path: Path, joinable: list[str], how: str, code: int, text: str
) -> None:
    """Its own thread does, or the process beside it when the job asks for it; the job is told why."""
    words = Words(tmp_path, joinable, out="out.jsonl")
    words.be_busy(how)
    joined = Joined(words)
    limits = {"job__call_limit_s": 0.5, "deploy__silence_timeout_s": 1.5}
    kept = {"job__guarantee": None, "state__use": None, "state__path": None, "state__interval_s": None}
    try:
        with words.running(**joined.settings, **limits, **kept) as run:
            workers = [joined.worker(name) for name in ("w0", "w1")]
            assert ended(run) == 1, run.said()
            assert code in [worker.wait(20) for worker in workers]
    finally:
        joined.end()
    # The job is told why; but it may hear first that the connection is cut.
    assert text in run.said() + joined.said("w0") + joined.said("w1")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_watcher_outlives_its_worker(joined: Joined, how: signal.Signals) -> None:
    words = joined.words
    with words.running(**joined.settings) as run:
        staying, leaving = joined.pair(run)
        watchers = [joined.watcher(worker) for worker in (staying, leaving)]
        leaving.send_signal(how)
        leaving.wait()
        wait_for(lambda: not alive(watchers[1]), run)
        joined.worker("w2")
        assert words.finish(run) == 0, run.said()
    wait_for(lambda: not alive(watchers[0]))
    words.check()


def test_a_job_with_a_worker_to_spare_is_drained(joined: Joined) -> None:
    words = joined.words
    names = ["w0", "w1", "w2"]
    with words.running(**joined.settings) as run:
        for name in names:
            joined.worker(name)
        wait_for(lambda: joined.nodes() == names and words.delivered() > 0, run)
        run.process.send_signal(signal.SIGINT)
        assert ended(run) == 0, run.said()
    delivered = words.outputs()
    assert 0 < len(delivered) < 3 * len(words.lines)
    assert delivered == words.wanted()[: len(delivered)]


def test_two_workers_of_one_name_are_told_apart(joined: Joined) -> None:
    """The former one is told why it has no part; the job says who it waits for, and the other hears of its end."""
    words = joined.words
    with words.running(**joined.settings, deploy__start_timeout_s=15) as run:
        first = joined.worker("w0")
        wait_for(lambda: joined.nodes() == ["w0"], run)
        second = joined.worker("w0")
        assert first.wait(20) == 1
        assert "another process has joined by the name of w0" in joined.said("w0")
        assert ended(run) == 2, run.said()
        assert second.wait(20) == 0, joined.said("w0")
    assert "after 15 s not all workers have joined (of 2 workers: w0)" in run.said()
    assert "flamestream check says the commands" in run.said()


def test_no_worker_from_elsewhere_outlives_its_supervisor(joined: Joined) -> None:
    words = joined.words
    with words.running(**joined.settings) as run:
        workers = joined.pair(run)
        run.process.kill()
        assert [worker.wait(10) for worker in workers] == [1, 1]
    for name in ("w0", "w1"):
        said = joined.said(name)
        assert "Traceback" not in said
        # The first of them that is noticed: a connection, the presence of the process, or that the job has lost it.
        ways = ("lost its connection to ", "the server has had no connection to it", "has no supervisor any more")
        assert any(way in said for way in ways), said


@pytest.fixture
def unhurried(tmp_path: Path, joinable: list[str]) -> Iterator[Joined]:
    """Yield workers of a job that does not come to its end while anybody looks."""
    made = Joined(Words(tmp_path, joinable, pause_s=0.1))
    yield made
    made.end()


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_worker_that_is_told_to_end_is_named(unhurried: Joined, how: signal.Signals, code: int) -> None:
    """And not those who find that it is gone."""
    joined, words = unhurried, unhurried.words
    with words.running(**joined.settings, state__use=None, job__guarantee=None) as run:
        staying, leaving = joined.pair(run)
        leaving.send_signal(how)
        assert leaving.wait(20) == code, joined.said("w1")
        assert ended(run) == 1, run.said()
        assert staying.wait(20) in (0, 1)
    assert "error: w1 was told to end, where it runs" in run.said()


def test_another_worker_replaces_one_that_was_told_to_end(joined: Joined) -> None:
    words = joined.words
    with words.running(**joined.settings) as run:
        _, leaving = joined.pair(run)
        leaving.terminate()
        assert leaving.wait(20) == 0, joined.said("w1")
        joined.worker("w2")
        assert words.finish(run) == 0, run.said()
    assert run.said().count("job.faulted") == 1
    words.check()


def test_a_worker_that_is_slow_to_end_its_parts_is_taken_back(joined: Joined) -> None:
    """Nobody would start another in its place."""
    words = joined.words
    with words.running(**joined.settings, deploy__stop_timeout_s=1e-9) as run:
        _, victim = joined.pair(run)
        victim.kill()
        joined.worker("w2")
        assert words.finish(run) == 0, run.said()
    assert "event=node.abandoned" in run.said()
    words.check()
