"""Sessions of Spark: the active one, or one made of a configuration.

A session that was active before is never stopped.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, NamedTuple

from flamecore.errors import ConfigError, MissingDependencyError
from flamecore.suggest import install_command
from flamecore.toolkit.closing import leave_to_library
from flamestream_spark.compat import tags_of
from flamestream_spark.session.java import find_java, started_quietly
from flamestream_spark.session.master import (
    given_to_spark,
    has_own_logging,
    is_below_task,
    is_remote,
    is_submitted,
    master_of,
)
from flamestream_spark.session.messages import gist

HOST: Final = "spark"
"""The host that data of Spark is at home on."""

_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_QUIET: Final = {"spark.ui.showConsoleProgress": "false"}
_NO_PAGES: Final = {"spark.ui.enabled": "false"}
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")

_SHOW_S: Final = 5.0

_WAREHOUSE: Final = "spark-warehouse"
"""Folder for managed tables that Spark makes in the working directory, whether there are any or not."""

_INHERITED: Final = ("spark.jobGroup.id", "spark.job.interruptOnCancel", "spark.job.tags", "spark.scheduler.pool")
"""Properties of a thread that say whom its jobs belong to, and who cancels them."""


class _Owner(NamedTuple):
    """The thread that jobs of Spark belong to.

    Attributes:
        properties: Its properties.
        tags: Its tags of the session.
    """

    properties: Mapping[str, str | None]
    tags: frozenset[str]


_owner: Final[ContextVar[_Owner | None]] = ContextVar("_owner", default=None)

_lock = threading.Lock()
_made: list[Any] = []
_warehouse = Path(_WAREHOUSE)
_users = 0


def active() -> Any | None:
    """Return the session that this program has, or None."""
    pyspark = _pyspark()
    try:
        return pyspark.sql.SparkSession.active()
    except pyspark.errors.PySparkRuntimeError:  # there is none
        return None


def session_here() -> Any | None:
    """Return the session that this program has, or None; nothing is imported for it."""
    return active() if "pyspark" in sys.modules else None


def check_installed() -> None:
    """Make sure that there is what a session needs, without making one.

    Raises:
        MissingDependencyError: pyspark is not installed, or there is no Java for it.
    """
    if active() is None:
        find_java()


def in_task() -> bool:
    """Return whether this process runs a task of Spark, or a node below one.

    There is no session in it, and none is made.
    """
    return is_below_task() or _pyspark().TaskContext.get() is not None


def settings_of(
    master: str, config: Mapping[str, str], given: Mapping[str, str] | None = None, *, submitted: bool = False
) -> dict[str, str]:
    """Return the configuration of a session that is made here.

    Args:
        master: Where it runs.
        config: Its configuration as the job says it.
        given: Its configuration as Spark is told otherwise; those of spark-submit come first, its defaults last.
        submitted: Whether spark-submit has given it.

    >>> settings_of("local[2]", {})["spark.driver.bindAddress"], settings_of("yarn", {"spark.x": "1"})["spark.x"]
    ('127.0.0.1', '1')
    """
    given = given or {}
    if submitted:  # the JVM runs, and its user has said how
        return {key: value for key, value in (_QUIET | dict(config)).items() if key not in given}
    ours = _QUIET | ({**_NO_PAGES, **_LOOPBACK} if master.startswith("local") else {})
    settings = {key: value for key, value in ours.items() if key not in given} | dict(config)
    said = {**given, **config}
    if not has_own_logging(said):
        options = f"{said.get(_JAVA_OPTIONS, '')} -Dlog4j2.configurationFile={_LOGGING.as_uri()}"
        settings[_JAVA_OPTIONS] = options.strip()
    return settings


@contextmanager
def session(master: str = "", config: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Use the active session, or make one and stop it when its last user is done.

    Args:
        master: Address of Spark for a new session: "local[4]", "spark://host:port", "yarn", … By default, and under
            spark-submit, that of Spark's own configuration.
        config: Its configuration; of no effect on one that is there.

    Raises:
        MissingDependencyError: pyspark is not installed, or there is no Java for it.
        ConfigError: Spark does not start with that configuration.
    """
    global _users, _warehouse
    with _lock:
        found = active()
        if found is None:
            _warehouse = Path(_WAREHOUSE).absolute()
            found = _make(master, config or {})
            _made.append(found)
        with suppress(AttributeError, ValueError):  # another maker's Connect may not say
            for place in _places_of(found):
                leave_to_library(place)
        own = any(found is one for one in _made)
        _users += own
    try:
        yield found
    finally:
        with _lock:
            _users -= own
            if own and not _users:
                _made.clear()
                with unless_gone(found):
                    if not is_gone(found):
                        _stop(found)
                with suppress(OSError):  # it holds tables, or there is none
                    _warehouse.rmdir()


