"""The watch on rounds: a thread that ends the round that lasts, and ends with the last worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import flamecore as fc
from flamecore.errors import CallLimitError, OperationError
from flamecore.runtime.config.flow_loader import load_flow
from flamecore.runtime.operators.rounds import Rounds
from flamecore.runtime.tasks import watch as watching_module
from flamecore.runtime.tasks.watch import ThreadWatch, end_process_by, told_of_calls, watch


def until_over(rounds: Rounds) -> None:
    """Be at work until the round is over, as a function that takes long."""
    while not rounds.is_over:
        time.sleep(0.001)


def watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "flamestream-rounds"]


def test_a_round_ends_behind_the_call_that_takes_long() -> None:
    async def main() -> None:
        eye, rounds, seen = watch(), Rounds(), []
        try:
            for _ in range(3):  # also once the thread has slept, and in each round anew
                eye.begin(rounds)
                assert not rounds.is_over
                for value in rounds.iterate([1, 2, 3]):
                    seen.append(value)
                    until_over(rounds)
                rounds.finish()
                eye.end()
            assert seen == [1, 1, 1]
        finally:
            eye.release()

    asyncio.run(main())


def test_a_call_that_lasts_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function that the engine has called is named, and the line that it is at, wherever that is."""
    monkeypatch.setattr(watching_module, "_TOLD_S", 0.01)
    told: list[MutableMapping[str, Any]] = []

    def words() -> list[MutableMapping[str, Any]]:
        # On a busy machine what the engine does beside it may last as long, and is told of, too.
        return [word for word in [*told] if word.get("function", "").endswith("lasting")]

    def wait_for_a_word() -> None:
        while len(words()) < 2:
            time.sleep(0.001)

    def lasting(value: int) -> int:
        wait_for_a_word()
        return value

    flow = fc.Flow("lasting")
    flow.source("numbers", int).map(lasting).sink("out")
    with capture_logs() as logged:
        told = logged
        assert flow.run({"numbers": [1, 2]})["out"] == [1, 2]
    first = words()[0]
    assert (first["event"], first["pid"]) == ("call.lasted", os.getpid())
    assert first["at"].startswith(f"{__file__}:")
    assert first["lasted_s"] >= 0


def endless(value: int) -> int:
    while value == 2:
        time.sleep(0.001)
    return value


def test_a_call_beyond_its_limit_fails_as_if_the_function_had_raised() -> None:
    flow = fc.Flow("endless")
    flow.source("numbers", int).map(endless).sink("out")
    with pytest.raises(OperationError, match="failed: the call has lasted for more than") as raised:
        flow.run({"numbers": [1, 2, 3]}, settings={"job.call_limit_s": 0.05})
    assert raised.value.record == "2"
    assert isinstance(raised.value.cause, CallLimitError)
    assert f"{__file__}:" in str(raised.value)


def test_a_record_whose_call_is_beyond_its_limit_can_be_left_out() -> None:
    flow = fc.Flow("endless")
    flow.source("numbers", int).map(endless).sink("out")
    settings = {"job.call_limit_s": 0.05, "job.on_error": "skip"}
    assert flow.run({"numbers": [1, 2, 3]}, settings=settings)["out"] == [1, 3]


def test_a_call_that_no_error_reaches_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching_module, "_GRACE_S", 0.0)
    told: list[str] = []

    def deaf(value: int) -> int:
        while not told:
            with contextlib.suppress(CallLimitError):
                while not told:
                    time.sleep(0.001)
        return value

    flow = fc.Flow("deaf")
    flow.source("numbers", int).map(deaf).sink("out")
    end_process_by(told.append)
    try:
        flow.run({"numbers": [7]}, settings={"job.call_limit_s": 0.05})
    finally:
        end_process_by(None)
    assert "deaf has lasted for more than job.call_limit_s = 0.05 s, and does not end" in told[0]
    assert "record    7\n" in told[0]
    assert f"at        {__file__}:" in told[0]


def test_a_short_round_is_not_ended_and_none_is_without_one() -> None:
    async def main() -> None:
        eye, rounds = watch(), Rounds()
        assert watch() is eye
        eye.begin(rounds)
        eye.end()
        await asyncio.sleep(0.2)
        assert not rounds.is_over
        eye.release()
        assert watching()
        eye.release()
        assert not watching()

    asyncio.run(main())


def test_a_watch_that_sleeps_is_woken_by_work() -> None:
    async def main() -> None:
        eye, rounds = watch(), Rounds()
        assert isinstance(eye, ThreadWatch)
        try:
            eye.begin(rounds)
            eye.end()
            while not eye.asleep:
                await asyncio.sleep(0.01)
            eye.begin(rounds)
            until_over(rounds)
            eye.end()
        finally:
            eye.release()

    asyncio.run(main())


def test_the_line_of_a_long_import_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []

    class Log:
        def warning(self, event: str, **facts: Any) -> None:
            told.append({"event": event, **facts})
            (tmp_path / "go").touch()

    monkeypatch.setattr(watching_module, "_TOLD_S", 0.01)
    monkeypatch.setattr(watching_module, "logger", Log)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    lines = [
        "import time",
        "from pathlib import Path",
        "import flamecore as fc",
        "def wait():",
        f"    while not Path({str(tmp_path / 'go')!r}).exists():",
        "        time.sleep(0.001)",
        "wait()",
        'flow = fc.Flow("late")',
    ]
    (tmp_path / "late_flow.py").write_text("\n".join(lines))
    with told_of_calls():
        assert load_flow("late_flow.py", tmp_path).name == "late"
    assert told[0]["event"] == "call.lasted"
    assert told[0]["function"] == "<module>"
    assert told[0]["pid"] == os.getpid()
