"""The load that a worker measures: its thread's time, runs behind sources, and a sample of what its states take."""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.operator import Run
from flamecore.model.batch import Orders
from flamecore.model.hashing import key_group, stable_hash
from flamecore.model.meta import FrontId, encode_time
from flamecore.model.plan import Plan
from flamecore.model.settings import JobSettings
from flamecore.model.vertices import ByHash, ByKey
from flamecore.runtime.operators.compiler import Entrance
from flamecore.runtime.operators.reorder import ReorderBuffer
from flamecore.runtime.tasks.load import Sampler, WorkerLoad, busy_s

BY_WORD = ByKey(str.lower)


def orders(first: int, count: int) -> list[bytes]:
    return [encode_time(time) for time in range(first, first + count)]


def loaded(key: Any = str.lower) -> tuple[WorkerLoad, ReorderBuffer, Any]:
    flow = fc.Flow("words")
    flow.source("lines", str).key_by(key).reduce(operator.add, name="words").sink("out")
    plan = Plan(flow.graph(), (FrontId("lines", 0),), JobSettings(workers=2))
    state: Any = SimpleNamespace(run=lambda *_: None, step=None)
    buffer = ReorderBuffer("words", state, 1, advance=False)

    def step(*_: object) -> None:
        raise AssertionError

    entrance = Entrance(step, buffer.run, ())
    compiled = SimpleNamespace(entrances={"lines": entrance}, waiting=[buffer])
    task: Any = SimpleNamespace(worker=SimpleNamespace(index=1, plan=plan, compiled=compiled))
    load = WorkerLoad(task)
    return load, buffer, compiled.entrances["lines"]


@pytest.fixture
def costing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Return a function that makes one that processes a run, in the seconds of each item and some for the run."""
    now = [0.0]
    monkeypatch.setattr("flamecore.runtime.tasks.load.time", SimpleNamespace(thread_time=lambda: now[0]))

    def make(seconds_of: Mapping[Hashable, float], each_run: float = 0.0) -> Run:
        def run(_: Orders, __: int, payloads: Sequence[Any]) -> None:
            now[0] += each_run + sum(seconds_of[payload] for payload in payloads)

        return run

    return make


def reported(sampler: Sampler) -> tuple[Counter[int], Counter[Hashable]]:
    """Return the sample's number of items by key group, and the seconds for which it stands by key."""
    groups: Counter[int] = Counter()
    seconds: Counter[Hashable] = Counter()

    def note(group: int, key: Hashable, took: float) -> None:
        groups[group] += 1
        seconds[key] += took

    sampler.report(note)
    return groups, seconds


def test_what_states_take_is_counted_and_a_sample_of_it_told_by_key_group() -> None:
    load, buffer, entrance = loaded()
    assert load.counts().key_groups == {}
    for first in (1, 10_001):
        entrance.run(orders(first, 5000), 0, ["A", "A", "A", "b"] * 1250)
        before = load.counts()  # from then on one of fewer items is in the sample
        buffer.drain(encode_time(first + 5000))
    counts = load.counts()
    groups = {key: key_group(stable_hash(key)) for key in "ab"}
    assert (before.taken, counts.taken) == ({1: 5000}, {1: 10_000})
    assert set(counts.key_groups) == set(counts.group_s) == set(groups.values())
    assert counts.key_groups[groups["a"]] > counts.key_groups[groups["b"]] > 0
    assert counts.hot_keys == {groups["a"]: "'a'", groups["b"]: "'b'"}
    assert counts.run_s["lines"] > 0
    assert list(counts.busy_s) == list(counts.cpu_s) == list(counts.up_s) == [1]


def test_a_dear_key_counts_by_its_time_and_not_by_its_number(costing: Callable[..., Run]) -> None:
    sampler = Sampler()
    run = sampler.timed(BY_WORD, costing({"cheap": 10e-6, "dear": 190e-6}))
    for first in (1, 20_001):  # after the first time as many are in the sample as is meant
        reported(sampler)
        run(orders(first, 20_000), 0, ["cheap", "dear"] * 10_000)
    groups, seconds = reported(sampler)
    # At least half as many as is meant: a gap is below twice its mean. Above twice as many the gaps double.
    assert 32 <= sum(groups.values()) <= 256
    assert 0.3 < groups[key_group(stable_hash("cheap"))] / groups[key_group(stable_hash("dear"))] < 3
    assert seconds["dear"] > 5 * seconds["cheap"]
    assert sum(seconds.values()) == pytest.approx(2.0, rel=0.5)


