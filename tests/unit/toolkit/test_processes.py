"""Tests of what the system says of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from flamecore.testing.progress import Patience
from flamecore.toolkit.processes import state_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the state of a process is in /proc")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen(["sleep", "60"])
    yield made
    made.kill()
    made.wait()


def becomes(pid: int, state: str | None) -> bool:
    """Return whether a process comes to be in a state."""
    limit = Patience(20)
    while state_of(pid) != state:
        if limit.passed():
            return False
    return True


def test_this_process_runs() -> None:
    assert state_of(os.getpid()) == "running"


def test_a_process_runs_is_stopped_and_is_gone_before_anybody_has_waited_for_it(
    process: subprocess.Popen[bytes],
) -> None:
    assert becomes(process.pid, "running")
    process.send_signal(signal.SIGSTOP)
    assert becomes(process.pid, "stopped")
    process.kill()
    assert becomes(process.pid, None)
    process.wait()
    assert state_of(process.pid) is None
