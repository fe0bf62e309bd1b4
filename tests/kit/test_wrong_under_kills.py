"""Sinks that keep their laws until a process is killed: the kit's killing must find them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flamecore.abc.sink import Guarantee, Sink
from flamecore.abc.source import EdgeContext
from flamecore.model.meta import MIN_TIME
from flamecore.testing.checks.edges import SinkTests
from flamecore.testing.checks.sink_state import check_sink_survives_kills
from flamecore.testing.checks.sources import EdgeBroken


class RightSink(Sink):
    """Everything is in one file, replaced in one step."""

    name = "right"

    def __init__(self, file: Path) -> None:
        super().__init__(None, EdgeContext("sink"))
        self.file = file
        self.time = MIN_TIME
        self.values: list[str] = []

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    async def open(self) -> int:
        if self.file.exists():
            self.time, self.values = json.loads(self.file.read_text())
        return self.time

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        self.time = time
        self.values += payloads
        self.save()

    def save(self) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps([self.time, self.values]))
        new.replace(self.file)


class KeepsTheTimeApart(RightSink):
    """Payloads first, the time some moments later: a kill between the two writes them twice."""

    async def open(self) -> int:
        await super().open()
        if (time := self.file.with_suffix(".time")).exists():
            self.time = int(time.read_text())
        return self.time

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        await super().write(time, payloads)
        await asyncio.sleep(0.05)
        self.file.with_suffix(".time").write_text(str(time))


class SavesNowAndThen(RightSink):
    """A sink that loses batches which it has reported as written."""

    count = 0

    def save(self) -> None:
        self.count += 1
        if self.count % 5 == 0:
            super().save()


class CannotGoOn(RightSink):
    async def open(self) -> int:
        assert not self.file.exists(), "there is something already"
        return MIN_TIME


class TestRight(SinkTests):
    kind: ClassVar[type[RightSink]] = RightSink

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> Sink:
        return self.kind(folder / "out")

    def read_back(self, folder: Path) -> Sequence[Any]:
        values: list[str] = json.loads((folder / "out").read_text())[1]
        return values

    # Only what takes a kill is asked of these.
    test_delivers = test_is_atomic = test_resumes = test_continues = test_syncs = test_is_fenced = None  # type: ignore[assignment]


class ApartTests(TestRight):
    kind = KeepsTheTimeApart


class NowAndThenTests(TestRight):
    kind = SavesNowAndThen


class CannotGoOnTests(TestRight):
    kind = CannotGoOn


@pytest.mark.parametrize("wrong", [ApartTests, NowAndThenTests, CannotGoOnTests])
def test_a_sink_that_does_not_survive_kills_is_caught(wrong: type[TestRight], tmp_path: Path) -> None:
    with pytest.raises(EdgeBroken) as caught:
        check_sink_survives_kills(wrong(), tmp_path)
    assert caught.value.law == "killed"
    if wrong is CannotGoOnTests:
        assert "there is something already" in str(caught.value)
