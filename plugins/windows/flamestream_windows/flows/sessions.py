"""Sessions with one pane, at their end: the state of a key is one cell for all its sessions.

They give what a grouping gives. A session ends later with nearly every element. So its cell does not wait for its end,
but for a turn that is not behind it, and stays there; when the turn comes it is looked at. These turns are few, however
many keys there are, and however far the watermark is behind: the next multiples of some powers of two above the
watermark. A session that is over then goes to the turn of its end, where its pane is due.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from flamecore.abc.operator import Record as Kept
from flamecore.abc.operator import Turn
from flamecore.model.meta import MIN_TIME
from flamecore.model.ordered import Now, Timer
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.values import Moment, Record
from flamestream_windows.flows.cells import NOTHING, Found, GroupCells, by_key, replaced, stamped
from flamestream_windows.flows.slim import Slim
from flamestream_windows.flows.stamps import Form
from flamestream_windows.flows.work import GroupingWork, Stamp
from flamestream_windows.model.panes import Timing, panes_of
from flamestream_windows.model.times import MAX, MIN
from flamestream_windows.model.windows import Sessions, Window


class SessionCells(GroupCells):
    """Cells of sessions: the start, end, accumulator and number of elements of each, in a row."""

    def __init__(self, grouping: Grouping, form: Form) -> None:
        super().__init__(grouping, form)
        assert isinstance(self._windows, Sessions)
        self._gap = self._windows.gap
        # Powers of two up to the gap: a session of an element that is not late ends behind the next multiple of each.
        self._shifts = [*range(self._gap.bit_length() - 1, 0, -4), 0]

    def looks(self, watermark: int) -> list[Turn]:
        """Return the turns of sessions that go on, the latest first."""
        watermark = max(MIN, min(watermark, MAX))
        return [((watermark >> shift) + 1 << shift, MIN_TIME) for shift in self._shifts]

    def look(self, end: int, looks: Sequence[Turn]) -> Turn:
        """Return the latest of some turns that is not behind the end of a session."""
        return next(turn for turn in looks if turn[0] <= end)

    def _take_between(
        self,
        keys: Sequence[Any],
        times: Sequence[int],
        values: Sequence[Any],
        cells: Mapping[Turn, Mapping[Any, Any]],
        span: tuple[int, int],
        watermark: int,
    ) -> Found:
        looks, gap, add_all = self.looks(watermark), self._gap, self._aggregate.add_all
        tables = [(turn, cells.get(turn, NOTHING), dict[Any, Slim]()) for turn in looks if turn in cells]
        if looks[0] not in cells:  # to which new sessions go
            tables.insert(0, (looks[0], NOTHING, {}))
        # The values of what is counted are looked at by nobody.
        valued = None if self._counts else by_key(keys, values)
        sessions: Slim
        for key, some in by_key(keys, times).items():
            for found in tables:
                turn, table, new = found
                if sessions := table.get(key, ()):
                    break
            else:
                turn, _, new = tables[0]
            low, high = (some[0], some[0]) if len(some) == 1 else (min(some), max(some))
            if low + gap < turn[0]:
                return []  # a late one, whose session may end before the key is looked at
            those = some if valued is None else valued[key]
            if len(sessions) == 4 and sessions[0] <= low and high < sessions[1]:  # as nearly always
                start, end, accumulator, number = sessions
                new[key] = (start, max(end, high + gap), add_all(accumulator, those), number + len(some))
            else:
                new[key] = self._added(sessions, some, those)
        return [replaced(turn, new) for turn, _, new in tables if new], ()

    def _added(self, sessions: Slim, times: Sequence[int], values: Sequence[Any]) -> Slim:
        """Return sessions with elements, in their order."""
        gap, add = self._gap, self._aggregate.add
        several = [*sessions]  # changed in place: a key may have thousands
        for at, value in zip(times, values, strict=True):
            if several and several[-4] <= at < several[-3]:
                several[-3:] = (max(several[-3], at + gap), add(several[-2], value), several[-1] + 1)
            else:
                self._insert(several, at, value)
        return tuple(several)

    def _insert(self, sessions: list[Any], at: int, value: Any) -> None:
        """Put an element anywhere among the sessions of a key, which lie apart."""
        start, end = at, at + self._gap
        first = last = 4 * bisect_right(range(len(sessions) // 4), start, key=lambda number: sessions[4 * number + 1])
        accumulator, number = self._aggregate.create(), 0
        while last < len(sessions) and sessions[last] < end:
            joined = sessions[last + 2]
            accumulator = joined if last == first else self._aggregate.merge(accumulator, joined)
            number += sessions[last + 3]
            last += 4
        if first < last:
            start, end = min(start, sessions[first]), max(end, sessions[last - 3])
        sessions[first:last] = (start, end, self._aggregate.add(accumulator, value), number + 1)

    def after(self, turn: Turn, cells: Mapping[Any, Any], watermark: int) -> Mapping[Turn, Mapping[Any, Any]]:
        if turn[1] != MIN_TIME:
            return {}
        looks = self.looks(watermark)
        found: defaultdict[Turn, dict[Any, Slim]] = defaultdict(dict)
        for key, sessions in cells.items():
            place = 0
            while place < len(sessions) and sessions[place + 1] <= watermark:
                found[sessions[place + 1], sessions[place]][key] = sessions[place : place + 4]
                place += 4
            if place < len(sessions):
                found[self.look(sessions[place + 1], looks)][key] = sessions[place:]
        return found

    def end(self, keys: Sequence[Any], cells: Mapping[Any, Any], timer: Timer, now: Now) -> list[Stamp]:
        result = self._aggregate.result
        window = Window(timer.tag, timer.time)
        values = [result(cells[key][2]) for key in keys]
        return stamped(window, panes_of(window, Timing.ON_TIME, keys, values, repeat(0), last=True))

    def hold(self, turn: Turn) -> None:
        # A session that is not over ends above the watermark, so it holds back nothing.
        return None

    def joined(self, cells: Sequence[tuple[Turn, Any]]) -> Slim:
        return tuple([value for _, sessions in cells for value in sessions])

    def parted(self, state: Any, turns: Sequence[Turn]) -> Sequence[Any] | None:
        if type(state) is not tuple:
            return None
        cells: list[Slim] = []
        for turn in turns:  # those of sessions that are over come first, one for each
            is_over = turn == state[1::-1]
            if not is_over and turn[1] != MIN_TIME:
                return None
            count = 4 if is_over else len(state)
            cells.append(state[:count])
            state = state[count:]
        return None if state or () in cells else cells


class SessionWork(GroupingWork):
    """The work of sessions.

    Args:
        step: The grouping.
        form: Location of the times in payloads.
    """

    def __init__(self, step: Grouping, form: Form) -> None:
        super().__init__(step, form)
        self.cells: SessionCells = SessionCells(step, form)
        self.cells.tell = self._count

    def stored(self, record: Kept) -> Kept:
        """Return a record with the times and the hold of its sessions, as `Work.stored`.

        It depends on nothing else. When it is restored it does not fall into cells before it is worked on.
        """
        state = record[0]
        if type(state) is not tuple:
            return super().stored(record)
        turns = [(state[place + 1], state[place], True) for place in range(0, len(state), 4)]
        return (state, tuple(turns), state[1] - 1)

    def _turns(self, record: Record, moment: Moment) -> Iterator[Turn]:
        if record.open:
            yield self.cells.look(record.open[0].window.end, self.cells.looks(moment.input))

    def _hold(self, record: Record) -> None:
        return None
