"""Master and configuration of Spark, as far as known before there is a session.

Spark itself takes such words from spark-submit, from `PYSPARK_SUBMIT_ARGS` and from its `spark-defaults.conf`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

ALONE: Final = "local[*]"
"""The master where nobody names one."""

BELOW_TASK: Final = "FLAMESTREAM_BELOW_TASK"
"""Set in the environment of processes that are started by a task of Spark."""

_MASTER: Final = "spark.master"
_HOST: Final = "spark.driver.host"
_BIND: Final = "spark.driver.bindAddress"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_ENTRY: Final = re.compile(r"\s*(?P<key>[^#\s=:][^\s=:]*)[\s=:]\s*(?P<value>.*?)\s*")


def has_workers(master: str) -> bool:
    """Return whether flows of a program run on Spark's workers by default: on a cluster, and not where Spark is local.

    >>> [has_workers(master) for master in ("local[4]", "local-cluster[2,1,1024]", "spark://127.0.0.1:7077", "yarn")]
    [False, False, True, True]
    """
    return not master.startswith("local")


def is_below_task() -> bool:
    """Return whether this process was started by a task of Spark."""
    return BELOW_TASK in os.environ


def is_submitted() -> bool:
    """Return whether this program was started by spark-submit, whose JVM it has then."""
    return _SUBMITTED in os.environ


def is_remote() -> bool:
    """Return whether the environment names a server of Spark Connect."""
    return bool(os.environ.get("SPARK_REMOTE"))


def given_to_spark() -> Mapping[str, str]:
    """Return the configuration that Spark gets from elsewhere.

    It comes from spark-submit, or from the environment and the defaults of Spark.
    """
    if is_submitted():
        from pyspark import SparkConf, SparkContext

        context: Any = SparkContext
        context._ensure_initialized()
        return dict(SparkConf().getAll())
    return {**_defaults(), **_arguments(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))}


def master_of(said: str) -> str:
    """Return the master of the session that there is, or that is made.

    It is that of the active session, else that of spark-submit, else what is said, else that of Spark's defaults.

    Args:
        said: In the job's configuration; empty: nothing.
    """
    return _said(_MASTER, said, os.environ.get("SPARK_REMOTE", "")) or ALONE


def driver_address(config: Mapping[str, str]) -> tuple[str, str]:
    """Return the host that Spark is told to have its driver reached at, and the one to listen at.

    Each is empty if nothing is said of it. The order is that of `master_of`. A session of Spark Connect has its driver
    elsewhere, and says nothing of this process.

    Args:
        config: In the job's configuration.
    """
    host, bind = (_said(name, config.get(name, "")) for name in (_HOST, _BIND))
    return host, bind


def _said(name: str, said: str, remote: str = "") -> str:
    """Return a setting: of the session that there is, else of spark-submit, the job, or Spark's defaults."""
    if (found := _of_session(name)) is not None:
        return found
    if is_submitted():
        return given_to_spark().get(name, said)
    return said or remote or given_to_spark().get(name, "")


def _of_session(name: str) -> str | None:
    """Return a setting of the session, "" if it has none; None: there is no session that says its master."""
    if "pyspark.sql" not in sys.modules:  # then there is none, and Spark need not be installed
        return None
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.active()
        if not (master := str(session.conf.get(_MASTER, ""))):
            return None
        if name == _MASTER:
            return master
        return str(session.conf.get(name, "")) if getattr(session, "sparkContext", None) is not None else ""
    except Exception:  # noqa: BLE001 - there is none, or it has been stopped
        return None


def _arguments(text: str) -> dict[str, str]:
    """Return what the arguments of spark-submit configure.

    >>> _arguments("--master yarn --conf spark.x=1 pyspark-shell")
    {'spark.master': 'yarn', 'spark.x': '1'}
    """
    found: dict[str, str] = {}
    words = shlex.split(text)
    for place, word in enumerate(words):
        after = words[place + 1] if place + 1 < len(words) else ""
        option, _, value = word.partition("=")
        if option == "--master":
            found[_MASTER] = value or after
        elif option in ("--conf", "-c"):
            key, _, found_value = (value or after).partition("=")
            found[key] = found_value
    return found


def _defaults() -> dict[str, str]:
    """Return what `spark-defaults.conf` says, a file of properties as Java has them."""
    found: dict[str, str] = {}
    with suppress(ImportError, OSError, UnicodeDecodeError):  # without PySpark there are none
        for line in (_conf_folder() / "spark-defaults.conf").read_text("utf-8").splitlines():
            if entry := _ENTRY.fullmatch(line):
                found[entry["key"]] = entry["value"]
    return found


def has_own_logging(given: Mapping[str, str]) -> bool:
    """Return whether the logging of Spark is configured."""
    options = given.get("spark.driver.extraJavaOptions", "") + os.environ.get("SPARK_SUBMIT_OPTS", "")
    return "log4j" in options or (_conf_folder() / "log4j2.properties").is_file()


def _conf_folder() -> Path:
    if folder := os.environ.get("SPARK_CONF_DIR"):
        return Path(folder)
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home()) / "conf"
