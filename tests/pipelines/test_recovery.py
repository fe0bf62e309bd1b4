"""A job that keeps state goes on after a fault, and ends with a clear error where it cannot."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from processes import wait_until_gone
from words import Words, ended, wait_for

from flamecore.runtime.state.format import epoch_blob

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes of a job in /proc")


def test_a_worker_dies_before_new_partitions_begin(tmp_path: Path, over: list[str]) -> None:
    """A job that was done goes on with a file that has come since; a worker dies before that is written down."""
    words = Words(tmp_path, over, lines=300)
    with words.running() as run:
        assert ended(run) == 0, run.said()
    more = [f"more-{number} w{number % 7}" for number in range(100)]
    words.write("b", more)
    with words.running() as run:
        wait_for(lambda: run.nodes(), run)
        os.kill(run.nodes()[0].pid, signal.SIGKILL)
        assert ended(run) == 0, run.said()
    assert "job.faulted" in run.said()
    named = set(re.findall(r"\bjob=(\S+)", run.said()))
    assert len(named) == 1, "a job has one name in all its lines"
    words.check(more)


def test_a_worker_that_dies_again_and_again_ends_the_job(tmp_path: Path, over: list[str]) -> None:
    words = Words(tmp_path, over)
    words.trouble(3, "no more of this")
    with words.running(deploy__restarts=2) as run:
        assert ended(run) == 1, run.said()
        assert not wait_until_gone(run.met)
    said = run.said()
    error = said[said.rindex("\nerror: ") :]
    assert "ended with code 3" in error
    assert "no more of this" in error, "the last words of the last one that died"
    assert "3 faults within 60 s" in error
    assert said.count("job.faulted") == 2
    (tmp_path / "trouble").unlink()
    with words.running() as run:
        assert words.finish(run) == 0, run.said()
    words.check()


def test_a_state_that_cannot_be_restored_ends_the_job(tmp_path: Path, over: list[str]) -> None:
    """The epoch has ended by then, and the job has nothing to go on from."""
    words = Words(tmp_path, over)
    with words.running(state__interval_s=1000) as run:
        wait_for(lambda: words.delivered() > 100, run)
        (database,) = (tmp_path / "state").glob("*.db")
        with closing(sqlite3.connect(database)) as blobs, blobs:
            blob = epoch_blob(99), b"no record"
            blobs.execute("INSERT INTO blobs (job, name, piece, data) SELECT DISTINCT job, ?, 0, ? FROM blobs", blob)
        os.kill(run.nodes()[0].pid, signal.SIGKILL)
        assert ended(run) == 1, run.said()
        assert not wait_until_gone(run.met)
    error = run.said()[run.said().rindex("\nerror: ") :]
    assert epoch_blob(99) in error


def test_a_worker_outlived_by_its_child_is_reported_with_its_last_words(tmp_path: Path, over: list[str]) -> None:
    """The child holds the worker's stderr open."""
    words = Words(tmp_path, over)
    words.trouble(4, "I am leaving", leaves_child=True)
    try:
        with words.running(deploy__restarts=0) as run:
            assert ended(run) == 1, run.said()
    finally:
        if (tmp_path / "child").exists():
            os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    error = run.said()[run.said().rindex("\nerror: ") :]
    assert "ended with code 4" in error
    assert "I am leaving" in error
