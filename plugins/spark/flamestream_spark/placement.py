"""The decision where a flow of a program runs: one for `run`, `through` and `stream`."""

from __future__ import annotations

from typing import Any

from flamecore import events
from flamecore.abc.config import HERE
from flamecore.logs import logger
from flamestream_spark.session.master import has_workers
from flamestream_spark.session.session import HOST


def host_of(spark: Any, job: str, *, on_spark: bool | None) -> str:
    """Return the host of a flow's workers, for `deploy.on`, and log it.

    The master decides, and never the amount of data.

    Args:
        spark: The session.
        job: Name of the job.
        on_spark: What the program says; None: nothing.
    """
    master = str(spark.conf.get("spark.master", ""))
    because = f"the master is {master}" if on_spark is None else f"on_spark={on_spark}"
    on = HOST if (has_workers(master) if on_spark is None else on_spark) else HERE
    logger().info(events.JOB_PLACED, job=job, on=on, because=[because])
    return on
