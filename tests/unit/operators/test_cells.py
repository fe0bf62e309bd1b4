"""Ordered operations whose states fall into cells: all is as if each item had gone in alone, and each key waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from random import Random
from typing import Any, ClassVar

import pytest

from flamecore.abc.operator import GONE, Cells, Part, Site, Turn, Way, Work, each
from flamecore.model.meta import GlobalTime, encode_child, encode_time
from flamecore.model.ordered import Marking, Now, Ordered, Outcome, Timer, behind_record, is_shared, shared_names
from flamecore.model.vertices import ByKey
from flamecore.runtime.operators.columns.cells import CellOperator, ordered_operator
from flamecore.runtime.operators.ordered import OrderedBuffer, OrderedOperator

Item = tuple[Any, int, int]
"""A key, the turn that it is for, and a number."""


@dataclass(eq=False, slots=True, repr=False)
class Sums(Ordered):
    """The sum of each key and turn, given with every item, and when the watermark has passed the turn.

    A sum with the tag 1 is given ten later, unless it is a multiple of 3. It fails on multiples of 50, and forgets on
    multiples of 49.
    """

    kind: ClassVar[str] = "sums"

    def work(self) -> Work:
        return SumsWork()


class SumsWork(Work):
    """The states are pairs of a turn and a sum, or, if an odd number has come late, these and a text."""

    def __init__(self) -> None:
        self.cells = SumCells()

    def process(self, key: Any, state: Any, payload: Item, now: Now) -> Outcome:
        _, at, number = payload
        if number % 50 == 0:
            raise ValueError(payload)
        odd = state is not None and state[0] == "odd"
        sums = dict(state[1:] if odd else state or ())
        if number % 49 == 0:
            return Outcome(None, [(key, "forgotten")] * 2)
        if at <= now.watermark:
            odd = odd or number % 2 == 1
            if not sums:
                return Outcome()
        else:
            sums[at, number % 2] = sums.get((at, number % 2), 0) + number
        return self._outcome(sums, odd, [(key, number), (key, sum(sums.values()))])

    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        odd = state[0] == "odd"
        sums = dict(state[1:] if odd else state)
        turn = (timer.time, timer.tag)
        total = sums.pop(turn)
        if timer.tag == 1 and total % 3 and timer.time + 10 > now.watermark:
            sums[timer.time + 10, 2] = total
            return self._outcome(sums, odd, [])
        if total % 11 == 0:
            raise ValueError(total)
        return self._outcome(sums, odd, [(key, turn, total, now.before)])

    def _outcome(self, sums: dict[Any, int], odd: bool, outputs: Sequence[Any]) -> Outcome:
        if not sums:
            return Outcome(None, outputs)
        state = tuple(sorted(sums.items()))
        timers = [Timer(*turn, True) for turn in sums]
        return Outcome(("odd", *state) if odd else state, outputs, timers, min(at for at, _ in sums))


class SumCells(Cells):
    def take(
        self,
        keys: Sequence[Any],
        payloads: Sequence[Any],
        watermarks: Sequence[tuple[int, int]],
        cells: Mapping[Turn, Mapping[Any, Any]],
    ) -> tuple[Sequence[Part], Sequence[Any]] | Sequence[int]:
        alone = [place for place, (_, _, number) in enumerate(payloads) if number % 49 == 0]
        for start, watermark in watermarks:
            alone += [place for place, (_, at, _) in enumerate(payloads) if place >= start and at <= watermark]
        if alone:
            return sorted({*alone})
        new: dict[Turn, dict[Any, int]] = {}
        outputs: list[Any] = []
        for key, (_, at, number) in zip(keys, payloads, strict=True):
            if number % 50 == 0:
                raise ValueError(number)
            turn = (at, number % 2)
            after = new.setdefault(turn, {})
            after[key] = (after.get(key) or cells.get(turn, {}).get(key, 0)) + number
            sums = [new.get(turn, {}).get(key) or cells.get(turn, {}).get(key, 0) for turn in {**cells, **new}]
            outputs += [(key, number), (key, sum(sums))]
        return [Part(turn, found.keys(), found_put(found)) for turn, found in new.items()], outputs

    def after(self, turn: Turn, cells: Mapping[Any, Any], watermark: int) -> Mapping[Turn, Mapping[Any, Any]]:
        if turn[1] != 1 or turn[0] + 10 <= watermark:
            return {}
        later = {key: total for key, total in cells.items() if total % 3}
        return {(turn[0] + 10, 2): later} if later else {}

    def end(self, keys: Sequence[Any], cells: Mapping[Any, Any], timer: Timer, now: Now) -> Sequence[Any]:
        if any(cells[key] % 11 == 0 for key in keys):
            raise ValueError(timer)
        return [(key, (timer.time, timer.tag), cells[key], now.before) for key in keys]

    def hold(self, turn: Turn) -> int:
        return turn[0]

    def joined(self, cells: Sequence[tuple[Turn, Any]]) -> Any:
        return tuple(cells)

    def parted(self, state: Any, turns: Sequence[Turn]) -> Sequence[Any] | None:
        if state[0] == "odd" or [turn for turn, _ in state] != [*turns]:
            return None
        return [total for _, total in state]


def found_put(found: Mapping[Any, int]) -> Any:
    return lambda cells: cells.update(found)


class Bench:
    """An operator at work, with what it has emitted, said and failed on."""

    def __init__(self, *, with_cells: bool, snapshots: bool = True) -> None:
        self.outputs: list[Any] = []
        self.said: list[Any] = []
        self.stored: dict[Any, Any] = {}
        site = Site(
            7,
            lambda order, trace, alive, payload, error: self.outputs.append((order, repr(payload), repr(error))),
            (Way(self._emit, each(self._emit)),),
            snapshots=snapshots,
        )
        vertex = Sums("sums", route=ByKey(itemgetter(0)), index=3)
        self.operator = ordered_operator(vertex, site) if with_cells else OrderedOperator(vertex, site)
        assert isinstance(self.operator, CellOperator) == with_cells
        names = shared_names()[:1] if snapshots else None
        self.operator.watermark.connect(
            {(9, 1): Marking("said", function=int)}, lambda *mark: self.said.append(mark), names
        )
        self.buffer = OrderedBuffer("sums", self.operator, 1)

    def _emit(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        self.outputs.append((order, payload))

    def run(self, records: Sequence[tuple[int, Item]], marks: Sequence[tuple[int, int]], to: int) -> None:
        if records:
            self.buffer.run([order_of(at) for at, _ in records], 0, [payload for _, payload in records])
        for at, mark in marks:
            self.buffer.put_mark(behind_record(order_of(at)), (9, 1, mark))
        self.buffer.drain(encode_time(to))

    def store(self, time: int) -> None:
        """Take a snapshot: what has changed, and perhaps more."""
        for piece in self.operator.cut(encode_time(time)):
            self.stored |= piece
        self.stored = {key: record for key, record in self.stored.items() if record is not GONE}


@pytest.mark.parametrize("with_cells", [False, True])
@pytest.mark.parametrize("snapshots", [False, True])
def test_keys_that_have_ended_take_no_memory(with_cells: bool, snapshots: bool) -> None:
    bench, most = Bench(with_cells=with_cells, snapshots=snapshots), 0
    operator = bench.operator
    for time in range(1, 200):
        keys = [float(number) for number in range(100 * time, 100 * (time + 1))]
        records = [(100 * time + at, (key, 10 * time + 5, 1)) for at, key in enumerate(keys)]
        bench.run(records, [(records[-1][0], 10 * time)], 100 * (time + 1))
        if snapshots and time % 2:
            bench.store(100 * (time + 1))
            operator.compact()
        most = max(most, len(operator.names), len(operator._first_keys), len(operator._named))
    assert len(bench.said) > 100, "turns have ended, and the keys with them"
    assert 100 <= most < 3_000


def order_of(time: int) -> bytes:
    return GlobalTime(time, 1).encode()


@pytest.mark.parametrize("seed", range(120))
def test_states_in_cells_are_what_each_key_has_alone(seed: int) -> None:
    """Outputs and failures with their places, marks, cuts at any time, and what goes on from them are the same."""
    rng = Random(seed)
    benches = [Bench(with_cells=False), Bench(with_cells=True)]
    keys: list[Any] = [*range(rng.choice([1, 3, 40])), *rng.choice([[], [-1, -2], ["a", float("nan"), []]])]
    rare, ahead = rng.choice([0.0, 0.01, 0.2]), rng.choice([3, 30])
    time, value, cut = 1, 0, 0
    everything, all_marks, snapshot = list[Any](), list[Any](), dict[Any, Any]()
    for _ in range(rng.randint(2, 12)):
        records = []
        for _ in range(rng.choice([1, 3, 30, 100, 400])):
            number = rng.choice([1, 2, 3, 5, 8, 12, 13]) if rng.random() >= rare else rng.choice([49, 50, 98, 11])
            at = value + rng.randint(1, ahead) if rng.random() >= rare else value - 1
            records.append((time, (rng.choice(keys), at, number)))
            time += 1
        marks = []
        for _ in range(rng.randint(0, 3)):
            value += rng.choice([1, 2, 9, 25])
            marks.append((rng.choice(records)[0], value))
        marks.sort()
        everything += records
        all_marks += marks
        for bench in benches:
            bench.run(records, marks, time)
        if rng.random() < 0.6:
            cut = rng.randint(cut, time)
            names = [*range(40)]
            for bench in benches:
                bench.store(cut)
                if cut % 2:  # as when a sweep has come to its end
                    bench.operator._enough = 0
                    bench.operator.compact()
                    assert {name for name in bench.stored if not is_shared(name)} <= {*bench.operator.names}
                assert bench.operator.snapshot_of(names) == {
                    name: record for name, record in bench.stored.items() if name in names and type(name) is int
                }
            assert benches[0].stored == benches[1].stored, cut
            snapshot = dict(benches[1].stored)
    alone, together = benches
    for bench in benches:
        bench.store(time)
    assert alone.stored == together.stored
    # An item fails where it stands; whether it is told before or behind outputs of its run does not count.
    assert sorted(map(repr, alone.outputs)) == sorted(map(repr, together.outputs))
    live = [each for each in alone.outputs if len(each) == 2]
    assert live == [each for each in together.outputs if len(each) == 2]
    assert alone.said == together.said
    if snapshot:
        again = Bench(with_cells=True)
        again.operator.restore(snapshot)
        again.run(
            [record for record in everything if record[0] >= cut], [each for each in all_marks if each[0] >= cut], time
        )
        assert [each for each in again.outputs if len(each) == 2] == [
            each for each in live if each[0] >= encode_time(cut)
        ]
        again.stored = snapshot
        again.store(time)
        assert again.stored == alone.stored


@pytest.mark.parametrize("seed", range(12))
def test_a_turn_comes_to_its_keys_in_their_order_whichever_have_come_before(seed: int) -> None:
    """Turns of few keys and of many, known and new ones."""
    rng = Random(seed)
    alone, together = Bench(with_cells=False), Bench(with_cells=True)
    time, known = 1, 40
    for turn in range(1, 30):
        known += rng.choice([0, 0, 1, 5, 60])
        keys = rng.sample(range(known), rng.choice([1, 2, 10, known // 4, known // 2, known]))
        records = [(time + at, (key, 10 * turn, 2)) for at, key in enumerate(keys)]
        time += len(keys)
        for bench in (alone, together):
            bench.run(records, [(time - 1, 10 * turn)], time)
    assert alone.outputs == together.outputs
    assert alone.said == together.said


def test_keys_of_one_hash_share_a_place_and_their_outputs_are_numbered_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamecore.runtime.operators.ordered.rank_of", lambda key: 7)
    same = "flamecore.runtime.operators.columns.cells.rank_codes"
    monkeypatch.setattr(same, lambda keys: [encode_child(7) for _ in keys])
    alone, together = Bench(with_cells=False), Bench(with_cells=True)
    records = [(time, (time % 4, 30, 3)) for time in range(1, 25)]
    for bench in (alone, together):
        bench.run(records, [(1, 5), (24, 90)], 30)
    assert alone.outputs == together.outputs
    assert len({order for order, _ in together.outputs}) == len(together.outputs) == 2 * 24 + 4


def test_what_is_kept_follows_the_cells_that_are_there() -> None:
    """Turns that have come leave nothing, however many there were."""
    bench = Bench(with_cells=True)
    operator = bench.operator
    for time in range(1, 2000, 10):
        bench.run([(time + n, (n % 3, time + 12, 2)) for n in range(9)], [(time + 8, time)], time + 10)
        bench.store(time)
        assert len(operator._by_mark) <= 3
        assert sum(map(len, operator._by_mark.values())) <= 9
        assert len(operator._held) <= 3
        assert not operator._records
        assert len(operator._log) <= 6
    assert len(operator._turns) < 600
    assert len(operator._holds) < 600
    assert sorted(operator.names) == [0, 1, 2]
