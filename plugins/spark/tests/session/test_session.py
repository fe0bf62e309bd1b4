"""Sessions: which one is used, how long it lives, where it listens."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flamestream_spark.session.session import settings_of

PROGRAM = """
from flamestream_spark.session.session import active, session

with session("local[1]", {"spark.app.name": "tests"}) as first:
    with session("local[2]") as second:
        assert second is first, "one is there"
    assert first.range(3).count() == 3, "it is still used"
    assert first.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert first.conf.get("spark.app.name") == "tests"
assert active() is None, "nobody uses it any longer"
with session("local[1]") as third:
    assert third.range(4).count() == 4
print("well")
"""


@pytest.mark.timeout(300)
def test_a_session_lives_as_long_as_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "well\n", done.stderr


def test_local_modes_listen_on_loopback_and_are_quiet() -> None:
    local = settings_of("local[4]", {"spark.ui.enabled": "true"})
    assert (local["spark.driver.host"], local["spark.driver.bindAddress"]) == ("127.0.0.1", "127.0.0.1")
    assert local["spark.ui.enabled"] == "true", "what is given has the last word"
    assert settings_of("spark://host:7077", {}) == {}
