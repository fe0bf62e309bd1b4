"""Executors that Spark takes away, idle ones between the batches of a stream and one with a worker: each row once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.jvm

PROGRAM = '''
java = spark._jsc.sc()


def executors():
    return java.getExecutorMemoryStatus().size() - 1  # the driver is one of them


def hosting(pid, executor):
    """Executors, by their ids, below a process that have a worker."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\\0")
        tasks = [*Path(f"/proc/{pid}/task").glob("*/children")]
        children = [child for task in tasks for child in task.read_text().split()]
    except OSError:
        return []
    if any(word.endswith(".node_process") for word in words):
        return [executor]
    if "--executor-id" in words:
        executor = words[words.index("--executor-id") + 1]
    return [found for child in children for found in hosting(child, executor)]


def add(number):
    """Add files that come at once: one batch."""
    aside = folder / f"aside-{number}"
    aside.mkdir()
    for part in range(6):
        lines = [f"w{n % 7} {number}-{part}" for n in range(50)]
        given.extend(lines)
        (aside / f"{part}.txt").write_text("".join(f"{line}\\n" for line in lines))
        at = 1_700_000_000 + len(given)  # Spark takes the oldest first
        os.utime(aside / f"{part}.txt", (at, at))
    aside.rename(folder / "in" / f"{number}")


def delivered():
    return sum(running.progress()["items_out"].values())


flow = fc.Flow("words")
flow.source("lines", str).rebalance().flat_map(str.split).key_by(lambda word: word).count().sink("counts")
(folder / "in").mkdir()
given = []
add(0)
frame = spark.readStream.text("in/*")
settings = {"deploy.start_timeout_s": 200}
running = flamestream_spark.stream(
    flow, lines=frame, checkpoint=folder / "job", on_spark=True, workers=2, settings=settings
)
wait_for(lambda: delivered() == 600)
for number in (1, 2):
    wait_for(lambda: executors() == 2)  # those with workers: those that have read are idle, and go
    add(number)
    wait_for(lambda: executors() > 2)
    wait_for(lambda: delivered() == 600 * (number + 1))
hosts = hosting(os.getpid(), "")
assert len(hosts) == 2
killed = hosts.pop()
seq = spark._jvm.org.apache.spark.api.python.PythonUtils.toSeq([killed])
java.schedulerBackend().killExecutors(seq, True, False, True)  # by force, as it is never idle
wait_for(lambda: len(now := {*hosting(os.getpid(), "")}) == 2 and killed not in now)
add(3)
wait_for(lambda: delivered() == 2400)
running.stop()
rows = running.output().orderBy(*flamestream_spark.TIMES).collect()
spark.stop()
wanted = flow.run({"lines": given})["counts"]
same = [(row[0], row[1]) for row in rows] == [*map(tuple, wanted)]
print(json.dumps({"killed": killed, "rows": len(rows), "same": same}))
'''
CONFIG = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": "0",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
}


def test_executors_go_between_batches_and_one_with_a_worker_is_taken_away(run_program: Callable[..., Any]) -> None:
    config = {key.replace(".", "__"): value for key, value in CONFIG.items()}
    done = run_program(PROGRAM, "local-cluster[4,1,1024]", **config)
    print(done.told)
    removed = [
        (number, event["Executor ID"], event["Removed Reason"])
        for number, event in enumerate(done.events)
        if event["Event"] == "SparkListenerExecutorRemoved"
    ]
    print(removed)
    batches = {
        number: next(at for at, event in enumerate(done.events) if f", batch {number}" in described(event))
        for number in range(4)
    }
    for number in (1, 2):
        gone = {name for at, name, _ in removed if batches[number - 1] < at < batches[number]}
        assert gone, f"no executor has gone before batch {number}"
        assert done.told["killed"] not in gone
    # The program has seen its process go. Spark's own event of that may come later, and behind the end of the session.
    assert done.told["killed"] not in {name for at, name, _ in removed if at < batches[2]}
    assert (done.told["rows"], done.told["same"]) == (2400, True)


def described(event: dict[str, Any]) -> str:
    """Return the description of a job that begins."""
    said = event["Properties"].get("spark.job.description", "") if event["Event"] == "SparkListenerJobStart" else ""
    return str(said)
