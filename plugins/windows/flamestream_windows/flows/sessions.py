"""Sessions with one pane, at their end: one call takes elements of all keys.

They give what a grouping gives. A session ends later with nearly every element: so a key waits for a time that is not
behind the end of its first session, which it shares with others, and looks then how long it still is. It holds the
watermark where it would be anyway. The stored form contains the times and the hold of each session as they are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final

from flamecore.abc.operator import Ends, Stretch, Turn, Watermarks
from flamecore.abc.operator import Record as Kept
from flamecore.model.meta import MIN_TIME
from flamecore.model.ordered import Now
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.flows.cells import behind, by_key
from flamestream_windows.flows.slim import Slim
from flamestream_windows.flows.stamps import VALUE, Form
from flamestream_windows.model.aggregates import Count
from flamestream_windows.model.panes import Timing, panes_of
from flamestream_windows.model.windows import Sessions, Window

_EARLY: Final = 4
"""A timer may be early by a power of two of microseconds that is so many bits shorter than the way to the end."""

_SEVERAL: Final = 4
"""So many times are looked at sooner all at once than one after another."""


class SessionRuns:
    """The work of sessions on many elements.

    Args:
        grouping: The grouping.
        form: How payloads tell their times.
    """

    def __init__(self, grouping: Grouping, form: Form) -> None:
        windows = grouping.strategy.windows
        assert isinstance(windows, Sessions)
        self._gap = windows.gap
        self._aggregate = grouping.aggregate
        self._counts = type(grouping.aggregate) is Count
        self._form = form

    def take(
        self, keys: Sequence[Any], payloads: Sequence[Any], watermarks: Watermarks, records: Mapping[Any, Kept | None]
    ) -> Stretch | Sequence[int]:
        """Take elements, as `Work.process_run`."""
        form = self._form
        if form.kind is not None and any(kinds := [*map(form.kind, payloads)]):
            return [place for place, kind in enumerate(kinds) if kind != VALUE]
        times = form.times(payloads)
        # Behind a mark nothing that is not behind it, too, belongs to a session that the mark ends: so marks may wait.
        if behind(times, watermarks):
            watermark = watermarks[0][1]
            return [place for place, at in enumerate(times) if at < watermark] if len(watermarks) == 1 else []
        gap, counts, watermark = self._gap, self._counts, watermarks[0][1]
        values = payloads if form.value is None else [*map(form.value, payloads)]
        odd: set[Any] = set()
        kept: dict[Any, Kept] = {}
        changed: dict[Any, Kept | None] = {}
        # The values of what is counted are looked at by nobody.
        valued = None if self._counts else by_key(keys, values)
        for key, some in by_key(keys, times).items():
            those = some if valued is None else valued[key]
            before = records.get(key)
            if before is None:
                slim = self._extended((), some, those)
            elif type(before[0]) is tuple:
                slim, turns, hold = before
                count = len(some)
                low, high = (some[0], some[0]) if count == 1 else (min(some), max(some))
                if hold is None and len(slim) == 4 and slim[0] <= low and high < slim[1]:  # as nearly always
                    start, end, accumulator, number = slim
                    accumulator = accumulator + count if counts else self._aggregate.add_all(accumulator, those)
                    high += gap
                    kept[key] = ((start, max(end, high), accumulator, number + count), turns, None)
                    continue
                slim = self._extended(slim, some, those)
                if hold is None and turns[0] <= (slim[1], slim[0], True):
                    kept[key] = (slim, turns, None)
                    continue
            else:
                odd.add(key)
                continue
            changed[key] = (slim, _look(slim[1], watermark), None)
        if odd:
            return [place for place, key in enumerate(keys) if key in odd]
        return Stretch(kept, changed)

    def _extended(self, slim: Slim, times: Sequence[int], values: Sequence[Any]) -> Slim:
        """Return the sessions of a key with elements, in their order."""
        gap, first, count = self._gap, 0, len(times)
        if not slim:
            slim = (times[0], times[0] + gap, self._aggregate.add(self._aggregate.create(), values[0]), 1)
            first = 1
        several = [*slim]  # changed in place: a key may have thousands
        while first < count:
            start, end, accumulator, number = several[-4:]
            if not start <= times[first] < end:
                self._insert(several, times[first], values[first])
                first += 1
                continue
            # Those that follow in the last session, too, are added in one call.
            last, place = times[first], first + 1
            if count - first >= _SEVERAL and start <= min(times) and max(times) < end:
                last, place = max(times[first:]), count
            while place < count and start <= (at := times[place]) < end:
                last = max(last, at)
                place += 1
            end = max(end, last + gap)
            if self._counts:
                accumulator += place - first
            else:
                accumulator = self._aggregate.add_all(accumulator, values[first:place])
            several[-4:] = (start, end, accumulator, number + place - first)
            first = place
        return tuple(several)

    def _insert(self, several: list[Any], at: int, value: Any) -> None:
        """Put an element anywhere among the sessions of a key, which lie apart."""
        start, end = at, at + self._gap
        first = last = 4 * bisect_right(range(len(several) // 4), start, key=lambda number: several[4 * number + 1])
        accumulator, number = self._aggregate.create(), 0
        while last < len(several) and several[last] < end:
            accumulator = several[last + 2] if last == first else self._aggregate.merge(accumulator, several[last + 2])
            number += several[last + 3]
            last += 4
        if first < last:
            start, end = min(start, several[first]), max(end, several[last - 3])
        several[first:last] = (start, end, self._aggregate.add(accumulator, value), number + 1)

    def end(self, keys: Sequence[Any], now: Now, records: Mapping[Any, Kept]) -> Ends:
        """End the sessions whose time has come, as `Work.on_mark_run`."""
        watermark, result = now.watermark, self._aggregate.result
        kept: dict[Any, Kept] = {}
        gone: list[Any] = []
        alone: list[Any] = []
        outputs: list[tuple[Turn, Any, Any]] = []
        for key in keys:
            state = records[key][0]
            if type(state) is not tuple:
                alone.append(key)
                continue
            ended = 0
            while ended < len(state) and state[ended + 1] <= watermark:
                start, end, accumulator = state[ended : ended + 3]
                value = result(accumulator)
                (pane,) = panes_of(Window(start, end), Timing.ON_TIME, (key,), (value,), (0,), last=True)
                outputs.append(((end, start), key, (VALUE, end - 1, pane)))
                ended += 4
            if state := state[ended:]:
                kept[key] = (state, _look(state[1], watermark), None)
            else:
                gone.append(key)
        return Ends(kept, gone, outputs, alone)

    def exact(self, record: Kept) -> Kept:
        """Return a record with the times and the hold of its sessions, as `Work.stored`."""
        state = record[0]
        if type(state) is not tuple:
            return record
        turns = [(state[place + 1], state[place], True) for place in range(0, len(state), 4)]
        return (state, tuple(turns), state[1] - 1)


def _look(end: int, watermark: int) -> tuple[tuple[int, int, bool]]:
    """Return the timer by which a session is looked at that ends above a watermark.

    It is early by an eighth of the way to the end, at most. So many keys share a timer, and a key whose session goes on
    is looked at a few times, however often its end moves.
    """
    shift = (end - watermark).bit_length() - _EARLY
    return ((end if shift <= 0 else end >> shift << shift, MIN_TIME, True),)
