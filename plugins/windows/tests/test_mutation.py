"""Functions of windows that change what they are given, and the lines that errors of theirs show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.errors import CodecError, OperationError
from flamecore.testing import assert_deterministic
from flamestream_windows import aggregates as agg
from flamestream_windows import watermarks

RECORDS = [(at, "a") for at in (0, 10, 5, 20, 15, 30, 25, 40)]
WATERMARK = watermarks.bounded_disorder(microseconds=20)
TICKS = w.fixed(microseconds=20)
CHECKS = {"job.check_types": False, "job.check_mutation": True}


def appended(items: list[Any] | None, item: Any) -> list[Any]:
    items = [] if items is None else items
    items.append(item)
    return items


def joined(items: list[Any] | None, others: list[Any] | None) -> list[Any]:
    items = [] if items is None else items
    items += others or []
    return items


def added(items: list[Any] | None, item: Any) -> list[Any]:
    return [*(items or []), item]


@dataclass(frozen=True)
class Appended(agg.Aggregate):
    """An aggregate of the user's own that changes its accumulator."""

    def create(self) -> Any:
        return None

    def add(self, accumulator: Any, value: Any) -> Any:
        return appended(accumulator, value)

    def merge(self, first: Any, second: Any) -> Any:
        return joined(first, second)


Build = Callable[[w.TimedKeyed[str, Any]], w.Panes[str, Any, Any]]
CHANGING: dict[str, Build] = {
    "fold": lambda keyed: keyed.window(TICKS).fold(None, appended),
    "fold with updates": lambda keyed: keyed.window(TICKS, emit="updates", panes="accumulating").fold(None, appended),
    "merge of sessions": lambda keyed: keyed.window(w.sessions(microseconds=7)).fold(None, added, merge=joined),
    "own aggregate": lambda keyed: keyed.window(TICKS).aggregate(all=Appended()),
    "sliding": lambda keyed: keyed.window(w.sliding(microseconds=20, every=timedelta(microseconds=10))).fold(
        None, appended
    ),
}
UNCHANGING: dict[str, Build] = {
    "fold": lambda keyed: keyed.window(TICKS).fold(None, added),
    "sum": lambda keyed: keyed.window(TICKS).sum(lambda record: record[0]),
    "several": lambda keyed: keyed.window(TICKS).aggregate(n=agg.count(), all=agg.collect()),
}


def flow_of(build: Build) -> fc.Flow:
    flow = fc.Flow("mutation")
    timed = w.event_time(flow.source("records", tuple), lambda record: record[0], unit="us", watermark=WATERMARK)
    build(timed.key_by(lambda record: record[1])).map(lambda pane: pane.value).sink("out")
    return flow


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", CHANGING)
def test_a_function_that_changes_what_it_is_given_is_found(name: str, workers: int) -> None:
    with pytest.raises(OperationError, match="mistake in the flow: it has changed its argument") as caught:
        flow_of(CHANGING[name]).run({"records": RECORDS}, workers=workers, settings=CHECKS)
    assert "test_mutation.py" in str(caught.value)


@pytest.mark.parametrize("name", CHANGING)
def test_the_check_of_determinism_finds_it_too(name: str) -> None:
    with pytest.raises(AssertionError, match="it has changed its argument"):
        assert_deterministic(flow_of(CHANGING[name]), {"records": RECORDS}, workers=(1,), seeds=range(1))


@pytest.mark.parametrize("name", UNCHANGING)
def test_functions_that_change_nothing_pass(name: str) -> None:
    plain = flow_of(UNCHANGING[name]).run({"records": RECORDS}, settings=CHECKS | {"job.check_mutation": False})
    assert flow_of(UNCHANGING[name]).run({"records": RECORDS}, settings=CHECKS) == plain
    assert_deterministic(flow_of(UNCHANGING[name]), {"records": RECORDS}, workers=(1, 2), seeds=range(2))


