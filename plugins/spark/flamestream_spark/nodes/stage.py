"""The barrier stage whose tasks are nodes, and which of its tasks are those that count.

Spark starts all tasks of the stage at once, or none. If one is lost it starts all of them anew, and kills those of the
former attempt, which may live on for seconds beside the new ones. Task ids grow from attempt to attempt: the newest
task of a slot is the one that counts, and the first task of a new attempt means the end of all former ones.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flamecore import __version__
from flamecore.abc.host import NodeSlot
from flamestream_spark.nodes.task import SCHEMA, node_task
from flamestream_spark.session.session import cancel_tag, tag_thread


class Stage:
    """One run of a barrier stage, in a thread of its own.

    Args:
        session: Of Spark.
        slots: The node of each task.
        bootstrap: What a node must know to join.
        ended: Told in the event loop's thread when it has ended: (this stage, names of the
            nodes that were running, why; None: every node has ended well).
        name: What Spark's pages show of it.

    Attributes:
        over: It has ended, or was told to.
        names: Of its nodes.
    """

    def __init__(
        self,
        session: Any,
        slots: Sequence[NodeSlot],
        bootstrap: Mapping[str, Any],
        ended: Callable[[Stage, list[str], Exception | None], None],
        name: str = "",
    ) -> None:
        self.names = [slot.name for slot in slots]
        self.over = False
        self.done = asyncio.Event()
        self._session = session
        self._ended = ended
        self._tag, self._name = f"flamestream-{secrets.token_hex(6)}", name
        self._task = node_task([(slot.name, slot.role) for slot in slots], bootstrap, __version__)
        self._loop = asyncio.get_running_loop()
        self._attempts: dict[str, int] = {}
        self._floor = -1
        self._released: set[str] = set()
        threading.Thread(target=self._run, name=self._tag, daemon=True).start()

    def _run(self) -> None:
        session, count = self._session, len(self.names)
        why: Exception | None = None
        try:
            tag_thread(session, self._tag, self._name)
            rows = session.range(0, count, 1, count).mapInArrow(self._task, SCHEMA, barrier=True)
            # What is behind the shuffle is another stage: Spark gives up a barrier stage only if it is the last.
            rows.repartition(1).collect()
        except Exception as error:  # noqa: BLE001 – whatever it is, the job is told
            why = error
        self._loop.call_soon_threadsafe(self._end, why)

    def _end(self, why: Exception | None) -> None:
        names = self.running()
        self.over = True
        self.done.set()
        self._ended(self, names, why)

    def cancel(self) -> None:
        """End all its tasks."""
        self.over = True
        cancel_tag(self._session, self._tag)

    def running(self) -> list[str]:
        """Return the names of its nodes that are there, or are to come, or come again."""
        return [] if self.over else [name for name in self.names if name not in self._released]

    def release(self, name: str) -> None:
        """Release a node that is not needed any more.

        If Spark starts the stage again, the node is not let in.
        """
        self._released.add(name)

    def came(self, name: str, attempt: int) -> set[str] | None:
        """Note that a node has joined; arguments and result as `Host.came`."""
        attempts = self._attempts
        if self.over or name in self._released or attempt <= max(self._floor, attempts.get(name, -1)):
            return None
        over: set[str] = set()
        if len(attempts) == len(self.names) and attempt > (newest := max(attempts.values())):
            over, self._floor = set(attempts) - {name}, newest
            attempts.clear()
        attempts[name] = attempt
        return over
