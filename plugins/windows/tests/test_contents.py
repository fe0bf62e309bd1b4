"""Contents of cells: versions of many entries are what tuples of them are, at a cost that does not grow with them."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamestream_windows.engine.functions import FnRecord, Function
from flamestream_windows.engine.values import Clock, Element, Input, Moment, Watermark
from flamestream_windows.model import contents
from flamestream_windows.model.contents import Held, Version, spelled

Op = tuple[Any, ...]


class Busy(w.StatefulFn[str, list[Op], Any]):
    """Does with its cells what an element says, and tells all of them."""

    micros = True

    line = w.List(int)
    some = w.Set(int)
    table = w.Map(int, int)
    times = w.OrderedList(int)
    last = w.Value(int)
    soon = w.Timer()
    wall = w.Timer("processing")

    def on_element(self, key: str, value: list[Op], at: int) -> Iterable[Any]:
        for cell, method, *given in value:
            if method == "fail":
                raise ValueError(given)
            if method == "unhashable":
                with pytest.raises(TypeError):
                    self.table.put([], 3)
                continue
            if cell in ("soon", "wall"):
                *given, tag = given
                yield getattr(getattr(self, cell), method)(*given, tag=tag)
            else:
                yield getattr(getattr(self, cell), method)(*given)
        yield [*self.line], [*self.some], self.table.items(), [*self.times], self.last.get(), bool(self.some)

    def on_soon(self, key: str, at: int) -> Iterable[Any]:
        self.line.add(at)
        if at % 7 == 3:
            raise ValueError(at)
        if at < 9:
            self.soon.set(at + 2, tag=f"again {at}")
        yield at, len(self.line), self.soon.due(tag="1")

    def on_wall(self, key: str, at: int) -> Iterable[Any]:
        yield at, self.wall.due(tag="1")


def _draw(rng: random.Random) -> Op:
    number, other, tag = rng.randrange(12), rng.randrange(12), str(rng.randrange(5))
    return rng.choice(
        [
            *[("line", "add", number)] * 3,
            ("line", "clear"),
            *[("some", "add", number)] * 4,
            ("some", "discard", number),
            ("some", "clear"),
            *[("table", "put", number, other)] * 4,
            ("table", "remove", number),
            ("table", "get", number),
            *[("times", "add", number, other)] * 4,
            ("times", "remove", number, other),
            ("times", "update", number, other, (-1).__mul__),
            ("times", "last", number, other),
            ("last", "set", number),
            *[("soon", "set", number, tag), ("wall", "set", number, tag)] * 2,
            ("soon", "clear", tag),
            ("wall", "due", tag),
            ("", "unhashable"),
        ]
    )


def _stored(record: FnRecord) -> Any:
    return [
        cell._replace(contents=tuple((name, spelled(own)) for name, own in cell.contents), alarms=spelled(cell.alarms))
        for cell in record.open
    ]


def _stepped(record: FnRecord, given: Input, *, lenient: bool) -> tuple[FnRecord, Any]:
    function = Function(Busy, lenient=lenient)
    try:
        record, outputs = function.step(record, given, Moment(0, clock=0), "k")
        return record, (outputs, function.hold(record), function.due(record, Moment(0)))
    except ValueError as error:
        return record, str(error)


def test_versions_of_many_entries_are_what_tuples_are(
    monkeypatch: pytest.MonkeyPatch, seeds: Callable[..., range]
) -> None:
    versions = alarms = 0
    for seed in seeds(40):
        rng = random.Random(seed)
        told: list[tuple[FnRecord, FnRecord, Any]] = [(FnRecord(), FnRecord(), [])]
        for _ in range(80):
            # Most calls go on from the last record, and some from one before, as a job does behind a failure.
            many, few, _ = told[-1] if rng.random() < 0.8 else rng.choice(told[-6:])
            ops = [_draw(rng) for _ in range(rng.randint(1, 6))]
            if rng.random() < 0.2:
                ops.insert(rng.randrange(len(ops) + 1), ("", "fail", 3))
            given: Input = Element(ops, 5)
            if rng.random() < 0.2:
                given = (Watermark if rng.random() < 0.5 else Clock)(rng.randrange(1, 12))
            lenient = rng.random() < 0.2
            monkeypatch.setattr(contents, "MANY", 2)
            many, outputs = _stepped(many, given, lenient=lenient)
            monkeypatch.setattr(contents, "MANY", sys.maxsize)
            few, wanted = _stepped(few, given, lenient=lenient)
            assert repr(outputs) == repr(wanted), f"seed {seed}"
            assert _stored(many) == [*few.open], f"seed {seed}"
            assert repr(many) == repr(few), f"seed {seed}"
            told.append((many, few, _stored(many)))
            versions += sum(isinstance(own, Version) for cell in many.open for _, own in cell.contents)
            alarms += sum(isinstance(cell.alarms, Version) for cell in many.open)
        for many, few, then in told:
            assert _stored(many) == then == [*few.open], f"seed {seed}: a version has changed"
    assert versions > 40 * len(seeds(40))
    assert alarms > 10 * len(seeds(40))


def test_a_change_of_many_entries_costs_as_much_as_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(Busy.table, ())
    for number in range(5000):
        held.change(number, 0)
    version = held.freeze()
    copied = 0

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def copying(self: Any, given: Any) -> Any:
            nonlocal copied
            copied += len(given)
            return method(self, given)

        return copying

    for name in ("thaw", "freeze"):
        monkeypatch.setattr(w.Map, name, counted(getattr(w.Map, name)))
    versions = [version]
    for number in range(2000):
        held = Held(Busy.table, versions[-1])
        held.change(number, 1)
        versions.append(held.freeze())
    assert copied == 0
    for number in range(2000, 12_000):
        held = Held(Busy.table, versions[-1])
        held.change(number % 3000, 2)
        versions[-1] = held.freeze()
    assert copied < 3 * 5000  # once for as many changes as there are entries
    assert [sum(value for _, value in spelled(versions[place])) for place in (0, 1, 1000)] == [0, 1, 1000]


def test_contents_that_are_only_read_stay_what_they_are() -> None:
    frozen = tuple((number, 0) for number in range(100))
    held = Held(Busy.table, frozen)
    assert held.contents[7] == 0
    assert held.freeze() is frozen


class Counts(w.StatefulFn[str, int, tuple[int, int]]):
    """Counts values, and fails on some."""

    counts = w.Map(int, int)

    def on_element(self, key: str, value: int, at: Any) -> Iterable[tuple[int, int]]:
        self.counts.put(value, self.counts.get(value, 0) + 1)
        if value % 50 == 49:
            raise ValueError(value)
        yield value, self.counts.get(value)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_job_goes_on_from_the_many_entries_of_its_snapshot(workers: int, tmp_path: Any) -> None:
    numbers = [number * 7 % 300 for number in range(900)]
    path = tmp_path / "numbers.jsonl"
    settings = {"source.numbers.use": "jsonl", "source.numbers.path": str(path), "job.on_error": "skip"}
    found: list[Any] = []
    for count in (500, 900):
        path.write_text("".join(f"[{place}, {number}]\n" for place, number in enumerate(numbers[:count])), "utf-8")
        flow = fc.Flow("counts")
        timed = w.event_time(flow.source("numbers", tuple), lambda record: record[0], unit="s", name="times")
        values = timed.map(lambda record: record[1]).key_by(lambda _: "k")
        values.process(Counts, name="counts").sink("out")
        found += flow.run(state=tmp_path / "state", workers=workers, settings=settings)["out"]
    wanted, counted = [], dict[int, int]()
    for number in numbers:
        if number % 50 != 49:
            counted[number] = counted.get(number, 0) + 1
            wanted.append((number, counted[number]))
    assert found == wanted
