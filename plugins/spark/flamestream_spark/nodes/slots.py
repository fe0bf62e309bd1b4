"""The number of tasks that Spark can run at once, and whether it is enough: a job starts whole or never."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Final

from flamecore.abc.host import HostContext
from flamecore.errors import ConfigError
from flamestream_spark.session.messages import FIXED_SLOTS

_DYNAMIC: Final = "spark.dynamicAllocation.enabled"
_LOCAL: Final = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]")
_COMING_S: Final = 10.0
_PAUSE_S: Final = 0.5
"""How long executors of a cluster may take to come, and how often they are counted."""


def slots_of(master: str, cpus: int = 1) -> int | None:
    """Return the slots of a master whose name says how many there are, or None.

    Args:
        master: As Spark writes it.
        cpus: Cores that a task takes.

    >>> slots_of("local[4]"), slots_of("local"), slots_of("local-cluster[2,3,1024]", 2), slots_of("yarn")
    (4, 1, 2, None)
    """
    if found := _LOCAL.fullmatch(master):
        if found["cores"] == "*":
            return None
        return int(found["cores"] or 1) // cpus
    if found := _LOCAL_CLUSTER.fullmatch(master):
        return int(found[1]) * (int(found[2]) // cpus)
    return None


def wanted(context: HostContext) -> tuple[int, int]:
    """Slots that a job takes: for its nodes, and for what else Spark does for it while it runs."""
    deploy, workers = context.config.deploy, context.config.job.workers
    edges = (use for part, use in context.drivers.items() if part.startswith("source."))
    return workers + (workers if deploy.acker == "own" else 0), int(any(e.rpartition(":")[2] == "spark" for e in edges))


def check_dynamic(config: Callable[[str, str], str]) -> None:
    """Refuse dynamic allocation: Spark has no barrier stage with it (SPARK-24942), under no resource profile.

    Args:
        config: Returns a setting of Spark, or the default that it is given.

    Raises:
        ConfigError: It is on.
    """
    if config(_DYNAMIC, "false").lower() == "true":
        raise ConfigError(
            f"{_DYNAMIC} is true, and workers keep their slots for as long as the job runs: each is a barrier "
            "stage, which Spark does not run then (SPARK-24942)",
            hint=FIXED_SLOTS,
            path="spark.config",
        )


def check_slots(session: Any, context: HostContext) -> int:
    """Refuse a job that Spark has too few slots for.

    Args:
        session: The session.
        context: Context of the job.

    Returns:
        How many there are on executors of their own; 0: tasks run in the driver's process.

    Raises:
        ConfigError: It has, or is to let executors go as it likes.
    """
    nodes, others = wanted(context)
    conf = session.conf
    master = conf.get("spark.master", "")
    local = _LOCAL.fullmatch(master) is not None
    if not local:  # where it is of no effect
        check_dynamic(conf.get)
    there = slots_of(master, int(conf.get("spark.task.cpus", "1")))
    if there is None:
        there = _counted(session, nodes + others)
    if there >= nodes + others:
        return 0 if local else there
    needed = f"{nodes} for the workers" + (f" and {others} for sources that Spark reads meanwhile" if others else "")
    raise ConfigError(
        f"Spark ({master}) has {there} slots, and the job needs {nodes + others}: {needed}",
        hint=f"Give Spark more cores, or the job fewer workers: --workers {max(there - others, 1)}.",
        path="spark.workers",
    )


def _counted(session: Any, wanted: int) -> int:
    """Ask Spark how many partitions it makes of something: as many as there are cores. Executors may be coming yet."""
    deadline = time.monotonic() + _COMING_S
    while True:
        rows = session.range(0, 1 << 16).selectExpr("spark_partition_id() as p").distinct().count()
        if rows >= wanted or time.monotonic() > deadline:
            return int(rows)
        time.sleep(_PAUSE_S)