def facts_of(session: Any) -> dict[str, str]:
    """Return where a session runs, and the address of its pages, if it has any."""
    facts = {"master": session.conf.get("spark.master", "?")}
    page = getattr(context_of(session), "uiWebUrl", None)
    return facts | ({"ui": page} if page else {})


def has_pages(session: Any) -> bool:
    """Return whether Spark serves its web pages.

    Over Spark Connect their address is not known, so the configuration decides.
    """
    context = context_of(session)
    if context is None:
        return str(session.conf.get("spark.ui.enabled", "true")).lower() == "true"
    return context.uiWebUrl is not None


def has_files(session: Any) -> bool:
    """Return whether Spark sends files or archives to tasks. Over Spark Connect nobody says, so there may be some."""
    context = context_of(session)
    return context is None or bool(context.listFiles or context.listArchives)


def name_of(job: str, work: str, *parts: str) -> str:
    """Return the name of what Spark does for a job, for Spark's pages.

    >>> name_of("index", "node", "worker-0"), name_of("", "feed pages")
    ('flamestream index: node worker-0', 'flamestream: feed pages')
    """
    return f"flamestream{' ' * bool(job)}{job}: {work}{' ' * bool(parts)}{', '.join(parts)}"


@contextmanager
def owned_by_thread(session: Any) -> Iterator[None]:
    """Have jobs of Spark that are begun meanwhile, on any thread, belong to the group, pool and tags of this one.

    Args:
        session: The session; None: there is none, and no job belongs to anybody.
    """
    if session is None or _owner.get() is not None:
        yield
        return
    context = context_of(session)
    held = {name: context.getLocalProperty(name) for name in _INHERITED} if context is not None else {}
    token = _owner.set(_Owner(held, tags_of(session)))
    try:
        yield
    finally:
        _owner.reset(token)


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt alone.

    PySpark's handler cancels all jobs of Spark first, so that queries and jobs of others fail; and with it asyncio
    has none of its own, which ends in order what runs.
    """
    handler = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or not str(getattr(handler, "__module__", "")).startswith("pyspark."):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def spark_thread(target: Callable[..., None], name: str, *args: Any) -> threading.Thread:
    """Return a thread, not started, whose jobs belong to the thread that this is for; see `owned_by_thread`."""
    return threading.Thread(target=copy_context().run, args=(target, *args), name=name, daemon=True)


def _enter_owner(session: Any) -> frozenset[str]:
    """Have the jobs of this thread belong to their owner; return the tags of the session that are new to it."""
    if (owner := _owner.get()) is None:
        return frozenset()
    context = context_of(session)
    if context is not None:
        for name, value in owner.properties.items():
            context.setLocalProperty(name, value)
    new = owner.tags.difference(tags_of(session))
    for tag in new:
        session.addTag(tag)
    return new


def tag_thread(session: Any, tag: str, name: str = "") -> None:
    """Tag and name the jobs that this thread has Spark run from now on, and have them belong to their owner.

    Args:
        session: The session.
        tag: The tag, for `cancel_tag`.
        name: Their name on Spark's pages; over Spark Connect it is one more tag.
    """
    _enter_owner(session)
    context = context_of(session)
    if context is None:
        session.addTag(tag)
        if name:
            session.addTag(name.replace(",", " "))  # no tag has a comma
        return
    context.addJobTag(tag)  # where there is a context, `interruptTag` does not find jobs of DataFrames (Spark 4.3)
    if name:
        context.setJobDescription(name)


@contextmanager
def named_jobs(session: Any, name: str) -> Iterator[None]:
    """Name the jobs that this thread has Spark run meanwhile, which belong to their owner.

    Both are as by `tag_thread`. Afterwards the thread is as it was.
    """
    context = context_of(session)
    if context is None:
        yield
        return
    former = {key: context.getLocalProperty(key) for key in ("spark.job.description", *_INHERITED)}
    tags = _enter_owner(session)
    context.setJobDescription(name)
    try:
        yield
    finally:
        with unless_gone(session):
            for key, value in former.items():
                context.setLocalProperty(key, value)
            for tag in tags:
                session.removeTag(tag)


def show_name(session: Any, name: str) -> None:
    """Show a name on Spark's pages, as that of a job of its own.

    Spark fixes names when a job starts.
    """
    tag = f"flamestream-{token_hex(6)}"

    def show() -> None:
        with suppress(Exception):  # it is for people, and the session may be gone
            tag_thread(session, tag, name)
            session.range(1).collect()

    thread = spark_thread(show, tag)
    thread.start()
    thread.join(_SHOW_S)
    if thread.is_alive():  # there is no slot
        cancel_tag(session, tag)


def cancel_tag(session: Any, tag: str) -> None:
    """Cancel the jobs of Spark that have a tag; if Spark has ended, so have they."""
    context = context_of(session)
    if context is None:
        session.interruptTag(tag)
        return
    with unless_gone(session):
        context.cancelJobsWithTag(tag)


@contextmanager
def unless_gone(session: Any) -> Iterator[None]:
    """Ignore errors of a block that only tidies up, if Spark has ended."""
    try:
        yield
    except Exception:
        if not is_gone(session):
            raise


def is_gone(session: Any) -> bool:
    """Return whether Spark has ended: its Java driver is gone, or its session stopped."""
    context = context_of(session)
    if context is None:
        return bool(getattr(session, "is_stopped", False))
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001 – however Python says that nobody is there
        return True


def context_of(session: Any) -> Any | None:
    """Return the context of a session of this process; None over Spark Connect."""
    return getattr(session, "sparkContext", None)


def _places_of(session: Any) -> Iterator[int | str]:
    """Yield where this process speaks to Spark: it keeps connections for more calls, and for sums from its tasks."""
    context = context_of(session)
    if context is None:
        yield int(session.client._builder.endpoint.rpartition(":")[2])
        return
    yield int(context._gateway.gateway_parameters.port)
    address = context._accumulatorServer.server_address
    yield address[1] if isinstance(address, tuple) else address


def _make(said: str, config: Mapping[str, str]) -> Any:
    pyspark = _pyspark()
    builder = pyspark.sql.SparkSession.builder
    if is_remote() and not said:
        return builder.getOrCreate()
    submitted = is_submitted()
    given, master = given_to_spark(), master_of(said)
    if not submitted:  # otherwise both are spark-submit's to say
        builder = builder.master(master)
        if "spark.app.name" not in given:
            builder = builder.appName("flamestream")
    for key, value in settings_of(master, config, given, submitted=submitted).items():
        builder = builder.config(key, value)
    with _environment(master, {**given, **config}, submitted=submitted):
        try:
            return builder.getOrCreate()
        except Exception as error:
            words = gist(str(error)) or type(error).__name__
            raise ConfigError(
                f"Spark does not start with master {master!r}: {words}",
                hint="Is the master there? Spark's own words are above, on standard error. In one process: local[2].",
                path="master",
            ) from error


def _stop(session: Any) -> None:
    """Stop a session without a word about what still runs.

    Tasks and executors that end meanwhile find neither the scheduler nor each other, in ways that depend on when each
    message comes. Spark logs each as an error, and goes on. A user's own logging stays as it is.
    """
    context = context_of(session)
    if context is not None and _LOGGING.as_uri() in context.getConf().get(_JAVA_OPTIONS, ""):
        context.setLogLevel("OFF")
    session.stop()


@contextmanager
def _environment(master: str, config: Mapping[str, str], *, submitted: bool) -> Iterator[None]:
    """Set the environment that PySpark reads while it starts a session."""
    local = master.startswith("local")
    python = None
    if local or not submitted:
        # Executors on this machine are to find the packages that this process has. PySpark looks at the environment.
        python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["PYSPARK_PYTHON"] = config.get("spark.pyspark.python", python)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        if submitted:
            yield
        else:
            with started_quietly():
                yield
    finally:
        if python is not None:
            os.environ["PYSPARK_PYTHON"] = python


def _pyspark() -> Any:
    try:
        import pandas  # noqa: F401 - without it Spark refuses Arrow, once everything runs
        import pyspark
        import pyspark.errors
        import pyspark.sql
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"Spark needs module {error.name!r}, which is not installed",
            hint=f"Run: {install_command('flamestream', 'spark')}",
            kind="source",
            name="spark",
            distribution="flamestream",
            module=error.name,
            extra="spark",
        ) from error
    return pyspark
