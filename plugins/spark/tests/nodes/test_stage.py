"""Stages that are nodes: how they end, who is told, and what Spark's errors say of them. Without Spark."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from flamecore.abc.host import HostContext, NodeSlot
from flamecore.runtime.config.layers import Layer
from flamecore.runtime.config.read import make_config
from flamecore.testing.progress import patiently
from flamestream_spark.host import SparkHost
from flamestream_spark.nodes.spares import Spares
from flamestream_spark.nodes.task import node_task, own_host
from flamestream_spark.session.messages import reason
from flamestream_spark.spool.feeding import failed


class Row(NamedTuple):
    """A row of the result of a stage."""

    node: str
    failed: str | None


class FakeSession:
    """A session whose jobs run until they are interrupted."""

    def __init__(self) -> None:
        self.interrupted = threading.Event()
        self.tags: set[str] = set()
        self.rows: list[Row] | None = None

    def addTag(self, tag: str) -> None:
        self.tags.add(tag)

    def getTags(self) -> set[str]:
        return set(self.tags)

    def range(self, *_: int) -> FakeSession:
        return self

    def mapInArrow(self, *_: Any) -> FakeSession:
        return self

    def collect(self) -> list[Row]:
        assert self.interrupted.wait(20)
        if self.rows is not None:
            return self.rows
        raise RuntimeError("Job 3 cancelled part of cancelled job tag")

    def interruptTag(self, tag: str) -> None:
        assert tag in self.tags
        self.interrupted.set()


def with_host(use: Callable[[SparkHost, FakeSession], Awaitable[None]]) -> list[Any]:
    """Use a host that has started two nodes, and stop it; what it has told of their ends."""
    told: list[Any] = []

    async def run() -> None:
        died = lambda name, what, lines: told.append((name, what, lines))  # noqa: E731
        context = HostContext("job", make_config(Layer()), {}, died=died, failed=told.append)
        host = SparkHost(None, context)
        session = host._session = FakeSession()
        slots = [NodeSlot("worker-0", "worker"), NodeSlot("worker-1", "worker")]
        await host.start(slots, {})
        await use(host, session)
        await host.stop(0.01)

    asyncio.run(patiently(run(), 20))
    return told


async def ended(host: SparkHost) -> None:
    while host._stages:
        await asyncio.sleep(0.01)


def test_a_node_that_is_killed_takes_no_other_with_it_and_is_not_let_in_again() -> None:
    async def use(host: SparkHost, _: FakeSession) -> None:
        assert host.came("worker-0", 0) == host.came("worker-1", 0) == ()
        host._stages["worker-1"]._session = FakeSession()  # an interruption of its own
        host._stages["worker-1"]._session.tags = [host._stages["worker-1"]._tag]
        host.kill("worker-1")
        assert host.running() == ["worker-0"]
        assert host.came("worker-1", 0) is None

    assert with_host(use) == []


def test_a_node_whose_connection_is_lost_is_replaced_before_spark_knows() -> None:
    async def use(host: SparkHost, session: FakeSession) -> None:
        assert host.came("worker-1", 0) == ()
        assert not host.lost("worker-1"), "another is asked for"
        assert host.running() == ["worker-0"]
        assert session.interrupted.is_set(), "the former may only be cut off, and holds its slot"

    with_host(use)


def test_a_node_that_ends_is_told_of_and_one_that_was_released_is_not() -> None:
    async def use(host: SparkHost, session: FakeSession) -> None:
        assert host.came("worker-0", 0) == host.came("worker-1", 0) == ()
        host.release("worker-1")
        assert host.running() == ["worker-0"]
        assert host.came("worker-1", 0) is None
        session.interrupted.set()
        await ended(host)

    assert with_host(use) == [("worker-0", "was cancelled, as somebody has told Spark", ())]


def test_a_node_that_ends_before_any_has_come_ends_the_job() -> None:
    async def use(host: SparkHost, session: FakeSession) -> None:
        session.interrupted.set()
        await ended(host)

    (error, *_) = with_host(use)
    assert str(error).startswith("worker-")


def test_a_node_that_was_not_started_does_not_come() -> None:
    async def use(host: SparkHost, _: FakeSession) -> None:
        assert host.came("worker-9", 0) is None
        host.release("worker-9")
        host.kill("worker-9")

    assert with_host(use) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "has ended: its task was lost, or the executor that it ran on"),
        (["flamestream: worker-0 was killed\n    bye"], "has ended: worker-0 was killed"),
        ([None], "has ended"),
    ],
)
def test_a_stage_tells_by_its_result_how_its_node_ended(rows: list[str | None], said: str) -> None:
    async def use(host: SparkHost, session: FakeSession) -> None:
        host.came("worker-0", 0)
        host.came("worker-1", 0)
        session.rows = [Row("worker-0", failed) for failed in rows]
        session.interrupted.set()
        await ended(host)

    assert [what for _, what, _ in with_host(use)] == [said, said]


def result(monkeypatch: pytest.MonkeyPatch, version: str, attempt: int = 0) -> list[Any]:
    """Return the rows of a node's task."""
    task = SimpleNamespace(attemptNumber=lambda: attempt)
    monkeypatch.setattr("pyspark.TaskContext", SimpleNamespace(get=lambda: task))
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.7")
    run = node_task("worker-0", "worker", {}, version)
    return [row for batch in run(iter(())) for row in batch.to_pylist()]


