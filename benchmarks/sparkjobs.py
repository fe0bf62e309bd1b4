"""Jobs beside each other on one session of Spark.

The session takes longer to start than the measured work.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import flamecore as fc
from benchmarks.processes import ROOT
from benchmarks.report import Spread, Table
from benchmarks.several import NOTHING, SHORT_S

_CONF: Final = {"spark.sql.shuffle.partitions": "2", "spark.sql.files.openCostInBytes": "0"}
_LOOK_S: Final = 0.1
_CLUSTER: Final = {"spark.executor.memory": "1g", "spark.driver.memory": "2g"}


@contextmanager
def spark_of(master: str, **conf: str) -> Iterator[Any]:
    """Yield a session whose executors find the flows of the benchmarks.

    Args:
        master: Where it runs.
        conf: More configuration, with `__` for the dots.
    """
    from flamestream_spark.session.session import session

    more = {f"spark.{key.replace('__', '.')}": value for key, value in conf.items()}
    with session(master, _CONF | (_CLUSTER if master.startswith("local-cluster") else {}) | more) as spark:
        yield spark


def run_job(flow: fc.Flow, settings: Mapping[str, Any]) -> None:
    """Run a flow as a job of its own, to its end, as `flamestream run` does.

    Args:
        flow: A variable of a module.
        settings: As dotted keys.
    """
    from flamecore.runtime.config.layers import from_program
    from flamecore.runtime.config.read import make_config
    from flamecore.runtime.config.resolve import resolve
    from flamecore.runtime.launch import job_of, to_the_end

    spec = resolve(make_config(from_program(dict(settings)), folder=ROOT), flow)
    spec.problems.raise_first()
    to_the_end(job_of(spec))


def digest(spark: Any, path: Path) -> str:
    """Return a digest of a table of outputs: its rows, in the order of delivery.

    Args:
        spark: The session.
        path: A folder of Parquet files with the columns that tell the order.
    """
    found = spark.read.parquet(str(path))
    columns = ", ".join(f"`{name}`" for name in sorted(found.columns))
    row = found.selectExpr("count(*)", f"sum(CAST(xxhash64({columns}) AS DECIMAL(38, 0)))").first()
    return " ".join(map(str, row))


class Spent:
    """Processor time of this process and of those below it, while this is entered.

    A process is read ten times a second, so the last tenth of one that ends may be missing.

    Attributes:
        seconds: User and system time by process, all threads: (role, seconds). Roles are "driver" (this process),
            "worker" (a node), "task" (Python of a task) and "java".
    """

    def __init__(self) -> None:
        self.seconds: dict[int, tuple[str, float]] = {}
        self._before: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Spent:
        self._before = {pid: spent for pid, _ in processes_below(os.getpid()) if (spent := _spent(pid)) is not None}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        ends = False
        while not ends:
            ends = self._over.wait(_LOOK_S)
            for pid, role in processes_below(os.getpid()):
                if (spent := _spent(pid)) is not None:
                    known = self.seconds[pid][0] if pid in self.seconds else ""
                    self.seconds[pid] = role or known, spent - self._before.get(pid, 0.0)

    def busiest(self) -> dict[str, float]:
        """Return the most that one process of each role has taken, in seconds."""
        found: dict[str, float] = {}
        for role, seconds in self.seconds.values():
            found[role] = max(found.get(role, 0.0), seconds)
        return found


def _spent(pid: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it is gone
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processes_below(pid: int) -> list[tuple[int, str]]:
    """Return a process and those below it, with their roles; see `Spent`. One that has ended has none."""
    found, todo = [(pid, "driver")], [pid]
    while todo:
        for children in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            try:
                pids = [int(each) for each in children.read_text().split()]
                commands = {each: Path(f"/proc/{each}/cmdline").read_bytes() for each in pids}
            except OSError:  # it is gone
                continue
            todo += commands
            for each, command in commands.items():
                role = "worker" if b"node_process" in command else "task" if b"pyspark" in command else "java"
                role = "java" if b"/java" in command[:64] else role
                found.append((each, role if command else ""))  # of one that has ended, and is still listed
    return found


def spent_on(job: Callable[[], None], little: Callable[[], None]) -> dict[str, Any]:
    """Run a job, and the same with little to do; return their processor times without the cost of starting and ending.

    Returns:
        `seconds`: wall time; `by_role`: the busiest process of each role; `busiest`: the busiest Python process, so
        without Java.
    """
    begin = time.perf_counter()
    with Spent() as few:
        little()
    middle = time.perf_counter()
    with Spent() as many:
        job()
    seconds = time.perf_counter() - middle - (middle - begin)
    start = few.busiest()
    by_role = {role: spent - start.get(role, 0.0) for role, spent in many.busiest().items()}
    busiest = max(spent for role, spent in by_role.items() if role != "java")
    return {"seconds": seconds, "busiest": busiest, "by_role": by_role, "start": start}


def compared(
    title: str, runs: Mapping[int, Sequence[dict[str, dict[str, Any]]]], names: tuple[str, str], wanted: float
) -> Table:
    """Return the table of a function in two places.

    Args:
        title: Title of the table.
        runs: By number of slots, for each round the result of `spent_on` of each place, and `outputs` (a digest).
        names: The worker, with which the other place is compared, and that place.
        wanted: Target of the ratio of their busiest processes, with every number of slots.
    """
    worker, other = names
    roles = {"worker": "worker", "task": "task", "driver": "driver", "java": "Java"}
    columns = ("slots", "where the function runs", *(f"{role}, CPU s" for role in roles.values()), "wall s", "by wall")
    table = Table(title, (*columns, "by the busiest"))
    for slots, rounds in runs.items():
        if any(run[other]["outputs"] != run[worker]["outputs"] for run in rounds):
            table.fail(str(slots), "outputs are not those of the worker alone")
            continue
        if any(run[each]["busiest"] < SHORT_S for run in rounds for each in run):
            table.note(NOTHING)
            continue
        for name in names:
            times = [Spread.of([run[name]["by_role"].get(role, 0.0) for run in rounds]) for role in roles]
            wall = Spread.of([run[name]["seconds"] for run in rounds])
            ratio = {
                key: Spread.of([run[worker][key] / run[name][key] for run in rounds]) for key in ("seconds", "busiest")
            }
            table.add(slots, name, *times, wall, ratio["seconds"], ratio["busiest"])
            if name == other:
                what = f"{slots} slot{'s' * (slots > 1)}, {name}: busiest Python process, times that of {worker}"
                table.target(name, what, ratio["busiest"], wanted)
    return table
