"""Topics of a real Kafka, through Spark's connector: into a flow, out of it, and killed on the way.

The programs are processes of their own, since a session has the jars that it began with.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from flamecore.testing.progress import Patience

pytestmark = pytest.mark.jvm

RECORDS = 240
BATCH = 30
LIMIT_S = 120

FLOW = """
import time
from typing import NamedTuple

import flamecore as fc


class Record(NamedTuple):
    partition: int
    offset: int
    value: str


class Place(NamedTuple):
    partition: int
    offset: int


class Count(NamedTuple):
    word: str
    number: int


def words(record: Record) -> list[str]:
    time.sleep(0.004)
    return record.value.split()


def place(record: Record) -> Place:
    return Place(record.partition, record.offset)


def made(pair: tuple[str, int]) -> Count:
    return Count(*pair)


flow = fc.Flow("topic")
records = flow.source("records", Record)
records.map(place).sink("places")
records.flat_map(words).key_by(lambda word: word).count().map(made).sink("counts")
"""

PROGRAM = """
import json
import sys
import time
from pathlib import Path

import flamestream_spark
from flamestream_spark.session.session import session
from topic import flow

told = json.loads(sys.argv[1])
kafka = {"kafka.bootstrap.servers": told["server"]}
with session("local[4]", {"spark.jars": told["jars"], "spark.sql.shuffle.partitions": "2"}) as spark:
    if told["lines"]:
        rows = spark.createDataFrame(list(enumerate(told["lines"])), "n int, value string").coalesce(1)
        rows = rows.selectExpr("cast(n as string) as key", "value", f"n % {told['partitions']} as partition")
        rows.write.format("kafka").options(**kafka).option("topic", told["topic"]).save()
    reading = {"subscribe": told["topic"], "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(told["batch"])}
    topic = spark.readStream.format("kafka").options(**kafka, **reading).load()
    records = topic.selectExpr("partition", "offset", "cast(value as string) as value")
    trigger = {"availableNow": True} if told["ends"] else None
    running = flamestream_spark.stream(flow, records=records, checkpoint="job", trigger=trigger)
    out = Path("job", "output", "counts")

    def written():
        counts = spark.readStream.format("flamestream").load(str(out))
        text = "word || ' ' || number"
        rows = counts.selectExpr("concat_ws(' ', _time, _front, _place) as key", f"{text} as value")
        writer = rows.writeStream.format("kafka").options(**kafka).option("topic", told["out"])
        writer = writer.option("checkpointLocation", "written")
        return (writer.trigger(availableNow=True) if told["ends"] else writer).start()

    if told["ends"]:
        running.awaitTermination()
        if told["out"]:
            for _ in range(2):  # a batch that is repeated may be the only one of its run
                written().awaitTermination()
            read = spark.read.format("kafka").options(**kafka).option("subscribe", told["out"]).load()
            rows = read.selectExpr("cast(key as string)", "cast(value as string)").collect()
            Path("read.json").write_text(json.dumps([list(row) for row in rows]))
        found = {name: [list(row) for row in running.output(name).orderBy(*flamestream_spark.TIMES).collect()]
                 for name in ("counts", "places")}
        Path("found.json").write_text(json.dumps(found))
    else:
        while told["out"] and not [*out.glob("part-*")]:
            time.sleep(0.05)  # the test ends the program if none comes
        (written() if told["out"] else running).awaitTermination()
"""


class Job:
    """The program above, in a folder, on topics of its own.

    Args:
        folder: The folder.
        server: Address of the broker.
        jars: Jars of the connector.
        out: Whether its counts are written to a topic, too.
    """

    def __init__(self, folder: Path, server: str, jars: str, *, out: bool) -> None:
        self.folder = folder
        name = f"flamestream-{token_hex(6)}"
        self._told = {"server": server, "jars": jars, "topic": name, "out": f"{name}-out" if out else ""}
        self._told |= {"partitions": "3", "batch": str(BATCH)}
        (folder / "topic.py").write_text(FLOW)
        (folder / "program.py").write_text(PROGRAM)

    def start(self, lines: list[str], *, ends: bool) -> subprocess.Popen[bytes]:
        """Write lines to the topic, then read it: to its end, or until it is stopped."""
        told = json.dumps({**self._told, "lines": lines, "ends": ends})
        environ = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        return subprocess.Popen([sys.executable, "program.py", told], cwd=self.folder, env=environ)

    def to_the_end(self, lines: list[str]) -> dict[str, list[list[Any]]]:
        """Return all outputs, once the topic with these lines has been read."""
        assert self.start(lines, ends=True).wait() == 0
        return dict(json.loads((self.folder / "found.json").read_text()))

    @contextmanager
    def killed(self, lines: list[str]) -> Iterator[None]:
        """Run the program for as long as the block, then kill it with all processes below it."""
        self._program = program = self.start(lines, ends=False)
        try:
            yield
        finally:
            kill(program)

    def files(self, of: str) -> int:
        return len(list((self.folder / of).glob("[!._]*")))

    def wait_for(self, of: str, count: int) -> None:
        """Wait until a folder has so many files, as long as the program runs that is to be killed."""
        limit = Patience(LIMIT_S)
        while self.files(of) < count:
            assert self._program.poll() is None
            assert not limit.passed()
            time.sleep(0.02)


def kill(program: subprocess.Popen[bytes]) -> None:
    """Kill a program and all processes below it, Spark's Java among them, as a power cut does."""
    below, todo = [], [program.pid]
    while todo:
        pid = todo.pop()
        below.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):  # it has ended since
                todo += map(int, task.read_text().split())
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert program.wait() == -signal.SIGKILL, "it ran until then"
    limit = Patience(60)
    while any(runs(pid) for pid in below):
        assert not limit.passed()
        time.sleep(0.05)


