"""Tasks that Spark starts a second time, after a fault or beside a slow one: each row comes once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.jvm

PROGRAM = """
from pyspark.sql.functions import udf

PLACE, FAULT, WAY = {place!r}, {fault!r}, {way!r}
calls = 0


def line_of(line):
    # The first attempt of one task has a fault, when it has written some rows.
    from pyspark import TaskContext

    global calls
    task = TaskContext.get()
    if task.partitionId() != 1:
        return line
    calls += 1
    if calls > 25 and not task.attemptNumber():
        if FAULT == "raises":
            raise ValueError("the first attempt fails")
        if FAULT == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for((folder / "second").exists, 600)  # then both go on at once
    if FAULT == "is slow" and task.attemptNumber():
        (folder / "second").touch()
    return line


flow = fc.Flow("words")
flow.source("lines", str).rebalance().flat_map(str.split).key_by(lambda word: word).count().sink("counts")
lines = [f"a b{{n % 3}} c{{n % 7}} d{{n:03}}" for n in range(400)]
(folder / "in").mkdir()
for file in range(4):
    (folder / "in" / f"{{file}}.txt").write_text("".join(f"{{line}}\\n" for line in lines[file::4]))
ordered = [line for file in range(4) for line in lines[file::4]]
frame = spark.read.text("in").select(udf(line_of)("value").alias("value"))
options = {{"on_spark": PLACE == "executors", "workers": {workers}, "settings": {{"deploy.start_timeout_s": 200}}}}
if WAY == "through":
    ordered = sorted(lines, key=lambda line: line[-3:])
    frame = frame.selectExpr("value", "substring(value, -3) AS at")
    found = frame.transform(flamestream_spark.through(flow, order_by="at", scratch="scratch", **options))
else:
    found = flamestream_spark.run(flow, lines=frame, scratch="scratch", **options)
(folder / "scratch").mkdir(exist_ok=True)
rows = [(row[0], row[1]) for row in found.orderBy(*flamestream_spark.TIMES).collect()]
wanted = flow.run({{"lines": ordered}})["counts"]
spark.stop()
print(json.dumps({{"rows": len(rows), "wanted": len(wanted), "same": rows == [*map(tuple, wanted)]}}))
"""
ONE_A_FILE = {
    "spark__sql__files__maxPartitionBytes": "2500",
    "spark__sql__files__openCostInBytes": "2500",
    "spark__sql__execution__arrow__maxRecordsPerBatch": "10",
}
SPECULATION = {
    "spark__speculation": "true",
    "spark__speculation__interval": "100ms",
    "spark__speculation__quantile": "0.5",
    "spark__speculation__multiplier": "1.1",
    "spark__speculation__minTaskRuntime": "100ms",
    "spark__speculation__efficiency__enabled": "false",
}


def attempts(done: Any) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Return the ends of the attempts of each task, by stage and index, for tasks with several."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in done.of("TaskEnd"):
        found.setdefault((event["Stage ID"], event["Task Info"]["Index"]), []).append(event)
    return {task: ends for task, ends in found.items() if len(ends) > 1}


def stages(done: Any, work: str) -> set[int]:
    """Return the stages of the jobs whose description has these words."""
    jobs = [job for job in done.of("JobStart") if work in job["Properties"].get("spark.job.description", "")]
    return {stage for job in jobs for stage in job["Stage IDs"]}


def reasons(ends: list[dict[str, Any]]) -> list[str]:
    return sorted(end["Task End Reason"]["Reason"] for end in ends)


def check_rows(done: Any) -> None:
    assert done.told == {"rows": 1600, "wanted": 1600, "same": True}


@pytest.mark.parametrize("way", ["run", "through"])
@pytest.mark.parametrize("fault", ["raises", "is killed"])
def test_a_task_that_is_tried_again_gives_its_rows_once(fault: str, way: str, run_program: Callable[..., Any]) -> None:
    program = PROGRAM.format(place="executors", fault=fault, way=way, workers=2)
    done = run_program(program, "local-cluster[3,1,1024]", spark__task__maxFailures="3", **ONE_A_FILE)
    again = attempts(done)
    print({task: reasons(ends) for task, ends in again.items()})
    assert {stage for stage, _ in again} & stages(done, ": feed lines"), "no task was tried again"
    for (_, index), ends in again.items():
        assert index == 1
        assert reasons(ends) == ["ExceptionFailure", "Success"]
        assert sorted(end["Task Info"]["Attempt"] for end in ends) == [0, 1]
    last = max(end["Task Info"]["Finish Time"] for ends in again.values() for end in ends)
    assert not [event for event in done.of("ExecutorRemoved") if event["Timestamp"] <= last], "executors live"
    said = str([ends[0]["Task End Reason"] for ends in again.values()])
    assert ("the first attempt fails" if fault == "raises" else "Python worker exited unexpectedly") in said
    check_rows(done)


@pytest.mark.parametrize("place", ["driver", "executors"])
def test_a_slow_task_and_its_speculative_copy_give_their_rows_once(
    place: str, run_program: Callable[..., Any], cluster: Callable[..., Any]
) -> None:
    """A worker has no copy."""
    program = PROGRAM.format(place=place, fault="is slow", way="run", workers=1)
    # Spark starts a copy on another host only.
    with cluster(["127.0.0.1", "127.0.0.2", "127.0.0.3"][: 2 if place == "driver" else 3]) as there:
        done = run_program(program, there.master, spark__driver__host="127.0.0.1", **SPECULATION, **ONE_A_FILE)
    copies = [event for event in done.of("TaskStart") if event["Task Info"]["Speculative"]]
    assert copies, "no task was slow"
    again = attempts(done)
    print({task: reasons(ends) for task, ends in again.items()})
    slow = {(event["Stage ID"], event["Task Info"]["Index"]) for event in copies}
    assert again.keys() <= slow
    assert {(stage, 1) for stage in stages(done, ": feed lines")} & slow, "they are of another stage"
    for ends in again.values():
        assert reasons(ends).count("Success") == 1
    nodes = stages(done, ": node worker-")
    starts = [event["Task Info"]["Attempt"] for event in done.of("TaskStart") if event["Stage ID"] in nodes]
    assert starts == [0] * (place == "executors"), "a worker is started once"
    check_rows(done)