def test_an_executor_without_the_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flamestream_spark.nodes.node", None)
    (row,) = result(monkeypatch, "1")
    assert re.match(
        r"flamestream: the Python of executor 10.0.0.7, process \d+ has no module 'flamestream_spark.nodes.node'"
        r".*\n +Install",
        row["failed"],
    )


def test_an_executor_with_another_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = result(monkeypatch, "0.0.1")
    assert re.match(
        r"flamestream: executor 10.0.0.7, process \d+ has flamestream .*, and the driver 0.0.1", row["failed"]
    )


def test_a_task_that_spark_starts_again_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert result(monkeypatch, "0.0.1", attempt=1) == []


def test_an_executor_is_reached_by_the_way_to_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_EXECUTOR_POD_IP", "SPARK_LOCAL_IP"):
        monkeypatch.delenv(name, raising=False)
    assert own_host("127.0.0.1:4040") == "127.0.0.1"
    assert own_host("unix:/tmp/somewhere/socket") == "127.0.0.1"
    monkeypatch.setenv("SPARK_EXECUTOR_POD_IP", "10.1.2.3")
    assert own_host("127.0.0.1:4040") == "10.1.2.3"


class Idle:
    """A session that notes how many tasks it is given."""

    def __init__(self) -> None:
        self.tasks: list[int] = []
        self.room = threading.Event()

    def addTag(self, tag: str) -> None:
        self.tag = tag

    def range(self, start: int, end: int, step: int, count: int) -> Idle:
        assert (start, end, step) == (0, count, 1)
        self.tasks.append(count)
        return self

    def mapInArrow(self, task: Any, _: str) -> Idle:
        assert list(task(iter([1]))) == []
        return self

    def collect(self) -> None:
        assert self.room.wait(20)

    def interruptTag(self, tag: str) -> None:
        assert tag == self.tag
        self.room.set()


def test_executors_to_spare_are_made_ready_once_all_nodes_have_come() -> None:
    idle = Idle()

    async def use(host: SparkHost, _: FakeSession) -> None:
        host._slots, host._spares = 5, Spares(idle, "")
        host.came("worker-0", 0)
        assert idle.tasks == []
        host.came("worker-1", 0)
        host.came("worker-1", 0)
        assert idle.tasks in ([], [2]), "no more than nodes can be lost, and one job is enough"

    with_host(use)
    assert idle.tasks == [2]
    assert idle.room.is_set(), "the end of the job waits for no room"


def test_a_task_waits_for_no_import_that_it_does_not_need() -> None:
    command = "import sys; import flamestream_spark.nodes.node; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert not {"pyarrow", "numpy", "pyspark", "flamestream_spark.flows", "flamecore.runtime.engine.job"} & set(
        done.stdout.split()
    )


def test_the_error_of_a_node_is_found_in_that_of_spark() -> None:
    said = """Job aborted due to stage failure: Could not recover: PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    raise RuntimeError(f"flamestream: {name} on executor {executor} {what}{said}")
RuntimeError: flamestream: worker-1 on executor h:1 (process 12) was killed by SIGKILL
    its last words

\tat org.apache.spark.api.python.BasePythonRunner"""
    assert reason(RuntimeError(said)) == (
        "has ended: worker-1 on executor h:1 (process 12) was killed by SIGKILL",
        ("its last words",),
    )
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
    other = f"{stopped} due to: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12\n\tat x"
    assert reason(RuntimeError(other))[0].startswith("has ended: [PYTHON_VERSION_MISMATCH] Python in worker")