def test_an_item_that_goes_in_alone_costs_no_more_than_among_others(costing: Callable[..., Run]) -> None:
    sampler = Sampler()
    run = sampler.timed(BY_WORD, costing({"a": 10e-6, "b": 30e-6}, each_run=100e-6))
    for first in (1, 20_001):
        reported(sampler)
        run(orders(first, 20_000), 0, ["a", "b"] * 10_000)
    groups, seconds = reported(sampler)
    assert sum(seconds.values()) == pytest.approx(0.4, rel=0.2)
    cheap, dear = (seconds[key] / groups[key_group(stable_hash(key))] for key in "ab")
    assert dear / cheap == pytest.approx(3.0, rel=0.5)


@pytest.mark.parametrize("seed", range(20))
def test_runs_go_in_whole_and_in_order(seed: int) -> None:
    random, sampler = Random(seed), Sampler()
    given: list[tuple[bytes, int, str]] = []
    found: list[tuple[bytes, int, str]] = []

    def take(places: Orders, trace: int, payloads: Sequence[Any]) -> None:
        found.extend((place, trace, payload) for place, payload in zip(places, payloads, strict=True))

    run, time_of = sampler.timed(BY_WORD, take), 0
    for trace in range(50):
        count = random.choice((1, 2, random.randrange(1, 3000)))
        places, payloads = orders(time_of, count), [f"w{random.randrange(9)}" for _ in range(count)]
        time_of += count
        given += [(place, trace, payload) for place, payload in zip(places, payloads, strict=True)]
        run(places, trace, payloads)
        if not random.randrange(5):
            reported(sampler)
    assert found == given
    assert sampler.items == len(given)


def test_a_sample_is_bounded_if_there_are_suddenly_many_items() -> None:
    sampler = Sampler()
    run = sampler.timed(BY_WORD, lambda *_: None)
    run([b"1"], 0, ["a"])
    reported(sampler)  # of so few all are in the next sample
    run(orders(1, 100_000), 0, ["a"] * 100_000)
    groups, _ = reported(sampler)
    assert 64 <= sum(groups.values()) < 1024


def test_operations_share_one_sample_and_groupings_are_in_it(costing: Callable[..., Run]) -> None:
    sampler = Sampler()
    words = sampler.timed(BY_WORD, costing({"a": 1e-6}))
    pairs = sampler.timed(ByHash(lambda number: number << 25), costing({3: 1e-6}))
    reported(sampler)
    for first in range(1, 400_000, 200):
        words(orders(first, 150), 0, ["a"] * 150)
        pairs(orders(first + 150, 50), 0, [3] * 50)
    groups, _ = reported(sampler)
    assert groups[key_group(stable_hash("a"))] > groups[key_group(3 << 25)] > 0


def test_cheap_items_stay_together(costing: Callable[..., Run]) -> None:
    sampler, lengths = Sampler(), []
    cost = costing({"cheap": 4e-6, "dear": 6e-6})

    def run(places: Orders, trace: int, payloads: Sequence[Any]) -> None:
        lengths.append(len(payloads))
        cost(places, trace, payloads)

    for key, cuts, spent_s in (("cheap", False, 0.08), ("dear", True, 0.12)):
        timed = sampler.timed(ByKey(str.upper), run)
        for first in (1, 20_001):
            lengths.clear()
            timed(orders(first, 20_000), 0, [key] * 20_000)
            _, seconds = reported(sampler)
        assert (len(lengths) > 1) == cuts
        assert sum(seconds.values()) == pytest.approx(spent_s)


def test_a_key_function_that_fails_leaves_its_operation_out() -> None:
    def refuse(_: str) -> str:
        raise ValueError

    load, buffer, _ = loaded(refuse)
    buffer.run(orders(1, 3000), 0, ["a"] * 3000)
    buffer.drain(encode_time(9999))
    counts = load.counts()
    assert (counts.key_groups, counts.taken) == ({}, {1: 3000})


def test_a_thread_is_busy_while_it_runs() -> None:
    before = time.thread_time()
    end = before + 0.05
    while time.thread_time() < end:
        pass
    ran = time.thread_time()
    assert busy_s() >= ran, "it also waits for a processor, or does not"
