"""Sessions of Spark: the one that is active, or one made of a configuration. One that was active is never stopped."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from flamecore.errors import ConfigError, MissingDependencyError
from flamestream_spark.session.java import find_java
from flamestream_spark.session.messages import gist

DEFAULT_MASTER: Final = "local[*]"
HOST: Final = "spark"
"""The host that data of Spark is at home on."""
BELOW_TASK: Final = "FLAMESTREAM_BELOW_TASK"
"""Set in the environment of processes that are started by a task of Spark."""

_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}

_lock = threading.Lock()
_made: list[Any] = []
_users = 0


def active() -> Any | None:
    """The session that this program has, or None."""
    pyspark = _pyspark()
    try:
        return pyspark.sql.SparkSession.active()
    except pyspark.errors.PySparkRuntimeError:  # there is none
        return None


def check_installed() -> None:
    """Make sure that there is what a session needs, without making one.

    Raises:
        MissingDependencyError: pyspark is not installed, or there is no Java for it.
    """
    if active() is None:
        find_java()


def in_task() -> bool:
    """Whether this process runs a task of Spark, or a node below one: there is no session in it, and none is made."""
    return BELOW_TASK in os.environ or _pyspark().TaskContext.get() is not None


def settings_of(master: str, config: Mapping[str, str]) -> dict[str, str]:
    """The configuration of a session that is made here: what is given, and what local modes need.

    >>> settings_of("local[2]", {})["spark.driver.bindAddress"], settings_of("yarn", {"spark.x": "1"})
    ('127.0.0.1', {'spark.x': '1'})
    """
    local = master.startswith("local")
    return ({**_QUIET, **_LOOPBACK} if local else {}) | dict(config)


@contextmanager
def session(master: str = DEFAULT_MASTER, config: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Use the active session; without one, make one, and stop it when the last that uses it is done.

    Args:
        master: Where a session that is made runs: "local[4]", "spark://host:port", "yarn", …
        config: Its configuration; of no effect on one that is there.

    Raises:
        MissingDependencyError: pyspark is not installed, or there is no Java for it.
        ConfigError: Spark does not start with that configuration.
    """
    global _users
    with _lock:
        found = active()
        if found is None:
            found = _make(master, config or {})
            _made.append(found)
        own = any(found is one for one in _made)
        _users += own
    try:
        yield found
    finally:
        with _lock:
            _users -= own
            if own and not _users:
                _made.clear()
                found.stop()


def facts_of(session: Any) -> dict[str, str]:
    """Where a session runs, and where its pages are, if it has any."""
    facts = {"master": session.conf.get("spark.master", "?")}
    page = getattr(_context(session), "uiWebUrl", None)
    return facts | ({"ui": page} if page else {})


def tag_thread(session: Any, tag: str) -> None:
    """Mark what this thread has Spark do from now on, for `cancel_tag`."""
    context = _context(session)
    if context is None:
        session.addTag(tag)
    else:  # where there is one, `interruptTag` does not find jobs of DataFrames (Spark 4.3)
        context.addJobTag(tag)


def cancel_tag(session: Any, tag: str) -> None:
    """Have Spark end what is marked."""
    context = _context(session)
    if context is None:
        session.interruptTag(tag)
    else:
        context.cancelJobsWithTag(tag)


def _context(session: Any) -> Any | None:
    """The context of a session of this process's own; None over Spark Connect."""
    return getattr(session, "sparkContext", None)


def _make(master: str, config: Mapping[str, str]) -> Any:
    pyspark = _pyspark()
    home = find_java()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    # Executors on this machine are to find the packages that this process has. PySpark looks at the environment alone.
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_PYTHON"] = config.get("spark.pyspark.python", python)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = pyspark.sql.SparkSession.builder.appName("flamestream").master(master)
    for key, value in settings_of(master, config).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        said = gist(str(error)) or type(error).__name__
        raise ConfigError(
            f"Spark does not start with master {master!r}: {said}",
            hint="Is the master there? Spark's own words are above, on standard error. In one process: local[2].",
            path="master",
        ) from error
    finally:
        os.environ["PYSPARK_PYTHON"] = python


def _pyspark() -> Any:
    try:
        import pyspark
        import pyspark.errors
        import pyspark.sql
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"Spark needs module {error.name!r}, which is not installed",
            hint="Run: pip install 'flamestream[spark]'",
            kind="source",
            name="spark",
            distribution="flamestream",
            module=error.name,
            extra="spark",
        ) from error
    return pyspark
