"""The stage whose only task is a node: each node is a job of Spark's own.

Were all nodes of a job the tasks of one barrier stage, Spark would end all of them when one is lost, which takes it
seconds, and start all of them anew. So a node that is lost is the end of its own stage alone, and the job has another
one started, on whichever executor has room, as soon as it knows: what Spark finds out later is not waited for.

The task is an ordinary one, as barrier stages exclude dynamic allocation. Should Spark start it a second time, because
it was lost, it ends at once. Nodes find each other by the driver, whose address goes with the task.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from flamecore import __version__
from flamecore.abc.host import NodeSlot
from flamestream_spark.nodes.task import SCHEMA, failure_of, node_task
from flamestream_spark.session.session import cancel_tag, spark_thread, tag_thread


class Stage:
    """One stage, run by a thread of its own.

    Args:
        session: The session.
        slot: The node.
        bootstrap: Values that the node needs to join.
        ended: Called in the event loop's thread when it has ended: (this stage, whether its node is a loss, why; None:
            the node has ended well).
        title: Its name on Spark's pages.

    Attributes:
        name: Name of the node.
        over: Whether it has ended, or was told to.
        released: Whether the node is not needed any more.
        done: Set when it has ended.
    """

    def __init__(
        self,
        session: Any,
        slot: NodeSlot,
        bootstrap: Mapping[str, Any],
        ended: Callable[[Stage, bool, Exception | None], None],
        title: str = "",
    ) -> None:
        self.name = slot.name
        self.over = self.released = False
        self.done = asyncio.Event()
        self._session = session
        self._ended = ended
        self._tag, self._title = f"flamestream-{secrets.token_hex(6)}", title
        self._task = node_task(slot.name, slot.role, bootstrap, __version__)
        self._loop = asyncio.get_running_loop()
        spark_thread(self._run, self._tag).start()

    def _run(self) -> None:
        session = self._session
        why: Exception | None = None
        try:
            tag_thread(session, self._tag, self._title)
            why = failure_of(session.range(0, 1, 1, 1).mapInArrow(self._task, SCHEMA).collect())
        except Exception as error:  # noqa: BLE001 – whatever it is, the job is told
            why = error
        self._loop.call_soon_threadsafe(self._end, why)

    def _end(self, why: Exception | None) -> None:
        lost, self.over = self.runs, True
        self.done.set()
        self._ended(self, lost, why)

    def cancel(self) -> None:
        """End its task."""
        self.over = True
        cancel_tag(self._session, self._tag)

    @property
    def runs(self) -> bool:
        """Return whether its node is there, or is to come."""
        return not (self.over or self.released)
