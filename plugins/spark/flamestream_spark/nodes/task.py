"""The program of the task of a stage, sent to executors by value.

So it can say that they lack the package: it imports nothing of the project before it has looked whether that is there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from flamestream_spark.session.messages import WHICH_PYTHON

SCHEMA = "node string, ended string"
"""The result of the stage: a row, if its node was told to end."""


def node_task(
    name: str, role: str, bootstrap: Mapping[str, Any], version: str
) -> Callable[[Iterator[Any]], Iterable[Any]]:
    """Return the function for `mapInArrow`.

    Args:
        name: Name of the node.
        role: Its role, "worker" or "acker".
        bootstrap: Values that a node needs to join.
        version: Version of flamestream at the driver.
    """
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(sys.modules[__name__])

    def run(rows: Iterator[Any]) -> Iterable[Any]:
        from pyspark import BarrierTaskContext

        for _ in rows:
            pass
        task = BarrierTaskContext.get()
        executor = task.getTaskInfos()[0].address
        try:
            import flamecore
            from flamestream_spark.nodes.node import run_node
        except ModuleNotFoundError as error:
            raise RuntimeError(
                f"flamestream: the Python of executor {executor} has no module {error.name!r} ({sys.executable})"
                f"\n    {WHICH_PYTHON}"
            ) from None
        if flamecore.__version__ != version:
            raise RuntimeError(
                f"flamestream: executor {executor} has flamestream {flamecore.__version__}, and the driver {version}"
                "\n    Install one version everywhere."
            )
        told = {"node": name, "role": role, "site": f"executor {executor}"}
        yield run_node({**bootstrap, **told}, executor)

    return run
