"""One round on Spark: a job drawn by chance, on a cluster of its own on this machine.

A shot kills a worker, the Python of its task, the daemon that Spark forks Python tasks from, an executor, or either
half of Spark's driver; the job is started again when it was the driver.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import soak_flow
from campaign import Result
from processes import Node, Run, born, kill, wait_until_gone
from rounds import outputs

WORKERS = 2
SPARE = 1
"""Executors beside those that the workers need."""

_KINDS = {
    ".node_process": "worker",
    "pyspark.daemon": "daemon",
    "CoarseGrainedExecutorBackend": "executor",
    "SparkSubmit": "java",
    "-m flamecore run": "python",
}
"""Kinds of processes, by a part of their command."""

_WEIGHTS = {"worker": 5, "task": 4, "daemon": 1, "executor": 8, "java": 1, "python": 2}
_PATIENCE_S = 300.0
_LIMIT_S = 3600.0
_WITHOUT_JAVA = ("Spark has ended", "Spark does not start")
"""Words with one of which a job may end whose Java was shot, as it ran or as it started."""

_RECOVERED = re.compile(r"event=job\.recovered .*?took_ms=([\d.]+)")


class OnSpark(Run):
    """A job whose workers are tasks of Spark."""

    def nodes(self) -> list[Node]:
        """All processes that are of it, now."""
        found, todo = [], [(self.process.pid, "")]
        while todo:
            pid, above = todo.pop()
            kind = ""
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                kind = next((kind for part, kind in _KINDS.items() if part in command), "other")
                kind = "task" if kind == above == "daemon" else kind  # forked, its command is the same
                if at := born(pid):  # else it is just gone
                    found.append(Node(pid, kind, kind, at))
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    todo += ((child, kind) for child in map(int, children.read_text().split()))
        self.met.update(found)
        return found


def play(seed: int, kills: int, folder: Path, *, size: int) -> Result:
    """Run a round.

    Args:
        seed: Seed of the job, its inputs, the victims and the moments.
        kills: Number of kills; the round ends earlier if the job does.
        folder: Where it runs; empty.
        size: Records of the first file of each source.

    Raises:
        AssertionError: The outputs are wrong, the job fails, does not end, or leaves a process behind.
    """
    chance = random.Random(seed)
    parts = tuple(chance.sample([*soak_flow.PARTS], 2))
    acker, store = chance.choice(("centralized", "local")), chance.choice(("sqlite", "directory"))
    print(f"round {seed}: {' and '.join(parts)}, {acker}, {store}, {kills} kills", flush=True)
    inputs = soak_flow.drawn(chance, parts, size)
    soak_flow.write(inputs, folder)
    began = time.monotonic()
    victims: Counter[str] = Counter()
    with _started(parts, acker, store, folder) as run:

        def delivered() -> int:
            paths = (folder / f"{name}.{soak_flow.PARTS[name].writer}" for name in parts)
            files = [*paths, *(Path(f"{path}-wal") for path in paths)]
            return sum(path.stat().st_size for path in files if path.exists())

        def moves() -> bool:
            """Return whether it delivers something more, before long."""
            before, end = delivered(), time.monotonic() + _PATIENCE_S
            while not run.over():
                if delivered() > before:
                    return True
                assert time.monotonic() < end, f"nothing is delivered for {_PATIENCE_S:g} s:\n{run.said()}"
                time.sleep(0.02)
            return False

        moves()
        while not run.over():
            assert time.monotonic() - began < _LIMIT_S, f"the job does not end; its log:\n{run.said()}"
            if victims.total() >= kills:
                run.nodes()
                time.sleep(0.1)
                continue
            time.sleep(chance.uniform(0.1, 2.0))
            if victim := _shoot(run, chance):
                victims[victim] += 1
                if victim == "java":
                    run.pardoned = _WITHOUT_JAVA
                if chance.random() < 0.75:  # otherwise the next one may hit it while it recovers
                    time.sleep(0.3)  # what was on its way is there
                    moves()
        assert run.process.returncode == 0, f"it ended with {run.process.returncode}; its log:\n{run.said()}"
        left = wait_until_gone(run.met)
        assert not left, f"processes are left behind: {left}\n{run.said()}"
        soak_flow.check(inputs, outputs(parts, folder), sequence=True)
        recovered = [float(found) for found in _RECOVERED.findall(run.said(10**7))]
    return Result(victims, Counter(), Counter(), time.monotonic() - began, recovered)


def _shoot(run: Run, chance: random.Random) -> str:
    """Kill one process. Returns what it was; empty if there is none."""
    kind = chance.choices([*_WEIGHTS], [*_WEIGHTS.values()])[0]
    there = [node for node in run.nodes() if node.role == kind]
    return kind if there and kill(chance.choice(there)) else ""


@contextmanager
def _started(parts: tuple[str, ...], acker: str, store: str, folder: Path) -> Iterator[OnSpark]:
    conf = {"spark.executor.memory": "500m", "spark.driver.memory": "600m", "spark.deploy.maxExecutorRetries": "-1"}
    said = ",".join(f'"{key}"="{value}"' for key, value in conf.items())
    settings = [
        f"spark.master=local-cluster[{WORKERS + SPARE},1,1024]",
        f"spark.config={{{said}}}",
        f"acker.use={acker}",
        "deploy.restarts=1000",
        "job.clock=sequence",
        "job.guarantee=exactly_once",
        "job.max_in_flight=512",
        f"state.use={store}",
        f"state.path={folder / 'state'}",
        *(f"source.{soak_flow.PARTS[name].source}.path={folder / soak_flow.PARTS[name].source}" for name in parts),
        *(f"sink.{name}.path={folder / f'{name}.{soak_flow.PARTS[name].writer}'}" for name in parts),
    ]
    edges = [f"--source={soak_flow.PARTS[name].source}={soak_flow.PARTS[name].reader}" for name in parts]
    edges += [f"--sink={name}={soak_flow.PARTS[name].writer}" for name in parts]
    flow = folder / "soaked.py"
    shutil.copy(Path(soak_flow.__file__), flow)
    arguments = [str(flow), "-q", "-w", str(WORKERS), "--on", "spark", *edges]
    environ = {"SOAK_PARTS": ",".join(parts), "SOAK_PAUSE_S": "0.01"}
    run = OnSpark(folder, [*arguments, *(f"--set={setting}" for setting in settings)], environ)
    try:
        yield run
    finally:
        run.end()
        wait_until_gone(run.met)
