"""Number of tasks that Spark can run at once, and whether it is enough.

A job starts with all of its tasks or not at all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Final

from flamecore.abc.host import HostContext
from flamecore.errors import ConfigError

Setting = Callable[[str, str], str]
"""Returns a setting of Spark by its name, or the default that it is given."""

_SPECULATES: Final = "spark.speculation.task.duration.threshold"
_UNBOUNDED: Final = 2**31 - 1
"""As many executors as Spark says there may be where nothing bounds them."""
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
    """Return the slots for the nodes of a job, and those for its other work on Spark."""
    deploy, workers = context.config.deploy, context.config.job.workers
    edges = (use for part, use in context.drivers.items() if part.startswith("source."))
    return workers + (workers if deploy.acker == "own" else 0), int(any(e.rpartition(":")[2] == "spark" for e in edges))


def check_speculation(config: Setting) -> None:
    """Refuse speculation by time.

    Spark would start each node a second time, and end the first one. Without a time it starts nothing of a stage of one
    task a second time.

    Args:
        config: See `Setting`.

    Raises:
        ConfigError: It is on.
    """
    if _is_on(config, "spark.speculation") and config(_SPECULATES, ""):
        raise ConfigError(
            f"spark.speculation is true, with {_SPECULATES} = {config(_SPECULATES, '')}: Spark would take a worker, "
            "which runs for as long as the job, for a slow task, and put another one in its place",
            hint=f"Leave {_SPECULATES} out; other stages of one task are not started twice then, either.",
            path="spark.config",
        )


def check_slots(session: Any, context: HostContext) -> int:
    """Refuse a job that Spark has too few slots for.

    Args:
        session: The session.
        context: Context of the job.

    Returns:
        How many there are for good on executors of their own; 0: tasks run in the driver's process, or executors come
        as they are needed.

    Raises:
        ConfigError: It has, or would start nodes twice.
    """
    nodes, others = wanted(context)
    setting: Setting = session.conf.get
    master, cpus = setting("spark.master", ""), int(setting("spark.task.cpus", "1"))
    local = _LOCAL.fullmatch(master) is not None
    dynamic = not local and _is_on(setting, "spark.dynamicAllocation.enabled")
    if not local:  # where it is of no effect
        check_speculation(setting)
    there = slots_of(master, cpus)
    if dynamic:
        bounds = [bound for bound in (there, _most(setting, cpus)) if bound is not None]
        there = min(bounds, default=nodes + others)
    elif there is None:
        there = _counted(session, nodes + others)
    if there >= nodes + others:
        return 0 if local or dynamic else there
    needed = f"{nodes} for the workers" + (f" and {others} for sources that Spark reads meanwhile" if others else "")
    raise ConfigError(
        f"Spark ({master}) has {there} slots{' at most' if dynamic else ''}, and the job needs {nodes + others}: "
        f"{needed}",
        hint=f"Give Spark more cores, or the job fewer workers: --workers {max(there - others, 1)}.",
        path="spark.workers",
    )


def _is_on(config: Setting, name: str) -> bool:
    return config(name, "false").lower() == "true"


def _most(config: Setting, cpus: int) -> int | None:
    """Return the slot limit of dynamic allocation, or None if it is not configured."""
    executors, cores = config("spark.dynamicAllocation.maxExecutors", ""), config("spark.executor.cores", "")
    if not (executors.isdigit() and cores.isdigit()) or int(executors) >= _UNBOUNDED:
        return None
    return int(executors) * (int(cores) // cpus)


def _counted(session: Any, wanted: int) -> int:
    """Return how many partitions Spark makes of a range: as many as it has cores.

    Wait for a time until there are `wanted`, as executors may still be starting.
    """
    deadline = time.monotonic() + _COMING_S
    while True:
        rows = session.range(0, 1 << 16).selectExpr("spark_partition_id() as p").distinct().count()
        if rows >= wanted or time.monotonic() > deadline:
            return int(rows)
        time.sleep(_PAUSE_S)
