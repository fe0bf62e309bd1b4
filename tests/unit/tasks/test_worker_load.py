"""The load that a worker measures: its thread's time, runs behind sources, and items that wait."""

from __future__ import annotations

import operator
import time
from types import SimpleNamespace
from typing import Any

import flamecore as fc
from flamecore.model.hashing import key_group, stable_hash
from flamecore.model.meta import FrontId, encode_time
from flamecore.model.plan import Plan
from flamecore.model.settings import JobSettings
from flamecore.runtime.operators.compiler import Entrance
from flamecore.runtime.operators.reorder import ReorderBuffer
from flamecore.runtime.tasks.load import WorkerLoad, busy_s


def orders(first: int, count: int) -> list[bytes]:
    return [encode_time(time) for time in range(first, first + count)]


def loaded(key: Any = str.lower) -> tuple[WorkerLoad, ReorderBuffer, Any]:
    flow = fc.Flow("words")
    flow.source("lines", str).key_by(key).reduce(operator.add, name="words").sink("out")
    plan = Plan(flow.graph(), (FrontId("lines", 0),), JobSettings(workers=2))
    state: Any = SimpleNamespace(run=None, step=None)
    buffer = ReorderBuffer("words", state, 1, advance=False)

    def step(*_: object) -> None:
        raise AssertionError

    entrance = Entrance(step, buffer.run, ())
    compiled = SimpleNamespace(entrances={"lines": entrance}, waiting=[buffer])
    task: Any = SimpleNamespace(worker=SimpleNamespace(index=1, plan=plan, compiled=compiled))
    load = WorkerLoad(task)
    return load, buffer, compiled.entrances["lines"]


def test_key_groups_and_hot_keys_are_those_of_items_that_wait() -> None:
    load, buffer, entrance = loaded()
    assert load.counts().key_groups == {}
    entrance.run(orders(1, 45), 0, ["A"] * 45)
    entrance.run(orders(50, 5), 0, ["b"] * 5)
    assert len(buffer) == 50
    counts = load.counts()
    groups = {key: key_group(stable_hash(key)) for key in "ab"}
    assert counts.key_groups == {groups["a"]: 45, groups["b"]: 5}
    assert counts.hot_keys == {groups["a"]: "'a'", groups["b"]: "'b'"}
    assert sum(load.counts().key_groups.values()) == 100
    assert counts.run_s["lines"] > 0
    assert list(counts.busy_s) == list(counts.cpu_s) == list(counts.up_s) == [1]


def test_a_sample_is_bounded_and_of_live_items() -> None:
    _, buffer, _ = loaded()
    buffer.run(orders(1, 1000), 0, [f"w{number}" for number in range(1000)])
    buffer.step(encode_time(2000), 0, False, "a tombstone")
    found = buffer.sample(64)
    assert len(set(found)) == 64
    assert "a tombstone" not in found
    assert len(set(buffer.sample(5000))) == 1000


def test_a_key_function_that_fails_leaves_its_operation_out() -> None:
    def refuse(_: str) -> str:
        raise ValueError

    load, buffer, _ = loaded(refuse)
    buffer.run(orders(1, 3), 0, ["a", "b", "c"])
    assert load.counts().key_groups == {}


def test_a_thread_is_busy_while_it_runs() -> None:
    before = time.thread_time()
    end = before + 0.05
    while time.thread_time() < end:
        pass
    ran = time.thread_time()
    assert busy_s() >= ran, "it also waits for a processor, or does not"
