"""The program of the task of a stage, sent to executors by value.

So it can say that they lack the package: it imports nothing of the project before it has looked whether that is there.

Failures are results: Spark would start a task that fails once more, and say of the failure in its log alone.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from flamestream_spark.session.messages import WHICH_PYTHON

SCHEMA: Final = "node string, failed string"
"""The result of the stage: a row, whose `failed` is null if the node was told to end; none: its task was lost."""

_LOST: Final = "flamestream: its task was lost, or the executor that it ran on"


def node_task(
    name: str, role: str, bootstrap: Mapping[str, Any], version: str
) -> Callable[[Iterator[Any]], Iterable[Any]]:
    """Return the function for `mapInArrow`.

    A task that Spark starts a second time ends at once: the job has asked for another node already.

    Args:
        name: Name of the node.
        role: Its role, "worker" or "acker".
        bootstrap: Values that a node needs to join.
        version: Version of flamestream at the driver.
    """
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(sys.modules[__name__])

    def run(rows: Iterator[Any]) -> Iterable[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        for _ in rows:
            pass
        task = TaskContext.get()
        if task is None or task.attemptNumber() > 0:
            return
        failed = _run(name, role, bootstrap, version)
        schema = pa.schema([("node", pa.string()), ("failed", pa.string())])
        yield pa.RecordBatch.from_pydict({"node": [name], "failed": [failed]}, schema=schema)

    return run


def _run(name: str, role: str, bootstrap: Mapping[str, Any], version: str) -> str | None:
    """Run the node to its end, and return how it has failed; None: it was told to end."""
    host = own_host(str(bootstrap.get("control", "")))
    executor = f"{host}, process {os.getppid()}"
    try:
        import flamecore
        from flamestream_spark.nodes.node import run_node
    except ModuleNotFoundError as error:
        return (
            f"flamestream: the Python of executor {executor} has no module {error.name!r} ({sys.executable})"
            f"\n    {WHICH_PYTHON}"
        )
    if flamecore.__version__ != version:
        return (
            f"flamestream: executor {executor} has flamestream {flamecore.__version__}, and the driver {version}"
            "\n    Install one version everywhere."
        )
    told = {"node": name, "role": role, "site": f"executor {executor}"}
    return run_node({**bootstrap, **told}, host, executor)


def own_host(control: str) -> str:
    """Return the address at which other machines reach this one.

    This is the address that the executor was given, or that of its route to the driver.

    Args:
        control: Where the driver is.
    """
    for name in ("SPARK_EXECUTOR_POD_IP", "SPARK_LOCAL_IP"):
        if told := os.environ.get(name):
            return told
    host, _, port = control.rpartition(":")
    try:
        return address_towards(host.strip("[]"), int(port))
    except (OSError, ValueError):  # on this machine, by the path of a socket
        return "127.0.0.1"


def address_towards(host: str, port: int) -> str:
    """Return the address of this machine on the way to another one. Nothing is sent.

    Raises:
        OSError: No way leads there.
    """
    family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def failure_of(rows: Sequence[Any]) -> Exception | None:
    """Return how a stage has failed, by its result; None: its node was told to end."""
    said = rows[0].failed if rows else _LOST
    return None if said is None else RuntimeError(said)