def runs(pid: int) -> bool:
    """Return whether a process runs; one that has ended has no command any more."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def lines_of(first: int, count: int) -> list[str]:
    return [f"w{number % 7} v{number % 3}" for number in range(first, first + count)]


def check(found: dict[str, list[list[Any]]], lines: list[str], *written: int) -> None:
    """Check that each record was counted once, and those of a partition in their order.

    Args:
        found: Outputs, in their order.
        lines: All lines that were written.
        written: How many of them, each time.
    """
    wanted: dict[str, list[int]] = {}
    for word, number in Counter(word for line in lines for word in line.split()).items():
        wanted[word] = list(range(1, number + 1))
    counted: dict[str, list[int]] = {}
    for word, number, *_ in found["counts"]:
        counted.setdefault(word, []).append(number)
    assert counted == wanted
    places: dict[int, list[int]] = {}
    for partition, offset, *_ in found["places"]:
        places.setdefault(partition, []).append(offset)
    sizes = Counter(number % 3 for count in written for number in range(count))
    assert places == {partition: list(range(size)) for partition, size in sizes.items()}


def test_a_topic_goes_through_a_flow_and_goes_on(kafka: str, kafka_jars: str, tmp_path: Path) -> None:
    job = Job(tmp_path, kafka, kafka_jars, out=False)
    lines = lines_of(0, 80)
    check(job.to_the_end(lines), lines, 80)
    more = lines_of(80, 40)
    found = job.to_the_end(more)
    check(found, lines + more, 80, 40)
    again = job.to_the_end([])
    assert again == found, "nothing has come"


def test_a_driver_that_is_killed_between_batches_counts_each_record_once(
    kafka: str, kafka_jars: str, tmp_path: Path
) -> None:
    job = Job(tmp_path, kafka, kafka_jars, out=False)
    lines = lines_of(0, RECORDS)
    for number in range(2):
        done = job.files("job/query/records/commits")
        with job.killed([] if number else lines):
            job.wait_for("job/query/records/commits", done + 2)
            job.wait_for("job/output/counts", 1)
        begun = job.files("job/query/records/offsets")
        print(f"killed in batch {begun}, of {RECORDS // BATCH}")
        assert begun * BATCH < RECORDS, "the kill has hit a job that still had to read"
    more = lines_of(RECORDS, 45)
    check(job.to_the_end(more), lines + more, RECORDS, 45)


@pytest.mark.usefixtures("data_source")
def test_outputs_reach_a_topic_at_least_once_and_tell_which_came_twice(
    kafka: str, kafka_jars: str, tmp_path: Path
) -> None:
    job = Job(tmp_path, kafka, kafka_jars, out=True)
    lines = lines_of(0, RECORDS)
    with job.killed(lines):
        job.wait_for("written/commits", 1)
    # As if the kill had come after a batch was written, and before Spark noted that: it is written again.
    last = max(int(file.name) for file in (tmp_path / "written" / "commits").glob("[0-9]*"))
    for folder, first in (("commits", last), ("offsets", last + 1)):
        for file in (tmp_path / "written" / folder).iterdir():
            if int(file.name.lstrip(".").partition(".")[0]) >= first:
                file.unlink()
    more = lines_of(RECORDS, 45)
    found = job.to_the_end(more)
    check(found, lines + more, RECORDS, 45)
    read = [tuple(record) for record in json.loads((tmp_path / "read.json").read_text())]
    wanted = {(f"{time} {front} {place}", f"{word} {number}") for word, number, time, front, place in found["counts"]}
    assert {*read} == wanted
    assert len(read) > len(wanted), "some came twice, as the same"
