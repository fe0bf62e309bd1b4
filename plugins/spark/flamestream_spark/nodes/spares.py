"""Spare executors, made ready for Python.

The first Python task on an executor takes seconds more than those after it.

Java loads what such a task needs, and the process is started that those of tasks are forked from. If an executor is
lost, the node that takes the place of the one on it does not wait for that.
"""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from flamestream_spark.session.session import cancel_tag, spark_thread, tag_thread

_SCHEMA: Final = "node string"


class Spares:
    """Tasks that do nothing, where there is room.

    Args:
        session: The session of Spark.
        title: Description of the tasks on Spark's pages.
    """

    def __init__(self, session: Any, title: str) -> None:
        self._session, self._title = session, title
        self._tag = f"flamestream-{secrets.token_hex(6)}"
        self._thread: threading.Thread | None = None

    def make_ready(self, count: int) -> None:
        """Start this many tasks as soon as there is room.

        An executor may be starting in the place of a lost one.
        """
        if count > 0 and (self._thread is None or not self._thread.is_alive()):
            self._thread = spark_thread(self._run, self._tag, count)
            self._thread.start()

    def _run(self, count: int) -> None:
        from pyspark.cloudpickle import register_pickle_by_value

        register_pickle_by_value(sys.modules[__name__])
        with suppress(Exception):  # nothing depends on it
            tag_thread(self._session, self._tag, self._title)
            self._session.range(0, count, 1, count).mapInArrow(_nothing, _SCHEMA).collect()

    def stop(self) -> None:
        """Wait for room no longer."""
        if self._thread is not None and self._thread.is_alive():
            cancel_tag(self._session, self._tag)


def _nothing(rows: Iterator[Any]) -> Iterable[Any]:
    """Import the modules of a node, and give no row: the task."""
    for _ in rows:
        pass
    with suppress(ImportError):
        import flamestream_spark.nodes.node  # noqa: F401
    return iter(())
