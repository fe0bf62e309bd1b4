"""Processes of a job on Spark are killed for real: the output is that of a quiet run, and nobody is left behind."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flamecore.testing.progress import Patience

pytestmark = pytest.mark.jvm

WORDS = """
import time

import flamecore as fc


def split(line: str) -> list[str]:
    time.sleep(0.0012)
    return line.split()


flow = fc.Flow("words")
flow.source("lines", str).rebalance().flat_map(split).key_by(lambda word: word).count().sink("counts")
"""
CONFIG = '{"spark.executor.memory"="500m","spark.driver.memory"="600m","spark.driver.host"="127.0.0.1"}'
LINES = 8000
LIMIT_S = 150


class Running:
    """A job that `flamestream run` runs on Spark, in a folder."""

    def __init__(self, folder: Path, master: str, *more: str) -> None:
        self.folder = folder
        self.daemons: list[int] = []  # whose executors are not below the job
        self.log = folder / "log"
        settings = [
            f"spark.master={master}",
            f"spark.config={CONFIG}",
            "job.workers=2",
            "source.lines.path=lines",
            "sink.counts.path=out.db",
            "sink.counts.mode=resume",
            "state.use=sqlite",
            "state.path=state",
            *more,
        ]
        options = [part for setting in settings for part in ("--set", setting)]
        command = [sys.executable, "-m", "flamecore", "run", "words.py", "--on", "spark", "-q", *options]
        with self.log.open("ab") as said:
            self.process = subprocess.Popen(
                [*command, "--source", "lines=lines", "--sink", "counts=sqlite"], cwd=folder, stdout=said, stderr=said
            )
        self.seen: dict[int, str] = {}

    def below(self, what: str = "") -> dict[int, str]:
        """Return the commands of processes below it that contain a text, by id.

        It remembers all of them.
        """
        todo = [self.process.pid, *self.daemons]
        while todo:
            pid = todo.pop()
            for task in Path(f"/proc/{pid}/task").glob("*"):
                for child in map(int, read(task / "children").split()):
                    self.seen[child] = read(Path(f"/proc/{child}/cmdline")).replace("\0", " ")
                    todo.append(child)
        return {pid: command for pid, command in self.seen.items() if what in command and alive(pid, command)}

    def until(self, condition: Callable[[], bool], what: str) -> None:
        limit = Patience(LIMIT_S)
        while not condition():
            assert self.process.poll() is None, f"it has ended before {what}: {self.said()}"
            assert not limit.passed(), f"waited in vain for {what}: {self.said()}"
            time.sleep(0.1)

    def until_it_moves(self) -> None:
        """Until something more is delivered."""
        before = len(delivered(self.folder))
        self.until(lambda: len(delivered(self.folder)) > before, "a delivery")
        self.below()

    def ends(self, code: int = 0) -> None:
        assert self.process.wait(LIMIT_S) == code, self.said()
        self.nobody_is_left()

    def nobody_is_left(self) -> None:
        began = time.monotonic()
        limit = Patience(20)
        while left := [command[-200:] for pid, command in self.seen.items() if alive(pid, command)]:
            assert not limit.passed(), left
            time.sleep(0.1)
        print(f"{len(self.seen)} processes: none is left after {time.monotonic() - began:.1f} s")

    def said(self) -> str:
        return self.log.read_text()[-4000:]


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def alive(pid: int, command: str) -> bool:
    """Return whether that process is there.

    One that has ended and is not waited for has no command.
    """
    return read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ") == command != ""


def delivered(folder: Path) -> list[tuple[str, int]]:
    path = folder / "out.db"
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        try:
            return [(word, count) for _, word, count, *_ in database.execute("SELECT * FROM counts")]
        except sqlite3.OperationalError:
            return []  # it is being made


def wanted() -> list[tuple[str, int]]:
    seen: Counter[str] = Counter()
    outputs = []
    for word in (word for n in range(LINES) for word in line(n).split()):
        seen[word] += 1
        outputs.append((word, seen[word]))
    return outputs


def line(n: int) -> str:
    return f"a b{n % 3} c{n % 50}"


def start(folder: Path, master: str, *more: str) -> Running:
    (folder / "words.py").write_text(WORDS)
    (folder / "lines").write_text("".join(f"{line(n)}\n" for n in range(LINES)))
    return Running(folder, master, *more)


def test_a_worker_that_is_stopped_for_longer_than_any_limit_of_silence_is_waited_for(tmp_path: Path) -> None:
    """The process beside it says that it is stopped, and ends with it."""
    limits = [f"transport.socket.{limit}=2" for limit in ("send_timeout_s", "connect_timeout_s")]
    job = start(tmp_path, "local[4]", "deploy.silence_timeout_s=2", "transport.use=socket", *limits)
    try:
        job.until_it_moves()
        assert len(job.below("watching.watcher")) == 2
        stopped, *_ = job.below(".node_process")
        os.kill(stopped, signal.SIGSTOP)
        job.until(lambda: f"state=stopped pid={stopped}" in job.said(), "a word of it")
        os.kill(stopped, signal.SIGCONT)
        job.ends()
    finally:
        job.process.kill()
        job.process.wait()
    assert "job.faulted" not in job.said()
    assert delivered(tmp_path) == wanted()


def test_a_worker_is_killed_and_then_the_driver_and_a_run_is_told_to_stop(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    job = start(tmp_path, "local[4]")
    try:
        job.until_it_moves()
        os.kill(chance.choice([*job.below(".node_process")]), signal.SIGKILL)
        job.until(lambda: "job.faulted" in job.said(), "the fault")
        job.until_it_moves()
        job.process.kill()
        job.process.wait()
        job.nobody_is_left()
        job = Running(tmp_path, "local[4]")
        job.until_it_moves()
        job.process.send_signal(signal.SIGINT)
        job.ends()
        assert len(delivered(tmp_path)) < 3 * LINES, "too soon: nothing was stopped"
        job = Running(tmp_path, "local[4]")
        job.ends()
    finally:
        job.process.kill()
        job.process.wait()
    assert delivered(tmp_path) == wanted()


@pytest.mark.parametrize("driver", ["python", "java"])
def test_the_driver_is_killed_and_executors_and_workers_end(tmp_path: Path, driver: str) -> None:
    job = start(tmp_path, "local-cluster[2,1,1024]")
    try:
        job.until_it_moves()
        assert len(job.below("CoarseGrainedExecutorBackend")) == len(job.below(".node_process")) == 2
        (java,) = job.below("SparkSubmit")
        os.kill(job.process.pid if driver == "python" else java, signal.SIGKILL)
        job.ends(-signal.SIGKILL if driver == "python" else 1)
    finally:
        job.process.kill()
        job.process.wait()
    if driver == "java":
        said = job.log.read_text()
        assert "error: Spark has ended: its session was stopped, or its Java has ended\n" in said
        assert said.count("job.faulted") <= 1, "there is nothing to try again with"
        assert "Traceback" not in said
    so_far = delivered(tmp_path)
    assert 0 < len(so_far) < 3 * LINES
    assert so_far == wanted()[: len(so_far)]


def parents(pid: int) -> list[int]:
    """Return the processes above that one, nearest first."""
    found: list[int] = []
    while pid > 1 and (fields := read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()):
        pid = int(fields[1])
        found.append(pid)
    return found


@pytest.mark.parametrize("spare", [0, 1])
def test_an_executor_is_killed_and_the_worker_of_the_other_stays(tmp_path: Path, spare: int) -> None:
    job = start(tmp_path, f"local-cluster[{2 + spare},1,1024]")
    try:
        job.until_it_moves()
        executors = job.below("CoarseGrainedExecutorBackend")
        assert len(executors) == 2 + spare
        workers = [*job.below(".node_process")]
        victim, *_ = (above for above in parents(workers[0]) if above in executors)
        assert victim not in parents(workers[1])
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        job.until(lambda: "job.recovered" in job.log.read_text(), "the recovery")
        print(f"{'with' if spare else 'without'} an executor to spare: {time.monotonic() - killed:.1f} s to an output")
        assert workers[1] in job.below(".node_process")
        job.ends()
    finally:
        job.process.kill()
        job.process.wait()
    assert job.log.read_text().count("job.faulted") == 1
    assert delivered(tmp_path) == wanted()


@pytest.mark.parametrize("with_daemon", [False, True])
def test_the_python_of_a_task_is_killed_alone_and_its_executor_lives(tmp_path: Path, with_daemon: bool) -> None:
    """Spark forks the Python of each task from a daemon on its executor; the worker is a process below it.

    The end of the daemon ends no task; the next one is forked from another daemon.
    """
    job = start(tmp_path, "local-cluster[2,1,1024]")
    try:
        job.until_it_moves()
        executors, workers = job.below("CoarseGrainedExecutorBackend"), [*job.below(".node_process")]
        assert len(executors) == len(workers) == 2
        task, daemon, executor = parents(workers[0])[:3]
        assert "pyspark.daemon" in job.seen[task]
        assert "pyspark.daemon" in job.seen[daemon]
        assert executor in executors
        for pid in [daemon, task] if with_daemon else [task]:
            os.kill(pid, signal.SIGKILL)
            job.until(lambda pid=pid: not alive(pid, job.seen[pid]), "its end")  # type: ignore[misc]
            if pid == daemon:
                job.until_it_moves()
                assert alive(task, job.seen[task])
                assert "job.faulted" not in job.log.read_text()
        job.until(lambda: "job.recovered" in job.log.read_text(), "the recovery")
        assert job.below("CoarseGrainedExecutorBackend") == executors
        assert workers[1] in job.below(".node_process")
        assert workers[0] not in job.below(".node_process")
        (now,) = (pid for pid in job.below(".node_process") if pid != workers[1])
        assert (daemon in parents(now)) is not with_daemon
        assert executor in parents(now)
        job.ends()
    finally:
        job.process.kill()
        job.process.wait()
    assert job.log.read_text().count("job.faulted") == 1
    assert delivered(tmp_path) == wanted()


@pytest.mark.parametrize("victim", ["executor", "worker"])
def test_an_executor_of_a_standalone_cluster_is_killed_alone_or_with_the_worker_that_started_it(
    tmp_path: Path, cluster: Callable[..., Any], victim: str
) -> None:
    """The cluster starts another executor, or one on its third worker has room."""
    with cluster(["127.0.0.1", "127.0.0.2", "127.0.0.3"][: 2 if victim == "executor" else 3]) as there:
        job = start(tmp_path, there.master)
        try:
            job.daemons = [daemon.pid for daemon in there.daemons.values()]
            job.until_it_moves()
            executors, workers = job.below("CoarseGrainedExecutorBackend"), [*job.below(".node_process")]
            assert (len(executors), len(workers)) == (len(there.daemons) - 1, 2)
            executor = next(above for above in parents(workers[0]) if above in executors)
            pids = [executor]
            if victim == "worker":
                (spark_worker,) = {*parents(executor)} & {*job.daemons}
                pids = [spark_worker, executor]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            job.until(lambda: "job.recovered" in job.log.read_text(), "the recovery")
            others = job.below("CoarseGrainedExecutorBackend")
            assert executor not in others
            assert (len(others.keys() - executors.keys()) == 1) is (victim == "executor")
            assert workers[1] in job.below(".node_process")
            job.ends()
        finally:
            job.process.kill()
            job.process.wait()
    assert job.log.read_text().count("job.faulted") == 1
    assert delivered(tmp_path) == wanted()
