"""Output of an earlier run, which is replaced once there is another one."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.sink import Guarantee, Sink, would_replace
from flamecore.abc.source import EdgeContext
from flamecore.errors import OperationError, SinkError
from flamecore.model.meta import MIN_TIME
from flamecore.runtime.engine.planning import open_sinks

Read = Callable[[], Sequence[str]]


def jsonl(folder: Path) -> tuple[dict[str, Any], Read]:
    path = folder / "out.jsonl"
    return {"sink.out.use": "jsonl", "sink.out.path": str(path)}, lambda: path.read_text().split()


def csv(folder: Path) -> tuple[dict[str, Any], Read]:
    path = folder / "out.csv"
    return {"sink.out.use": "csv", "sink.out.path": str(path)}, lambda: path.read_text().split()[1:]


def sqlite(folder: Path) -> tuple[dict[str, Any], Read]:
    path = folder / "out.db"

    def read() -> Sequence[str]:
        with closing(sqlite3.connect(path)) as database:
            return [str(row[0]) for row in database.execute("SELECT value FROM out ORDER BY seq")]

    return {"sink.out.use": "sqlite", "sink.out.path": str(path)}, read


def numbers(below: int, fault: int | None = None) -> fc.Flow:
    """Return a flow of numbers below a limit, which fails at one."""

    def checked(number: int) -> int:
        if number == fault:
            raise ValueError("not this one")
        return number

    flow = fc.Flow("numbers")
    flow.source("numbers", int).map(checked).filter(lambda number: number < below).sink("out")
    return flow


@pytest.fixture(params=[jsonl, csv, sqlite], ids=["jsonl", "csv", "sqlite"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, Any], Read]:
    made: tuple[dict[str, Any], Read] = request.param(tmp_path)
    return made


@pytest.mark.parametrize("kept", [False, True], ids=["stateless", "kept"])
def test_output_stays_until_there_is_another_one(out: Any, kept: bool, tmp_path: Path) -> None:
    settings, read = out
    states = ({"state": tmp_path / name} if kept else {} for name in ("a.db", "b.db"))
    numbers(9).run({"numbers": [1, 2]}, settings=settings, **next(states))
    state = next(states)
    for _ in range(2):  # the second time the job goes on, and has not opened its sink either
        with pytest.raises(OperationError):
            numbers(9, fault=7).run({"numbers": [7, 8]}, settings=settings, **state)
        assert read() == ["1", "2"]
    numbers(9).run({"numbers": [7, 8]}, settings=settings, **state)
    assert read() == ["7", "8"]


def test_output_of_a_run_that_ended_well_without_any_is_replaced(out: Any) -> None:
    settings, read = out
    numbers(9).run({"numbers": [1, 2]}, settings=settings)
    numbers(0).run({"numbers": [1, 2]}, settings=settings)
    assert read() == []


class Replacing(Sink):
    """A sink over a list of its calls."""

    name = "replacing"
    held = MIN_TIME

    def __init__(self, calls: list[str]) -> None:
        super().__init__(None, EdgeContext("out", int))
        self.calls = calls

    @property
    def guarantee(self) -> Guarantee:
        return "at_least_once"

    async def replaces(self) -> bool:
        return True

    async def open(self) -> int:
        self.calls.append("open")
        return self.held

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        self.calls.append("write")

    async def aclose(self) -> None:
        self.calls.append("aclose")


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_a_sink_is_closed_if_it_was_opened(opened: int) -> None:
    calls: list[str] = []

    async def run() -> None:
        async with AsyncExitStack() as stack:
            held, late = await open_sinks(stack, {"out": Replacing(calls)}, None)
            assert (held, list(late), calls) == ({"out": MIN_TIME}, ["out"], [])
            for _ in range(opened):
                await late["out"]()

    asyncio.run(run())
    assert calls == (["open", "aclose"] if opened else [])


def test_output_that_another_run_has_written_meanwhile_is_not_replaced() -> None:
    sink = Replacing([])
    sink.held = 7

    async def run() -> None:
        async with AsyncExitStack() as stack:
            _, late = await open_sinks(stack, {"out": sink}, None)
            with pytest.raises(SinkError, match="another run has written it meanwhile"):
                await late["out"]()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("mode", "held", "continued", "empty", "expected"),
    [
        ("replace", "other", None, False, True),
        ("replace", "mine", None, False, True),
        ("replace", None, False, False, True),
        ("replace", "mine", False, False, False),
        ("replace", "other", True, False, False),
        ("replace", "other", None, True, False),
        ("append", "other", None, False, False),
        ("resume", "other", None, False, False),
    ],
)
def test_output_is_replaced_where_a_sink_does_not_go_on(
    mode: Any, held: str | None, continued: bool | None, empty: bool, expected: bool
) -> None:
    context = EdgeContext("out", int, None, "mine", continued=continued)
    assert would_replace(context, mode, held, empty=empty) is expected
