"""Node in a task of Spark: a process below the task, which ends with the task."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Final

from flamecore.abc.host import HostContext, NodeSlot
from flamecore.runtime.config.layers import Layer
from flamecore.runtime.config.read import make_config
from flamecore.toolkit.local_processes import ProcessHost
from flamecore.toolkit.private_dir import private_folder
from flamestream_spark.session.master import BELOW_TASK

_WELL: Final = "ended with code 0"
_LINES: Final = 8


class TaskProcesses(ProcessHost):
    """The processes of a task."""

    program: ClassVar[str] = "flamestream_spark.nodes.node_process"


def run_node(bootstrap: Mapping[str, Any], host: str, executor: str) -> str | None:
    """Run a node to its end.

    Args:
        bootstrap: Values that it needs to join.
        host: Where others reach the executor that this task is of.
        executor: Words for that executor.

    Returns:
        How it has failed; None: it was told to end.
    """
    name = bootstrap["node"]
    os.environ[BELOW_TASK] = "1"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(private_folder()))
        what, lines = asyncio.run(_ended(placed(bootstrap, host, folder)))
    if what.endswith(_WELL):
        return None
    said = "".join(f"\n    {line}" for line in lines[-_LINES:])
    return f"flamestream: {name} on executor {executor} {what}{said}"


def placed(bootstrap: Mapping[str, Any], host: str, folder: Path) -> dict[str, Any]:
    """Return the bootstrap of a node, completed for the place where it is.

    It listens where others reach its executor, finds the flow's source, and the files that Spark has sent.

    Args:
        bootstrap: Values of the driver.
        host: Where others reach the executor.
        folder: The folder of the node.
    """
    told = dict(bootstrap)
    told["flow_folder"] = str(folder / "flow")
    for path, source in told.pop("code").items():
        file = folder / "flow" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source)
    options = told["options"] = dict(bootstrap["options"])
    if ":" in options.get("listen", ""):
        options["listen"] = f"[{host}]:0" if ":" in host else f"{host}:0"
        options.pop("advertise", None)
    if not Path(told["folder"]).is_dir():  # another machine than the driver's
        told["folder"] = str(folder)
    if not Path(told["cwd"]).is_dir():
        told.pop("cwd")
    told["files"] = files_of_task() if told["files"] else ""
    return told


def files_of_task() -> str:
    """Return the folder of the files and archives that Spark has sent to this task."""
    from pyspark import SparkFiles

    return str(Path(SparkFiles.getRootDirectory()).absolute())


async def _ended(bootstrap: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Start the process, and wait for its end: what became of it, and its last lines."""
    over: asyncio.Future[tuple[str, tuple[str, ...]]] = asyncio.get_running_loop().create_future()
    context = HostContext(
        bootstrap["job"], make_config(Layer()), {}, died=lambda _, what, lines: over.set_result((what, tuple(lines)))
    )
    await TaskProcesses(None, context).start([NodeSlot(bootstrap["node"], bootstrap["role"])], bootstrap)
    return await over
