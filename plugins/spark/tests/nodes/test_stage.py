"""Which of Spark's tasks count: the newest, and none of those before the last attempt. Without Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flamecore.abc.host import NodeSlot
from flamestream_spark.nodes.stage import Stage
from flamestream_spark.nodes.task import node_task
from flamestream_spark.session.messages import reason
from flamestream_spark.spool.feeding import failed


class FakeSession:
    """A session whose jobs run until they are interrupted."""

    def __init__(self) -> None:
        self.interrupted = threading.Event()
        self.tags: list[str] = []

    def addTag(self, tag: str) -> None:
        self.tags.append(tag)

    def range(self, *_: int) -> FakeSession:
        return self

    def mapInArrow(self, *_: Any, barrier: bool) -> FakeSession:
        assert barrier
        return self

    def repartition(self, count: int) -> FakeSession:
        assert count == 1
        return self

    def collect(self) -> None:
        assert self.interrupted.wait(20)
        raise RuntimeError("Job 3 cancelled part of cancelled job tag")

    def interruptTag(self, tag: str) -> None:
        assert tag in self.tags
        self.interrupted.set()


def with_stage(use: Callable[[Stage], None]) -> list[Any]:
    """Use a stage of two nodes, and cancel it; what was told of its end."""
    told: list[Any] = []

    async def run() -> None:
        stage = Stage(
            FakeSession(),
            [NodeSlot("worker-0", "worker"), NodeSlot("worker-1", "worker")],
            {},
            lambda *all_: told.append(all_),
        )
        waiting: Awaitable[Any] = stage.done.wait()
        use(stage)
        stage.cancel()
        await waiting

    asyncio.run(asyncio.wait_for(run(), 20))
    return told


def test_the_first_task_of_a_new_attempt_is_the_end_of_all_former_ones() -> None:
    def use(stage: Stage) -> None:
        assert stage.came("worker-0", 7) == set()
        assert stage.came("worker-1", 6) == set()
        assert stage.came("worker-1", 9) == {"worker-0"}, "the other of the former attempt, which is not told yet"
        assert stage.came("worker-0", 7) is None, "of the former attempt, and late"
        assert stage.came("worker-0", 8) == set()

    with_stage(use)


def test_a_retried_task_of_an_incomplete_stage_replaces_only_its_predecessor() -> None:
    def use(stage: Stage) -> None:
        assert stage.came("worker-0", 1) == set()
        assert stage.came("worker-0", 3) == set()
        assert stage.came("worker-1", 2) == set()
        assert stage.came("worker-1", 4) == {"worker-0"}

    with_stage(use)


def test_nodes_no_longer_needed_do_not_return() -> None:
    def use(stage: Stage) -> None:
        stage.came("worker-0", 1)
        stage.came("worker-1", 2)
        stage.release("worker-1")
        assert stage.running() == ["worker-0"]
        assert stage.came("worker-1", 4) is None
        assert stage.came("worker-0", 3) == {"worker-1"}

    with_stage(use)


def test_a_cancelled_stage_admits_no_task() -> None:
    def use(stage: Stage) -> None:
        stage.cancel()
        assert stage.running() == []
        assert stage.came("worker-0", 1) is None

    ((_, names, why),) = with_stage(use)
    assert names == []
    assert reason(why) == ("was cancelled, as somebody has told Spark", ())


class FakeTask:
    """A task of a stage."""

    @classmethod
    def get(cls) -> FakeTask:
        return cls()

    def partitionId(self) -> int:
        return 0

    def taskAttemptId(self) -> int:
        return 5

    def getTaskInfos(self) -> list[Any]:
        return [type("Info", (), {"address": "10.0.0.7:4040"})]


def test_an_executor_without_the_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.BarrierTaskContext", FakeTask)
    monkeypatch.setitem(__import__("sys").modules, "flamestream_spark.nodes.node", None)
    run = node_task([("worker-0", "worker")], {}, "1")
    with pytest.raises(
        RuntimeError, match=r"executor 10.0.0.7:4040 has no module 'flamestream_spark.nodes.node'.*\n +Install"
    ):
        list(run(iter(())))


def test_an_executor_with_another_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.BarrierTaskContext", FakeTask)
    run = node_task([("worker-0", "worker")], {}, "0.0.1")
    with pytest.raises(RuntimeError, match=r"executor 10.0.0.7:4040 has flamestream .*, and the driver 0.0.1"):
        list(run(iter(())))


def test_the_error_of_a_node_is_found_in_that_of_spark() -> None:
    said = """Job aborted due to stage failure: Could not recover: PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
RuntimeError: flamestream: worker-1 on executor h:1 (process 12) was killed by SIGKILL
    its last words

\tat org.apache.spark.api.python.BasePythonRunner"""
    assert reason(RuntimeError(said)) == (
        "has ended: worker-1 on executor h:1 (process 12) was killed by SIGKILL",
        ("its last words",),
    )
    assert reason(RuntimeError("[SPARK-24819]: more slots"))[0] == "cannot start: there are fewer slots than workers"
    assert reason(OSError()) == ("has ended: OSError", ())


def test_a_python_of_executors_that_does_not_work_is_named() -> None:
    stopped = "An error occurred while calling o61.collectToPython.\n: org.apache.spark.SparkException: Job aborted"
    nowhere = (
        f'{stopped}\njava.io.IOException: Cannot run program "./env/bin/python": error=13, Permission denied\n\tat x'
    )
    what, (hint,) = reason(RuntimeError(nowhere))
    assert what == "cannot start: executors cannot run './env/bin/python': Permission denied"
    assert "PYSPARK_PYTHON" in hint
    empty = f"{stopped}\nError from python worker:\n  /bin/python3: No module named pyspark\nPYTHONPATH was:\n  /x"
    said = "the Python of executors does not work: /bin/python3: No module named pyspark"
    assert reason(RuntimeError(empty))[0] == f"cannot start: {said}"
    assert said in str(failed("pages", RuntimeError(empty)))
    dynamic = f"{stopped}\n\tat x: [SPARK-24942]: Barrier execution mode does not support dynamic resource allocation"
    assert reason(RuntimeError(dynamic))[0].startswith("cannot start: its slots are to stay")
    other = f"{stopped} due to: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12\n\tat x"
    assert reason(RuntimeError(other))[0].startswith("has ended: [PYTHON_VERSION_MISMATCH] Python in worker")