class ChangesAValue(w.StatefulFn[str, Any, Any]):
    seen = w.Value(list)

    def on_element(self, key: str, value: Any, at: Any) -> Any:
        if (seen := self.seen.get()) is None:
            self.seen.set(seen := [])
        seen.append(value[0])  # and no set: a snapshot holds what was set
        yield len(seen)


class ChangesAnEntry(w.StatefulFn[str, Any, Any]):
    seen = w.Map(str, list)

    def on_element(self, key: str, value: Any, at: Any) -> Any:
        if (seen := self.seen.get("all")) is None:
            self.seen.put("all", [value[0]])
        else:
            seen.append(value[0])
            self.seen.put("all", seen)
        return ()


class ChangesItInTime(w.StatefulFn[str, Any, Any]):
    seen = w.Value(list)
    wake = w.Timer("event")

    def on_element(self, key: str, value: Any, at: Any) -> Any:
        self.seen.set([*(self.seen.get() or ()), value[0]])
        self.wake.set(at + timedelta(microseconds=5))
        return ()

    def on_wake(self, key: str, at: Any) -> Any:
        seen = self.seen.get()
        assert seen is not None
        seen.clear()
        return ()


class SetsAnother(ChangesItInTime):
    def on_wake(self, key: str, at: Any) -> Any:
        seen = self.seen.get()
        assert seen is not None
        self.seen.set([])
        yield len(seen)


def stateful(function: type[w.StatefulFn[str, Any, Any]]) -> fc.Flow:
    flow = fc.Flow("stateful")
    records = w.event_time(flow.source("records", tuple[int, str]), lambda r: r[0], unit="us", watermark=WATERMARK)
    records.key_by(lambda r: r[1]).process(function).sink("out")
    return flow


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("function", [ChangesAValue, ChangesAnEntry, ChangesItInTime])
def test_a_stateful_function_that_changes_the_value_of_a_cell_is_found(
    function: type[w.StatefulFn[str, Any, Any]], workers: int
) -> None:
    with pytest.raises(OperationError, match="it has changed its argument") as caught:
        stateful(function).run({"records": RECORDS}, workers=workers, settings=CHECKS)
    assert f"{function.__name__}.on_" in str(caught.value)
    assert "test_mutation.py" in str(caught.value)


def test_a_stateful_function_that_sets_other_values_passes() -> None:
    plain = stateful(SetsAnother).run({"records": RECORDS}, settings=CHECKS | {"job.check_mutation": False})
    assert plain["out"]
    assert stateful(SetsAnother).run({"records": RECORDS}, settings=CHECKS) == plain


def failing(total: int, record: Any) -> int:
    return int(total // (record[0] - 25))


def test_an_error_shows_the_lines_of_the_user_and_none_of_the_plugin() -> None:
    flow = flow_of(lambda keyed: keyed.window(TICKS).fold(0, failing))
    with pytest.raises(OperationError, match="ZeroDivisionError") as caught:
        flow.run({"records": RECORDS})
    assert "test_mutation.py" in str(caught.value)
    assert "in failing: return int(total // (record[0] - 25))" in str(caught.value)
    assert "flamestream_windows/" not in str(caught.value)


class Unknown:
    """A class that nobody has told the codec of."""


class KeepsWhatCannotBeStored(w.StatefulFn[str, Any, Any]):
    seen = w.Value(object)

    def on_element(self, key: str, value: Any, at: Any) -> Any:
        self.seen.set(Unknown() if key == "b" else key)
        return ()


def test_a_state_that_cannot_be_stored_is_named_with_its_key(tmp_path: Path) -> None:
    flow = stateful(KeepsWhatCannotBeStored)
    with pytest.raises(
        CodecError, match=r"the state of 'process' for the key 'b' cannot be stored: .*Unknown"
    ) as caught:
        flow.run({"records": [(1, "a"), (2, "b"), (3, "c")]}, state=tmp_path)
    assert caught.value.vertex == "process"
