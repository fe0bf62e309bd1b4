"""Errors of `flow.run` as a script and a notebook show them: the user's lines, and the outputs that were there."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
from flamecore.errors import ConsistencyError, FlameError, GraphError, OperationError, OrderViolationError
from flamecore.model.failure import shortened

PACKAGE = str(Path(fc.__file__).parent)


def divide(n: int) -> int:
    return 12 // n


def failing() -> tuple[fc.Flow, int]:
    """Return a flow that fails on 0, and the line that declares the operation."""
    flow = fc.Flow("shares")
    flow.source("numbers", int).map(divide, name="share").sink("shares")
    return flow, sys._getframe().f_lineno - 1


def error_of(flow: fc.Flow, **given: Any) -> FlameError:
    with pytest.raises(FlameError) as caught:
        flow.run(given or {"numbers": [3, 0, 4]})
    return caught.value


def frames(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def test_a_traceback_shows_the_users_frames_and_one_of_the_engine() -> None:
    error = error_of(failing()[0])
    assert frames(error) == [__file__, f"{PACKAGE}/flow.py"]
    assert error.__cause__ is not None
    assert frames(error.__cause__) == [__file__]
    shown = "".join(traceback.format_exception(error)).splitlines()
    assert len(shown) <= 26
    assert "12 // n" in "\n".join(shown)


def test_the_whole_traceback_is_kept_and_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    error = error_of(failing()[0])
    kept = [frame.filename for frame in traceback.extract_tb(error.full_traceback)]
    assert any(name.endswith("engine/job.py") for name in kept)
    monkeypatch.setenv("FLAMESTREAM_TRACEBACK", "full")
    error = error_of(failing()[0])
    assert any(name.endswith("engine/job.py") for name in frames(error))
    assert error.__cause__ is not None
    assert frames(error.__cause__)[0].startswith(PACKAGE)
    assert any("engine/job.py" in line for line in error._render_traceback_())


def test_the_traceback_of_a_broken_law_stays_whole() -> None:
    with pytest.raises(ConsistencyError) as caught:
        raise OrderViolationError("two items have one order")
    before = caught.value.__traceback__
    assert shortened(caught.value).__traceback__ is before


def test_errors_that_come_of_each_other_do_not_go_round() -> None:
    first, second = OperationError("first"), ValueError("second")
    first.__cause__, second.__context__ = second, first
    assert shortened(first) is first


def test_a_notebook_shows_the_text_and_the_line_of_the_cell() -> None:
    error = error_of(failing()[0])
    shown = error._render_traceback_()
    assert shown[0] == "OperationError: 'share' failed: ZeroDivisionError: integer division or modulo by zero"
    assert shown[-1].startswith(f"  raised by {__file__}:")
    assert "flow.run(given" in shown[-1]
    assert len(shown) <= 10


def test_an_error_says_where_the_operation_is_declared() -> None:
    flow, line = failing()
    assert f"  declared  {__file__}:{line}\n" in str(error_of(flow))
    chained = fc.Flow("chained")
    (
        chained.source("numbers", int)
        .map(divide)
        .key_by(lambda n: n)
        .count()
        .sink("counts")
    )  # fmt: skip
    place = f"{__file__}:{sys._getframe().f_lineno - 5}"
    assert f"  declared  {place}" in str(error_of(chained))


def test_a_graph_that_cannot_work_says_where_it_is_declared() -> None:
    flow = fc.Flow("nowhere")
    flow.source("numbers", int).map(divide)
    line = sys._getframe().f_lineno - 1
    flow.source("others").sink("out")
    error = error_of(flow)
    assert isinstance(error, GraphError)
    assert error.__notes__ == [f"  declared  {__file__}:{line}"]


KEYS: list[tuple[Any, str]] = [([1], "use a tuple"), ({1}, "use a frozenset"), ({"a": 1}, "use a tuple of its items")]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("key", "advice"), [*KEYS, ((1, [2]), "use a tuple"), (bytearray(b"a"), "use bytes")])
def test_a_key_that_cannot_be_one_says_what_to_use(key: Any, advice: str, workers: int) -> None:
    flow = fc.Flow("keys")
    flow.source("numbers", int).key_by(lambda n: key).count().sink("counts")
    with pytest.raises(OperationError, match=advice) as caught:
        flow.run({"numbers": [1]}, workers=workers)
    assert caught.value.key == repr(key)


def listed(n: int) -> list[int]:
    return [n]


def test_a_key_that_is_declared_to_be_none_is_refused_when_the_flow_is_drawn() -> None:
    flow = fc.Flow("keys")
    numbers = flow.source("numbers", int)
    with pytest.raises(GraphError, match=r"list is mutable.*\n.*Use a tuple"):
        numbers.key_by(listed)


def test_errors_have_the_outputs_so_far() -> None:
    error = error_of(failing()[0])
    assert error.outputs == {"shares": [4]}
    assert error.outputs.stats.items_in >= 2


@pytest.fixture
def interrupted() -> Iterator[None]:
    """Ctrl-C is as it is in a program, whatever has run before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def endless() -> fc.Flow:
    def look(n: int) -> int:
        if n == 5_000:
            os.kill(os.getpid(), signal.SIGINT)
        return n

    flow = fc.Flow("endless")
    flow.source("numbers", int).map(look).sink("out")
    return flow


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT of Windows is another one")
@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("notebook", [False, True])
def test_ctrl_c_keeps_the_outputs_so_far(notebook: bool) -> None:
    async def cell() -> None:
        endless().run({"numbers": itertools.count()})

    def run() -> None:
        if not notebook:
            endless().run({"numbers": itertools.count()})
            return
        loop = asyncio.new_event_loop()  # which runs in this thread, and waits for the cell
        try:
            loop.run_until_complete(cell())
        finally:
            loop.close()

    with pytest.raises(KeyboardInterrupt) as caught:
        run()
    outputs = caught.value.outputs["out"]  # type: ignore[attr-defined]  # an attribute of whatever ends a run
    assert outputs == list(range(len(outputs)))
    assert outputs
