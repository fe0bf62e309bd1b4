"""Ordered operations whose states fall into cells.

The cells of all keys that wait for a turn are in one place. A key costs what its cells do. It has no record, no timer
and no hold of its own: each turn has one timer, and one hold for all. So items are taken in columns, and a turn that
comes takes all its cells away.

A key whose state does not fall into cells has a record, as in any ordered operation, and its items go alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, islice
from operator import eq, is_not
from typing import Any, Final

from flamecore.abc.operator import GONE, Part, Record, Site, Turn, Work
from flamecore.model.batch import Orders, children, column_of, extended, many_of, results
from flamecore.model.hashing import check_key, check_keys
from flamecore.model.meta import child_codes, decode_time, encode_child
from flamecore.model.ordered import Now, Ordered, Timer, rank_codes, tie_of
from flamecore.runtime.operators.ordered import OrderedOperator

Taken = tuple[Orders, Sequence[Any], int, dict[Turn, dict[Any, Any]]]
"""(orders, payloads, watermark, cells before): what has been taken in one call."""

Cut = Sequence[tuple[Turn, Mapping[Any, Any], Mapping[Any, Any]]]
"""For each turn, in order, its cells now, and those of them that were others at some time; None: there was none."""

_MOST_CODES: Final = 1 << 16
"""Most keys whose codes are remembered, if no turn has more."""

_SHORT: Final = 8
"""Among fewer items one that has to be worked on alone is not looked for: all are."""

_PACKED: Final = 256
"""Among fewer items orders of outputs are spelled out: to emit outputs by themselves costs more than their orders."""

_DENSE: Final = 8
"""So many times the keys are gone through in their order sooner than they are sorted, or copied than looked for."""

_DENSE_AGAIN: Final = 3
"""The same where some of those that are gone through have to be sorted in first."""

_FIRST: Final = encode_child(0)
_IS_THERE: Final = partial(is_not, None)
_NO_CELLS: Final[Mapping[Any, Any]] = {}


def ordered_operator(vertex: Ordered, site: Site) -> OrderedOperator:
    """Return the operator of an ordered operation."""
    work: Work = vertex.work()
    has_cells = not vertex.timers and getattr(work, "cells", None) is not None
    return (CellOperator if has_cells else OrderedOperator)(vertex, site, work)


class Past:
    """States at some time in the past: of the keys that have been worked on since.

    Attributes:
        records: The records of the keys that were worked on alone.
        cells: The changed cells of other keys, by turn; None: there was none.
    """

    def __init__(self) -> None:
        self.records: dict[Any, Record | None] = {}
        self.cells: dict[Turn, dict[Any, Any]] = {}
        self._whole: set[Turn] = set()  # the turns of which all cells are known, those that came later too

    def note(self, before: Mapping[Turn, Mapping[Any, Any]]) -> None:
        """Note the cells as they have been until now, unless that is known already."""
        for turn, cells in before.items():
            noted = self.cells.setdefault(turn, {})
            if not cells.keys() <= noted.keys():  # nearly always they are: most keys have come before
                self._add(turn, cells, noted)

    def note_all(self, turn: Turn, cells: Mapping[Any, Any], new: Mapping[Any, None]) -> None:
        """Note all cells of a turn as they have been until now, as `note` does.

        Args:
            turn: The turn.
            cells: Its cells; None: there was none.
            new: Those that there were not.
        """
        if turn not in self._whole:
            self._whole.add(turn)
            self.note({turn: cells})
        elif new:  # all others have come with the first call, or as new ones since
            self._add(turn, new, self.cells[turn])

    def _add(self, turn: Turn, cells: Mapping[Any, Any], noted: dict[Any, Any]) -> None:
        if not self.records and len(noted) <= _DENSE * len(cells):
            self.cells[turn] = {**cells, **noted}
            return
        for key in cells.keys() - noted.keys():
            if key not in self.records:
                noted[key] = cells[key]


# Why cells: with a record, a timer and a hold for each change of each key, a count of 1,000 keys
# with 12 items a window took half as long again. In columns by turn, a turn that comes due is one
# dictionary to take away, whatever the number of its keys.
class CellOperator(OrderedOperator):
    """The operator of ordered operations whose states fall into cells.

    Args:
        vertex: The ordered operation.
        site: Its place on the worker.
        work: Its work.
    """

    # The values of the keys that wait for a turn (`_by_mark`) are their cells. None: the key has a record.

    def __init__(self, vertex: Ordered, site: Site, work: Work) -> None:
        super().__init__(vertex, site, work)
        assert work.cells is not None
        self._cells = work.cells
        self._all_keys_of = many_of(self._key_of)
        self._find, self._whole = self._record_now, False
        self._codes: dict[Any, bytes] = {}  # of keys, as they are in places
        self._known: list[Any] = []  # the first of these keys, in the order of the codes
        self._past = Past()  # at the last cut

    def _kept_keys(self) -> Iterable[Any]:
        past = self._past
        return chain(self._records, *self._by_mark.values(), past.records, *past.cells.values())

    def _has_state(self, key: Any) -> bool:
        return key in self._records or any(key in cells for cells in self._by_mark.values())

    def held(self) -> int:
        cells = [(turn, cell) for turn, keys in self._by_mark.items() for cell in keys.values() if cell is not None]
        return super().held() + sum(self.work.held(self._cells.joined([each])) for each in cells)

    # -- work ------------------------------------------------------------------------------------------------------

    def _work_on(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> int:
        """Work on items in columns, as many at once as can be; return how many the round has come to."""
        start, count, apart = 0, len(orders), -1
        while start < count and not self._round.is_over:
            self._run_events(orders[start])
            # Up to `apart` items with a mark between them go apart.
            end, watermarks = self._quiet(orders, start, start < apart)
            some, those = orders, payloads
            if end - start < count:  # a slice of all would be a copy, and one of each column
                some, those = orders[start:end], payloads[start:end]
            if len(watermarks) == 1:
                self._run_stretch(some, trace, those)
            elif not self._is_taken(some, those, watermarks):
                apart = end
                continue
            start = end
        return start

    def _quiet(self, orders: Orders, start: int, apart: bool) -> tuple[int, list[tuple[int, int]]]:
        """Return up to where no mark makes a turn due, and the watermarks up to there.

        The watermarks are as `Cells.take` takes them. The result of a mark that makes no turn due does not depend on
        whether items behind it have been worked on before. If they go `apart`, it is up to the next mark.
        """
        watermarks, marks = [(0, self.watermark.value)], self.watermark.marks
        if not marks:
            return len(orders), watermarks
        if apart or not self._turns:  # no turn is known that the first items could wait for
            return bisect_right(orders, marks[0][0], start), watermarks
        for place, value in self.watermark.coming():
            if place > orders[-1]:
                break
            behind = bisect_right(orders, place, start)
            if value is None or value >= self._turns[0][0]:
                return behind, watermarks
            watermarks.append((behind - start, value))
        return len(orders), watermarks

    def _run_stretch(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        """Work on several items with no mark between them."""
        alone: Sequence[int] | None = []
        try:
            alone = self._take(orders, payloads, [(0, self.watermark.value)])
        except Exception:  # noqa: BLE001 - the one that fails is found if each goes alone
            # A failed `take` has put nothing in place, so that a repetition is harmless.
            self._run_halves(orders, trace, payloads)
            return
        if alone is not None:
            self._run_around(alone, orders, trace, payloads)

    def _run_halves(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        """Work on several items of which one fails."""
        if len(orders) < 2 * _SHORT:
            self._run_each(orders, trace, payloads)
            return
        half = len(orders) // 2
        self._run_stretch(orders[:half], trace, payloads[:half])
        self._run_stretch(orders[half:], trace, payloads[half:])

    def _run_around(self, alone: Any, orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        """Work on several items, some of them alone.

        `alone` has the places of these; if it is empty, all items are worked on alone.
        """
        if not alone or len(alone) * _SHORT > len(orders):
            self._run_each(orders, trace, payloads)
            return
        start = 0
        for place in (*alone, len(orders)):
            if start < place:
                self._run_stretch(orders[start:place], trace, payloads[start:place])
            self._run_each(orders[place : place + 1], trace, payloads[place : place + 1])
            start = place + 1

    def _is_taken(self, orders: Orders, payloads: Sequence[Any], watermarks: Sequence[tuple[int, int]]) -> bool:
        """Work on several items with marks among them; return False if that cannot be."""
        try:
            return self._take(orders, payloads, watermarks) is None
        except Exception:  # noqa: BLE001 - the one that fails is found if each goes alone
            return False

    def _take(
        self, orders: Orders, payloads: Sequence[Any], watermarks: Sequence[tuple[int, int]]
    ) -> Sequence[int] | None:
        """Work on several items in one call.

        Return None, or the places of those that have to be worked on alone; an empty list: all.
        """
        # One key with a record sends only its own items alone: the others remain in columns.
        keys = self._first_keys.of_items(orders, self._keys(payloads))
        if self._records and not self._records.keys().isdisjoint(keys):
            return [place for place, key in enumerate(keys) if key in self._records]
        found = self._cells.take(keys, payloads, watermarks, self._by_mark)
        if not isinstance(found, tuple):
            return found
        parts, outputs = found
        if len(watermarks) > 1 and any(part.turn[0] <= watermarks[-1][1] for part in parts):
            return []  # one of the marks makes it due
        for keyed in {id(part.keys): part.keys for part in parts}.values():  # many parts may share them
            check_keys(keyed)
        self._put(orders, payloads, parts)
        if outputs:
            self._add_of(orders, outputs)
        return None

    def _keys(self, payloads: Sequence[Any]) -> Sequence[Any]:
        """Return the keys of several items."""
        found = column_of(payloads, self._key_of)  # as where they have come from another partition
        if found is not None:
            return found
        return results(self._key_of, payloads) if self._all_keys_of is None else self._all_keys_of(payloads)

    def _run_each(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        """Work on items one after another."""
        for place, (order, payload) in enumerate(zip(orders, payloads, strict=True)):
            self._run_events(order)
            if not self._is_taken_alone(order, payload):
                self._work_on_each(orders[place : place + 1], trace, payloads[place : place + 1])

    def _is_taken_alone(self, order: bytes, payload: Any) -> bool:
        """Work on one item by its cells; return False if it needs all the state of its key."""
        try:
            key = self._first_keys.of_item(order, self._key_of(payload))
            check_key(key)
            if key in self._records:
                return False
            found = self._cells.take_alone(key, payload, self.watermark.value, self._by_mark)
        except Exception:  # noqa: BLE001 - it fails once more where failures are told
            return False
        if found is None:
            return False
        parts, outputs = found
        if parts:
            self._put((order,), (payload,), parts)
        self._orders += [order + code for code in child_codes(len(outputs))]
        self._outputs += outputs
        return True

    def _ranked(self, keys: Mapping[Any, Any]) -> list[Any]:
        """Return keys in the order in which a turn comes to them."""
        codes = self._codes
        if not codes.keys() >= keys.keys():
            new = [key for key in keys if key not in codes]
            # Cleared as a whole: codes can be computed again, and keys that are gone would stay
            # forever otherwise.
            if len(codes) + len(new) > _MOST_CODES:
                codes.clear()
                self._known.clear()
                new = [*keys]
            codes.update(zip(new, rank_codes(new), strict=True))
        known, code_of = self._known, codes.__getitem__
        unsorted = len(codes) - len(known)
        if len(codes) >= (_DENSE_AGAIN if unsorted else _DENSE) * len(keys):
            return sorted(keys, key=code_of)
        if unsorted:  # the last of them
            # The sort takes what is sorted already as one run.
            known += sorted(islice(codes, len(known), None), key=code_of)
            known.sort(key=code_of)
        # Equal keys may differ, and those that are known may be of items that are gone.
        if self._first_keys.is_on:
            own = dict(zip(keys, keys, strict=True))
            return [own[key] for key in known if key in own]
        if len(known) == len(keys):  # all keys are known, so these are the same
            return [*known]
        return [key for key in known if key in keys]

    def _put(self, orders: Orders, payloads: Sequence[Any], parts: Sequence[Part]) -> None:
        """Put new cells in place."""
        before: dict[Turn, dict[Any, Any]] = {}
        for turn, some, put in parts:
            cells = self._keys_of(turn)
            count = len(cells)
            # All of them are copied sooner than some are looked for. A key that has a record has no cell to be noted.
            whole = self._snapshots and not self._records and count <= _DENSE * len(some)
            if self._snapshots:  # before `put`, which overwrites them
                before[turn] = cells.copy() if whole else {key: cells.get(key) for key in some}
            put(cells)
            new = [*islice(reversed(cells), len(cells) - count)][::-1]  # behind all others
            if new:
                self._hold_turn(turn, len(new))
            if not self._snapshots:
                continue
            if whole:
                absent = dict.fromkeys(new)
                before[turn].update(absent)
                self._past.note_all(turn, before[turn], absent)
            else:
                self._past.note({turn: before[turn]})
            self._add_names(new)
        if self._snapshots:
            self._log.append((orders, payloads, self.watermark.value, before))

    def _run_turn(self, timer: Timer, keys: dict[Any, Any], mark: bytes, before: int) -> None:
        turn = (timer.time, timer.tag)
        keys = self._put_off(turn, keys, mark)
        if not keys:
            return
        ranked = self._ranked(keys)
        # Keys of one rank are rare, so the second key of the order is computed only for them.
        codes = self._codes
        ranks = [codes[key] for key in ranked]
        if tied := any(map(eq, ranks, islice(ranks, 1, None))):
            ranked.sort(key=lambda key: (codes[key], tie_of(key)))
        # The place of an output has the code of its key, so outputs of a turn have the same order
        # on any number of workers.
        prefix = self._prefix(mark, timer)
        places = [prefix + rank for rank in ranks]
        if (not self._records or None not in keys.values()) and self._end(
            timer, ranked, keys, places, mark, before, tied=tied
        ):
            return
        # The cells of the keys that are worked on alone have to be found.
        self._by_mark[turn] = keys
        for is_alone, some in groupby(zip(ranked, places, strict=True), key=lambda each: keys[each[0]] is None):
            chosen = [*some]
            these = [key for key, _ in chosen]
            cells = {key: keys[key] for key in these}
            if not is_alone and self._end(timer, these, cells, [place for _, place in chosen], mark, before, tied=tied):
                for key in these:
                    del keys[key]
                continue
            for key, place in chosen:
                self._run_timer(place, key, timer, before)
        self._by_mark.pop(turn, None)

    def _put_off(self, turn: Turn, keys: dict[Any, Any], mark: bytes) -> dict[Any, Any]:
        """Put cells whose turn has come where they wait for later turns; return the keys whose turn ends."""
        cells = keys
        if self._records and None in keys.values():
            cells = {key: cell for key, cell in keys.items() if cell is not None}
        later = self._cells.after(turn, cells, self.watermark.value)
        if not later:
            return keys
        moved = set[Any]().union(*later.values())
        self._hold_turn(turn, -len(moved))
        for new, some in later.items():
            self._keys_of(new).update(some)
            self._hold_turn(new, len(some))
        if self._snapshots:
            changed = {turn: {key: cells[key] for key in moved}}
            changed |= {new: dict.fromkeys(some) for new, some in later.items()}
            self._log.append(((mark,), (), 0, changed))
            self._past.note(changed)
        return {key: cell for key, cell in keys.items() if key not in moved}

    def _end(
        self,
        timer: Timer,
        ranked: Sequence[Any],
        cells: Mapping[Any, Any],
        places: Sequence[bytes],
        mark: bytes,
        before: int,
        *,
        tied: bool,
    ) -> bool:
        """Work on a timer that a mark makes due for keys with cells, whose turn ends.

        Return False if the keys have to go alone.

        Args:
            timer: The timer.
            ranked: The keys, in order.
            cells: Their cells.
            places: Their places.
            mark: The place of the mark.
            before: The watermark before it.
            tied: Whether keys may share a place.
        """
        now = Now(decode_time(mark), self.watermark.value, before)
        try:
            outputs = self._cells.end(ranked, cells, timer, now)
        except Exception:  # noqa: BLE001 - the one that fails is found if each goes alone
            return False
        turn = (timer.time, timer.tag)
        self._hold_turn(turn, -len(ranked))
        if self._snapshots:
            self._log.append(((mark,), (), 0, {turn: cells}))
            self._past.note({turn: cells})
        if not outputs:
            return True
        each = len(outputs) // len(ranked)
        if each == 1 and not tied:
            self._orders += [place + _FIRST for place in places]
            self._outputs += outputs
            self._place, self._number = places[-1], 1
        else:
            for number, place in enumerate(places):
                self._add(place, outputs[each * number : each * (number + 1)])
        return True

    def _add_of(self, orders: Orders, outputs: Sequence[Any]) -> None:
        """Add the outputs of several items, equally many of each."""
        each = len(outputs) // len(orders)
        if len(orders) < _PACKED:
            self._orders += [order + code for order in orders for code in child_codes(each)]
            self._outputs += outputs
            return
        # By themselves, so that their orders stay packed.
        self._emit()
        made = extended(orders, _FIRST) if each == 1 else children(orders, (each,) * len(orders))
        self._emit_run(made, self._ident, outputs)

    # -- records ---------------------------------------------------------------------------------------------------

    def _record_now(self, key: Any) -> Record | None:
        record = self._records.get(key)
        if record is not None:
            return record
        # No turn has come that a key waits for: of those that are found all cells count.
        found = [(turn, cell) for turn, cells in self._by_mark.items() if (cell := cells.get(key)) is not None]
        # Turns were added as items came; states and snapshots need one order.
        found.sort(key=_turn_of)
        return self._record_of(found)

    def _record_of(self, cells: Sequence[tuple[Turn, Any]]) -> Record | None:
        """Return the record of a key that has these cells."""
        if not cells:
            return None
        holds = [hold for turn, _ in cells if (hold := self._cells.hold(turn)) is not None]
        timers = tuple([(*turn, True) for turn, _ in cells])
        return (self._cells.joined(cells), timers, min(holds, default=None))

    def _cells_in(self, record: Record | None) -> Sequence[tuple[Turn, Any]] | None:
        """Return the cells of a record, if it is no more than these."""
        if record is None:
            return ()
        state, timers, hold = record
        turns = [timer[:2] for timer in timers]
        cells = self._cells.parted(state, turns) if turns else None
        if cells is None:
            return None
        found = [*zip(turns, cells, strict=True)]
        own = self._record_of(found)
        return found if own is not None and own[2] == hold else None

    def _keep(self, key: Any, before: Record | None, record: Record | None) -> None:
        if before is not None and key not in self._records:  # a record has one hold, and each cell that of its turn
            for timer in before[1]:
                self._hold_turn(timer[:2], -1)
            if before[2] is not None:
                self._hold(before[2])
            self._records[key] = before
        super()._keep(key, before, record)
        if record is None:
            return
        cells = self._cells_in(record)
        if cells is None:
            for timer in record[1]:
                self._by_mark[timer[:2]][key] = None
            return
        if record[2] is not None:
            self._let_go(record[2])
        for turn, cell in cells:
            self._by_mark[turn][key] = cell
            self._hold_turn(turn, 1)
        del self._records[key]

    def _hold_turn(self, turn: Turn, times: int) -> None:
        """Note that more cells hold the marks where those of a turn do, or less."""
        hold = self._cells.hold(turn)
        if hold is None:
            return
        if times > 0:
            self._hold(hold, times)
        else:
            self._let_go(hold, -times)

    # -- snapshots -------------------------------------------------------------------------------------------------

    def _note(self, orders: list[bytes], keys: list[Any], before: list[Record | None]) -> None:
        if self._snapshots and orders:
            self._log.append((orders, keys, before))
            self._add_names(keys)
            for key, record in zip(keys, before, strict=True):
                self._note_record(self._past, key, record)

    def _add_names(self, keys: Iterable[Any]) -> None:
        named = self._named
        if named.issuperset(keys):  # as nearly always
            return
        for key in keys:
            if key not in named:
                named.add(key)
                self.names.append(key)

    def _note_record(self, past: Past, key: Any, record: Record | None) -> None:
        """Note the record that a key has had until now, unless that is known already."""
        if key in past.records:
            return
        changed = {turn: noted.pop(key) for turn, noted in past.cells.items() if key in noted}
        if changed:
            cells = self._cells_in(record)
            assert cells is not None
            then = {turn: cell for turn, cell in ({**dict(cells), **changed}).items() if cell is not None}
            record = self._record_of(sorted(then.items(), key=_turn_of))
        past.records[key] = record

    def cut(self, before: bytes) -> Sequence[Mapping[Any, Any]]:
        self.trim(before)
        then, past = self._past, Past()
        for entry in self._log:
            start = bisect_left(entry[0], before) if entry[0][0] < before else 0
            if len(entry) == 3:
                for key, old in zip(entry[1][start:], entry[2][start:], strict=True):
                    self._note_record(past, key, old)
            else:
                past.note(entry[3] if start == 0 else self._midway(entry, start))
        # From here on, `past` is what the next cut compares with.
        self._past = past
        names = dict.fromkeys(then.records)
        for turn, noted in then.cells.items():
            cells, since = self._by_mark.get(turn, _NO_CELLS), past.cells.get(turn, _NO_CELLS)
            if not _has_cells(noted) and not _has_cells(cells) and not _has_cells(since):
                continue  # as of nearly all turns: they began and ended between the two cuts
            cell_of = {**cells, **since}.get
            names.update(dict.fromkeys([key for key, cell in noted.items() if cell_of(key) is not cell]))
        # Without the turns that began behind the cut: each is looked at for each name.
        table = [row for row in self._table() if _has_cells(row[2]) or not row[1].keys() <= row[2].keys()]
        changes: dict[Any, Any] = {}
        for key in names:
            record = self._record_then(key, table)
            if key not in then.records or record is not then.records[key]:
                changes[key] = GONE if record is None else self._as_stored(record)
        return self._as_cut(changes, before)

    def _midway(self, entry: Taken, count: int) -> dict[Turn, dict[Any, Any]]:
        """Return the cells after only the first `count` items of `entry`.

        The items of an entry went in together.
        """
        _, payloads, watermark, before = entry
        some = payloads[:count]
        cells = {turn: {key: cell for key, cell in old.items() if cell is not None} for turn, old in before.items()}
        # Computed again instead of stored: few runs of items are cut in their midst, and the others
        # need no copy of the cells after each item.
        self._call("begin")
        try:
            found = self._cells.take(self._keys(some), some, [(0, watermark)], cells)
        finally:
            self._call("end")
        assert isinstance(found, tuple)
        for turn, _, put in found[0]:
            put(cells[turn])
        return {turn: {key: cells[turn].get(key) for key in old} for turn, old in before.items()}

    def _table(self) -> Cut:
        turns = sorted(self._by_mark.keys() | self._past.cells.keys())
        return [(turn, self._by_mark.get(turn, _NO_CELLS), self._past.cells.get(turn, _NO_CELLS)) for turn in turns]

    def _record_then(self, key: Any, table: Cut) -> Record | None:
        """Return the record of a key at the last cut."""
        if key in self._past.records:
            return self._past.records[key]
        if key in self._records:
            return self._records[key]
        found = [(turn, then[key] if key in then else now.get(key)) for turn, now, then in table]
        return self._record_of([each for each in found if each[1] is not None])

    def snapshot_of(self, names: Sequence[Any]) -> Mapping[Any, Any]:
        table, shared = self._table(), self.watermark.stored
        found = {name: self._record_then(name, table) for name in names if name not in shared}
        return self._as_read(found, names)


def _has_cells(cells: Mapping[Any, Any]) -> bool:
    """Return whether any of these was there; None: it was not."""
    return any(map(_IS_THERE, cells.values()))


def _turn_of(cell: tuple[Turn, Any]) -> Turn:
    return cell[0]
