"""Elements that are worked on together give what each gives alone: panes, marks and records at any time."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any, Literal

import pytest

import flamecore as fc
from flamecore.abc.operator import GONE, Site, Way, each
from flamecore.model.meta import GlobalTime, encode_time
from flamecore.model.ordered import CLOSING, Marking, behind_record, shared_names
from flamecore.model.vertices import ByKey
from flamecore.runtime.operators.columns.cells import CellOperator, ordered_operator
from flamecore.runtime.operators.ordered import OrderedBuffer, OrderedOperator
from flamecore.testing.draws import seeds
from flamestream_windows import aggregates as agg
from flamestream_windows import triggers as t
from flamestream_windows import windows as w
from flamestream_windows.engine import tree
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.flows.stamps import LATE, RETRACTION, STAMPED, VALUE
from flamestream_windows.flows.streams import event_time
from flamestream_windows.flows.vertices import Grouped
from flamestream_windows.flows.work import GroupingWork
from flamestream_windows.model.aggregates import Cogroup, Extreme, Sum
from flamestream_windows.model.panes import Pane, Timing
from flamestream_windows.model.strategy import strategy
from flamestream_windows.model.times import END_OF_GLOBAL_WINDOW, MIN, reader, reader_of_many
from flamestream_windows.model.windows import Same

Kind = Literal["final", "updates", "sessions", "again"]


def _grouping(rng: random.Random, kind: Kind) -> Grouping:
    size, period = rng.choice([3, 10, 25]), rng.randint(1, 30)
    windows = rng.choice(
        [
            w.fixed(microseconds=size, offset=timedelta(microseconds=rng.randint(0, 9))),
            w.fixed(microseconds=size),
            w.fixed(microseconds=size),
            w.sliding(microseconds=size, every=timedelta(microseconds=period)),
            w.whole(),
            w.calendar(days=1, tz="Europe/Berlin"),
        ]
    )
    if kind == "sessions":
        made = strategy(w.sessions(microseconds=rng.choice([1, 3, 10, 25, 150])))
        return Grouping(made, rng.choice([agg.count(), agg.collect(), agg.sum(_number), agg.top(2, _number)]))
    if kind == "again":
        made = strategy(Same(), lateness=rng.choice([0, 0, 5, 40]))
        # Of panes: the number is the value's.
        of = _number_of_pane
        return Grouping(made, rng.choice([agg.count(), agg.collect(), agg.sum(of), agg.top(2, of), agg.max(of)]))
    panes: list[Literal["accumulating", "discarding"]] = ["accumulating", "discarding"]
    made = strategy(windows, lateness=rng.choice([0, 0, 5, 40]), emit=kind, panes=rng.choice(panes))
    return Grouping(made, rng.choice([agg.count(), agg.collect(), agg.sum(_number), agg.top(2, _number)]))


def _number(value: Any) -> int:
    if value == 99:
        raise ValueError(value)
    return int(value)


def _number_of_pane(pane: Pane[int, int]) -> int:
    return _number(pane.value)


def _pane(rng: random.Random, at: int, value: int) -> tuple[int, Pane[int, int]]:
    """Return the time of a pane of some window around a time, and the pane."""
    start = at - at % rng.choice([3, 10])
    window = w.Window(start, start + rng.choice([3, 10, 10, 25]))
    return window.end - 1, Pane(value, value, window, Timing.ON_TIME, 0, last=True)


class Bench:
    """An operator of a grouping at work, with what it has emitted, said and stored."""

    def __init__(self, grouping: Grouping, *, together: bool, snapshots: bool = True) -> None:
        self.outputs: list[Any] = []
        self.failed: list[Any] = []
        self.said: list[Any] = []
        self.stored: dict[Any, Any] = {}
        site = Site(
            7,
            lambda order, trace, alive, payload, error: self.failed.append((order, payload, repr(error))),
            (Way(self._emit, each(self._emit)),),
            snapshots=snapshots,
        )
        vertex = Grouped("window", route=ByKey(_key), index=3, grouping=grouping, times=STAMPED)
        self.operator = ordered_operator(vertex, site) if together else OrderedOperator(vertex, site)
        self.operator.watermark.connect(
            {(9, 1): Marking("said", function=int)}, lambda *mark: self.said.append(mark), shared_names()[:1]
        )
        self.buffer = OrderedBuffer("window", self.operator, 1)

    def _emit(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        self.outputs.append((order, payload))

    def store(self, time: int) -> None:
        for piece in self.operator.cut(encode_time(time)):
            self.stored |= piece
        self.stored = {key: record for key, record in self.stored.items() if record is not GONE}


def _key(stamp: Any) -> Any:
    value = stamp[2].value if isinstance(stamp[2], Pane) else stamp[2]
    return value % 7 if value < 50 else value % 2


def _order(time: int) -> bytes:
    return GlobalTime(time, 1).encode()


def _compare(seed: int, kind: Kind) -> int:
    rng = random.Random(seed)
    grouping = _grouping(rng, kind)
    benches = [Bench(grouping, together=False), Bench(grouping, together=True)]
    unstored = Bench(grouping, together=True, snapshots=False)
    retracts = rng.random() < 0.1 and type(grouping.aggregate).invertible
    disorder, forth = rng.choice([0, 0, 3, 20]), rng.choice([1, 1, 5])
    time, now, value, cut = 1, rng.randint(-40, 40), -1000, 0
    everything, all_marks, snapshot = list[Any](), list[Any](), dict[Any, Any]()
    for step in range(rng.randint(2, 8)):
        records, marks = [], []
        for _ in range(rng.choice([2, 20, 80])):
            kept = RETRACTION if retracts and rng.random() < 0.05 else VALUE
            at = now - rng.randint(0, disorder) - (30 if rng.random() < 0.01 else 0)
            number = rng.randrange(99 + (rng.random() < 0.02))
            at, given = _pane(rng, at, number) if kind == "again" else (at, number)
            records.append((time, (kept, at, given)))
            if rng.random() < 0.15:
                now += rng.randint(0, forth)
                value = max(value, now - rng.randint(disorder // 2, disorder + 1))
                marks.append((time, value))
            time += 1
        if rng.random() < 0.1:
            marks.append((time - 1, CLOSING if step > 5 else now + 100))
        everything += records
        all_marks += marks
        for bench in (*benches, unstored):
            bench.buffer.run([_order(place) for place, _ in records], 0, [stamp for _, stamp in records])
            for place, mark in marks:
                bench.buffer.put_mark(behind_record(_order(place)), (9, 1, mark))
            bench.buffer.drain(encode_time(time))
        if rng.random() < 0.5:
            cut = rng.randint(cut, time)
            for bench in benches:
                bench.store(cut)
            assert benches[0].stored == benches[1].stored, (seed, cut)
            snapshot = dict(benches[1].stored)
    alone, together = benches
    for bench in benches:
        bench.store(time)
    assert alone.stored == together.stored, seed
    assert alone.outputs == together.outputs, seed
    assert [type(stamp[2]) for _, stamp in alone.outputs] == [type(stamp[2]) for _, stamp in together.outputs]
    assert (alone.failed, alone.said) == (together.failed, together.said), seed
    assert (alone.outputs, alone.said) == (unstored.outputs, unstored.said), seed
    assert len({(bench.operator.work.late, bench.operator.work.dropped) for bench in (*benches, unstored)}) == 1, seed
    assert sorted(map(repr, alone.failed)) == sorted(map(repr, unstored.failed)), seed
    if snapshot:
        again = Bench(grouping, together=True)
        again.operator.restore(snapshot)
        rest = [record for record in everything if record[0] >= cut]
        if rest:
            again.buffer.run([_order(place) for place, _ in rest], 0, [stamp for _, stamp in rest])
        for place, mark in all_marks:
            if place >= cut:
                again.buffer.put_mark(behind_record(_order(place)), (9, 1, mark))
        again.buffer.drain(encode_time(time))
        assert again.outputs == [each for each in alone.outputs if each[0] >= encode_time(cut)], seed
        again.stored = snapshot
        again.store(time)
        assert again.stored == alone.stored, seed
    return len(alone.outputs)


@pytest.mark.parametrize("kind", ["final", "updates", "sessions", "again"])
def test_elements_that_go_together_give_what_each_gives_alone(kind: Kind) -> None:
    played = seeds(200)
    assert sum(_compare(seed, kind) for seed in played) > 10 * len(played)


@pytest.mark.parametrize("kind", ["final", "updates", "sessions", "again"])
def test_they_do_so_with_trees_of_windows(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "WIDTH", 2)
    played = seeds(50, 1)
    assert sum(_compare(seed, kind) for seed in played) > 10 * len(played)


@pytest.mark.parametrize(("windows", "emit"), [(w.fixed(seconds=1), "final"), (w.fixed(seconds=1), "updates")])
@pytest.mark.parametrize("snapshots", [True, False])
def test_a_late_element_of_a_window_that_is_not_over_needs_none_of_the_others(
    windows: Any, emit: Any, snapshots: bool
) -> None:
    made = strategy(windows, lateness=timedelta(days=1), emit=emit, panes="accumulating")
    bench = Bench(Grouping(made, agg.count()), together=True, snapshots=snapshots)
    work = bench.operator.work
    work.process = None  # type: ignore[assignment, method-assign]
    second, day = 1_000_000, 86_400_000_000
    early = [(1 + place, place * second, 1) for place in range(50)]
    late = [(101, 50 * second, 1), (102, 50 * second + 3, 8), (103, 51 * second + 7, 1)]
    dropped = [(201, 30 * second, 1), (202, 49 * second, 1)]
    mark = {50: 49 * second, 100: 50 * second + 10, 200: 51 * second + 10 + day}
    for some in (early, late, dropped):
        bench.buffer.run([_order(time) for time, _, _ in some], 0, [(VALUE, at, value) for _, at, value in some])
    for time, value in mark.items():
        bench.buffer.put_mark(behind_record(_order(time)), (9, 1, value))
    bench.buffer.drain(encode_time(300))
    assert (bench.failed, work.late, work.dropped) == ([], 2, 2)


def test_the_short_way_is_taken_where_it_can_be() -> None:
    """Nobody would see it if all elements went alone."""
    bench = Bench(Grouping(strategy(w.fixed(microseconds=10)), agg.count()), together=True)
    assert isinstance(bench.operator, CellOperator)
    work = bench.operator.work
    assert isinstance(work, GroupingWork)
    work.process = work.on_time = None  # type: ignore[assignment, method-assign]
    for start in range(0, 100, 20):
        times = range(start + 1, start + 21)
        bench.buffer.run([_order(time) for time in times], 0, [(VALUE, time, time % 3) for time in times])
        bench.buffer.put_mark(behind_record(_order(start + 20)), (9, 1, start + 20))
    bench.buffer.drain(encode_time(200))
    assert (len(bench.outputs), bench.failed) == (3 * 10, [])
    assert sum(stamp[2].value for _, stamp in bench.outputs) == 99


def test_the_short_way_is_taken_by_panes_that_are_grouped_again() -> None:
    bench = Bench(Grouping(strategy(Same()), agg.collect()), together=True)
    work = bench.operator.work
    work.process = work.on_time = None  # type: ignore[assignment, method-assign]
    windows = [w.Window(0, 10), w.Window(0, 20), w.Window(10, 20)]
    panes = [Pane(number, number, windows[number % 3], Timing.ON_TIME, 0, last=True) for number in range(30)]
    bench.buffer.run([_order(time) for time in range(1, 31)], 0, [(VALUE, pane.window.end - 1, pane) for pane in panes])
    for end in (10, 20):
        bench.buffer.put_mark(behind_record(_order(20 + end)), (9, 1, end))
    bench.buffer.drain(encode_time(200))
    assert bench.failed == []
    found = {(pane.window, pane.key): pane.value for _, (_, _, pane) in bench.outputs}
    assert found == {
        (window, key): some
        for window in windows
        for key in range(7)
        if (some := [pane for pane in panes if pane.window == window and pane.value % 7 == key])
    }


@pytest.mark.parametrize("snapshots", [True, False])
def test_the_short_way_is_taken_by_sessions_that_grow_join_and_come_late(snapshots: bool) -> None:
    bench = Bench(Grouping(strategy(w.sessions(microseconds=10)), agg.collect()), together=True, snapshots=snapshots)
    work = bench.operator.work
    work.process = work.on_time = None  # type: ignore[assignment, method-assign]
    times = [100, 120, 105, 130, 95, 150, 112, 147, 200]
    bench.buffer.run(
        [_order(time) for time in range(1, 10)], 0, [(VALUE, at, 7 * place) for place, at in enumerate(times)]
    )
    bench.buffer.put_mark(behind_record(_order(1)), (9, 1, 97))
    bench.buffer.put_mark(behind_record(_order(8)), (9, 1, 150))
    bench.buffer.put_mark(behind_record(_order(9)), (9, 1, 300))
    bench.buffer.drain(encode_time(20))
    assert bench.failed == []
    assert [stamp[2] for _, stamp in bench.outputs if stamp[0] == LATE] == [28]
    panes = [stamp[2] for _, stamp in bench.outputs if stamp[0] == VALUE]
    assert [(pane.window, pane.value) for pane in panes] == [
        ((95, 130), [0, 14, 28, 7, 42]),
        ((130, 140), [21]),
        ((147, 160), [35, 49]),
        ((200, 210), [56]),
    ]


def test_what_is_kept_of_sessions_does_not_grow_with_the_way_to_the_watermark() -> None:
    """A key may have thousands, in a turn that it shares with others."""
    bench = Bench(Grouping(strategy(w.sessions(microseconds=10)), agg.count()), together=True, snapshots=False)
    for start in range(0, 30_000, 300):
        times = range(start + 1, start + 301)
        bench.buffer.run([_order(time) for time in times], 0, [(VALUE, time, time // 15 % 7) for time in times])
        bench.buffer.drain(encode_time(start + 301))
    assert [len(cells) for cells in bench.operator._by_mark.values()] == [7]
    bench.buffer.put_mark(behind_record(_order(30_000)), (9, 1, 40_000))
    bench.buffer.drain(encode_time(40_000))
    assert (len(bench.outputs), bench.failed, bench.operator._by_mark) == (2001, [], {})


@pytest.mark.parametrize("windows", [w.sessions(microseconds=5), w.fixed(microseconds=5)])
def test_others_take_each_element_alone(windows: Any) -> None:
    work = GroupingWork(Grouping(strategy(windows, emit=t.at_watermark()), agg.count()), STAMPED)
    assert work.cells is None


class Squares(Sum):
    """The sum of squares: an aggregate that only says how to add one."""

    def add(self, accumulator: Any, value: Any) -> Any:
        return accumulator + value[0] ** 2


def _first(value: Any) -> Any:
    return value[0]


ADDED: dict[str, Any] = {
    "count": agg.count(),
    "sum": agg.sum(_first),
    "mean": agg.mean(_first),
    "min": agg.min(_first),
    "max": agg.max(_first),
    "max of all": agg.max(),
    "other": Extreme(_first, lambda one, other: other),
    "top": agg.top(2, _first),
    "fold": agg.fold(0, lambda total, value: total * 3 + value[0]),
    "reduce": agg.reduce(lambda one, other: (one[0] - other[0],)),
    "collect": agg.collect(),
    "cogroup": Cogroup(),
    "named": agg.named({"sum": agg.sum(_first), "n": agg.count()}),
    "squares": Squares(),
}


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("split", [0, 1, 3, 7])
def test_several_elements_are_added_as_one_after_another(name: str, split: int) -> None:
    """To the bit: 0.1 + 0.2 + 0.3 is one number by additions, and another as a sum with compensation."""
    aggregate = ADDED[name]
    values = [(0.1, 2), (1, 0), (0.2, 5), (0, 1), (0.3, 3), (1, 7), (1e16, 3)]
    one = aggregate.create()
    for value in values:
        one = aggregate.add(one, value)
    several = aggregate.add_all(aggregate.add_all(aggregate.create(), values[:split]), values[split:])
    assert repr(several) == repr(one)


def test_a_function_that_ends_an_iteration_fails_as_any_other() -> None:
    def broken(value: int) -> int:
        if value == 2:
            raise StopIteration
        return value

    for aggregate in (agg.sum(broken), agg.mean(broken), agg.max(broken)):
        with pytest.raises(StopIteration):
            aggregate.add_all(aggregate.create(), [1, 2, 3])


def _outcome(function: Any, values: Any) -> Any:
    try:
        return function(values)
    except (TypeError, ValueError) as error:
        return repr(error)


@pytest.mark.parametrize("unit", [None, "s", "ms", "us", "ns"])
def test_several_timestamps_are_what_each_is(unit: Any) -> None:
    now, one, many = 1_700_000_000_000_000, reader(unit), reader_of_many(unit)
    bad = [True, MIN, END_OF_GLOBAL_WINDOW + 1, END_OF_GLOBAL_WINDOW, None, 2**80, -5, 10**14 - 1, 10**14, 5]
    for values in ([now + 3, now], [], [now, 1.5, now], *([now, value] for value in bad), *([value] for value in bad)):
        assert _outcome(many, values) == _outcome(lambda some: [*map(one, some)], values)


@pytest.mark.parametrize(
    ("windows", "emit", "most"),
    [
        (w.fixed(microseconds=10), "final", 2 * 9),
        (w.fixed(microseconds=10), "updates", 2 * 9),
        (w.sliding(microseconds=40, every=timedelta(microseconds=10)), "final", 5 * 9),
        (w.sessions(microseconds=4), "final", 9),
    ],
)
def test_what_is_kept_follows_the_open_windows_and_not_the_stream(windows: Any, emit: Any, most: int) -> None:
    """All but the last few of 500 windows leave nothing, with snapshots, too."""
    bench = Bench(Grouping(strategy(windows, emit=emit, panes="accumulating"), agg.count()), together=True)
    operator = bench.operator
    kept = []
    for start in range(0, 5000, 10):
        times = range(start + 1, start + 10)
        bench.buffer.run([_order(time) for time in times], 0, [(VALUE, time, time % 9) for time in times])
        bench.buffer.put_mark(behind_record(_order(times[-1])), (9, 1, times[-1]))
        bench.buffer.drain(encode_time(start + 10))
        bench.store(start + 10)
        kept.append(
            (len(operator._log), sum(map(len, operator._by_mark.values())), len(operator._held), len(bench.stored))
        )
        assert len(operator._records) <= 9
    logged, waiting, held, stored = (max(column) for column in zip(*kept, strict=True))
    assert waiting <= most
    assert (logged <= 12, held <= 9, stored <= 7 + 1) == (True, True, True), (logged, held, stored)
    assert len(operator.names) <= 7 + 1
    assert len(operator._turns) + len(operator._holds) < 1200


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("windows", [w.fixed(seconds=1), w.sessions(milliseconds=3)])
def test_the_time_and_key_of_a_record_are_computed_once(windows: Any, workers: int) -> None:
    """They go on beside the record to the next operation, to another worker of the process, too."""
    asked: list[int] = []
    keyed: list[int] = []

    def key(number: int) -> int:
        keyed.append(number)
        return number % 13

    def at(number: int) -> int:
        asked.append(number)
        return number * 1000 + number // 50 * 10_000

    flow = fc.Flow("once")
    timed = event_time(flow.source("numbers", int), at, unit="us")
    timed.key_by(key).window(windows).count().map(lambda pane: pane.value).sink("out")
    # Checks are on in tests, and look at each record by itself.
    outputs = flow.run(
        {"numbers": range(5000)}, workers=workers, settings={"job.check_types": False, "job.check_mutation": False}
    )
    assert sum(outputs["out"]) == 5000
    assert sorted(asked) == [*range(5000)]
    assert sorted(keyed) == [*range(5000)]
