"""Sessions: which one is used, how long it lives, where it listens."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from flamestream_spark.session.session import cancel_tag, settings_of

PROGRAM = """
from flamestream_spark.session.master import driver_address
from flamestream_spark.session.session import active, session

with session("local[1]", {"spark.app.name": "tests"}) as first:
    with session("local[2]") as second:
        assert second is first, "one is there"
    assert first.range(3).count() == 3, "it is still used"
    assert first.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert first.conf.get("spark.app.name") == "tests"
    assert driver_address({"spark.driver.host": "of the job"}) == ("127.0.0.1", "127.0.0.1"), "the session is there"
assert active() is None, "nobody uses it any longer"
with session("local[1]") as third:
    assert third.range(4).count() == 4
print("well")
"""


def test_a_session_lives_as_long_as_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout == "well\n", done.stderr


def test_local_modes_listen_on_loopback_and_are_quiet() -> None:
    local = settings_of("local[4]", {"spark.ui.enabled": "true"})
    assert (local["spark.driver.host"], local["spark.driver.bindAddress"]) == ("127.0.0.1", "127.0.0.1")
    assert local["spark.ui.enabled"] == "true", "what is given has the last word"
    assert "spark.driver.host" not in settings_of("spark://host:7077", {})


def test_every_session_that_is_made_is_quiet_unless_somebody_says_how_to_log() -> None:
    for master in ("local[4]", "yarn"):
        made = settings_of(master, {}, {"spark.driver.extraJavaOptions": "-Da=b"})
        assert made["spark.ui.showConsoleProgress"] == "false"
        assert made["spark.driver.extraJavaOptions"].startswith("-Da=b -Dlog4j2.configurationFile=file:///")
        own = {"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=mine.xml"}
        assert "spark.driver.extraJavaOptions" not in settings_of(master, {}, own)
        assert settings_of(master, own)["spark.driver.extraJavaOptions"] == "-Dlog4j2.configurationFile=mine.xml"


def test_defaults_of_spark_are_not_overridden() -> None:
    given = {"spark.ui.enabled": "true", "spark.driver.host": "10.0.0.1", "spark.x": "1"}
    assert not given.keys() & settings_of("local[2]", {}, given).keys()
    assert settings_of("local[2]", {"spark.x": "2"}, given)["spark.x"] == "2", "the job's own settings come first"


def test_settings_of_spark_submit_come_before_those_of_the_job() -> None:
    made = settings_of("local[2]", {"spark.x": "2", "spark.y": "2"}, {"spark.x": "1"}, submitted=True)
    assert made == {"spark.y": "2", "spark.ui.showConsoleProgress": "false"}


class Context:
    """A context of Spark that refuses to cancel.

    Args:
        there: Whether its Java answers.
    """

    def __init__(self, *, there: bool) -> None:
        self._there = there
        self._jsc = SimpleNamespace(sc=lambda: self)

    def cancelJobsWithTag(self, tag: str) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    def isStopped(self) -> bool:
        if not self._there:
            raise ConnectionRefusedError(111, "Connection refused")
        return False


def test_nothing_is_left_to_cancel_where_java_is_gone() -> None:
    gone: Any = SimpleNamespace(sparkContext=Context(there=False))
    cancel_tag(gone, "feed")
    there: Any = SimpleNamespace(sparkContext=Context(there=True))
    with pytest.raises(ConnectionRefusedError):
        cancel_tag(there, "feed")
