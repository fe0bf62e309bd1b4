"""Items of an ordered operation that go in together: all is as if each had gone in alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from random import Random
from typing import Any, ClassVar

import pytest

from flamecore.abc.operator import GONE, Ends, Record, Site, Stretch, Watermarks, Way, Work, each
from flamecore.model.meta import GlobalTime, encode_child, encode_time
from flamecore.model.ordered import KEPT, Marking, Now, Ordered, Outcome, Timer, behind_record
from flamecore.model.vertices import ByKey
from flamecore.runtime.operators.ordered import OrderedBuffer, OrderedOperator


@dataclass(eq=False, slots=True, repr=False)
class Tally(Ordered):
    """The sum of each key, given with every item, and once more when the watermark has passed ten more.

    It fails on multiples of 50.
    """

    kind: ClassVar[str] = "tally"

    def work(self) -> Work:
        return TallyWork()


class TallyWork(Work):
    """The same for items alone, and for several.

    An item that is a multiple of 7 has to go alone.
    """

    def __init__(self) -> None:
        self.together = 0
        self.process_run, self.on_mark_run = self._process_run, self._on_mark_run

    def process(self, key: Any, state: Any, payload: tuple[Any, int], now: Now) -> Outcome:
        total = (state or 0) + payload[1]
        if payload[1] % 50 == 0:
            raise ValueError(payload)
        outputs = [(key, total)] * (2 if payload[1] % 7 else 1)
        if state is None:
            return Outcome(total, outputs, [Timer(now.watermark + 10, mark=True)], now.watermark + 10)
        return Outcome(total, outputs, KEPT)

    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        if state % 11 == 0:
            raise ValueError(state)
        if state % 5 == 0:
            return Outcome(1, [], [Timer(now.watermark + 3, 1, mark=True)])
        return Outcome(None, [(key, state, now.before)])

    def _process_run(
        self, keys: Sequence[Any], payloads: Sequence[Any], watermarks: Watermarks, records: Mapping[Any, Record | None]
    ) -> Stretch | Sequence[int]:
        if len(watermarks) > 1:
            return []
        watermark = watermarks[0][1]
        if alone := [place for place, (_, number) in enumerate(payloads) if number % 7 == 0]:
            return alone
        kept, changed, outputs = dict[Any, Record](), dict[Any, Record | None](), list[Any]()
        for key, payload in zip(keys, payloads, strict=True):
            before = changed.get(key) or kept.get(key) or records.get(key)
            outcome = self.process(key, None if before is None else before[0], payload, Now(0, watermark, watermark))
            outputs += outcome.outputs
            if before is None:
                changed[key] = (outcome.state, tuple([(*timer,) for timer in outcome.timers]), outcome.hold)
            else:
                (changed if key in changed else kept)[key] = (outcome.state, *before[1:])
        self.together += len(keys)
        return Stretch(kept, changed, outputs, 2)

    def _on_mark_run(self, keys: Sequence[Any], now: Now, records: Mapping[Any, Record]) -> Ends:
        gone, outputs, alone = list[Any](), list[Any](), list[Any]()
        for key in keys:
            state, (timer,), _ = records[key]
            if state % 5 == 0:
                alone.append(key)
                continue
            outputs += [(timer[:2], key, output) for output in self.on_time(key, state, Timer(*timer), now).outputs]
            gone.append(key)
        return Ends({}, gone, outputs, alone)


class Bench:
    """An operator at work, with what it has emitted, said and failed on."""

    def __init__(self, *, together: bool) -> None:
        self.outputs: list[Any] = []
        self.said: list[Any] = []
        self.stored: dict[Any, Any] = {}
        site = Site(
            7,
            lambda order, trace, alive, payload, error: self.outputs.append((order, repr(payload), repr(error))),
            (Way(self._emit, each(self._emit)),),
            snapshots=True,
        )
        vertex = Tally("tally", route=ByKey(itemgetter(0)), index=3)
        self.operator = OrderedOperator(vertex, site)
        if not together:
            self.operator._process_run = self.operator._on_mark_run = None
        self.operator.watermark.connect(
            {(9, 1): Marking("said", function=int)}, lambda *mark: self.said.append(mark), ["shared"]
        )
        self.buffer = OrderedBuffer("tally", self.operator, 1)

    def _emit(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        self.outputs.append((order, payload))

    def store(self, time: int) -> None:
        """Take a snapshot: what has changed, and perhaps more."""
        for piece in self.operator.cut(encode_time(time)):
            self.stored |= piece
        self.stored = {key: record for key, record in self.stored.items() if record is not GONE}


def order_of(time: int) -> bytes:
    return GlobalTime(time, 1).encode()


@pytest.mark.parametrize("seed", range(60))
def test_items_that_go_in_together_give_what_each_gives_alone(seed: int) -> None:
    """Outputs and failures with their places, marks, cuts at any time, and what goes on from them are the same."""
    rng = Random(seed)
    benches = [Bench(together=False), Bench(together=True)]
    keys: list[Any] = [*range(rng.choice([3, 40])), "a", float("nan"), []]
    some = [key for key in keys if type(key) is int] if rng.random() < 0.6 else keys
    rare = rng.random() < 0.7  # of items that go alone, or fail
    time, value, cut = 1, 0, 0
    for _ in range(rng.randint(2, 12)):
        records = []
        for _ in range(rng.choice([3, 30, 200])):
            number = rng.choice([1, 2, 3, 5, 8, 11, 13])
            if rng.random() < (0.01 if rare else 0.2):
                number = rng.choice([7, 14, 50, 100])
            records.append((time, (rng.choice(some), number)))
            time += 1
        marks = []
        for _ in range(rng.randint(0, 3)):
            value += rng.randint(1, 9)
            marks.append((rng.choice(records)[0], value))
        for bench in benches:
            bench.buffer.run([order_of(at) for at, _ in records], 0, [payload for _, payload in records])
            for at, mark in sorted(marks):
                bench.buffer.put_mark(behind_record(order_of(at)), (9, 1, mark))
            bench.buffer.drain(encode_time(time))
        if rng.random() < 0.6:
            cut = rng.randint(cut, time)
            for bench in benches:
                bench.store(cut)
            assert benches[0].stored == benches[1].stored, cut
            assert all(bench.operator.snapshot_of([*bench.stored]) == bench.stored for bench in benches)
    alone, together = benches
    # An item fails where it stands; whether it is told before or behind outputs of its run does not count.
    assert sorted(map(repr, alone.outputs)) == sorted(map(repr, together.outputs))
    assert [each for each in alone.outputs if len(each) == 2] == [each for each in together.outputs if len(each) == 2]
    assert alone.said == together.said
    for bench in benches:
        bench.store(time)
    assert alone.stored == together.stored
    works = [bench.operator.work for bench in benches]
    assert isinstance(works[1], TallyWork)
    assert works[1].together > 0 or not rare or some is keys


def test_keys_of_one_hash_share_a_place_and_their_outputs_are_numbered_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("flamecore.model.ordered", "flamecore.runtime.operators.ordered"):
        monkeypatch.setattr(f"{module}.rank_of", lambda key: 7)
        monkeypatch.setattr(f"{module}.rank_codes", lambda keys: [encode_child(7) for _ in keys])
    benches = [Bench(together=False), Bench(together=True)]
    for bench in benches:
        bench.buffer.run([*map(order_of, range(1, 25))], 0, [(time % 4, 3) for time in range(1, 25)])
        bench.buffer.put_mark(behind_record(order_of(1)), (9, 1, 5))
        bench.buffer.put_mark(behind_record(order_of(24)), (9, 1, 90))
        bench.buffer.drain(encode_time(30))
    alone, together = benches
    assert alone.outputs == together.outputs
    assert len({order for order, _ in together.outputs}) == len(together.outputs) > 40


def test_a_few_items_are_worked_on_alone() -> None:
    bench = Bench(together=True)
    bench.buffer.run([order_of(1), order_of(2)], 0, [("a", 1), ("b", 2)])
    bench.buffer.drain(encode_time(9))
    assert len(bench.outputs) == 4
    work = bench.operator.work
    assert isinstance(work, TallyWork)
    assert work.together == 0
