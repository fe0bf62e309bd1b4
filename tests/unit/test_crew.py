"""Processes of a job: what is asked of those who start them, and what they say."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

import pytest

from flamecore.crew import Crew
from flamecore.epoch import FaultError
from flamecore.errors import JobError
from flamecore.hosting import Seat
from flamecore.members import Members
from flamecore.supervisor import _pass_on


class Full:
    """A host that has no room at first."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.full = True

    def running(self) -> list[str]:
        return self.started

    async def start(self, seats: Sequence[Seat], bootstrap: Mapping[str, Any]) -> None:
        for seat in seats:
            if self.full and seat.name == "worker-1":
                raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
            self.started.append(seat.name)


def test_processes_that_cannot_be_started_now_are_a_fault_and_asked_for_again() -> None:
    async def check() -> None:
        host: Any = Full()
        nobody: Any = None
        crew = Crew(Members("job"), host, nobody, {})
        with pytest.raises(FaultError) as caught:
            await crew.fill({"worker": 3})
        assert isinstance(caught.value.error, JobError)
        assert "worker-0, worker-1, worker-2 cannot be started" in caught.value.error.what
        host.full = False
        await crew.fill({"worker": 3})
        assert host.started == ["worker-0", "worker-1.1", "worker-2.1"]

    asyncio.run(check())


class Gone(StringIO):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_what_a_process_says_is_read_on_where_nobody_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())

    async def check() -> None:
        words, lines = asyncio.StreamReader(), deque[str]()
        words.feed_data(b"one\ntwo\nthree")
        words.feed_eof()
        await _pass_on("worker-0", words, lines)
        assert [*lines] == ["one", "two", "three"]

    asyncio.run(check())
