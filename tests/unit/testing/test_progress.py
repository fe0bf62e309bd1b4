"""Limits without progress: work of this process and of its children extends them, waiting does not."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from flamecore.testing import progress
from flamecore.testing.progress import Patience, cpu_s, patience

BUSY = "while True: pass"


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Return the times of processors by process; "own" is that of this one."""
    values = {"own": 0.0, "other": 0.0}
    monkeypatch.setattr(progress, "_own_s", lambda: values["own"])
    monkeypatch.setattr(progress, "cpu_s", values.copy)
    return values


class Clock:
    """The time, which stands still."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_without_progress_passes(used: dict[str, float]) -> None:
    clock = Clock()
    limit = Patience(10, clock)
    clock.now = 109
    assert (limit.left_s, limit.passed()) == (1, False)
    clock.now = 110
    assert (limit.passed(), limit.left_s) == (False, 10), "other processes have not been looked at before"
    clock.now = 120
    assert (limit.left_s, limit.passed()) == (0, True)


def test_progress_of_this_process_begins_the_limit_anew(used: dict[str, float]) -> None:
    clock = Clock()
    limit = Patience(10, clock)
    for _ in range(5):
        clock.now += 10
        used["own"] += 0.3
        assert (limit.passed(), limit.left_s) == (False, 10)


def test_progress_of_others_begins_the_limit_anew(used: dict[str, float]) -> None:
    clock = Clock()
    limit = Patience(10, clock)
    for _ in range(5):
        clock.now += 10
        used["other"] += 0.3
        assert not limit.passed()
    clock.now += 10
    used["other"] += 0.1
    assert limit.passed(), "a tenth of a second in ten is what processes use that wait"


def test_the_end_of_a_process_is_progress_however_long_it_has_worked(used: dict[str, float]) -> None:
    clock = Clock()
    limit = Patience(10, clock)
    used["third"] = 9
    clock.now = 110
    assert not limit.passed()
    del used["third"]
    used["other"] += 9.1  # together as much as before
    clock.now = 120
    assert not limit.passed()
    clock.now = 130
    assert limit.passed()


def test_progress_without_an_end_passes_too(used: dict[str, float]) -> None:
    clock = Clock()
    limit, looks = Patience(10, clock), 0
    while not limit.passed():
        clock.now += limit.left_s
        used["own"] += 1
        looks += 1
    assert looks == progress.MOST


def test_processes_of_processes_are_counted() -> None:
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
    before = {*cpu_s()}
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as child:
        try:
            while sum(time_s for process, time_s in cpu_s().items() if process not in before) < 0.5:
                assert child.poll() is None
        finally:
            subprocess.run(["pkill", "-KILL", "-s", str(child.pid)], check=True)


def test_a_block_that_waits_in_vain_ends() -> None:
    async def run() -> None:
        async with patience(0.2):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        asyncio.run(run())


def test_a_block_that_ends_leaves_no_limit_behind() -> None:
    async def run() -> str:
        async with patience(0.05):
            pass
        await asyncio.sleep(0.2)
        return "done"

    assert asyncio.run(run()) == "done"
