"""The same command started twice: one run goes on, the other is refused, or takes over if it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Run, wait_until_gone
from words import Words, ended, wait_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes of a job in /proc")

EMBEDDED = ["transport.use=inproc", "state.use=directory", "state.path=state"]
SLOW: dict[str, Any] = {"lines": 4000, "pause_s": 0.01}
"""More than a job works on before another start is done, however busy the machine is: at the end it may hurry.

Few lines that take long: each of them costs time at the end, too.
"""

BOTH: dict[str, Any] = {"state__use": None, "state__path": None}
"""What `EMBEDDED` and `way` say of the state."""


@pytest.fixture(
    params=[
        "inproc-sqlite",
        "inproc-directory",
        "processes-sqlite",
        pytest.param("grpc-sqlite", marks=pytest.mark.grpc),
        pytest.param("nats-nats", marks=pytest.mark.nats),
    ]
)
def way(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Yield settings of a transport, or of a host that chooses it, and of a store."""
    transport, store = request.param.split("-")
    where = "deploy.on=processes" if transport == "processes" else f"transport.use={transport}"
    chosen = [where, f"state.use={store}"]
    if transport != "nats":
        yield [*chosen, "state.path=state"]
        return
    from flamestream_nats.testing import NatsServer

    with NatsServer(jetstream=True) as server:
        yield [*chosen, f'transport.nats.servers=["{server.url}"]']


def refused(run: Run, holder: Run) -> None:
    """Hold a run against what it should say of the one that holds the state."""
    assert ended(run) == 2, run.said()
    assert "Traceback" not in run.said()
    said = run.said()[run.said().rindex("error: ") :]
    assert said.startswith("error: job 'words' is already running: process "), said
    assert f"process {holder.process.pid} on {os.uname().nodename} holds its state since 20" in said
    assert "last heartbeat at 20" in said
    assert "--take-over" in said


def test_a_second_start_is_refused_and_the_first_goes_on(tmp_path: Path, way: list[str]) -> None:
    words = Words(tmp_path, way, **SLOW)
    with words.running(**BOTH) as first:
        wait_for(lambda: words.delivered() > 100, first)
        with words.running(**BOTH) as second:
            refused(second, first)
        assert first.process.poll() is None, "the first one has not been troubled"
        assert words.finish(first) == 0, first.said()
    words.check()
    with words.running(**BOTH) as again:
        assert ended(again) == 0, again.said()
    words.check()


def test_of_several_that_start_at_once_one_goes_on(tmp_path: Path) -> None:
    words = Words(tmp_path, EMBEDDED, **SLOW)
    runs = [words.start(**BOTH) for _ in range(4)]
    try:
        wait_for(lambda: sum(run.process.poll() is not None for run in runs) == 3)
        codes = [words.finish(run) for run in runs]
    finally:
        for run in runs:
            run.end()
    said = "\n".join(run.said() for run in runs)
    assert sorted(codes) == [0, 2, 2, 2], said
    words.check()


def test_a_start_that_is_told_so_takes_over(tmp_path: Path, way: list[str]) -> None:
    words = Words(tmp_path, way, **SLOW)
    with words.running(**BOTH) as first:
        wait_for(lambda: words.delivered() > 100, first)
        with words.running(**BOTH, job__take_over="true") as second:
            assert ended(first) == 1, first.said()
            assert f"another run of job 'words' has taken over its state: process {second.process.pid}" in first.said()
            assert words.finish(second) == 0, second.said()
            assert not wait_until_gone(first.met | second.met)
    words.check()


def test_a_killed_run_is_gone_on_with_at_once(tmp_path: Path, way: list[str]) -> None:
    """Even where the lease would last for long: the process is known to be dead."""
    words = Words(tmp_path, way, lines=3000)
    for kill in range(1, 4):
        with words.running(**BOTH, state__lease_s=3600) as run:
            wait_for(lambda least=300 * kill: words.delivered() > least, run)  # type: ignore[misc]
            run.process.kill()
            run.process.wait()
    with words.running(**BOTH) as last:
        assert words.finish(last) == 0, last.said()
    words.check()


def test_a_stopped_run_that_has_lost_its_state_writes_nothing_more(tmp_path: Path, way: list[str]) -> None:
    words = Words(tmp_path, way, **SLOW)
    with words.running(**BOTH, state__lease_s=1) as first:
        wait_for(lambda: words.delivered() > 100, first)
        first.nodes()
        words.stand_still(first.process)
        with words.running(**BOTH) as second:
            assert words.finish(second) == 0, second.said()
        words.check()
        first.process.send_signal(signal.SIGCONT)
        assert ended(first) == 1, first.said()
        assert "another run" in first.said()
        assert not wait_until_gone(first.met | second.met)
    words.check()


# -- two hosts ---------------------------------------------------------------------------------------------------------


class Elsewhere:
    """Starts jobs in process-id spaces of their own, as hosts with a shared folder have them."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, **settings: Any) -> subprocess.Popen[bytes]:
        """Run the job; the log is `elsewhere-N.log`."""
        command = [sys.executable, "-m", "flamecore", "run", *self.words.arguments(**settings)]
        with self._log(len(self.started)).open("wb") as log:
            process = subprocess.Popen(
                ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command],
                cwd=self.words.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.started.append(process)
        return process

    def said(self, number: int) -> str:
        """Return the log of one of them."""
        return self._log(number).read_text()

    def _log(self, number: int) -> Path:
        return self.words.folder / f"elsewhere-{number}.log"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a space of process ids cannot be made here: {done.stderr.strip()}")
    made = Elsewhere(Words(tmp_path, EMBEDDED, **SLOW))
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def test_a_run_on_another_host_is_known_by_its_signs_of_life(elsewhere: Elsewhere) -> None:
    words = elsewhere.words
    first = elsewhere.start(**BOTH, state__lease_s=1)
    wait_for(lambda: words.delivered() > 100)
    second = elsewhere.start(**BOTH)
    assert second.wait(60) == 2, elsewhere.said(1)
    assert "error: job 'words' is already running: process 1 on " in elsewhere.said(1)
    words.hurry()
    assert first.wait(60) == 0, elsewhere.said(0)
    words.check()


def test_a_run_that_was_killed_on_another_host_is_gone_with_its_lease(elsewhere: Elsewhere) -> None:
    words = elsewhere.words
    first = elsewhere.start(**BOTH, state__lease_s=1)
    wait_for(lambda: words.delivered() > 100)
    first.kill()
    first.wait()
    words.hurry()
    second = elsewhere.start(**BOTH)
    assert second.wait(60) == 0, elsewhere.said(1)
    words.check()
